"""Clocks: time and randomness as a parameter.

All code that waits, backs off or records a time takes a `Clock`, so that tests set the time and never sleep.
"""

import asyncio
import heapq
import itertools
import random
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """A source of time and randomness. `sleep` is for event loops, the rest for any thread."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start, which never decrease; for deadlines and durations."""
        ...

    def now(self) -> datetime:
        """The wall clock as an aware datetime in UTC; for timestamps that people read."""
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
    """A clock for tests: its time changes by `advance` and `set` only.

    `advance` is awaited on the loop of the sleeping tasks. It wakes them in the order of their times, and
    lets every other task run between two of them. `start` is in seconds; `jitter` is the result of `random`.
    """

    def __init__(self, *, start: float = 1000.0, jitter: float = 0.0) -> None:
        self._time = start
        self._epoch = datetime(2026, 1, 1, tzinfo=UTC) - timedelta(seconds=start)
        self._jitter = jitter
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []  # a heap by wake-up time
        self._order = itertools.count()  # of sleepers with the same wake-up time

    def monotonic(self) -> float:
        """The present time in seconds."""
        return self._time

    def now(self) -> datetime:
        """The present time as a date: 2026-01-01 at the start."""
        return self._epoch + timedelta(seconds=self._time)

    def random(self) -> float:
        """Always the `jitter` given at the start."""
        return self._jitter

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has passed the wake-up time."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._time + seconds, next(self._order), waiter))
        await waiter

    def set(self, seconds: float) -> None:
        """Advance by `seconds` without waking tasks, for code that does not wait."""
        self._time += seconds

    async def advance(self, seconds: float) -> None:
        """Advance by `seconds`, and wake sleeping tasks in the order of their wake-up times."""
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
        """Let every task run that can run. The time stays the same."""
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def next_wake(self) -> float | None:
        """Seconds until the first sleeping task wakes; None if no task sleeps."""
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
