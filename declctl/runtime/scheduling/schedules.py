"""The schedules of the manifest: calls of functions at given times, one at a time for each schedule.

A schedule outlives generations, as a slot does: its times, its figures and its memo stay while its name is in
the manifest. What a generation gives it is a `ScheduleBinding`. A call that runs at a commit ends with the
code that it has begun with.

`def` runs in a thread of its own, `async def` on the handlers' loop. A call that raises is logged and
counted, and not repeated: the next time comes, as with a CronJob. Only a call that has read an unsynced cache
is made again.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from declctl.errors import NotSynced
from declctl.hooks.calls import (
    Implementation,
    call,
    call_async,
    cancelled_by_itself,
    place_of,
    readable_traceback,
)
from declctl.kit import Clock, LoopThread, set_within
from declctl.kit.timetable import zone_of
from declctl.manifest.model import ScheduleSpec
from declctl.runtime.handling.calls_under_way import CANCEL_SECONDS
from declctl.runtime.handling.context import Context, Memo, Snapshots, SnapshotSource
from declctl.runtime.handling.failure_log import FailureLog
from declctl.runtime.handling.failures import cause_of, describe_failure
from declctl.runtime.handling.invocations import LONGEST_WAIT_FOR_SYNC, WAIT_FOR_LIST
from declctl.runtime.handling.tap import TapOutcome
from declctl.runtime.log import Log
from declctl.runtime.recorder import EndedCall, Recorder, current_call
from declctl.runtime.scheduling.schedule_timer import ScheduleTimer, due_times
from declctl.runtime.threads import in_thread
from declctl.writes import CallScope

LONGEST_WAIT = 10.0  # seconds between two looks at the clock, which may be set at any moment
_SILENCE = 60.0  # seconds between two log lines about skipped times of one schedule, or about its wait
_LONGEST_TRACEBACK = 20_000  # characters
_UNREADABLE = "an exception that raises when it is read"
_LOOP_ENDED = "its loop has ended"


class ScheduledRun(msgspec.Struct, frozen=True):
    """One call of a schedule: the argument `schedule` of its function."""

    name: str  # of the schedule
    time: datetime  # for which it is called, in the time zone of the schedule; now, if it was triggered
    last_success: datetime | None = None  # `time` of the newest call of this process that succeeded
    triggered: bool = False  # by a request, and not by the clock


class RunOutcome(StrEnum):
    """The outcome of the last call of a schedule."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class TriggerResult(StrEnum):
    """The result of a request to call a schedule now."""

    BEGUN = "Begun"
    UNKNOWN = "Unknown"  # there is no schedule of this name
    BUSY = "Busy"  # its last call has not returned
    NOT_STARTED = "NotStarted"  # caches are being filled, or another process acts, or this one ends


class ScheduleBinding(msgspec.Struct, frozen=True):
    """What a generation gives a schedule: its spec, and the function to call."""

    generation: int
    spec: ScheduleSpec
    implementation: Implementation
    # Takes the memo of the schedule, the call and its snapshots.
    make_context: Callable[[Callable[[], Memo], CallScope, Snapshots | None], Context]
    loop: LoopThread  # for `async def`
    snapshots: SnapshotSource | None = None  # None for a schedule that includes none


class ScheduleStatistics(msgspec.Struct, frozen=True):
    """The figures of one schedule. Times are in UTC."""

    name: str
    generation: int  # whose code the next call uses
    next_run: datetime | None  # None in a pause, when another process acts
    last_run: datetime | None  # the time for which the last call was made
    last_outcome: RunOutcome | None  # of the last call that has ended
    last_success: datetime | None  # the time for which the last successful call was made
    last_seconds: float | None  # the duration of the last call that has ended
    succeeded: int  # calls
    failed: int  # calls
    skipped: int  # times at which nothing was called
    running: int  # calls that have not returned: 0 or 1
    zombies: int  # of these, calls that have exceeded their timeout
    last_error: str | None
    last_error_type: str | None


@dataclass(eq=False, slots=True)
class _Run:
    """One call that has begun, or is about to begin in another thread."""

    binding: ScheduleBinding
    scheduled: ScheduledRun
    began: float  # on the monotonic clock
    claim: threading.Lock = field(
        default_factory=threading.Lock
    )  # acquired once: by the begin, or by `revoke`
    overdue: bool = False  # it has exceeded its timeout, and has not returned
    task: asyncio.Task[None] | None = None
    work: asyncio.Future[None] | None = None  # the call itself, which `task` follows
    cancelled: str = _LOOP_ENDED  # why `work` was cancelled


@dataclass(eq=False, slots=True)
class _Schedule:
    """One schedule of the process. All fields are used on the machinery loop only."""

    binding: ScheduleBinding  # for the next call
    timer: ScheduleTimer
    failures: FailureLog
    memo: Memo = field(default_factory=Memo)
    run: _Run | None = None  # the call that has not returned
    removed: bool = False  # it is not in the manifest any more, and its last call has not returned
    waits: int = 0  # calls in a row that have read an unsynced cache
    wait_silent_until: float = float("-inf")  # monotonic time of the next line about such calls
    silent_until: float = float("-inf")  # monotonic time of the next line about skipped times
    logged_skipped: int = 0  # skipped times that the log has
    last_run: datetime | None = None
    last_outcome: RunOutcome | None = None
    last_success: datetime | None = None
    last_seconds: float | None = None
    succeeded: int = 0
    failed: int = 0
    last_error: str | None = None
    last_error_type: str | None = None


class Schedules:
    """All schedules of the process. Used on the machinery loop only.

    Nothing is called before `start`. Times that come before are missed times, with the policy of their
    schedule. `pause` and `resume` are for a process that does not act for a time: times in a pause belong to
    another process, and are forgotten.
    """

    def __init__(self, *, clock: Clock, log: Log, recorder: Recorder | None = None) -> None:
        self._clock = clock
        self._log = log
        self._recorder = recorder
        self._schedules: dict[str, _Schedule] = {}  # by name, in manifest order; removed ones are the last
        self._earlier_memos: dict[str, Memo] = {}  # of schedules that this process has not made yet
        self._started = False
        self._paused = False
        self._stopped = False
        self._woken = asyncio.Event()  # set when there is a new next time, or a call has returned
        self._returned = asyncio.Event()  # replaced at each end of a call, when it is set

    def begin_with(self, memos: Mapping[str, Mapping[str, Any]]) -> None:
        """Begin with the memos of the process before, by the name of a schedule."""
        self._earlier_memos = {name: Memo(memo) for name, memo in memos.items()}

    def memos(self) -> Mapping[str, Memo]:
        """The memos of the schedules of the manifest, by name."""
        return {name: each.memo for name, each in self._schedules.items() if not each.removed}

    @property
    def has_started(self) -> bool:
        """Whether functions are called."""
        return self._started

    def start(self) -> None:
        """Begin to call functions: caches can be read from now on. A second call has no effect."""
        self._started = True
        self._woken.set()

    def cache_synced(self) -> None:
        """Call at once what waits because of a read of an unsynced cache: a cache has synced."""
        for schedule in self._schedules.values():
            if schedule.waits:
                schedule.timer.hurry()
                self._woken.set()

    def pause(self) -> None:
        """Call nothing until `resume`. Running calls go on."""
        self._paused = True

    def resume(self) -> None:
        """End a pause: the next time of each schedule is the first one from now on."""
        if self._paused:
            self._paused = False
            for schedule in self._schedules.values():
                schedule.timer.restart()
            self._woken.set()

    def commit(self, bindings: Mapping[str, ScheduleBinding]) -> None:
        """Give the schedules their new bindings. Can't fail.

        A schedule with the same times keeps its phase and what it has missed. One that is removed calls
        nothing any more; its running call goes on.
        """
        before, self._schedules = self._schedules, {}
        for name, binding in bindings.items():
            schedule = before.pop(name, None)
            if schedule is None:
                self._schedules[name] = self._made(binding)
                continue
            self._rebind(schedule, binding)
            self._schedules[name] = schedule
        # A schedule of that name that comes back later must not run beside this call.
        for name, schedule in before.items():
            if schedule.run is not None:
                schedule.removed = True
                self._schedules[name] = schedule
        self._woken.set()

    async def run(self) -> None:
        """Call what is due, until cancelled."""
        while True:
            wait = min(self.look(), LONGEST_WAIT)
            await set_within(self._woken, wait, clock=self._clock, looks=True)
            self._woken.clear()

    def look(self) -> float:
        """Call what is due; returns the seconds until something is due."""
        wait = float("inf")
        if self._started and not self._paused and not self._stopped:
            for schedule in tuple(self._schedules.values()):
                if not schedule.removed:
                    self._look_at(schedule)
                    wait = min(wait, schedule.timer.wait(busy=schedule.run is not None))
        return max(wait, 0.0)

    def trigger(self, name: str) -> TriggerResult:
        """Call a schedule now, apart from its times."""
        schedule = self._schedules.get(name)
        if schedule is None or schedule.removed:
            return TriggerResult.UNKNOWN
        if not self._started or self._paused or self._stopped:
            return TriggerResult.NOT_STARTED
        if schedule.run is not None:
            return TriggerResult.BUSY
        self._begin(schedule, self._clock.now(), triggered=True)
        return TriggerResult.BEGUN

    def call_for(self, name: str, time: datetime) -> "asyncio.Task[None] | None":
        """Call a schedule as for one of its times, for a replay; returns the task of the call.

        None if there is no schedule of this name, or if its last call has not returned.
        """
        schedule = self._schedules.get(name)
        if schedule is None or schedule.removed or schedule.run is not None:
            return None
        self._begin(schedule, time, triggered=False)
        return schedule.run.task if schedule.run is not None else None

    async def stop(self, timeout: float) -> list[str]:
        """Call nothing any more, and wait for running calls for `timeout` seconds.

        Returns the calls that still run, as `schedule nightly`.
        """
        self._stopped = True
        await self.until_returned(timeout)
        return [f"schedule {run.scheduled.name}" for run in self._runs()]

    def cancel(self) -> int:
        """Call nothing any more, and cancel the asynchronous calls that run; returns how many calls run."""
        self._stopped = True
        self.cancel_running("this process leads no more")
        return len(self._runs())

    def cancel_running(self, why: str) -> None:
        """Cancel the asynchronous calls that run; others go on."""
        for run in self._runs():
            if run.work is not None and run.binding.implementation.is_async:
                run.cancelled = f"it was cancelled, because {why}"
                run.work.cancel()

    async def until_returned(self, timeout: float) -> None:
        """Wait for running calls for `timeout` seconds at most."""
        if tasks := [run.task for run in self._runs() if run.task is not None]:
            await asyncio.wait(tasks, timeout=timeout)

    def calls_of(self, generation: int) -> list[str]:
        """The running calls of a generation, as `call of nightly for 2026-01-01T02:00:00+00:00`."""
        return [
            f"call of {run.scheduled.name} for {run.scheduled.time.isoformat(timespec='seconds')}"
            for run in self._runs()
            if run.binding.generation == generation
        ]

    async def finished(self, generation: int) -> None:
        """Wait until the last call of a generation has returned."""
        while self.calls_of(generation):
            await self._returned.wait()

    def statistics(self) -> list[ScheduleStatistics]:
        """The figures of each schedule of the manifest, in its order."""
        return [
            _statistics(each, paused=self._paused) for each in self._schedules.values() if not each.removed
        ]

    def _runs(self) -> Sequence[_Run]:
        return [each.run for each in self._schedules.values() if each.run is not None]

    def _made(self, binding: ScheduleBinding) -> _Schedule:
        spec = binding.spec
        timer = ScheduleTimer(due_times(spec, self._clock), spec.missed_runs, self._clock)
        memo = self._earlier_memos.pop(spec.name, None) or Memo()
        return _Schedule(binding, timer, FailureLog(self._log, spec.name, clock=self._clock), memo=memo)

    def _rebind(self, schedule: _Schedule, binding: ScheduleBinding) -> None:
        before, spec = schedule.binding, binding.spec
        # A schedule that was removed and comes back has lost its times.
        if before.spec.times != spec.times or schedule.removed:
            schedule.timer.times = due_times(spec, self._clock)
        schedule.timer.policy = spec.missed_runs
        schedule.binding, schedule.removed = binding, False
        # Its loop is blocked by other code: a call that has not begun on it would never return.
        if schedule.run is not None and schedule.run.binding.loop is not binding.loop:
            self._revoke(schedule, schedule.run)

    def _look_at(self, schedule: _Schedule) -> None:
        time = schedule.timer.take(busy=schedule.run is not None)
        if schedule.timer.skipped > schedule.logged_skipped:
            self._log_skipped(schedule)
        if time is not None:
            self._begin(schedule, time, triggered=False)

    def _begin(self, schedule: _Schedule, time: datetime, *, triggered: bool) -> None:
        spec, last = schedule.binding.spec, schedule.last_success
        zone = zone_of(spec.time_zone)
        scheduled = ScheduledRun(
            spec.name, time.astimezone(zone), None if last is None else last.astimezone(zone), triggered
        )
        run = schedule.run = _Run(schedule.binding, scheduled, self._clock.monotonic())
        schedule.last_run = time
        run.task = asyncio.get_running_loop().create_task(
            self._follow(schedule, run), name=f"schedule {spec.name}"
        )

    async def _follow(self, schedule: _Schedule, run: _Run) -> None:
        """Make one call, and note its outcome."""
        recorder, recorded = self._recorder, 0
        if recorder is not None:
            time = run.scheduled.time.astimezone(UTC).isoformat()
            recorded = recorder.begins(run.scheduled.name, time, run.binding.generation)
            current_call.set(recorded)  # of this task, and of those that it begins
        work = run.work = asyncio.ensure_future(self._call(schedule, run))
        timeout = run.binding.spec.timeout
        # An asynchronous call is cancelled on its loop at its timeout, and may need a moment to end.
        grace = CANCEL_SECONDS if run.binding.implementation.is_async else 0.0
        done, _ = await asyncio.wait([work], timeout=None if timeout is None else timeout + grace)
        if not done:
            run.overdue = True
            self._failed(schedule, run, TimeoutError(_ran_longer_than(timeout)))
            # A call that its blocked loop has not begun ends here. Any other one still runs: nothing is
            # called beside it.
            self._revoke(schedule, run)
            await asyncio.wait([work])
        failure = RuntimeError(run.cancelled) if work.cancelled() else work.exception()
        if recorder is not None:
            recorder.ended(recorded, self._ended(run, failure))
        if schedule.run is not run:
            return  # revoked: another call may run by now
        if not run.overdue:
            unsynced = None if failure is None else cause_of(failure, NotSynced)
            if unsynced is not None:
                self._call_again(schedule, run, unsynced)
            elif failure is not None:
                self._failed(schedule, run, failure)
            else:
                self._succeeded(schedule, run)
        self._end(schedule)

    def _ended(self, run: _Run, failure: BaseException | None) -> EndedCall:
        """What a recording has of the end of a call."""
        seconds = self._clock.monotonic() - run.began
        if failure is None:
            return EndedCall(str(TapOutcome.SUCCEEDED), seconds=seconds)
        cause = failure if failure.__cause__ is None else failure.__cause__
        outcome = TapOutcome.WAITING if cause_of(failure, NotSynced) is not None else TapOutcome.FAILED
        return EndedCall(str(outcome), type(cause).__name__, describe_failure(failure), seconds=seconds)

    async def _call(self, schedule: _Schedule, run: _Run) -> None:
        binding = run.binding
        implementation, spec = binding.implementation, binding.spec
        arguments: dict[str, object] = {"schedule": run.scheduled}
        # If a cache can't be read now, this raises NotSynced: the call is made later.
        snapshots = None if binding.snapshots is None else binding.snapshots.take()
        if "ctx" in implementation.parameters:
            arguments["ctx"] = binding.make_context(lambda: schedule.memo, CallScope(), snapshots)
        if not implementation.is_async:
            what = f"schedule {spec.name}"
            run.claim.acquire()
            context = copy_context()  # the thread has the context of this task, as with `asyncio.to_thread`
            await in_thread(
                lambda: context.run(call, implementation, arguments),
                name=f"declctl-schedule-{spec.name}",
                what=what,
            )
            return
        if binding.loop.is_blocked:
            raise TimeoutError("it was not called: another `async def` blocks the loop that it runs on")

        async def bounded() -> None:
            if not run.claim.acquire(blocking=False):
                return  # revoked
            task = asyncio.current_task()
            assert task is not None
            task.set_name(f"schedule {spec.name}")
            try:
                async with asyncio.timeout(spec.timeout):
                    await call_async(implementation, arguments)
            except TimeoutError:  # of the timeout: those of user code are HandlerFailed
                raise TimeoutError(_ran_longer_than(spec.timeout)) from None
            except asyncio.CancelledError as error:
                # `cancel` of the schedules has set the text, and its call is not waited for.
                if binding.loop.is_stopping or run.cancelled != _LOOP_ENDED:
                    raise
                failure = cancelled_by_itself(implementation, error)
                raise failure from failure.__cause__

        await asyncio.wrap_future(binding.loop.submit(bounded()))

    def _revoke(self, schedule: _Schedule, run: _Run) -> None:
        """End a call that has not begun on its loop; no effect on any other call."""
        if run.claim.acquire(blocking=False):
            if not run.overdue:
                self._failed(schedule, run, TimeoutError("it was not called: its loop was blocked"))
            self._end(schedule)

    def _end(self, schedule: _Schedule) -> None:
        schedule.run = None
        if schedule.removed:
            del self._schedules[schedule.binding.spec.name]
        self._woken.set()
        self._returned.set()
        self._returned = asyncio.Event()

    def _succeeded(self, schedule: _Schedule, run: _Run) -> None:
        schedule.succeeded += 1
        schedule.waits = 0
        schedule.last_outcome = RunOutcome.SUCCEEDED
        schedule.last_success = run.scheduled.time.astimezone(UTC)
        schedule.last_seconds = self._clock.monotonic() - run.began

    def _failed(self, schedule: _Schedule, run: _Run, failure: BaseException) -> None:
        """Count and log a failure."""
        schedule.failed += 1
        schedule.waits = 0
        schedule.last_outcome = RunOutcome.FAILED
        schedule.last_seconds = self._clock.monotonic() - run.began
        what = describe_failure(failure)
        cause = failure if failure.__cause__ is None else failure.__cause__
        schedule.last_error, schedule.last_error_type = what, type(cause).__name__
        name = run.scheduled.name
        sentence = f"{name} failed for {_shown(run.scheduled.time)}: {what}"
        fields: dict[str, object] = {}
        try:
            place = place_of(cause)
            times = schedule.failures.count((run.binding.generation, type(cause).__qualname__, place))
            if times == 1:
                fields["traceback"] = readable_traceback(failure)[:_LONGEST_TRACEBACK]
            else:
                at = f"{place}, " if place else ""
                sentence += f" ({at}{times} times by now; the first has the traceback)"
        except BaseException:  # noqa: BLE001 - user code: an exception may raise where it is read
            fields["traceback"] = _UNREADABLE
        then = "" if schedule.removed else f"; the next time is {_shown(schedule.timer.times.next)}"
        self._log.error(
            f"{sentence}{then}",
            schedule=name,
            generation=run.binding.generation,
            error_type=schedule.last_error_type,
            **fields,
        )

    def _call_again(self, schedule: _Schedule, run: _Run, unsynced: NotSynced) -> None:
        """Make a call again later that has read an unsynced cache, unless the next time comes before."""
        schedule.waits += 1
        longest = WAIT_FOR_LIST if unsynced.is_relisted else LONGEST_WAIT_FOR_SYNC
        # The exponent is bounded, as a float has no 2 ** 1024.
        delay = min(2.0 ** min(schedule.waits - 1, 16), longest)
        what = describe_failure(unsynced)
        # Not a failure; the status says what the schedule waits for.
        schedule.last_error, schedule.last_error_type = what, type(unsynced).__name__
        now = self._clock.monotonic()
        if now >= schedule.wait_silent_until:
            schedule.wait_silent_until = now + _SILENCE
            self._log.warning(
                f"{run.scheduled.name} waits: {what}; it is called again until the cache can be read, or its "
                "next time comes",
                schedule=run.scheduled.name,
                generation=run.binding.generation,
            )
        schedule.timer.hold(run.scheduled.time.astimezone(UTC), delay)

    def _log_skipped(self, schedule: _Schedule) -> None:
        now = self._clock.monotonic()
        if now < schedule.silent_until:
            return
        schedule.silent_until = now + _SILENCE
        number = schedule.timer.skipped - schedule.logged_skipped
        schedule.logged_skipped = schedule.timer.skipped
        name, run = schedule.binding.spec.name, schedule.run
        times = "1 time was" if number == 1 else f"{number:,} times were"
        why = "nothing could be called then"
        if run is not None:
            why = f"the call for {_shown(run.scheduled.time)} has not returned"
        self._log.warning(f"{name}: {times} skipped: {why}", schedule=name, skipped=schedule.timer.skipped)


def _statistics(schedule: _Schedule, *, paused: bool) -> ScheduleStatistics:
    run = schedule.run
    return ScheduleStatistics(
        name=schedule.binding.spec.name,
        generation=schedule.binding.generation,
        next_run=None if paused else schedule.timer.times.next,
        last_run=schedule.last_run,
        last_outcome=schedule.last_outcome,
        last_success=schedule.last_success,
        last_seconds=schedule.last_seconds,
        succeeded=schedule.succeeded,
        failed=schedule.failed,
        skipped=schedule.timer.skipped,
        running=int(run is not None),
        zombies=int(run is not None and run.overdue),
        last_error=schedule.last_error,
        last_error_type=schedule.last_error_type,
    )


def _ran_longer_than(timeout: float | None) -> str:
    return f"it ran longer than its timeout of {timeout:g} s"


def _shown(time: datetime) -> str:
    return time.isoformat(timespec="seconds")
