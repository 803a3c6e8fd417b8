"""Rate limiters: the delay before a failed item is tried again.

They compute delays and do not wait; a queue does. Names and semantics are those of client-go
(util/workqueue/default_rate_limiters.go).
"""

import threading
from collections.abc import Hashable
from typing import Protocol

from declctl.kit import Clock, SystemClock
from declctl.kit.backoff import Backoff
from declctl.kit.token_bucket import TokenBucket


class RateLimiter(Protocol):
    """Computes the delay before the next attempt with an item (client-go's TypedRateLimiter)."""

    def when(self, item: Hashable) -> float:
        """Count a failure of the item; returns the seconds to wait before the next attempt."""
        ...

    def forget(self, item: Hashable) -> None:
        """Note that the item succeeded or was given up: its next failure counts as the first."""
        ...

    def num_requeues(self, item: Hashable) -> int:
        """The number of failures of the item since its last `forget`."""
        ...


class _FailuresOfItems:
    """Counts the failures of each item. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: dict[Hashable, int] = {}  # by item, since its last `forget`

    def _count(self, item: Hashable) -> int:
        """Count a failure; returns how many the item has now."""
        with self._lock:
            failures = self._failures[item] = self._failures.get(item, 0) + 1
        return failures

    def forget(self, item: Hashable) -> None:
        """Set the failures of the item to 0."""
        with self._lock:
            self._failures.pop(item, None)

    def num_requeues(self, item: Hashable) -> int:
        """The failures counted for the item."""
        with self._lock:
            return self._failures.get(item, 0)


class ItemExponentialFailureRateLimiter(_FailuresOfItems):
    """Delays that double with each failure of an item, from `base` to `maximum` seconds. From any thread."""

    def __init__(self, base: float = 0.005, maximum: float = 1000.0) -> None:
        super().__init__()
        self._backoff = Backoff(base, maximum)

    def when(self, item: Hashable) -> float:
        """Count a failure; returns `base` times 2^(earlier failures), at most `maximum`."""
        return self._backoff.delay(self._count(item))


class ItemFastSlowRateLimiter(_FailuresOfItems):
    """The delay `fast` for the first `attempts` failures of an item, then `slow`; both in seconds.

    From any thread.
    """

    def __init__(self, fast: float, slow: float, attempts: int) -> None:
        super().__init__()
        self._fast, self._slow, self._attempts = fast, slow, attempts

    def when(self, item: Hashable) -> float:
        """Count a failure; returns the delay in seconds."""
        return self._fast if self._count(item) <= self._attempts else self._slow


class BucketRateLimiter:
    """A token bucket for all items: `qps` new tokens each second, at most `burst` tokens in it.

    Each `when` takes a token. Without a token, the delay lasts until the missing one is there
    (golang.org/x/time/rate, Reserve). `clock` is the system's by default. Raises ValueError unless `qps` > 0
    and `burst` >= 1. From any thread.
    """

    def __init__(self, qps: float = 10.0, burst: int = 100, *, clock: Clock | None = None) -> None:
        self._bucket = TokenBucket(qps, burst, clock=clock or SystemClock())

    def when(self, item: Hashable) -> float:  # noqa: ARG002 - one bucket for all of them
        """Take a token; returns the seconds until it is there, 0 if there was one."""
        return self._bucket.reserve()

    def forget(self, item: Hashable) -> None:
        """No effect: a bucket has no items, and gives no token back."""

    def num_requeues(self, item: Hashable) -> int:  # noqa: ARG002 - as above
        """Always 0: a bucket has no items."""
        return 0


class WithMaxWaitRateLimiter:
    """The delays of another limiter, at most `maximum` seconds."""

    def __init__(self, limiter: RateLimiter, maximum: float) -> None:
        self._limiter = limiter
        self._maximum = maximum

    def when(self, item: Hashable) -> float:
        """Let the limiter count the failure; returns its delay in seconds, at most `maximum`."""
        return min(self._limiter.when(item), self._maximum)

    def forget(self, item: Hashable) -> None:
        """Let the limiter forget the item."""
        self._limiter.forget(item)

    def num_requeues(self, item: Hashable) -> int:
        """The count of the limiter."""
        return self._limiter.num_requeues(item)


class MaxOfRateLimiter:
    """The longest delay of several limiters (client-go 248). Raises ValueError without limiters."""

    def __init__(self, *limiters: RateLimiter) -> None:
        if not limiters:
            raise ValueError("the slowest of no rate limiters is unknown: give at least one")
        self._limiters = limiters

    def when(self, item: Hashable) -> float:
        """Let each limiter count the failure; returns the longest delay in seconds."""
        return max([limiter.when(item) for limiter in self._limiters])

    def forget(self, item: Hashable) -> None:
        """Let each limiter forget the item."""
        for limiter in self._limiters:
            limiter.forget(item)

    def num_requeues(self, item: Hashable) -> int:
        """The highest count of the limiters."""
        return max([limiter.num_requeues(item) for limiter in self._limiters])


def default_rate_limiter(*, clock: Clock | None = None) -> RateLimiter:
    """client-go's default for controllers: 5 ms to 1000 s for an item; for all 10/s, burst 100.

    `clock` is the system's by default.
    """
    return MaxOfRateLimiter(ItemExponentialFailureRateLimiter(), BucketRateLimiter(clock=clock))
