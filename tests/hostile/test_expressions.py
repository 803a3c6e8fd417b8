"""Expressions (CEL) over objects of people who mean harm: each evaluation within its time and memory."""

import ctypes
import gc
import json
import random

import pytest

from declctl.decoding import Projection
from declctl.objects.expressions import EvaluationFailed, Expression, ExpressionError
from tests.hostile.bounds import bounded

OBJECT = 1_500_000  # bytes: about the most that an API server accepts
A, B = "a" * OBJECT, "a" * (OBJECT // 3) + "b"


def evaluate(expression, body):
    """Evaluate once; returns whether the budget let it. The promise is 100 ms, on no slow machine."""
    raw = json.dumps({"metadata": {"name": "a"}, **body}, ensure_ascii=False, separators=(",", ":")).encode()
    record = Projection(api_version="v1", kind="ConfigMap").record(raw)
    assert record is not None
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory of the evaluation before it would hide what this one takes
    with bounded(seconds=0.15, megabytes=32):
        try:
            expression.matches(record)
        except EvaluationFailed as failure:
            return "may take more than" not in str(failure)
    return True


# What an object may have in a field, of about so many bytes.
TEXTS = {
    "one text": lambda size: "a" * size,
    "a text that is nearly found": lambda size: "a" * size + "b",
    "hours": lambda size: "1h" * (size // 2),
    "escapes": lambda size: '"' * (size // 2),
    "letters": lambda size: "é😀" * (size // 6),
}
LISTS = {
    "numbers": lambda size: [1] * (size // 2),
    "texts": lambda size: ["2020-01-01T00:00:00Z"] * (size // 24),
    "empty lists": lambda size: [[]] * (size // 3),
    "few long texts": lambda size: ["a" * (size // 10)] * 10,
    "one long text": lambda size: ["a" * (size // 2), *(["b"] * (size // 8))],
    "maps": lambda size: [{"a": "x", "b": [1, 2]} for _ in range(size // 20)],
    "a map": lambda size: {f"k{n}": n for n in range(size // 16)},
    "a long key": lambda size: {"k" * size: 1},
    "lists of texts": lambda size: [["a"] * 100] * (size // 400),
}


def draw_object(source, size):
    """An object of about so many bytes: two texts and two lists, some as large as each other."""
    kinds = {"s": TEXTS, "t": TEXTS, "l": LISTS, "m": LISTS}
    chosen = {name: source.choice(list(kinds[name].values())) for name in kinds}
    parts = {name: source.choice([0, 0.1, 1, 1]) for name in kinds}
    whole = sum(parts.values()) or 1
    return {name: make(int(size * parts[name] / whole)) for name, make in chosen.items()}


class Grammar:
    """Draws expressions, each part of which has about the type that it needs."""

    def __init__(self, source):
        self._choice = source.choice

    def condition(self, depth, names):
        any_, text, many = self.value, self.text, self.many
        d = depth - 1
        return self._choice([
            lambda: f"{any_(d, names)} {self._choice(['==', '!='])} {any_(d, names)}",
            lambda: f"{any_(d, names)} in {many(d, names)}",
            lambda: f"!({text(d, names)}.contains({text(d, names)}))",
            lambda: f"{text(d, names)}.matches('{self._choice(PATTERNS)}')",
            lambda: f"{text(d, names)}.{self._choice(['startsWith', 'endsWith'])}({text(d, names)})",
            lambda: f"{text(d, names)} < {text(d, names)}",
            lambda: f"size({any_(d, names)}) > 1",
            lambda: f"timestamp({text(d, names)}).getHours('Europe/Berlin') < 25",
            lambda: f"duration({text(d, names)}) > duration('1s')",
            lambda: self.loop(d, names, "all", self.condition, "{} || true"),
            lambda: self.loop(d, names, "exists", self.condition, "{} && false"),
            lambda: self.loop(d, names, "exists_one", self.condition, "{}"),
        ])()  # fmt: skip

    def text(self, depth, names):
        if depth <= 0:
            return self._choice(["obj.s", "obj.t", "'a'", *names, *(f"{name}.a" for name in names)])
        left, right = self.text(depth - 1, names), self.text(depth - 1, names)
        return self._choice([left, f"({left} + {right})", f"string(bytes({left}))", f"string({left})"])

    def many(self, depth, names):
        if depth <= 0:
            return self._choice(["obj.l", "obj.m", *names, *(f"{name}.b" for name in names), "[1, 2, 3]"])
        d = depth - 1
        return self._choice([
            lambda: self.loop(d, names, "map", self.value, "{}"),
            lambda: self.loop(d, names, "filter", self.condition, "{} || true"),
            lambda: f"({self.many(d, names)} + {self.many(d, names)})",
            lambda: f"[{self.value(d, names)}, {self.value(d, names)}]",
            lambda: f"{{'a': {self.value(d, names)}}}",
            lambda: f"obj.?l.orValue({self.many(d, names)})",
        ])()  # fmt: skip

    def value(self, depth, names):
        return self._choice([self.text, self.many])(depth, names)

    def loop(self, depth, names, macro, body, form):
        name = f"x{len(names)}"
        return f"{self.many(depth, names)}.{macro}({name}, {form.format(body(depth, [*names, name]))})"


PATTERNS = ["a*b", "^a[0-9]+$", "((a{0,30}){0,10})b", "(a|b)*a(a|b){20}c", "(.*)(.*)(.*)x", "[^x]*.{50}$"]


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("obj.s.contains(obj.t)", {"s": A[: OBJECT // 2], "t": B}),
        ("!obj.l.exists(x, x in obj.m)", {"l": [1] * 3000, "m": [2] * 20_000}),
        ("obj.l.all(x, obj.m == obj.n)", {"l": [1] * 2000, "m": [2] * 5000, "n": [2] * 5000}),
        ("obj.l.all(x, !(obj.s in {'a': 1, 'b': 2, 'c': 3}))", {"l": [1] * 9000, "s": A}),
        ("obj.l.map(x, obj.s).size() > 0", {"l": [1] * 9000, "s": A}),
        ("obj.l.map(x, bytes(obj.s)).size() > 0", {"l": [1] * 900, "s": A}),
        ("obj.l.exists(x, obj.s + x == '')", {"l": ["x"] * 20, "s": A}),  # the memory alone
        ("obj.l.all(x, obj.m.all(y, size(x) > 0))", {"l": [B, B], "m": [1] * 2000}),
        ("obj.l.all(x, x.all(y, y.all(z, z.contains(obj.s))))", {"l": [[[B] * 2]], "s": B}),
        ("obj.l.all(x, x.matches('^(a|b)*a(a|b){20}c$'))", {"l": [B, B, B]}),
        (f"obj.l.all(x, {{{', '.join(f'{n}: x' for n in range(40))}}} != {{}})", {"l": [1] * 9000}),
        ("obj.l != []", {"l": [[]] * 500_000}),
        ("obj.l != [] || old != null", {"l": [{"a": 1} for _ in range(180_000)]}),
        ("obj.spec.l.x == 1", {"spec": [[]] * 500_000}),
    ],
)
def test_what_would_cost_too_much_is_not_begun(text, body):
    """One object neither stops all threads for seconds nor fills the memory: it counts as no match."""
    assert not evaluate(Expression(text), body)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("obj.s.contains('ab') && obj.s.startsWith('a') && obj.s != obj.t", {"s": B, "t": A[: OBJECT // 2]}),
        ("obj.s == 'x' || obj.s.startsWith('a,')", {"s": 'a,[{:"' * (OBJECT // 6)}),
        ("obj.l.exists(x, x == 'b')", {"l": ["a" * 100] * 8000}),
        ("obj.l.all(x, x.contains(obj.t))", {"l": ["ab" * 50] * 8000, "t": "ab"}),
        ("obj.l.all(x, x.env.filter(y, y.n == 'a').size() == 2)", {"l": [{"env": [{"n": "a"}] * 2}] * 800}),
        ("obj.l.map(x, x + '!').size() == obj.l.filter(x, x != 'a').size()", {"l": ["x"] * 700, "s": B}),
        ("obj.few.map(x, obj.s + x).size() == 20", {"few": ["x"] * 20, "s": B}),
        ("obj.name == 'x'", {"name": "x", "l": [[]] * 480_000}),
    ],
)
def test_what_costs_little_has_a_result_on_large_objects(text, body):
    """The size of an object alone is no reason to refuse it, nor are fields that are not read."""
    assert evaluate(Expression(text), body)


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 400), marks=pytest.mark.thorough)])
@pytest.mark.timeout(600)
def test_any_evaluation_is_within_the_budget(seeds):
    """Drawn expressions and objects, each object as large as the budget lets it be."""
    evaluated = 0
    for seed in seeds:
        source = random.Random(seed)
        try:
            expression = Expression(Grammar(source).condition(source.choice([1, 2, 3, 4]), []))
        except ExpressionError:
            continue  # two types that never fit
        size = OBJECT
        while size > 100 and not evaluate(expression, draw_object(random.Random(seed), size)):
            size //= 2
        evaluated += size > 100
    assert evaluated > len(seeds) / 2, "most expressions have a result on some object"
