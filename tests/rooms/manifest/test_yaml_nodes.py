"""YAML text → nodes: positions, anchors, and texts that would hurt a careless reader."""

import re

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from declctl.manifest.diagnostics import SourceText
from declctl.manifest.document import MAX_DEPTH, UnreadableYaml, parse_documents, read_document

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


def test_dates_stay_text():
    """JSON has no dates, so neither have manifests."""
    assert read("day: 2024-02-30\n") == {"day": "2024-02-30"}


def test_anchors_aliases_and_merge_keys():
    """The usual way to say something once works, and what stands in the mapping itself wins."""
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


def test_nested_merge_keys_and_order():
    """Merged mappings may merge others; the nearest wins."""
    text = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b, z: 3}\n"
    assert read(text)["c"] == {"z": 3, "y": 2, "x": 1}


def test_an_anchor_may_be_used_again():
    """YAML allows it, though many readers don't."""
    assert read("a: &x 1\nb: *x\nc: &x 2\nd: *x\n") == {"a": 1, "b": 1, "c": 2, "d": 2}


@pytest.mark.parametrize("opening", ["- ", "[", "{a: ", "? "])
def test_bottomless_nesting_is_refused(opening):
    """A text that nests for ever must not exhaust the stack."""
    with pytest.raises(UnreadableYaml) as caught:
        list(parse_documents(SourceText("m.yaml", opening * 100_000)))
    assert caught.value.diagnostic.code == "DCL004"
    assert f"more than {MAX_DEPTH} levels" in caught.value.diagnostic.message


def test_aliases_that_multiply_are_refused():
    """A billion laughs cost nothing."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(UnreadableYaml) as caught:
        list(parse_documents(SourceText("m.yaml", "\n".join(lines))))
    assert caught.value.diagnostic.code == "DCL004"
    assert caught.value.diagnostic.line == 5


@pytest.mark.parametrize(("text", "column"), [("a: &a [*a]", 8), ("a: &a {b: [*a]}", 12)])
def test_an_alias_to_its_own_parent_is_refused(text, column):
    """A value can't contain itself."""
    with pytest.raises(UnreadableYaml) as caught:
        list(parse_documents(SourceText("m.yaml", text)))
    assert (caught.value.diagnostic.code, caught.value.diagnostic.column) == ("DCL004", column)


def test_several_documents_have_roots_of_their_own():
    """Anchors don't reach over the border of a document."""
    source = SourceText("m.yaml", "a: &x 1\n---\nb: 2\n")
    assert [root.start.line for root in parse_documents(source)] == [1, 3]
    with pytest.raises(UnreadableYaml):
        list(parse_documents(SourceText("m.yaml", "a: &x 1\n---\nb: *x\n")))
