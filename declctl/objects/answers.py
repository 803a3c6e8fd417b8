r"""Answers of a server: limits on their size, the decoding of their JSON, and the errors of a Status.

All limits on answers are here. A limit applies to data that has to be in memory before it can be used. A LIST
is read item by item, so its size is not limited. etcd accepts requests of 1.5 MiB by default, and of some 3
MiB if it is configured so; JSON may need six bytes for one byte of them (`\u0001`).

Each fault in JSON becomes an error that shows the beginning of the text. msgspec refuses a list of a thousand
objects if one of them is nested too deep. Such a document is split at its brackets instead: brackets are
counted and strings are skipped, without recursion. That takes some hundred times as long as decoding, and is
done only after decoding has failed.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from declctl.errors import Conflict, MalformedAnswer, from_status
from declctl.kit.secret_values import secret_values
from declctl.objects.frame import UNREADABLE, KubeObject
from declctl.objects.refusals import RefusalCause, conflict_sentence, field_owners, invalid_sentence

OBJECT_BYTES = 32 * 1024 * 1024
"""One object: an item of a LIST, or a line of a WATCH with its event."""

BODY_BYTES = 128 * 1024 * 1024
"""A whole answer that is neither a LIST nor a WATCH of a source: discovery, one object, OpenAPI."""

LIST_BYTES = 256 * 1024 * 1024
"""A LIST in another format than that of API servers, which is decoded as a whole."""

ERROR_BYTES = 1024 * 1024
"""The body of an answer that is no success; the rest is dropped."""

HEAD_BYTES = 32 * 1024
"""The first line and the headers of an answer, and the trailer of its chunks; servers write one or two KB."""

CHUNK_HEADER_BYTES = 4096
"""The size and the extensions of one chunk (RFC 9112, 7.1); servers write ten bytes."""

MESSAGE_CHARACTERS = 4096
"""The message of a Status in errors and logs; the rest is dropped."""

RETRY_AFTER_SECONDS = 300.0
"""The longest wait that a server may ask for (Retry-After); after it the request is repeated anyway."""


def in_mebibytes(count: int) -> str:
    """A number of bytes for messages, such as `32 MiB`."""
    return f"{count // (1024 * 1024)} MiB" if count >= 1024 * 1024 else f"{count} bytes"


# Possessive quantifiers: without them, a string without an end would be searched backwards at each escape.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
_KEY = re.compile(rb'\s*"([^"\\]*)"\s*:\s*')  # names that matter here have no escapes
_STRING, _COMMA = b'",'
_OPEN, _CLOSE = b"[{", b"]}"
_DEEPEST = 10_000  # levels: Go's decoder, and so an API server, reads no deeper


def elements(raw: bytes) -> Iterator[bytes]:
    """The elements of a JSON array; raises ValueError if its brackets do not match."""
    return _parts(raw, b"[")


def member(raw: bytes, name: str) -> bytes:
    """The JSON of a field of a JSON object.

    Raises ValueError if there is no such field, or if the brackets do not match.
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
    """The end of the object or array that begins at `start`; None if `raw` does not have its end."""
    return BracketScan().end_of(raw, start)


class BracketScan:
    """Finds the end of one object or array that arrives in parts. No byte is scanned twice."""

    def __init__(self) -> None:
        self.scanned = 0  # bytes from the beginning of the object
        self._depth = 0  # open brackets after these bytes

    def end_of(self, raw: bytes | bytearray, start: int) -> int | None:
        """The end of the object that begins at `start`; None if it has not arrived yet.

        Raises ValueError for nesting that no API server reads.
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
                return None  # within a string
        self.scanned, self._depth = len(raw) - start, depth
        return None


def _parts(raw: bytes, opener: bytes) -> Iterator[bytes]:
    """The texts between the outermost commas of an object or array that begins with `opener`."""
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
    """The value, or an empty mapping if it is no mapping."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def decoded(raw: bytes) -> Any:
    """The value of JSON; raises MalformedAnswer for bytes that are no JSON."""
    try:
        return msgspec.json.decode(raw)
    except UNREADABLE as fault:
        raise no_json(raw, fault) from fault


def json_object(raw: bytes) -> KubeObject:
    """The value of a JSON object; raises MalformedAnswer for anything else."""
    obj = decoded(raw)
    if not isinstance(obj, dict):
        raise MalformedAnswer(f"an object is no JSON object; it begins with {raw[:120]!r}")
    return cast("KubeObject", obj)


def named_object(raw: bytes) -> KubeObject:
    """The value of a JSON object with a name; raises MalformedAnswer for anything else."""
    obj = json_object(raw)
    if not mapping(obj.get("metadata")).get("name"):
        raise no_name(raw)
    return obj


def identity_of(raw: bytes) -> Mapping[str, Any]:
    """The metadata of an object whose other fields may be unreadable.

    Raises MalformedAnswer if the metadata is unreadable, too, or has no name.
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
    """The error for bytes that can't be decoded."""
    return MalformedAnswer(f"an object is no JSON: {fault}; it begins with {raw[:120]!r}")


def no_name(raw: bytes) -> MalformedAnswer:
    """The error for an object without a name, which can't be stored."""
    return MalformedAnswer(f"an object has no metadata.name; it begins with {raw[:120]!r}")


_REASON_CHARACTERS = 120
_INVALID = 422


def status_error(status: Mapping[str, Any], *, retry_after: float | None = None) -> Exception:
    """The StatusError of a Status object. Fields of another type than in metav1 are ignored.

    `retry_after` is the wait of the header in seconds, which takes precedence over the one of the Status. A
    wait is shortened to `RETRY_AFTER_SECONDS`, and then the message says so.
    """
    details = status.get("details")
    details = cast("Mapping[str, Any]", details) if isinstance(details, Mapping) else {}
    code = status.get("code")
    asked = retry_after if retry_after is not None else details.get("retryAfterSeconds")
    wait, remark = _bounded(asked)
    causes, message = list(_causes(details)), _text(status.get("message"), MESSAGE_CHARACTERS)
    if code == _INVALID:
        message = invalid_sentence(message, causes)
    if owners := field_owners(causes):
        message = conflict_sentence(owners)
    error = from_status(
        code if isinstance(code, int) and 0 < code < 1000 else 500,
        _text(status.get("reason"), _REASON_CHARACTERS) or "Unknown",
        f"{message} {remark}".strip(),
        causes=[text for cause in causes for text in (cause.reason, cause.message) if text],
        retry_after=wait,
    )
    if isinstance(error, Conflict):
        error.fields = tuple(field for field, _ in owners)
        error.managers = tuple(dict.fromkeys(manager for _, manager in owners))
    return error


def _bounded(asked: Any) -> tuple[float | None, str]:
    """The wait in seconds, None without a valid number, and a remark for the message if it was shortened."""
    if not isinstance(asked, int | float) or not asked > 0:
        return None, ""
    longest = RETRY_AFTER_SECONDS
    if asked <= longest:
        return float(asked), ""
    said = f"{asked:g} s" if asked < 10**9 else "more than 30 years"
    return longest, f"(the server asks to wait {said}; it is asked again after {longest:g} s)"


def _text(value: Any, longest: int) -> str:
    # Before it is cut: a part of a value would not be found.
    text = secret_values.hide(value) if isinstance(value, str) else ""
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters)"


def _causes(details: Mapping[str, Any]) -> Iterator[RefusalCause]:
    causes = details.get("causes")
    for cause in cast("list[Any]", causes) if isinstance(causes, list) else ():
        if isinstance(cause, Mapping):
            fields = cast("Mapping[str, Any]", cause)
            texts = (fields.get(name) for name in RefusalCause._fields)
            yield RefusalCause(*(secret_values.hide(text) if isinstance(text, str) else "" for text in texts))
