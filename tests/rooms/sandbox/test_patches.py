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


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_follows_its_standard(target, patch, expected):
    """The examples of RFC 7386 come out as the RFC says."""
    assert merge_patch(target, patch) == expected


@given(st.dictionaries(st.text(max_size=2), JSON), st.dictionaries(st.text(max_size=2), JSON))
def test_merge_patch_twice_is_once(target, patch):
    """Applying a merge patch again changes nothing, and the given object is never touched."""
    before = copy.deepcopy(target)
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert target == before


@pytest.mark.parametrize(
    ("target", "operations", "expected"),
    [
        ({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}),
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": 1}, [{"op": "remove", "path": "/a"}], {}),
        ({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ({"a": 1}, [{"op": "replace", "path": "/a", "value": None}], {"a": None}),
        ({"a": [1]}, [{"op": "replace", "path": "/a/0", "value": 5}], {"a": [5]}),
        ({"a": {"b": 1}}, [{"op": "move", "from": "/a/b", "path": "/c"}], {"a": {}, "c": 1}),
        ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
        ({"x/y": 1, "m~n": 2}, [{"op": "remove", "path": "/x~1y"}, {"op": "remove", "path": "/m~0n"}], {}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}, {"op": "remove", "path": "/a"}], {}),
    ],
)
def test_json_patch_follows_its_standard(target, operations, expected):
    """Every operation of RFC 6902 does what the RFC says, and the given object is not touched."""
    before = copy.deepcopy(target)
    assert json_patch(target, operations) == expected
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
