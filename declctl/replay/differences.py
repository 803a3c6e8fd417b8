"""What differs between the calls of a recording and those of a replay, and the report about it."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec

from declctl.objects.differences import diff
from declctl.recording.entries import CallEnd, CallRequest
from declctl.runtime.recorder import EndedCall

# What the answers before decide, and not the code; and that the process of then has run with --dry-run.
_NOT_CONTENT = re.compile(rb'"(?:resourceVersion|lastTransitionTime)":"[^"]*",?|"dryRun":\["All"\],?')
# A value of several lines is hidden in one or in parts, and a replay has one of one line in its place.
_HIDDEN_LINES = re.compile(rb"(?:\(hidden\)(?:\\+[rn])*)+")
_MOST_PATHS = 8  # of one write that are named
_LONGEST = 200  # characters of a value
_READS = ("GET", "HEAD")


class RequestContent(msgspec.Struct, frozen=True):
    """What makes two requests equal."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...]
    body: bytes

    @classmethod
    def of(cls, method: str, path: str, params: Mapping[str, str], body: bytes) -> "RequestContent":
        """The content of a request with a JSON body."""
        if body:
            content = _HIDDEN_LINES.sub(b"(hidden)", _NOT_CONTENT.sub(b"", body).replace(b",}", b"}"))
            body = msgspec.json.encode(msgspec.json.decode(content), order="sorted")
        return cls(method, path, tuple(sorted(each for each in params.items() if each[0] != "dryRun")), body)

    @property
    def is_write(self) -> bool:
        """Whether it would change something."""
        return self.method not in _READS

    def has_place_of(self, other: "RequestContent") -> bool:
        """Whether both do the same with the same object, with whatever body."""
        return (self.method, self.path) == (other.method, other.path)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def content_of(request: CallRequest) -> RequestContent:
    """The content of a recorded request."""
    return RequestContent.of(request.method, request.path, request.params, request.body)


class CallDifference(msgspec.Struct, frozen=True):
    """One call that differs, is missing, or is new."""

    kind: str  # different, missing or extra
    time: datetime
    handler: str
    key: str
    details: Sequence[str] = ()  # what then, what now


class ReplayReport(msgspec.Struct, kw_only=True):
    """The result of a replay."""

    recording: str
    controller: str
    version: str  # of the declctl that has recorded
    began: datetime
    seconds: float = 0.0  # of the recording that were played
    took: float = 0.0  # seconds of this machine
    events: int = 0
    calls: int = 0  # of the recording, that were compared
    same: int = 0
    different: int = 0
    missing: int = 0  # calls that today's code does not make
    extra: int = 0  # calls that only today's code makes
    writes: int = 0  # of the recording
    writes_alike: int = 0
    reloads: int = 0
    lost: int = 0  # entries that the recording lacks
    torn: int = 0  # bytes at its end that could not be read
    notes: list[str] = []
    differences: list[CallDifference] = []
    marks: list[str] = []  # reloads of then

    @property
    def is_alike(self) -> bool:
        """Whether nothing differs."""
        return not (self.different or self.missing or self.extra)


def compare_ends(then: CallEnd, now: EndedCall, *, lost_answer: bool = False) -> Sequence[str]:
    """What differs between the ends of a call, in sentences.

    After a `lost_answer` the types of errors are not compared: how a connection has broken is not recorded.
    """
    found: list[str] = []
    same_error = then.error_type == now.error_type or (lost_answer and then.error_type and now.error_type)
    if then.outcome != now.outcome or not same_error:
        found.append(
            f"outcome: {_outcome(then.outcome, then.error_type, then.error)} then, "
            f"{_outcome(now.outcome, now.error_type, now.error)} now"
        )
    if then.requeue != now.requeue:
        found.append(f"requeue: {_seconds(then.requeue)} then, {_seconds(now.requeue)} now")
    return found


def compare_writes(
    then: Sequence[RequestContent], now: Sequence[RequestContent]
) -> tuple[int, Sequence[str]]:
    """How many writes of then are made now, too, and what differs, in sentences."""
    left, new = list(then), list[RequestContent]()
    for each in now:
        if each in left:
            left.remove(each)
        else:
            new.append(each)
    alike, found = len(then) - len(left), list[str]()
    for each in new:
        before = next((other for other in left if other.has_place_of(each)), None)
        if before is None:
            found.append(f"{each}: only now")
        else:
            left.remove(before)
            found.append(f"{each}: {_paths(before, each)}")
    found += [f"{each}: only then" for each in left]
    return alike, found


def _paths(then: RequestContent, now: RequestContent) -> str:
    bodies = [msgspec.json.decode(each.body) if each.body else None for each in (then, now)]
    if all(isinstance(each, dict) for each in bodies):
        found = diff(*bodies)
        shown = [
            f"{each.path} was {_value(each.old)} and is {_value(each.new)}" for each in found[:_MOST_PATHS]
        ]
        if (more := len(found) - _MOST_PATHS) > 0:
            shown.append(f"and {more} more")
        return "; ".join(shown) or "other query parameters"
    return f"{_text(then.body)} then, {_text(now.body)} now"


def _value(value: object) -> str:
    return "not there" if value is None else _text(msgspec.json.encode(value, enc_hook=_plain))


def _plain(value: object) -> object:
    """What is read-only as JSON has it."""
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else str(value)


def _text(json: bytes) -> str:
    text = json.decode().strip('"') or "no body"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _outcome(outcome: str, error_type: str, error: str) -> str:
    if not error_type:
        return outcome
    return f"{outcome} ({error if error.startswith(error_type) else f'{error_type}: {error}'})"


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:g} s"
