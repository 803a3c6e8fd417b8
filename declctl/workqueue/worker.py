"""Workers: take keys from a queue and call a reconcile function with each, until the queue is shut down."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from declctl.kit.callbacks import must_propagate
from declctl.kit.text import exception_text
from declctl.objects import Requeue
from declctl.workqueue.queue import QueueShutDown, RateLimitingQueue

K = TypeVar("K", bound=Hashable)
OnFailure = Callable[[K, Exception, float | None], None]
Result = float | Requeue | None
"""What a reconcile function returns: None, or when its item is queued again."""
_ITEMS_PER_TURN = 64  # items of a worker until other tasks of the loop may run
_log = logging.getLogger("declctl.workqueue")


async def run_workers(
    queue: RateLimitingQueue[K],
    reconcile: Callable[[K], Awaitable[Result]],
    *,
    concurrency: int = 1,
    max_retries: int | None = None,
    on_failure: OnFailure[K] | None = None,
) -> None:
    """Call `reconcile` for the items of a queue; returns when the queue is shut down and empty.

    - `reconcile`: a coroutine function of an item. It returns None, or the seconds after which the item is
      queued again with its priority, as a number or as `Requeue(after=seconds)`; at once for 0 or less.
      Either way the item's failures are forgotten. After an exception, or another result, the item is queued
      with the delay of the limiter, up to `max_retries` times, and then given up; None, the default, for no
      limit.
    - `concurrency`: the number of workers, which are tasks of this loop.
    - `on_failure`: called for each failure with the item, the exception, and the seconds until the next
      attempt, None if the item is given up. By default, a warning is logged with the traceback. An exception
      of `on_failure` ends all workers, and is raised in an ExceptionGroup.

    No exception of `reconcile` ends a worker. A BaseException that is no Exception (SystemExit, a
    CancelledError of another task, a KeyboardInterrupt outside of the main thread) is passed to `on_failure`
    as the cause of a RuntimeError. Only a cancellation of `run_workers` and a Ctrl-C in the main thread end
    it before the queue is shut down. If other code cancels the task of a worker, another worker takes its
    place, and its item counts as failed. Functions that never wait do not keep other tasks of the loop from
    running.
    """
    await _Workers(queue, reconcile, max_retries, on_failure or _log_failure).run(concurrency)


def _log_failure(item: Hashable, error: Exception, delay: float | None) -> None:
    following = "it is given up" if delay is None else f"the next attempt is in {delay:g} s"
    _log.warning("the work on %s failed, %s", item, following, exc_info=error)


@dataclass(frozen=True)
class _Workers(Generic[K]):
    """The workers of one call of `run_workers`, and the item of each."""

    queue: RateLimitingQueue[K]
    reconcile: Callable[[K], Awaitable[Result]]
    max_retries: int | None
    on_failure: OnFailure[K]
    items: dict[asyncio.Task[None] | None, K] = field(
        default_factory=dict[asyncio.Task[None] | None, K]
    )  # by the task of the worker that has the item

    async def run(self, concurrency: int) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                workers = {group.create_task(self._work()) for _ in range(concurrency)}
                while workers:
                    ended, workers = await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
                    # A worker that was not cancelled found the queue shut down, or raised; the group raises
                    # that.
                    for worker in [worker for worker in ended if worker.cancelled()]:
                        self._lost(worker)
                        workers.add(group.create_task(self._work()))
        finally:
            for item in self.items.values():  # of workers that were cancelled, or have raised
                self.queue.done(item)

    async def _work(self) -> None:
        task, queue, worked = asyncio.current_task(), self.queue, 0
        while True:
            worked += 1
            if worked % _ITEMS_PER_TURN == 0:
                # `get` does not wait while items are queued, and `reconcile` may never wait.
                await asyncio.sleep(0)
            try:
                item = await queue.get()
            except QueueShutDown:
                return
            self.items[task] = item
            try:
                again = _seconds(await self.reconcile(item))
            except BaseException as error:
                if must_propagate(error):
                    raise  # the item stays in `items`, for `_lost`
                self._failed(item, error)
            else:
                queue.forget(item)
                if again is not None:
                    queue.add_after(item, again, priority=queue.priority_of(item))
            queue.done(item)
            del self.items[task]

    def _lost(self, worker: asyncio.Task[None]) -> None:
        """Count the item of a cancelled worker as failed. `run` was not cancelled."""
        _log.warning("a worker of a queue was cancelled by what it called: another one takes its place")
        if worker in self.items:
            # It is still taken, so that its retry keeps its priority and its causes.
            item = self.items[worker]
            self._failed(item, asyncio.CancelledError("the worker's task was cancelled"))
            self.queue.done(item)
            del self.items[worker]

    def _failed(self, item: K, error: BaseException) -> None:
        if not isinstance(error, Exception):
            text = exception_text(error)
            fault = RuntimeError(f"it raised {type(error).__name__}{f': {text}' if text else ''}")
            fault.__cause__ = error
            error = fault
        retried = self.max_retries is None or self.queue.num_requeues(item) < self.max_retries
        try:
            self.on_failure(item, error, self.queue.add_rate_limited(item) if retried else None)
        finally:
            if not retried:
                self.queue.forget(item)


def _seconds(result: object) -> float | None:
    """The seconds that a result asks for; raises TypeError or ValueError for what is no result."""
    if result is None:
        return None
    after = result.after if isinstance(result, Requeue) else result
    if isinstance(after, bool) or not isinstance(after, int | float):
        raise TypeError(
            f"reconcile returned a {type(after).__name__}: return None, seconds, or Requeue(after=seconds)"
        )
    try:
        seconds = float(after)
    except OverflowError:
        raise ValueError("reconcile returned a number of seconds that fits into no float") from None
    if math.isnan(seconds):
        raise ValueError("reconcile returned nan: return None, seconds, or Requeue(after=seconds)")
    return seconds
