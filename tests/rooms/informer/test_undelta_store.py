"""UndeltaStore: the whole state after each write."""

import msgspec
import pytest

from declctl.decoding import Projection
from declctl.informer.stores.caches import UndeltaStore
from declctl.objects import Delta, DeltaType, Record

_PODS = Projection(api_version="v1", kind="Pod")


def pod(name: str, version: int = 1) -> Record:
    metadata = {"namespace": "team-a", "name": name, "uid": name, "resourceVersion": str(version)}
    record = _PODS.record(msgspec.json.encode({"metadata": metadata}))
    assert record is not None
    return record


@pytest.fixture
def pushed() -> list[list[tuple[str, str]]]:
    return []


@pytest.fixture
def store(pushed: list[list[tuple[str, str]]]) -> UndeltaStore:
    return UndeltaStore(lambda all_: pushed.append([(r.key, r.resource_version) for r in all_]))


@pytest.mark.client_go(94, "UndeltaStore")
def test_every_write_tells_the_whole_state(store, pushed):
    """Add, update, delete and replace each tell once, with everything that is there (client-go 94)."""
    store.add(pod("a"))
    store.add(pod("b"))
    store.update(pod("a", 2))
    store.delete(pod("b", 3))
    store.replace([pod("c"), pod("d")], "9")

    assert pushed == [
        [("team-a/a", "1")],
        [("team-a/a", "1"), ("team-a/b", "1")],
        [("team-a/a", "2"), ("team-a/b", "1")],
        [("team-a/a", "2")],
        [("team-a/c", "1"), ("team-a/d", "1")],
    ]


@pytest.mark.client_go(95, "UndeltaStore")
def test_reading_tells_nothing(store, pushed):
    """Who only reads the store does not make it speak, nor does a bookmark or a resync (client-go 95)."""
    store.add(pod("a"))

    assert store.get(pod("a", 7)) == pod("a")
    assert store.get_by_key("team-a/b") is None
    assert [record.key for record in store.list()] == list(store.list_keys()) == ["team-a/a"]
    store.bookmark("5")
    store.resync()

    assert len(pushed) == 1


def test_a_batch_from_a_reflector_is_told_once(store, pushed):
    """A burst of watch events leads to one call with the outcome, not to one call for each event."""
    a, b = pod("a"), pod("b")
    store.extend([Delta(DeltaType.ADDED, r.key, r) for r in (a, b)] + [Delta(DeltaType.DELETED, a.key, a)])

    assert pushed == [[("team-a/b", "1")]]


def test_what_the_callback_raises_comes_out_of_the_write():
    """A fault in the callback is not swallowed, and the write is not lost for it."""

    def push(_):
        raise RuntimeError("disk full")

    store = UndeltaStore(push)

    with pytest.raises(RuntimeError, match="disk full"):
        store.add(pod("a"))
    assert len(store) == 1
