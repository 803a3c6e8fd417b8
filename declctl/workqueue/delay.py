"""Keys that come back later: after a delay, or later and later while they fail.

(client-go util/workqueue/delaying_queue.go and rate_limiting_queue.go.)
"""

import asyncio
import heapq
import itertools
import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

from declctl.kit import Clock
from declctl.workqueue.queue import WorkQueue
from declctl.workqueue.rate_limit import RateLimiter, default_rate_limiter

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


class DelayingQueue(WorkQueue[K]):
    """A queue that items also enter later, for as long as `run` is awaited (client-go's delaying_queue.go).

    `add_after` may be called by any thread.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self._delays: Delays[K] = Delays(clock=self._clock)
        self._bell: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None  # of `run`, while it runs

    def add_after(self, item: K, seconds: float) -> None:
        """Add the item in `seconds`; at once if that is zero or less.

        Does nothing after shutdown (client-go 252).
        """
        if self.shutting_down:
            return
        if seconds <= 0:
            self.add(item)
            return
        self._delays.add(item, seconds)
        self._ring()

    async def run(self) -> None:
        """Move items when they are due, until the queue is shut down.

        What is not due by then is dropped (client-go 252).
        """
        bell = asyncio.Event()
        self._bell = (asyncio.get_running_loop(), bell)
        try:
            while not self.shutting_down:
                # Cleared before the look, so that an item that is added in between ends the pause.
                bell.clear()
                for item in self._delays.take_due():
                    self.add(item)
                await self._pause(bell)
        finally:
            self._bell = None
            self._delays.clear()

    def shut_down(self) -> None:
        """Take no more items; what waits is still handed out, and what is not due is dropped."""
        super().shut_down()
        self._ring()

    async def shut_down_with_drain(self) -> None:
        """Shut down, and return when everything was handed out and is done."""
        self.shut_down()
        await super().shut_down_with_drain()

    @property
    def delayed(self) -> int:
        """How many items are not due yet."""
        return len(self._delays)

    async def _pause(self, bell: asyncio.Event) -> None:
        """Return when the next item is due, or when the bell rings."""
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
            # Any thread may ring, also one that outlives the loop.
            if not loop.is_closed():
                loop.call_soon_threadsafe(bell.set)


class RateLimitingQueue(DelayingQueue[K]):
    """A queue whose failed items come back later and later (client-go's rate_limiting_queue.go).

    Without a limiter of its own it has client-go's default for controllers.
    """

    def __init__(self, *, clock: Clock, limiter: RateLimiter | None = None) -> None:
        super().__init__(clock=clock)
        self._limiter = limiter if limiter is not None else default_rate_limiter(clock=clock)

    def add_rate_limited(self, item: K) -> float:
        """Add an item that failed when the limiter says so; returns the seconds until then."""
        delay = self._limiter.when(item)
        self.count_retry()
        self.add_after(item, delay)
        return delay

    def forget(self, item: K) -> None:
        """Note that the item succeeded or was given up: its next failure counts as the first."""
        self._limiter.forget(item)

    def num_requeues(self, item: K) -> int:
        """How often the item failed since it was last forgotten."""
        return self._limiter.num_requeues(item)
