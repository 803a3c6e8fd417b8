"""What a lister gives is a list of views in all but its making; it stays what it was."""

import tracemalloc
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.decoding import Projection
from declctl.informer import Indexer, Lister, field_index
from declctl.informer.stores.lister import Views
from declctl.objects import FieldPath, ObjectView, Record

PROJECTION = Projection(api_version="v1", kind="Pod", paths=[FieldPath.parse("spec.nodeName")])
NODES, NAMESPACES = ("n1", "n2"), ("x", "xy")


def record(name: str, namespace: str, node: str, version: int) -> Record:
    metadata = {
        "name": name,
        "namespace": namespace,
        "labels": {"node": node},
        "resourceVersion": str(version),
    }
    made = PROJECTION.record(msgspec.json.encode({"metadata": metadata, "spec": {"nodeName": node}}))
    assert made is not None
    return made


RECORDS = st.builds(
    record, st.sampled_from("abcd"), st.sampled_from(NAMESPACES), st.sampled_from(NODES), st.integers(1, 3)
)
# How views are taken, and the records of each store that they must be of.
TAKEN: dict[str, tuple[Callable[[Lister], Views], Callable[[Indexer], Sequence[Record]]]] = {
    "all": (lambda lister: lister.list(), lambda store: store.list()),
    "of a namespace": (
        lambda lister: lister.list(namespace="x"),
        lambda store: [each for each in store.list() if each.key.startswith("x/")],
    ),
    "selected": (
        lambda lister: lister.list(selector="node=n1"),
        lambda store: [each for each in store.list() if each.labels["node"] == "n1"],
    ),
    "of an index": (lambda lister: lister.by_index("node", "n2"), lambda store: store.by_index("node", "n2")),
    "none": (lambda lister: lister.by_index("node", "nowhere"), lambda store: []),
}


def disturb(store: Indexer, written: Sequence[Record], how: str) -> None:
    """What happens to a store after somebody has read it."""
    if how == "replace":
        store.replace(written, "9")
    for each in written:
        store.delete(each) if how == "delete" else store.add(each)


@given(
    stored=st.lists(st.lists(RECORDS, max_size=8), min_size=1, max_size=2),
    written=st.lists(RECORDS, max_size=6),
    what=st.sampled_from(sorted(TAKEN)),
    how=st.sampled_from(["replace", "delete", "put"]),
    at=st.integers(-10, 10),
    part=st.slices(10),
    other=RECORDS,
)
def test_views_are_a_list_of_what_was_there(
    stored: list[list[Record]],
    written: list[Record],
    what: str,
    how: str,
    at: int,
    part: slice,
    other: Record,
) -> None:
    """Whatever is done to the stores after they were taken, and whichever way they are read."""
    stores = [Indexer({"node": field_index("spec.nodeName")}) for _ in stored]
    for store, records in zip(stores, stored, strict=True):
        store.replace(records, "1")
    take, records_of = TAKEN[what]
    expected = [ObjectView(each) for store in stores for each in records_of(store)]
    views = take(Lister(stores))
    for store in stores:
        disturb(store, written, how)

    assert len(views) == len(expected)
    assert bool(views) == bool(expected)
    assert list(views) == expected
    assert (views == expected, expected == views, views != expected) == (True, True, False)
    assert list(reversed(views)) == expected[::-1]
    assert views[part] == expected[part]
    assert repr(views) == repr(expected)
    if -len(expected) <= at < len(expected):
        assert views[at] == expected[at]
        assert views.index(expected[at]) == expected.index(expected[at])
    else:
        with pytest.raises(IndexError):
            views[at]
    asked = ObjectView(other)
    assert (asked in views) == (asked in expected)
    assert views.count(asked) == expected.count(asked)
    assert (views == [*expected, asked], views == tuple(expected), views == expected[1:]) == (
        False,
        False,
        not expected,
    )
    assert views + [asked] == [*expected, asked]  # noqa: RUF005 - this is what is tested
    assert views + views == expected + expected
    grown = same = [asked]
    grown += views
    assert (grown == [asked, *expected], grown is same) == (True, True)


@given(records=st.lists(RECORDS, min_size=1, max_size=4), at=st.integers(0, 3))
def test_each_view_is_its_readers_own(records: list[Record], at: int) -> None:
    """Who changes what a view shows changes it for nobody else, not for the next who asks for it either."""
    views = Views(records)
    at %= len(records)
    untouched = [each.decode() for each in records]
    for mine in (views[at], [*views][at], views[at:][0], [*reversed(views)][-1 - at]):
        with pytest.raises(TypeError, match="read-only"):
            mine["spec"]["nodeName"] = "changed"
        private = mine.to_dict()
        private["spec"]["nodeName"] = "changed"
        assert private["spec"]["nodeName"] == "changed"
        assert [each.to_dict() for each in views] == untouched
        assert [dict(each) for each in views] == untouched


def test_what_nobody_looks_at_is_not_even_made() -> None:
    """A lister that answers with thousands of objects makes a row of records, 8 bytes for each."""
    store = Indexer()
    store.replace([record(f"p{n}", "x", "n1", 1) for n in range(5000)], "1")
    tracemalloc.start()
    try:
        views = Lister([store]).list()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert views[1234].name == "p1234"
    assert held < 5000 * 16
