"""When the function of a schedule is due: next times, missed times, and jumps of the clock. Pure.

A timer looks at its clock when it is asked. No time of a schedule is taken twice, and every time is taken or
counted as skipped.
"""

from datetime import datetime, timedelta
from itertools import islice
from typing import Protocol

import msgspec

from declctl.kit import Clock
from declctl.kit.timetable import CronTimes
from declctl.manifest.model import MissedRuns, ScheduleSpec

LATE_SECONDS = 60.0  # a time is missed if it is older; until then it is only late
CORRECTION = timedelta(hours=3)  # as in cron(8): a clock that is set back further was wrong before
_MOST_COUNTED = 1500  # due times of a cron line that are counted: those of a day with one each minute
_WINDOWS = tuple(timedelta(days=days) for days in (1, 31, 366))


class DueTime(msgspec.Struct, frozen=True):
    """The newest due time that was not taken yet."""

    time: datetime  # in UTC
    late: float  # seconds since then
    older: int  # due times before it; at least as many, if there are more than 1,500


class DueTimes(Protocol):
    """The times of a schedule, taken one after the other."""

    @property
    def next(self) -> datetime:
        """The next time that was not taken, in UTC."""
        ...

    def take(self) -> DueTime | None:
        """Take all due times; None if there is none."""
        ...

    def wait(self) -> float:
        """The seconds until the next time; zero or less if it is due."""
        ...

    def restart(self) -> None:
        """Forget the due times: those after this moment come next."""
        ...


class CronDueTimes:
    """The times of a cron line, by the wall clock, which may be set back or forwards at any moment."""

    def __init__(self, times: CronTimes, clock: Clock) -> None:
        self._times = times
        self._clock = clock
        self._newest = clock.now()  # the newest time that the wall clock has shown
        self._next = times.after(self._newest)

    @property
    def next(self) -> datetime:
        """The next time."""
        return self._next

    def take(self) -> DueTime | None:
        """Take all due times. After a small step back of the clock, no time comes a second time."""
        now = self._clock.now()
        # The next time may lie years ahead: without this the schedule would be silent until then.
        if now < self._newest - CORRECTION:
            self.restart()
            return None
        self._newest = max(self._newest, now)
        if now < self._next:
            return None
        # After a jump over years, the newest time is found without looking at all of them.
        counted = [self._next, *islice(self._times.between(self._next, now), _MOST_COUNTED)]
        newest = counted[-1]
        if len(counted) > _MOST_COUNTED:
            newest = next(filter(None, (self._last_within(window, now) for window in _WINDOWS)), newest)
        self._next = self._times.after(now)
        return DueTime(newest, (now - newest).total_seconds(), len(counted) - 1)

    def wait(self) -> float:
        """The seconds until the next time, if the clock is not set meanwhile."""
        return (self._next - self._clock.now()).total_seconds()

    def restart(self) -> None:
        """Begin anew at the present time of the wall clock."""
        self._newest = self._clock.now()
        self._next = self._times.after(self._newest)

    def _last_within(self, window: timedelta, now: datetime) -> datetime | None:
        last = None
        for last in self._times.between(now - window, now):  # noqa: B007 - the last one is wanted
            pass
        return last


class IntervalDueTimes:
    """The times of an interval, by the monotonic clock: changes of the wall clock do not move them."""

    def __init__(self, every: float, clock: Clock) -> None:
        self._every = every  # seconds
        self._clock = clock
        self._next = clock.monotonic() + every

    @property
    def next(self) -> datetime:
        """The next time on the wall clock."""
        return self._clock.now() + timedelta(seconds=self.wait())

    def take(self) -> DueTime | None:
        """Take all due times. The next one keeps the phase."""
        late = -self.wait()
        if late < 0:
            return None
        older = int(late // self._every)
        late -= older * self._every
        self._next += (older + 1) * self._every
        return DueTime(self._clock.now() - timedelta(seconds=late), late, older)

    def wait(self) -> float:
        """The seconds until the next time."""
        return self._next - self._clock.monotonic()

    def restart(self) -> None:
        """The next time is one interval from now."""
        self._next = self._clock.monotonic() + self._every


def due_times(spec: ScheduleSpec, clock: Clock) -> DueTimes:
    """The times of a schedule, from now on."""
    if spec.every is not None:
        return IntervalDueTimes(spec.every, clock)
    assert spec.cron is not None
    return CronDueTimes(CronTimes(spec.cron, spec.time_zone), clock)


class ScheduleTimer:
    """Decides when a schedule is due: its times, and the policy for times that are missed.

    Due times, times that were taken, and `skipped` are the same number, apart from one that waits (`held`).
    """

    def __init__(self, times: DueTimes, policy: MissedRuns, clock: Clock) -> None:
        self.times = times
        self.policy = policy
        self.skipped = 0  # times at which nothing was called
        self._clock = clock
        self._held: datetime | None = None  # a due time that waits until the function can be called
        self._not_before = float("-inf")  # on the monotonic clock: the held time waits until then

    def take(self, *, busy: bool) -> datetime | None:
        """The time for which the function is to be called now, in UTC; None if there is none.

        `busy`: it can't be called now, because the call before has not returned. RunOnce then holds the
        newest time, and Skip counts it as skipped.
        """
        due = self.times.take()
        if due is not None:
            self.skipped += due.older + (self._held is not None)
            self._held = due.time
            if self.policy is MissedRuns.SKIP and (busy or due.late > LATE_SECONDS):
                self.skip_held()
        if busy or self._held is None or self._clock.monotonic() < self._not_before:
            return None
        time, self._held = self._held, None
        return time

    def hold(self, time: datetime, delay: float) -> None:
        """Give a time back that was taken: it is due again in `delay` seconds, unless a newer one is."""
        self._not_before = self._clock.monotonic() + delay
        if self._held is None:
            self._held = time
        else:
            self.skipped += 1

    def hurry(self) -> None:
        """Let a time that was given back be due now."""
        self._not_before = float("-inf")

    def skip_held(self) -> None:
        """Count the held time as skipped, if there is one."""
        self.skipped += self._held is not None
        self._held = None

    def restart(self) -> None:
        """Begin anew, as after a pause: what was due in it is neither called nor counted."""
        self._held = None
        self.times.restart()

    def wait(self, *, busy: bool) -> float:
        """The seconds until `take` has something to do; zero or less if it has now."""
        waits = self.times.wait()
        if busy or self._held is None:  # a held time waits for the end of the call, which nobody can foresee
            return waits
        return min(waits, self._not_before - self._clock.monotonic())
