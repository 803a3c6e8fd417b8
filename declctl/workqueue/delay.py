"""Queues whose keys come back after a delay, or after growing delays while they fail.

(client-go's util/workqueue/delaying_queue.go and rate_limiting_queue.go.)
"""

import asyncio
import heapq
import itertools
import math
import threading
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from declctl.kit import Clock
from declctl.kit.pending import smallest_first
from declctl.objects import Cause
from declctl.workqueue.queue import MOST_CAUSES, Priority, QueuedItem, WorkQueue
from declctl.workqueue.rate_limit import RateLimiter, default_rate_limiter

K = TypeVar("K", bound=Hashable)
_FEW = 64  # entries of removed items that are not worth a new heap


class Delays(Generic[K]):
    """Items, each with the time at which it is due. Of several times the earliest counts. From any thread."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._due: dict[K, tuple[float, int]] = {}  # monotonic seconds and a serial number, by item
        # By time. Entries that are no longer in `_due` stay for a while.
        self._heap: list[tuple[float, int, K]] = []

    def add(self, item: K, seconds: float) -> None:
        """Make an item due in `seconds`, unless it is due earlier (client-go 250).

        Raises ValueError for NaN: an item with it would never be due, and would keep the others waiting.
        """
        if math.isnan(seconds):
            raise ValueError("a delay takes a number of seconds, not nan")
        with self._lock:
            moment = self._clock.monotonic() + seconds
            known = self._due.get(item)
            if known is None or moment < known[0]:
                entry = (moment, next(self._order))
                self._due[item] = entry
                heapq.heappush(self._heap, (*entry, item))

    def remove(self, item: K) -> None:
        """Forget an item. No effect for an unknown one."""
        with self._lock:
            if self._due.pop(item, None) is None:
                return
            # An item that is removed and added again and again must not fill the heap.
            if len(self._heap) > 2 * len(self._due) + _FEW:
                self._heap = [(*entry, each) for each, entry in self._due.items()]
                heapq.heapify(self._heap)

    def take_due(self) -> list[K]:
        """Remove the items that are due; returns them in the order of their times (client-go 251)."""
        with self._lock:
            now = self._clock.monotonic()
            taken: list[K] = []
            while self._heap and self._heap[0][0] <= now:
                *entry, item = heapq.heappop(self._heap)
                if self._due.get(item) == tuple(entry):
                    del self._due[item]
                    taken.append(item)
            return taken

    def next_due(self) -> float | None:
        """Seconds until the first item is due, at least 0; None if there is no item."""
        with self._lock:
            while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][:2]:
                heapq.heappop(self._heap)
            return max(0.0, self._heap[0][0] - self._clock.monotonic()) if self._heap else None

    def soonest(self, most: int) -> list[tuple[K, float]]:
        """The `most` items that are due first, each with its time on the clock; in the order of the times."""
        with self._lock:
            entries = smallest_first(self._heap)
            valid = ((item, due) for due, order, item in entries if self._due.get(item) == (due, order))
            return list(islice(valid, most))

    def clear(self) -> None:
        """Remove all items."""
        with self._lock:
            self._due.clear()
            self._heap.clear()

    def __len__(self) -> int:
        """The number of items that are not due yet."""
        return len(self._due)


@dataclass(slots=True)
class _Delayed:
    """The add of an item that waits for its delay."""

    priority: Priority
    causes: dict[Cause, None]  # a set that keeps the order

    def merge(self, priority: Priority, causes: Iterable[Cause]) -> None:
        self.priority = min(priority, self.priority)
        for cause in causes:
            if len(self.causes) < MOST_CAUSES:
                self.causes[cause] = None


class DelayingQueue(WorkQueue[K]):
    """A queue that items can enter after a delay, while `run` is awaited (client-go's DelayingQueue).

    An `add` before the end of the delay does not cancel it, as in client-go: the item comes twice. Only the
    causes of a failed item come with that add, too.
    `cancel_delay` is for an item that need not come again.

    `clock` is the system's by default. `add_after` may be called from any thread.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self._delays: Delays[K] = Delays(clock=self._clock)
        self._delayed: dict[K, _Delayed] = {}  # by item: those of `_delays`
        # The loop and the wake-up event of `run`, while it runs.
        self._wakeup: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def add_after(
        self, item: K, seconds: float, *, priority: Priority = Priority.LIVE, cause: Cause | None = None
    ) -> None:
        """Add an item in `seconds`, at once for 0 or less. No effect after shutdown (client-go 252).

        Of several delays the shortest counts, and of their priorities the highest. The item comes with the
        causes of all of them. Raises ValueError for NaN.
        """
        self._add_after(item, seconds, priority, () if cause is None else (cause,), failed=False)

    def _add_after(
        self, item: K, seconds: float, priority: Priority, causes: Collection[Cause], *, failed: bool
    ) -> None:
        """As `add_after`, with several causes. If the item has `failed`, an earlier add carries them, too."""
        if self.shutting_down:
            return
        if seconds <= 0:
            self._add(item, priority, causes)
            return
        with self._lock:
            self._delays.add(item, seconds)  # first: it may raise
            self._delayed.setdefault(item, _Delayed(priority, {})).merge(priority, causes)
            if failed:
                self._retried[item] = tuple(causes)
        self._wake_run()

    def add_due(self) -> None:
        """Queue the items that are due. `run` calls it when it is time; a queue without `run` needs it."""
        if not self._delayed:
            return
        with self._lock:
            due = [(item, self._without_delay(item)) for item in self._delays.take_due()]
        for item, delayed in due:
            if delayed is not None:
                self._add(item, delayed.priority, delayed.causes)

    def end_delay(self, item: K) -> bool:
        """Queue a delayed item now, with its priority and its causes; returns whether it was delayed."""
        with self._lock:
            delayed = self._without_delay(item)
        if delayed is not None:
            self._add(item, delayed.priority, delayed.causes)
        return delayed is not None

    def cancel_delay(self, item: K) -> bool:
        """Forget the delay of an item, which does not come because of it; returns whether it was delayed."""
        if not self._delayed:
            return False
        with self._lock:
            return self._without_delay(item) is not None

    def _without_delay(self, item: K) -> _Delayed | None:
        """Remove the delay of an item; None if it has none. Under the lock."""
        delayed = self._delayed.pop(item, None)
        if delayed is not None:
            self._retried.pop(item, None)
            self._delays.remove(item)
        return delayed

    def next_due(self) -> float | None:
        """Seconds until the first delayed item is due, at least 0; None if no item is delayed."""
        return self._delays.next_due()

    def clear_delayed(self) -> int:
        """Drop the items that are not due yet; returns how many of them have failed.

        The others were done, and were only to come again: nothing is lost with them.
        """
        with self._lock:
            failed = len(self._retried)
            self._delayed.clear()
            self._retried.clear()
            self._delays.clear()
            return failed

    async def run(self) -> None:
        """Queue items when they are due, until the queue is shut down. Drops the others (client-go 252)."""
        wakeup = asyncio.Event()
        self._wakeup = (asyncio.get_running_loop(), wakeup)
        try:
            while not self.shutting_down:
                # Cleared before `take_due`, so that an item that is added in between ends the pause.
                wakeup.clear()
                self.add_due()
                await self._pause(wakeup)
        finally:
            self._wakeup = None
            self.clear_delayed()

    def shut_down(self) -> None:
        """Accept no more items. Queued items are still handed out; items that are not due are dropped."""
        super().shut_down()
        self._wake_run()

    async def shut_down_with_drain(self) -> None:
        """Shut down, and return when every queued item was handed out and is done."""
        self.shut_down()
        await super().shut_down_with_drain()

    def delayed_items(self, most: int) -> list[QueuedItem[K]]:
        """The `most` delayed items that are due first, in the order of their times."""
        with self._lock:
            return [
                QueuedItem(item, self._delayed[item].priority, due=due)
                for item, due in self._delays.soonest(most)
            ]

    @property
    def delayed(self) -> int:
        """The number of items that are not due yet."""
        return len(self._delays)

    @property
    def delayed_failures(self) -> int:
        """The number of these items that have failed, and come again; the others were done."""
        return len(self._retried)

    async def _pause(self, wakeup: asyncio.Event) -> None:
        """Return when the next item is due, or when the event is set."""
        seconds = self._delays.next_due()
        if seconds is None:
            await wakeup.wait()
            return
        async with asyncio.TaskGroup() as group:
            woken = group.create_task(wakeup.wait())
            sleeping = group.create_task(self._clock.sleep(seconds))
            await asyncio.wait([woken, sleeping], return_when=asyncio.FIRST_COMPLETED)
            woken.cancel()
            sleeping.cancel()

    def _wake_run(self) -> None:
        if self._wakeup is not None:
            loop, wakeup = self._wakeup
            # A thread may call this after the loop was closed.
            if not loop.is_closed():
                loop.call_soon_threadsafe(wakeup.set)


class RateLimitingQueue(DelayingQueue[K]):
    """A queue whose failed items come back after growing delays (client-go's RateLimitingQueue).

    `limiter` computes the delays; by default it is client-go's default for controllers. From any thread.
    """

    def __init__(self, *, clock: Clock | None = None, limiter: RateLimiter | None = None) -> None:
        super().__init__(clock=clock)
        self._limiter = limiter if limiter is not None else default_rate_limiter(clock=self._clock)

    def add_rate_limited(self, item: K) -> float:
        """Add a failed item after the delay that the limiter computes; returns that delay in seconds.

        An item that a worker has, and has not called `done` for, keeps its priority and its causes. An add
        before the end of the delay carries these causes, too.
        """
        delay = self._limiter.when(item)
        self.retry_after(item, delay)
        return delay

    def retry_after(self, item: K, seconds: float) -> None:
        """Add a failed item after a delay of the caller's choice; else as `add_rate_limited`."""
        priority, causes = self._note_retry(item)
        self._add_after(item, seconds, priority, causes, failed=True)

    def forget(self, item: K) -> None:
        """Note that the item succeeded or was given up: its next failure counts as the first."""
        self._limiter.forget(item)

    def num_requeues(self, item: K) -> int:
        """The number of failures of an item since its last `forget`."""
        return self._limiter.num_requeues(item)
