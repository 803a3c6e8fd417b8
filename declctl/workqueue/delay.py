"""Keys that want to be worked on later (client-go util/workqueue/delaying_queue.go)."""

import asyncio
import heapq
import itertools
import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

from declctl.kit import Clock
from declctl.workqueue.queue import WorkQueue

K = TypeVar("K", bound=Hashable)


class Delays(Generic[K]):
    """Items with the moment at which each is due; of several moments the earliest counts.

    Any thread may call it.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []  # outdated entries stay until their moment comes

    def add(self, item: K, seconds: float) -> None:
        """The item is due in `seconds`, if it isn't due earlier already (client-go 250)."""
        with self._lock:
            moment = self._clock.monotonic() + seconds
            known = self._due.get(item)
            if known is None or moment < known:
                self._due[item] = moment
                heapq.heappush(self._heap, (moment, next(self._order), item))

    def take_due(self) -> list[K]:
        """Remove what is due by now; returns it in the order of its moments (client-go 251)."""
        with self._lock:
            now = self._clock.monotonic()
            taken: list[K] = []
            while self._heap and self._heap[0][0] <= now:
                moment, _, item = heapq.heappop(self._heap)
                if self._due.get(item) == moment:
                    del self._due[item]
                    taken.append(item)
            return taken

    def next_due(self) -> float | None:
        """Seconds until the first item is due, at least 0; None if there is none."""
        with self._lock:
            while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
                heapq.heappop(self._heap)
            return max(0.0, self._heap[0][0] - self._clock.monotonic()) if self._heap else None

    def clear(self) -> int:
        """Forget all of them; returns how many."""
        with self._lock:
            dropped = len(self._due)
            self._due.clear()
            self._heap.clear()
            return dropped

    def __len__(self) -> int:
        """How many items are not due yet."""
        return len(self._due)


class DelayingQueue(Generic[K]):
    """Adds items to a queue when they are due, for as long as somebody awaits `run`.

    `add_after` may be called by any thread.
    """

    def __init__(self, queue: WorkQueue[K], *, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._delays: Delays[K] = Delays(clock=clock)
        self._bell: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def add_after(self, item: K, seconds: float) -> None:
        """Add the item in `seconds`; at once if that is zero or less.

        Does nothing after shutdown (client-go 252).
        """
        if self._queue.shutting_down:
            return
        if seconds <= 0:
            self._queue.add(item)
            return
        self._delays.add(item, seconds)
        self._ring()

    async def run(self) -> None:
        """Move items when they are due, until the queue is shut down and `stop` is called.

        What is not due by then is dropped, as client-go does (client-go 252).
        """
        bell = asyncio.Event()
        self._bell = (asyncio.get_running_loop(), bell)
        try:
            while not self._queue.shutting_down:
                bell.clear()
                for item in self._delays.take_due():
                    self._queue.add(item)
                await self._pause(bell)
        finally:
            self._bell = None
            self._delays.clear()

    def stop(self) -> None:
        """Shut the queue down, and let `run` return."""
        self._queue.shut_down()
        self._ring()

    def __len__(self) -> int:
        """How many items are not due yet."""
        return len(self._delays)

    async def _pause(self, bell: asyncio.Event) -> None:
        seconds = self._delays.next_due()
        if seconds is None:
            await bell.wait()
            return
        async with asyncio.TaskGroup() as group:
            ringing = group.create_task(bell.wait())
            sleeping = group.create_task(self._clock.sleep(seconds))
            await asyncio.wait([ringing, sleeping], return_when=asyncio.FIRST_COMPLETED)
            ringing.cancel()
            sleeping.cancel()

    def _ring(self) -> None:
        if self._bell is not None:
            loop, bell = self._bell
            if not loop.is_closed():
                loop.call_soon_threadsafe(bell.set)
