"""Deadlines on a clock: the end of waiting for somebody who says nothing."""

import asyncio

import pytest

from declctl.errors import WatchSilent
from declctl.informer.reflector.faults import Deadline
from declctl.kit import ManualClock


async def nothing_said(deadline):
    """A body that waits for somebody who says nothing."""
    async with deadline:
        await asyncio.Event().wait()


def test_silence_ends_the_body():
    """A connection that says nothing is given up, with words that say how long it was silent."""

    async def scenario():
        clock = ManualClock()

        task = asyncio.create_task(nothing_said(Deadline(clock, idle=30, what="the watch")))
        await clock.advance(29)
        assert not task.done()
        await clock.advance(1)
        with pytest.raises(WatchSilent, match="the watch said nothing, not even a bookmark, for 30 s"):
            await task

    asyncio.run(scenario())


def test_whoever_is_heard_goes_on():
    """Every sign of life starts the silence anew."""

    async def scenario():
        clock = ManualClock()
        async with Deadline(clock, idle=30, what="x") as deadline:
            for _ in range(5):
                await clock.advance(29)
                deadline.touch()
        return clock.monotonic()

    assert asyncio.run(scenario()) == 1000 + 5 * 29


def test_an_overall_limit_holds_however_much_is_said():
    """A list that never ends is given up, too."""

    async def scenario():
        clock = ManualClock()

        async def body():
            async with Deadline(clock, idle=30, overall=50, what="the streaming list") as deadline:
                while True:
                    await clock.sleep(10)
                    deadline.touch()

        task = asyncio.create_task(body())
        await clock.advance(50)
        with pytest.raises(WatchSilent, match="the streaming list was not complete after 50 s"):
            await task

    asyncio.run(scenario())


def test_a_cancellation_from_elsewhere_stays_one():
    """Stopping an informer is not mistaken for silence."""

    async def scenario():
        clock = ManualClock()

        task = asyncio.create_task(nothing_said(Deadline(clock, idle=30, what="x")))
        await clock.settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())


def test_both_at_once_is_a_cancellation():
    """Who stops an informer in the moment in which its watch is given up has stopped it."""

    async def scenario():
        clock = ManualClock()

        task = asyncio.create_task(nothing_said(Deadline(clock, idle=30, what="x")))
        await clock.settle()
        task.cancel()
        clock.set(30)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())


def test_nothing_is_left_behind():
    """One watchdog for each deadline, gone with it."""

    async def scenario():
        clock = ManualClock()
        async with Deadline(clock, idle=30, what="x"):
            await clock.settle()
            assert len(asyncio.all_tasks()) == 2
        await clock.settle()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


def test_other_faults_pass_through():
    """The deadline does not hide why a body failed."""

    async def scenario():
        async with Deadline(ManualClock(), idle=30, what="x"):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(scenario())


def test_a_strike_ends_the_body_with_its_fault():
    """Whoever knows better than the clock ends the waiting."""

    async def scenario():
        clock = ManualClock()
        deadline = Deadline(clock, idle=30, what="x")

        deadline.interrupt(KeyError("too early"))
        task = asyncio.create_task(nothing_said(deadline))
        await clock.settle()
        deadline.interrupt(KeyError("mine"))
        deadline.interrupt(KeyError("later"))
        with pytest.raises(KeyError, match="mine"):
            await task
        deadline.interrupt(KeyError("too late"))
        await clock.settle()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


def test_a_strike_does_not_hide_a_cancellation():
    """Who is stopped is stopped."""

    async def scenario():
        clock = ManualClock()
        deadline = Deadline(clock, idle=30, what="x")

        task = asyncio.create_task(nothing_said(deadline))
        await clock.settle()
        deadline.interrupt(KeyError("mine"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
