"""A queue whose failed keys come back later and later (client-go util/workqueue/rate_limiting_queue.go)."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from declctl.kit import Clock
from declctl.workqueue.backoff import RateLimiter, default_rate_limiter
from declctl.workqueue.delay import DelayingQueue
from declctl.workqueue.queue import QueueStatistics, WorkQueue

K = TypeVar("K", bound=Hashable)


class RateLimitingQueue(Generic[K]):
    """A queue, its delays and a rate limiter, composed.

    Delays pass only while somebody awaits `run`. Without a limiter of its own it has client-go's
    default for controllers.
    """

    def __init__(self, *, clock: Clock, limiter: RateLimiter | None = None) -> None:
        self._queue: WorkQueue[K] = WorkQueue(clock=clock)
        self._delaying = DelayingQueue(self._queue, clock=clock)
        self._limiter = limiter if limiter is not None else default_rate_limiter(clock=clock)

    def add(self, item: K) -> None:
        """The item wants to be worked on now."""
        self._queue.add(item)

    def add_after(self, item: K, seconds: float) -> None:
        """The item wants to be worked on in `seconds`."""
        self._delaying.add_after(item, seconds)

    def add_rate_limited(self, item: K) -> float:
        """The item failed and wants another try when the limiter says so; returns the seconds until then."""
        delay = self._limiter.when(item)
        self._queue.count_retry()
        self._delaying.add_after(item, delay)
        return delay

    def forget(self, item: K) -> None:
        """The item succeeded or was given up: its next failure counts as the first."""
        self._limiter.forget(item)

    def num_requeues(self, item: K) -> int:
        """How often the item failed since it was last forgotten."""
        return self._limiter.num_requeues(item)

    async def get(self) -> K:
        """Take the next item, waiting for one; raises QueueShutDown."""
        return await self._queue.get()

    def get_nowait(self) -> K:
        """Take the next item; raises QueueEmpty or QueueShutDown."""
        return self._queue.get_nowait()

    def done(self, item: K) -> None:
        """The item was worked on."""
        self._queue.done(item)

    async def run(self) -> None:
        """Let delays pass, until the queue is shut down."""
        await self._delaying.run()

    def shut_down(self) -> None:
        """Take no more items; what waits is still handed out, what is delayed is dropped."""
        self._delaying.stop()

    async def shut_down_with_drain(self) -> None:
        """The same, and return when everything was handed out and is done."""
        self._delaying.stop()
        await self._queue.shut_down_with_drain()

    def __len__(self) -> int:
        """How many items wait now; those that are delayed or worked on don't count."""
        return len(self._queue)

    @property
    def delayed(self) -> int:
        """How many items wait for their moment."""
        return len(self._delaying)

    def statistics(self) -> QueueStatistics:
        """The figures of this moment."""
        return self._queue.statistics()
