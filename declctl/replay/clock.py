"""The clock of a replay: it stands still until the player moves it."""

import asyncio
import threading
from contextlib import suppress
from datetime import datetime, timedelta


class ReplayClock:
    """The time of a recording (`kit.Clock`). `move` is called by the player, all else by any thread.

    Back-offs have no jitter: a key that failed then comes again when the recording says so, and never before.
    """

    def __init__(self, began: datetime) -> None:
        self._began = began
        self._at = 0.0  # seconds since the begin
        self._lock = threading.Lock()  # guards `_sleepers`
        self._sleepers: dict[asyncio.Event, tuple[float, asyncio.AbstractEventLoop]] = {}

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
        woken = asyncio.Event()
        with self._lock:
            self._sleepers[woken] = (self._at + seconds, asyncio.get_running_loop())
        try:
            await woken.wait()
        finally:
            with self._lock:
                self._sleepers.pop(woken, None)

    async def pause(self, seconds: float) -> None:
        """As `sleep`."""
        await self.sleep(seconds)

    def move(self, at: float) -> None:
        """Go ahead to a moment, and wake what sleeps until then, in the order of the moments."""
        self._at = max(self._at, at)
        with self._lock:
            due = sorted(
                (until, number, woken, loop)
                for number, (woken, (until, loop)) in enumerate(self._sleepers.items())
                if until <= self._at
            )
            for _, _, woken, _ in due:
                del self._sleepers[woken]
        for _, _, woken, loop in due:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(woken.set)
