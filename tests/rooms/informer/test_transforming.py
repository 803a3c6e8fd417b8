"""What a queue's transformer sees, and what happens when it raises."""

import asyncio
from collections import Counter

import msgspec
import pytest

from declctl.errors import CacheError
from declctl.informer import DeltaFIFO, RealFIFO
from declctl.informer.queues.real_fifo import Replacement
from declctl.objects import Delta, DeltaType
from tests.rooms.informer.lines import entries
from tests.rooms.informer.shapes import record

QUEUES = pytest.mark.parametrize("queue_type", [RealFIFO, DeltaFIFO])


class Trimming:
    """Writes how often it saw an object into its labels, and raises on those that are called bad."""

    def __init__(self):
        self.calls = Counter()

    def __call__(self, made):
        self.calls[f"{made.key} {made.resource_version}"] += 1
        if "bad" in made.key:
            raise ValueError(f"can't read {made.key}")
        times = int(made.labels.get("seen", "0")) + 1
        return msgspec.structs.replace(made, labels_json=b'{"seen":"%d"}' % times)


def popped(queue):
    """Every record that comes out, with what the transformer did to it."""
    found = []
    while batch := queue.pop_batch_nowait(100):
        for entry in entries(batch):
            match entry:
                case Replacement(records):
                    found += [("Replacement", r) for r in records]
                case Delta(record=None):
                    found.append((entry.type, None))
                case Delta():
                    found.append((entry.type, entry.record))
    return [(str(kind), None if r is None else (r.key, r.labels.get("seen"))) for kind, r in found]


@pytest.mark.client_go(38, "Transform on enqueue")
def test_every_live_object_is_transformed_once_on_its_way_in():
    """Added, updated, deleted with its final state, listed."""
    trim = Trimming()
    queue = RealFIFO(transformer=trim)
    queue.add(record("a"))
    queue.update(record("a", 2))
    queue.delete(record("a", 3))
    queue.replace([record("b", 4)], "4")
    assert popped(queue) == [
        ("Added", ("demo/a", "1")),
        ("Updated", ("demo/a", "1")),
        ("Deleted", ("demo/a", "1")),
        ("Replacement", ("demo/b", "1")),
    ]
    assert set(trim.calls.values()) == {1}


@pytest.mark.client_go(10, "Transform on enqueue")
@pytest.mark.parametrize("emit_replaced", [True, False])
def test_a_tombstone_has_the_object_as_it_was_transformed(emit_replaced):
    """The list lacks it: what is deleted is what was queued, and nobody transforms it again."""
    trim = Trimming()
    queue = DeltaFIFO(transformer=trim, emit_replaced=emit_replaced)
    queue.add(record("a"))
    queue.update(record("a", 2))
    queue.delete(record("a", 3))
    queue.add(record("b", 4))
    queue.replace([record("c", 5)], "5")
    assert popped(queue) == [
        ("Added", ("demo/a", "1")),
        ("Updated", ("demo/a", "1")),
        ("Deleted", ("demo/a", "1")),
        ("Added", ("demo/b", "1")),
        ("Deleted", ("demo/b", "1")),
        ("Replaced" if emit_replaced else "Sync", ("demo/c", "1")),
    ]
    assert set(trim.calls.values()) == {1}


@pytest.mark.client_go(38)
@QUEUES
def test_what_has_been_in_the_store_already_is_left_alone(queue_type):
    """Tombstones, resyncs, and objects that only left our sight are not live objects on their way in."""
    trim = Trimming()
    queue = queue_type(transformer=trim)
    queue.extend(
        [
            Delta(DeltaType.SYNC, "demo/a", record("a")),
            Delta(DeltaType.DELETED, "demo/a", record("a"), final_state_unknown=True),
            Delta(DeltaType.UPDATED, "demo/b", record("b")),
            Delta(DeltaType.DELETED, "demo/b", record("b", 2), out_of_scope=True),
        ]
    )
    assert popped(queue) == [
        ("Sync", ("demo/a", None)),
        ("Deleted", ("demo/a", None)),
        ("Updated", ("demo/b", "1")),
        ("Deleted", ("demo/b", None)),
    ]


def test_a_resync_of_the_store_is_not_transformed():
    """What is stored went through it when it came in."""
    trim = Trimming()
    stored = trim(record("a"))
    queue = DeltaFIFO(lambda: {stored.key: stored}, transformer=trim)
    queue.resync()
    assert popped(queue) == [("Sync", ("demo/a", "1"))]


def test_a_delete_that_is_dropped_is_not_transformed():
    """Nobody would see it; one of something that is queued is."""
    trim = Trimming()
    queue = DeltaFIFO(transformer=trim)
    queue.delete(record("bad"))
    assert trim.calls.total() == 0
    queue.extend(
        [Delta(DeltaType.ADDED, "demo/a", record("a")), Delta(DeltaType.DELETED, "demo/a", record("a", 2))]
    )
    assert popped(queue) == [("Added", ("demo/a", "1")), ("Deleted", ("demo/a", "1"))]


@pytest.mark.client_go("Transform on enqueue")
@QUEUES
def test_an_object_on_which_it_raises_is_not_queued(queue_type):
    """The caller gets the error; what else came with that object is queued, and wakes who waits."""

    async def scenario():
        queue = queue_type(transformer=Trimming())
        waiting = asyncio.create_task(queue.pop_batch(10))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="can't read demo/bad"):
            queue.extend([Delta(DeltaType.ADDED, r.key, r) for r in map(record, ("a", "bad", "b"))])
        assert [entry.key for entry in await waiting] == ["demo/a", "demo/b"]
        with pytest.raises(ValueError, match="can't read demo/bad"):
            queue.add(record("bad"))
        assert len(queue) == 0

    asyncio.run(scenario())


@QUEUES
def test_the_error_says_how_many_objects_it_left_out(queue_type):
    """The first fault is raised; it tells that there were others."""
    queue = queue_type(transformer=Trimming())
    with pytest.raises(ValueError, match="demo/bad1") as raised:
        queue.extend([Delta(DeltaType.ADDED, r.key, r) for r in map(record, ("bad1", "bad2", "bad3"))])
    assert raised.value.__notes__ == ["the transformer raised on 2 more"]
    assert not queue.has_synced


@pytest.mark.client_go("Transform on enqueue")
@QUEUES
def test_a_list_with_an_object_on_which_it_raises_is_not_queued_at_all(queue_type):
    """Without that object the list would delete it; the next list is still the first one."""
    queue = queue_type(transformer=Trimming())
    with pytest.raises(ValueError, match="demo/bad"):
        queue.replace([record("a"), record("bad")], "1")
    assert len(queue) == 0
    assert queue.pop_batch_nowait(10) == []
    queue.replace([record("a")], "2")
    [entry] = entries(queue.pop_batch_nowait(10))
    assert entry.initial
    assert not queue.has_synced


@QUEUES
def test_an_object_keeps_its_key(queue_type):
    """One that is stored under another key than it was queued under could never be deleted."""
    queue = queue_type(transformer=lambda made: msgspec.structs.replace(made, key="demo/other"))
    with pytest.raises(CacheError, match="made demo/other of demo/a"):
        queue.add(record("a"))
    with pytest.raises(CacheError, match="made demo/other of demo/a"):
        queue.replace([record("a")], "1")
    assert len(queue) == 0


def test_one_transformer_serves_several_queues():
    """It belongs to none of them."""
    trim = Trimming()
    queues = [RealFIFO(transformer=trim), DeltaFIFO(transformer=trim)]
    for number, queue in enumerate(queues):
        queue.add(record(f"p{number}"))
    assert [popped(queue) for queue in queues] == [
        [("Added", ("demo/p0", "1"))],
        [("Added", ("demo/p1", "1"))],
    ]
