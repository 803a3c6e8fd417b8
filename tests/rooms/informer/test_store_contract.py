"""What every store of records does alike, whatever else it does."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from declctl.informer import FIFO, ExpirationCache, Indexer, ThreadSafeStore, UndeltaStore
from declctl.kit import ManualClock
from declctl.objects import Record
from tests.rooms.informer.shapes import record


class KeyedByRecord:
    """A ThreadSafeStore, whose caller gives the keys: here, those of the records."""

    def __init__(self) -> None:
        self._store = ThreadSafeStore()
        self.get_by_key = self._store.get
        self.list = self._store.list
        self.list_keys = self._store.list_keys
        self.resync = self._store.resync

    def add(self, record: Record) -> None:
        self._store.add(record.key, record)

    def update(self, record: Record) -> None:
        self._store.update(record.key, record)

    def delete(self, record: Record) -> None:
        self._store.delete(record.key, record)

    def replace(self, records: Iterable[Record], resource_version: str = "") -> None:
        self._store.replace({each.key: each for each in records}, resource_version)

    def __len__(self) -> int:
        return len(self._store)


class NeverResynced(FIFO):
    """A FIFO has no resync of its own: what waits, waits."""

    def resync(self) -> None:
        return None


STORES: dict[str, Callable[[], Any]] = {
    "ThreadSafeStore": KeyedByRecord,
    "Indexer": Indexer,
    "UndeltaStore": lambda: UndeltaStore(lambda _: None),
    "ExpirationCache": lambda: ExpirationCache.with_ttl(60, clock=ManualClock()),
    "FIFO": NeverResynced,
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Any:
    return STORES[request.param]()


def held(store: Any) -> dict[str, str]:
    """What a store has, key by key, with versions: the same whichever way it is read."""
    listed = {each.key: each.resource_version for each in store.list()}
    assert sorted(store.list_keys()) == sorted(listed)
    assert len(store) == len(listed)
    found = {key: store.get_by_key(key) for key in listed}
    assert {key: each and each.resource_version for key, each in found.items()} == listed
    return listed


@pytest.mark.client_go(87, 88, "Store / Indexer")
def test_what_was_added_can_be_had_until_it_is_deleted(store):
    """Add, update and delete, read back by key and as a list."""
    store.add(record("a", 1))
    store.add(record("b", 2))
    store.update(record("a", 3))
    assert held(store) == {"demo/a": "3", "demo/b": "2"}

    store.delete(record("a", 4))
    assert held(store) == {"demo/b": "2"}
    assert store.get_by_key("demo/a") is None


@pytest.mark.client_go(87, 88)
def test_writes_need_not_know_what_is_stored(store):
    """An add of what is there and an update of what is not both put it; a delete twice does no harm.

    A resync and a read change nothing: what is stored is in sync with itself.
    """
    store.update(record("a", 1))
    store.add(record("a", 2))
    store.delete(record("b", 3))
    assert held(store) == {"demo/a": "2"}
    store.resync()
    assert held(store) == held(store) == {"demo/a": "2"}


@pytest.mark.client_go(87, 88)
def test_a_replacement_is_all_there_is(store):
    """What it has is put, what it does not have is dropped, also when it has nothing."""
    store.add(record("a", 1))
    store.add(record("b", 1))
    store.replace([record("b", 5), record("c", 4)], "6")
    assert held(store) == {"demo/b": "5", "demo/c": "4"}
    store.replace([], "7")
    assert held(store) == {}


@pytest.mark.client_go("Store / Indexer")
def test_a_list_is_the_readers_own(store):
    """Who empties the list that was given empties nothing else; the records in it can't be written."""
    store.add(record("a", 1))
    listed = store.list()
    listed.clear()
    assert held(store) == {"demo/a": "1"}
    with pytest.raises(AttributeError):
        store.list()[0].resource_version = "9"
