"""A token bucket: so many actions at once, and then so many each second."""

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
