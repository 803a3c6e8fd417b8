"""What a queue's transformer sees, and what happens when it raises."""

import asyncio
from collections import Counter

import msgspec
import pytest

from declctl.errors import CacheError
from declctl.informer import DeltaFIFO, RealFIFO
from declctl.informer.queues.real_fifo import Replacement
from declctl.objects import Delta, DeltaType
from tests.rooms.informer.lines import entries, play
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
    """Every record that comes out, with how often the transformer has seen it: `Added a 1`."""
    found = []
    while batch := queue.pop_batch_nowait(100):
        for entry in entries(batch):
            records = entry.records if isinstance(entry, Replacement) else [entry.record]
            kind = "Replacement" if isinstance(entry, Replacement) else entry.type
            found += [f"{kind} {r.key.removeprefix('demo/')} {r.labels.get('seen')}" for r in records]
    return found


@pytest.mark.client_go(10, 38, "Transform on enqueue")
@pytest.mark.parametrize(
    ("queue_type", "options", "listed"),
    [
        (RealFIFO, {}, ["Replacement c 1"]),
        (DeltaFIFO, {}, ["Deleted b 1", "Replaced c 1"]),
        (DeltaFIFO, {"emit_replaced": False}, ["Deleted b 1", "Sync c 1"]),
    ],
)
def test_every_live_object_is_transformed_once_on_its_way_in(queue_type, options, listed):
    """Added, updated, deleted with its final state, listed; a tombstone has the object as it was queued."""
    trim = Trimming()
    queue = queue_type(transformer=trim, **options)
    play(queue, "add a 1", "update a 2", "delete a 3", "add b 4", "list c 5")
    assert popped(queue) == ["Added a 1", "Updated a 1", "Deleted a 1", "Added b 1", *listed]
    assert set(trim.calls.values()) == {1}


@pytest.mark.client_go(38)
@QUEUES
def test_what_has_been_in_the_store_already_is_left_alone(queue_type):
    """Tombstones, resyncs, and objects that only left our sight are not live objects on their way in."""
    queue = queue_type(transformer=Trimming())
    queue.extend(
        [
            Delta(DeltaType.SYNC, "demo/a", record("a")),
            Delta(DeltaType.DELETED, "demo/a", record("a"), final_state_unknown=True),
            Delta(DeltaType.UPDATED, "demo/b", record("b")),
            Delta(DeltaType.DELETED, "demo/b", record("b", 2), out_of_scope=True),
        ]
    )
    assert popped(queue) == ["Sync a None", "Deleted a None", "Updated b 1", "Deleted b None"]


def test_neither_a_resync_of_the_store_nor_a_delete_that_is_dropped_is_transformed():
    """What is stored went through it when it came in; nobody would see the delete of an unknown object."""
    trim = Trimming()
    stored = trim(record("a"))
    queue = DeltaFIFO(lambda: {stored.key: stored}, transformer=trim)
    queue.resync()
    assert popped(queue) == ["Sync a 1"]
    queue = DeltaFIFO(transformer=trim)
    queue.delete(record("bad"))
    assert trim.calls.total() == 1
    queue.extend(
        [Delta(DeltaType.ADDED, "demo/a", record("a")), Delta(DeltaType.DELETED, "demo/a", record("a", 2))]
    )
    assert popped(queue) == ["Added a 1", "Deleted a 1"]


@pytest.mark.client_go("Transform on enqueue")
@QUEUES
async def test_an_object_on_which_it_raises_is_not_queued(queue_type):
    """The caller gets the error; what else came with that object is queued, and wakes who waits."""
    queue = queue_type(transformer=Trimming())
    with pytest.raises(ValueError, match="demo/bad1") as raised:
        queue.extend([Delta(DeltaType.ADDED, r.key, r) for r in map(record, ("bad1", "bad2", "bad3"))])
    assert raised.value.__notes__ == ["the transformer raised on 2 more"]
    assert not queue.has_synced
    waiting = asyncio.create_task(queue.pop_batch(10))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="can't read demo/bad"):
        queue.extend([Delta(DeltaType.ADDED, r.key, r) for r in map(record, ("a", "bad", "b"))])
    assert [entry.key for entry in await waiting] == ["demo/a", "demo/b"]
    with pytest.raises(ValueError, match="can't read demo/bad"):
        queue.add(record("bad"))
    assert len(queue) == 0


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
