"""The clock of a controller under test: it runs as the time of this machine, and a test can move it ahead."""

import asyncio
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from declctl.kit import SystemClock


class AdvancingClock(SystemClock):
    """The time of this machine, plus the seconds of all calls of `advance`. Used by any thread.

    A test of a whole controller needs a clock that runs: caches sync while the test waits. `ManualClock`
    stands still; it is for code that the test itself calls.
    """

    def __init__(self) -> None:
        self._ahead = 0.0  # seconds
        self._lock = threading.Lock()  # guards `_sleepers`
        self._sleepers: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}  # set when the clock is advanced

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic() + self._ahead

    def now(self) -> datetime:
        """The time in UTC."""
        return datetime.now(UTC) + timedelta(seconds=self._ahead)

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running event loop, until the time has passed or was advanced beyond it."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        due, moved = self.monotonic() + seconds, asyncio.Event()
        with self._lock:
            self._sleepers[moved] = asyncio.get_running_loop()
        try:
            while (left := due - self.monotonic()) > 0:
                moved.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await moved.wait()
        finally:
            with self._lock:
                del self._sleepers[moved]

    def advance(self, seconds: float) -> None:
        """Move the time ahead, and wake what sleeps on this clock. Raises ValueError for a step back."""
        if seconds < 0:
            raise ValueError(f"time goes ahead only, not by {seconds:g} s")
        with self._lock:
            self._ahead += seconds
            sleepers = tuple(self._sleepers.items())
        for moved, loop in sleepers:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(moved.set)
