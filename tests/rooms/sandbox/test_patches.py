"""JSON Patch and JSON Merge Patch."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.sandbox.patches import json_patch, merge_patch
from declctl.sandbox.status import Refusal

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


def test_merge_patch_follows_its_standard():
    """The rules that the examples of RFC 7386 show, each at a field."""
    target = {"a": "b", "gone": "b", "list": ["b"], "deep": {"b": "c"}, "items": [{"b": "c"}], "stays": 1}
    patch = {"a": "c", "new": "c", "gone": None, "list": "c", "deep": {"b": "d", "c": None}, "items": [1]}
    found = merge_patch(target, {**patch, "made": {"bb": {"ccc": None}}})
    changed = {"a": "c", "new": "c", "list": "c", "deep": {"b": "d"}, "items": [1], "made": {"bb": {}}}
    assert found == {"stays": 1, **changed}


@given(st.dictionaries(st.text(max_size=2), JSON), st.dictionaries(st.text(max_size=2), JSON))
def test_merge_patch_twice_is_once(target, patch):
    """Applying a merge patch again changes nothing, and the given object is never touched."""
    before = copy.deepcopy(target)
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert target == before


def test_json_patch_follows_its_standard():
    """Every operation of RFC 6902 does what the RFC says, and the given object is not touched."""
    target = {"a": {"b": 1}, "l": [1, 3], "x/y": 1, "m~n": 2}
    operations = [
        {"op": "add", "path": "/l/1", "value": 2},
        {"op": "add", "path": "/l/-", "value": 4},
        {"op": "remove", "path": "/l/0"},
        {"op": "replace", "path": "/l/0", "value": None},
        {"op": "move", "from": "/a/b", "path": "/c"},
        {"op": "copy", "from": "/l", "path": "/d"},
        {"op": "remove", "path": "/x~1y"},
        {"op": "test", "path": "/m~0n", "value": 2},
    ]
    before = copy.deepcopy(target)
    found = json_patch(target, operations)
    assert found == {"a": {}, "l": [None, 3, 4], "m~n": 2, "c": 1, "d": [None, 3, 4]}
    assert target == before


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([{"op": "test", "path": "/a", "value": 2}], 422),
        ([{"op": "remove", "path": "/nope"}], 422),
        ([{"op": "replace", "path": "/nope", "value": 1}], 422),
        ([{"op": "add", "path": "/list/9", "value": 1}], 422),
        ([{"op": "add", "path": "/a/b", "value": 1}], 422),
        ([{"op": "remove", "path": ""}], 422),
        ({"op": "remove"}, 400),
        ([{"op": "add", "path": "/b"}], 400),
        ([{"op": "dance", "path": "/a"}], 400),
        ([{"op": "remove", "path": "a"}], 400),
        (["x"], 400),
    ],
)
def test_a_json_patch_that_can_not_be_applied_is_refused(operations, code):
    """What doesn't fit the object is 422, what is no patch is 400."""
    with pytest.raises(Refusal) as refused:
        json_patch({"a": 1, "list": []}, operations)
    assert refused.value.code == code
