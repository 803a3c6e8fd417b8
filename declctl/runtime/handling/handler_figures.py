"""What a slot has counted of its calls, and what that says of the health of the handler.

Each way in which a call ends is counted once: for the slot, and for the generation whose code was called
(`CallTally`, by which a reload judges new code).
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from declctl.errors import DeclctlError, NotSynced
from declctl.kit import Clock
from declctl.kit.histogram import Histogram, HistogramFigures
from declctl.runtime.handling.handler_counts import (
    HANDLER_BOUNDS,
    LASTING_SECONDS,
    FailingKey,
    FailureStreak,
    HandlerCounts,
    HandlerProblem,
)
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


class HandlerFigures:
    """The figures of one slot since the process started. From any thread."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards all of the following, and the tallies of bindings
        self._counts = HandlerCounts()
        self._lag, self._duration = Histogram(HANDLER_BOUNDS), Histogram(HANDLER_BOUNDS)  # of calls
        # By key, in the order of their first failures: what has failed, and is to be called again.
        self._failing: OrderedDict[str, FailingKey] = OrderedDict()

    def ended(self, invocation: "Invocation[Any]", outcome: InvocationOutcome) -> None:
        """Count how a call has ended."""
        counts, tally = self._counts, invocation.binding.tally
        took = self._clock.monotonic() - invocation.started
        with self._lock:
            if outcome.is_timed:
                counts.durations.append(took)
                self._duration.add(took)
                if invocation.lag is not None:
                    self._lag.add(invocation.lag)
                if took > tally.longest and not invocation.overdue:
                    tally.longest = took
            if outcome is SUCCEEDED:
                tally.calls += 1
                counts.succeeded += 1
                counts.streak = None
            elif isinstance(outcome, NotCalled):
                counts.filtered += not outcome.is_disabled
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
        self,
        binding: "CallBinding",
        place: str,
        what: str,
        kind: str,
        first_failed: int | None,
        *,
        again: bool,
    ) -> None:
        """Count that a filter or a mapping has failed, as a failed call; `first_failed` is as in `Retry`."""
        with self._lock:
            self._tally_failure(binding, place, what, kind, first_failed)
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

    def counts(self) -> HandlerCounts:
        """A copy of the counts of this moment."""
        with self._lock:
            return replace(self._counts, durations=self._counts.durations.copy())

    def histograms(self) -> tuple[HistogramFigures, HistogramFigures]:
        """The lags of live changes, and the durations of all calls."""
        with self._lock:
            return self._lag.figures(), self._duration.figures()

    def lasting_streak(self) -> FailureStreak | None:
        """The failed calls since the last success, if they are the state of the handler; else None."""
        streak = self._counts.streak  # replaced as a whole, so that a reader needs no lock
        if streak is None or not streak.lasts(self._clock.monotonic()):
            return None
        # One object whose retries are all calls that there are says nothing of a handler that has worked.
        return streak if streak.has_several or not self._counts.succeeded else None

    def problems(self) -> Sequence[HandlerProblem]:
        """Whether all calls fail, and whether keys fail again and again."""
        found: list[HandlerProblem] = []
        if (streak := self.lasting_streak()) is not None:
            found.append(
                HandlerProblem(
                    "CallsFail",
                    streak.calls,
                    streak.since,
                    streak.key,
                    streak.generation,
                    streak.error,
                    streak.error_type,
                )
            )
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
            before = self._counts.streak
            if before is None:
                before = FailureStreak(0, self._clock.now(), self._clock.monotonic())
            self._counts.streak = before._replace(
                calls=before.calls + 1,
                key=key,
                error=outcome.error,
                error_type=outcome.error_type,
                generation=binding.generation,
                has_several=before.has_several or (before.calls > 0 and before.key != key),
            )

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
