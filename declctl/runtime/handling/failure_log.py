"""The failure log: what is logged of the failures of one handler, and how often.

A fault of the code may concern thousands of objects at the same time. So each distinct fault has its
traceback once, further lines have a count, and no fault fills the log. `FailureLog` decides that for handlers
of both modes, and counts faults for schedules.

Texts of exceptions come from user code, and may themselves raise when they are read: each function here has a
text for that case, and raises nothing.
"""

import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

from declctl.errors import Conflict, FilterFailed
from declctl.hooks.calls import describe, place_of, readable_traceback
from declctl.kit import Clock
from declctl.kit.secret_values import secret_values
from declctl.kit.text import exception_text
from declctl.runtime.log import Log

E = TypeVar("E", bound=BaseException)
F = TypeVar("F")

SILENCE = 60.0  # seconds between two lines about a handler that waits for a cache, and of a count of lines
# In characters: the text of an exception may contain a whole object.
_LONGEST_MESSAGE = 2000
_LONGEST_TRACEBACK = 20_000
_LONGEST_TRACEBACK_OF_LETTER = 4000  # its end: a handler may have a thousand letters
_MOST_QUIET_CONFLICTS = 5  # attempts of one item; an item that is in conflict after them fails on
_LONGEST_CHAIN = 20  # causes that are followed; a chain of causes may be a ring
_MOST_FAULTS = 100  # of one handler that are remembered, so that their tracebacks are logged once
_LINES_A_MINUTE = 20  # about one fault of a handler, and about all warnings of the API server
_UNREADABLE = "an exception that raises when it is read"


class FailedAttempt(msgspec.Struct, frozen=True):
    """A failed call of a handler, as the log describes it."""

    subject: str  # what the handler was called for, in words
    key: str
    generation: int
    event_id: str
    failures: Sequence[BaseException]  # of the hooks, in the order of their calls; not empty
    error: str  # the first of them, in a sentence
    attempt: int  # from 1
    most_attempts: int | None  # None: it is never given up
    retry_in: float | None  # seconds; None: it is not called again, and `then` says what becomes of it
    then: str
    trace_ids: Mapping[str, str]  # of its span; empty without traces


class LineLimit(msgspec.Struct):
    """At most twenty lines of one sort within a minute: thousands of objects may cause them at one time."""

    since: float = float("-inf")  # monotonic seconds at which the minute began
    logged: int = 0
    left_out: int = 0  # since the last line

    def admit(self, now: float) -> int | None:
        """Count a line. None if it is left out, else how many were left out before it."""
        if now - self.since >= SILENCE:
            self.since, self.logged = now, 0
        if self.logged >= _LINES_A_MINUTE:
            self.left_out += 1
            return None
        self.logged += 1
        left_out, self.left_out = self.left_out, 0
        return left_out


class FailureLog:
    """The log of the failures of one handler: a traceback for each distinct fault, then a line with a count.

    A fault is distinct by its generation, its types and the lines that raised. The newest 100 are
    remembered; one that was forgotten has its traceback logged again. A fault has at most `_LINES_A_MINUTE`
    lines each minute; further ones are left out, and the next line has their number. Used by any worker.
    """

    def __init__(self, log: Log, name: str, *, clock: Clock) -> None:
        self._log = log
        self._name = name  # of the handler
        self._clock = clock
        self._lock = threading.Lock()  # guards the three fields below
        self._lines: OrderedDict[tuple[object, ...], LineLimit] = OrderedDict()  # by fault, the newest last
        self._times: OrderedDict[tuple[object, ...], int] = OrderedDict()  # by fault, the newest last
        self._silent_until = float("-inf")  # monotonic time of the next line about a wait for a cache

    def failed(self, failed: FailedAttempt) -> None:
        """Log the failures of one attempt, and when the next one is."""
        sentence = f"{self._name} failed on {failed.subject}: {failed.error}"
        fields: dict[str, object] = {}
        fault: tuple[object, ...] = (failed.generation, _UNREADABLE)
        try:
            # The text of an exception is left out, as it may name the object.
            causes = [_raised(failure) for failure in failed.failures]
            places = [(type(cause).__qualname__, place_of(cause)) for cause in causes]
            fault = (failed.generation, *places)
            times = self.count(fault)
            if times == 1:
                traces = "".join(readable_traceback(failure) for failure in failed.failures)
                fields["traceback"] = traces[:_LONGEST_TRACEBACK]
            else:
                place = f"{places[0][1]}, " if places[0][1] else ""
                sentence += f" ({place}{times} times by now; the first has the traceback)"
        except BaseException:  # noqa: BLE001 - user code: an exception may raise where it is read
            times = 1
            fields["traceback"] = _UNREADABLE
        # The lines about changes that are given up are counted apart: these are lost.
        left_out = self._admit((*fault, failed.retry_in is None))
        if left_out is None:
            return
        if left_out:
            sentence += f" ({left_out:,} lines like this were left out)"
            fields["left_out"] = left_out
        number = f"attempt {failed.attempt}" + (f" of {failed.most_attempts}" if failed.most_attempts else "")
        then = failed.then if failed.retry_in is None else f"again in {failed.retry_in:.3g} s"
        self._log.error(
            f"{sentence}; {number}, {then}",
            **self._fields(failed),
            error_type=failure_type(failed.failures[0]),
            error=_failure_text(failed.failures[0]),
            times=times,
            max_attempts=failed.most_attempts,
            **fields,
        )

    def conflict(self, failed: FailedAttempt) -> None:
        """Log that others have written what a call has written, so that it is made again."""
        self._log.debug(
            f"{self._name} is called again on {failed.subject} in {failed.retry_in:.3g} s: {failed.error}",
            **self._fields(failed),
        )

    def _fields(self, failed: FailedAttempt) -> dict[str, object]:
        """By which a line about an attempt is found: what was called for what, and when it is again."""
        return {
            "handler": self._name,
            "key": failed.key,
            "generation": failed.generation,
            "event_id": failed.event_id,
            "attempt": failed.attempt,
            "retry_in": _rounded(failed.retry_in),
            **failed.trace_ids,
        }

    def internal(self, key: str, generation: int, fault: BaseException, *, again: bool) -> None:
        """Log a fault of declctl itself, which has ended a call, with its whole traceback."""
        try:
            trace = "".join(traceback.format_exception(fault))[:_LONGEST_TRACEBACK]
        except BaseException:  # noqa: BLE001 - user code: an exception may raise where it is read
            trace = _UNREADABLE
        then = "the call is made again" if again else "the call is not made again"
        self._log.error(
            f"{self._name}: the call for {key} has ended by an {internal_fault(fault)}; {then}; please "
            "report it",
            handler=self._name,
            key=key,
            generation=generation,
            error_type=failure_type(fault),
            traceback=trace,
        )

    def mapping_failed(
        self, place: str, generation: int, failure: BaseException, what: str, delay: float | None
    ) -> None:
        """Log the first of equal failures of a filter or mapping of a reconciler; then the 10th, and so on.

        `place` names the resource and its object, and `what` is the failure in a sentence. The next attempt
        is in `delay` seconds; None: the change is given up.
        """
        fields: dict[str, object] = {}
        kind = failure_type(failure)
        try:
            # The text is left out, as it may name the object.
            times = self.count((generation, "keys", kind, place_of(_raised(failure)), delay is None))
            if times == 1:
                fields["traceback"] = readable_traceback(failure)[:_LONGEST_TRACEBACK]
        except BaseException:  # noqa: BLE001 - user code: an exception may raise where it is read
            times = 1
        # One fault of the code may concern thousands of objects.
        if not _is_round(times):
            return
        so_far = "" if times == 1 else f" ({times:,} times by now; the first has the traceback)"
        then = "given up" if delay is None else f"again in {delay:.3g} s"
        self._log.error(
            f"{self._name}: a filter or mapping has failed on {place}: {what}{so_far}; {then}",
            handler=self._name,
            key=place.partition(" ")[2],
            generation=generation,
            error_type=kind,
            times=times,
            retry_in=_rounded(delay),
            **fields,
        )

    def expression_failed(self, key: str, generation: int, message: str) -> None:
        """Log the first of equal failures of a filter's expression; then the 10th, the 100th, and so on."""
        times = self.count((generation, "filter.expression", message))
        if _is_round(times):
            again = "" if times == 1 else f" ({times} times by now)"
            self._log.warning(
                f"{self._name}: filter.expression failed on {key}, which counts as false: {message}{again}",
                handler=self._name,
                key=key,
                generation=generation,
                times=times,
            )

    def waits(self, key: str, generation: int, what: str, event_id: str) -> None:
        """Log that the handler waits for a cache that it reads; once a minute, not for each call."""
        if self._wait_is_due():
            self._log.warning(
                f"{self._name} waits with {key}, and maybe with others: {what}; it is called again until "
                "the cache can be read, which does not count as an attempt",
                handler=self._name,
                key=key,
                generation=generation,
                event_id=event_id,
            )

    def mapping_waits(self, key: str, generation: int, what: str) -> None:
        """Log that a change waits until the reconciled kind is known; once a minute, as `waits`."""
        if self._wait_is_due():
            self._log.warning(
                f"{self._name}: the change of {key} waits, and maybe others: {what}",
                handler=self._name,
                key=key,
                generation=generation,
            )

    def _wait_is_due(self) -> bool:
        """Whether a line about a wait is due; then the next minute has none."""
        now = self._clock.monotonic()
        with self._lock:
            if now < self._silent_until:
                return False
            self._silent_until = now + SILENCE
            return True

    def _admit(self, fault: tuple[object, ...]) -> int | None:
        """Count a line about a fault. None if it is left out, else how many were left out before it."""
        now = self._clock.monotonic()
        with self._lock:
            lines = self._lines.pop(fault, None) or LineLimit()
            self._lines[fault] = lines
            if len(self._lines) > 2 * _MOST_FAULTS:
                self._lines.popitem(last=False)
            return lines.admit(now)

    def count(self, fault: tuple[object, ...]) -> int:
        """Count a fault; returns the number of equal ones that are remembered."""
        with self._lock:
            times = self._times[fault] = self._times.pop(fault, 0) + 1
            if len(self._times) > _MOST_FAULTS:
                self._times.popitem(last=False)
            return times

    @property
    def remembered(self) -> int:
        """The number of distinct faults that are remembered."""
        return len(self._times)


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

    try:
        return _first_in(failure, find) is not None
    except BaseException:  # noqa: BLE001 - user code: an exception may raise where it is read
        return False


def _refusal(error: BaseException) -> ClientRefusal | None:
    # By its attribute: the exceptions of three official clients have it, and take half a second to import.
    body = getattr(error, "body", None)
    if not isinstance(body, str | bytes):
        return None
    try:
        return msgspec.json.decode(body, type=ClientRefusal)
    except (msgspec.DecodeError, UnicodeDecodeError):  # another refusal, or the page of a proxy
        return None


def describe_failure(failure: BaseException) -> str:
    """The failure in a sentence of at most 2000 characters, for status and log."""
    try:
        what = str(failure) if isinstance(failure, FilterFailed) else describe(_raised(failure))
        return secret_values.hide(what[: 2 * _LONGEST_MESSAGE])[:_LONGEST_MESSAGE]
    except BaseException:  # noqa: BLE001 - user code: its text may raise anything
        return _UNREADABLE


def internal_fault(fault: BaseException) -> str:
    """A fault of declctl itself, in words."""
    return f"internal fault of declctl: {describe_failure(fault)}"


def failure_type(failure: BaseException) -> str:
    """The class of the failure. Unlike its text, all clients of the admin server may see it."""
    try:
        return type(_raised(failure)).__name__
    except BaseException:  # noqa: BLE001 - as above
        return "Exception"


def end_of_tracebacks(failures: Sequence[BaseException]) -> str:
    """The end of the tracebacks, where the lines of the handler and the exception are."""
    try:
        traces = "".join(map(readable_traceback, failures))
        return traces[-_LONGEST_TRACEBACK_OF_LETTER:]
    except BaseException:  # noqa: BLE001 - user code: an exception may raise where it is read
        return _UNREADABLE


def cause_of(failure: BaseException, kind: type[E]) -> E | None:
    """The error of a class that made a call fail; None for other failures.

    It is the failure itself, its cause (`raise … from error`), or a member of a group of such failures. An
    error that is raised in an `except` of the class without `from` is another failure.
    """
    try:
        return _first_in(failure, lambda error: error if isinstance(error, kind) else None)
    except BaseException:  # noqa: BLE001 - user code: its cause may raise anything
        return None


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
        error = error.__cause__
    return None


def _failure_text(failure: BaseException) -> str:
    """The text of the failure without its class, of at most 2000 characters."""
    try:
        return exception_text(_raised(failure))[:_LONGEST_MESSAGE]
    except BaseException:  # noqa: BLE001 - as above
        return _UNREADABLE


def _raised(failure: BaseException) -> BaseException:
    """What user code has raised; `or` is not used, because bool() of the exception may be False or raise."""
    return failure if failure.__cause__ is None else failure.__cause__


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _is_round(times: int) -> bool:
    """Whether a count is 1, 10, 100, and so on."""
    return str(times).rstrip("0") == "1"
