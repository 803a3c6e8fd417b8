"""The counts of a handler, and the problems that they may show. `HandlerFigures` writes them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import msgspec

# Of the histograms of handlers, in seconds: from a function that only looks to one that waits for others.
HANDLER_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_DURATIONS_KEPT = 512
# A handler is unhealthy if so many calls in a row have failed, over so many seconds.
STREAK_CALLS, STREAK_SECONDS = 5, 10.0
LASTING_SECONDS = 300.0
"""A handler is unhealthy if a call has not returned, or a key goes on failing, after so many seconds."""


class HandlerProblem(msgspec.Struct, frozen=True):
    """One reason for which a handler is unhealthy, with the worst of what it concerns.

    The worst is the oldest call that hangs, or the key that has failed for the longest time; of CallsFail, it
    is the newest call. As text, it is a sentence for people.
    """

    reason: str  # of the condition HandlersHealthy
    count: int  # the calls or keys that it concerns
    since: datetime  # when the worst of them began, in UTC
    key: str  # of the worst
    generation: int  # of the worst call, or of the newest one for the worst key
    error: str | None = None  # of CallsFail
    error_type: str | None = None  # with which it has failed

    def __str__(self) -> str:
        since, count, key = f"since {self.since:%Y-%m-%d %H:%M:%S} UTC", f"{self.count:,}", self.key
        newest = f"the newest with generation {self.generation} for {key}: {self.error}"
        calls = "1 call has" if self.count == 1 else f"{count} calls have"
        keys = "1 key fails" if self.count == 1 else f"{count} keys fail"
        return {
            "HandlerSuspended": f"suspended, as {count} of its calls do not return, that for {key} {since}",
            "CallHangs": f"{calls} not returned, the oldest for {key} {since}",
            "CallsFail": f"the last {count} calls have failed, {since}, {newest}",
            "KeysFail": f"{keys} again and again, {key} {since}: {self.error_type}",
        }[self.reason]


class FailingKey(NamedTuple):
    """A key whose calls fail, and that is called again."""

    since: datetime  # its first failure, in UTC
    began: float  # the same moment, in monotonic seconds
    generation: int  # of its newest failure
    error_type: str  # of that; a text for each of many keys would take too much memory


class FailureStreak(NamedTuple):
    """The failed calls of a handler since its last success.

    A call that waits for a cache or a suspended plugin, and a reconciler's Terminal, neither belong to it nor
    end it.
    """

    calls: int
    since: datetime  # the first of them, in UTC
    began: float  # the same moment, in monotonic seconds
    key: str = ""  # of the last one
    error: str = ""  # of that
    error_type: str = ""
    generation: int = 0  # of that
    has_several: bool = False  # they were not all for one key

    def lasts(self, now: float) -> bool:
        """Whether it is the state of the handler, and no bad moment; `now` is in monotonic seconds.

        The number alone would flap: of a hundred calls a second, five in a row may fail by chance.
        """
        return self.calls >= STREAK_CALLS and now - self.began >= STREAK_SECONDS


@dataclass(slots=True)
class HandlerCounts:
    """The counts of a slot since the process started. `HandlerFigures` writes them, under its lock."""

    succeeded: int = 0
    failed: int = 0  # changes that were given up
    retried: int = 0
    filtered: int = 0  # changes for which no hook was called
    expression_errors: int = 0  # evaluations of the filter's expression that failed
    timeouts: int = 0  # calls that took longer than the timeout of the handler
    terminal_failures: int = 0  # calls of a reconciler that raised Terminal
    gone: int = 0  # calls that ended as their object was gone, which they would read or write
    conflicts: int = 0  # calls that are made again as others have written meanwhile; part of `retried`
    last_error: str | None = None  # with the key of its object
    last_error_type: str | None = None
    last_error_time: datetime | None = None
    streak: FailureStreak | None = None  # None if the newest call has succeeded
    # Of the newest calls, in seconds.
    durations: deque[float] = field(default_factory=lambda: deque[float](maxlen=_DURATIONS_KEPT))

    def percentiles(self, *shares: float) -> Sequence[float]:
        """Percentiles of the durations, in seconds: the 95th for a share of 0.95. 0 without a call."""
        durations = sorted(self.durations)
        return [durations[int(len(durations) * share)] if durations else 0.0 for share in shares]


@dataclass(slots=True)
class CallTally:
    """The calls of a handler on one generation, retries included.

    `HandlerFigures` writes it under its lock; the probation reads it without a lock. A call counts when it
    returns, or as failed at its `timeout`. A call that fails because of an unsynced cache does not count.
    """

    calls: int = 0
    failed: int = 0
    last_error: str | None = None
    longest: float = 0.0  # seconds, without calls that timed out
    # Failures of changes that failed first on another generation, by its number.
    inherited: dict[int, int] = field(default_factory=dict[int, int])

    def without_inherited(self, generation: int) -> "CallTally":
        """A copy without failures of changes that failed first on that generation, or on an older one."""
        # A copy: a worker may add a generation meanwhile.
        inherited = sum(count for first, count in tuple(self.inherited.items()) if first <= generation)
        return CallTally(self.calls - inherited, self.failed - inherited, self.last_error, self.longest)

    @property
    def ratio(self) -> float:
        """The ratio of failed calls; 0 without calls."""
        return self.failed / self.calls if self.calls else 0.0

    def __add__(self, other: "CallTally") -> "CallTally":
        return CallTally(
            self.calls + other.calls, self.failed + other.failed, other.last_error or self.last_error
        )

    def __str__(self) -> str:
        return f"{self.failed} of {self.calls} calls"
