"""The circuit: whether the receiver is sent to, and when it is probed. Pure, with the time as an argument."""

from enum import StrEnum
from typing import Final

_LONGEST_EXPONENT: Final = 60  # of a delay: above it a float would overflow


class CircuitState(StrEnum):
    """Closed: requests are sent. Open: they wait. HalfOpen: one request probes the receiver."""

    CLOSED = "Closed"
    OPEN = "Open"
    HALF_OPEN = "HalfOpen"


def backoff(failures: int, *, initial: float, longest: float, random: float) -> float:
    """The seconds after some failures: doubled each time, up to a half shorter by `random` in [0, 1)."""
    delay: float = min(longest, initial * 2.0 ** min(max(failures - 1, 0), _LONGEST_EXPONENT))
    return delay * (1.0 - random / 2.0)


class Circuit:
    """Counts failures in a row, and opens after some of them. Used on one loop. Times are in seconds."""

    def __init__(self, failures: int) -> None:
        self.limit = failures  # in a row, after which it opens
        self.state = CircuitState.CLOSED
        self.failures = 0  # in a row
        self.openings = 0  # since it was closed last: how often it has opened, for the delay
        self.until = 0.0  # an open circuit is not probed before
        self.paused_until = 0.0  # nothing is sent before, because the receiver has asked for it

    def allows(self, now: float, under_way: int) -> bool:
        """Whether a request may be sent now, while some are under way. An open one becomes half open."""
        if now < self.next_at:
            return False
        if self.state is CircuitState.CLOSED:
            return True
        if under_way:
            return False
        self.state = CircuitState.HALF_OPEN
        return True

    @property
    def next_at(self) -> float:
        """The time before which nothing is sent."""
        return max(self.until, self.paused_until)

    def succeeded(self) -> bool:
        """The receiver has taken a request. Returns whether this has closed the circuit."""
        closes = self.state is not CircuitState.CLOSED
        self.state, self.failures, self.openings, self.until = CircuitState.CLOSED, 0, 0, 0.0
        return closes

    def failed(self, now: float, *, delay: float, at_once: bool = False) -> bool:
        """A request has failed. `delay` is for the next probe. Returns whether this has opened the circuit.

        `at_once` opens it, whatever was before. A request that was sent before the circuit opened, and ends
        after that, does not count.
        """
        self.failures += 1
        if self.state is CircuitState.OPEN:
            return False
        if self.state is CircuitState.CLOSED and self.failures < self.limit and not at_once:
            return False
        opens = self.state is CircuitState.CLOSED
        self.state = CircuitState.OPEN
        self.openings += 1
        self.until = now + delay
        return opens

    def pause(self, until: float) -> None:
        """Send nothing before a time, as the receiver has asked (Retry-After)."""
        self.paused_until = max(self.paused_until, until)
