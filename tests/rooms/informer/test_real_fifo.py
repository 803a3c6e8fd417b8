"""The in-order queue: nothing is merged, nothing overtakes, a replacement is one entry."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.informer import QueueClosed, RealFIFO, key_of_entry
from declctl.informer.applier import Applier
from declctl.informer.queues.real_fifo import Bookmark, Replacement, SyncAll
from declctl.objects import Delta, DeltaType
from tests.rooms.informer.lines import Line, entries, fill_from_two_sides, sides, words
from tests.rooms.informer.shapes import record


def drained(queue, limit=100):
    found = []
    while batch := queue.pop_batch_nowait(limit):
        found += entries(batch)
        queue.processed(batch)
    return found


def kinds(entries):
    return [(e.type, e.key) if isinstance(e, Delta) else type(e) for e in entries]


@pytest.mark.client_go(33, "RealFIFO global order")
def test_each_producer_is_heard_in_its_own_order():
    """Two that add at the same time, and one who takes: every single call is heard, in order."""

    async def scenario():
        queue = RealFIFO()
        filling = asyncio.create_task(fill_from_two_sides(queue.add, 50))
        popped = [(await queue.pop()).key for _ in range(100)]
        await filling
        assert sides(popped) == {"left": list(range(50)), "right": list(range(50))}
        assert len(queue) == 0

    asyncio.run(scenario())


@pytest.mark.client_go(37, 44, "RealFIFO global order")
def test_every_change_is_handed_out_in_its_order():
    """Add, update and delete of one object are three pops, not one, though the store has seen none."""
    queue = RealFIFO()
    queue.add(record("a"))
    queue.update(record("a", 2))
    queue.delete(record("a", 3))
    assert len(queue) == 3
    assert kinds(drained(queue, limit=1)) == [
        (DeltaType.ADDED, "demo/a"),
        (DeltaType.UPDATED, "demo/a"),
        (DeltaType.DELETED, "demo/a"),
    ]


@pytest.mark.client_go(49)
def test_nothing_jumps_the_line():
    """An object that changes again waits behind the others."""
    queue = RealFIFO()
    for name in ("a", "b", "c"):
        queue.add(record(name))
    queue.pop_nowait()
    queue.update(record("a", 2))
    assert [entry.key for entry in drained(queue)] == ["demo/b", "demo/c", "demo/a"]


@pytest.mark.client_go(39, 40, "RealFIFO global order")
def test_every_delete_is_queued():
    """The queue does not judge what the store knows: unknown, known, and twice."""
    line = Line(record("a"))
    for name in ("ghost", "a", "a"):
        line.queue.delete(record(name, 2))
    assert len(line.queue) == 3
    assert line.drained() == ["Deleted a 2"]


@pytest.mark.client_go(58, "RealFIFO AtomicEvents")
def test_a_replacement_is_one_entry():
    """However many objects it has: with all of them, and its version."""
    queue = RealFIFO()
    records = [record(f"p{number}") for number in range(7)]
    queue.replace(records, "7")
    [entry] = drained(queue, limit=1)
    assert entry == Replacement(records, "7", initial=True)


@pytest.mark.client_go(41, 59, 62)
def test_a_replacement_waits_behind_what_is_pending():
    """Two pops, the older state first; then nothing is left, and only then it may have synced."""
    queue = RealFIFO()
    queue.add(record("a", 10))
    queue.replace([record("a", 15)], "15")
    first, second = queue.pop_batch_nowait(10), queue.pop_batch_nowait(10)
    assert [(e.key, e.record.resource_version) for e in first] == [("demo/a", "10")]
    assert [r.resource_version for r in second.records] == ["15"]
    assert queue.pop_batch_nowait(10) == []


@pytest.mark.client_go(62)
def test_an_empty_first_list_is_popped_before_it_has_synced():
    """Nothing is in it, and whoever waits for the cache has to learn that."""
    queue = RealFIFO()
    queue.replace([], "1")
    assert not queue.has_synced
    queue.processed(queue.pop_batch_nowait(10))
    assert queue.has_synced


@pytest.mark.client_go(34, "RealFIFO Replace (non atomic)")
def test_a_pending_delete_is_told_before_the_list_that_has_the_object_again():
    """Deleted and made again: both are heard."""
    line = Line(record("a"))
    line.queue.delete(record("a", 2))
    line.queue.replace([record("a", 3, uid="another")], "3")
    assert line.drained() == ["Deleted a 2", "Added a 3"]


@pytest.mark.client_go(35)
def test_something_only_queued_is_not_forgotten_by_a_list():
    """Added, never stored, gone from the list: added, then deleted with its last known state."""
    line = Line()
    line.queue.add(record("a"))
    line.queue.replace([], "2")
    assert line.drained() == ["Added a 1", "Deleted a 1 tombstone"]


@pytest.mark.client_go(35)
def test_a_real_delete_gets_no_tombstone_behind_it():
    """It is gone already, with its final state; the list only confirms it."""
    line = Line()
    line.queue.add(record("a"))
    line.queue.delete(record("a", 2))
    line.queue.replace([], "3")
    assert line.drained() == ["Added a 1", "Deleted a 2"]


@pytest.mark.client_go(35)
def test_something_made_again_is_deleted_again_by_a_list():
    """Added, deleted, added, gone from the list: the tombstone has the newest of them."""
    line = Line()
    line.queue.add(record("a"))
    line.queue.delete(record("a", 2))
    line.queue.add(record("a", 3))
    line.queue.replace([], "4")
    assert line.drained() == ["Added a 1", "Deleted a 2", "Added a 3", "Deleted a 3 tombstone"]


@pytest.mark.client_go(45, "RealFIFO Replace (non atomic)", "RealFIFO AtomicEvents")
def test_a_list_deletes_what_it_lacks_and_then_brings_what_it_has():
    """Pending changes first, then tombstones with the newest state that is known, then the list."""
    line = Line(record("a", 1), record("b", 2), record("c", 3))
    line.queue.update(record("c", 30))
    line.queue.add(record("d", 31))
    line.queue.replace([record("a", 32)], "32")
    assert line.drained() == [
        "Modified c 30",
        "Added d 31",
        "Deleted b 2 tombstone",
        "Deleted c 30 tombstone",
        "Deleted d 31 tombstone",
        "Modified a 32",
    ]
    assert line.versions == {"a": "32"}
    assert line.store.last_store_sync_resource_version == "32"


@pytest.mark.client_go(36)
def test_a_bookmark_is_told_to_nobody():
    """It is queued, because the store keeps its version; no listener hears of it."""
    line = Line(record("a"))
    line.queue.bookmark("9")
    assert line.drained() == []
    assert line.store.last_store_sync_resource_version == "9"


@pytest.mark.client_go(61, 63, "RealFIFO AtomicEvents")
def test_bookmarks_and_resyncs_keep_their_place():
    """One entry each, behind what is queued already and before the list that comes later."""
    queue = RealFIFO()
    queue.add(record("a"))
    queue.bookmark("5")
    queue.resync()
    queue.replace([record("a", 6)], "6")
    entries = drained(queue)
    assert kinds(entries) == [(DeltaType.ADDED, "demo/a"), Bookmark, SyncAll, Replacement]
    assert entries[1].resource_version == "5"
    assert [r.key for r in entries[3].records] == ["demo/a"]


@pytest.mark.client_go(42)
def test_a_resync_does_not_bring_back_what_is_about_to_be_deleted():
    """The delete is applied first; then there is nothing to replay."""
    line = Line(record("a"))
    line.queue.delete(record("a", 2))
    line.queue.resync()
    assert line.drained() == ["Deleted a 2"]


@pytest.mark.client_go(43)
def test_a_resync_replays_what_is_stored():
    """Each object once, as it is."""
    line = Line(record("a", 1), record("b", 2))
    line.queue.resync()
    assert line.drained() == ["Resync a 1", "Resync b 2"]


@pytest.mark.client_go(47)
def test_a_resync_never_tells_an_older_state_than_what_is_pending():
    """The update is applied first, and the replay is of the updated object."""
    line = Line(record("a", 1))
    line.queue.update(record("a", 2))
    line.queue.resync()
    assert line.drained() == ["Modified a 2", "Resync a 2"]


@pytest.mark.client_go(52)
def test_everything_that_is_popped_has_a_key():
    """A change and a tombstone without an object."""
    queue = RealFIFO()
    queue.add(record("a"))
    queue.extend([Delta(DeltaType.DELETED, "demo/gone", None, final_state_unknown=True)])
    assert [key_of_entry(entry) for entry in drained(queue)] == ["demo/a", "demo/gone"]
    assert key_of_entry(record("a")) == "demo/a"


@pytest.mark.client_go(53, "RealFIFO batch pop")
def test_what_waits_comes_in_one_batch():
    """In order, also where a key comes twice: whoever applies a batch applies it in order."""
    queue = RealFIFO()
    for name in ("a", "b", "c"):
        queue.add(record(name))
    assert [entry.key for entry in queue.pop_batch_nowait(10)] == ["demo/a", "demo/b", "demo/c"]
    line = Line()
    line.queue.add(record("a"))
    line.queue.update(record("a", 2))
    line.queue.delete(record("a", 3))
    batch = line.queue.pop_batch_nowait(10)
    assert words(line.apply(batch)) == ["Added a 1", "Modified a 2", "Deleted a 3"]


@pytest.mark.client_go(54, "RealFIFO batch pop")
def test_a_batch_never_mixes_the_first_list_with_what_comes_after():
    """The first list stands alone, and says that it is the first."""
    queue = RealFIFO()
    queue.replace([record("a"), record("b")], "1")
    queue.update(record("a", 2))
    queue.update(record("b", 3))
    first, second = queue.pop_batch_nowait(10), queue.pop_batch_nowait(10)
    assert (len(first.records), first.initial) == (2, True)
    assert [(e.key, e.initial) for e in second] == [("demo/a", False), ("demo/b", False)]
    assert queue.pop_batch_nowait(10) == []


@pytest.mark.client_go(56, "RealFIFO batch pop")
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(("listed", "changed"), [(4, 0), (0, 7), (4, 7)])
def test_a_batch_is_never_larger_than_asked_for(size, listed, changed):
    """Whoever applies batches can bound how long that takes; a list is one entry of a batch of its own."""
    queue = RealFIFO()
    if listed:
        queue.replace([record(f"p{number}") for number in range(listed)], "1")
    for number in range(changed):
        queue.update(record(f"p{number}", 2))
    batches = []
    while batch := queue.pop_batch_nowait(size):
        batches.append(batch)
    assert max(len(entries(batch)) for batch in batches) <= size
    assert [len(b.records) for b in batches if isinstance(b, Replacement)] == [listed] * bool(listed)
    changes = [entry.key for batch in batches if isinstance(batch, list) for entry in batch]
    assert changes == [f"demo/p{number}" for number in range(changed)]
    assert all(isinstance(batch, list | Replacement) for batch in batches)


def test_only_the_first_replacement_is_initial():
    """A relist is not a first list, whatever came between (client-go 171)."""
    queue = RealFIFO()
    queue.replace([], "1")
    queue.replace([], "2")
    assert [entry.initial for entry in drained(queue)] == [True, False]


@pytest.mark.client_go(48, "RealFIFO HasSynced")
def test_it_has_synced_when_the_first_list_is_processed(monkeypatch):
    """Popped is not applied: the one that is listed and the two that are missing are in the store first."""
    monkeypatch.setattr(Applier, "slice_size", 1)
    line = Line(record("a"), record("b"), record("c"))
    opened = []
    line.queue.synced.on_open(lambda: opened.append(True))
    line.queue.replace([record("a", 2)], "2")
    batch = line.queue.pop_batch_nowait(10)
    told = line.apply(batch)
    assert words(told) == ["Deleted b 1 tombstone", "Deleted c 1 tombstone", "Modified a 2"]
    assert not line.queue.has_synced
    assert opened == []
    line.queue.processed(batch)
    assert line.queue.has_synced
    assert opened == [True]


@pytest.mark.client_go("RealFIFO HasSynced")
def test_what_was_queued_behind_the_first_list_is_not_waited_for():
    """Synced means: what there was at the start is in the store."""
    queue = RealFIFO()
    queue.replace([record("a")], "1")
    queue.add(record("b"))
    queue.processed(queue.pop_batch_nowait(10))
    assert queue.has_synced
    assert len(queue) == 1


@pytest.mark.client_go(50)
def test_an_object_that_is_listed_twice_is_applied_twice_before_it_has_synced():
    """Both occurrences are in the one entry of the list, in their order."""
    line = Line()
    line.queue.replace([record("a"), record("b"), record("a", 2)], "2")
    batch = line.queue.pop_batch_nowait(10)
    assert words(line.apply(batch)) == ["Added a 1", "Added b 1", "Modified a 2"]
    assert not line.queue.has_synced
    line.queue.processed(batch)
    assert line.queue.has_synced


@pytest.mark.client_go("RealFIFO HasSynced")
def test_single_changes_first_mean_that_there_is_no_first_list():
    """A queue that is filled by hand has synced at once, and no list after that takes it back."""
    queue = RealFIFO()
    queue.bookmark("1")
    queue.extend([])
    assert not queue.has_synced
    queue.add(record("a"))
    assert queue.has_synced
    queue.replace([record("a", 2)], "2")
    assert queue.has_synced


@pytest.mark.client_go(51)
def test_closing_releases_everybody_who_waits():
    """Nobody hangs on a queue that will never be filled."""

    async def scenario():
        queue = RealFIFO()
        waiting = [asyncio.create_task(queue.pop()) for _ in range(3)]
        await asyncio.sleep(0)
        queue.close()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, QueueClosed) for result in results)
        assert queue.is_closed

    asyncio.run(scenario())


def test_what_is_left_is_handed_out_after_closing():
    """Closing loses nothing."""

    async def scenario():
        queue = RealFIFO()
        queue.add(record("a"))
        queue.close()
        assert (await queue.pop()).key == "demo/a"
        with pytest.raises(QueueClosed):
            await queue.pop()

    asyncio.run(scenario())


def test_whoever_waits_gets_what_comes():
    """A change wakes the one who waits for it."""

    async def scenario():
        queue = RealFIFO()
        waiting = asyncio.create_task(queue.pop_batch(10))
        await asyncio.sleep(0)
        queue.add(record("a"))
        queue.add(record("b"))
        assert [entry.key for entry in await waiting] == ["demo/a", "demo/b"]

    asyncio.run(scenario())


@pytest.mark.client_go(33)
@given(
    st.lists(
        st.sampled_from(["add", "update", "delete", "replace", "bookmark", "resync", "pop"]), max_size=40
    ),
    st.integers(1, 5),
)
def test_what_goes_in_comes_out_in_order(steps, limit):
    """Whatever is mixed, every entry comes out once and in arrival order."""
    queue, expected, popped = RealFIFO(), [], []
    for number, step in enumerate(steps):
        match step:
            case "add" | "update" | "delete":
                getattr(queue, step)(record(f"p{number}"))
                expected.append(f"demo/p{number}")
            case "replace" | "bookmark":
                queue.replace([], str(number)) if step == "replace" else queue.bookmark(str(number))
                expected.append(str(number))
            case "resync":
                queue.resync()
                expected.append("resync")
            case _:
                popped += entries(queue.pop_batch_nowait(limit))
    popped += drained(queue, limit)
    names = [getattr(e, "key", None) or getattr(e, "resource_version", "resync") for e in popped]
    assert names == expected
    assert len(queue) == 0
