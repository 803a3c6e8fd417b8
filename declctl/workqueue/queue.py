"""A queue that has each key at most once and gives no key to two workers (client-go's queue.go).

Plain methods decide, and may be called from any thread; `get` and `shut_down_with_drain` wait for them on an
event loop. `delay` adds delays and back-off.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from declctl.kit import Clock, SystemClock

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class QueueEmpty(Exception):
    """No item can be taken now."""


class QueueShutDown(Exception):
    """The queue was shut down and has handed out all items, so that workers may end."""


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """The figures of a queue under client-go's metric names (`workqueue_<field>`). Durations are in seconds.

    `depth` is the number of items that are still to be handed out (adds minus gets,
    util/workqueue/metrics.go): queued items, and items that were added again while a worker has them. Each of
    the two histograms has its count and its sum.
    """

    depth: int
    adds_total: int
    retries_total: int
    queue_duration_seconds_count: int
    queue_duration_seconds_sum: float
    work_duration_seconds_count: int
    work_duration_seconds_sum: float
    unfinished_work_seconds: float
    longest_running_processor_seconds: float


class WorkQueue(Generic[K]):
    """Keys in the order in which they were added (client-go's workqueue.Type). From any thread.

    - A queued key that is added again is handed out once (client-go 234).
    - A key that is added again while a worker has it is handed out once more, after `done`, and not to a
      second worker before (client-go 233, 235, 237).
    - After `shut_down` no key is added; queued keys are still handed out (client-go 232, 239).

    `clock` is the clock of the statistics, by default the system's. `get` and `shut_down_with_drain` may be
    awaited on any loop.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._waiting: deque[K] = deque()  # in the order in which they will be handed out
        self._dirty: dict[K, float] = {}  # time of the add, by item to be handed out
        self._processing: dict[K, float] = {}  # time of the get, by item that a worker has
        self._shutting_down = False
        self._draining = False  # `shut_down_with_drain` waits
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []  # woken by a change
        self._adds = self._retries = self._taken = self._finished = 0  # counts of items
        self._waited = self._worked = 0.0  # seconds

    def add(self, item: K) -> None:
        """Queue an item. No effect if it is queued already, and after shutdown."""
        with self._lock:
            if self._shutting_down or item in self._dirty:
                return
            self._adds += 1
            self._dirty[item] = self._clock.monotonic()
            # An item that a worker has is queued by its `done`, so that no second worker gets it.
            if item not in self._processing:
                self._waiting.append(item)
                self._wake()

    def get_nowait(self) -> K:
        """Take the next item; the caller has to call `done` for it.

        Raises QueueEmpty if no item is queued, and QueueShutDown if none will be.
        """
        with self._lock:
            if not self._waiting:
                # An item that was added again while a worker has it is queued by its `done`.
                if self._shutting_down and not any(item in self._dirty for item in self._processing):
                    raise QueueShutDown
                raise QueueEmpty
            item = self._waiting.popleft()
            now = self._clock.monotonic()
            self._taken += 1
            self._waited += now - self._dirty.pop(item)
            self._processing[item] = now
            return item

    def done(self, item: K) -> None:
        """Note that a worker has finished an item. An item that was added meanwhile is queued again.

        No effect for an item that no worker has.
        """
        with self._lock:
            since = self._processing.pop(item, None)
            if since is None:
                return
            self._finished += 1
            self._worked += self._clock.monotonic() - since
            if item in self._dirty:
                self._waiting.append(item)
            self._wake()

    def shut_down(self) -> None:
        """Accept no more items; `get` raises QueueShutDown when all queued items are handed out.

        Ends the wait of a `shut_down_with_drain`.
        """
        with self._lock:
            self._shutting_down = True
            self._draining = False
            self._wake()

    def count_retry(self) -> None:
        """Count a failed item that is added again, for the statistics."""
        with self._lock:
            self._retries += 1

    async def get(self) -> K:
        """Wait for the next item and take it; raises QueueShutDown. The caller has to call `done` for it."""
        return await self._when(self.get_nowait)

    async def shut_down_with_drain(self) -> None:
        """Shut down, and return when every queued item was handed out and is done (client-go 238, 241)."""
        with self._lock:
            self._shutting_down = self._draining = True
            self._wake()
        await self._when(self._check_drained)

    @property
    def shutting_down(self) -> bool:
        """Whether `shut_down` was called."""
        return self._shutting_down

    def __len__(self) -> int:
        """The number of queued items. Items that a worker has do not count (client-go 234)."""
        return len(self._waiting)

    def statistics(self) -> QueueStatistics:
        """The figures of this moment."""
        with self._lock:
            now = self._clock.monotonic()
            running = [now - since for since in self._processing.values()]
            return QueueStatistics(
                depth=len(self._dirty),
                adds_total=self._adds,
                retries_total=self._retries,
                queue_duration_seconds_count=self._taken,
                queue_duration_seconds_sum=self._waited,
                work_duration_seconds_count=self._finished,
                work_duration_seconds_sum=self._worked,
                unfinished_work_seconds=sum(running),
                longest_running_processor_seconds=max(running, default=0.0),
            )

    def _check_drained(self) -> None:
        with self._lock:
            if self._draining and (self._waiting or self._processing):
                raise QueueEmpty  # not yet

    async def _when(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it does not raise QueueEmpty; returns its result."""
        loop = asyncio.get_running_loop()
        while True:
            # Registered before the attempt, so that an item that is added in between wakes this waiter.
            waiter = (loop, loop.create_future())
            with self._lock:
                self._waiters.append(waiter)
            try:
                return attempt()
            except QueueEmpty:
                await waiter[1]
            finally:
                with self._lock:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)

    def _wake(self) -> None:
        # All waiters try again, and those without an item wait again: there are only few workers.
        waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
