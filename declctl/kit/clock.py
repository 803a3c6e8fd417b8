"""Clocks: time and randomness as a parameter.

All code that waits, backs off or records a time takes a `Clock`, so that tests set the time and never sleep.
"""

import asyncio
import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

_SHORTEST_STEP = 0.01  # seconds of an advance, so that short sleeps in a row do not make it endless


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

    async def pause(self, seconds: float) -> None:
        """As `sleep`, for upkeep, and between two looks at what others change.

        An `AdvancingClock` makes no stop for its end: it goes on, and wakes it at the next stop.
        """
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

    async def pause(self, seconds: float) -> None:
        """Sleep on the running event loop."""
        await self.sleep(seconds)


class Standstill(NamedTuple):
    """What an attached part of a test says when nothing of it can run before time has passed."""

    figures: object  # equal ones before and after: nothing has run in between
    due: float = float("inf")  # seconds until it has something to do, apart from what sleeps on the clock


@dataclass(eq=False)
class _Sleeper:
    """A task that sleeps on an `AdvancingClock`."""

    due: float  # monotonic seconds
    stops: bool  # whether an advance stops at `due`
    context: Context = field(default_factory=copy_context)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    moved: asyncio.Event = field(default_factory=asyncio.Event)  # set when the clock was moved


class AdvancingClock(SystemClock):
    """The time of this machine, plus the seconds of all calls of `advance`. Used by any thread.

    It is the one clock of an API server in memory and of the controllers under test. These run while the
    test waits, so their clock has to run, too. `ManualClock` stands still, for code that the test calls.
    With `stands` only advances move the time: nothing comes by itself that has to wait for it.

    An advance goes from one due time to the next one, in their order. At each it stops until all that has
    become due has run: every `attach`ed part is asked to rest, and is asked again until nothing has changed.
    So each sleep ends at its time, and not at the end of the whole advance.
    """

    def __init__(self, *, stands: bool = False) -> None:
        self._stopped_at = (time.monotonic(), datetime.now(UTC)) if stands else None
        self._ahead = 0.0  # seconds
        self._lock = threading.Lock()  # guards `_sleepers`
        self._sleepers: set[_Sleeper] = set()
        self._begun = 0  # sleeps so far, without pauses
        self._parts: list[Callable[[], Standstill]] = []

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return (time.monotonic() if self._stopped_at is None else self._stopped_at[0]) + self._ahead

    def now(self) -> datetime:
        """The time in UTC."""
        begin = datetime.now(UTC) if self._stopped_at is None else self._stopped_at[1]
        return begin + timedelta(seconds=self._ahead)

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running event loop, until the time has passed or was advanced beyond it."""
        await self._sleep(seconds, stops=True)

    async def pause(self, seconds: float) -> None:
        """As `sleep`, but an advance makes no stop for its end, and wakes it at the next one."""
        await self._sleep(seconds, stops=False)

    def attach(self, rest: Callable[[], Standstill]) -> None:
        """Let an advance wait for a part of the test: `rest` blocks until the part can't go on by itself."""
        self._parts.append(rest)

    def detach(self, rest: Callable[[], Standstill]) -> None:
        """Undo `attach`; no effect for a part that is not attached."""
        if rest in self._parts:
            self._parts.remove(rest)

    def has_sleep(self, such: Callable[[Context, asyncio.AbstractEventLoop], bool]) -> bool:
        """Whether a sleep, and no pause, of such a context and loop has not ended."""
        with self._lock:
            return any(each.stops and such(each.context, each.loop) for each in self._sleepers)

    def advance(self, seconds: float, *, timeout: float = 30.0) -> None:
        """Move the time ahead, and let all that becomes due run at its time. Blocks the calling thread.

        What can run already runs before: a sleep of so many seconds that it begins ends in the same advance.
        Raises ValueError for a step back, and TimeoutError if at one stop the attached parts do not come to
        rest within `timeout` seconds of this machine; the time stays where it is then.
        """
        if seconds < 0:
            raise ValueError(f"time goes ahead only, not by {seconds:g} s")
        try:
            due = self._at_rest(timeout)
            end = self.monotonic() + seconds
            while due < end:
                self._move(due)
                due = self._at_rest(timeout)
            self._move(end)
            self._at_rest(timeout)
        finally:
            self._wake(float("inf"))  # timers of the loops go by the time of this machine: they begin anew

    def rest(self, *, timeout: float = 30.0) -> None:
        """Let run what needs no time to pass. Raises TimeoutError as `advance`."""
        self._at_rest(timeout)

    def step(self, seconds: float, *, timeout: float = 30.0) -> float:
        """As `advance`, but no further than to the next due time; returns how far it went."""
        begin = self.monotonic()
        try:
            self._move(min(begin + seconds, self._at_rest(timeout)))
            self._at_rest(timeout)
            return self.monotonic() - begin
        finally:
            self._wake(float("inf"))

    async def _sleep(self, seconds: float, *, stops: bool) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        with self._lock:
            self._begun += stops
            sleeper = _Sleeper(self.monotonic() + seconds, stops)
            self._sleepers.add(sleeper)
        try:
            while (left := sleeper.due - self.monotonic()) > 0:
                sleeper.moved.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await sleeper.moved.wait()
        finally:
            with self._lock:
                self._sleepers.remove(sleeper)

    def _at_rest(self, timeout: float) -> float:
        """Return when nothing can run before time has passed; returns the time at which something is due."""
        until, before = time.monotonic() + timeout, None
        while True:
            now = self.monotonic()
            self._wake(now)
            found = [rest() for rest in tuple(self._parts)]
            with self._lock:
                after = [self._begun, *(each.figures for each in found)]
                due = [each.due for each in self._sleepers if each.stops and each.due > now]
            if after == before:
                due += (now + each.due for each in found)
                return max(min(due, default=float("inf")), now + _SHORTEST_STEP)
            if time.monotonic() >= until:
                raise TimeoutError(f"not at rest within {timeout:g} s")
            before = after

    def _move(self, moment: float) -> None:
        self._ahead += max(0.0, moment - self.monotonic())

    def _wake(self, until: float) -> None:
        """Wake what is due until a moment, in the order of the due times."""
        with self._lock:
            woken = sorted((each for each in self._sleepers if each.due <= until), key=lambda each: each.due)
        for each in woken:
            with suppress(RuntimeError):  # the loop is closed
                each.loop.call_soon_threadsafe(each.moved.set)


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

    async def pause(self, seconds: float) -> None:
        """As `sleep`."""
        await self.sleep(seconds)

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
            moment, _, waiter = heapq.heappop(self._sleepers)
            self._time = max(self._time, moment)  # `set` may have passed it
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


async def set_within(event: asyncio.Event, seconds: float, *, clock: Clock, looks: bool = False) -> bool:
    """Wait until `event` is set, for `seconds` of `clock` at most. Returns whether it is set.

    With `looks`, the wait is a `pause` of the clock.
    """
    wait = clock.pause if looks else clock.sleep
    waits, timer = asyncio.ensure_future(event.wait()), asyncio.ensure_future(wait(seconds))
    try:
        await asyncio.wait([waits, timer], return_when=asyncio.FIRST_COMPLETED)
        return event.is_set()
    finally:
        waits.cancel()
        timer.cancel()
