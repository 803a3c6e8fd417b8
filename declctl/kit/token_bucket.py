"""Token buckets: so many actions at once, and then so many each second; in all, or for each client."""

import threading

from declctl.kit.clock import Clock


class TokenBucket:
    """`burst` tokens at first, and `qps` new ones each second (golang.org/x/time/rate). From any thread.

    Raises ValueError unless `qps` > 0 and `burst` >= 1.
    """

    def __init__(self, qps: float, burst: int, *, clock: Clock) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"a bucket needs qps > 0 and burst >= 1; it has {qps:g} and {burst}")
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = float(burst)  # negative for tokens that were taken in advance
        self._counted_at = clock.monotonic()  # when `_tokens` was computed

    def reserve(self) -> float:
        """Take a token, which may come later; returns the seconds until it is there, 0 if there was one."""
        with self._lock:
            self._fill()
            self._tokens -= 1
            return max(0.0, -self._tokens / self._qps)

    def try_take(self) -> bool:
        """Take a token if there is one; returns whether there was."""
        with self._lock:
            self._fill()
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True

    def give_back(self) -> None:
        """Return a token of `reserve` that was not used, because the caller has stopped waiting for it.

        Tokens that were reserved after it keep their times.
        """
        with self._lock:
            self._fill()
            self._tokens = min(self._burst, self._tokens + 1)

    def _fill(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._counted_at) * self._qps)
        self._counted_at = now


class ClientBuckets:
    """A token bucket for each client, as TokenBucket. Used on one loop.

    Of more than `most` clients, the one that has asked longest ago is forgotten, and begins anew.
    """

    def __init__(self, qps: float, burst: int, *, clock: Clock, most: int = 256) -> None:
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._most = most
        self._buckets: dict[str, TokenBucket] = {}  # by client; the one that has asked last is at the end

    def __len__(self) -> int:
        return len(self._buckets)

    def try_take(self, client: str) -> bool:
        """Take a token of a client if there is one; returns whether there was."""
        bucket = self._buckets.pop(client, None)
        if bucket is None:
            bucket = TokenBucket(self._qps, self._burst, clock=self._clock)
            if len(self._buckets) >= self._most:
                del self._buckets[next(iter(self._buckets))]
        self._buckets[client] = bucket
        return bucket.try_take()
