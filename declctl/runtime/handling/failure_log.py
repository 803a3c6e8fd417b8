"""The failure log: what is logged of the failures of one handler, and how often.

A fault of the code may concern thousands of objects at the same time. So each distinct fault has its
traceback once, further lines have a count, and no fault fills the log. `FailureLog` decides that for handlers
of both modes, and counts faults for schedules.
"""

import threading
import traceback
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from declctl.errors import DeclctlError
from declctl.hooks.calls import place_of, readable_traceback
from declctl.kit import Clock
from declctl.runtime.handling.failures import failure_text, failure_type, internal_fault, raised_by
from declctl.runtime.log import Log

if TYPE_CHECKING:  # for annotations alone
    from declctl.runtime.handling.invocation import Invocation
    from declctl.runtime.handling.outcomes import Failed

SILENCE = 60.0  # seconds of a count of lines
_LONGEST_TRACEBACK = 20_000  # in characters: the text of an exception may contain a whole object
_MOST_FAULTS = 100  # of one handler that are remembered, so that their tracebacks are logged once


class LineLimit(msgspec.Struct):
    """At most `most` lines of one sort within a minute: thousands of objects may cause them at one time."""

    most: int = 20
    since: float = float("-inf")  # monotonic seconds at which the minute began
    logged: int = 0
    left_out: int = 0  # since the last line

    def admit(self, now: float) -> int | None:
        """Count a line. None if it is left out, else how many were left out before it."""
        if now - self.since >= SILENCE:
            self.since, self.logged = now, 0
        if self.logged >= self.most:
            self.left_out += 1
            return None
        self.logged += 1
        left_out, self.left_out = self.left_out, 0
        return left_out


class _Fault(msgspec.Struct):
    """What was counted of equal faults."""

    times: int = 0
    retried: LineLimit = msgspec.field(default_factory=LineLimit)
    # The lines about changes that are given up are counted apart: these are lost.
    given_up: LineLimit = msgspec.field(default_factory=LineLimit)


class FailureLog:
    """The log of the failures of one handler: a traceback for each distinct fault, then a line with a count.

    A fault is distinct by its generation, its types and the lines that raised. The newest 100 are
    remembered; one that was forgotten has its traceback logged again. A fault has at most 20 lines each
    minute; further ones are left out, and the next line has their number. Used by any worker.
    """

    def __init__(self, log: Log, name: str, *, clock: Clock) -> None:
        self._log = log
        self._name = name  # of the handler
        self._clock = clock
        self._lock = threading.Lock()  # guards the fields below
        self._faults: OrderedDict[tuple[object, ...], _Fault] = OrderedDict()  # the newest last
        self._waits = LineLimit(most=1)  # lines about waits for caches

    def failed(self, invocation: "Invocation[Any]", outcome: "Failed", then: str) -> None:
        """Log the failures of an attempt, and when the next one is; `then` says what follows the last one."""
        failures, retry_in = invocation.failures, outcome.retry_in
        sentence = f"{self._name} failed on {invocation.subject}: {outcome.error}"
        # The text of an exception is left out, as it may name the object.
        causes = [raised_by(failure) for failure in failures]
        places = [(type(cause).__qualname__, place_of(cause)) for cause in causes]
        with self._lock:
            fault = self._counted((invocation.binding.generation, *places))
            times = fault.times
            left_out = (fault.given_up if retry_in is None else fault.retried).admit(self._clock.monotonic())
        if left_out is None:
            return
        fields: dict[str, object] = {}
        if times == 1:
            fields["traceback"] = "".join(map(readable_traceback, failures))[:_LONGEST_TRACEBACK]
        else:
            place = f"{places[0][1]}, " if places[0][1] else ""
            sentence += f" ({place}{times} times by now; the first has the traceback)"
        if left_out:
            sentence += f" ({left_out:,} lines like this were left out)"
            fields["left_out"] = left_out
        most = invocation.most_attempts
        number = f"attempt {outcome.attempt}" + (f" of {most}" if most else "")
        if retry_in is not None:
            then = f"again in {retry_in:.3g} s"
        self._log.error(
            f"{sentence}; {number}, {then}",
            **self._attempt(invocation, outcome),
            error_type=failure_type(failures[0]),
            error=failure_text(failures[0]),
            times=times,
            max_attempts=most,
            **fields,
        )

    def conflict(self, invocation: "Invocation[Any]", outcome: "Failed") -> None:
        """Log that others have written what a call has written, so that it is made again."""
        self._log.debug(
            f"{self._name} is called again on {invocation.subject} in {outcome.retry_in:.3g} s: "
            f"{outcome.error}",
            **self._attempt(invocation, outcome),
        )

    def _attempt(self, invocation: "Invocation[Any]", outcome: "Failed") -> dict[str, object]:
        """By which a line about an attempt is found: what was called for what, and when it is again."""
        return {
            **self._place(invocation.item.key, invocation.binding.generation),
            "event_id": invocation.event_id,
            "attempt": outcome.attempt,
            "retry_in": _rounded(outcome.retry_in),
            **({} if invocation.trace is None else invocation.trace.ids()),
        }

    def _place(self, key: str, generation: int) -> dict[str, object]:
        return {"handler": self._name, "key": key, "generation": generation}

    def internal(self, key: str, generation: int, fault: BaseException, *, again: bool) -> None:
        """Log a fault of declctl itself, which has ended a call, with its whole traceback."""
        try:
            trace = "".join(traceback.format_exception(fault))[:_LONGEST_TRACEBACK]
        except BaseException:  # noqa: BLE001 - user code: an exception may raise where it is read
            trace = "an exception that raises when it is read"
        then = "the call is made again" if again else "the call is not made again"
        self._log.error(
            f"{self._name}: the call for {key} has ended by an {internal_fault(fault)}; {then}; please "
            "report it",
            **self._place(key, generation),
            error_type=failure_type(fault),
            traceback=trace,
        )

    def mapping_failed(self, place: str, generation: int, failure: DeclctlError, delay: float | None) -> None:
        """Log the first of equal failures of a filter or mapping of a reconciler; then the 10th, and so on.

        `place` names the resource and its object. The next attempt is in `delay` seconds; None: the change is
        given up.
        """
        kind = failure_type(failure)
        # The text is left out, as it may name the object.
        times = self.count((generation, "keys", kind, place_of(raised_by(failure)), delay is None))
        # One fault of the code may concern thousands of objects.
        if not is_round(times):
            return
        so_far = "" if times == 1 else f" ({times:,} times by now; the first has the traceback)"
        then = "given up" if delay is None else f"again in {delay:.3g} s"
        self._log.error(
            f"{self._name}: a filter or mapping has failed on {place}: {failure}{so_far}; {then}",
            **self._place(place.partition(" ")[2], generation),
            error_type=kind,
            times=times,
            retry_in=_rounded(delay),
            **({"traceback": readable_traceback(failure)[:_LONGEST_TRACEBACK]} if times == 1 else {}),
        )

    def expression_failed(self, key: str, generation: int, message: str) -> None:
        """Log the first of equal failures of a filter's expression; then the 10th, the 100th, and so on."""
        times = self.count((generation, "filter.expression", message))
        if is_round(times):
            again = "" if times == 1 else f" ({times} times by now)"
            self._log.warning(
                f"{self._name}: filter.expression failed on {key}, which counts as false: {message}{again}",
                **self._place(key, generation),
                times=times,
            )

    def waits(self, key: str, generation: int, what: str, event_id: str) -> None:
        """Log that the handler waits for a cache that it reads; once a minute, not for each call."""
        self._wait(
            f"{self._name} waits with {key}, and maybe with others: {what}; it is called again until the "
            "cache can be read, which does not count as an attempt",
            **self._place(key, generation),
            event_id=event_id,
        )

    def mapping_waits(self, key: str, generation: int, what: str) -> None:
        """Log that a change waits until the reconciled kind is known; once a minute, as `waits`."""
        self._wait(
            f"{self._name}: the change of {key} waits, and maybe others: {what}",
            **self._place(key, generation),
        )

    def _wait(self, sentence: str, **fields: object) -> None:
        with self._lock:
            left_out = self._waits.admit(self._clock.monotonic())
        if left_out is not None:
            self._log.warning(sentence, **fields)

    def count(self, fault: tuple[object, ...]) -> int:
        """Count a fault; returns the number of equal ones that are remembered."""
        with self._lock:
            return self._counted(fault).times

    def _counted(self, fault: tuple[object, ...]) -> _Fault:
        """Count a fault. Under the lock."""
        known = self._faults[fault] = self._faults.pop(fault, None) or _Fault()
        known.times += 1
        if len(self._faults) > _MOST_FAULTS:
            self._faults.popitem(last=False)
        return known


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def is_round(times: int) -> bool:
    """Whether a count is 1, 10, 100, and so on."""
    return str(times).rstrip("0") == "1"
