"""The cost of an evaluation, bounded before it begins (Kubernetes: the cost estimator of cel-go).

cel-expr limits neither time nor memory, holds the interpreter lock while it evaluates, and can't be
interrupted. So the syntax tree is walked first, with upper bounds of the sizes of all values in it, and an
evaluation that may take more than `MOST_SECONDS` or `MOST_BYTES` is not begun. Kubernetes bounds sizes by a
schema; here they are those of the object. Every part of an expression counts as evaluated, and nothing as
freed before the end.

Within a comprehension a value has two bounds: the `most` that one evaluation sees, and the `total` of all.
The elements of a list are together as large as the list, however they are divided. So a call whose cost is
linear in its argument costs the total, and one that multiplies two arguments costs the most of one times the
total of the other.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import msgspec

from declctl.objects.expression_tree import SyntaxNode

MOST_SECONDS = 0.1  # of an evaluation, with the decoding of the fields that it reads
MOST_BYTES = 2**25

# What the parts of an evaluation cost, in seconds and bytes: at least twice what was measured.
_NODE = 1e-7  # seconds: one part of an expression, once
_TEXT_MADE = 64  # bytes, beside its characters
_READ_VALUE, _READ_VALUE_BYTES = 5e-7, 200  # decoded, and converted to CEL
_READ_BYTE, _READ_BYTE_BYTES = 3e-9, 7  # a Python text has four bytes for each character, if one needs them
_COMPARED_VALUE, _COMPARED_BYTE = 1.5e-7, 1e-9
_HASHED_BYTE = 1e-10
_SEARCHED_BYTE, _SEARCHED_PRODUCT = 1.5e-8, 5e-11  # of `contains`: each place, times the text at each place
_APPENDED, _APPENDED_BYTES = 5e-8, 20  # of `map` and `filter`, which copy their list with each element
_JOINED, _JOINED_BYTES = 1e-7, 36  # an element of lists that are joined
_ENTRY, _ENTRY_BYTES = 4e-7, 150  # an element of a list or map that an expression makes
_COMPILED, _COMPILED_BYTES = 1e-6, 100  # an instruction of a pattern, which is compiled with each call
_MATCHED = 8e-9  # an instruction, times a byte of the text
_PATTERN_BYTES = 2**23  # the memory of RE2, which is freed with each call
_TIME_ZONE = 2e-6

_UNICODE_CLASS = 1000  # instructions
_REPEATED = 5  # instructions, beside those of the repeated part
_PATTERN_TOKEN = re.compile(
    r"\\[pP](?:\{[^}]*\}?|.)|\\.|(?P<open>\((?:\?[^):]*:?)?)|(?P<close>\))|(?P<class>\[\^?\]?(?:\\.|[^\]\\])*\]?)"
    r"|(?P<repeat>[*+?]|\{(?P<least>\d+)(?P<comma>,(?P<most>\d*))?\})|.",
    re.DOTALL,
)

# Calls whose result is small. The seconds are for a byte of their arguments.
_SCANS = {
    "startsWith": 3e-9, "endsWith": 3e-9, "size": 3e-9, "int": 3e-9, "uint": 3e-9, "double": 3e-9,
    "bool": 3e-9, "timestamp": 6e-8, "duration": 6e-8, "_<_": 3e-9, "_<=_": 3e-9, "_>_": 3e-9, "_>=_": 3e-9,
}  # fmt: skip
TIME_PARTS = frozenset({
    "getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getHours",
    "getMinutes", "getSeconds", "getMilliseconds",
})  # fmt: skip
_SMALL_RESULTS = TIME_PARTS | {
    "_&&_", "_||_", "!_", "-_", "_-_", "_*_", "_/_", "_%_", "@not_strictly_false", "type", "hasValue",
    "optional.none",
}  # fmt: skip
COMPARISONS = frozenset({"_==_", "_!=_", "@in"})
FIELD_OPERATORS = frozenset({"_[_]", "_?._", "_[?_]"})  # obj["a"], obj.?a, obj[?"a"]
# Calls that return one of their arguments, or an element of it.
_CHOICES = FIELD_OPERATORS | {
    "_?_:_", "dyn", "optional.of", "optional.ofNonZeroValue", "value", "or", "orValue", "first", "last",
}  # fmt: skip
FUNCTIONS = _SMALL_RESULTS | COMPARISONS | _CHOICES | _SCANS.keys() | {
    "_+_", "string", "bytes", "contains", "matches",
}  # fmt: skip
"""All functions whose cost is known."""

_UNKNOWN: Any = object()  # the content of a value that the expression makes


class OverBudget(Exception):
    """An evaluation may cost too much; `node` is the part with which it does, None for reading the object."""

    def __init__(self, node: SyntaxNode | None) -> None:
        super().__init__(node)
        self.node = node


@dataclass(slots=True)  # not frozen, which would take three times as long to make
class Measure:
    """The size of a value, with all that is in it; or the sum of such sizes."""

    bytes: float = 0  # as JSON: no text has more
    values: float = 1  # it, its keys, and the values within it
    length: float = 0  # its elements, if it is a list or a map

    def __add__(self, other: "Measure") -> "Measure":
        return Measure(self.bytes + other.bytes, self.values + other.values, self.length + other.length)

    def __mul__(self, times: float) -> "Measure":
        return Measure(self.bytes * times, self.values * times, self.length * times)

    def least(self, other: "Measure") -> "Measure":
        """The smaller one of two bounds, in each respect."""
        return Measure(
            min(self.bytes, other.bytes), min(self.values, other.values), min(self.length, other.length)
        )

    def largest(self, other: "Measure") -> "Measure":
        """What holds for both."""
        return Measure(
            max(self.bytes, other.bytes), max(self.values, other.values), max(self.length, other.length)
        )

    @property
    def comparing(self) -> float:
        """The seconds of a comparison with an equal value."""
        return self.values * _COMPARED_VALUE + self.bytes * _COMPARED_BYTE


_NOTHING = Measure(values=0)
_SCALAR = Measure(32)  # a number, a time, true or false: its longest text


def measure_json(text: bytes) -> Measure:
    """The size of a JSON text; its length is not counted."""
    # What is between the texts within it: the characters of a text are no structure.
    outside = b"".join(text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    values = 1 + sum(map(outside.count, (b",", b":", b"[", b"{")))
    return Measure(len(text), values)


def program_size(pattern: str) -> float:
    """The instructions of a regular expression, in which RE2 copies what is repeated: an upper bound."""
    groups, atom = [0.0], 0.0  # of the open groups; of what is before the place
    for token in _PATTERN_TOKEN.finditer(pattern):
        if token["repeat"]:
            times = max(int(token["most"] or token["least"] or 1), 1)
            optional = _REPEATED if token["comma"] or not token["least"] else 0
            groups[-1] += (atom + optional) * times - atom
            atom = (atom + optional) * times
        elif token["open"]:
            groups.append(1)
        elif token["close"] and len(groups) > 1:
            atom = groups.pop()
            groups[-1] += atom
        else:
            classes = token[0].count("\\p") + token[0].count("\\P")
            atom = classes * _UNICODE_CLASS + (len(token[0]) if token["class"] else 1)
            groups[-1] += atom
    return sum(groups) + 1


class _Size(NamedTuple):
    most: Measure  # of one evaluation
    total: Measure  # of all evaluations together

    def __add__(self, other: "_Size") -> "_Size":  # type: ignore[override]
        return _Size(self.most + other.most, self.total + other.total)


class _Scope(NamedTuple):
    """The place of a node among the comprehensions around it."""

    times: float = 1  # evaluations of the node
    lengths: tuple[float, ...] = ()  # the most steps of each comprehension, from the outermost on
    # The size of each variable, and the number of comprehensions around its binding.
    bound: Mapping[str, tuple[_Size, int]] = {}

    def size(self, most: Measure) -> _Size:
        """The size of a value that is as large with each evaluation."""
        return _Size(most, most * self.times)


class CostModel:
    """The costs of the evaluations of one expression. From any thread.

    Raises OverBudget if the expression costs too much with any object.
    """

    def __init__(self, tree: SyntaxNode, variables: frozenset[str]) -> None:
        self._tree = tree
        self._variables = variables  # that are objects
        self._within: dict[tuple[int, int], bool] = {}  # by the bits of the numbers of bytes and values
        self._check(_NOTHING)

    def within(self, size: int, values: int) -> bool:
        """Whether all objects of so many bytes and values together are within the budget.

        It is fast, as answers are remembered by powers of two.
        """
        key = size.bit_length(), values.bit_length()
        within = self._within.get(key)
        if within is None:
            # The shortest element of a list has two bytes.
            most = Measure(1 << key[0], 1 << key[1], min(1 << key[0] >> 1, 1 << key[1]))
            try:
                self._check(most)
                within = True
            except OverBudget:
                within = False
            self._within[key] = within
        return within

    def _check(self, each: Measure) -> None:
        walk = _Walk({}, each)
        for _ in self._variables:
            walk.read(each)
        walk.size(self._tree, _Scope())

    def check_reading(self, read: Iterable[Measure]) -> None:
        """Raise OverBudget if to decode objects of these sizes costs too much."""
        walk = _Walk({}, _NOTHING)
        for size in read:
            walk.read(size)

    def check(self, read: Iterable[Measure], objects: Mapping[str, object]) -> None:
        """Raise OverBudget if an evaluation may cost too much with these objects, whose sizes are `read`."""
        walk = _Walk(objects, _SCALAR)
        for size in read:
            walk.read(size)
        walk.size(self._tree, _Scope())


class _Walk:
    """Adds up the costs of an evaluation. `unknown` is the size of a field if there are no `objects`."""

    def __init__(self, objects: Mapping[str, object], unknown: Measure) -> None:
        self._objects = objects
        self._unknown = unknown
        self._measures: dict[int, Measure] = {}  # by the id of a value of the objects, which outlive the walk
        self._seconds = 0.0
        self._bytes = 0.0
        self._transient = 0.0  # the most bytes that a call takes and frees

    def read(self, size: Measure) -> None:
        """Add what it costs to decode and convert a value."""
        seconds = size.values * _READ_VALUE + size.bytes * _READ_BYTE
        self._add(None, seconds, size.values * _READ_VALUE_BYTES + size.bytes * _READ_BYTE_BYTES)

    def _add(self, node: SyntaxNode | None, seconds: float, made: float = 0, transient: float = 0) -> None:
        self._seconds += seconds
        self._bytes += made
        self._transient = max(self._transient, transient)
        if self._seconds > MOST_SECONDS or self._bytes + self._transient > MOST_BYTES:
            raise OverBudget(node)

    def size(self, node: SyntaxNode, scope: _Scope) -> _Size:
        """The size of the value of a node, whose costs are added. Raises OverBudget."""
        content = self._content(node, scope)
        if content is not _UNKNOWN:
            self._add(node, sum(_NODE for _ in node.all()) * scope.times)
            return scope.size(self._measure(content))
        self._add(node, _NODE * scope.times)
        if node.kind == "variable":
            return self._variable(node.name, scope)
        if node.kind == "comprehension":
            return self._comprehension(node, scope)
        parts = [self.size(part, scope) for part in node.parts]
        if node.kind == "field":
            return _Size(_part(parts[0].most), _part(parts[0].total))
        if node.kind in ("list", "map"):
            count = len(parts)
            self._add(node, _ENTRY * count * scope.times, (64 + _ENTRY_BYTES * count) * scope.times)
            # Each element is beside the others, whatever their own lengths are.
            size = sum(parts, scope.size(Measure(2)))
            own = scope.size(Measure(length=count))
            return _Size(_long(size.most, own.most.length), _long(size.total, own.total.length))
        if node.kind == "call":
            return self._call(node, parts, scope)
        return scope.size(Measure(node.size + 32))

    def _call(self, node: SyntaxNode, parts: list[_Size], scope: _Scope) -> _Size:
        name, times = node.name, scope.times
        total = sum((part.total for part in parts), _NOTHING)
        if name in COMPARISONS:
            # An element of a list is compared with the other side, as far as both go.
            sides = parts[1:] if name == "@in" else parts
            self._add(node, min(side.total.comparing for side in sides))
            # The keys of maps are hashed, also where no key of the other side is as long.
            if not any(self._is_scalar(part, scope) for part in node.parts[-len(sides) :]):
                self._add(node, total.bytes * _HASHED_BYTE)
        elif name in _SCANS:
            self._add(node, total.bytes * _SCANS[name] + 5e-7 * times)
        elif name == "contains":
            text, searched = parts
            product = min(text.most.bytes * searched.total.bytes, text.total.bytes * searched.most.bytes)
            self._add(node, text.total.bytes * _SEARCHED_BYTE + product * _SEARCHED_PRODUCT)
        elif name == "matches":
            program = program_size(node.parts[1].name)
            seconds = program * (_COMPILED * times + _MATCHED * parts[0].total.bytes)
            self._add(node, seconds + 6e-6 * times, transient=_PATTERN_BYTES + program * _COMPILED_BYTES)
        elif name == "_+_":
            seconds = total.bytes * 3e-9 + total.length * _JOINED + 3e-7 * times
            self._add(node, seconds, total.bytes + total.length * _JOINED_BYTES + _TEXT_MADE * times)
            return parts[0] + parts[1]
        elif name in ("string", "bytes"):
            self._add(node, total.bytes * 3e-9 + 3e-7 * times, total.bytes + _TEXT_MADE * times)
            return parts[0] + scope.size(_SCALAR)
        elif name in TIME_PARTS:
            self._add(node, _TIME_ZONE * times)
        elif name in FIELD_OPERATORS:
            self._add(node, parts[1].total.bytes * _COMPARED_BYTE + 5e-7 * times)
            return _Size(_part(parts[0].most), _part(parts[0].total))
        elif name in _CHOICES:
            most = parts[0].most
            for part in parts[1:]:
                most = most.largest(part.most)
            return _Size(_part(most), _part(total)) if name in ("first", "last") else _Size(most, total)
        return scope.size(_SCALAR)

    def _comprehension(self, node: SyntaxNode, scope: _Scope) -> _Size:
        values, first, condition, step, result = node.parts
        range_, accumulator = self.size(values, scope), self.size(first, scope)
        steps, most_steps = range_.total.length, range_.most.length
        inner = _Scope(steps, (*scope.lengths, most_steps), scope.bound)
        element = _Size(self._largest_element(self._content(values, scope), range_.most), _part(range_.total))
        level = len(inner.lengths)
        # What a step adds to the accumulator is counted alone.
        names = dict.fromkeys(node.bound[:-1], (element, level))
        inner = inner._replace(
            bound={**scope.bound, **names, node.bound[-1]: (_Size(_NOTHING, _NOTHING), level)}
        )
        self.size(condition, inner)
        added = self.size(step, inner)
        if first.kind == "list":
            copies = steps * most_steps
            self._add(node, copies * _APPENDED, copies * _APPENDED_BYTES)
        accumulator = _Size(
            accumulator.most + (added.most * most_steps).least(added.total), accumulator.total + added.total
        )
        bound = {**scope.bound, node.bound[-1]: (accumulator, len(scope.lengths))}
        return self.size(result, scope._replace(bound=bound))

    def _variable(self, name: str, scope: _Scope) -> _Size:
        if name not in scope.bound:
            # Without objects, a field of any size; else `change.type`, or the name of a type.
            return scope.size(self._unknown)
        size, level = scope.bound[name]
        repeated = 1.0  # evaluations, at most, for each binding
        for length in scope.lengths[level:]:
            repeated *= length
        return _Size(size.most, (size.most * scope.times).least(size.total * repeated))

    def _content(self, node: SyntaxNode, scope: _Scope) -> object:
        """The value of a field of the objects; None if it is missing, `_UNKNOWN` for any other node."""
        if node.kind == "variable":
            return _UNKNOWN if node.name in scope.bound else self._objects.get(node.name, _UNKNOWN)
        if node.kind == "field":
            name = node.name
        elif node.name in FIELD_OPERATORS and node.parts[1].kind == "text":
            name = node.parts[1].name
        else:
            return _UNKNOWN
        below = self._content(node.parts[0], scope)
        if below is _UNKNOWN:
            return _UNKNOWN
        return cast("dict[str, object]", below).get(name) if isinstance(below, dict) else None

    def _is_scalar(self, node: SyntaxNode, scope: _Scope) -> bool:
        """Whether the value of a node is known to be neither a list nor a map."""
        if node.kind in ("null", "text", "constant"):
            return True
        content = self._content(node, scope)
        return content is not _UNKNOWN and not isinstance(content, list | dict)

    def _measure(self, content: object) -> Measure:
        measure = self._measures.get(id(content))
        if measure is None:
            length = len(cast("list[Any]", content)) if isinstance(content, list | dict) else 0
            measure = _long(measure_json(msgspec.json.encode(content)), length)
            self._measures[id(content)] = measure
        return measure

    def _largest_element(self, content: object, whole: Measure) -> Measure:
        """The most that an element of a list or map has."""
        if isinstance(content, list | dict) and content:
            longest = max(map(len, map(msgspec.json.encode, cast("list[Any]", content))))
            return whole.least(Measure(longest, longest, longest // 2))
        return _part(whole)


def _long(size: Measure, length: float) -> Measure:
    return Measure(size.bytes, size.values, length)


def _part(size: Measure) -> Measure:
    """What an element of a value has at most. It may be a list of all the values within it."""
    return _long(size, min(size.values, size.bytes / 2))
