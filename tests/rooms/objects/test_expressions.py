"""CEL expressions: what compiles, where a fault is, and the result for objects and changes."""

import json
import subprocess
import sys

import msgspec
import pytest

from declctl.decoding import Projection
from declctl.objects import ChangeReason, ChangeType, Notification, ObjectCodec
from declctl.objects.expressions import EvaluationFailed, Expression, ExpressionError, compile_expression

ADDED, MODIFIED, DELETED, RESYNC = ChangeType
TIME = "timestamp('2026-01-01T00:00:00Z')"
POD = {
    "metadata": {"name": "a", "labels": {"a/b": "x"}},
    "spec": {"replicas": 3, "paused": False, "containers": [{"image": "nginx"}], "none": None},
    "status": {"phase": "Running"},
}


def record(body=POD, *, held=False, **more):
    codec = {"codec": ObjectCodec(api_version="v1", kind="Pod")} if held else {}
    made = Projection(api_version="v1", kind="Pod", **codec).record(json.dumps({**body, **more}).encode())
    assert made is not None
    return made


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("obj.status.phase == 'Running'", True),
        ("obj.status.phase in ['Failed', 'Unknown']", False),
        ("has(obj.status.phase)", True),
        ("has(obj.status.reason) && obj.status.reason == 'x'", False),
        ("obj.?status.?reason.orValue('') == ''", True),
        ("obj.metadata.labels['a/b'] == 'x'", True),
        ("obj.spec.containers.exists(c, c.image.startsWith('nginx'))", True),
        ("obj.spec.containers[0].image == 'nginx'", True),
        ("obj.spec.replicas > 2 && obj.spec.replicas == 3.0", True),
        ("obj.spec.paused", False),
        ("obj.spec.none == null && has(obj.spec.none)", True),
        ("obj.missing.x == 1 || true", True),
        ("obj.kind == 'Pod' && obj.apiVersion == 'v1'", True),
        ("obj['status'] == {'phase': 'Running'}", True),
        ("'kind' in obj && size(obj) == 5", True),
        ("[obj.status.phase].map(obj, obj + '!') == ['Running!']", True),
        ("timestamp('2026-01-01T00:00:00Z') + duration('1h') > timestamp('2026-01-01T00:00:00Z')", True),
        (f"{TIME}.getHours('Europe/Berlin') == 1 && {TIME}.getHours('+02:00') == 2", True),
        (
            "optional.ofNonZeroValue(obj.spec.replicas).optMap(v, v + 1).or(optional.none()).value() == 4",
            True,
        ),
        ("[1, 2].first().orValue(0) == 1 && type([?obj.?a, obj.?b.orValue(2)]) == list", True),
        ("true", True),
    ],
)
def test_the_result_for_an_object(text, result, held):
    """Fields alone and whole objects give the same, in every form of the cache."""
    expression = Expression(text)
    assert expression.judges_objects
    assert expression.matches(record(held=held)) is result


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("obj.status.reason == 'x'", 'map: "reason"; test a field that may be missing with has'),
        ("obj.spec.replicas > '2'", "No matching overloads found"),
        ("obj.status.phase", "the result is a string, and neither true nor false"),
        ("obj.spec.none.x == 1", "Applying SELECT to non-message type"),
        ("obj.l.all(a, obj.l.all(b, obj.l.all(c, true)))", "Iteration budget exceeded"),
        ("obj.big > 1", "out of range"),
        ("1 / (obj.spec.replicas - 3) == 1", "divide by zero"),
    ],
)
def test_an_error_is_no_result(text, message):
    """The text of an error would count as true in Python."""
    with pytest.raises(EvaluationFailed) as failed:
        Expression(text).matches(record(l=list(range(30)), big=2**70))
    assert message in str(failed.value)


def test_a_value_that_is_nested_too_deep_is_an_error():
    """The library would end the process by a stack overflow at some thousand levels."""
    deep = "x"
    for _ in range(600):
        deep = [deep]
    with pytest.raises(EvaluationFailed, match="deeper than 500 levels"):
        Expression("has(obj.deep)").matches(record(deep=deep))
    wide = [[] for _ in range(2000)]
    assert Expression("has(obj.deep)").matches(record(deep=wide))


def test_an_object_that_cannot_be_decoded_is_an_error():
    found = record()
    broken = msgspec.structs.replace(found, frame=found.layout.codec.encode(b'{"status": nope}'))
    with pytest.raises(EvaluationFailed, match="can't be decoded"):
        Expression("obj.status.phase == 'x'").matches(broken)


@pytest.mark.parametrize(
    ("text", "notification", "result"),
    [
        ("change.type == 'Added'", Notification(ADDED, record()), True),
        ("change.type == 'Added'", Notification(DELETED, record()), False),
        ("change.reason == 'Relist'", Notification(ADDED, record(), reason=ChangeReason.RELIST), True),
        ("!change.initial", Notification(ADDED, record(), initial=True), False),
        ("old == null", Notification(ADDED, record()), True),
        ("null != old", Notification(ADDED, record()), False),
        ("old == null || obj.status != old.status", Notification(MODIFIED, record(), record()), False),
        (
            "old == null || obj.status.phase != old.status.phase",
            Notification(MODIFIED, record(), record(status={"phase": "Pending"})),
            True,
        ),
    ],
)
def test_the_result_for_a_change(text, notification, result):
    expression = Expression(text)
    assert not expression.judges_objects
    assert expression.matches_change(notification, notification.old) is result


def test_a_null_old_is_named():
    """The message says what to write."""
    expression = Expression("obj.status.phase != old.status.phase")
    with pytest.raises(EvaluationFailed, match=r"`old` is null here: write `old == null \|\| …`"):
        expression.matches_change(Notification(ADDED, record()), None)


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("obj.status.phase == 'x'", ["obj.status.phase"]),
        ("obj.a.exists(c, c.image == obj.b)", ["obj.a", "obj.b"]),
        ("obj['a'].?b[?'c'].hasValue()", ["obj.a.b.c"]),
        ("has(obj.a.b)", ["obj.a.b"]),
        ("{obj.k: obj.v}.x == [obj.l]", ["obj.k", "obj.v", "obj.l"]),
        ("obj.a[old.b].c", ["obj.a", "old.b"]),
        ("obj.a[0].b", ["obj.a"]),
        ("obj.a ? obj.b : size(obj.c.d) > 1", ["obj.a", "obj.b", "obj.c.d"]),
        ("obj == old", ["obj", "old"]),
        ("old != null && change.type == 'Added'", ["old", "change.type"]),
        ("[1].all(obj, obj == 1)", []),
        ("obj.a.map(x, [x].map(y, y + old.b)) == []", ["obj.a", "old.b"]),
    ],
)
def test_what_an_expression_reads(text, reads):
    """Only these fields are decoded and converted."""
    found = Expression(text).reads
    assert [".".join((each.variable, *each.steps)) for each in found] == reads


def test_only_what_is_read_is_decoded():
    """A broken number elsewhere is skipped: the cost does not depend on the rest of the object."""
    found = record()
    raw = b'{"metadata":{"name":"a"},"spec":{"n":1e999},"status":{"phase":"Running","more":1e999}}'
    odd = msgspec.structs.replace(found, frame=found.layout.codec.encode(raw))
    assert Expression("obj.status.phase == 'Running'").matches(odd)
    with pytest.raises(EvaluationFailed):
        Expression("obj == {}").matches(odd)


@pytest.mark.parametrize(
    ("text", "at", "message", "suggestion"),
    [
        ("foo == 1", "foo", "undeclared reference to 'foo'", "the variables are obj, old and change"),
        (
            "change.typ == 'x'",
            ".typ",
            "undeclared reference to 'change.typ'",
            "change has type, reason, initial",
        ),
        ("obj.a.startswith('b')", "(", "undeclared reference to 'startswith'", "startsWith"),
        ("quantity(obj.a) > 1", "(", "undeclared reference to 'quantity'", "filter.entryPoint"),
        ("obj.a = 1", "= 1", "Syntax error", None),
        ("obj.a ==\n  1 + 'a'", "+ 'a'", "(line 2, column 5 of the expression)", None),
        ("'text'", "'text'", "the result is a string, and neither true nor false", "compare it"),
        ("obj.a.size()", "obj", "the result is an int", "compare it"),
        ("change.type == 1", "==", "no matching overload", None),
        ("(" * 200 + "true" + ")" * 200, "(", "recursion limit", None),
        ("obj" + ".a" * 5000 + " == 1", "obj", "recursion depth", None),
        ("true" + " && true" * 20_000, "true", "exceeds codepoint limit", None),
        ("\ud800", "\ud800", "", None),
        ("obj.a.matches(obj.b)", ".b)", "the pattern of matches is not a constant", "a text in quotes"),
        ("obj.a.matches('[\\\\pL\\\\pN]{200}')", "(", "may take more than 100 ms or 32 MiB, whatever", None),
        (f"{TIME}.getHours(obj.tz) == 1", ".tz", "the time zone of getHours is not a constant", "in quotes"),
        (f"{TIME}.getDate('/proc/self/fd/0') == 1", "'/proc", "there is no time zone", "Europe/Berlin"),
        (f"{TIME}.getMonth('file:x') == 1", "'file:", "there is no time zone", "+02:00"),
        ("google.protobuf.Struct{} == obj", "google", "messages of protobuf can't be made", None),
    ],
)
def test_a_text_that_does_not_compile_is_located(text, at, message, suggestion):
    with pytest.raises(ExpressionError) as error:
        Expression(text)
    assert text[error.value.offset :].startswith(at)
    assert message in str(error.value)
    assert suggestion is None or suggestion in (error.value.suggestion or "")


def test_equal_texts_are_compiled_once():
    assert compile_expression("obj.a == 1") is compile_expression("obj.a == 1")


def _validated(folder, handler, before=""):
    """`declctl validate` in a new process, after a line of code: what it wrote, and loaded modules."""
    (folder / "m.yaml").write_text(
        "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: a}\nspec:\n"
        "  resources: [{name: pods, apiVersion: v1, kind: Pod}]\n"
        f"  handlers: [{{name: h, resourceRef: {{name: pods}}, entryPoint: 'h:f', {handler}}}]\n"
    )
    (folder / "h.py").write_text("def f(obj): pass\n")
    code = (
        f"import sys; {before}\n"
        "import declctl.runtime.runtime\n"
        "from declctl.cli import main\n"
        "sys.argv = ['declctl', 'validate', 'm.yaml']\n"
        "try: main()\n"
        "except SystemExit as end: print('exit', end.code or 0)\n"
        "print(any(name.startswith('cel_expr') for name in sys.modules), 'google.protobuf' in sys.modules)"
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("handler", "loaded"), [("filter: {labelSelector: a=b}", False), ("filter: {expression: 'true'}", True)]
)
def test_the_library_is_loaded_with_the_first_expression(tmp_path, handler, loaded):
    """Manifests without an expression start as fast, and need as little memory, as before."""
    done = _validated(tmp_path, handler)
    assert done.stdout.splitlines()[-2:] == ["exit 0", f"{loaded} False"], done.stderr


@pytest.mark.thorough
def test_without_the_package_the_fault_says_what_to_install(tmp_path):
    """At the expression, as any other fault of it."""
    done = _validated(tmp_path, "filter: {expression: 'true'}", "sys.modules['cel_expr_python'] = None")
    assert "exit 1" in done.stdout, done.stderr
    assert "m.yaml:6:" in done.stderr
    assert "DCL023" in done.stderr
    assert "expressions need the package cel-expr-python" in done.stderr
    assert "help: pip install 'declctl[cel]'" in done.stderr
