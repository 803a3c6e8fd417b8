"""YAML text → nodes: values, anchors, variables, places, and texts that would hurt a careless reader."""

import re

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from declctl.manifest.diagnostics import Diagnostic, SourceText
from declctl.manifest.document import MAX_DEPTH, UnreadableYaml, parse_documents, read_document, substitute
from declctl.manifest.values import BadValue

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
DATA = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)

SIGNED_FRACTION = re.compile(r"[-+]\.[0-9][0-9_]*([eE][-+][0-9]+)?")  # `-.5`: the sign, and then the point


def read(text: str):
    """The data of the only document."""
    source = SourceText("m.yaml", text)
    (root,) = parse_documents(source)
    document = read_document(source, root, {})
    assert document.faults == []
    return document.data


def refused(text: str) -> Diagnostic:
    """What is said of a text that can't be read."""
    with pytest.raises(UnreadableYaml) as caught:
        list(parse_documents(SourceText("m.yaml", text)))
    return caught.value.diagnostic


@given(DATA)
def test_what_yaml_writes_is_read_back(data):
    """Any JSON-like value that PyYAML writes means the same here."""
    text = yaml.safe_dump({"value": data}, allow_unicode=True)
    assert read(text.replace("${", "$${")) == yaml.safe_load(text)


@given(st.text(alphabet="0123456789+-_.:exobinfaNnulyts~TRU", max_size=8))
def test_scalars_without_quotes_mean_what_they_mean_to_yaml(text):
    """Types are guessed as PyYAML guesses them, so that a manifest means the same to other tools.

    The one difference is a sign before a point, which the test below has.
    """
    assume(not SIGNED_FRACTION.fullmatch(text))
    try:
        wanted = yaml.safe_load(f"value: {text}\n")["value"]
    except (yaml.YAMLError, ValueError, TypeError):
        return
    if isinstance(wanted, dict) or not isinstance(wanted, bool | int | float | str | None):
        return
    found = read(f"value: {text}\n")["value"]
    assert repr(found) == repr(wanted)


@pytest.mark.parametrize(
    ("text", "number"), [("-.0", -0.0), ("+.5", 0.5), ("-.5", -0.5), ("-.5_0", -0.5), ("+.5e+3", 500.0)]
)
def test_a_sign_before_a_point_makes_a_number(text, number):
    """Go's yaml, and with it kubectl, reads `-.5` as a number; PyYAML alone reads text."""
    assert isinstance(yaml.safe_load(text), str)
    assert repr(read(f"value: {text}\n")["value"]) == repr(number)


def test_anchors_aliases_and_merge_keys():
    """What stands in the mapping itself wins, then the nearest; an anchor may be used again."""
    text = """
base: &base {a: 1, b: {c: 2}}
more: &more {d: 4}
one: {<<: *base, a: 9}
two: {<<: [*more, *base], d: 5}
same: *base
"""
    data = read(text)
    assert data["one"] == {"a": 9, "b": {"c": 2}}
    assert data["two"] == {"a": 1, "b": {"c": 2}, "d": 5}
    assert data["same"] == data["base"]
    nested = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b, z: 3}\n"
    assert read(nested)["c"] == {"z": 3, "y": 2, "x": 1}
    assert read("a: &x 1\nb: *x\nc: &x 2\nd: *x\n") == {"a": 1, "b": 1, "c": 2, "d": 2}


def test_dates_stay_text():
    """JSON has no dates, so neither have manifests."""
    assert read("day: 2024-02-30\n") == {"day": "2024-02-30"}


@pytest.mark.parametrize("opening", ["- ", "[", "{a: ", "? "])
def test_bottomless_nesting_is_refused(opening):
    """A text that nests for ever must not exhaust the stack."""
    fault = refused(opening * 100_000)
    assert fault.code == "DCL004"
    assert f"more than {MAX_DEPTH} levels" in fault.message


def test_aliases_that_multiply_are_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    fault = refused("\n".join(lines))
    assert (fault.code, fault.line) == ("DCL004", 5)


@pytest.mark.parametrize(("text", "column"), [("a: &a [*a]", 8), ("a: &a {b: [*a]}", 12)])
def test_an_alias_to_its_own_parent_is_refused(text, column):
    """A value can't contain itself."""
    fault = refused(text)
    assert (fault.code, fault.column) == ("DCL004", column)


def test_several_documents_have_roots_of_their_own():
    """Anchors don't reach over the border of a document."""
    source = SourceText("m.yaml", "a: &x 1\n---\nb: 2\n")
    assert [root.start.line for root in parse_documents(source)] == [1, 3]
    assert refused("a: &x 1\n---\nb: *x\n")


TEXT = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: c}
spec:
  resources:
    - name: pods
      apiVersion: v1
      kind: Pod
"""


@pytest.mark.parametrize(
    ("path", "key", "wanted"),
    [
        ((), False, (1, 1)),
        (("metadata", "name"), False, (3, 18)),
        (("metadata", "name"), True, (3, 12)),
        (("spec", "resources"), True, (5, 3)),
        (("spec", "resources", 0), False, (6, 7)),
        (("spec", "resources", 0, "kind"), False, (8, 13)),
        (("spec", "resources", 0, "kind"), True, (8, 7)),
        (("spec", "resources", 0, "indexers", 3, "name"), False, (6, 7)),
        (("spec", "resources", 7), False, (6, 5)),  # a list begins at its first dash
        (("nothing", "here"), True, (1, 1)),
    ],
)
def test_locate(loaded, path, key, wanted):
    """Lines and columns count from 1; what isn't there is where its nearest parent is."""
    assert loaded(TEXT).document.locate(path, key=key) == wanted


def test_line_ends_and_a_byte_order_mark_shift_nothing(loaded):
    """Lines are counted as YAML counts them, and a mark at the beginning is no column."""
    found = loaded(TEXT.replace("\n", "\r\n"))
    assert found.document.locate(("spec", "resources", 0, "kind")) == (8, 13)
    found = loaded("\ufeff" + TEXT)
    assert found.document.locate(("apiVersion",), key=True) == (1, 1)


@pytest.mark.parametrize(
    ("config", "environ", "value"),
    [
        ("{a: 'https://${env:HOST}:${env:PORT}/'}", {"HOST": "h", "PORT": "1"}, {"a": "https://h:1/"}),
        ("{a: '${env:A}'}", {"A": "true"}, {"a": "true"}),
        ("{a: '${env:A}'}", {"A": "${env:A}"}, {"a": "${env:A}"}),
        ("{a: '$${env:A} and $x and ${x}'}", {}, {"a": "${env:A} and $x and ${x}"}),
        ("{'${env:A}': 1}", {"A": "x"}, {"${env:A}": 1}),
    ],
    ids=["anywhere in a text", "stays text", "once", "two dollars escape", "keys are not replaced"],
)
def test_a_reference_to_the_environment_is_replaced(loaded, config, environ, value):
    """In values, where what comes out is not read as YAML again."""
    found = loaded(f"plugins: [{{name: p, config: {config}}}]", environ=environ)
    assert found.controller.plugins[0].config.value() == value


def test_a_replaced_text_is_checked_like_any_other(loaded):
    """A duration may come from the environment; a fault has its offset in the text."""
    found = loaded("reload: {settle: '${env:SETTLE}'}", environ={"SETTLE": "2s"})
    assert found.controller.reload.settle == 2.0
    with pytest.raises(BadValue) as caught:
        substitute("ab${env:X}", {})
    assert caught.value.offset == 2
