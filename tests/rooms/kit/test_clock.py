"""Clocks: tests decide how late it is."""

import asyncio
from datetime import UTC, datetime, timedelta

from declctl.kit import ManualClock, SystemClock


def test_sleepers_wake_in_the_order_of_their_moments():
    """A test that moves the clock sees timers fire as they would in real life."""

    async def scene() -> None:
        clock, woken = ManualClock(), []

        async def sleeper(seconds: float) -> None:
            await clock.sleep(seconds)
            woken.append((seconds, clock.monotonic() - start))

        start = clock.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for seconds in (3.0, 1.0, 2.0, 9.0):
                tasks.create_task(sleeper(seconds))
            await clock.advance(2.5)
            assert woken == [(1.0, 1.0), (2.0, 2.0)]
            assert clock.next_wake == 0.5
            assert clock.monotonic() - start == 2.5
            await clock.advance(10.0)
        assert [seconds for seconds, _ in woken] == [1.0, 2.0, 3.0, 9.0]
        assert clock.next_wake is None

    asyncio.run(scene())


def test_who_sleeps_again_within_one_advance_is_woken_again():
    """A ticker that sleeps one second at a time ticks five times in five seconds."""

    async def scene() -> None:
        clock, ticks = ManualClock(), []

        async def ticker() -> None:
            while True:
                await clock.sleep(1.0)
                ticks.append(clock.monotonic())

        task = asyncio.create_task(ticker())
        await clock.advance(5.0)
        task.cancel()
        assert ticks == [1001.0, 1002.0, 1003.0, 1004.0, 1005.0]

    asyncio.run(scene())


def test_cancelled_sleeper_is_forgotten():
    """A timer that was given up neither wakes anybody nor counts as the next one."""

    async def scene() -> None:
        clock = ManualClock()
        task = asyncio.create_task(clock.sleep(1.0))
        await clock.settle()
        task.cancel()
        await clock.settle()
        assert clock.next_wake is None
        await clock.advance(2.0)
        assert task.cancelled()

    asyncio.run(scene())


def test_sleeping_for_no_time_only_yields():
    """Zero seconds do not wait for the clock to move."""

    async def scene() -> None:
        clock = ManualClock()
        await asyncio.wait_for(clock.sleep(0.0), 1.0)
        await asyncio.wait_for(SystemClock().sleep(-1.0), 1.0)

    asyncio.run(scene())


def test_manual_dates_are_aware_and_move_with_the_clock():
    """What people read is in UTC, and a test knows it beforehand."""
    clock = ManualClock(jitter=0.25)
    assert clock.now() == datetime(2026, 1, 1, tzinfo=UTC)
    clock.set(90.0)
    assert clock.now() - datetime(2026, 1, 1, tzinfo=UTC) == timedelta(seconds=90)
    assert clock.random() == 0.25


def test_system_clock_tells_aware_dates_and_never_goes_back():
    """Deadlines are kept on a clock that only grows."""
    clock = SystemClock()
    before = clock.monotonic()
    assert clock.monotonic() >= before
    assert clock.now().utcoffset() == timedelta(0)
    assert 0.0 <= clock.random() < 1.0
