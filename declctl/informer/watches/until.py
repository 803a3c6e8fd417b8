"""Waiting for something to happen to objects (client-go's tools/watch until.go).

Each function takes conditions: functions of an event. They are met in their order, each by a later
event than the one before it, and the event that meets the last is returned; without conditions it
is None, at once. What a condition raises is raised. `timeout` is in seconds, None for no limit.

Conditions are plain functions. An asynchronous one raises TypeError, because a coroutine counts as true.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from declctl.errors import TimedOut, WatchEnded
from declctl.informer.source import Source
from declctl.informer.stores import Lister
from declctl.informer.watches.informer_watcher import InformerWatcher, informer_watcher
from declctl.informer.watches.retry_watcher import ObjectEvent, RetryWatcher
from declctl.kit import Clock, SystemClock
from declctl.kit.callbacks import plain, refuse_async

Condition = Callable[[ObjectEvent], bool]
_T = TypeVar("_T")


async def until(
    resource_version: str,
    source: Source,
    *conditions: Condition,
    timeout: float | None = None,
    clock: Clock | None = None,
) -> ObjectEvent | None:
    """Watch from a version on, across closed connections, until every condition was met.

    Raises TimedOut, and as RetryWatcher does: UsageError for a version that can't be resumed from,
    Expired, Forbidden, Unauthorized.
    """
    progress = _Progress(conditions)
    async with RetryWatcher(source, resource_version, clock=clock) as events:
        return await _within(progress.consume(events), timeout, clock or SystemClock(), progress.missing)


async def until_with_sync(
    source: Source,
    precondition: Callable[[Lister], bool] | None,
    *conditions: Condition,
    timeout: float | None = None,
    clock: Clock | None = None,
) -> ObjectEvent | None:
    """List and watch, across expired versions, until every condition was met.

    `precondition` is asked once, of the cache that has synced: if it is met already, None is
    returned. Without one nothing waits for the sync. Raises TimedOut.
    """
    progress = _Progress(conditions)
    refuse_async(precondition, "the precondition of until_with_sync")
    async with informer_watcher(source, clock=clock) as events:

        async def work() -> ObjectEvent | None:
            if precondition is not None and await _met(precondition, events):
                return None
            return await progress.consume(events)

        def late() -> str:
            if precondition is not None and not events.informer.has_synced:
                return f"{source.description} had not synced ({events.informer.why_not_synced()})"
            return progress.missing()

        return await _within(work(), timeout, clock or SystemClock(), late)


async def until_without_retry(
    events: AsyncIterator[ObjectEvent],
    *conditions: Condition,
    timeout: float | None = None,
    clock: Clock | None = None,
) -> ObjectEvent | None:
    """Read events until every condition was met. Raises WatchEnded when they end before, and TimedOut."""
    progress = _Progress(conditions)
    return await _within(progress.consume(events), timeout, clock or SystemClock(), progress.missing)


class _Progress:
    """Which of the conditions were met."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        for number, condition in enumerate(conditions, 1):
            refuse_async(condition, f"condition {number}")
        self._conditions = conditions
        self._met = 0

    async def consume(self, events: AsyncIterator[ObjectEvent]) -> ObjectEvent | None:
        if not self._conditions:
            return None
        async for event in events:
            if plain(self._conditions[self._met](event), f"condition {self._met + 1}"):
                self._met += 1
                if self._met == len(self._conditions):
                    return event
        raise WatchEnded(f"the watch has ended: {self.missing()}")

    def missing(self) -> str:
        """What is waited for."""
        return f"condition {self._met + 1} of {len(self._conditions)} was not met"


async def _met(precondition: Callable[[Lister], bool], events: InformerWatcher) -> bool:
    await events.informer.synced.wait()
    return bool(plain(precondition(events.lister), "the precondition of until_with_sync"))


async def _within(
    work: Coroutine[Any, Any, _T], timeout: float | None, clock: Clock, missing: Callable[[], str]
) -> _T:
    if timeout is None:
        return await work
    task, late = asyncio.create_task(work), asyncio.create_task(clock.sleep(timeout))
    try:
        await asyncio.wait({task, late}, return_when="FIRST_COMPLETED")
        if task.done():
            return task.result()
    finally:
        task.cancel()
        late.cancel()
        await asyncio.wait({task, late})
    raise TimedOut(f"{missing()} within {timeout:g} s")
