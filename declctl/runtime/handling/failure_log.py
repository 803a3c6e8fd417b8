"""The failure log: what is logged of the failures of one handler, and how often.

A fault of the code may concern thousands of objects at the same time. So each distinct fault has its
traceback once, further lines have a count, and no fault fills the log. `FailureLog` decides that for handlers
of both modes, and counts faults for schedules.

Texts and causes of exceptions come from user code, and may themselves raise when they are read: each function
here has an answer for that case, and raises nothing.
"""

import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from declctl.errors import Conflict, DeclctlError, FilterFailed
from declctl.hooks.calls import describe, place_of, readable_traceback
from declctl.kit import Clock
from declctl.kit.text import exception_text
from declctl.runtime.log import Log

if TYPE_CHECKING:  # for annotations alone
    from declctl.runtime.handling.invocation import Invocation
    from declctl.runtime.handling.outcomes import Failed

E = TypeVar("E", bound=BaseException)
F = TypeVar("F")

SILENCE = 60.0  # seconds of a count of lines
# In characters: the text of an exception may contain a whole object.
_LONGEST_MESSAGE = 2000
_LONGEST_TRACEBACK = 20_000
_LONGEST_TRACEBACK_OF_LETTER = 4000  # its end: a handler may have a thousand letters
_MOST_QUIET_CONFLICTS = 5  # attempts of one item; an item that is in conflict after them fails on
_LONGEST_CHAIN = 20  # causes that are followed; a chain of causes may be a ring
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
        causes = [_raised(failure) for failure in failures]
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
            error=exception_text(causes[0])[:_LONGEST_MESSAGE],
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
        times = self.count((generation, "keys", kind, place_of(_raised(failure)), delay is None))
        # One fault of the code may concern thousands of objects.
        if not _is_round(times):
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
        if _is_round(times):
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


def is_quiet_conflict(failures: Sequence[BaseException], attempt: int) -> bool:
    """Whether an attempt has failed only because others have written meanwhile, which the next one solves."""
    return attempt <= _MOST_QUIET_CONFLICTS and all(_is_outdated(failure) for failure in failures)


def _is_outdated(failure: BaseException) -> bool:
    error = cause_of(failure, Conflict)
    if error is not None:
        return error.is_outdated
    return is_refused(failure, lambda refusal: refusal.is_outdated)


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct):
    name: str = ""
    group: str = ""
    kind: str = ""  # the name of the resource, or for some refusals the kind
    causes: list[_Cause] = []


class ClientRefusal(msgspec.Struct):
    """The Status with which an API server has refused a request of an official client, as far as needed."""

    reason: Literal["NotFound", "Conflict"]
    details: _Details = msgspec.field(default_factory=_Details)

    @property
    def is_outdated(self) -> bool:
        """Whether the write was based on a state that is not the newest, as in `Conflict`."""
        return self.reason == "Conflict" and all(
            cause.reason != "FieldManagerConflict" for cause in self.details.causes
        )


def is_refused(failure: BaseException, such: Callable[[ClientRefusal], bool]) -> bool:
    """Whether `such` a 404 or 409 of an official client has made a call fail, as `cause_of` finds it."""

    def find(error: BaseException) -> ClientRefusal | None:
        refusal = _refusal(error)
        return refusal if refusal is not None and such(refusal) else None

    return _first_in(failure, find) is not None


def _refusal(error: BaseException) -> ClientRefusal | None:
    try:
        # By its attribute: the classes of three official clients have it, and take half a second to import.
        return msgspec.json.decode(getattr(error, "body", b""), type=ClientRefusal)
    except BaseException:  # noqa: BLE001 - another body, or user code that raises when it is read
        return None


def describe_failure(failure: BaseException) -> str:
    """The failure in a sentence of at most 2000 characters, for status and log."""
    what = exception_text(failure) if isinstance(failure, FilterFailed) else describe(_raised(failure))
    return what[:_LONGEST_MESSAGE]


def internal_fault(fault: BaseException) -> str:
    """A fault of declctl itself, in words."""
    return f"internal fault of declctl: {describe_failure(fault)}"


def failure_type(failure: BaseException) -> str:
    """The class of the failure. Unlike its text, all clients of the admin server may see it."""
    return type(_raised(failure)).__name__


def end_of_tracebacks(failures: Sequence[BaseException]) -> str:
    """The end of the tracebacks, where the lines of the handler and the exception are."""
    return "".join(map(readable_traceback, failures))[-_LONGEST_TRACEBACK_OF_LETTER:]


def cause_of(failure: BaseException, kind: type[E]) -> E | None:
    """The error of a class that made a call fail; None for other failures.

    It is the failure itself, its cause (`raise … from error`), or a member of a group of such failures. An
    error that is raised in an `except` of the class without `from` is another failure.
    """
    return _first_in(failure, lambda error: error if isinstance(error, kind) else None)


def _first_in(failure: BaseException, find: Callable[[BaseException], F | None]) -> F | None:
    """What `find` finds in a failure or one of its causes; of a group, every member has to have it."""
    error: BaseException | None = failure
    # Not `__context__`: an error that is raised while another one is handled is another failure.
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            return None
        if (found := find(error)) is not None:
            return found
        if isinstance(error, BaseExceptionGroup):
            several: tuple[BaseException, ...] = error.exceptions
            of_each = [_first_in(each, find) for each in several]
            return None if None in of_each else of_each[0]
        error = _cause(error)
    return None


def _raised(failure: BaseException) -> BaseException:
    """What user code has raised; `or` is not used, because bool() of the exception may be False or raise."""
    cause = _cause(failure)
    return failure if cause is None else cause


def _cause(failure: BaseException) -> BaseException | None:
    try:
        return failure.__cause__
    except BaseException:  # noqa: BLE001 - user code: a class of exceptions may have a property of that name
        return None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _is_round(times: int) -> bool:
    """Whether a count is 1, 10, 100, and so on."""
    return str(times).rstrip("0") == "1"
