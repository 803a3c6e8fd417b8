"""Retries: a reload that was refused for no fault of its files is tried again, ever less often."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from declctl.kit import ManualClock
from declctl.kit.documents import document_of
from declctl.runtime.reloading.attempts import ReloadRetries
from declctl.runtime.reloading.changes import Outcome, Result


def refused(files: str = "A", reason: str = "Forbidden", message: str = "no") -> Outcome:
    return Outcome(Result.REFUSED, 1, files, reason=reason, message=message)


APPLIED = Outcome(Result.APPLIED, 2, "A")
SUPERSEDED = Outcome(Result.SUPERSEDED, 1, "A", reason="Superseded")


class World:
    """Retries over attempts that end as `then` says; `tried` are the moments, and the files."""

    def __init__(self, then: Callable[[], Outcome | None]) -> None:
        self.clock = ManualClock(start=0.0)
        self.retries = ReloadRetries(self.clock)
        self.tried: list[tuple[float, str]] = []
        self.free = asyncio.Event()  # no attempt is under way
        self.free.set()
        self._then = then

    async def idle(self) -> None:
        await self.free.wait()

    async def again(self, digest: str, *, generation: int) -> Outcome | None:
        assert generation == 1
        self.tried.append((self.clock.monotonic(), digest))
        outcome = self._then()
        if outcome is not None:
            self.retries.record(outcome)
        return outcome

    @asynccontextmanager
    async def running(self) -> AsyncIterator["World"]:
        task = asyncio.create_task(self.retries.run(self))
        async with asyncio.timeout(30):
            yield self
        task.cancel()
        await asyncio.wait([task])


async def test_a_right_that_never_comes_is_asked_for_ever_less_often() -> None:
    """Forbidden for an hour: after 10, 20, 40, … seconds, at most every five minutes, and told once."""
    async with World(refused).running() as world:
        assert world.retries.record(refused())
        await world.clock.advance(3600.0)
        assert not world.retries.record(refused())
    moments = [moment for moment, _ in world.tried]
    gaps = [after - before for before, after in zip([0.0, *moments], moments, strict=False)]
    assert gaps[:6] == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0]
    assert set(gaps[6:]) == {300.0}
    assert world.retries.made == len(moments)


@pytest.mark.parametrize("reason", ["Forbidden", "NotServed", "NotSynced", "NoThreads"])
async def test_it_is_tried_until_it_is_applied(reason) -> None:
    """The right, the kind or the server has come: no retry follows, and the status has none."""
    outcomes = [refused(reason=reason), APPLIED]
    async with World(lambda: outcomes.pop(0)).running() as world:
        world.retries.record(refused(reason=reason))
        assert document_of(world.retries.status()) == {"reason": reason, "retries": 0, "nextInSeconds": 10.0}
        await world.clock.advance(600.0)
        assert world.retries.status() is None
    assert [files for _, files in world.tried] == ["A", "A"]


@pytest.mark.parametrize("reason", ["SyntaxError", "PrepareFailed", "Invalid", "RestartRequired"])
async def test_what_is_wrong_in_the_files_is_not_tried_again(reason) -> None:
    """A fault of the files stays one until they change."""
    async with World(refused).running() as world:
        assert world.retries.record(refused(reason=reason))
        await world.clock.advance(600.0)
    assert world.tried == []


async def test_newer_files_take_the_place_of_those_that_wait() -> None:
    """An edit while a reload waits: applied, it ends the wait; refused, it is what is tried, from 10 s on."""
    async with World(refused).running() as world:
        world.retries.record(refused("A"))
        await world.clock.advance(15.0)
        assert world.retries.record(refused("B"))
        await world.clock.advance(10.0)
        assert world.retries.record(Outcome(Result.APPLIED, 2, "C"))
        await world.clock.advance(600.0)
    assert world.tried == [(10.0, "A"), (25.0, "B")]


@pytest.mark.parametrize("then", [lambda: None, lambda: SUPERSEDED])
async def test_what_is_not_there_any_longer_is_tried_no_more(then) -> None:
    """Another generation runs, or the files have changed without anybody having asked: the wait is over."""
    async with World(then).running() as world:
        world.retries.record(refused())
        await world.clock.advance(600.0)
        assert world.retries.status() is None
    assert len(world.tried) == 1


async def test_an_attempt_that_runs_is_not_disturbed() -> None:
    """A newer edit is being staged for a minute: the retry waits for what becomes of it."""
    async with World(lambda: APPLIED).running() as world:
        world.retries.record(refused())
        world.free.clear()
        await world.clock.advance(60.0)
        assert world.tried == []
        world.free.set()
        await world.clock.advance(1.0)
    assert len(world.tried) == 1


def test_another_reason_is_news_and_so_is_a_rollback_that_is_refused() -> None:
    """One right has come, and the next is missing: that is told. A rollback says nothing of the files."""
    retries, back = ReloadRetries(ManualClock()), refused(files="A").as_rollback()
    assert retries.record(back)
    assert retries.status() is None, "none is begun for it"
    assert retries.record(refused(message="pods"))
    assert retries.record(back)
    assert retries.status().retries == 0, "a reload that waits goes on waiting"
    assert retries.record(refused(message="secrets"))
    assert not retries.record(refused(message="secrets"))
