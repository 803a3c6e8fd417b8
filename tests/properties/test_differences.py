"""`declctl.diff`: its differences lead from one object to the other, and there are no others."""

import copy
import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl import Difference, diff
from declctl.objects import FieldPath
from declctl.objects.differences import changed_paths
from declctl.objects.plain import plain_view

NAMES = st.sampled_from(["spec", "a", "b", "app.example.dev/name", "x y", "0"])
VALUES = st.recursive(
    st.booleans() | st.integers(0, 2) | st.sampled_from(["", "1", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)


def patched(obj: Any, differences: list[Difference]) -> Any:
    """The object after its differences: from the last one, so that positions in lists hold."""
    obj = copy.deepcopy(obj)
    for path, _, new in reversed(differences):
        *steps, last = FieldPath.parse(path).steps
        holder = obj
        for step in steps:
            holder = holder[step]
        if new is None:
            del holder[last]
        elif isinstance(holder, list) and last >= len(holder):
            holder.insert(len(holder), new)
        else:
            holder[last] = new
    return obj


def viewed(obj: Any) -> Any:
    return plain_view({**obj, "metadata": {"name": "x"}})


@given(OBJECTS, OBJECTS)
def test_differences_lead_from_one_object_to_the_other(old: Any, new: Any) -> None:
    """And are those of `declctl tap`; a view, its parts and a plain object are alike."""
    found = diff(old, new)
    # Elements that are added to a list come in their order, and others can be changed in any.
    added = [each for each in found if each.old is None]
    assert patched(patched(old, [each for each in found if each.old is not None]), added[::-1]) == new
    assert [each.path for each in found] == list(changed_paths(old, new, most=1000)[0])
    assert diff(viewed(old), viewed(new)) == found
    assert diff(viewed({"of": old})["of"], new) == found
    assert diff(old, copy.deepcopy(old)) == []


class Spec(msgspec.Struct, rename="camel"):
    """As an author types it."""

    image_name: str
    ports: list[int] = []


@dataclasses.dataclass
class Plain:
    """The same by the standard library."""

    imageName: str  # noqa: N815
    ports: Any = None


def test_what_is_missing_is_none_and_what_always_differs_is_left_out() -> None:
    """Values are read-only, as those of objects are; typed values have the names of JSON."""
    old = {"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}, "spec": {"ports": [80], "x": None}}
    new = {"metadata": {"resourceVersion": "2", "managedFields": []}, "spec": {"ports": [80, {"of": 1}]}}
    first, second = diff(old, new)
    assert first == Difference("metadata.labels", {"a": "b"}, None)
    assert second == Difference("spec.ports[1]", None, {"of": 1})
    with pytest.raises(TypeError):
        second.new["of"] = 2
    assert diff(None, {"a": 1}) == [("a", None, 1)]
    assert diff(Spec("a", [1]), Plain("b", [1])) == [("imageName", "a", "b")]
