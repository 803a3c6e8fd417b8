"""Indices: from a value to the objects that have it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.decoding import Projection
from declctl.informer import field_index, function_index
from declctl.informer.stores.indices import Index
from declctl.objects import FieldPath
from tests.rooms.informer.shapes import record

PLAIN = Projection(api_version="v1", kind="Pod")
WITH_NODE = Projection(api_version="v1", kind="Pod", paths=[FieldPath.parse("spec.nodeName")])


def test_equal_paths_are_equal_indexes():
    """However a path is written, the same field is the same index: a reload keeps it."""
    assert field_index("spec.nodeName") == field_index(".spec['nodeName']")
    assert function_index(str) == function_index(str)


@pytest.mark.parametrize("projection", [PLAIN, WITH_NODE])
def test_a_field_is_indexed_whether_it_is_projected_or_not(projection):
    index = Index(field_index("spec.nodeName"))
    index.put("demo/a", record("a", projection=projection, node="n1"), None)
    assert index.keys("n1") == ["demo/a"]


def test_a_label_is_indexed_without_decoding():
    """Labels are in every record; one that is absent is no value."""
    index = Index(field_index("metadata.labels['app.kubernetes.io/name']"))
    there = record("a", labels={"app.kubernetes.io/name": "web"})
    index.put("demo/a", there, None)
    index.put("demo/b", record("b", labels={"other": "web"}), None)
    assert index.values() == ["web"]
    assert index.keys("web") == ["demo/a"]


@pytest.mark.client_go(86, "ThreadSafeStore indices")
def test_the_empty_string_is_a_value_and_no_values_is_none():
    """An object with the empty value can be found; one without values is nowhere (client-go 86)."""
    index = Index(function_index(lambda obj: [""] if obj.name == "a" else None))
    index.put("demo/a", record("a"), None)
    index.put("demo/b", record("b"), None)
    assert index.values() == [""]
    assert index.keys("") == ["demo/a"]


@pytest.mark.client_go("ThreadSafeStore indices")
def test_a_function_that_raises_keeps_the_object_out_and_says_where():
    """One odd object breaks nothing: it is counted, named, and its line is told."""
    index = Index(function_index(lambda obj: [obj["spec"]["missing"]]))
    index.put("demo/a", record("a"), None)
    assert index.values() == []
    assert index.faults == 1
    assert "KeyError on demo/a" in index.last_fault
    assert f"{__file__}:" in index.last_fault


@pytest.mark.client_go(98, "Typed wrappers")
@pytest.mark.parametrize("answer", ["n1", [1], 7, [["n1"]], ["n1", None]])
def test_an_answer_that_is_no_list_of_strings_is_a_fault(answer):
    """A string is not taken for a list of letters."""
    index = Index(function_index(lambda obj: answer))
    index.put("demo/a", record("a"), None)
    assert index.values() == []
    assert index.faults == 1
    assert "demo/a" in index.last_fault


def test_a_function_that_changes_its_mind_leaves_nothing_behind():
    """What it said when the object came in is what is undone when it goes."""
    answers = iter([["x"], ["y"], ["z"]])
    index = Index(function_index(lambda obj: next(answers)))
    first, second = record("a"), record("a", 2)
    index.put("demo/a", first, None)
    index.put("demo/a", second, first)
    assert index.values() == ["y"]
    index.remove("demo/a", second)
    assert index.values() == []


@pytest.mark.client_go(80, 82, 85, "ThreadSafeStore indices")
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from(["n1", "n2", None, "gone"]),
            st.sampled_from([PLAIN, WITH_NODE]),
        ),
        max_size=30,
    )
)
def test_an_index_always_equals_a_look_at_every_object(steps):
    """Whatever happens in whatever order, nothing is missing and nothing is left over.

    Objects may be decoded in a new way in between, by a reload that projects a path, and back.
    """
    index, held = Index(field_index("spec.nodeName")), {}
    for version, (name, node, projection) in enumerate(steps):
        if node == "gone":
            if (last := held.pop(name, None)) is not None:
                index.remove(name, last)
        else:
            state = record(name, version, projection=projection, node=node)
            index.put(name, state, held.get(name))
            held[name] = state
    expected = {}
    for name, state in held.items():
        for value in state.field(FieldPath.parse("spec.nodeName")):
            expected.setdefault(value, {})[name] = state
    assert {v: dict(zip(index.keys(v), index.records(v), strict=True)) for v in index.values()} == expected
