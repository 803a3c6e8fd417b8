"""A queue whose failed keys come back later and later."""

import asyncio

import pytest

from declctl.kit import ManualClock
from declctl.objects import Cause
from declctl.workqueue import ItemExponentialFailureRateLimiter, Priority, RateLimitingQueue


def make(clock):
    """A queue that waits 1, 2, 4 … 60 seconds."""
    return RateLimitingQueue(clock=clock, limiter=ItemExponentialFailureRateLimiter(1, 60))


@pytest.mark.client_go(253, "Rate limiting")
def test_each_failure_waits_longer_and_forgetting_starts_over():
    """The limiter's next delay is used for each item (client-go 253)."""
    queue = make(ManualClock())
    assert [queue.add_rate_limited(item) for item in "aab"] == [1, 2, 1]
    assert queue.num_requeues("a") == 2
    assert (len(queue), queue.delayed) == (0, 2)
    queue.forget("a")
    assert (queue.num_requeues("a"), queue.add_rate_limited("a")) == (0, 1)
    assert queue.statistics().retries_total == 4
    assert RateLimitingQueue(clock=ManualClock()).add_rate_limited("a") == 0.005  # as client-go's


async def test_delays_pass_while_somebody_runs_it():
    """What failed comes back, and a drain ends what runs."""
    clock = ManualClock()
    queue = make(clock)
    task = asyncio.ensure_future(queue.run())
    queue.add_rate_limited("a")
    queue.add_after("b", 3)
    await clock.advance(1)
    assert queue.get_nowait() == "a"
    await clock.advance(2)
    assert await queue.get() == "b"
    queue.add("c")
    assert len(queue) == 1
    for item in ("a", "b", queue.get_nowait()):
        queue.done(item)
    await queue.shut_down_with_drain()
    await task


@pytest.mark.client_go("Rate limiting")
async def test_a_retry_keeps_priority_and_causes():
    """The log of the second attempt says what the first was for; a change meanwhile adds its own cause."""
    first, second = Cause("Added", "pods", "a", "Initial"), Cause("Modified", "pods", "a", "Watch")
    clock = ManualClock()
    queue = make(clock)
    running = asyncio.create_task(queue.run())
    queue.add("a", priority=Priority.BACKGROUND, cause=first)
    assert queue.get_nowait() == "a"
    queue.add_rate_limited("a")
    queue.done("a")
    await clock.advance(1)
    queue.add("b")
    assert [queue.get_nowait(), queue.get_nowait()] == ["b", "a"]
    assert queue.causes_of("a") == (first,)
    queue.add_rate_limited("a")
    queue.done("a")
    queue.add("a", cause=second)
    assert queue.get_nowait() == "a"
    assert queue.causes_of("a") == (first, second)
    queue.shut_down()
    await running


def test_a_retry_that_comes_after_a_change_has_its_causes():
    """As in client-go the item comes twice; a change during the failing call takes nothing away."""
    first, second = Cause("Added", "pods", "a", "Initial"), Cause("Modified", "pods", "a", "Watch")
    clock = ManualClock()
    queue = make(clock)
    queue.add("a", cause=first)
    assert queue.get_nowait() == "a"
    queue.add("a", cause=second)
    queue.add_rate_limited("a")
    queue.done("a")
    assert queue.get_nowait() == "a"
    assert set(queue.causes_of("a")) == {first, second}
    queue.done("a")
    clock.set(1)
    assert queue.get_nowait() == "a"
    assert queue.causes_of("a") == (first,)
