"""The messages that wait for one target, limited in rate and number. Pure but for its state.

A message that finds no token waits. If more than `MOST_WAITING` wait, the least severe of them is suppressed:
its changes are counted, and the next message has their number. The same holds for a message that could not be
sent. Each change that is put in is in a message that was sent (listed, or in a count), or still waits.

Used under the lock of its target. Times are seconds of the clock.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from declctl import BucketRateLimiter

from declctl_notify.groups import Message
from declctl_notify.settings import SEVERITIES, RateLimit, RetrySettings

MOST_WAITING: Final = 10
"""Messages of one target that wait for a token."""


class Clock(Protocol):
    """A monotonic clock, in seconds."""

    def monotonic(self) -> float:
        """Seconds since any start."""
        ...


@dataclass(slots=True)
class Suppressed:
    """Changes that are in no message, and of which the next message tells."""

    changes: int = 0
    since: float = 0.0  # when the first of them was suppressed

    def add(self, changes: int, since: float) -> None:
        """Count more changes."""
        self.since = min(self.since, since) if self.changes else since
        self.changes += changes


@dataclass(slots=True)
class Delivery:
    """A message that is being sent, with the suppressed changes of which it tells."""

    message: Message
    suppressed: Suppressed
    attempts: int = 0  # that have failed

    @property
    def changes(self) -> int:
        """The changes in the message, and those that were suppressed before it."""
        return self.message.changes + self.suppressed.changes


class Outbox:
    """Decides which message a target gets next, and when. `closing`: no more waits for tokens."""

    def __init__(self, limit: RateLimit, retry: RetrySettings, *, clock: Clock) -> None:
        self._clock = clock
        self._limit = limit
        self._bucket = self._new_bucket()
        self._retry = retry
        self._waiting: list[Message] = []  # the most severe first, else the oldest
        self._current: Delivery | None = None  # that was given to the caller, and is not finished
        self._not_before: float | None = None  # when the next message may be sent; None without a reservation
        self._suppressed = Suppressed()
        self.closing = False
        self.sent = 0  # messages
        self.failed_attempts = 0
        self.lost = 0  # messages that were given up; their changes are told in a summary
        self.suppressed_messages = 0

    @property
    def waiting(self) -> int:
        """The changes that wait: in messages, and for a summary."""
        current = self._current.changes if self._current is not None else 0
        return current + self._suppressed.changes + sum(message.changes for message in self._waiting)

    @property
    def is_empty(self) -> bool:
        """Whether no message waits. Suppressed changes may wait for a message that tells of them."""
        return self._current is None and not self._waiting

    def configure(self, limit: RateLimit, retry: RetrySettings) -> None:
        """Use other settings from now on. The tokens stay, unless the limit is another one."""
        self._retry = retry
        if limit != self._limit:
            self._limit = limit
            self._bucket = self._new_bucket()
            # The reservation of the old bucket may be far away.
            self._not_before = None if self._current is None else self._not_before

    def put(self, message: Message) -> None:
        """Let a message wait; suppress the least severe one if there are too many."""
        rank = SEVERITIES.index(message.severity)
        at = next(
            (i for i, one in enumerate(self._waiting) if SEVERITIES.index(one.severity) < rank),
            len(self._waiting),
        )
        self._waiting.insert(at, message)
        if len(self._waiting) > MOST_WAITING:
            out = self._waiting.pop()
            self.suppressed_messages += 1
            self._suppressed.add(out.changes, self._clock.monotonic())

    @property
    def next_due(self) -> float | None:
        """When to call `take` next; None if nothing waits."""
        if self.is_empty:
            return None
        if self._not_before is None:
            self._not_before = self._clock.monotonic() + self._bucket.when("message")
        if self.closing and self._current is None:
            return self._clock.monotonic()
        return self._not_before

    def take(self) -> Delivery | None:
        """The message that may be sent now, None if none may. The caller tries it and calls `finish`."""
        due = self.next_due
        if due is None or due > self._clock.monotonic():
            return None
        if self._current is None:
            self._current = Delivery(self._waiting.pop(0), self._suppressed)
            self._suppressed = Suppressed()
        return self._current

    def finish(self, *, sent: bool) -> None:
        """Note the result of the message that `take` returned last. It waits for a retry, or is done."""
        delivery = self._current
        if delivery is None:
            raise RuntimeError("finish belongs to a message that take has returned")
        if sent:
            self.sent += 1
            self._current = self._not_before = None
            return
        self.failed_attempts += 1
        delivery.attempts += 1
        now = self._clock.monotonic()
        if delivery.attempts < self._retry.max_attempts:
            delay = self._retry.initial_backoff * 2.0 ** min(delivery.attempts - 1, 60)
            self._not_before = now + min(delay, self._retry.max_backoff)
            return
        self.lost += 1
        since = delivery.suppressed.since if delivery.suppressed.changes else now
        self._suppressed.add(delivery.changes, since)
        self._current = self._not_before = None

    def _new_bucket(self) -> BucketRateLimiter:
        # The bucket reads `monotonic` of its clock, and nothing else.
        return BucketRateLimiter(self._limit.qps, self._limit.burst, clock=self._clock)  # type: ignore[arg-type]
