"""The work queue: keys wait here until somebody works on them, and failed ones wait longer.

What a key means does not belong here, and neither does the delivery of changes in their order: that
is what the keyed queue of `kit` is for.
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
