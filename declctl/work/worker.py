"""Workers: take keys from a queue and call somebody with them, until the queue is shut down."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

from declctl.work.limiting import RateLimitingQueue
from declctl.work.queue import QueueShutDown

K = TypeVar("K", bound=Hashable)


async def run_workers(
    queue: RateLimitingQueue[K],
    reconcile: Callable[[K], Awaitable[float | None]],
    *,
    concurrency: int = 1,
    max_retries: int,
    on_failure: Callable[[K, Exception, float | None], None],
) -> None:
    """Work on the queue with `concurrency` workers; returns when it is shut down and empty.

    `reconcile` returns nothing, or the seconds after which it wants the same item again; either way
    its failures are forgotten. When it raises, the item is tried again as the limiter says, up to
    `max_retries` times, and then given up. `on_failure` hears of each failure: the item, what was
    raised, and the seconds until the next try, None if there is none.
    """

    async def worker() -> None:
        while True:
            try:
                item = await queue.get()
            except QueueShutDown:
                return
            try:
                again = await reconcile(item)
            except Exception as error:  # noqa: BLE001 - reconcile is the caller's code, and hears of it below
                retried = queue.num_requeues(item) < max_retries
                on_failure(item, error, queue.add_rate_limited(item) if retried else None)
                if not retried:
                    queue.forget(item)
            else:
                queue.forget(item)
                if again is not None:
                    queue.add_after(item, again)
            finally:
                queue.done(item)

    async with asyncio.TaskGroup() as group:
        delays = group.create_task(queue.run())
        workers = [group.create_task(worker()) for _ in range(concurrency)]
        await asyncio.wait(workers)
        delays.cancel()
