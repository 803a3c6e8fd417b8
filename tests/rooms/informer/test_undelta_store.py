"""UndeltaStore: the whole state after each write."""

import pytest

from declctl.informer.stores.caches import UndeltaStore
from declctl.objects import Delta, DeltaType
from tests.rooms.informer.shapes import record


@pytest.fixture
def pushed() -> list[list[tuple[str, str]]]:
    return []


@pytest.fixture
def store(pushed: list[list[tuple[str, str]]]) -> UndeltaStore:
    return UndeltaStore(lambda all_: pushed.append([(r.key, r.resource_version) for r in all_]))


@pytest.mark.client_go(94, "UndeltaStore")
def test_every_write_tells_the_whole_state(store, pushed):
    """Add, update, delete and replace each tell once, with everything that is there (client-go 94)."""
    store.add(record("a"))
    store.add(record("b"))
    store.update(record("a", 2))
    store.delete(record("b", 3))
    store.replace([record("c"), record("d")], "9")
    assert pushed == [
        [("demo/a", "1")],
        [("demo/a", "1"), ("demo/b", "1")],
        [("demo/a", "2"), ("demo/b", "1")],
        [("demo/a", "2")],
        [("demo/c", "1"), ("demo/d", "1")],
    ]


@pytest.mark.client_go(95, "UndeltaStore")
def test_reading_tells_nothing(store, pushed):
    """Who only reads the store does not make it speak, nor does a bookmark or a resync (client-go 95)."""
    store.add(record("a"))
    assert store.get(record("a", 7)) == record("a")
    assert store.get_by_key("demo/b") is None
    assert [each.key for each in store.list()] == list(store.list_keys()) == ["demo/a"]
    store.bookmark("5")
    store.resync()
    assert len(pushed) == 1


def test_a_batch_from_a_reflector_is_told_once(store, pushed):
    """A burst of watch events leads to one call with the outcome, not to one call for each event."""
    a, b = record("a"), record("b")
    store.extend([Delta(DeltaType.ADDED, r.key, r) for r in (a, b)] + [Delta(DeltaType.DELETED, a.key, a)])
    assert pushed == [[("demo/b", "1")]]


def test_what_the_callback_raises_comes_out_of_the_write():
    def push(_):
        raise RuntimeError("disk full")

    store = UndeltaStore(push)

    with pytest.raises(RuntimeError, match="disk full"):
        store.add(record("a"))
    assert len(store) == 1
