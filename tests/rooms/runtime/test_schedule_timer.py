"""When a schedule is due: missed times, jumps of the clock, and that no time is taken twice or lost."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declctl.kit.timetable import CronTimes
from declctl.manifest.model import MissedRuns
from declctl.runtime.scheduling.schedule_timer import (
    CORRECTION,
    CronDueTimes,
    IntervalDueTimes,
    ScheduleTimer,
)

BEGIN = datetime(2026, 3, 28, 0, 0, 30, tzinfo=UTC)
HOUR, DAY = 3600.0, 86_400.0


class TwoClocks:
    """A wall clock that may be set, and a monotonic clock that stands still while the machine sleeps."""

    def __init__(self) -> None:
        self.wall, self.seconds = BEGIN, 0.0

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.seconds

    def random(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a timer never waits")

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall += timedelta(seconds=seconds)

    def step(self, seconds: float) -> None:
        """Set the wall clock, or wake up after a sleep."""
        self.wall += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> TwoClocks:
    return TwoClocks()


def cron(
    line: str, clock: TwoClocks, policy: MissedRuns = MissedRuns.RUN_ONCE, zone: str = "UTC"
) -> ScheduleTimer:
    return ScheduleTimer(CronDueTimes(CronTimes(line, zone), clock), policy, clock)


def interval(every: float, clock: TwoClocks, policy: MissedRuns = MissedRuns.RUN_ONCE) -> ScheduleTimer:
    return ScheduleTimer(IntervalDueTimes(every, clock), policy, clock)


def test_a_time_comes_when_it_is_due_and_once(clock):
    """Neither before nor twice, also where NTP sets the clock back over 02:00."""
    timer = cron("0 2 * * *", clock)
    clock.advance(2 * HOUR - 31)
    assert timer.take(busy=False) is None
    assert timer.wait(busy=False) == 1
    clock.advance(1)
    assert timer.take(busy=False) == datetime(2026, 3, 28, 2, tzinfo=UTC)
    assert timer.take(busy=False) is None
    assert timer.wait(busy=False) == DAY
    clock.step(-HOUR)
    for _ in range(120):
        clock.advance(60)
        assert timer.take(busy=False) is None


@pytest.mark.parametrize(
    ("policy", "taken", "skipped"),
    [(MissedRuns.RUN_ONCE, datetime(2026, 4, 3, 2, tzinfo=UTC), 6), (MissedRuns.SKIP, None, 7)],
)
def test_after_a_sleep_the_newest_missed_time_is_made_up_for_once(clock, policy, taken, skipped):
    """A laptop that slept for a week makes one report, and says how many it has not made; or none."""
    timer = cron("0 2 * * *", clock, policy)
    clock.step(7 * DAY)
    assert timer.take(busy=False) == taken
    assert timer.skipped == skipped
    assert timer.take(busy=False) is None
    assert timer.times.next == datetime(2026, 4, 4, 2, tzinfo=UTC)


def test_with_skip_a_time_in_a_running_call_is_skipped_and_one_that_is_a_little_late_is_not(clock):
    """As `concurrencyPolicy: Forbid`. A busy process delays a call; that is no reason to leave it out."""
    timer = cron("0 2 * * *", clock, MissedRuns.SKIP)
    clock.advance(2 * HOUR + 20)
    assert timer.take(busy=False) is not None
    assert timer.skipped == 0
    timer = interval(10, clock, MissedRuns.SKIP)
    clock.advance(10)
    assert timer.take(busy=False) is not None
    clock.advance(10)
    assert timer.take(busy=True) is None
    clock.advance(3)
    assert timer.take(busy=False) is None
    assert timer.skipped == 1


def test_a_jump_over_years_is_no_work(clock):
    """A clock that was at its epoch and is set right: the newest time, without millions of others."""
    timer = cron("* * * * *", clock)
    clock.step(50 * 365 * DAY)
    taken = timer.take(busy=False)
    assert taken == clock.now().replace(second=0)
    assert timer.skipped >= 1500
    assert timer.times.next == taken + timedelta(minutes=1)


def test_an_interval_keeps_its_phase_and_ignores_the_wall_clock(clock):
    """Calls are ten minutes apart, whatever NTP does, and late looks do not add up."""
    timer = interval(600, clock)
    clock.step(-DAY)
    clock.advance(600)
    assert timer.take(busy=False) == clock.now()
    clock.step(DAY)
    clock.advance(607)
    assert timer.take(busy=False) == clock.now() - timedelta(seconds=7)
    assert timer.wait(busy=False) == 593


def test_while_a_call_runs_the_newest_time_waits_for_its_end(clock):
    """RunOnce: one call for all that was due meanwhile."""
    timer = interval(10, clock)
    clock.advance(10)
    assert timer.take(busy=False) is not None
    for _ in range(3):
        clock.advance(10)
        assert timer.take(busy=True) is None
    assert timer.wait(busy=True) == 10  # nothing to do before: no loop that turns for nothing
    assert timer.take(busy=False) == clock.now()
    assert timer.skipped == 2
    assert timer.take(busy=False) is None


def test_a_time_that_is_given_back_is_due_again_later(clock):
    """A call that has read an unsynced cache."""
    timer = interval(10, clock)
    clock.advance(10)
    timer.hold(time := timer.take(busy=False), 4)
    assert timer.take(busy=False) is None
    assert timer.wait(busy=False) == 4
    clock.advance(4)
    assert timer.take(busy=False) == time
    timer.hold(time, 60)
    clock.advance(6)  # the next time takes its place, and waits as long
    assert timer.take(busy=False) is None
    assert timer.skipped == 1


def test_after_a_pause_nothing_is_made_up_for(clock):
    """Another process has acted meanwhile."""
    timer = cron("0 * * * *", clock)
    clock.advance(5 * HOUR)
    timer.restart()
    assert timer.take(busy=False) is None
    assert (timer.skipped, timer.times.next) == (0, datetime(2026, 3, 28, 6, tzinfo=UTC))


LINES = ["0 2 * * *", "30 2 * * *", "*/15 * * * *", "0 0 * * *", "5,35 1-3 * * *"]
steps = st.tuples(
    st.sampled_from([1.0, 30.0, 600.0, 3599.0, 2 * HOUR, DAY]),  # time that passes
    st.sampled_from([0.0, 0.0, 0.0, -1.0, -3000.0, 5000.0, 3 * DAY]),  # by which the wall clock is set
    st.booleans(),  # a call runs
)


@settings(max_examples=80, deadline=None)
@given(
    line=st.sampled_from(LINES),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    policy=st.sampled_from(list(MissedRuns)),
    each=st.lists(steps, max_size=40),
)
def test_no_time_is_taken_twice_and_each_is_taken_or_counted(line, zone, policy, each):
    """Whatever the clock does, in small steps back and any steps forwards, over changes of the clock."""
    clock = TwoClocks()
    timer = cron(line, clock, policy, zone)
    newest, taken = clock.now(), []
    for passes, step, busy in each:
        clock.advance(passes)
        if clock.now() + timedelta(seconds=step) > newest - CORRECTION:
            clock.step(step)
        newest = max(newest, clock.now())
        time = timer.take(busy=busy)
        if time is not None:
            assert not busy
            assert time <= newest
            taken.append(time)
    # What a call has kept waiting is due at its end.
    if (time := timer.take(busy=False)) is not None:
        taken.append(time)
    assert taken == sorted(set(taken))
    expected = list(CronTimes(line, zone).between(BEGIN, newest))
    assert set(taken) <= set(expected)
    if len(expected) < 1000:
        assert len(taken) + timer.skipped == len(expected)


@settings(max_examples=100, deadline=None)
@given(
    line=st.sampled_from(LINES),
    policy=st.sampled_from(list(MissedRuns)),
    each=st.lists(st.tuples(st.floats(1, DAY), st.floats(-30 * DAY, 30 * DAY)), max_size=10),
)
def test_no_setting_of_the_clock_silences_a_schedule(line, policy, each):
    """However the clock was set before: within three hours and one period, the schedule is due again."""
    clock = TwoClocks()
    timer = cron(line, clock, policy)
    for passes, step in each:
        clock.advance(passes)
        clock.step(step)
        timer.take(busy=False)
    for _ in range(int((DAY + CORRECTION.total_seconds()) / 30) + 1):
        clock.advance(30)
        if timer.take(busy=False) is not None:
            break
    else:
        raise AssertionError(f"silent until {clock.now()}: next is {timer.times.next}")


@settings(max_examples=100, deadline=None)
@given(
    every=st.floats(1, 5000),
    policy=st.sampled_from(list(MissedRuns)),
    each=st.lists(st.tuples(st.floats(0.5, 20_000), st.booleans()), max_size=40),
)
def test_an_interval_takes_or_counts_each_of_its_times(every, policy, each):
    """The number of times is that of the intervals that have passed."""
    clock = TwoClocks()
    timer = interval(every, clock, policy)
    taken = 0
    for passes, busy in each:
        clock.advance(passes)
        taken += timer.take(busy=busy) is not None
    taken += timer.take(busy=False) is not None
    assert abs(taken + timer.skipped - clock.seconds / every) <= 1.001
