"""A queue that has each key at most once and gives no key to two workers (client-go's queue.go).

Keys have one of two priorities: changes of objects go before the objects of a first sync, a resync or a
reload. These wait for a bounded number of other keys, however many changes come (controller-runtime's
priority queue has no such bound). The queue also keeps why each key was added.

Plain methods decide, and may be called from any thread; `get` and `shut_down_with_drain` wait for them on an
event loop. `delay` adds delays and back-off.
"""

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import msgspec

from declctl.kit import Clock, SystemClock
from declctl.kit.histogram import Histogram
from declctl.objects import Cause

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
LIVE_IN_A_ROW = 4  # items of priority LIVE that are handed out before one of priority BACKGROUND has its turn
DURATION_BOUNDS = tuple(10.0**power for power in range(-8, 4))  # seconds; client-go's buckets
MOST_CAUSES = 16  # that are kept for one item; further ones are left out


class Priority(IntEnum):
    """The priority of an item. A lower number goes first."""

    LIVE = 0  # something has changed
    BACKGROUND = 1  # a first sync, a resync or a reload: nothing is known to have changed


class QueueEmpty(Exception):
    """No item can be taken now."""


class QueueShutDown(Exception):
    """The queue was shut down and has handed out all items, so that workers may end."""


class QueueStatistics(msgspec.Struct, frozen=True):
    """The figures of a queue under client-go's metric names (`workqueue_<field>`). Durations are in seconds.

    `depth` is the number of items that are still to be handed out (adds minus gets,
    util/workqueue/metrics.go): queued items, and items that were added again while a worker has them. Each of
    the two histograms has its count, its sum, and the number of durations up to each of DURATION_BOUNDS and
    without a bound.
    """

    depth: int
    adds_total: int
    retries_total: int
    queue_duration_seconds_count: int
    queue_duration_seconds_sum: float
    queue_duration_seconds_bucket: tuple[int, ...]
    work_duration_seconds_count: int
    work_duration_seconds_sum: float
    work_duration_seconds_bucket: tuple[int, ...]
    unfinished_work_seconds: float
    longest_running_processor_seconds: float


class QueuedItem(NamedTuple, Generic[K]):
    """A copy of one item that waits. Times are monotonic, in seconds."""

    item: K
    priority: Priority
    since: float | None = None  # its first add; None for a delayed item
    due: float | None = None  # the end of its delay; None if it has none


@dataclass(slots=True)
class _Request:
    """One add of an item, or several: to be handed out, or handed out to a worker."""

    since: float  # monotonic seconds: of the first add, or since the worker has it
    priority: Priority
    causes: dict[Cause, None] = field(default_factory=dict[Cause, None])  # a set that keeps the order

    def add_causes(self, *causes: Cause) -> None:
        for cause in causes:
            if len(self.causes) < MOST_CAUSES:
                self.causes[cause] = None


class _Turns(Generic[K]):
    """The items that can be taken now, in a row for each priority.

    While both rows have items, each `LIVE_IN_A_ROW` items of the live row are followed by one of the other
    row. So an item of priority BACKGROUND with `n` items before it in its row is handed out after at most
    `n + (n + 1) * LIVE_IN_A_ROW` other items, and an item of priority LIVE after at most
    `n + n // LIVE_IN_A_ROW + 1`.
    """

    def __init__(self) -> None:
        self._live: deque[K] = deque()
        self._background: OrderedDict[K, None] = OrderedDict()
        self._in_a_row = 0  # live items that were handed out since the last one of the other row

    def push(self, item: K, priority: Priority) -> None:
        """Append an item, which must not be in a row, to the row of its priority."""
        if priority is Priority.LIVE:
            self._live.append(item)
        else:
            self._background[item] = None

    def promote(self, item: K) -> None:
        """Move an item from the background row to the end of the live row."""
        del self._background[item]
        self._live.append(item)

    def pop(self) -> K:
        """Remove and return the next item; raises IndexError if there is none."""
        if self._background and (not self._live or self._in_a_row >= LIVE_IN_A_ROW):
            self._in_a_row = 0
            return self._background.popitem(last=False)[0]
        item = self._live.popleft()
        self._in_a_row += 1
        return item

    def in_order(self) -> Iterator[K]:
        """The items in the order in which `pop` would return them, if none were pushed meanwhile."""
        live, background = iter(self._live), iter(self._background)
        live_left, background_left, in_a_row = len(self._live), len(self._background), self._in_a_row
        while live_left or background_left:
            if background_left and (not live_left or in_a_row >= LIVE_IN_A_ROW):
                background_left -= 1
                in_a_row = 0
                yield next(background)
            else:
                live_left -= 1
                in_a_row += 1
                yield next(live)

    def __len__(self) -> int:
        return len(self._live) + len(self._background)


class WorkQueue(Generic[K]):
    """Keys in the order in which they were added (client-go's workqueue.Type). From any thread.

    - A queued key that is added again is handed out once (client-go 234).
    - A key that is added again while a worker has it is handed out once more, after `done`, and not to a
      second worker before (client-go 233, 235, 237).
    - After `shut_down` no key is added; queued keys are still handed out (client-go 232, 239).
    - Keys of priority BACKGROUND wait behind those of priority LIVE, but not for ever: after `LIVE_IN_A_ROW`
      of these, one of them is handed out.

    `clock` is the clock of the statistics, by default the system's. `get` and `shut_down_with_drain` may be
    awaited on any loop.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._waiting: _Turns[K] = _Turns()
        self._dirty: dict[K, _Request] = {}  # by item to be handed out
        self._processing: dict[K, _Request] = {}  # by item that a worker has
        # The causes of failed items that wait for their retry, which an earlier add carries, too.
        self._retried: dict[K, tuple[Cause, ...]] = {}
        self._shutting_down = False
        self._draining = False  # `shut_down_with_drain` waits
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []  # woken by a change
        self._adds = self._retries = 0  # counts of items
        self._waited = Histogram(DURATION_BOUNDS)  # of items that were taken
        self._worked = Histogram(DURATION_BOUNDS)  # of items that are done

    def add(self, item: K, *, priority: Priority = Priority.LIVE, cause: Cause | None = None) -> bool:
        """Queue an item. An item that is queued already gets the cause, and the priority if that is higher.

        Returns whether it was not queued already. No effect after shutdown.
        """
        return self._add(item, priority, () if cause is None else (cause,))

    def _add(self, item: K, priority: Priority, causes: Collection[Cause]) -> bool:
        """As `add`, with several causes."""
        with self._lock:
            if self._shutting_down:
                return False
            # An item that a worker has is queued by its `done`, so that no second worker gets it.
            is_free = item not in self._processing
            request = self._dirty.get(item)
            is_new = request is None
            if request is None:
                self._adds += 1
                request = self._dirty[item] = _Request(self._clock.monotonic(), priority)
                if item in self._retried:
                    request.add_causes(*self._retried[item])
                if is_free:
                    self._waiting.push(item, priority)
                    self._wake()
            elif priority < request.priority:
                request.priority = priority
                if is_free:
                    self._waiting.promote(item)
            if causes:
                request.add_causes(*causes)
            return is_new

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
            item = self._waiting.pop()
            request, now = self._dirty.pop(item), self._clock.monotonic()
            self._waited.add(now - request.since)
            request.since = now
            self._processing[item] = request
            return item

    def causes_of(self, item: K) -> tuple[Cause, ...]:
        """Why a worker has an item: `MOST_CAUSES` at most, the oldest first; none if no worker has it."""
        with self._lock:
            request = self._processing.get(item)
            return () if request is None else tuple(request.causes)

    def priority_of(self, item: K) -> Priority:
        """The priority with which a worker has an item; LIVE if no worker has it."""
        with self._lock:
            request = self._processing.get(item)
            return Priority.LIVE if request is None else request.priority

    def take_again(self, item: K) -> None:
        """Let the adds of an item since a worker has it count as handed out to this worker, too.

        For a worker that has not begun with the item. No effect if it was not added again.
        """
        with self._lock:
            request = self._processing.get(item)
            again = None if request is None else self._dirty.pop(item, None)
            if request is not None and again is not None:
                request.add_causes(*again.causes)
                request.priority = min(request.priority, again.priority)
                self._waited.add(self._clock.monotonic() - again.since)
                self._worked.add(0.0)

    def done(self, item: K) -> None:
        """Note that a worker has finished an item. An item that was added meanwhile is queued again.

        No effect for an item that no worker has.
        """
        with self._lock:
            request = self._processing.pop(item, None)
            if request is None:
                return
            self._worked.add(self._clock.monotonic() - request.since)
            if (again := self._dirty.get(item)) is not None:
                self._waiting.push(item, again.priority)
            self._wake()

    def shut_down(self) -> None:
        """Accept no more items; `get` raises QueueShutDown when all queued items are handed out.

        Ends the wait of a `shut_down_with_drain`.
        """
        with self._lock:
            self._shutting_down = True
            self._draining = False
            self._wake()

    def _note_retry(self, item: K) -> tuple[Priority, tuple[Cause, ...]]:
        """Count a failed item that will be added again; returns its priority and its causes."""
        with self._lock:
            self._retries += 1
            request = self._processing.get(item)
            if request is None:
                return Priority.LIVE, ()
            if (again := self._dirty.get(item)) is not None:
                again.add_causes(*request.causes)
            return request.priority, tuple(request.causes)

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

    def next_items(self, most: int) -> list[QueuedItem[K]]:
        """The next `most` queued items, in the order in which they will be handed out. O(most)."""
        with self._lock:
            requests = ((item, self._dirty[item]) for item in islice(self._waiting.in_order(), most))
            return [QueuedItem(item, request.priority, request.since) for item, request in requests]

    def comes_again(self, item: K) -> bool:
        """Whether an item was added again since a worker has it, so that its `done` queues it."""
        with self._lock:
            return item in self._processing and item in self._dirty

    def statistics(self) -> QueueStatistics:
        """The figures of this moment."""
        with self._lock:
            now = self._clock.monotonic()
            running = [now - request.since for request in self._processing.values()]
            waited, worked = self._waited.figures(), self._worked.figures()
            return QueueStatistics(
                depth=len(self._dirty),
                adds_total=self._adds,
                retries_total=self._retries,
                queue_duration_seconds_count=waited.total,
                queue_duration_seconds_sum=waited.sum,
                queue_duration_seconds_bucket=tuple(waited.cumulative),
                work_duration_seconds_count=worked.total,
                work_duration_seconds_sum=worked.sum,
                work_duration_seconds_bucket=tuple(worked.cumulative),
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
