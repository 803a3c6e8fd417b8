"""When a handler counts as unhealthy: failed calls in a row, over some seconds."""

import threading

import pytest

from declctl.errors import NotSynced
from declctl.manifest.model import OnFailure, QueueSpec, RetrySpec
from declctl.runtime.handling.binding import STREAK_CALLS, STREAK_SECONDS, FailureStreak
from declctl.runtime.reporting.reporter import failing_handlers
from declctl.testing import until

EVERY_SECOND = RetrySpec(initial_backoff=1.0, max_backoff=1.0)


class Handler:
    """Raises what it is told to raise."""

    def __init__(self) -> None:
        self.raises: BaseException | None = ValueError("no")

    def declctl_event(self, change) -> None:
        if self.raises is not None:
            raise self.raises


@pytest.fixture(name="handler")
def _handler() -> Handler:
    return Handler()


@pytest.fixture(name="slot")
def _slot(bench, handler):
    return bench.slot(handler.declctl_event, retry=EVERY_SECOND, on_failure=OnFailure.RETRY)


def test_it_takes_failed_calls_and_time(bench, slot, added, clock) -> None:
    """Neither five failures at once nor four over a minute are the state of a handler."""
    slot.add_all([added(name) for name in "abcde"])
    bench.work()
    assert slot.invocations.lasting_streak() is None
    clock.set(STREAK_SECONDS)
    streak = slot.invocations.lasting_streak()
    assert (streak.calls, streak.error, streak.generation) == (5, "default/e: ValueError: no", 1)
    few = bench.slot(Handler().declctl_event, retry=RetrySpec(max_attempts=1))
    few.add_all([added(str(number)) for number in range(STREAK_CALLS - 1)])
    bench.work()
    clock.set(60.0)
    assert few.invocations.lasting_streak() is None


def test_one_success_ends_it(bench, slot, handler, added, clock) -> None:
    """Of another object, too: the handler works."""
    slot.add_all([added(name) for name in "abcde"])
    bench.work()
    clock.set(STREAK_SECONDS)
    assert slot.invocations.lasting_streak() is not None
    item = slot.queue.take()
    handler.raises = None
    slot.work(item)
    assert slot.invocations.lasting_streak() is None


def test_waits_neither_count_nor_end_it(bench, slot, handler, added, clock) -> None:
    """A call that has read an unsynced cache says nothing of the handler."""
    slot.add_all([added(name) for name in "abcd"])
    bench.work()
    handler.raises = NotSynced("nodes")
    clock.set(1.0)
    bench.work()
    clock.set(STREAK_SECONDS)
    assert slot.invocations.lasting_streak() is None
    handler.raises = ValueError("no")
    item = slot.queue.take()
    slot.work(item)
    assert slot.invocations.lasting_streak().calls == 5


def test_calls_that_hang_count_at_their_timeout(bench, added, clock) -> None:
    """A handler whose calls never return is as unhealthy as one whose calls raise."""
    gate = threading.Event()
    policy = {"timeout": 0.02, "retry": RetrySpec(max_attempts=1), "queue": QueueSpec(concurrency=5)}
    slot = bench.slot(lambda: gate.wait(10), **policy)
    slot.add_all([added(name) for name in "abcde"])
    workers = [threading.Thread(target=slot.work, args=(slot.queue.take(),)) for _ in range(5)]
    for worker in workers:
        worker.start()
    until("they have timed out", lambda: slot.statistics().timeouts == 5)
    clock.set(STREAK_SECONDS)
    streak = slot.invocations.lasting_streak()
    gate.set()
    for worker in workers:
        worker.join(10)
    assert streak.calls == 5
    assert "TimeoutError: it ran longer than its timeout of 0.02 s" in streak.error
    assert slot.invocations.lasting_streak().calls == 5, "a call that returns late has been counted"


def test_many_handlers_are_named_in_part(clock) -> None:
    """Those that have failed for the longest time come first; the message stays one that can be read."""
    failing = {
        f"h{number}": FailureStreak(9, clock.now(), 10.0 - number, "default/a: ValueError: no", 3)
        for number in range(7)
    }
    told = failing_handlers(failing).split("; ")
    assert [each.partition(":")[0] for each in told] == ["h6", "h5", "h4", "h3", "h2", "and 2 more handlers"]
    assert told[0] == (
        "h6: the last 9 calls have failed, since 2026-01-01 00:00:00 UTC, the newest with generation 3 for "
        "default/a: ValueError: no"
    )
