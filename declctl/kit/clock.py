"""Time and randomness, passed in.

Everything that waits, backs off or stamps takes a `Clock`, so that a test decides how late it is
and never sleeps.
"""

import asyncio
import heapq
import itertools
import random
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """The time that the machinery lives by."""

    def monotonic(self) -> float:
        """Seconds that only ever grow; for deadlines and durations."""
        ...

    def now(self) -> datetime:
        """The wall clock as an aware datetime in UTC; for what people read."""
        ...

    def random(self) -> float:
        """A number in [0, 1), for jitter."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` have passed on this clock; zero or less only yields."""
        ...


class SystemClock:
    """The real time of this machine."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    def now(self) -> datetime:
        """The current time in UTC."""
        return datetime.now(UTC)

    def random(self) -> float:
        """A number in [0, 1)."""
        return random.random()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running event loop."""
        await asyncio.sleep(max(0.0, seconds))


class ManualClock:
    """A clock for tests: it moves when it is told to, and wakes whoever slept until then.

    `advance` is awaited on the loop of the sleepers; between two wake-ups every other task that can
    run has run.
    """

    def __init__(self, *, start: float = 1000.0, jitter: float = 0.0) -> None:
        self._time = start
        self._epoch = datetime(2026, 1, 1, tzinfo=UTC) - timedelta(seconds=start)
        self._jitter = jitter
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        """The time it was last told."""
        return self._time

    def now(self) -> datetime:
        """The manual time as a date: 2026-01-01 at the start."""
        return self._epoch + timedelta(seconds=self._time)

    def random(self) -> float:
        """Always the `jitter` given at the start."""
        return self._jitter

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has passed the moment."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._time + seconds, next(self._order), waiter))
        await waiter

    def set(self, seconds: float) -> None:
        """Move on without waking anybody: for cores that are asked and do not wait."""
        self._time += seconds

    async def advance(self, seconds: float) -> None:
        """Move on by `seconds`, waking sleepers in the order of their moments."""
        end = self._time + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._time, _, waiter = heapq.heappop(self._sleepers)
            if not waiter.done():
                waiter.set_result(None)
            await self.settle()
        self._time = end
        await self.settle()

    async def settle(self) -> None:
        """Let every task that can run do so, without time passing."""
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def next_wake(self) -> float | None:
        """Seconds until the first sleeper's moment; None if nobody sleeps."""
        waiting = [moment for moment, _, waiter in self._sleepers if not waiter.done()]
        return min(waiting) - self._time if waiting else None


async def set_within(event: asyncio.Event, seconds: float, *, clock: Clock) -> bool:
    """Wait until `event` is set, for `seconds` of `clock` at most. Returns whether it is set."""
    waits, timer = asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait([waits, timer], return_when=asyncio.FIRST_COMPLETED)
        return event.is_set()
    finally:
        waits.cancel()
        timer.cancel()
