"""JSON cut by its brackets, where no decoder takes it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.objects.answers import elements, member

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@given(items=st.lists(VALUES, max_size=6), indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_elements_are_what_a_decoder_finds(items, indent, ascii_only):
    """Whatever stands in strings, and however it is spaced."""
    raw = json.dumps(items, indent=indent, ensure_ascii=ascii_only).encode()
    assert [json.loads(part) for part in elements(raw)] == items


@given(fields=st.dictionaries(st.from_regex(r"[a-z]{1,3}", fullmatch=True), VALUES, max_size=6))
def test_members_are_what_a_decoder_finds(fields):
    raw = json.dumps({"": 1, 'a"b': 2, **fields}).encode()
    for name, value in fields.items():
        assert json.loads(member(raw, name)) == value
    with pytest.raises(ValueError, match="there is no missing"):
        member(raw, "missing")


def test_depth_is_no_matter():
    """What stands beside something that nobody can decode is found."""
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    raw = b'{"status":' + deep + b',"metadata":{"name":"a"}}'
    assert member(raw, "metadata") == b'{"name":"a"}'
    assert list(elements(b"[1," + deep + b",2]")) == [b"1", deep, b"2"]


@pytest.mark.parametrize("raw", [b"", b"1", b"{}", b"[1", b"[[1]", b'["a]', b"[1]]", b"[1] x", b'["\\"]'])
def test_what_is_cut_off_is_refused(raw):
    with pytest.raises(ValueError):
        list(elements(raw))


def test_an_empty_list_has_no_elements():
    assert list(elements(b"[]")) == list(elements(b" [ ] ")) == []
