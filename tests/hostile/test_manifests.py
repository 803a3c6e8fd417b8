"""Manifests that nest, repeat, grow or are wrong without end: refused at a place, within bounds."""

from collections.abc import Callable

import pytest

from declctl.errors import ManifestErrors, SandboxError
from declctl.manifest import ManifestSource, load, render_text
from declctl.manifest.diagnostics import Diagnostic
from declctl.sandbox.validation import read_documents
from tests.hostile import bombs
from tests.hostile.bounds import bounded

HEAD = "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: hostile}\nspec:\n"


def _faults(text: str | bytes) -> list[Diagnostic]:
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(ManifestErrors) as raised:
        load(ManifestSource("m.yaml", data), environ={})
    return [fault for fault in raised.value.diagnostics if isinstance(fault, Diagnostic)]


BOMBS = {
    "aliases": bombs.aliases(),
    "merges": bombs.merges(),
    "an alias of itself": "plugins: &a [*a]\n",
    "a mapping that is its own key": "? &a {*a : 1}\n: 2\n",
    "deep flow lists": "[" * 100_000,
    "deep flow maps": "{a: " * 100_000,
    "deep block lists": "".join(f"{'  ' * n}-\n" for n in range(500)),
    "a deep key": "? " * 50_000,
}
"""Texts that grow or nest; each for a manifest, and for a file of objects."""


@pytest.mark.parametrize("what", BOMBS)
def test_a_manifest_that_nests_or_grows_is_refused_at_its_place(what: str) -> None:
    """A kilobyte of aliases, a hundred thousand brackets: one fault with line and column, at once."""
    text = HEAD + "".join(f"  {line}\n" for line in BOMBS[what].splitlines())
    with bounded(seconds=10, megabytes=100):
        faults = _faults(text)
    assert faults[0].code in ("DCL001", "DCL004")
    assert faults[0].line >= 5


@pytest.mark.parametrize("what", BOMBS)
def test_objects_that_nest_or_grow_are_refused_at_their_place(what: str) -> None:
    """`--objects` with a kilobyte of aliases ended the process: it is a fault with line and column."""
    text = "kind: Pod\nspec:\n" + "".join(f"  {line}\n" for line in BOMBS[what].splitlines())
    with (
        bounded(seconds=10, megabytes=100),
        pytest.raises(SandboxError, match=r"^o\.yaml:\d+:\d+: ") as raised,
    ):
        read_documents(text, name="o.yaml")
    assert len(str(raised.value)) < 500


def test_objects_may_use_aliases_within_reason() -> None:
    """What people write is read: an anchor that stands for a few labels, and again in the next document."""
    text = "a: &l {app: x}\nb: *l\n---\na: &l {app: y}\nb: [*l, *l]\n"
    assert read_documents(text) == [
        {"a": {"app": "x"}, "b": {"app": "x"}},
        {"a": {"app": "y"}, "b": [{"app": "y"}, {"app": "y"}]},
    ]


def test_many_objects_are_read_in_time() -> None:
    """Ten thousand objects of a cluster that was dumped are no attack."""
    text = "---\n".join(f"kind: Pod\nmetadata: {{name: p{n}, labels: {{a: b}}}}\n" for n in range(10_000))
    with bounded(seconds=60, megabytes=400):
        assert len(read_documents(text)) == 10_000


def _wrong_references(number: int) -> str:
    handler = '  - {{name: h-{0}, resourceRef: {{name: resourse-{0}}}, entryPoint: "h:f"}}\n'
    resources = "".join(f"  - {{name: resource-{n}, apiVersion: v1, kind: Pod}}\n" for n in range(number))
    handlers = "".join(handler.format(n) for n in range(number))
    return f"{HEAD}  resources:\n{resources}  handlers:\n{handlers}"


@pytest.mark.parametrize("number", [600, 6000])
def test_wrong_references_are_all_told_and_the_first_have_suggestions(number: int) -> None:
    """600 handlers that name resources which aren't there took 12 s: 6,000 take less than 2 s now."""
    with bounded(seconds=15, megabytes=150):
        faults = _faults(_wrong_references(number))
        text = render_text(faults)
    assert len(faults) == number
    assert 'did you mean "resource-0"?' in str(faults[0].suggestion)
    assert "more" in str(faults[-1].suggestion)
    assert len(text) < number * 1500


def _paths_that_are_dropped(number: int) -> str:
    paths = ", ".join(f"spec.field-{n}" for n in range(number))
    resource = f"{{name: r, apiVersion: v1, kind: Pod, transform: {{dropFields: [{paths}]}}}}"
    handler = f'{{name: h, resourceRef: {{name: r}}, entryPoint: "h:f", filter: {{changedPaths: [{paths}]}}}}'
    return f"{HEAD}  resources:\n  - {resource}\n  handlers:\n  - {handler}\n  unknown: 1\n"


def _names_that_no_secret_has(number: int) -> str:
    value = "    - {{name: v{0}, secretKeyRef: {{name: S_{0}, key: k}}}}\n"
    values = "".join(value.format(n) for n in range(number))
    return f"{HEAD}  plugins:\n  - name: p\n    configFrom:\n{values}"


@pytest.mark.parametrize("text", [_paths_that_are_dropped, _names_that_no_secret_has])
def test_no_fault_is_compared_with_all_others(text: Callable[[int], str]) -> None:
    """5,000 filters on 5,000 dropped fields took minutes, 9,000 features that are refused ten seconds."""
    with bounded(seconds=15, megabytes=200):
        faults = _faults(text(5000))
    assert len(faults) >= 5000


def test_more_than_a_manifest_may_hold_is_one_fault() -> None:
    """A megabyte of wrong references is more than anybody writes: told as such."""
    with bounded(seconds=30, megabytes=200):
        (fault,) = _faults(_wrong_references(8000))
    assert fault.code == "DCL004"
    assert "more than 100,000 values" in fault.message


def test_one_endless_line_is_shown_in_part() -> None:
    """A manifest on one line of a megabyte: each fault shows the piece of the line that it is about."""
    items = ",".join(f'{{"name":"r{n}","kynd":"Pod"}}' for n in range(5_000))
    head = '{"apiVersion":"declctl.dev/v1alpha1","kind":"Controller","metadata":{"name":"x"}'
    with bounded(seconds=60, megabytes=250):
        faults = _faults(f'{head},"spec":{{"resources":[{items}]}}}}')
        shown = render_text(faults)
    assert len(faults) >= 5_000
    assert len(shown) < len(faults) * 1500
    one = render_text([faults[len(faults) // 2]]).splitlines()
    assert max(map(len, one)) < 400
    # The caret stands under what it is about.
    assert one[1][one[2].index("^") :].startswith(("{", '"'))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\xff\xfe" * 100_000, "DCL004"),
        (b"\0" * 1_000_000, "DCL004"),
        (b"a" * 1_000_000, "DCL006"),
        (b"a: " + b"1" * 1_000_000, "DCL006"),
        (b"a: 1" + b":1" * 500_000, "DCL006"),
        (b"- " * 500_000, "DCL004"),
        (b"&" * 1_000_000, "DCL001"),
        (b"%" * 1_000_000, "DCL001"),
        (b"'" * 999_999, "DCL001"),
        (b"---\n" * 300_000, "DCL005"),
        (b"#\n" * 1_000_000, "DCL005"),
        (b" " * (5 << 20), "DCL000"),
    ],
    ids=lambda value: repr(value[:6]) if isinstance(value, bytes) else value,
)
def test_bytes_that_are_no_manifest_are_one_fault(data: bytes, code: str) -> None:
    """Whatever somebody mounts in the place of a manifest: a code, at a place, soon."""
    with bounded(seconds=20, megabytes=250):
        faults = _faults(data)
    assert code in {fault.code for fault in faults}, faults[:3]
    assert len(render_text(faults[:1])) < 1500


def test_a_thousand_plugins_are_checked_in_time() -> None:
    """A thousand plugins with config sources that contradict each other: all are told."""
    plugins = "".join(
        f"  - {{name: p{n}, config: {{a: 1}}, configFrom: [{{name: a, env: X}}]}}\n" for n in range(1000)
    )
    with bounded(seconds=20, megabytes=100):
        faults = _faults(f"{HEAD}  resources: []\n  plugins:\n{plugins}")
    assert len(faults) >= 1000


def test_thousands_of_selectors_are_checked_in_time() -> None:
    """Each selector is wrong, and none is compared with all others."""
    selector = "labelSelector: {matchExpressions: [{key: k, operator: Wrong, values: [a]}]}"
    resources = "".join(f"  - {{name: r-{n}, apiVersion: v1, kind: Pod, {selector}}}\n" for n in range(3000))
    with bounded(seconds=30, megabytes=200):
        faults = _faults(f"{HEAD}  resources:\n{resources}  handlers: []\n")
    assert len(faults) >= 3000
