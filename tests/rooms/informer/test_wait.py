"""Waiting until caches and handlers have synced."""

import asyncio
import logging
from collections.abc import Mapping

import pytest

from declctl.errors import NotSynced
from declctl.informer import SyncResult, wait_for, wait_for_cache_sync
from declctl.kit import Latch, ManualClock


def latches(*names: str) -> dict[str, Latch]:
    return {name: Latch(name) for name in names}


async def begun(waiting: Mapping[str, Latch], clock: ManualClock, **more) -> asyncio.Task[SyncResult]:
    task = asyncio.create_task(wait_for(waiting, clock=clock, **more))
    await clock.settle()
    return task


@pytest.mark.client_go(203, "Waiting helpers")
async def test_it_returns_with_the_last_of_them(clock):
    """Three that sync after 0, 5 and 10 seconds: true after 10 seconds and not before."""
    waiting = latches("first", "second", "third")
    waiting["first"].open()
    task = await begun(waiting, clock, timeout=60)
    await clock.advance(5)
    waiting["second"].open()
    await clock.advance(5)
    early = task.done()
    waiting["third"].open()
    result = await task
    assert clock.monotonic() == 1010.0
    assert (early, bool(result), result.missing, result.as_error()) == (False, True, (), None)


@pytest.mark.client_go(203, "Waiting helpers")
async def test_what_never_syncs_is_named_with_its_reason(clock, caplog):
    """After the time is over: exactly what is missing and why, in the result and in the log."""
    with caplog.at_level(logging.WARNING, "declctl.informer"):
        waiting = latches("pods", "nodes", "services")
        waiting["nodes"].open()
        why = {"pods": "Listing: 500 objects so far", "services": "forbidden"}.__getitem__
        task = await begun(waiting, clock, why=why, timeout=15)
        await clock.advance(15)
        result = await task
    assert not result
    assert result.missing == ("pods", "services")
    assert result.reasons == {"pods": "Listing: 500 objects so far", "services": "forbidden"}
    assert isinstance(result.cause, TimeoutError)
    assert "waited for 15 s" in str(result.cause)
    [line] = caplog.messages
    assert "pods has not synced (Listing: 500 objects so far); services has not synced (forbidden)" in line
    assert "nodes" not in line


async def test_the_log_speaks_after_ten_seconds_and_then_less_and_less_often(clock, caplog):
    """Who waits for hours is told of it, but the log is not filled with it."""
    with caplog.at_level(logging.WARNING, "declctl.informer"):
        waiting = latches("pods")
        task = await begun(waiting, clock)
        moments: list[float] = []
        for second in range(1, 200):
            caplog.clear()
            await clock.advance(1)
            moments += [second] * len(caplog.messages)
        task.cancel()
        await asyncio.wait([task])
        assert moments == [10, 30, 70, 150]


@pytest.mark.client_go(203)
async def test_who_is_cancelled_does_not_wait(clock):
    """Cancelled before it began or while it waits: it ends cancelled and leaves nothing behind."""
    waiting = latches("pods")
    early = asyncio.create_task(wait_for(waiting, clock=clock))
    early.cancel()
    task = await begun(waiting, clock)
    task.cancel()
    await asyncio.wait([early, task])
    await clock.settle()
    assert early.cancelled()
    assert task.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.client_go(203)
async def test_no_time_at_all_is_a_look(clock):
    """A timeout of zero says what there is now. Where there is nothing to wait for, all has synced."""
    waiting = latches("pods", "nodes")
    waiting["nodes"].open()
    result = await wait_for(waiting, clock=clock, timeout=0)
    assert result.synced == {"pods": False, "nodes": True}
    assert await wait_for({}, clock=clock, timeout=0)
    assert await wait_for_cache_sync()


async def test_what_has_ended_is_not_waited_for(clock):
    """An informer that stops before its first list never syncs: nobody waits for it until the timeout."""
    waiting, ended = latches("pods", "nodes"), latches("pods", "nodes", "others")
    task = await begun(waiting, clock, ended=ended, timeout=60)
    waiting["nodes"].open()
    ended["nodes"].open()
    ended["others"].open()
    await clock.settle()
    early = task.done()
    ended["pods"].open()
    result = await task
    assert not early
    assert result.missing == ("pods",)
    assert "ended before it had synced: pods" in str(result.cause)
    assert clock.monotonic() == 1000.0


@pytest.mark.client_go(204, "Waiting helpers")
def test_the_error_lists_what_is_missing_sorted():
    """One or several that are missing: sorted, each with its reason, and the cause behind it.

    There is none where nothing is missing, or nothing was waited for.
    """
    assert SyncResult({"a": True}).as_error() is None
    assert SyncResult({}).as_error() is None
    cause = TimeoutError("waited for 5 s")
    error = SyncResult({"b": False, "a": True, "c": False, "0": False}, {"c": "why"}, cause).as_error()
    assert isinstance(error, NotSynced)
    assert str(error) == "0 has not synced; b has not synced; c has not synced (why)"
    assert error.__cause__ is cause


class Thing:
    def __init__(self, name: str, why: str = "") -> None:
        self.name, self.why = name, why
        self.synced, self.ended = Latch(name), Latch(name)

    def why_not_synced(self) -> str:
        return self.why


@pytest.mark.client_go("Waiting helpers")
async def test_informers_registrations_and_latches_are_waited_for_together(clock):
    """Those of one name have a number, and each says for itself why it has not synced."""
    one, other, third = (Thing("pods", why) for why in ("forbidden", "listing", ""))
    latch = Latch("mine")
    task = asyncio.create_task(wait_for_cache_sync(one, other, latch, other, third, timeout=5, clock=clock))
    await clock.settle()
    latch.open()
    await clock.advance(5)
    result = await task
    assert result.synced == {"pods": False, "pods (2)": False, "mine": True, "pods (3)": False}
    assert result.reasons == {"pods": "forbidden", "pods (2)": "listing"}
