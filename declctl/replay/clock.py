"""The clock of a replay: it stands still until the player moves it."""

import asyncio
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

from declctl.runtime.recorder import current_call


class ReplayClock:
    """The time of a recording (`kit.Clock`). `move` is called by the player, all else by any thread.

    Back-offs have no jitter: a key that failed then comes again when the recording says so, and never before.
    """

    def __init__(self, began: datetime) -> None:
        self._began = began
        self._at = 0.0  # seconds since the begin
        self._lock = threading.Lock()  # guards `_sleepers`
        self._sleepers: dict[asyncio.Event, _SleepingTask] = {}
        self.on_sleep: Callable[[int], None] = _nobody_asks  # called with the number of a call that sleeps

    def monotonic(self) -> float:
        """Seconds since the begin of the recording."""
        return self._at

    def now(self) -> datetime:
        """The time of the recording in UTC."""
        return self._began + timedelta(seconds=self._at)

    def random(self) -> float:
        """Always 0: no jitter."""
        return 0.0

    async def sleep(self, seconds: float) -> None:
        """Return when the player has moved the clock by so much; zero or less only yields."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken, call = asyncio.Event(), current_call.get()
        with self._lock:
            self._sleepers[woken] = _SleepingTask(self._at + seconds, call, asyncio.get_running_loop())
        if call:
            self.on_sleep(call)
        try:
            await woken.wait()
        finally:
            with self._lock:
                self._sleepers.pop(woken, None)

    async def pause(self, seconds: float) -> None:
        """As `sleep`."""
        await self.sleep(seconds)

    def wakes(self, call: int) -> float | None:
        """When a call will wake that sleeps, such as one that waits after a 409; None for any other."""
        with self._lock:
            return min((each.until for each in self._sleepers.values() if each.call == call), default=None)

    def move(self, at: float) -> Collection[int]:
        """Go ahead to a moment, and wake what sleeps until then; returns the calls that wake."""
        self._at = max(self._at, at)
        with self._lock:
            due = {woken: each for woken, each in self._sleepers.items() if each.until <= self._at}
            for woken in due:
                del self._sleepers[woken]
        for woken, each in sorted(due.items(), key=lambda item: item[1].until):
            with suppress(RuntimeError):  # the loop is closed
                each.loop.call_soon_threadsafe(woken.set)
        return {each.call for each in due.values() if each.call}


class _SleepingTask(NamedTuple):
    until: float
    call: int  # 0 for a task that belongs to none
    loop: asyncio.AbstractEventLoop


def _nobody_asks(_: int) -> None:
    """Before the player has begun."""
