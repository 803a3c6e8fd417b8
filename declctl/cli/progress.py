"""The line that shows, on a terminal, that a large first list is coming in."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from declctl.cli.screen import Screen
from declctl.kit import Clock

_EVERY = 0.25  # seconds
_PATIENCE = 1.0  # seconds before anything is shown: most lists are in by then


class Listing(Protocol):
    """What is shown of a resource."""

    @property
    def name(self) -> str:
        """Its name in the manifest."""
        ...

    @property
    def synced(self) -> bool:
        """Whether its first list is in."""
        ...

    @property
    def items_listed(self) -> int:
        """How many objects of the list under way have come in."""
        ...


class Figures(Protocol):
    """What is read of a status."""

    @property
    def generation(self) -> int:
        """The generation that runs; 0 before the first."""
        ...

    @property
    def resources(self) -> Iterable[Listing]:
        """The resources."""
        ...


class Running(Protocol):
    """What is read of the runtime."""

    def status(self) -> Figures:
        """The figures of this moment."""
        ...


def progress_line(resources: Iterable[Listing]) -> str:
    """`pods: 12,500 listed…` for each resource whose list is under way; empty when there is none."""
    listing = [f"{r.name}: {r.items_listed:,} listed…" for r in resources if not r.synced and r.items_listed]
    return "  ".join(listing)


def progress(screen: Screen, clock: Clock) -> Callable[[Running], AbstractAsyncContextManager[None]]:
    """A front that keeps the progress line, until everything is synced for the first time."""

    @asynccontextmanager
    async def front(runtime: Running) -> AsyncGenerator[None, None]:
        task = asyncio.create_task(_follow(runtime, screen, clock), name="progress line")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            screen.progress("")

    return front


async def _follow(runtime: Running, screen: Screen, clock: Clock) -> None:
    await clock.sleep(_PATIENCE)
    shown = ""
    while True:
        figures = runtime.status()
        line = progress_line(figures.resources)
        if line != shown:
            screen.progress(line)
            shown = line
        if figures.generation and all(resource.synced for resource in figures.resources):
            return
        await clock.sleep(_EVERY)
