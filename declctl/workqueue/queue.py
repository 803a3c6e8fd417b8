"""Client-go's work queues: each key at most once, and never with two workers (client-go's util/workqueue).

Keys have one of two priorities: changes of objects go before the objects of a first sync, a resync or a
reload. These wait for a bounded number of other keys, however many changes come (controller-runtime's
priority queue has no such bound). The queue also keeps why each key was added.

These are the queues of programs that use declctl as a library. Two `ReconcileQueue`s decide: one has the keys
that wait, the other one those that come later. Here are client-go's names, which take keys, and the waits on
an event loop: `get` and `shut_down_with_drain`.
"""

import asyncio
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from msgspec.structs import replace

from declctl.kit import Clock, SystemClock, set_within
from declctl.kit.key_queue import Item
from declctl.objects import Cause
from declctl.workqueue.rate_limit import RateLimiter, default_rate_limiter
from declctl.workqueue.reconcile_queue import Priority, QueueStatistics, Reasons, ReconcileQueue

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class QueueEmpty(Exception):
    """No item can be taken now."""


class QueueShutDown(Exception):
    """The queue was shut down and has handed out all items, so that workers may end."""


class WorkQueue(Generic[K]):
    """Keys in the order in which they were added (client-go's workqueue.Type and DelayingQueue).

    - A queued key that is added again is handed out once (client-go 234).
    - A key that is added again while a worker has it is handed out once more, after `done`, and not to a
      second worker before (client-go 233, 235, 237).
    - After `shut_down` no key is added; queued keys are still handed out, and those that are not due yet are
      dropped (client-go 232, 239, 252).
    - Keys of priority BACKGROUND wait behind those of priority LIVE, but not for ever: after `LIVE_IN_A_ROW`
      of these, one of them is handed out.
    - An `add` before the end of a delay does not cancel it, as in client-go: the item comes twice.

    `clock` is by default the system's. From any thread; `get`, `shut_down_with_drain` and `run` may be
    awaited on any loop.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._keys = ReconcileQueue[K](clock=self._clock)
        self._later = ReconcileQueue[K](clock=self._clock)
        self._lock = threading.RLock()  # guards all of the following, and steps that concern both queues
        self._taken: dict[K, Item[K, Reasons]] = {}  # by key: what workers have
        self._failed: dict[K, Item[K, Reasons]] = {}  # what has failed, until the key is taken again
        self._shutting_down = False
        self._draining = False  # `shut_down_with_drain` waits
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []  # woken by a change
        self._retries = 0

    def add(self, item: K, *, priority: Priority = Priority.LIVE, cause: Cause | None = None) -> bool:
        """Queue an item. An item that is queued already gets the cause, and the priority if that is higher.

        Returns whether it was not queued already. No effect after shutdown.
        """
        with self._lock:
            is_new = not self._shutting_down and self._keys.add(item, _reasons(cause), priority)
        self._wake()
        return is_new

    def add_after(
        self, item: K, seconds: float, *, priority: Priority = Priority.LIVE, cause: Cause | None = None
    ) -> None:
        """Add an item in `seconds`, at once for 0 or less. No effect after shutdown.

        Of several delays the shortest counts, and of their priorities the highest. The item comes with the
        causes of all of them. Raises ValueError for NaN.
        """
        self._later.add_after(item, seconds, _reasons(cause), priority)
        self._wake()

    def end_delay(self, item: K) -> bool:
        """Queue a delayed item now, with its priority and its causes; returns whether it was delayed."""
        was_delayed = self._later.end_delay(item)
        self._wake()
        return was_delayed

    def cancel_delay(self, item: K) -> bool:
        """Forget the delay of an item, which does not come because of it; returns whether it was delayed."""
        self._failed.pop(item, None)
        return self._later.end_delay(item, comes=False)

    def next_due(self) -> float | None:
        """Seconds until the first delayed item is due, at least 0; None if no item is delayed."""
        return self._later.next_due()

    @property
    def delayed(self) -> int:
        """The number of items that are not due yet."""
        return self._later.statistics().requeued

    def get_nowait(self) -> K:
        """Take the next item; the caller has to call `done` for it.

        Raises QueueEmpty if no item is queued, and QueueShutDown if none will be.
        """
        with self._lock:
            self._let_due_come()
            item = self._keys.take()
            if item is None:
                # An item that was added again while a worker has it is queued by its `done`.
                raise QueueShutDown if self._shutting_down and not self.statistics().depth else QueueEmpty
            if (failed := self._failed.pop(item.key, None)) is not None:
                item.value = failed.value.merge(item.value)
            self._taken[item.key] = item
            return item.key

    def causes_of(self, item: K) -> tuple[Cause, ...]:
        """Why a worker has an item: `MOST_CAUSES` at most, the oldest first; none if no worker has it."""
        taken = self._taken.get(item)
        return () if taken is None else tuple(taken.value.causes)

    def priority_of(self, item: K) -> Priority:
        """The priority with which a worker has an item; LIVE if no worker has it."""
        taken = self._taken.get(item)
        return Priority.LIVE if taken is None else Priority(taken.priority)

    def done(self, item: K) -> None:
        """Note that a worker has finished an item. An item that was added meanwhile is queued again.

        No effect for an item that no worker has.
        """
        taken = self._taken.pop(item, None)
        if taken is not None:
            self._keys.done(taken)
        self._wake()

    def shut_down(self) -> None:
        """Accept no more items; `get` raises QueueShutDown when all queued items are handed out.

        Ends the wait of a `shut_down_with_drain`.
        """
        self._close(draining=False)

    async def get(self) -> K:
        """Wait for the next item and take it; raises QueueShutDown. The caller has to call `done` for it."""
        return await self._when(self.get_nowait)

    async def shut_down_with_drain(self) -> None:
        """Shut down, and return when every queued item was handed out and is done (client-go 238, 241)."""
        self._close(draining=True)
        await self._when(lambda: self._check(not self._draining or self._keys.idle))

    async def run(self) -> None:
        """Return when the queue is shut down. Items come when they are due without it, too."""
        await self._when(lambda: self._check(self._shutting_down))

    @property
    def shutting_down(self) -> bool:
        """Whether `shut_down` was called."""
        return self._shutting_down

    def __len__(self) -> int:
        """The number of queued items. Items that a worker has do not count (client-go 234)."""
        self._let_due_come()
        return self._keys.statistics().waiting

    def statistics(self) -> QueueStatistics:
        """The figures of this moment."""
        return replace(self._keys.workqueue_statistics(), retries_total=self._retries)

    def _let_due_come(self) -> None:
        with self._lock:
            while (due := self._later.take()) is not None:
                self._keys.add(due.key, due.value, Priority(due.priority))
                self._later.done(due)

    def _close(self, *, draining: bool) -> None:
        with self._lock:
            self._let_due_come()
            self._draining, self._shutting_down = draining, True
            self._later.clear()
            self._failed.clear()
        self._wake()

    @staticmethod
    def _check(condition: bool) -> None:
        """Raise QueueEmpty unless a wait has ended."""
        if not condition:
            raise QueueEmpty

    async def _when(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it does not raise QueueEmpty; returns its result."""
        while True:
            # Registered before the attempt, so that an item that is added in between wakes this waiter.
            waiter = (asyncio.get_running_loop(), asyncio.Event())
            with self._lock:
                self._waiters.append(waiter)
            try:
                return attempt()
            except QueueEmpty:
                if (seconds := self.next_due()) is None:
                    await waiter[1].wait()
                else:
                    await set_within(waiter[1], seconds, clock=self._clock)
            finally:
                with self._lock:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)

    def _wake(self) -> None:
        # All waiters try again, and those without an item wait again: there are only few workers.
        if not self._waiters:
            return
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for loop, woken in waiters:
            if not loop.is_closed():  # a thread may call this later
                loop.call_soon_threadsafe(woken.set)


class RateLimitingQueue(WorkQueue[K]):
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
        with self._lock:
            self._retries += 1
            failed = self._taken.get(item)
            if failed is not None and not self._shutting_down:
                self._failed[item] = failed
            reasons = _reasons(None) if failed is None else failed.value
            self._later.add_after(item, delay, reasons, self.priority_of(item))
        self._wake()
        return delay

    def forget(self, item: K) -> None:
        """Note that the item succeeded or was given up: its next failure counts as the first."""
        self._limiter.forget(item)

    def num_requeues(self, item: K) -> int:
        """The number of failures of an item since its last `forget`."""
        return self._limiter.num_requeues(item)


def _reasons(cause: Cause | None) -> Reasons:
    """The reasons of one add."""
    return Reasons({} if cause is None else {cause: None})
