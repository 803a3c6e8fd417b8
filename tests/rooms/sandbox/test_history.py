"""What was, what is, and what can't be known any more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.sandbox.history import EtcdHistory
from declctl.sandbox.status import Refusal

PODS = ("", "pods")


def obj(name: str, **fields):
    return {"metadata": {"name": name, "namespace": "a"}, **fields}


def names(snapshot):
    return [stored.name for stored in snapshot]


def test_each_write_has_a_version_of_its_own():
    """Every write, in whatever collection, gets the next version, and the object carries it."""
    history = EtcdHistory()
    first = history.put(PODS, obj("x"))
    second = history.put(("", "nodes"), {"metadata": {"name": "n"}})
    assert second.version == first.version + 1
    assert second.decode()["metadata"]["resourceVersion"] == str(history.version)


def test_the_past_can_be_listed():
    """A list at an older version shows what was there then: neither what came nor what went since."""
    history = EtcdHistory()
    history.put(PODS, obj("gone"))
    then = history.put(PODS, obj("changed", x=1)).version
    history.put(PODS, obj("changed", x=2))
    history.put(PODS, obj("new"))
    history.drop(PODS, "a/gone")
    past = history.collection(PODS).at(then)
    assert names(past) == ["changed", "gone"]
    assert next(iter(past)).decode()["x"] == 1


def test_a_deletion_has_a_version():
    """The last state of a deleted object carries the version of the deletion, to resume a watch from."""
    history = EtcdHistory()
    history.put(PODS, obj("x"))
    last = history.drop(PODS, "a/x")
    assert last.version == history.version
    assert last.decode()["metadata"]["resourceVersion"] == str(history.version)


def test_compaction_forgets():
    """After a compaction every older version is 410 with reason Expired, the present one is not."""
    history = EtcdHistory()
    old = history.put(PODS, obj("x")).version
    history.put(PODS, obj("y"))
    history.compact()
    with pytest.raises(Refusal) as refused:
        history.collection(PODS).since(old)
    assert (refused.value.code, refused.value.reason) == (410, "Expired")
    assert history.collection(PODS).since(history.version) == []


def test_a_collection_that_is_not_used_yet_is_compacted_too():
    """A watch of an empty kind from before the compaction gets 410 like all others."""
    history = EtcdHistory()
    history.put(PODS, obj("x"))
    history.compact()
    with pytest.raises(Refusal):
        history.collection(("", "secrets")).since(1)


def test_memory_is_bounded():
    """Only so many changes are remembered, as by a watch cache; what is older is Expired."""
    history = EtcdHistory(remembered=10)
    for turn in range(30):
        history.put(PODS, obj("x", turn=turn))
    assert len(history.collection(PODS).since(history.collection(PODS).floor)) <= 10
    with pytest.raises(Refusal):
        history.collection(PODS).since(5)


def test_lists_are_in_the_order_of_etcd():
    """Objects come as etcd sorts their keys, where '-' is before the slash behind a namespace."""
    history = EtcdHistory()
    for namespace in ("b", "a", "a-b"):
        history.put(PODS, {"metadata": {"name": "x", "namespace": namespace}})
    snapshot = history.collection(PODS).present(history.version)
    assert [stored.namespace for stored in snapshot] == ["a-b", "a", "b"]
    assert [stored.namespace for stored in snapshot.within("a")] == ["a"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=40))
def test_every_version_can_be_reconstructed(writes):
    """Whatever happened, the list at each version is what was there at that version."""
    history = EtcdHistory()
    seen = {}
    for name, delete in writes:
        exists = history.get(PODS, f"a/{name}") is not None
        if delete and exists:
            history.drop(PODS, f"a/{name}")
        else:
            history.put(PODS, obj(name))
        seen[history.version] = {s.name: s.version for s in history.collection(PODS).present(history.version)}
    for version, expected in seen.items():
        assert {s.name: s.version for s in history.collection(PODS).at(version)} == expected
