"""The end of a process: when it comes, and what has to be done in order before it."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from declctl.runtime.handling.slots import Slots
from declctl.runtime.log import Log
from declctl.runtime.reloading.generation import RuntimeServices, lifecycle_context
from declctl.runtime.reloading.lifecycle import Lifecycle
from declctl.runtime.reloading.reload import Reloader
from declctl.runtime.reporting.observer import Observer

T = TypeVar("T")

DRAIN_SECONDS = 25.0  # how long running calls may take after SIGTERM; a kubelet waits 30
_HOOK_SECONDS = 60.0


async def unless_stopped(work: Awaitable[T], stopping: asyncio.Event) -> T | None:
    """Return what `work` returns, or None if `stopping` is set first: then the work is cancelled, and undone.

    Raises what the work raises.
    """
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait([task])
        # What it raises now comes of being given up, which nobody has to be told.
        is_done = not task.cancelled() and task.exception() is None
        return task.result() if is_done else None
    finally:
        task.cancel()
        stop.cancel()


async def until_done(observer: Observer, stopping: asyncio.Event, *, timeout: float, log: Log) -> int:
    """Wait until every object has been dealt with, for `timeout` seconds at most, or somebody stops it.

    Returns the exit status: 1 if it was not done, or handlers have given up on changes.
    """
    try:
        async with asyncio.timeout(timeout):
            await _first(observer.at_rest(), stopping.wait())
    except TimeoutError:
        log.error(f"not done after {timeout:g} s: {observer.missing()}")
        return 1
    failed = observer.failed_handlers()
    if failed:
        log.error(f"changes were given up on: {failed}")
    return 1 if failed else 0


async def shut_down(
    reloader: Reloader, slots: Slots, lifecycle: Lifecycle, around: RuntimeServices, *, log: Log
) -> None:
    """Let running calls finish, then call `declctl_shutdown`, and tear down every generation."""
    generation = reloader.active
    running, waited = await slots.stop(DRAIN_SECONDS)
    if running:
        log.warning(f"not waited for any longer: {', '.join(running)}")
    if waited:
        each = ", ".join(f"{name} {number:,}" for name, number in waited.items())
        log.warning(
            f"{sum(waited.values()):,} changes that waited are dropped: {each}; the next start tells every "
            "object that is there again, but not which ones were deleted",
            dropped=sum(waited.values()),
        )
    if generation is None:
        return
    await lifecycle.call_each(
        generation.foreign.lifecycle("declctl_shutdown"),
        lambda i: {"ctx": lifecycle_context(i.plugin, generation, reloader.memo(i.plugin), around)},
        loop=generation.loop,
        timeout=_HOOK_SECONDS,
    )
    await reloader.close(timeout=_HOOK_SECONDS)


async def _first(*waits: Awaitable[Any]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # raises what the wait has raised
    finally:
        for task in tasks:
            task.cancel()
