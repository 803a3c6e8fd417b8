"""What a handler counts, and how `status` shows it."""

from collections import deque
from dataclasses import dataclass, field

_DURATIONS_KEPT = 512


@dataclass(frozen=True, slots=True)
class HandlerStatistics:
    """One handler in `status`; times are in seconds.

    delivered + merged + dropped + filtered + what waits for its first delivery = changes, and of what was
    delivered each has succeeded, has failed, runs, or backs off. `disabled` handlers are not called, as
    their plugin could not be loaded: their changes are dropped.
    """

    name: str
    generation: int
    synced: bool
    delivered: int
    succeeded: int
    failed: int
    retried: int
    merged: int
    dropped: int
    filtered: int
    queued: int
    running: int
    zombies: int
    p95_seconds: float
    last_error: str | None
    replayed: int = 0
    last_error_type: str | None = None
    disabled: bool = False


@dataclass(slots=True)
class Counts:
    """The counts of a slot since the process started, and how long its newest calls took.

    Used under the slot's lock.
    """

    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    filtered: int = 0
    zombies: int = 0
    last_error: str | None = None
    last_error_type: str | None = None
    durations: deque[float] = field(default_factory=lambda: deque[float](maxlen=_DURATIONS_KEPT))

    def p95(self) -> float:
        """How long all but the slowest twentieth of the newest calls took at most, in seconds."""
        durations = sorted(self.durations)
        return durations[int(len(durations) * 0.95)] if durations else 0.0


@dataclass(slots=True)
class Tally:
    """The calls that one generation has made of a handler, and how many of them failed; retries count.

    A call counts when it returns, or as failed when its `timeout` is over. `longest` is how long a call took
    at most, in seconds, without those that timed out. `inherited` counts the failures of changes that had
    failed on another generation first, by the number of that. Used under the slot's lock.
    """

    calls: int = 0
    failed: int = 0
    last_error: str | None = None
    longest: float = 0.0
    inherited: dict[int, int] = field(default_factory=dict[int, int])

    def without_inherited(self, generation: int) -> "Tally":
        """The same without failures of changes that had failed on that generation already, or on an older."""
        inherited = sum(count for first, count in self.inherited.items() if first <= generation)
        return Tally(self.calls - inherited, self.failed - inherited, self.last_error, self.longest)

    @property
    def ratio(self) -> float:
        """The share that failed; 0 of no calls."""
        return self.failed / self.calls if self.calls else 0.0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.calls + other.calls, self.failed + other.failed, other.last_error or self.last_error
        )

    def __str__(self) -> str:
        return f"{self.failed} of {self.calls} calls"
