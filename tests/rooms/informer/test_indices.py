"""Indices: from a value to the objects that have it."""

import pytest

from declctl.informer import field_index, function_index
from declctl.informer.stores.indices import Index
from tests.rooms.informer.shapes import record


def test_equal_paths_are_equal_indexes():
    """However a path is written, the same field is the same index: a reload keeps it."""
    assert field_index("spec.nodeName") == field_index(".spec['nodeName']")
    assert function_index(str) == function_index(str)


def test_a_label_is_indexed_without_decoding():
    """Labels are in every record; one that is absent is no value."""
    index = Index(field_index("metadata.labels['app.kubernetes.io/name']"))
    there = record("a", labels={"app.kubernetes.io/name": "web"})
    index.put("demo/a", there, None)
    index.put("demo/b", record("b", labels={"other": "web"}), None)
    assert index.values() == ["web"]
    assert index.keys("web") == ["demo/a"]


@pytest.mark.client_go(98, "Typed wrappers", "ThreadSafeStore indices")
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda obj: [obj["spec"]["missing"]], ["KeyError on demo/a", f"{__file__}:"]),
        *(
            (lambda obj, answer=answer: answer, ["demo/a"])
            for answer in ("n1", [1], 7, [["n1"]], ["n1", None])
        ),
    ],
)
def test_a_function_that_raises_or_gives_no_list_of_strings_keeps_the_object_out(function, said):
    """It is counted, named, and the line that raised is told; a string is not taken for a list of letters."""
    index = Index(function_index(function))
    index.put("demo/a", record("a"), None)
    assert (index.values(), index.faults) == ([], 1)
    assert all(words in index.last_fault for words in said)
