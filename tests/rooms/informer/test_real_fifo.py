"""The in-order queue: nothing is merged, nothing overtakes, a replacement is one entry."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.informer import QueueClosed, RealFIFO
from declctl.informer.queues import Bookmark, Replacement, SyncAll
from declctl.objects import Delta, DeltaType
from tests.rooms.informer.shapes import record


def drained(queue, limit=100):
    entries = []
    while batch := queue.pop_batch_nowait(limit):
        entries += batch
        queue.processed(batch)
    return entries


def kinds(entries):
    return [(e.type, e.key) if isinstance(e, Delta) else type(e) for e in entries]


def test_every_change_is_handed_out_in_its_order():
    """Add, update and delete of one object are three entries, not one (client-go 33, 37, 44)."""
    queue = RealFIFO()
    queue.add(record("a"))
    queue.update(record("a", 2))
    queue.delete(record("a", 3))
    assert kinds(drained(queue)) == [
        (DeltaType.ADDED, "demo/a"),
        (DeltaType.UPDATED, "demo/a"),
        (DeltaType.DELETED, "demo/a"),
    ]


def test_nothing_jumps_the_line():
    """An object that changes again waits behind the others (client-go 49)."""
    queue = RealFIFO()
    for name in ("a", "b", "c"):
        queue.add(record(name))
    queue.pop_nowait()
    queue.update(record("a", 2))
    assert [entry.key for entry in drained(queue)] == ["demo/b", "demo/c", "demo/a"]


def test_a_delete_of_something_unknown_is_queued():
    """The queue does not judge what the store knows (client-go 39, 40)."""
    queue = RealFIFO()
    queue.delete(record("ghost"))
    assert kinds(drained(queue)) == [(DeltaType.DELETED, "demo/ghost")]


def test_a_replacement_is_one_entry_behind_what_is_pending():
    """A delete that waits is not forgotten by a list that comes in (client-go 34, 58, 59, 62)."""
    queue = RealFIFO()
    queue.delete(record("a"))
    queue.replace([record("a", 2)], "7")
    entries = drained(queue)
    assert kinds(entries) == [(DeltaType.DELETED, "demo/a"), Replacement]
    assert entries[1].resource_version == "7"


def test_a_batch_never_mixes_the_first_list_with_what_comes_after():
    """A replacement stands alone in its batch (client-go 54, 56)."""
    queue = RealFIFO()
    queue.replace([record("a")], "1")
    queue.update(record("a", 2))
    queue.update(record("a", 3))
    assert [len(queue.pop_batch_nowait(10)) for _ in range(3)] == [1, 2, 0]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_batch_is_never_larger_than_asked_for(size):
    """Whoever applies batches can bound how long that takes (client-go 56)."""
    queue = RealFIFO()
    for number in range(7):
        queue.add(record(f"p{number}"))
    sizes = []
    while batch := queue.pop_batch_nowait(size):
        sizes.append(len(batch))
    assert sum(sizes) == 7
    assert max(sizes) == size


def test_bookmarks_and_resyncs_keep_their_place():
    """A resync comes after what is queued already (client-go 61, 63)."""
    queue = RealFIFO()
    queue.add(record("a"))
    queue.bookmark("5")
    queue.resync()
    assert kinds(drained(queue)) == [(DeltaType.ADDED, "demo/a"), Bookmark, SyncAll]


def test_only_the_first_replacement_is_initial():
    """A relist is not a first list, whatever came between (client-go 171)."""
    queue = RealFIFO()
    queue.replace([], "1")
    queue.replace([], "2")
    assert [entry.initial for entry in drained(queue)] == [True, False]


def test_it_has_synced_when_the_first_list_is_processed():
    """Popped is not applied: only `processed` counts (client-go 48, 50)."""
    queue = RealFIFO()
    assert not queue.has_synced
    queue.replace([], "1")
    assert not queue.has_synced
    batch = queue.pop_batch_nowait(10)
    assert not queue.has_synced
    queue.processed(batch)
    assert queue.has_synced


def test_single_changes_first_mean_that_there_is_no_first_list():
    """A queue that is filled by hand has synced at once (client-go 27-30)."""
    queue = RealFIFO()
    queue.add(record("a"))
    assert queue.has_synced


def test_closing_releases_everybody_who_waits():
    """Nobody hangs on a queue that will never be filled (client-go 51)."""

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


@given(
    st.lists(
        st.sampled_from(["add", "update", "delete", "replace", "bookmark", "resync", "pop"]), max_size=40
    ),
    st.integers(1, 5),
)
def test_what_goes_in_comes_out_in_order(steps, limit):
    """Whatever is mixed, every entry comes out once and in arrival order (client-go 33)."""
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
                popped += queue.pop_batch_nowait(limit)
    popped += drained(queue, limit)
    names = [getattr(e, "key", None) or getattr(e, "resource_version", "resync") for e in popped]
    assert names == expected
    assert len(queue) == 0
