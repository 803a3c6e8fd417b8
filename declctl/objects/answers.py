r"""Answers of a server: how large they may be, how their JSON is read, and what a Status says.

Every limit on what is held of an answer stands here. A limit is for what has to be held before it can be
used, never for what is used as it comes: a LIST of a gigabyte is read item by item, and its size is not
limited. etcd takes requests of 1.5 MiB by default, and up to some 3 MiB where it is configured so; JSON may
need six bytes for one of them (`\u0001`).

Each fault in the JSON of another program becomes one error, which shows the beginning of the text. A
decoder refuses a list of a thousand objects because one of them is nested too deep. Such a document is cut
by its brackets: nothing recurses and nothing is decoded, brackets are counted, strings are skipped. That is
some hundred times slower than decoding, and is done only where decoding has failed.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from declctl.errors import MalformedAnswer, from_status
from declctl.objects.frame import UNREADABLE, KubeObject

OBJECT_BYTES = 32 * 1024 * 1024
"""One object: an item of a LIST, or a line of a WATCH with its event."""

BODY_BYTES = 128 * 1024 * 1024
"""A whole answer that is neither a LIST nor a WATCH of a source: discovery, one object, OpenAPI."""

LIST_BYTES = 256 * 1024 * 1024
"""A LIST that is not written as API servers write it, so that it is decoded when all of it is here."""

ERROR_BYTES = 1024 * 1024
"""The body of an answer that is no success; what is longer is cut."""

CHUNK_HEADER_BYTES = 4096
"""The size and the extensions of one chunk (RFC 9112, 7.1); servers write ten bytes."""

MESSAGE_CHARACTERS = 4096
"""The message of a Status, as errors and logs show it; what is longer is cut."""

RETRY_AFTER_SECONDS = 300.0
"""The longest wait that a server may ask for (Retry-After); one that asks for more is asked again then."""


def in_mebibytes(count: int) -> str:
    """A limit, as messages write it: `32 MiB`."""
    return f"{count // (1024 * 1024)} MiB" if count >= 1024 * 1024 else f"{count} bytes"


# Possessive: a string without an end is not searched backwards, which would hold each of its escapes.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
_KEY = re.compile(rb'\s*"([^"\\]*)"\s*:\s*')  # names that matter here have no escapes
_STRING, _COMMA = b'",'
_OPEN, _CLOSE = b"[{", b"]}"
_DEEPEST = 10_000  # levels: Go's decoder, and so an API server, reads no deeper


def elements(raw: bytes) -> Iterator[bytes]:
    """The elements of a JSON array; raises ValueError if its brackets do not match."""
    return _parts(raw, b"[")


def member(raw: bytes, name: str) -> bytes:
    """The value of a JSON object's field.

    Raises ValueError if there is none, or if the brackets do not match.
    """
    found: bytes | None = None
    for part in _parts(raw, b"{"):
        key = _KEY.match(part)
        if key is not None and key[1] == name.encode():
            found = part[key.end() :]
    if found is None:
        raise ValueError(f"there is no {name}")
    return found


def end_of(raw: bytes | bytearray, start: int) -> int | None:
    """Where the object or array that begins at `start` ends; None where its end is not there."""
    return BracketScan().end_of(raw, start)


class BracketScan:
    """Finds the end of one object or array that comes in parts, and scans nothing twice."""

    def __init__(self) -> None:
        self.scanned = 0  # bytes from its beginning
        self._depth = 0

    def end_of(self, raw: bytes | bytearray, start: int) -> int | None:
        """Where it ends, if it begins at `start`; None where its end is not there.

        Raises ValueError for one that nests deeper than any API server reads.
        """
        depth = self._depth
        for token in _TOKEN.finditer(raw, start + self.scanned):
            at = token.start()
            mark = raw[at]
            if mark in _OPEN:
                depth += 1
                if depth > _DEEPEST:
                    raise ValueError(f"nests deeper than {_DEEPEST} levels")
            elif mark in _CLOSE:
                depth -= 1
                if depth == 0:
                    return token.end()
            elif mark == _STRING and token.end() - at == 1:
                self.scanned, self._depth = at - start, depth
                return None  # a string has no end
        self.scanned, self._depth = len(raw) - start, depth
        return None


def _parts(raw: bytes, opener: bytes) -> Iterator[bytes]:
    """What stands between the outermost commas."""
    depth = start = 0
    if raw.lstrip()[:1] != opener:
        raise ValueError(f"it does not begin with {opener.decode()}")
    for token in _TOKEN.finditer(raw):
        at = token.start()
        mark = raw[at]
        if mark == _STRING:
            if token.end() - at == 1:
                raise ValueError("a string has no end")
        elif mark == _COMMA:
            if depth == 1:
                yield raw[start:at].strip()
                start = at + 1
        elif mark in _OPEN:
            depth += 1
            if depth == 1:
                start = at + 1
        else:
            depth -= 1
            if depth == 0:
                yield from filter(None, (raw[start:at].strip(),))
                if raw[at + 1 :].strip():
                    raise ValueError("something follows its end")
                return
    raise ValueError("it has no end")


def mapping(value: Any) -> Mapping[str, Any]:
    """The value, or an empty mapping where it is none."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def decoded(raw: bytes) -> Any:
    """What these bytes are; raises MalformedAnswer if they are no JSON."""
    try:
        return msgspec.json.decode(raw)
    except UNREADABLE as fault:
        raise no_json(raw, fault) from fault


def json_object(raw: bytes) -> KubeObject:
    """The JSON object that these bytes are; raises MalformedAnswer if they are something else."""
    obj = decoded(raw)
    if not isinstance(obj, dict):
        raise MalformedAnswer(f"an object is no JSON object; it begins with {raw[:120]!r}")
    return cast("KubeObject", obj)


def named_object(raw: bytes) -> KubeObject:
    """The same; raises MalformedAnswer if it has no name, too."""
    obj = json_object(raw)
    if not mapping(obj.get("metadata")).get("name"):
        raise no_name(raw)
    return obj


def identity_of(raw: bytes) -> Mapping[str, Any]:
    """The metadata of an object of which the rest may be unreadable.

    Raises MalformedAnswer if they are unreadable, too, or have no name.
    """
    try:
        found = json_object(raw).get("metadata")
    except MalformedAnswer as fault:
        try:
            found = decoded(member(raw, "metadata"))
        except ValueError:
            raise fault from None
    identity = mapping(found)
    if not identity.get("name"):
        raise no_name(raw)
    return identity


def no_json(raw: bytes, fault: Exception) -> MalformedAnswer:
    """The error of bytes that can't be decoded."""
    return MalformedAnswer(f"an object is no JSON: {fault}; it begins with {raw[:120]!r}")


def no_name(raw: bytes) -> MalformedAnswer:
    """The error of an object that nobody can store."""
    return MalformedAnswer(f"an object has no metadata.name; it begins with {raw[:120]!r}")


_REASON_CHARACTERS = 120


def status_error(status: Mapping[str, Any], *, retry_after: float | None = None) -> Exception:
    """The StatusError that a Status object tells of; fields of another type than metav1's are ignored.

    `retry_after` is what a header asked for, in seconds; it counts more than the Status. A longer wait
    than `RETRY_AFTER_SECONDS` becomes that, and the message says so.
    """
    details = status.get("details")
    details = cast("Mapping[str, Any]", details) if isinstance(details, Mapping) else {}
    code = status.get("code")
    asked = retry_after if retry_after is not None else details.get("retryAfterSeconds")
    wait, remark = _bounded(asked)
    message = _text(status.get("message"), MESSAGE_CHARACTERS)
    return from_status(
        code if isinstance(code, int) and 0 < code < 1000 else 500,
        _text(status.get("reason"), _REASON_CHARACTERS) or "Unknown",
        f"{message} {remark}".strip(),
        causes=tuple(_causes(details)),
        retry_after=wait,
    )


def _bounded(asked: Any) -> tuple[float | None, str]:
    """The wait in seconds, and what to say of one that is not kept; NaN and nonsense are no wait."""
    if not isinstance(asked, int | float) or not asked > 0:
        return None, ""
    longest = RETRY_AFTER_SECONDS
    if asked <= longest:
        return float(asked), ""
    said = f"{asked:g} s" if asked < 10**9 else "more than 30 years"
    return longest, f"(the server asks to wait {said}; it is asked again after {longest:g} s)"


def _text(value: Any, longest: int) -> str:
    text = value if isinstance(value, str) else ""
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters)"


def _causes(details: Mapping[str, Any]) -> Iterator[str]:
    causes = details.get("causes")
    for cause in cast("list[Any]", causes) if isinstance(causes, list) else ():
        if isinstance(cause, Mapping):
            told = cast("Mapping[str, Any]", cause)
            yield from (text for text in (told.get("reason"), told.get("message")) if isinstance(text, str))
