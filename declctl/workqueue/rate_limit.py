"""Rate limiters: how long to wait before something is tried again.

Each class says when, and none of them waits: that is the queue's business. The limiters carry client-go's
names and semantics (client-go util/workqueue/default_rate_limiters.go).
"""

import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from declctl.kit import Clock


@dataclass(frozen=True, slots=True)
class Backoff:
    """Growing delays in seconds: `initial`, then each `factor` times the one before, up to `maximum`.

    Holds no state: who retries counts its attempts. Raises ValueError for a negative `initial`, a
    `maximum` below it, or a `factor` under one.
    """

    initial: float
    maximum: float
    factor: float = 2.0

    def __post_init__(self) -> None:
        if self.initial < 0 or self.maximum < self.initial:
            raise ValueError(
                f"a back-off needs 0 <= initial <= maximum; it has {self.initial:g} s and {self.maximum:g} s"
            )
        if self.factor < 1:
            raise ValueError(f"a back-off's factor is at least 1, so that delays grow; it is {self.factor:g}")

    def delay(self, attempt: int) -> float:
        """Seconds to wait after failed attempt number `attempt`, counted from 1."""
        if attempt < 1:
            raise ValueError(f"attempts are counted from 1; this is {attempt}")
        try:
            return min(self.maximum, self.initial * self.factor ** (attempt - 1))
        except OverflowError:  # far beyond any maximum
            return self.maximum if self.initial > 0 else 0.0


class RateLimiter(Protocol):
    """Decides for each item how long its next try waits (client-go TypedRateLimiter)."""

    def when(self, item: Hashable) -> float:
        """Count one more failure of the item; returns the seconds to wait before the next try."""
        ...

    def forget(self, item: Hashable) -> None:
        """The item succeeded or was given up: its next failure counts as the first."""
        ...

    def num_requeues(self, item: Hashable) -> int:
        """How often the item has failed since it was last forgotten."""
        ...


class ItemExponentialFailureRateLimiter:
    """Delays that double with each failure of the same item, from `base` to `maximum` seconds.

    Any thread may call it.
    """

    def __init__(self, base: float = 0.005, maximum: float = 1000.0) -> None:
        self._backoff = Backoff(base, maximum)
        self._lock = threading.Lock()
        self._failures: dict[Hashable, int] = {}

    def when(self, item: Hashable) -> float:
        """Count one more failure; returns base times 2^(failures before), at most the maximum."""
        with self._lock:
            failures = self._failures[item] = self._failures.get(item, 0) + 1
        return self._backoff.delay(failures)

    def forget(self, item: Hashable) -> None:
        """Start over for the item."""
        with self._lock:
            self._failures.pop(item, None)

    def num_requeues(self, item: Hashable) -> int:
        """The failures counted for the item."""
        with self._lock:
            return self._failures.get(item, 0)


class BucketRateLimiter:
    """A token bucket over all items: `qps` tokens a second, at most `burst` saved up.

    Each `when` takes a token; if none is left it is borrowed, and the delay is until it has been
    earned (golang.org/x/time/rate, Reserve). Any thread may call it.
    """

    def __init__(self, qps: float = 10.0, burst: int = 100, *, clock: Clock) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"a bucket needs qps > 0 and burst >= 1; it has {qps:g} and {burst}")
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = float(burst)  # below zero: borrowed
        self._counted_at = clock.monotonic()

    def when(self, item: Hashable) -> float:  # noqa: ARG002 - one bucket for all of them
        """Take a token; returns the seconds until it is earned, 0 if one was saved up."""
        with self._lock:
            now = self._clock.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._counted_at) * self._qps)
            self._counted_at = now
            self._tokens -= 1
            return max(0.0, -self._tokens / self._qps)

    def forget(self, item: Hashable) -> None:
        """Does nothing: a bucket knows no items, and a token taken stays taken."""

    def num_requeues(self, item: Hashable) -> int:  # noqa: ARG002 - as above
        """Always 0: a bucket knows no items."""
        return 0


class MaxOfRateLimiter:
    """Asks several limiters and waits for the slowest (client-go 248)."""

    def __init__(self, *limiters: RateLimiter) -> None:
        if not limiters:
            raise ValueError("the slowest of no rate limiters is unknown: give at least one")
        self._limiters = limiters

    def when(self, item: Hashable) -> float:
        """Each limiter counts the failure; returns the longest of their delays."""
        return max([limiter.when(item) for limiter in self._limiters])

    def forget(self, item: Hashable) -> None:
        """Every limiter forgets the item."""
        for limiter in self._limiters:
            limiter.forget(item)

    def num_requeues(self, item: Hashable) -> int:
        """The highest count among the limiters."""
        return max([limiter.num_requeues(item) for limiter in self._limiters])


def default_rate_limiter(*, clock: Clock) -> RateLimiter:
    """client-go's default for controllers: 5 ms to 1000 s for each item, and 10/s, burst 100, over all."""
    return MaxOfRateLimiter(ItemExponentialFailureRateLimiter(), BucketRateLimiter(clock=clock))
