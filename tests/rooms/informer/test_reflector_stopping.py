"""A reflector may be stopped at any moment: it leaves no task, no open watch and no half-told store."""

import asyncio
from functools import partial

import pytest

from declctl.errors import ServerError, TooManyRequests
from tests.rooms.informer.reflecting import EXPIRED, bench
from tests.rooms.informer.shapes import pod

FAILS = ServerError(500, "InternalError", "no")


async def a_stream_and_its_watch(b):
    b.source.add(pod("c"))
    await b.advance(2)
    b.source.cut()
    b.source.bookmark()
    await b.advance(2)
    b.source.cut(EXPIRED)
    await b.advance(2)


async def pages_that_expire(b):
    b.source.fail_next(EXPIRED, verb="list")
    b.source.cut(EXPIRED)
    await b.advance(2)
    b.source.compact()
    b.source.advance()
    b.source.cut(EXPIRED)
    await b.advance(2)


async def faults_and_waits(b):
    b.source.fail_next(TooManyRequests(429, "TooManyRequests", ""), times=2)
    b.source.fail_next(FAILS, verb="list", times=2)
    b.source.cut(FAILS)
    await b.advance(20)
    b.source.tell(b"<html>")
    await b.advance(20)


async def silence(b):
    b.source.ends_initial_events = False
    b.source.cut(EXPIRED)
    await b.advance(31)
    await b.advance(95)


STORIES = [a_stream_and_its_watch, pages_that_expire, faults_and_waits, silence]


class Steps:
    """Awaits a coroutine, counts how often it waits for something, and cancels the task at one of them."""

    def __init__(self, coroutine, *, last, at_last):
        self.count = 0
        self._coroutine = coroutine
        self._last = last
        self._at_last = at_last

    def __await__(self):
        running = self._coroutine.__await__()
        go_on = lambda: running.send(None)  # noqa: E731
        while True:
            try:
                waits_for = go_on()
            except StopIteration:
                return
            self.count += 1
            if self.count == self._last:
                self._at_last()
                asyncio.current_task().cancel()
            try:
                value = yield waits_for
                go_on = partial(running.send, value)
            except BaseException as fault:
                go_on = partial(running.throw, fault)


@pytest.mark.client_go(115, "Run loop")
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("story", STORIES)
def test_stopping_at_any_step_leaves_nothing_behind(story, streams, check):
    """Every place at which it waits for something is one at which it may be stopped."""

    async def scenario(step, seen):
        options = {"page_size": 2, "check_consistency": check}
        async with bench(streams=streams, objects="abcde", begin=False, **options) as b:
            steps = Steps(b.reflector.run(), last=step, at_last=lambda: seen.append(b.figures.state))

            async def stepping():
                await steps

            b.task = asyncio.create_task(stepping())
            await b.settle()
            await story(b)
            await b.stop()
            await b.settle()
            assert b.task.cancelled()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert b.source.open_watches == 0
            assert b.names == [] or len(b.names) >= 5
            return steps.count

    steps = asyncio.run(scenario(0, []))
    assert steps >= 4
    seen: list[str] = []
    for step in range(1, steps + 1):
        asyncio.run(scenario(step, seen))
    assert "Watching" in seen
    assert len(seen) == steps
