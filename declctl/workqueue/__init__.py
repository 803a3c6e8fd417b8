"""Work queues: keys wait until a worker takes them, and failed keys wait longer (client-go's util/workqueue).

A key may name anything. A work queue does not deliver changes in their order; `ChangeQueue` of `kit` does.
"""

from declctl.workqueue.queue import QueueEmpty, QueueShutDown, RateLimitingQueue, WorkQueue
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
from declctl.workqueue.reconcile_queue import (
    DURATION_BOUNDS,
    MOST_CAUSES,
    Admission,
    Gate,
    Priority,
    QueueStatistics,
    Reasons,
    ReconcileQueue,
    Version,
)
from declctl.workqueue.worker import run_workers

__all__ = [
    "DURATION_BOUNDS",
    "MOST_CAUSES",
    "Admission",
    "Backoff",
    "BucketRateLimiter",
    "Gate",
    "ItemExponentialFailureRateLimiter",
    "ItemFastSlowRateLimiter",
    "MaxOfRateLimiter",
    "Priority",
    "QueueEmpty",
    "QueueShutDown",
    "QueueStatistics",
    "RateLimiter",
    "RateLimitingQueue",
    "Reasons",
    "ReconcileQueue",
    "Version",
    "WithMaxWaitRateLimiter",
    "WorkQueue",
    "default_rate_limiter",
    "run_workers",
]
