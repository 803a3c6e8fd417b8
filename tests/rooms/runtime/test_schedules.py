"""Calls of schedules: one at a time, where user code may run, through reloads and to the end."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any

import pytest

from declctl.errors import NotSynced
from declctl.kit import LoopThread, ManualClock
from declctl.manifest.model import MissedRuns, ScheduleSpec
from declctl.manifest.values import EntryPoint
from declctl.runtime.handling.context import Context
from declctl.runtime.scheduling.schedules import (
    RunOutcome,
    ScheduleBinding,
    ScheduledRun,
    Schedules,
    ScheduleStatistics,
    TriggerResult,
)
from declctl.testing import Logged
from tests.rooms.runtime.conftest import environment, implementation

_LONGEST = 5.0  # seconds that a test waits for a thread


class Desk:
    """Schedules on the loop of a test, which looks by hand."""

    def __init__(self, log: Logged, loop: LoopThread) -> None:
        self.clock, self.log, self.loop = ManualClock(), log, loop
        self.schedules = Schedules(clock=self.clock, log=log)
        self.generation = 0

    def commit(
        self, *given: tuple[Callable[..., Any], dict[str, Any]], loop: LoopThread | None = None
    ) -> None:
        """One generation with these functions, each with fields of its schedule."""
        self.generation += 1
        bindings = [self._binding(function, policy, loop or self.loop) for function, policy in given]
        self.schedules.commit({each.spec.name: each for each in bindings})

    def _binding(
        self, function: Callable[..., Any], policy: dict[str, Any], loop: LoopThread
    ) -> ScheduleBinding:
        spec = ScheduleSpec(**{"name": "job", "entry_point": EntryPoint("h", "job"), "every": 60.0} | policy)
        made = implementation(function, hook="the schedule", plugin="h:job")
        context = partial(Context, environment(self.log, handler=spec.name, generation=self.generation))
        return ScheduleBinding(self.generation, spec, made, context, loop)

    def after(self, seconds: float) -> float:
        """Let time pass, and look."""
        self.clock.set(seconds)
        return self.schedules.look()

    def of(self, name: str = "job") -> ScheduleStatistics:
        return next(each for each in self.schedules.statistics() if each.name == name)

    async def until(self, condition: Callable[[ScheduleStatistics], bool], name: str = "job") -> None:
        """Wait until the figures of a schedule are so. User code runs in other threads."""
        async with asyncio.timeout(_LONGEST):
            while not condition(self.of(name)):
                await asyncio.sleep(0.001)

    async def ended(self, name: str = "job") -> None:
        await self.until(lambda each: not each.running, name)

    async def call(self, function: Callable[..., Any], **policy: Any) -> None:
        """A generation whose function is called once, a minute later."""
        self.commit((function, policy))
        self.after(60)
        await self.ended()


@pytest.fixture
def loop():
    made = LoopThread("test-handlers").start()
    yield made
    made.stop()


@pytest.fixture
def go() -> threading.Event:
    """What a call waits for."""
    return threading.Event()


@pytest.fixture
def desk(log: Logged, loop: LoopThread) -> Desk:
    desk = Desk(log, loop)
    desk.schedules.start()
    return desk


async def test_a_function_is_called_with_its_time_and_its_context(desk):
    """It gets any of both arguments, in a thread of its own; what it remembers is there the next time."""
    calls: list[tuple[ScheduledRun, Any, str]] = []

    def job(ctx: Any, schedule: ScheduledRun) -> None:
        ctx.memo["calls"] = ctx.memo.get("calls", 0) + 1
        calls.append((schedule, ctx.memo["calls"], threading.current_thread().name))

    desk.commit((job, {"cron": "30 1 * * *", "every": None, "time_zone": "Europe/Berlin"}))
    desk.after(1800)
    await desk.ended()
    desk.after(86_400)
    await desk.ended()
    (first, _, thread), (second, times, _) = calls
    assert first.time.isoformat() == "2026-01-01T01:30:00+01:00"
    assert (first.name, first.last_success, first.triggered) == ("job", None, False)
    assert second.last_success == first.time
    assert second.last_success.isoformat() == first.time.isoformat()
    assert (times, thread) == (2, "declctl-schedule-job")
    figures = desk.of()
    assert (figures.succeeded, figures.failed, figures.skipped) == (2, 0, 0)
    assert figures.last_outcome is RunOutcome.SUCCEEDED
    assert figures.next_run.isoformat() == "2026-01-03T00:30:00+00:00"


async def test_nothing_is_called_before_the_start(log, loop):
    """Caches are being filled. What was due meanwhile is called once then."""
    desk = Desk(log, loop)
    desk.commit((lambda: None, {}), (lambda: None, {"name": "strict", "missed_runs": MissedRuns.SKIP}))
    assert desk.after(200) == inf  # nothing is due
    assert not desk.of().running
    desk.schedules.start()
    desk.schedules.look()
    await desk.ended()
    assert (desk.of().succeeded, desk.of().skipped) == (1, 2)


async def test_a_call_that_runs_keeps_the_next_one_away(desk, go, log):
    """With Skip, a time in a call is skipped and counted; each line has those since the last line."""
    desk.commit((lambda: go.wait(_LONGEST), {"missed_runs": MissedRuns.SKIP}))
    for _ in range(20):
        desk.after(60)
    assert (desk.of().running, desk.of().skipped) == (1, 19)
    go.set()
    await desk.ended()
    desk.schedules.look()
    assert desk.of().succeeded == 1
    desk.after(60)
    await desk.ended()
    assert desk.of().succeeded == 2
    lines = [line for line in log.events("warning") if "skipped" in line]
    assert lines[0] == "job: 1 time was skipped: the call for 2026-01-01T00:01:00+00:00 has not returned"
    counts = [int(line.split()[1]) for line in lines]
    assert len(counts) > 1
    assert sum(counts) <= 19


async def test_a_failure_is_logged_once_in_full_and_not_repeated(desk, log):
    """As with a CronJob, the next time comes; the log says when."""

    def job() -> None:
        raise KeyError("team")

    desk.commit((job, {}))
    for _ in range(2):
        desk.after(60)
        await desk.ended()
        assert desk.schedules.look() > 0
    figures = desk.of()
    assert (figures.failed, figures.last_outcome) == (2, RunOutcome.FAILED)
    assert (figures.last_error, figures.last_error_type) == ("KeyError: 'team'", "KeyError")
    first, second = (line for line in log.lines if line.level == "error")
    assert first.event == (
        "job failed for 2026-01-01T00:01:00+00:00: KeyError: 'team'; the next time is "
        "2026-01-01T00:02:00+00:00"
    )
    assert "Traceback" in first.fields["traceback"]
    assert "traceback" not in second.fields
    assert "2 times by now" in second.event


async def test_what_waits_for_a_cache_is_called_when_it_has_synced(desk, log):
    """However long the back-off has become; meanwhile status and log say what it waits for."""
    calls: list[float] = []
    synced: list[bool] = []

    def job() -> None:
        calls.append(desk.clock.monotonic())
        if not synced:
            raise NotSynced("pods has not synced (403)")

    desk.commit((job, {"every": 3600.0}))
    desk.after(3600)
    await desk.ended()
    while len(calls) < 8:
        desk.after(desk.schedules.look())
        await desk.ended()
    assert [after - before for before, after in pairwise(calls)] == [1, 2, 4, 8, 16, 30, 30]
    figures = desk.of()
    assert (figures.last_error, figures.last_error_type) == (
        "NotSynced: pods has not synced (403)",
        "NotSynced",
    )
    synced.append(True)
    desk.schedules.cache_synced()
    assert desk.schedules.look() == 0 or desk.of().running
    await desk.ended()
    assert calls[-1] == calls[-2] == desk.clock.monotonic()
    figures = desk.of()
    assert (figures.succeeded, figures.failed, figures.skipped) == (1, 0, 0)
    assert figures.last_run.isoformat() == "2026-01-01T01:00:00+00:00"
    # One line a minute.
    assert len([line for line in log.events("warning") if "waits: NotSynced: pods has" in line]) == 2


async def test_a_call_whose_snapshots_wait_for_a_list_is_made_soon(desk):
    """The list is complete within moments: the call does not back off as for a cache that can't sync."""
    calls: list[float] = []

    def job() -> None:
        calls.append(desk.clock.monotonic())
        if len(calls) < 9:
            raise NotSynced("pods: a new list is being put into its cache", is_relisted=True)

    await desk.call(job)
    while len(calls) < 9:
        desk.after(desk.schedules.look())
        await desk.ended()
    assert calls[-1] - calls[0] == pytest.approx(0.8)
    assert desk.of().succeeded == 1


@pytest.mark.parametrize(
    ("cancels_itself", "error"),
    [
        (False, "TimeoutError: it ran longer than its timeout of 0.01 s"),
        (True, "CancelledError: code that it calls has cancelled its task"),
    ],
)
async def test_an_async_call_that_is_cancelled_has_failed(desk, log, cancels_itself, error):
    """It runs on the handlers' loop, where its sessions and locks are, and is cancelled at its timeout.

    Status and log say what has happened; of a call that cancels itself, the log has the line.
    """
    threads: list[str] = []

    async def job() -> None:
        threads.append(threading.current_thread().name)
        if cancels_itself:
            asyncio.current_task().cancel()
        await asyncio.sleep(60)

    await desk.call(job, timeout=60.0 if cancels_itself else 0.01)
    figures = desk.of()
    assert (figures.failed, figures.running, figures.zombies) == (1, 0, 0)
    assert (figures.last_error, figures.last_error_type) == (error, error.partition(":")[0])
    assert ("await asyncio.sleep(60)" in log.find("job failed for").fields["traceback"]) == cancels_itself
    assert threads == ["test-handlers"]


async def test_a_def_that_exceeds_its_timeout_fails_at_once_and_is_waited_for(desk, go):
    """A thread can't be stopped, and nothing is called beside it."""
    desk.commit((lambda: go.wait(_LONGEST), {"timeout": 0.01}))
    desk.after(60)
    await desk.until(lambda each: each.failed == 1)
    assert (desk.of().running, desk.of().zombies) == (1, 1)
    desk.after(60)
    assert desk.of().failed == 1
    go.set()
    await desk.ended()
    figures = desk.of()
    assert (figures.failed, figures.succeeded) == (1, 0)


async def test_on_a_blocked_loop_nothing_waits_for_ever(desk, go, loop):
    """Other code blocks the loop: the call fails, and an edit gives the schedule another loop."""

    async def job() -> None:
        """Do nothing."""

    loop.loop.call_soon_threadsafe(go.wait, _LONGEST)
    desk.commit((job, {}))
    desk.after(60)
    await asyncio.sleep(0)
    assert desk.of().running == 1  # it is not known yet that the loop is blocked
    other = LoopThread("test-handlers-2").start()
    desk.commit((job, {}), loop=other)
    assert (desk.of().running, desk.of().failed) == (0, 1)
    desk.after(60)
    await desk.until(lambda each: each.succeeded == 1)
    for _ in range(6):
        loop.look()
    desk.commit((job, {}))
    desk.after(60)
    await desk.until(lambda each: each.failed == 2)
    assert "another `async def` blocks the loop" in (desk.of().last_error or "")
    go.set()
    other.stop()


async def test_an_unchanged_schedule_keeps_its_phase(desk):
    """Edits every few seconds do not keep an interval from its end; only other times begin anew."""
    desk.commit((lambda: None, {}))
    assert desk.after(50) == 10
    desk.commit((lambda: None, {"timeout": 5.0}))
    assert desk.schedules.look() == 10
    desk.commit((lambda: None, {"every": 20.0}))
    assert desk.after(15) == 5


async def test_a_running_call_ends_with_the_old_code(desk, go):
    """The next call has the new code; the old generation is held until its call has returned."""
    calls = list[str]()

    def old() -> None:
        go.wait(_LONGEST)
        calls.append("old")

    desk.commit((old, {}))
    desk.after(60)
    desk.commit((lambda: calls.append("new"), {}))
    assert desk.schedules.calls_of(1) == ["call of job for 2026-01-01T00:01:00+00:00"]
    assert desk.schedules.calls_of(2) == []
    waits = asyncio.ensure_future(desk.schedules.finished(1))
    await asyncio.sleep(0)
    assert not waits.done()
    go.set()
    await asyncio.wait_for(waits, _LONGEST)
    desk.after(60)
    await desk.ended()
    assert calls == ["old", "new"]


async def test_a_schedule_that_is_removed_and_comes_back_never_runs_twice_at_a_time(desk, go):
    """Its last call goes on beside the edits."""
    desk.commit((lambda: go.wait(_LONGEST), {}))
    desk.after(60)
    desk.commit()
    assert desk.schedules.statistics() == []
    desk.after(60)
    assert desk.schedules.trigger("job") is TriggerResult.UNKNOWN
    desk.commit((lambda: None, {"missed_runs": MissedRuns.SKIP}))
    desk.after(60)
    assert desk.of().skipped == 1
    go.set()
    await desk.ended()
    desk.after(60)
    await desk.until(lambda each: each.succeeded == 2)
    desk.commit()
    desk.commit((lambda: None, {}))
    assert desk.of().succeeded == 0  # a new one under the old name


async def test_in_a_pause_nothing_is_called_or_made_up_for(desk):
    """Another process leads, and calls."""
    desk.commit((lambda: None, {"cron": "0 * * * *", "every": None}))
    desk.schedules.pause()
    desk.after(3 * 3600)
    assert (desk.of().running, desk.of().next_run) == (0, None)
    assert desk.schedules.trigger("job") is TriggerResult.NOT_STARTED
    desk.schedules.resume()
    desk.schedules.look()
    assert (desk.of().running, desk.of().skipped) == (0, 0)
    assert desk.of().next_run.isoformat() == "2026-01-01T04:00:00+00:00"


async def test_a_schedule_is_called_on_request(desk, go):
    """Its own times stay as they are."""
    seen = list[ScheduledRun]()

    def job(schedule: ScheduledRun) -> None:
        seen.append(schedule)
        go.wait(_LONGEST)

    desk.commit((job, {}))
    desk.after(10)
    assert desk.schedules.trigger("job") is TriggerResult.BEGUN
    assert desk.schedules.trigger("job") is TriggerResult.BUSY
    assert desk.schedules.trigger("other") is TriggerResult.UNKNOWN
    go.set()
    await desk.ended()
    assert desk.of().next_run.isoformat() == "2026-01-01T00:01:00+00:00"
    assert [each.triggered for each in seen] == [True]


async def test_the_end_waits_for_running_calls_and_names_those_that_stay(desk, go):
    """And begins no other."""
    desk.commit((lambda: go.wait(_LONGEST), {}), (lambda: None, {"name": "quick"}))
    desk.after(60)
    await desk.ended("quick")
    assert await desk.schedules.stop(0.01) == ["schedule job"]
    desk.after(60)
    assert desk.schedules.trigger("quick") is TriggerResult.NOT_STARTED
    go.set()
    assert await desk.schedules.stop(_LONGEST) == []
    assert desk.of("quick").succeeded == 1


async def test_the_clock_is_looked_at_often_enough(desk):
    """It may be set, or the machine may have slept: `run` wakes every ten seconds, and at an edit."""
    running = asyncio.ensure_future(desk.schedules.run())
    await desk.clock.settle()
    assert desk.clock.next_wake == 10
    desk.commit((lambda: None, {"every": 3.0}))
    await desk.clock.advance(1)
    assert desk.clock.next_wake == 2
    await desk.clock.advance(2)
    await desk.until(lambda each: each.succeeded == 1)
    running.cancel()
