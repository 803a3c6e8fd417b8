"""The work queue: keys wait here until a worker takes them, and failed ones wait longer (util/workqueue).

The queue does not know what a key names. It is not for the delivery of changes in their order: that is what
the keyed queue of `kit` is for.
"""

from declctl.workqueue.delay import DelayingQueue, Delays, RateLimitingQueue
from declctl.workqueue.queue import QueueEmpty, QueueShutDown, QueueStatistics, WorkQueue
from declctl.workqueue.rate_limit import (
    Backoff,
    BucketRateLimiter,
    ItemExponentialFailureRateLimiter,
    MaxOfRateLimiter,
    RateLimiter,
    default_rate_limiter,
)
from declctl.workqueue.worker import run_workers

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
