"""Keys that come later, on a clock that the test moves."""

import asyncio
import contextlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.kit import ManualClock
from declctl.objects import Cause
from declctl.workqueue import Priority, QueueShutDown, WorkQueue


@pytest.fixture(name="clock")
def _clock():
    return ManualClock()


@pytest.fixture(name="queue")
def _queue(clock):
    return WorkQueue(clock=clock)


@contextlib.asynccontextmanager
async def running(delaying, clock):
    task = asyncio.ensure_future(delaying.run())
    await clock.settle()
    yield task
    delaying.shut_down()
    await task


@pytest.mark.client_go(251, "Delaying")
async def test_an_earlier_item_wakes_who_sleeps_for_a_later_one(queue, clock):
    """Delays are served in the order of their moments, not of their calls (client-go 251)."""
    async with running(queue, clock):
        queue.add_after("late", 1)
        await clock.settle()
        queue.add_after("early", 0.5)
        await clock.advance(0.5)
        assert queue.get_nowait() == "early"
        await clock.advance(0.5)
        assert queue.get_nowait() == "late"


@pytest.mark.client_go(252, "Delaying")
async def test_no_delay_is_now_and_after_shutdown_nothing_comes(queue, clock):
    """Zero or less needs nobody who waits; what is not due at the shutdown is dropped (client-go 252)."""
    queue.add_after("a", 0)
    queue.add_after("b", -1)
    assert len(queue) == 2
    async with running(queue, clock):
        queue.add_after("late", 1)
        await clock.settle()
    queue.add_after("c", 0)
    queue.add_after("d", 1)
    await clock.advance(2)
    assert (len(queue), queue.delayed) == (2, 0)


@pytest.mark.client_go(307)
async def test_delays_may_come_from_another_thread_and_before_anybody_waits(queue, clock):
    """A worker that waits needs nobody to run the queue beside it."""
    queue.add_after("a", 1)
    await clock.advance(2)
    assert await queue.get() == "a"
    waiting = asyncio.ensure_future(queue.get())
    await clock.settle()
    await asyncio.to_thread(queue.add_after, "b", 1)
    await clock.advance(1)
    assert await waiting == "b"


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 20)), max_size=30))
@pytest.mark.client_go(249, 250, 251, 298, "Delaying")
def test_items_are_due_in_the_order_of_their_earliest_moments(calls):
    """In any order of calls, each item comes once, at the earliest of its moments (client-go 251)."""
    clock = ManualClock()
    queue = WorkQueue(clock=clock)
    for item, seconds in calls:
        queue.add_after(item, seconds)
    earliest = {item: min(s for i, s in calls if i == item) for item, _ in calls}
    assert queue.next_due() == (min(earliest.values()) if earliest else None)
    seen = {}
    for moment in range(21):
        while len(queue):
            item = queue.get_nowait()
            assert item not in seen
            seen[item] = moment
            queue.done(item)
        clock.set(1)
    assert seen == earliest
    assert queue.delayed == 0


@pytest.mark.client_go(301)
async def test_all_workers_that_wait_end_with_the_queue(queue, clock):
    """However many wait, before items that are due later, and while items are handed out."""
    async with running(queue, clock):
        queue.add_after("late", 60)
        workers = [asyncio.ensure_future(queue.get()) for _ in range(5)]
        await clock.settle()
        queue.add("a")
        queue.shut_down()
        found = await asyncio.gather(*workers, return_exceptions=True)
        assert sorted(map(repr, found)) == ["'a'", *["QueueShutDown()"] * 4]
        with pytest.raises(QueueShutDown):
            await queue.get()


FIRST, SECOND = Cause("Modified", "pods", "a", "Watch"), Cause("Requeue", "pods", "a", "Requested")


def test_an_add_does_not_take_the_causes_of_a_delayed_one(queue, clock):
    """As in client-go the item comes twice: each time with what has led to it."""
    queue.add_after("a", 10, cause=SECOND)
    queue.add("a", cause=FIRST)
    assert queue.get_nowait() == "a"
    assert queue.causes_of("a") == (FIRST,)
    queue.done("a")
    clock.set(10)
    assert queue.get_nowait() == "a"
    assert queue.causes_of("a") == (SECOND,)


def test_the_delay_of_an_item_can_be_ended_and_cancelled(queue, clock):
    """It comes at once, with its priority and its causes, or not at all; in no case it comes later."""
    queue.add_after("a", 10, cause=FIRST, priority=Priority.BACKGROUND)
    queue.add_after("a", 20, cause=SECOND, priority=Priority.BACKGROUND)
    queue.add_after("b", 10)
    assert (queue.end_delay("a"), queue.end_delay("a"), queue.end_delay("c")) == (True, False, False)
    assert (queue.cancel_delay("b"), queue.cancel_delay("b")) == (True, False)
    assert (queue.get_nowait(), queue.causes_of("a")) == ("a", (FIRST, SECOND))
    assert queue.priority_of("a") is Priority.BACKGROUND
    queue.done("a")
    clock.set(20)
    assert (len(queue), queue.delayed, queue.next_due()) == (0, 0, None)


def test_a_delay_that_is_no_number_is_refused(queue, clock):
    """An item that is never due would keep all others waiting."""
    with pytest.raises(ValueError, match="nan"):
        queue.add_after("a", float("nan"), cause=FIRST)
    queue.add_after("a", 1)
    clock.set(1)
    assert (queue.get_nowait(), queue.causes_of("a")) == ("a", ())


def test_delays_that_are_removed_take_no_memory(queue, clock):
    """A key that is asked for again in an hour, and changes a thousand times until then."""
    queue.add_after("early", 60)
    tracemalloc.start()
    for _ in range(5000):
        queue.add_after("late", 3600)
        queue.cancel_delay("late")
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 50_000
    assert queue.next_due() == 60
    clock.set(60)
    assert (queue.get_nowait(), queue.delayed) == ("early", 0)
