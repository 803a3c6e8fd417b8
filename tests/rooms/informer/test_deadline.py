"""Deadlines on a clock: the end of waiting for somebody who says nothing."""

import asyncio

import pytest

from declctl.errors import WatchSilent
from declctl.informer.reflector.faults import Deadline


async def nothing_said(deadline):
    """A body that waits for somebody who says nothing."""
    async with deadline:
        await asyncio.Event().wait()


async def waiting(clock):
    """A deadline of 30 s, and a task that is under it."""
    deadline = Deadline(clock, idle=30, what="the watch")
    task = asyncio.create_task(nothing_said(deadline))
    await clock.settle()
    return deadline, task


async def test_an_overall_limit_holds_however_much_is_said(clock):
    """A list that never ends is given up, too."""

    async def body():
        async with Deadline(clock, idle=30, overall=50, what="the streaming list") as deadline:
            while True:
                await clock.sleep(10)
                deadline.touch()

    task = asyncio.create_task(body())
    await clock.advance(50)
    with pytest.raises(WatchSilent, match="the streaming list was not complete after 50 s"):
        await task


@pytest.mark.parametrize("says", [True, False])
async def test_a_deadline_that_is_seen_late_is_looked_at_once_more(clock, says):
    """The process was blocked or suspended: what has come meanwhile is read before it counts as silence."""
    deadline, task = await waiting(clock)
    clock.set(100)
    await clock.advance(0.01)
    assert not task.done()
    if says:
        deadline.touch()
    await clock.advance(5)
    assert task.done() is not says
    task.cancel()
    with pytest.raises(asyncio.CancelledError if says else WatchSilent):
        await task


@pytest.mark.parametrize("meanwhile", ["nothing", "the time is over", "it is interrupted"])
async def test_a_cancellation_from_elsewhere_stays_one(clock, meanwhile):
    """Stopping an informer is not mistaken for silence, also in the moment in which its watch is given up."""
    deadline, task = await waiting(clock)
    if meanwhile == "it is interrupted":
        deadline.interrupt(KeyError("mine"))
    task.cancel()
    if meanwhile == "the time is over":
        clock.set(30)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_nothing_is_left_behind_and_other_faults_pass_through(clock):
    """One watchdog for each deadline, gone with it; it does not hide why a body failed."""
    with pytest.raises(KeyError, match="mine"):
        async with Deadline(clock, idle=30, what="x"):
            await clock.settle()
            assert len(asyncio.all_tasks()) == 2
            raise KeyError("mine")
    await clock.settle()
    assert len(asyncio.all_tasks()) == 1


async def test_a_strike_ends_the_body_with_its_fault(clock):
    """Whoever knows better than the clock ends the waiting."""
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
