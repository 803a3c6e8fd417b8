"""The work queue: keys wait here until a worker takes them, and failed ones wait longer (util/workqueue).

The queue does not know what a key names. It is not for the delivery of changes in their order: that is what
the keyed queue of `kit` is for.
"""

from typing import TYPE_CHECKING

from declctl.kit.exports import late
from declctl.workqueue.rate_limit import (
    Backoff,
    BucketRateLimiter,
    ItemExponentialFailureRateLimiter,
    MaxOfRateLimiter,
    RateLimiter,
    default_rate_limiter,
)

if TYPE_CHECKING:
    from declctl.workqueue.delay import DelayingQueue, Delays, RateLimitingQueue
    from declctl.workqueue.queue import QueueEmpty, QueueShutDown, QueueStatistics, WorkQueue
    from declctl.workqueue.worker import run_workers
else:  # `declctl run` needs no more than the back-off
    __getattr__ = late(
        __name__,
        {
            "delay": ("DelayingQueue", "Delays", "RateLimitingQueue"),
            "queue": ("QueueEmpty", "QueueShutDown", "QueueStatistics", "WorkQueue"),
            "worker": ("run_workers",),
        },
    )

__all__ = [
    "Backoff",
    "BucketRateLimiter",
    "DelayingQueue",
    "Delays",
    "ItemExponentialFailureRateLimiter",
    "MaxOfRateLimiter",
    "QueueEmpty",
    "QueueShutDown",
    "QueueStatistics",
    "RateLimiter",
    "RateLimitingQueue",
    "WorkQueue",
    "default_rate_limiter",
    "run_workers",
]
