"""What has made a call fail: its class, its text, and whether it is a refusal of the API server.

Texts and causes of exceptions come from user code, and may themselves raise when they are read: each function
here has an answer for that case, and raises nothing.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import msgspec

from declctl.errors import Conflict, FilterFailed
from declctl.hooks.calls import describe, readable_traceback
from declctl.kit.text import exception_text

E = TypeVar("E", bound=BaseException)
F = TypeVar("F")

_LONGEST_MESSAGE = 2000  # in characters: the text of an exception may contain a whole object
_LONGEST_TRACEBACK = 4000  # in characters, of a dead letter: a handler may have a thousand
_MOST_QUIET_CONFLICTS = 5  # attempts of one item; an item that is in conflict after them fails on
_LONGEST_CHAIN = 20  # causes that are followed; a chain of causes may be a ring


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
    what = exception_text(failure) if isinstance(failure, FilterFailed) else describe(raised_by(failure))
    return what[:_LONGEST_MESSAGE]


def failure_text(failure: BaseException) -> str:
    """The text of the failure without its class, of at most 2000 characters."""
    return exception_text(raised_by(failure))[:_LONGEST_MESSAGE]


def internal_fault(fault: BaseException) -> str:
    """A fault of declctl itself, in words."""
    return f"internal fault of declctl: {describe_failure(fault)}"


def failure_type(failure: BaseException) -> str:
    """The class of the failure. Unlike its text, all clients of the admin server may see it."""
    return type(raised_by(failure)).__name__


def end_of_tracebacks(failures: Sequence[BaseException]) -> str:
    """The end of the tracebacks, where the lines of the handler and the exception are."""
    return "".join(map(readable_traceback, failures))[-_LONGEST_TRACEBACK:]


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


def raised_by(failure: BaseException) -> BaseException:
    """What user code has raised; `or` is not used, because bool() of the exception may be False or raise."""
    cause = _cause(failure)
    return failure if cause is None else cause


def _cause(failure: BaseException) -> BaseException | None:
    try:
        return failure.__cause__
    except BaseException:  # noqa: BLE001 - user code: a class of exceptions may have a property of that name
        return None
