"""A queue of keys, each in it at most once and never with two workers (client-go util/workqueue/queue.go).

The decisions are plain methods that any thread may call; `get` and `drained` are thin shells that
wait for them on an event loop. Delays and back-off are composed around it elsewhere.
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
    """There is nothing to take right now."""


class QueueShutDown(Exception):
    """The queue was shut down and handed out all it had: its workers may leave."""


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """Figures under client-go's metric names (`workqueue_<field>`); durations are in seconds.

    `depth` counts the items that are still to be handed out (adds minus gets, util/workqueue/metrics.go):
    those that wait, and those that were added again while a worker has them. Of the two histograms the
    count and the sum are kept.
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
    """Keys in the order in which they were added.

    - A key that waits and is added again is handed out once (client-go 234).
    - A key that is worked on and is added again is handed out again after `done`, once, and never
      to a second worker meanwhile (client-go 233, 235, 237).
    - After `shut_down` nothing is added; what waits is still handed out (client-go 232, 239).
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._waiting: deque[K] = deque()  # in the order in which they will be handed out
        self._dirty: dict[K, float] = {}  # to be worked on → added at; not all of them wait in the queue
        self._processing: dict[K, float] = {}  # with a worker → since when
        self._shutting_down = False
        self._draining = False  # `shut_down_with_drain` waits
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []  # to be woken
        self._adds = self._retries = self._taken = self._finished = 0  # counts of items
        self._waited = self._worked = 0.0  # seconds

    def add(self, item: K) -> None:
        """Queue the item. Does nothing if it waits already, or after shutdown."""
        with self._lock:
            if self._shutting_down or item in self._dirty:
                return
            self._adds += 1
            self._dirty[item] = self._clock.monotonic()
            # An item that is worked on waits for its `done`, so that no second worker gets it.
            if item not in self._processing:
                self._waiting.append(item)
                self._wake()

    def get_nowait(self) -> K:
        """Take the next item; `done` must follow.

        Raises QueueEmpty if there is none, QueueShutDown if there will be none.
        """
        with self._lock:
            if not self._waiting:
                # An item that was added again while it is worked on comes back at its `done`.
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
        """Note that the item was worked on; if it was added meanwhile it waits again.

        Does nothing for an item that nobody took.
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
        """Take no more items, and let workers leave when what waits is handed out.

        Ends the wait of a `shut_down_with_drain`.
        """
        with self._lock:
            self._shutting_down = True
            self._draining = False
            self._wake()

    def count_retry(self) -> None:
        """Count that an item was added because it failed, for the statistics."""
        with self._lock:
            self._retries += 1

    async def get(self) -> K:
        """Take the next item, waiting for one; raises QueueShutDown."""
        return await self._when(self.get_nowait)

    async def shut_down_with_drain(self) -> None:
        """Shut down, and return when everything was handed out and is done (client-go 238, 241)."""
        with self._lock:
            self._shutting_down = self._draining = True
            self._wake()
        await self._when(self._check_drained)

    @property
    def shutting_down(self) -> bool:
        """Whether `shut_down` was called."""
        return self._shutting_down

    def __len__(self) -> int:
        """How many items wait; those that are worked on don't count, added again or not (client-go 234)."""
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
        """What `attempt` returns as soon as it doesn't raise QueueEmpty any longer."""
        loop = asyncio.get_running_loop()
        while True:
            # Listening begins before looking, so that what is added in between is heard.
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
        # Every waiter looks, and one that finds nothing waits again. Workers are few.
        waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
