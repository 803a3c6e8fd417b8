"""Work queues: keys wait until a worker takes them, and failed keys wait longer (client-go's util/workqueue).

A key may name anything. A work queue does not deliver changes in their order; `KeyedQueue` of `kit` does.
"""

from declctl.workqueue.delay import DelayingQueue, Delays, RateLimitingQueue
from declctl.workqueue.queue import (
    DURATION_BOUNDS,
    MOST_CAUSES,
    Priority,
    QueuedItem,
    QueueEmpty,
    QueueShutDown,
    QueueStatistics,
    WorkQueue,
)
from declctl.workqueue.rate_limit import (
    Backoff,
    BucketRateLimiter,
    ItemExponentialFailureRateLimiter,
    ItemFastSlowRateLimiter,
    MaxOfRateLimiter,
    RateLimiter,
    WithMaxWaitRateLimiter,
    default_rate_limiter,
)
from declctl.workqueue.worker import run_workers

__all__ = [
    "DURATION_BOUNDS",
    "MOST_CAUSES",
    "Backoff",
    "BucketRateLimiter",
    "DelayingQueue",
    "Delays",
    "ItemExponentialFailureRateLimiter",
    "ItemFastSlowRateLimiter",
    "MaxOfRateLimiter",
    "Priority",
    "QueueEmpty",
    "QueueShutDown",
    "QueueStatistics",
    "QueuedItem",
    "RateLimiter",
    "RateLimitingQueue",
    "WithMaxWaitRateLimiter",
    "WorkQueue",
    "default_rate_limiter",
    "run_workers",
]
