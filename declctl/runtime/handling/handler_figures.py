"""What a slot has counted of its calls, and what that says of the health of the handler.

Each way in which a call ends is counted once: for the slot, and for the generation whose code was called
(`CallTally`, by which a reload judges new code).
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from declctl.errors import DeclctlError, NotSynced
from declctl.kit import Clock
from declctl.kit.histogram import Histogram
from declctl.runtime.handling.failures import failure_type
from declctl.runtime.handling.handler_counts import LASTING_SECONDS, HandlerProblem
from declctl.runtime.handling.outcomes import (
    SUCCEEDED,
    Failed,
    Gone,
    Interrupted,
    InvocationOutcome,
    NotCalled,
    Unsynced,
)

if TYPE_CHECKING:  # for annotations alone
    from declctl.runtime.handling.binding import CallBinding
    from declctl.runtime.handling.invocation import Invocation

# Of the histograms of handlers, in seconds: from a function that only looks to one that waits for others.
HANDLER_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_DURATIONS_KEPT = 512
# A handler is unhealthy if so many calls in a row have failed, over so many seconds.
STREAK_CALLS, STREAK_SECONDS = 5, 10.0


class FailingKey(NamedTuple):
    """A key whose calls fail, and that is called again."""

    since: datetime  # its first failure, in UTC
    began: float  # the same moment, in monotonic seconds
    generation: int  # of its newest failure
    error_type: str  # of that; a text for each of many keys would take too much memory


class _FailureStreak(NamedTuple):
    """The failed calls of a handler since its last success.

    A call that waits for a cache or a suspended plugin, and a reconciler's Terminal, neither belong to it nor
    end it.
    """

    problem: HandlerProblem  # CallsFail
    began: float  # the first of them, in monotonic seconds
    has_several: bool  # they were not all for one key


@dataclass(slots=True)
class _Counts:
    """The counts of a slot since the process started: fields of `HandlerStatistics`."""

    succeeded: int = 0
    failed: int = 0  # changes that were given up
    retried: int = 0
    filtered: int = 0  # changes for which no hook was called
    invalid: int = 0  # those of them whose object does not fit its class
    expression_errors: int = 0  # evaluations of the filter's expression that failed
    timeouts: int = 0  # calls that took longer than the timeout of the handler
    terminal_failures: int = 0  # calls of a reconciler that raised Terminal
    gone: int = 0  # calls that ended as their object was gone, which they would read or write
    conflicts: int = 0  # calls that are made again as others have written meanwhile; part of `retried`
    last_error: str | None = None  # with the key of its object
    last_error_type: str | None = None
    last_error_time: datetime | None = None


class HandlerFigures:
    """The figures of one slot since the process started. From any thread."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards all of the following, and the tallies of bindings
        self._counts = _Counts()
        self._durations: deque[float] = deque(maxlen=_DURATIONS_KEPT)  # of the newest calls, in seconds
        self._lag, self._duration = Histogram(HANDLER_BOUNDS), Histogram(HANDLER_BOUNDS)  # of calls
        self._streak: _FailureStreak | None = None  # None if the newest call has succeeded
        # By key, in the order of their first failures: what has failed, and is to be called again.
        self._failing: dict[str, FailingKey] = {}

    def ended(self, invocation: "Invocation[Any]", outcome: InvocationOutcome) -> None:
        """Count how a call has ended."""
        counts, tally = self._counts, invocation.binding.tally
        took = self._clock.monotonic() - invocation.started
        with self._lock:
            if outcome.is_timed:
                self._durations.append(took)
                self._duration.add(took)
                if invocation.lag is not None:
                    self._lag.add(invocation.lag)
                if took > tally.longest and not invocation.overdue:
                    tally.longest = took
            if outcome is SUCCEEDED:
                tally.calls += 1
                counts.succeeded += 1
                self._streak = None
            elif isinstance(outcome, NotCalled):
                counts.filtered += not (outcome.is_disabled or outcome.has_left)
                counts.invalid += outcome.is_invalid
            elif isinstance(outcome, Gone):
                counts.gone += 1
            elif isinstance(outcome, Failed | Interrupted):
                if not invocation.timed_out:  # a timeout has counted itself
                    self._count_failure(invocation, outcome)
                    counts.timeouts += invocation.was_cancelled_at_timeout
                counts.terminal_failures += isinstance(outcome, Failed) and outcome.is_terminal
                counts.conflicts += isinstance(outcome, Failed) and outcome.is_conflict
                counts.retried += outcome.retry_in is not None
                counts.failed += outcome.retry_in is None
            elif isinstance(outcome, Unsynced):
                # It is no call in the tally, by which a reload judges the new code.
                self._note_error(invocation.item.key, outcome.error, NotSynced.__name__)
                counts.retried += 1

    def timed_out(self, invocation: "Invocation[Any]", failed: Failed) -> None:
        """Count a call as failed that has exceeded its timeout, and runs still."""
        with self._lock:
            self._counts.timeouts += 1
            self._count_failure(invocation, failed)

    def interrupted(self, key: str, outcome: Interrupted) -> None:
        """Note a fault of declctl itself that belongs to no call."""
        with self._lock:
            self._note_error(key, outcome.error, outcome.error_type)

    def mapping_failed(
        self, binding: "CallBinding", place: str, failure: DeclctlError, first: int | None, *, again: bool
    ) -> None:
        """Count that a filter or a mapping has failed, as a failed call. `first` is that of a `Retry`."""
        with self._lock:
            self._tally_failure(binding, place, str(failure), failure_type(failure), first)
            self._counts.retried += again
            self._counts.failed += not again

    def mapping_waits(self, key: str, fault: DeclctlError) -> None:
        """Count that a change waits until the reconciled kind is known, as a call for a cache."""
        with self._lock:
            self._note_error(key, str(fault), type(fault).__name__)
            self._counts.retried += 1

    def expression_failed(self) -> None:
        """Count an evaluation of the filter's expression that failed."""
        with self._lock:
            self._counts.expression_errors += 1

    def fails(self, key: str, generation: int, error_type: str) -> None:
        """Note that a key has failed, and will be called again."""
        with self._lock:
            failing = self._failing.get(key)
            if failing is None:
                failing = FailingKey(self._clock.now(), self._clock.monotonic(), 0, "")
            self._failing[key] = failing._replace(generation=generation, error_type=error_type)

    def fails_no_longer(self, key: str) -> None:
        """Note that a key has succeeded, or was given up."""
        if self._failing:
            with self._lock:
                self._failing.pop(key, None)

    def failing_since(self, key: str) -> datetime | None:
        """When a key has failed first, in UTC; None if it does not fail."""
        failing = self._failing.get(key)
        return None if failing is None else failing.since

    def statistics(self) -> dict[str, Any]:
        """The fields of `HandlerStatistics` that are counted here, as of this moment."""
        with self._lock:
            found = asdict(self._counts)
            found |= {"lag": self._lag.figures(), "duration": self._duration.figures()}
            durations = tuple(self._durations)
        p50, p95, p99 = percentiles(durations, 0.5, 0.95, 0.99)
        return {
            **found,
            "durations": durations,
            "p50_seconds": p50,
            "p95_seconds": p95,
            "p99_seconds": p99,
        }

    def lasting_streak(self) -> HandlerProblem | None:
        """The failed calls since the last success, if they are the state of the handler; else None."""
        streak = self._streak  # replaced as a whole, so that a reader needs no lock
        # The number alone would flap: of a hundred calls a second, five in a row may fail by chance.
        if streak is None or streak.problem.count < STREAK_CALLS:
            return None
        if self._clock.monotonic() - streak.began < STREAK_SECONDS:
            return None
        # One object whose retries are all calls that there are says nothing of a handler that has worked.
        return streak.problem if streak.has_several or not self._counts.succeeded else None

    def problems(self) -> Sequence[HandlerProblem]:
        """Whether all calls fail, and whether keys fail again and again."""
        streak = self.lasting_streak()
        found = [] if streak is None else [streak]
        now = self._clock.monotonic()
        with self._lock:
            lasting = takewhile(lambda each: now - each[1].began >= LASTING_SECONDS, self._failing.items())
            failing = list(lasting)
        if failing:
            key, worst = failing[0]
            found.append(
                HandlerProblem(
                    "KeysFail", len(failing), worst.since, key, worst.generation, error_type=worst.error_type
                )
            )
        return found

    # The methods below are called under the lock.

    def _count_failure(self, invocation: "Invocation[Any]", outcome: Failed | Interrupted) -> None:
        """Count a failed call for the slot and for the generation, once."""
        binding, key = invocation.binding, invocation.item.key
        self._tally_failure(binding, key, outcome.error, outcome.error_type, invocation.first_failed)
        # A fault of declctl, and a decision about one object, say nothing of the health of the handler.
        if isinstance(outcome, Failed) and not outcome.is_terminal:
            before, count, several = self._streak, 1, False
            since, began = self._clock.now(), self._clock.monotonic()
            if before is not None:
                since, began, count = before.problem.since, before.began, before.problem.count + 1
                several = before.has_several or before.problem.key != key
            error, kind = outcome.error, outcome.error_type
            problem = HandlerProblem("CallsFail", count, since, key, binding.generation, error, kind)
            self._streak = _FailureStreak(problem, began, several)

    def _tally_failure(
        self, binding: "CallBinding", key: str, error: str, kind: str, first_failed: int | None
    ) -> None:
        """The same for a call, or for what counts as one. `first_failed` is as in `Retry`."""
        tally = binding.tally
        tally.last_error = self._note_error(key, error, kind)
        tally.calls += 1
        tally.failed += 1
        if first_failed is not None and first_failed != binding.generation:
            tally.inherited[first_failed] = tally.inherited.get(first_failed, 0) + 1

    def _note_error(self, key: str, error: str, kind: str) -> str:
        """Note why a handler was not successful, for the status; returns the noted text."""
        self._counts.last_error = noted = f"{key}: {error}"
        self._counts.last_error_type = kind
        self._counts.last_error_time = self._clock.now()
        return noted


def percentiles(durations: Iterable[float], *shares: float) -> Sequence[float]:
    """Percentiles of durations, in seconds: the 95th for a share of 0.95. 0 without a duration."""
    ordered = sorted(durations)
    return [ordered[int(len(ordered) * share)] if ordered else 0.0 for share in shares]
