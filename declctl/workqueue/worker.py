"""Workers: take keys from a queue and call a reconcile function with each, until the queue is shut down."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from declctl.kit.callbacks import must_propagate
from declctl.kit.text import exception_text
from declctl.workqueue.delay import RateLimitingQueue
from declctl.workqueue.queue import QueueShutDown

K = TypeVar("K", bound=Hashable)
_log = logging.getLogger("declctl.workqueue")


async def run_workers(
    queue: RateLimitingQueue[K],
    reconcile: Callable[[K], Awaitable[float | None]],
    *,
    concurrency: int = 1,
    max_retries: int,
    on_failure: Callable[[K, Exception, float | None], None],
) -> None:
    """Work on the queue with `concurrency` workers; returns when it is shut down and empty.

    `reconcile` returns nothing, or the seconds after which it wants the same item again; either way the
    failures of the item are forgotten. When it raises, the item is tried again as the limiter says, up to
    `max_retries` times, and then given up. `on_failure` is called with each failure: the item, the exception,
    and the seconds until the next try, None if there is none.

    No exception of `reconcile` ends a worker. One that is no Exception (a CancelledError that it got from
    something of its own, SystemExit, KeyboardInterrupt outside of the main thread) is given to `on_failure`
    as a RuntimeError with that as its cause. Only a cancellation of `run_workers` and a Ctrl-C in the main
    thread end it before the queue is shut down. A worker whose task was cancelled from elsewhere is
    replaced, and its item counts as failed. An exception of `on_failure` ends everything, and is raised.
    """
    await _Workers(queue, reconcile, max_retries, on_failure).run(concurrency)


class _Workers(Generic[K]):
    """The workers of one call of `run_workers`, and what each of them works on."""

    def __init__(
        self,
        queue: RateLimitingQueue[K],
        reconcile: Callable[[K], Awaitable[float | None]],
        max_retries: int,
        on_failure: Callable[[K, Exception, float | None], None],
    ) -> None:
        self._queue = queue
        self._reconcile = reconcile
        self._max_retries = max_retries
        self._on_failure = on_failure
        self._items: dict[asyncio.Task[None] | None, K] = {}  # by the worker that works on it

    async def run(self, concurrency: int) -> None:
        async with asyncio.TaskGroup() as group:
            delays = group.create_task(self._queue.run())
            workers = {group.create_task(self._work()) for _ in range(concurrency)}
            while workers:
                ended, workers = await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
                # One that was not cancelled has left an empty queue, or raised, which the group raises.
                for worker in [worker for worker in ended if worker.cancelled()]:
                    self._lost(worker)
                    workers.add(group.create_task(self._work()))
            delays.cancel()

    async def _work(self) -> None:
        task, queue = asyncio.current_task(), self._queue
        while True:
            try:
                item = await queue.get()
            except QueueShutDown:
                return
            self._items[task] = item
            try:
                again = await self._reconcile(item)
            except BaseException as error:
                if must_propagate(error):
                    raise  # the item stays in `_items`, for `_lost`
                self._failed(item, error)
            else:
                queue.forget(item)
                if again is not None:
                    queue.add_after(item, again)
            finally:
                queue.done(item)
            del self._items[task]

    def _lost(self, worker: asyncio.Task[None]) -> None:
        """A worker was cancelled, and `run` was not."""
        _log.warning("a worker of a queue was cancelled by what it called: another one takes its place")
        if worker in self._items:
            self._failed(self._items.pop(worker), asyncio.CancelledError("the worker's task was cancelled"))

    def _failed(self, item: K, error: BaseException) -> None:
        if not isinstance(error, Exception):
            text = exception_text(error)
            fault = RuntimeError(f"it raised {type(error).__name__}{f': {text}' if text else ''}")
            fault.__cause__ = error
            error = fault
        retried = self._queue.num_requeues(item) < self._max_retries
        try:
            self._on_failure(item, error, self._queue.add_rate_limited(item) if retried else None)
        finally:
            if not retried:
                self._queue.forget(item)
