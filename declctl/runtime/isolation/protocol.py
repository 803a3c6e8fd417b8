"""What a process and its children for handlers say to each other, over a socket: msgpack after its length.

A child is told its handler (`Begin`), then one call after the other (`Call`). In a call it asks (`Ask`) and
is answered (`Answer`), and it tells lines of the log (`Tell`). It ends a call with a `Done` or a `Raised`.

The parent believes nothing that a child says: a message is decoded into these types, it has a largest size,
and nothing in it is code. Objects are sent as their JSON, which the parent does not parse.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

import msgspec

from declctl import errors
from declctl.errors import DeclctlError
from declctl.hooks.calls import CHILD_TRACEBACK, ChildTraceback, describe, place_of, readable_traceback
from declctl.kit.secret_values import is_secret, secret_values
from declctl.kit.text import exception_text
from declctl.objects import Cause, ObjectView, Record
from declctl.objects.frame import FrameCodec
from declctl.objects.record import Layout, record_of

LENGTH: Final = struct.Struct("!I")
"""The length of a message, which comes before it."""

MOST_BYTES: Final = 256 << 20
"""Bytes of the largest message. The text of a crash (`faulthandler`) would be a length above it."""

CANCEL: Final = "cancel"
"""The name of the question that cancels an earlier one; it has no answer."""

WRITTEN: Final = ("uid", "resource_version", "obj", "changed", "dry_run", "manager", "based_on", "digest")
"""The fields of a `Written` as it is sent, after its verb, kind and key."""

_LONGEST_TEXT = 20_000  # characters of the text or the traceback of an exception
_LONGEST_BODY = 64 * 1024  # of the answer of an API server that an official client raises
_MOST_CAUSES = 20  # of an exception
_SIMPLE = (str, int, float, bool, type(None))


class WireObject(msgspec.Struct, frozen=True, array_like=True):
    """A cached object."""

    key: str
    revision: str
    labels: bytes
    api_version: str
    kind: str
    body: bytes  # JSON


class WireChange(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=0):
    """The argument `change` of a hook, with `obj` and `old`."""

    type: str
    resource: str
    obj: WireObject
    old: WireObject | None
    is_same: bool  # `old` is `obj`, as in a Resync
    initial: bool
    final_state_unknown: bool
    reason: str
    generation: int
    received: float


class WireRequest(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=1):
    """The argument `request` of a hook."""

    key: str
    obj: WireObject | None
    attempt: int
    causes: list[tuple[str, str, str, str]]
    id: str


class Begin(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=0):
    """The first message: the handler of the child, and what all of its calls have in common."""

    handler: str
    generation: int
    resources: list[str]  # the names of `ctx.listers`
    snapshots: list[str]  # the names of `ctx.snapshots`
    dry_run: bool


class Call(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=1):
    """A call of one hook of the handler; `hook` is its position among all of them."""

    number: int  # in this child
    hook: int
    subject: WireChange | WireRequest
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
    """A question of `ctx`, by its name in `parent_context`, with its arguments.

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
    memo: dict[str, Any] | None = None


class Raised(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=6):
    """The end of a call that has raised. `memo` is as in `Done`."""

    failure: Failure
    memo: dict[str, Any] | None = None


class Ready(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=7):
    """The child waits for its first call."""

    pid: int


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag_field="_", tag=8):
    """The code of all isolated handlers is imported: from now on, children are forked."""

    faults: list[str]  # why it is not
    hooks: dict[str, list[str]]  # by handler: hook and function, in the order of `Call.hook`
    threads: int  # other threads that the import has started, which no child has


class Pending(NamedTuple):
    """A question whose answer is not there yet."""

    future: Future[Any]
    wire: Callable[[Any], Any]  # makes of the result what is sent


FromParent = Begin | Call | Answer
FromChild = Ask | Tell | Done | Raised | Ready | Loaded


class MessageReader:
    """Cuts messages out of the bytes that one side receives. `buffer` has those that are not read yet."""

    def __init__(self, kind: Any) -> None:
        self._decode: Callable[[memoryview], Any] = msgspec.msgpack.Decoder(kind).decode
        self.buffer = bytearray()

    def next(self) -> Any:
        """The next message, or None if it is not there yet. Raises ValueError for bytes that are none."""
        buffer = self.buffer
        if len(buffer) < LENGTH.size:
            return None
        end = LENGTH.size + LENGTH.unpack_from(buffer)[0]
        if end > MOST_BYTES:
            raise ValueError("it is too large")
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            message = self._decode(view[LENGTH.size : end])
        del buffer[:end]
        return message


def _plain(value: Any) -> Any:
    """What msgpack does not know, as something that it knows."""
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
    """The bytes of a message, with its length. Raises ValueError for one that is too large."""
    body = _ENCODER.encode(message)
    if len(body) > MOST_BYTES:
        raise ValueError(f"{len(body) >> 20} MiB are too much for one message of an isolated handler")
    return LENGTH.pack(len(body)) + body


def wire_object(record: Record) -> WireObject:
    """A cached object for a child. The values of a Secret are remembered: the child may send them back."""
    layout, frame = record.layout, record.frame
    if is_secret(layout.api_version, layout.kind):
        secret_values.remember(record.read())
    body = layout.codec.decode(frame)
    return WireObject(
        record.key, record.revision, record.labels_json, layout.api_version, layout.kind, bytes(body)
    )


def wire_view(view: ObjectView | None) -> WireObject | None:
    """The object of a view for a child."""
    return None if view is None else wire_object(record_of(view))


_CODEC = FrameCodec()  # it returns JSON as it is
_layouts: dict[tuple[str, str], Layout] = {}  # of a child, by apiVersion and kind


def record_from(sent: WireObject) -> Record:
    """The record of an object in a child."""
    kind = (sent.api_version, sent.kind)
    layout = _layouts.get(kind)
    if layout is None:
        layout = Layout(api_version=kind[0], kind=kind[1], positions={}, codec=_CODEC)
        _layouts[kind] = layout
    return Record(sent.key, sent.revision, sent.labels, (), sent.body, layout)


def wire_causes(causes: Iterable[Cause]) -> list[tuple[str, str, str, str]]:
    """The causes of a request for a child."""
    return [(cause.type, cause.resource, cause.key, cause.reason) for cause in causes]


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
    fields = {name: value for name, value in vars(error).items() if _is_simple(value)}
    body = getattr(error, "body", None)
    if isinstance(body, str | bytes):
        fields["body"] = (body if isinstance(body, str) else body.decode("utf-8", "replace"))[:_LONGEST_BODY]
    cause = error.__cause__
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return Failure(
        name=type(error).__name__,
        text=exception_text(error)[:_LONGEST_TEXT],
        known="" if kind is None else kind.__name__,
        fields=fields,
        cause=None if cause is None or most <= 0 else failure_of(cause, most=most - 1),
        members=[failure_of(each, most=0) for each in members[:_MOST_CAUSES]],
        traceback=readable_traceback(error)[-_LONGEST_TEXT:] if most == _MOST_CAUSES else "",
        place=place_of(error) if most == _MOST_CAUSES else "",
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
        error.args = (failure.text,)
        vars(error).update(failure.fields)
    elif failure.name in _PYTHON:
        error = _PYTHON[failure.name](failure.text)
    else:
        error = _named(failure.name)(failure.text)
        body = failure.fields.get("body")
        error.body = body if isinstance(body, str) else None
    if failure.cause is not None:
        error.__cause__ = error_from(failure.cause)
    if failure.traceback:
        setattr(error, CHILD_TRACEBACK, ChildTraceback(failure.traceback, failure.place))
    return error


# Classes that handlers catch, and whose only argument is a text.
_PYTHON: Mapping[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        TypeError,
        ValueError,
        RuntimeError,
        AttributeError,
        IndexError,
        LookupError,
        AssertionError,
        NotImplementedError,
        TimeoutError,
        ConnectionError,
        OSError,
        MemoryError,
        ZeroDivisionError,
    )
}


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(describe(error))


def _named(name: str) -> type[ChildError]:
    if name not in _known_names:
        if len(_known_names) >= _MOST_NAMES:
            return ChildError
        _known_names[name] = type(name, (ChildError,), {})
    return _known_names[name]
