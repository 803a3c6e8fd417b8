"""MutationCache: what was written is read, until the informer shows it."""

import functools

import msgspec
import pytest

from declctl.decoding import Projection
from declctl.errors import CacheError, UnknownIndex
from declctl.informer import DeletedFinalStateUnknown
from declctl.informer.stores.caches import MutationCache
from declctl.informer.stores.indices import field_index
from declctl.informer.stores.thread_safe_store import Indexer
from declctl.kit import ManualClock
from declctl.objects import ObjectKey, ObjectView, Record

_PODS = Projection(api_version="v1", kind="Pod")


@functools.cache  # two records of one object are equal only while the codec compresses as it did
def pod(version: int | str, *, name: str = "a", uid: str = "first", node: str = "n1") -> Record:
    metadata = {"namespace": "team-a", "name": name, "uid": uid, "resourceVersion": str(version)}
    record = _PODS.record(msgspec.json.encode({"metadata": metadata, "spec": {"nodeName": node}}))
    assert record is not None
    return record


@pytest.fixture
def store() -> Indexer:
    return Indexer({"node": field_index("spec.nodeName")})


@pytest.fixture
def cache(store: Indexer, clock: ManualClock) -> MutationCache:
    return MutationCache(store, clock=clock, ttl=60.0)


@pytest.fixture
def adding(store: Indexer, clock: ManualClock) -> MutationCache:
    return MutationCache(store, clock=clock, ttl=60.0, include_adds=True)


@pytest.mark.client_go("MutationCache")
def test_one_reads_what_one_has_written_until_the_informer_shows_it(cache, store, clock):
    """The newer of the two wins, by number: version 10 is newer than 9. A late answer changes nothing.

    A write that the informer never shows is not believed for ever.
    """
    store.add(pod(4))
    cache.mutation(pod(5))
    assert cache.get_by_key("team-a/a") == pod(5)
    assert cache.by_index("node", "n1") == [pod(5)]
    cache.mutation(pod(9))
    cache.mutation(pod(8))
    assert cache.get_by_key("team-a/a") == pod(9)
    store.update(pod(9))
    cache.mutation(pod(10))
    assert cache.get_by_key("team-a/a") == pod(10)
    store.update(pod(11))
    assert cache.get_by_key("team-a/a") == pod(11)

    cache.mutation(pod(12))
    clock.set(60.5)
    assert cache.get_by_key("team-a/a") == pod(11)


def test_a_version_that_is_no_number_is_refused(cache):
    """A server whose versions can't be compared is named, instead of giving what may be old."""
    with pytest.raises(CacheError, match=r"team-a/a has 'v5'"):
        cache.mutation(pod("v5"))


@pytest.mark.client_go("MutationCache")
def test_the_least_recently_used_writes_are_forgotten(store, clock):
    """A process that writes a lot does not grow for it."""
    cache = MutationCache(store, clock=clock, include_adds=True, size=2)
    for name in ("a", "b"):
        cache.mutation(pod(5, name=name))
    cache.get_by_key("team-a/a")
    cache.mutation(pod(5, name="c"))

    found = [key for key in ("team-a/a", "team-a/b", "team-a/c") if cache.get_by_key(key)]
    assert found == ["team-a/a", "team-a/c"]


@pytest.mark.client_go("MutationCache")
def test_added_objects_are_read_only_on_request(cache, adding):
    """What the store doesn't have may be deleted already, so that it is given only to who asked for it."""
    for each in (cache, adding):
        each.mutation(pod(5, node="n2"))

    assert cache.get_by_key("team-a/a") is None
    assert cache.by_index("node", "n2") == []
    assert adding.get_by_key("team-a/a") == pod(5, node="n2")
    assert adding.by_index("node", "n2") == [pod(5, node="n2")]
    assert adding.by_index("node", "n1") == []


@pytest.mark.client_go(103)
@pytest.mark.parametrize(("shown", "kept"), [(4, True), (5, False), (6, False)])
def test_the_informer_catches_up(adding, shown, kept):
    """A write is forgotten when the informer shows it or something newer (client-go 103)."""
    adding.mutation(pod(5))
    adding.on_add_or_update(pod(shown))
    assert (adding.get_by_key("team-a/a") == pod(5)) is kept


@pytest.mark.client_go(104)
@pytest.mark.parametrize(
    ("deleted", "kept"),
    [(pod(2), False), (pod(3, uid="second"), False), (pod(2, uid="second"), True)],
    ids=["older, the same object", "as new, another object", "older, another object"],
)
def test_the_informer_shows_a_delete(adding, store, deleted, kept):
    """A write to an object that is gone is forgotten; one to its successor is not (client-go 104)."""
    store.add(pod(2))
    adding.mutation(pod(3))
    store.delete(deleted)
    adding.on_delete(deleted)
    assert (adding.get_by_key("team-a/a") == pod(3)) is kept


@pytest.mark.client_go(105, 106)
def test_a_late_answer_neither_brings_back_the_dead_nor_hides_the_successor(adding, store):
    """Update and delete were shown, or an object was made anew, before the answer to the update arrives."""
    adding.on_add_or_update(pod(5))
    adding.on_delete(pod(5))
    adding.mutation(pod(5))
    adding.mutation(pod(6))  # the same object in a later state: gone as well
    assert adding.get_by_key("team-a/a") is None
    assert adding.by_index("node", "n1") == []

    store.add(pod(7, uid="second"))
    adding.on_add_or_update(pod(7, uid="second"))
    adding.mutation(pod(6))
    assert adding.get_by_key("team-a/a") == pod(7, uid="second")
    assert adding.by_index("node", "n1") == [pod(7, uid="second")]
    store.delete(pod(8, uid="second"))
    assert adding.get_by_key("team-a/a") is None  # nothing of the old object is left over the store


@pytest.mark.client_go(107)
def test_a_successor_can_be_written_after_a_delete(adding):
    """After a delete was shown, a new object of that name is read as soon as it is made (client-go 107)."""
    adding.mutation(pod(5))
    assert adding.by_index("node", "n1") == [pod(5)]
    adding.on_delete(pod(4))
    assert adding.by_index("node", "n1") == []

    adding.mutation(pod(8, uid="second"))
    assert adding.get_by_key("team-a/a") == pod(8, uid="second")


def test_a_fault_in_an_index_function_hides_only_what_it_failed_on(clock):
    """A string is no list of letters; an unknown index is named."""

    def node(record: Record) -> list[str]:
        if record.key == "team-a/bad":
            raise ValueError("no node")
        return ["n1"]

    cache = MutationCache(Indexer({"node": node, "odd": lambda record: "n1"}), clock=clock, include_adds=True)
    cache.mutation(pod(5, name="bad"))
    cache.mutation(pod(5, name="good"))
    assert cache.by_index("node", "n1") == [pod(5, name="good")]
    assert cache.by_index("odd", "n") == []
    with pytest.raises(UnknownIndex, match="byZone"):
        cache.by_index("byZone", "n1")


@pytest.mark.client_go("MutationCache", "Tombstones")
def test_it_takes_what_handlers_are_called_with(cache, adding, store):
    """A delete that the watch missed is one, too: the key can be read and written afterwards."""
    for each in (cache, adding):
        each.mutation(ObjectView(pod(5)))
        each.on_delete(DeletedFinalStateUnknown(ObjectKey("team-a/a"), ObjectView(pod(5))))
        each.mutation(pod(5))  # an answer that was on its way meanwhile
        assert each.get_by_key("team-a/a") is None
        assert each.by_index("node", "n1") == []
    store.add(pod(9, uid="second"))
    for each in (cache, adding):
        each.on_add_or_update(ObjectView(pod(9, uid="second")))
        each.mutation(pod(10, uid="second"))
        assert each.get_by_key("team-a/a") == pod(10, uid="second")


@pytest.mark.client_go("MutationCache")
def test_an_index_is_that_of_the_newest_state(cache, adding, store):
    """A pod that was just moved is found where it is now, and no longer where it was."""
    store.add(pod(4))
    store.add(pod(4, name="b"))
    for each in (cache, adding):
        each.mutation(pod(5, node="n2"))
        assert each.by_index("node", "n1") == [pod(4, name="b")]
        assert each.by_index("node", "n2") == [pod(5, node="n2")]
    store.add(pod(6, node="n3"))
    for each in (cache, adding):
        assert each.by_index("node", "n2") == []
        assert each.by_index("node", "n3") == [pod(6, node="n3")]
