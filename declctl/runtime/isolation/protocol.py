"""What a process and its children for handlers say to each other, over a socket: msgpack after its length.

A child is told its handler (`Begin`), then one call after the other (`Call`). In a call it asks (`Ask`) and
is answered (`Answer`), and it tells lines of the log (`Tell`). It ends a call with a `Done` or a `Raised`.

The parent believes nothing that a child says: a message is decoded into these types, it has a largest size,
and nothing in it is code. Objects are sent as their JSON, which the parent does not parse.
"""

import builtins
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, cast

import msgspec

from declctl import errors
from declctl.errors import DeclctlError
from declctl.hooks.calls import CHILD_TRACEBACK, ChildTraceback, describe, place_of, readable_traceback
from declctl.kit.secret_values import is_secret, secret_values
from declctl.kit.text import exception_text
from declctl.objects import Change, ObjectView, Record, Request
from declctl.objects.plain import plain_layout
from declctl.objects.record import Layout, record_of

LENGTH: Final = struct.Struct("!I")
"""The length of a message, which comes before it."""

MOST_BYTES: Final = 256 << 20
"""Bytes of the largest message. The text of a crash (`faulthandler`) would be a length above it."""

CANCEL: Final = "cancel"
"""The name of the question that cancels an earlier one; it has no answer."""

_LONGEST_TEXT = 20_000  # characters of the text or the traceback of an exception
_LONGEST_BODY = 64 * 1024  # of the answer of an API server that an official client raises
_MOST_CAUSES = 20  # of an exception
_SIMPLE = (str, int, float, bool, type(None))


class Begin(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=0):
    """The first message: the handler of the child, and what all of its calls have in common."""

    handler: str
    resource: str  # its name in the manifest
    generation: int
    resources: list[str]  # the names of `ctx.listers`
    snapshots: list[str]  # the names of `ctx.snapshots`
    dry_run: bool


class Call(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=1):
    """A call of one hook of the handler; `hook` is its position among all of them."""

    number: int  # in this child
    hook: int
    change: Change | None  # or
    request: Request | None
    level: int = 0  # of the log: lower lines are not sent


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An exception. One that declctl knows is made again with its class; any other has its name only."""

    name: str
    text: str
    known: str = ""  # its nearest base class in `declctl.errors`
    fields: dict[str, Any] = {}  # its plain attributes
    cause: "Failure | None" = None
    members: list["Failure"] = []  # of a group
    traceback: str = ""
    place: str = ""


class Answer(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=2):
    """The answer to the question of a number, in the call of a number."""

    call: int
    number: int
    value: Any = None
    failure: Failure | None = None


class Ask(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=3):
    """A question of `ctx`, by its name in `parent/answers.py`, with its arguments.

    `call` is the number of its call in the child: a question that comes too late is none of the next call.
    """

    call: int
    number: int
    name: str
    given: list[Any] = []


class Tell(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=4):
    """A line of the log."""

    logger: str | None  # of the logging module; None for `ctx.log`
    level: str
    event: str
    fields: dict[str, Any] = {}


class Done(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=5):
    """The end of a call that has returned. `memo` is None if it is as before."""

    after: float | None = None  # of a Requeue
    wrong: str = ""  # the type of a value that no hook may return; empty for None and Requeue
    memo: str | None = None  # JSON


class Raised(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=6):
    """The end of a call that has raised. `memo` is as in `Done`."""

    failure: Failure
    memo: str | None = None


class Ready(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=7):
    """The child waits for its first call."""

    pid: int


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=8):
    """The code of all isolated handlers is imported: from now on, children are forked."""

    faults: list[str]  # why it is not
    hooks: dict[str, list[str]]  # by handler: hook and function, in the order of `Call.hook`
    threads: int  # other threads that the import has started, which no child has


FromParent = Begin | Call | Answer
FromChild = Ask | Tell | Done | Raised | Ready | Loaded


class MessageReader:
    """Cuts messages out of the bytes that one side receives. `buffer` has those that are not read yet."""

    def __init__(self, kind: Any) -> None:
        self._decode: Callable[[memoryview], Any] = msgspec.msgpack.Decoder(kind, dec_hook=from_plain).decode
        self.buffer = bytearray()

    def next(self) -> Any:
        """The next message, or None if it is not there yet. Raises ValueError for bytes that are none."""
        buffer = self.buffer
        if len(buffer) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack_from(buffer)
        if size > MOST_BYTES:
            raise ValueError("it is too large")
        end = LENGTH.size + size
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            message = self._decode(view[LENGTH.size : end])
        del buffer[:end]
        return message


def _plain(value: Any) -> Any:
    """What msgpack does not know, as something that it knows."""
    if isinstance(value, Layout):
        return value.api_version, value.kind
    if isinstance(value, str):  # a subclass, such as ObjectKey
        return str.__str__(value)
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return dict(value)  # type: ignore[reportUnknownArgumentType]
    if isinstance(value, Iterable):
        return list(value)  # type: ignore[reportUnknownArgumentType]
    return str(value)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)


def encoded(message: FromParent | FromChild) -> bytes:
    """The bytes of a message, with its length.

    Raises ValueError for one that is too large, or has a text that is no UTF-8; OverflowError for a number of
    more than 64 bits.
    """
    body = _ENCODER.encode(message)
    if len(body) > MOST_BYTES:
        raise ValueError(f"{len(body) >> 20} MiB are too much for one message of an isolated handler")
    return LENGTH.pack(len(body)) + body


def memo_text(memo: Mapping[str, Any]) -> str:
    """A memo as JSON, which has numbers and texts that msgpack lacks. Raises TypeError for what has none."""
    return json.dumps(dict(memo))


def shown(value: object) -> Any:
    """A value of user code that can be sent, for people: plain values as they are, others as texts."""
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 64 else str(value)
    if isinstance(value, float | None):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [shown(each) for each in cast("Iterable[object]", value)]
    if isinstance(value, dict):
        return {shown_text(name): shown(each) for name, each in cast("dict[object, object]", value).items()}
    return shown_text(exception_text(value) if isinstance(value, BaseException) else value)


def shown_text(value: object) -> str:
    """The text of a value of user code. Surrogates, as `os.fsdecode` makes them, become backslashes."""
    try:
        return str.encode(str(value), "utf-8", "backslashreplace").decode()
    except BaseException:  # noqa: BLE001 - user code
        return f"(a {type(value).__name__}, which can't be shown)"


def sendable(view: ObjectView) -> ObjectView:
    """The view for a child: its object is sent as JSON, with nothing of the cache.

    The values of a Secret are remembered: the child may send them back.
    """
    record = record_of(view)
    layout = record.layout
    if is_secret(layout.api_version, layout.kind):
        secret_values.remember(record.read())
    body = bytes(layout.codec.decode(record.frame))
    plain = plain_layout(layout.api_version, layout.kind)
    return ObjectView(Record(record.key, record.revision, record.labels_json, (), body, plain))


def from_plain(kind: type, value: Any) -> Any:
    """The value of a class that msgpack does not know, in a child."""
    return plain_layout(*value) if kind is Layout else kind(value)


# Exceptions


class ChildError(Exception):
    """An exception of a class that only the child knows, under its name. `body` is as in official clients."""

    body: str | None = None


_known_names: dict[str, type[ChildError]] = {}
_MOST_NAMES = 256  # a class for each name would otherwise stay for ever


def failure_of(error: BaseException, *, most: int = _MOST_CAUSES) -> Failure:
    """An exception as it is sent. One that can't be read, as user code may break it, has its name only."""
    try:
        return _failure_of(error, most)
    except BaseException:  # noqa: BLE001 - user code
        return Failure(type(error).__name__, "(it can't be read)")


def _failure_of(error: BaseException, most: int) -> Failure:
    kind = next((c for c in type(error).__mro__ if getattr(errors, c.__name__, None) is c), None)
    fields = {shown_text(name): shown(value) for name, value in vars(error).items() if _is_simple(value)}
    body = getattr(error, "body", None)
    if isinstance(body, str | bytes):
        text = body if isinstance(body, str) else body.decode("utf-8", "replace")
        fields["body"] = shown_text(text[:_LONGEST_BODY])
    cause = error.__cause__
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return Failure(
        name=type(error).__name__,
        text=shown_text(exception_text(error)[:_LONGEST_TEXT]),
        known="" if kind is None else kind.__name__,
        fields=fields,
        cause=None if cause is None or most <= 0 else failure_of(cause, most=most - 1),
        members=[failure_of(each, most=0) for each in members[:_MOST_CAUSES]],
        traceback=shown_text(readable_traceback(error)[-_LONGEST_TEXT:]) if most == _MOST_CAUSES else "",
        place=shown_text(place_of(error)) if most == _MOST_CAUSES else "",
    )


def _is_simple(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(each, str) for each in value)  # type: ignore[reportUnknownVariableType]
    return isinstance(value, _SIMPLE)


def error_from(failure: Failure) -> BaseException:
    """The exception of a failure. Its traceback is a text (`ChildTraceback`)."""
    kind = getattr(errors, failure.known, None) if failure.known else None
    if failure.members:
        several = [_as_exception(error_from(each)) for each in failure.members]
        error: BaseException = ExceptionGroup(failure.text, several)
    elif isinstance(kind, type) and issubclass(kind, DeclctlError):
        # Without its constructor: the text is complete already.
        error = kind.__new__(kind, failure.text)
        vars(error).update(failure.fields)
    elif (known := _python_error(failure)) is not None:
        error = known
    else:
        error = _named(failure.name)(failure.text)
        body = failure.fields.get("body")
        error.body = body if isinstance(body, str) else None
    if failure.cause is not None:
        error.__cause__ = error_from(failure.cause)
    if failure.traceback:
        setattr(error, CHILD_TRACEBACK, ChildTraceback(failure.traceback, failure.place))
    return error


def _python_error(failure: Failure) -> Exception | None:
    """The exception of a class of Python whose only argument may be a text; None for others."""
    kind = getattr(builtins, failure.name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(Exception):
            error = kind(failure.text)
            return error if str(error) == failure.text else None
    return None


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(describe(error))


def _named(name: str) -> type[ChildError]:
    if name not in _known_names:
        if len(_known_names) >= _MOST_NAMES:
            return ChildError
        _known_names[name] = type(name, (ChildError,), {})
    return _known_names[name]
