"""The accumulating queue: all pending changes of a key together."""

import asyncio

import pytest

from declctl.errors import CacheError
from declctl.informer import DeltaFIFO, Indexer, QueueClosed, key_of_entry
from declctl.informer.queues.real_fifo import Bookmark
from declctl.objects import Delta, DeltaType
from tests.rooms.informer.lines import Line, fill_from_two_sides, sides
from tests.rooms.informer.shapes import record

ADDED, UPDATED, DELETED = DeltaType.ADDED, DeltaType.UPDATED, DeltaType.DELETED
REPLACED, SYNC = DeltaType.REPLACED, DeltaType.SYNC


def queue_over(*records, **options):
    store = {r.key: r for r in records}
    return DeltaFIFO(lambda: store, **options)


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


@pytest.mark.client_go(1)
def test_each_producer_is_heard_in_its_own_order():
    """Two that add at the same time, and one who takes: nothing is lost, nobody's order changes."""

    async def scenario():
        queue = queue_over()
        filling = asyncio.create_task(fill_from_two_sides(queue.add, 50))
        popped = [(await queue.pop())[0].key for _ in range(100)]
        await filling
        assert sides(popped) == {"left": list(range(50)), "right": list(range(50))}

    asyncio.run(scenario())


@pytest.mark.client_go(9, 16, "DeltaFIFO per-key accumulation")
def test_one_pop_gives_all_changes_of_a_key():
    """Add, update and delete arrive together, newest last, though the store has seen none of them."""
    queue = queue_over()
    queue.add(record("a"))
    queue.update(record("a", 2))
    queue.delete(record("a", 3))
    assert len(queue) == 1
    assert pending(queue) == {"a": [(ADDED, "1", False), (UPDATED, "2", False), (DELETED, "3", False)]}
    assert len(queue) == 0


@pytest.mark.client_go(11, "DeltaFIFO delete of unknown key")
def test_a_delete_of_something_nobody_knows_is_dropped():
    """Neither queued nor stored: there is nothing to delete."""
    queue = queue_over()
    queue.delete(record("ghost"))
    assert pending(queue) == {}
    queue.add(record("a"))
    queue.delete(record("a", 2))
    assert pending(queue) == {"a": [(ADDED, "1", False), (DELETED, "2", False)]}


@pytest.mark.client_go(12, "DeltaFIFO delete of unknown key")
def test_a_delete_of_something_stored_is_queued():
    """The store has it, so it has to go; what it has not stays dropped."""
    queue = queue_over(record("a"))
    queue.delete(record("a", 2))
    queue.delete(record("ghost", 3))
    assert pending(queue) == {"a": [(DELETED, "2", False)]}


@pytest.mark.client_go("DeltaFIFO dedup")
def test_two_deletes_are_one_and_the_real_one_wins():
    """A delete with its object is worth more than a tombstone, whichever came first."""
    queue = queue_over(record("a"), record("b"))
    queue.replace([record("b")], "5")
    queue.delete(record("a", 6))
    queue.delete(record("b", 7))
    queue.replace([], "8")
    assert pending(queue) == {
        "a": [(DELETED, "6", False)],
        "b": [(REPLACED, "1", False), (DELETED, "7", False)],
    }


@pytest.mark.client_go("DeltaFIFO dedup")
def test_only_deletes_are_merged():
    """Updates stay, each of them; a delete, an add and a delete are three changes."""
    queue = queue_over()
    for version in (1, 2, 3):
        queue.update(record("a", version))
    queue.delete(record("a", 4))
    queue.add(record("a", 5))
    queue.delete(record("a", 6))
    assert [kind for kind, _, _ in pending(queue)["a"]] == [
        UPDATED,
        UPDATED,
        UPDATED,
        DELETED,
        ADDED,
        DELETED,
    ]


@pytest.mark.client_go(13)
def test_a_list_behind_an_add_is_heard_with_it():
    """One pop has both states, the newest last; a delete after that is not lost."""
    line = Line(make=DeltaFIFO)
    line.queue.add(record("a", 10))
    line.queue.replace([record("a", 15)], "15")
    deltas = line.queue.pop_nowait()
    assert shown(deltas) == [(ADDED, "10", False), (REPLACED, "15", False)]
    line.apply(deltas)
    line.queue.processed(deltas)
    line.queue.delete(record("a", 16))
    assert pending(line.queue) == {"a": [(DELETED, "16", False)]}


@pytest.mark.client_go(17, 21, "DeltaFIFO Replace")
def test_a_replacement_is_replaced_for_each_and_a_tombstone_for_the_rest():
    """What the list does not have is deleted with its last known state, what is deleted only once."""
    queue = queue_over(record("a", 4), record("b", 5), record("c", 6))
    queue.delete(record("c", 7))
    queue.replace([record("a", 8)], "8")
    assert list(pending(queue).items()) == [
        ("c", [(DELETED, "7", False)]),
        ("a", [(REPLACED, "8", False)]),
        ("b", [(DELETED, "5", True)]),
    ]


@pytest.mark.client_go(18, 21, "DeltaFIFO Replace")
def test_a_tombstone_has_the_newest_state_that_is_known():
    """What is queued is newer than what is stored."""
    queue = queue_over(record("a", 1), record("b", 2), record("c", 3))
    queue.add(record("c", 30))
    queue.replace([record("a", 31)], "31")
    assert pending(queue) == {
        "c": [(ADDED, "30", False), (DELETED, "30", True)],
        "a": [(REPLACED, "31", False)],
        "b": [(DELETED, "2", True)],
    }


@pytest.mark.client_go(19, 21)
def test_something_made_again_is_deleted_again_by_a_list():
    """Deleted, added, gone from the list: the tombstone has the object that was made again."""
    queue = queue_over(record("b", 6))
    queue.delete(record("b", 6))
    queue.add(record("b", 100))
    queue.replace([record("a", 101)], "101")
    assert pending(queue) == {
        "b": [(DELETED, "6", False), (ADDED, "100", False), (DELETED, "100", True)],
        "a": [(REPLACED, "101", False)],
    }


@pytest.mark.client_go(3, 7)
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_something_only_queued_is_not_forgotten_by_a_list(times, stored):
    """Added, not stored yet, gone from the list: one tombstone, however often that is."""
    queue = queue_over(*[record("a")] * stored)
    queue.add(record("a", 2))
    for _ in range(times):
        queue.replace([], "3")
    assert pending(queue) == {"a": [(ADDED, "2", False), (DELETED, "2", True)]}


@pytest.mark.client_go(4)
def test_a_listed_object_gets_one_tombstone_however_many_lists_lack_it():
    """Replaced, then two empty lists."""
    queue = queue_over()
    queue.replace([record("a")], "1")
    queue.replace([], "2")
    queue.replace([], "3")
    assert pending(queue) == {"a": [(REPLACED, "1", False), (DELETED, "1", True)]}


@pytest.mark.client_go(5)
def test_a_real_delete_gets_no_tombstone_behind_it():
    """It is gone already, with its final state."""
    queue = queue_over()
    queue.add(record("a"))
    queue.delete(record("a", 2))
    queue.replace([], "3")
    assert pending(queue) == {"a": [(ADDED, "1", False), (DELETED, "2", False)]}


@pytest.mark.client_go(6)
def test_every_listed_state_stays_before_the_tombstone():
    """Two lists had it, the third has not: both states are heard, then one delete."""
    queue = queue_over()
    queue.replace([record("a")], "1")
    queue.replace([record("a", 2)], "2")
    queue.replace([], "3")
    assert pending(queue) == {"a": [(REPLACED, "1", False), (REPLACED, "2", False), (DELETED, "2", True)]}


@pytest.mark.client_go(20, 21, 22)
@pytest.mark.parametrize(("emit_replaced", "listed"), [(True, REPLACED), (False, SYNC)])
def test_two_lists_before_a_pop_keep_both_states(emit_replaced, listed):
    """Nothing is lost between two lists; old programs get them as Sync, the deletes are the same."""
    queue = queue_over(record("b", 6), record("c", 7), emit_replaced=emit_replaced)
    queue.replace([record("b", 100), record("a", 100)], "100")
    queue.replace([record("a", 101)], "101")
    assert pending(queue) == {
        "b": [(listed, "100", False), (DELETED, "100", True)],
        "a": [(listed, "100", False), (listed, "101", False)],
        "c": [(DELETED, "7", True)],
    }


@pytest.mark.client_go(20)
def test_without_a_store_what_is_queued_still_gets_its_tombstone():
    """The queue alone remembers what it was told."""
    queue = DeltaFIFO()
    queue.add(record("c"))
    queue.replace([record("a", 2)], "2")
    assert pending(queue) == {"c": [(ADDED, "1", False), (DELETED, "1", True)], "a": [(REPLACED, "2", False)]}


@pytest.mark.client_go(22, "DeltaFIFO Replace")
def test_a_store_that_takes_a_sync_for_a_state_ends_with_the_list():
    """Lists as Sync are for a consumer that puts whatever a delta brings."""
    store = Indexer()
    store.add(record("gone"))
    queue = DeltaFIFO(store.known, emit_replaced=False)
    queue.replace([record("a", 2), record("b", 3)], "3")
    while deltas := queue.pop_nowait():
        store.extend(deltas)
        queue.processed(deltas)
    assert {r.key: r.resource_version for r in store.list()} == {"demo/a": "2", "demo/b": "3"}


@pytest.mark.client_go(14, 15, "DeltaFIFO Resync")
def test_a_resync_leaves_alone_what_has_something_queued():
    """A resync must not bring back what is about to be deleted."""
    queue = queue_over(record("a"), record("b"))
    queue.delete(record("a", 2))
    queue.resync()
    assert pending(queue) == {"a": [(DELETED, "2", False)], "b": [(SYNC, "1", False)]}


@pytest.mark.client_go(25, "DeltaFIFO per-key accumulation")
def test_a_key_that_comes_again_waits_at_the_end():
    """No line jumping; one that waits already keeps its place."""
    queue = queue_over()
    for name in ("a", "b", "c"):
        queue.add(record(name))
    queue.pop_nowait()
    queue.update(record("a", 2))
    queue.update(record("b", 2))
    assert list(pending(queue)) == ["b", "c", "a"]


@pytest.mark.client_go(26)
def test_everything_that_is_popped_has_a_key():
    """An object, a tombstone without one, and the deltas of a key; no deltas at all are nobody's."""
    tombstone = Delta(DELETED, "demo/gone", None, final_state_unknown=True)
    assert key_of_entry(record("a")) == "demo/a"
    assert key_of_entry(tombstone) == "demo/gone"
    assert key_of_entry([Delta(ADDED, "demo/a", record("a"))]) == "demo/a"
    assert key_of_entry([tombstone]) == "demo/gone"
    with pytest.raises(CacheError, match="empty list"):
        key_of_entry([])


@pytest.mark.client_go(24, 27, "DeltaFIFO HasSynced")
def test_it_has_synced_when_every_initial_delta_is_processed():
    """One that was listed and two deletes that the list caused; each says that it is of the first list."""
    queue = queue_over(record("a"), record("b"), record("c"))
    opened = []
    queue.synced.on_open(lambda: opened.append(True))
    assert not queue.has_synced
    queue.replace([record("a", 2)], "2")
    for _ in range(3):
        assert not queue.has_synced
        assert opened == []
        deltas = queue.pop_nowait()
        assert [delta.initial for delta in deltas] == [True]
        assert not queue.has_synced
        queue.processed(deltas)
    assert queue.has_synced
    assert opened == [True]


@pytest.mark.client_go(30)
def test_half_of_the_first_list_is_not_synced():
    """Two objects need two pops."""
    queue = queue_over()
    queue.replace([record("a"), record("b")], "1")
    assert not queue.has_synced
    queue.processed(queue.pop_nowait())
    assert not queue.has_synced
    queue.processed(queue.pop_nowait())
    assert queue.has_synced


@pytest.mark.client_go(31)
def test_an_object_that_is_listed_twice_is_waited_for_once():
    """One pop has both of its states."""
    queue = queue_over()
    queue.replace([record("a"), record("b"), record("a", 2)], "2")
    for _ in range(2):
        assert not queue.has_synced
        queue.processed(queue.pop_nowait())
    assert queue.has_synced


@pytest.mark.client_go("DeltaFIFO HasSynced")
@pytest.mark.parametrize("fill", ["add", "update", "delete"])
@pytest.mark.parametrize("transformer", [None, lambda made: made])
def test_single_changes_first_mean_that_there_is_no_first_list(fill, transformer):
    """Filled by hand it has synced at once, if only by a delete that is dropped; no list takes it back."""
    queue = queue_over(transformer=transformer)
    queue.extend([])
    assert not queue.has_synced
    getattr(queue, fill)(record("a"))
    assert queue.has_synced
    queue.replace([record("a", 2)], "2")
    assert queue.has_synced


@pytest.mark.client_go(29)
def test_an_empty_first_list_has_synced_at_once():
    """There is nothing to wait for."""
    queue = queue_over()
    queue.replace([], "1")
    assert queue.has_synced


def test_an_empty_first_list_wakes_whoever_waits_for_it():
    """A cache of a kind without objects syncs too, also through this queue."""
    queue = queue_over()
    queue.replace([], "1")
    assert queue.pop_batch_nowait(10) == Bookmark("1")
    assert queue.pop_batch_nowait(10) == []


def test_only_the_first_list_is_initial():
    """Deltas of a relist do not look like a first sync (client-go 171)."""
    queue = queue_over()
    queue.replace([record("a")], "1")
    assert [d.initial for d in queue.pop_nowait()] == [True]
    queue.replace([record("a", 2)], "2")
    assert [d.initial for d in queue.pop_nowait()] == [False]


@pytest.mark.client_go(36)
def test_a_bookmark_changes_nothing():
    """This queue knows no versions."""
    queue = queue_over()
    queue.bookmark("9")
    assert len(queue) == 0
    assert queue.pop_batch_nowait(10) == []


def test_a_delete_of_what_was_popped_and_is_not_stored_yet_is_queued():
    """Whoever applies what was popped may take a while: what it holds exists."""
    line = Line(make=DeltaFIFO)
    line.queue.add(record("a"))
    batch = line.queue.pop_batch_nowait(10)
    line.queue.delete(record("a", 2))
    line.apply(batch)
    line.queue.processed(batch)
    assert line.drained() == ["Deleted a 2"]
    assert line.versions == {}


def test_a_list_without_what_was_popped_deletes_it():
    """With the state that was popped, which is newer than the stored one."""
    line = Line(record("a"), make=DeltaFIFO)
    line.queue.update(record("a", 2))
    batch = line.queue.pop_batch_nowait(10)
    line.queue.replace([], "3")
    line.apply(batch)
    line.queue.processed(batch)
    assert line.drained() == ["Deleted a 2 tombstone"]


def test_a_resync_does_not_bring_back_what_was_popped_as_deleted():
    """The store still has it, but not for long; once that is processed there is nothing to replay."""
    line = Line(record("a"), record("b"), make=DeltaFIFO)
    line.queue.delete(record("a", 2))
    batch = line.queue.pop_batch_nowait(10)
    line.queue.resync()
    line.apply(batch)
    line.queue.processed(batch)
    assert line.drained() == ["Resync b 1"]
    line.queue.delete(record("a", 3))
    assert len(line.queue) == 0


@pytest.mark.client_go(32, "DeltaFIFO close")
def test_closing_releases_everybody_who_waits():
    """Nobody hangs on a queue that will never be filled."""

    async def scenario():
        queue = queue_over()
        waiting = [asyncio.create_task(queue.pop()) for _ in range(3)]
        await asyncio.sleep(0)
        queue.close()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, QueueClosed) for result in results)

    asyncio.run(scenario())


@pytest.mark.client_go("DeltaFIFO close")
def test_what_is_left_is_handed_out_after_closing():
    """Closing loses nothing; then every pop says that it is closed."""

    async def scenario():
        queue = queue_over()
        queue.add(record("a"))
        queue.add(record("b"))
        queue.close()
        assert [(await queue.pop())[0].key for _ in range(2)] == ["demo/a", "demo/b"]
        for _ in range(2):
            with pytest.raises(QueueClosed):
                await queue.pop()
        with pytest.raises(QueueClosed):
            await queue.pop_batch(10)

    asyncio.run(scenario())
