"""Client-go's work queue: each key at most once, and never with two workers (util/workqueue/queue.go).

Keys have one of two priorities: changes of objects go before the objects of a first sync, a resync or a
reload. These wait for a bounded number of other keys, however many changes come (controller-runtime's
priority queue has no such bound). The queue also keeps why each key was added.

`ReconcileQueue` decides. Here are client-go's names for it, which take keys, and the waits for it on an event
loop: `get` and `shut_down_with_drain`. `delay` adds delays and back-off.
"""

import asyncio
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from declctl.kit import Clock, SystemClock
from declctl.objects import Cause
from declctl.workqueue.reconcile_queue import Priority, QueueStatistics, Reasons, ReconcileQueue

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class QueueEmpty(Exception):
    """No item can be taken now."""


class QueueShutDown(Exception):
    """The queue was shut down and has handed out all items, so that workers may end."""


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
        self._keys: ReconcileQueue[K] = ReconcileQueue(clock=self._clock, ends_delays=False)
        self._lock = threading.Lock()  # guards all of the following
        self._shutting_down = False
        self._draining = False  # `shut_down_with_drain` waits
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []  # woken by a change

    def add(self, item: K, *, priority: Priority = Priority.LIVE, cause: Cause | None = None) -> bool:
        """Queue an item. An item that is queued already gets the cause, and the priority if that is higher.

        Returns whether it was not queued already. No effect after shutdown.
        """
        is_new = self._keys.add(item, reasons_of(cause), priority, rests=False)
        self._wake()
        return is_new

    def get_nowait(self) -> K:
        """Take the next item; the caller has to call `done` for it.

        Raises QueueEmpty if no item is queued, and QueueShutDown if none will be.
        """
        item = self._keys.take()
        if item is None:
            # An item that was added again while a worker has it is queued by its `done`.
            raise QueueShutDown if self._shutting_down and not self._keys.will_come else QueueEmpty
        return item.key

    def causes_of(self, item: K) -> tuple[Cause, ...]:
        """Why a worker has an item: `MOST_CAUSES` at most, the oldest first; none if no worker has it."""
        taken = self._keys.taken(item)
        return () if taken is None else tuple(taken.value.causes)

    def priority_of(self, item: K) -> Priority:
        """The priority with which a worker has an item; LIVE if no worker has it."""
        taken = self._keys.taken(item)
        return Priority.LIVE if taken is None else Priority(taken.priority)

    def done(self, item: K) -> None:
        """Note that a worker has finished an item. An item that was added meanwhile is queued again.

        No effect for an item that no worker has.
        """
        self._keys.finish(item)
        self._wake()

    def shut_down(self) -> None:
        """Accept no more items; `get` raises QueueShutDown when all queued items are handed out.

        Ends the wait of a `shut_down_with_drain`.
        """
        self._draining = False
        self._close()

    def _close(self) -> None:
        """Accept no more items."""
        self._keys.close()  # first: who is told of the shutdown finds no later add
        self._shutting_down = True
        self._wake()

    async def get(self) -> K:
        """Wait for the next item and take it; raises QueueShutDown. The caller has to call `done` for it."""
        return await self._when(self.get_nowait)

    async def shut_down_with_drain(self) -> None:
        """Shut down, and return when every queued item was handed out and is done (client-go 238, 241)."""
        self._draining = True
        self._close()
        await self._when(self._check_drained)

    @property
    def shutting_down(self) -> bool:
        """Whether `shut_down` was called."""
        return self._shutting_down

    def __len__(self) -> int:
        """The number of queued items. Items that a worker has do not count (client-go 234)."""
        return self._keys.waiting

    def statistics(self) -> QueueStatistics:
        """The figures of this moment."""
        return self._keys.workqueue_statistics()

    def _check_drained(self) -> None:
        if self._draining and not self._keys.is_drained:
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
        if not self._waiters:
            return
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def reasons_of(cause: Cause | None) -> Reasons:
    """The reasons of one add."""
    return Reasons({} if cause is None else {cause: None})
