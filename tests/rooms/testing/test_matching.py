"""Matching: what is there matches itself and each part of itself, and nothing that differs in a leaf."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.testing.matching import differences, matches, nearest, sentence

SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3, width=16) | st.text("ab1", max_size=2)
)
KEYS = st.sampled_from("abc")
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=3)


def part_of(data: st.DataObject, value: Any) -> Any:
    """The value without some of its fields, and without some elements in another order."""
    if isinstance(value, dict):
        kept = [key for key in value if data.draw(st.booleans())]
        return {key: part_of(data, value[key]) for key in kept}
    if isinstance(value, list):
        shuffled = data.draw(st.permutations(value))
        return [part_of(data, each) for each in shuffled[: data.draw(st.integers(0, len(value)))]]
    return value


def leaves_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of scalars but null, below mappings alone: an element of a list may match another one."""
    if isinstance(value, dict):
        return [leaf for key, each in value.items() for leaf in leaves_of(each, (*path, key))]
    return [] if value is None or isinstance(value, list) else [path]


def changed(value: Any, path: tuple[Any, ...]) -> Any:
    """The value with another scalar at a path."""
    if not path:
        return "changed"
    return {key: changed(each, path[1:]) if key == path[0] else each for key, each in value.items()}


@given(OBJECTS, st.data())
def test_an_object_matches_itself_and_its_parts_alone(obj: dict[str, Any], data: st.DataObject) -> None:
    """A pattern says what matters; one other value at a place that matters is told, with this place."""
    assert differences(obj, obj) == []
    part = part_of(data, obj)
    assert differences(part, obj) == []
    if leaves := leaves_of(part):
        leaf = data.draw(st.sampled_from(leaves))
        (difference,) = differences(part, changed(obj, leaf))
        assert (difference.path, difference.found) == (leaf, "changed")


@pytest.mark.parametrize(
    ("expected", "found", "said"),
    [
        (1, 1.0, None),
        ("1", 1, 'the document: expected "1", found 1'),
        (1, True, "the document: expected 1, found true"),
        ({"a": None}, {}, None),
        ({"a": None}, {"a": None}, None),
        ({"a": None}, {"a": 1}, "a: expected null, found 1"),
        ({"a": {}}, {"b": 1}, "a: expected {}, found nothing"),
        ({"a": {"b": 1}}, {"a": [1]}, 'a: expected {"b": 1}, found [1]'),
        ({"a": "?*"}, {"a": 0}, None),
        ({"a": "?*"}, {"a": {"b": 1}}, None),
        ({"a": "?*"}, {"a": ""}, 'a: expected any value, found ""'),
        ({"a": "?*"}, {}, "a: expected any value, found nothing"),
        # Each element has a place of its own, however they have to be placed.
        ([1, 1], [1], "the document: expected an element 1, found no more"),
        ({"a": ["x", "y"]}, {"a": ["y", "z"]}, 'a: expected an element "x", found ["z"]'),
        ([{}, {"a": 1}], [{"a": 1}, {"b": 1}], None),
        ([{"n": "x", "v": 2}], [{"n": "y", "v": 3}, {"n": "x", "v": 1}], "[0].v: expected 2, found 1"),
    ],
)
def test_what_matches(expected: Any, found: Any, said: str | None) -> None:
    """Numbers by value, texts by kind, null as absent, `?*` as any value, lists by distinct elements."""
    assert [sentence(each) for each in differences(expected, found)][:1] == ([] if said is None else [said])
    assert matches(expected, found) is (said is None)


def test_the_nearest_object_is_shown() -> None:
    """Of many objects, a person wants to see the one that was meant."""
    objects = [{"a": 1, "b": 5, "c": 5}, {"a": 1, "b": 2, "c": 5}, {"x": 1}]
    found = nearest({"a": 1, "b": 2, "c": 3}, objects)
    assert found is not None
    assert (found[0], [each.path for each in found[1]]) == (objects[1], [("c",)])
    assert nearest({"a": 1}, []) is None
