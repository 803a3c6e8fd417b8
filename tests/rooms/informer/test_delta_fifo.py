"""The accumulating queue: all pending changes of a key together."""

import pytest

from declctl.errors import CacheError
from declctl.informer import DeltaFIFO, key_of_entry
from declctl.informer.queues.real_fifo import Bookmark
from declctl.objects import Delta, DeltaType
from tests.rooms.informer.lines import play, records
from tests.rooms.informer.shapes import record


def queue_over(stored, **options):
    """A queue before a store of `a 1 b 2`."""
    store = {each.key: each for each in records(*stored.split())}
    return DeltaFIFO(lambda: store, **options)


def pending(queue):
    """What is popped, key by key: `a: Added 1, Deleted 2 tombstone`."""
    found = []
    while deltas := queue.pop_nowait():
        queue.processed(deltas)
        shown = [
            f"{d.type} {d.record.resource_version}{' tombstone' * d.final_state_unknown}" for d in deltas
        ]
        found.append(f"{deltas[0].key.removeprefix('demo/')}: {', '.join(shown)}")
    return found


# Done to a queue without a store, and what comes out. With a store: `DeltaMachine` of the properties.
FILLED = [
    # all changes of a key come together, newest last; a delete of something nobody knows is dropped
    ("delete ghost 1, add a 1, update a 2, delete a 3", "a: Added 1, Updated 2, Deleted 3"),
    # without a store, what is queued still gets its tombstone
    ("add c 1, list a 2", "c: Added 1, Deleted 1 tombstone; a: Replaced 2"),
]


@pytest.mark.client_go(3, 9, 11, 16, 20, "DeltaFIFO per-key accumulation", "DeltaFIFO delete of unknown key")
@pytest.mark.parametrize(("steps", "expected"), FILLED)
def test_what_was_queued_of_a_key_comes_out_together(steps, expected):
    """Each key once, with all that happened to it, in the order in which the keys were first queued."""
    queue = DeltaFIFO()
    play(queue, *steps.split(", "))
    assert len(queue) == expected.count(":")
    assert "; ".join(pending(queue)) == expected
    assert len(queue) == 0


@pytest.mark.client_go(20, 21, 22, "DeltaFIFO Replace")
@pytest.mark.parametrize(("emit_replaced", "listed"), [(True, "Replaced"), (False, "Sync")])
def test_two_lists_before_a_pop_keep_both_states(emit_replaced, listed):
    """Nothing is lost between two lists; old programs get them as Sync, the deletes are the same."""
    queue = queue_over("b 6 c 7", emit_replaced=emit_replaced)
    play(queue, "list b 100 a 100", "list a 101")
    assert pending(queue) == [
        f"b: {listed} 100, Deleted 100 tombstone",
        f"a: {listed} 100, {listed} 101",
        "c: Deleted 7 tombstone",
    ]


@pytest.mark.client_go(26, 52)
def test_everything_that_is_popped_has_a_key():
    """An object, a tombstone without one, and the deltas of a key; no deltas at all are nobody's."""
    change = Delta(DeltaType.ADDED, "demo/a", record("a"))
    tombstone = Delta(DeltaType.DELETED, "demo/gone", None, final_state_unknown=True)
    assert key_of_entry(record("a")) == key_of_entry(change) == key_of_entry([change]) == "demo/a"
    assert key_of_entry(tombstone) == key_of_entry([tombstone]) == "demo/gone"
    with pytest.raises(CacheError, match="empty list"):
        key_of_entry([])


@pytest.mark.client_go(36)
def test_an_empty_first_list_wakes_whoever_waits_for_it():
    """A cache of a kind without objects syncs too; a bookmark changes nothing: it knows no versions."""
    queue = DeltaFIFO()
    queue.bookmark("9")
    assert (len(queue), queue.pop_batch_nowait(10)) == (0, [])
    queue.replace([], "1")
    assert [queue.pop_batch_nowait(10) for _ in range(2)] == [Bookmark("1"), []]
