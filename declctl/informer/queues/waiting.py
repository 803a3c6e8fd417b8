"""The thin waiting shell around a queue: the queue decides, this waits.

Used on one loop. Everybody who waits is woken when something comes in or the queue is closed, and
looks again.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from declctl.errors import QueueClosed

T = TypeVar("T")


class Waiting:
    """Lets callers wait until an attempt gives something."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Hand out what is left, then raise QueueClosed; wakes everybody who waits."""
        self._closed = True
        self._changed.set()

    def wake(self) -> None:
        """Let those who wait look again."""
        self._changed.set()

    async def until(self, attempt: Callable[[], T | None]) -> T:
        """What `attempt` gives, as soon as that is not None; raises QueueClosed."""
        while (found := attempt()) is None:
            if self._closed:
                raise QueueClosed("the queue is closed and empty")
            self._changed.clear()
            await self._changed.wait()
        return found
