"""Queues whose keys come back after a delay, or after growing delays while they fail.

(client-go's util/workqueue/delaying_queue.go and rate_limiting_queue.go.)
"""

import asyncio
from collections.abc import Hashable
from typing import TypeVar

from declctl.kit import Clock, set_within
from declctl.objects import Cause
from declctl.workqueue.queue import WorkQueue, reasons_of
from declctl.workqueue.rate_limit import RateLimiter, default_rate_limiter
from declctl.workqueue.reconcile_queue import Priority

K = TypeVar("K", bound=Hashable)


class DelayingQueue(WorkQueue[K]):
    """A queue that items can enter after a delay, while `run` is awaited (client-go's DelayingQueue).

    An `add` before the end of the delay does not cancel it, as in client-go: the item comes twice. Only the
    causes of a failed item come with that add, too.
    `cancel_delay` is for an item that need not come again.

    `clock` is the system's by default. `add_after` may be called from any thread.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        # The loop and the wake-up event of `run`, while it runs.
        self._wakeup: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def add_after(
        self, item: K, seconds: float, *, priority: Priority = Priority.LIVE, cause: Cause | None = None
    ) -> None:
        """Add an item in `seconds`, at once for 0 or less. No effect after shutdown (client-go 252).

        Of several delays the shortest counts, and of their priorities the highest. The item comes with the
        causes of all of them. Raises ValueError for NaN.
        """
        self._keys.add_after(item, seconds, reasons_of(cause), priority)
        self._wake_run()

    def add_due(self) -> None:
        """Queue the items that are due. `run` calls it when it is time; a queue without `run` needs it."""
        self._keys.let_due_come()
        if len(self):
            self._wake()

    def end_delay(self, item: K) -> bool:
        """Queue a delayed item now, with its priority and its causes; returns whether it was delayed."""
        was_delayed = self._keys.end_delay(item)
        self._wake()
        return was_delayed

    def cancel_delay(self, item: K) -> bool:
        """Forget the delay of an item, which does not come because of it; returns whether it was delayed."""
        return self._keys.cancel_delay(item)

    def next_due(self) -> float | None:
        """Seconds until the first delayed item is due, at least 0; None if no item is delayed."""
        return self._keys.next_delay()

    @property
    def delayed(self) -> int:
        """The number of items that are not due yet."""
        return self._keys.delayed

    async def run(self) -> None:
        """Queue items when they are due, until the queue is shut down. Drops the others (client-go 252)."""
        wakeup = asyncio.Event()
        self._wakeup = (asyncio.get_running_loop(), wakeup)
        try:
            while not self.shutting_down:
                # Cleared before `add_due`, so that an item that is added in between ends the pause.
                wakeup.clear()
                self.add_due()
                seconds = self.next_due()
                if seconds is None:
                    await wakeup.wait()
                else:
                    await set_within(wakeup, seconds, clock=self._clock)
        finally:
            self._wakeup = None
            self._keys.clear_delayed()

    def _close(self) -> None:
        """Accept no more items. Queued items are still handed out; items that are not due are dropped."""
        super()._close()
        self._wake_run()

    def _wake_run(self) -> None:
        if self._wakeup is not None:
            loop, wakeup = self._wakeup
            # A thread may call this after the loop was closed.
            if not loop.is_closed():
                loop.call_soon_threadsafe(wakeup.set)
        elif self.shutting_down:
            self._keys.clear_delayed()
        if len(self):
            self._wake()


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
        self._keys.fail(item, delay)
        self._wake_run()
        return delay

    def forget(self, item: K) -> None:
        """Note that the item succeeded or was given up: its next failure counts as the first."""
        self._limiter.forget(item)

    def num_requeues(self, item: K) -> int:
        """The number of failures of an item since its last `forget`."""
        return self._limiter.num_requeues(item)
