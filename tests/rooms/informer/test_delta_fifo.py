"""The accumulating queue: all pending changes of a key together."""

import asyncio
import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from declctl.informer import DeltaFIFO, QueueClosed
from declctl.objects import Delta, DeltaType
from tests.rooms.informer.shapes import record

ADDED, UPDATED, DELETED = DeltaType.ADDED, DeltaType.UPDATED, DeltaType.DELETED
REPLACED, SYNC = DeltaType.REPLACED, DeltaType.SYNC


def queue_over(*records):
    store = {r.key: r for r in records}
    return DeltaFIFO(lambda: store)


def shown(deltas):
    return [
        (d.type, None if d.record is None else d.record.resource_version, d.final_state_unknown)
        for d in deltas
    ]


def pending(queue):
    found = {}
    while deltas := queue.pop_nowait():
        queue.processed(deltas)
        found[deltas[0].key.removeprefix("demo/")] = shown(deltas)
    return found


def test_one_pop_gives_all_changes_of_a_key():
    """Add, update and delete arrive together, newest last (client-go 9, 16)."""
    queue = queue_over()
    queue.add(record("a"))
    queue.update(record("a", 2))
    queue.delete(record("a", 3))
    assert pending(queue) == {"a": [(ADDED, "1", False), (UPDATED, "2", False), (DELETED, "3", False)]}


def test_a_delete_of_something_nobody_knows_is_dropped():
    """Neither queued nor stored: there is nothing to delete (client-go 11)."""
    queue = queue_over()
    queue.delete(record("ghost"))
    assert pending(queue) == {}


def test_a_delete_of_something_stored_is_queued():
    """The store has it, so it has to go (client-go 12)."""
    queue = queue_over(record("a"))
    queue.delete(record("a", 2))
    assert pending(queue) == {"a": [(DELETED, "2", False)]}


def test_two_deletes_are_one_and_the_real_one_wins():
    """A delete with its object is worth more than a tombstone (client-go 5)."""
    queue = queue_over(record("a"))
    queue.replace([], "5")
    queue.delete(record("a", 6))
    assert pending(queue) == {"a": [(DELETED, "6", False)]}


def test_a_replacement_is_replaced_for_each_and_a_tombstone_for_the_rest():
    """What the list does not have is deleted with its last known state (client-go 17, 21)."""
    queue = queue_over(record("a"), record("b", 4))
    queue.replace([record("a", 5)], "5")
    assert pending(queue) == {"a": [(REPLACED, "5", False)], "b": [(DELETED, "4", True)]}


def test_a_tombstone_has_the_newest_state_that_is_known():
    """What is queued is newer than what is stored (client-go 18, 19)."""
    queue = queue_over(record("b", 6))
    queue.delete(record("b", 7))
    queue.add(record("b", 100))
    queue.replace([], "101")
    assert pending(queue) == {"b": [(DELETED, "7", False), (ADDED, "100", False), (DELETED, "100", True)]}


@pytest.mark.parametrize("times", [1, 2])
def test_something_only_queued_is_not_forgotten_by_a_list(times):
    """Added, not stored yet, gone from the list: one tombstone, however often that is (client-go 3, 7)."""
    queue = queue_over()
    queue.add(record("a"))
    for _ in range(times):
        queue.replace([], "2")
    assert pending(queue) == {"a": [(ADDED, "1", False), (DELETED, "1", True)]}


def test_a_real_delete_gets_no_tombstone_behind_it():
    """It is gone already (client-go 5, 17)."""
    queue = queue_over(record("a"))
    queue.delete(record("a", 2))
    queue.replace([], "3")
    assert pending(queue) == {"a": [(DELETED, "2", False)]}


def test_two_lists_before_a_pop_keep_both_states():
    """Nothing is lost between two lists (client-go 6, 20)."""
    queue = queue_over()
    queue.replace([record("a"), record("b")], "1")
    queue.replace([record("a", 2)], "2")
    assert pending(queue) == {
        "a": [(REPLACED, "1", False), (REPLACED, "2", False)],
        "b": [(REPLACED, "1", False), (DELETED, "1", True)],
    }


def test_a_resync_leaves_alone_what_has_something_queued():
    """A resync must not bring back what is about to be deleted (client-go 14, 15, 47)."""
    queue = queue_over(record("a"), record("b"))
    queue.delete(record("a", 2))
    queue.resync()
    assert pending(queue) == {"a": [(DELETED, "2", False)], "b": [(SYNC, "1", False)]}


def test_a_key_that_comes_again_waits_at_the_end():
    """No line jumping (client-go 25)."""
    queue = queue_over()
    for name in ("a", "b", "c"):
        queue.add(record(name))
    queue.pop_nowait()
    queue.update(record("a", 2))
    assert list(pending(queue)) == ["b", "c", "a"]


def test_it_has_synced_when_every_initial_delta_is_processed():
    """With the deletes that the list caused; a key that is listed twice counts once (client-go 24, 31)."""
    queue = queue_over(record("gone"))
    assert not queue.has_synced
    queue.replace([record("a"), record("a", 2)], "2")
    first = queue.pop_batch_nowait(1)
    queue.processed(first)
    assert not queue.has_synced
    last = queue.pop_batch_nowait(5)
    assert not queue.has_synced
    queue.processed(last)
    assert queue.has_synced


def test_an_empty_first_list_has_synced_at_once():
    """There is nothing to wait for (client-go 27, 29)."""
    queue = queue_over()
    queue.replace([], "1")
    assert queue.has_synced


def test_an_empty_first_list_wakes_whoever_waits_for_it():
    """A cache of a kind without objects syncs too, also through this queue."""
    queue = queue_over()
    queue.replace([], "1")
    assert len(queue.pop_batch_nowait(10)) == 1
    assert queue.pop_batch_nowait(10) == []


def test_only_the_first_list_is_initial():
    """Deltas of a relist do not look like a first sync (client-go 171)."""
    queue = queue_over()
    queue.replace([record("a")], "1")
    assert [d.initial for d in queue.pop_nowait()] == [True]
    queue.replace([record("a", 2)], "2")
    assert [d.initial for d in queue.pop_nowait()] == [False]


def test_a_bookmark_changes_nothing():
    """This queue knows no versions (client-go 36)."""
    queue = queue_over()
    queue.bookmark("9")
    assert len(queue) == 0


def test_closing_releases_everybody_who_waits():
    """Nobody hangs on a queue that will never be filled (client-go 32)."""

    async def scenario():
        queue = queue_over()
        waiting = [asyncio.create_task(queue.pop()) for _ in range(3)]
        await asyncio.sleep(0)
        queue.close()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, QueueClosed) for result in results)

    asyncio.run(scenario())


class Accumulating(RuleBasedStateMachine):
    """A server, the queue, and a store that applies what is popped: they must end equal."""

    names = st.sampled_from(["a", "b", "c", "d"])

    def __init__(self):
        super().__init__()
        self.version = 0
        self.server, self.store = {}, {}
        self.queue = DeltaFIFO(lambda: self.store)

    @rule(name=names)
    def put(self, name):
        self.version += 1
        made = record(name, self.version)
        known = made.key in self.server
        self.server[made.key] = made
        self.queue.update(made) if known else self.queue.add(made)

    @rule(name=names)
    def delete(self, name):
        if f"demo/{name}" in self.server:
            self.version += 1
            del self.server[f"demo/{name}"]
            self.queue.delete(record(name, self.version))

    @rule(missed=st.sets(names))
    def relist(self, missed):
        for name in missed:  # deleted while nobody watched
            self.server.pop(f"demo/{name}", None)
        self.queue.replace(list(self.server.values()), str(self.version))

    @rule(limit=st.integers(1, 4))
    def process(self, limit):
        batch = self.queue.pop_batch_nowait(limit)
        for delta in batch:
            if not isinstance(delta, Delta):
                continue
            if delta.type is DELETED:
                assert self.store.pop(delta.key, None) is not None or delta.record is not None
            else:
                self.store[delta.key] = delta.record
        self.queue.processed(batch)

    @invariant()
    def never_two_deletes_in_a_row(self):
        for deltas in self.queue._items.values():
            types = [d.type for d in deltas]
            assert (DELETED, DELETED) not in list(itertools.pairwise(types))

    def teardown(self):
        self.process(100)
        assert self.store == self.server


TestAccumulating = Accumulating.TestCase
TestAccumulating.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
