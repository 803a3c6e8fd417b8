"""What generations and the status read of the calls of a handler. `HandlerFigures` writes it."""

from dataclasses import dataclass, field
from datetime import datetime

import msgspec

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
