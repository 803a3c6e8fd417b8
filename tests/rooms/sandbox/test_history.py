"""What was, what is, and what can't be known any more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.sandbox.history import EtcdHistory
from declctl.sandbox.status import Refusal

PODS = ("", "pods")


def obj(name: str, **fields):
    return {"metadata": {"name": name, "namespace": "a"}, **fields}


def test_each_write_has_a_version_of_its_own():
    """In whatever collection; the object carries it, also the last state of one that is deleted."""
    history = EtcdHistory()
    first = history.put(PODS, obj("x"))
    second = history.put(("", "nodes"), {"metadata": {"name": "n"}})
    last = history.drop(PODS, "a/x")
    assert (second.version, last.version) == (first.version + 1, first.version + 2)
    assert history.version == last.version
    for stored in (second, last):
        assert stored.decode()["metadata"]["resourceVersion"] == str(stored.version)


def test_compaction_forgets():
    """Every older version is 410 with reason Expired, also of an empty kind; the present one is not."""
    history = EtcdHistory()
    old = history.put(PODS, obj("x")).version
    history.put(PODS, obj("y"))
    history.compact()
    for resource in (PODS, ("", "secrets")):
        with pytest.raises(Refusal) as refused:
            history.collection(resource).since(old)
        assert (refused.value.code, refused.value.reason) == (410, "Expired")
    assert history.collection(PODS).since(history.version) == []


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
        seen[history.version] = {s.name: s.data for s in history.collection(PODS).present(history.version)}
    for version, expected in seen.items():
        assert {s.name: s.data for s in history.collection(PODS).at(version)} == expected
