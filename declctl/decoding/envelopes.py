"""What objects come in: the envelope of a LIST, the lines of a WATCH, the kind that is written on them."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from declctl.errors import MalformedAnswer
from declctl.objects import limits
from declctl.objects.events import EventType, WatchEvent
from declctl.objects.reading import UNREADABLE, decoded, elements, json_object, mapping, member
from declctl.objects.status import status_error

CHANGES = {str(kind): kind for kind in (EventType.MODIFIED, EventType.ADDED, EventType.DELETED)}
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_OPENED = re.compile(rb'\{"type":"([A-Z]+)","object":(.*)\}\s*', re.DOTALL)
_WITHOUT_KIND = b'{"metadata":'  # how the items of a list begin
_SHOWN = 120  # characters of a name that a server made up


class ForeignObject(NamedTuple):
    """An object of another kind: why it is not wanted, and its version, if it has one."""

    reason: str
    resource_version: str


class Opening(NamedTuple):
    """How a line begins, what it tells, and where its object begins."""

    prefix: bytes
    change: EventType
    start: int


class _Page(msgspec.Struct):
    metadata: dict[str, Any]
    items: list[msgspec.Raw] | None = None
    kind: str = ""


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Version(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815 - the field's name on the wire


class _Kind(msgspec.Struct):
    apiVersion: str = ""  # noqa: N815
    kind: str = ""
    metadata: _Version = msgspec.field(default_factory=_Version)


_PAGE = msgspec.json.Decoder(_Page)
_EVENT = msgspec.json.Decoder(_Event)
_KIND = msgspec.json.Decoder(_Kind)


class Envelopes:
    """Opens them for one kind.

    `openings` are how lines begin that tell of a change of an object of that kind.
    """

    def __init__(self, api_version: str, kind: str) -> None:
        self._own = (api_version, kind)
        # Go writes a type's fields in their order, and those of a custom resource by name.
        as_type = b'{"kind":"%b","apiVersion":"%b"' % (kind.encode(), api_version.encode())
        by_name = b'{"apiVersion":"%b","kind":"%b"' % (api_version.encode(), kind.encode())
        self._items = (_WITHOUT_KIND, as_type, by_name)
        self.openings = [
            Opening(b'{"type":"%b","object":' % word.encode() + begins, change, len(word) + 20)
            for begins in ((by_name, as_type) if "." in api_version else (as_type, by_name))
            for word, change in CHANGES.items()
        ]

    def opening(self, line: bytes) -> Opening | None:
        """How this line of a WATCH begins, if it is one of the openings."""
        return next((opening for opening in self.openings if line.startswith(opening.prefix)), None)

    def line(self, line: bytes) -> tuple[str, bytes]:
        """The type and the object of any line of a WATCH; raises MalformedAnswer if it is no event."""
        try:
            event = _EVENT.decode(line)
        except UNREADABLE as fault:
            found = _OPENED.fullmatch(line) if isinstance(fault, RecursionError) else None
            if found is not None:
                return found[1].decode(), found[2]  # nested too deep even to be skipped
            message = f"a line of a WATCH is no event: {fault}; it begins with {line[:120]!r}"
            raise MalformedAnswer(message) from fault
        return event.type, bytes(event.object)

    def page(self, body: bytes) -> tuple[dict[str, Any], Iterator[bytes]]:
        """The metadata of a LIST and its items; raises MalformedAnswer if it isn't one."""
        try:
            page = _PAGE.decode(body)
        except msgspec.ValidationError as fault:
            raise _no_list(fault, body) from fault
        except UNREADABLE as fault:
            if len(body) > limits.OBJECT_BYTES:  # looking for the item at fault would take minutes
                raise _no_list(fault, body) from fault
            page = _one_by_one(body, fault)
        if page.kind == "Table" or (page.items is None and not page.kind.endswith("List")):
            # Taken for an empty list, it would empty the cache.
            raise MalformedAnswer(
                f"the answer to a LIST is a {page.kind[:_SHOWN] or 'thing'} that holds no objects; "
                f"it begins with {body[:120]!r}"
            )
        return page.metadata, map(bytes, page.items or ())

    def foreign_item(self, raw: bytes) -> ForeignObject | None:
        """The same of an item of a list, in which objects of most kinds don't say their kind."""
        return None if raw.startswith(self._items) else self.foreign(raw)

    def foreign(self, raw: bytes) -> ForeignObject | None:
        """What is wrong with the kind of an object; None where it is the expected one, or isn't said."""
        try:
            found = _KIND.decode(raw)
        except UNREADABLE:
            return None  # reading the object will tell what is wrong with it
        if found.kind in ("", self._own[1]) and found.apiVersion in ("", self._own[0]):
            return None
        api_version, kind = self._own
        said = f"{found.kind[:_SHOWN]} ({found.apiVersion[:_SHOWN]})"
        reason = f"an object is a {said} and not a {kind} ({api_version})"
        return ForeignObject(reason, found.metadata.resourceVersion)


def told(kind: str, raw: bytes) -> WatchEvent:
    """The event of a line that tells of no object: a bookmark.

    An ERROR is raised as the StatusError that it carries; anything else raises MalformedAnswer.
    """
    if kind not in ("BOOKMARK", "ERROR"):
        raise MalformedAnswer(f"a WATCH has an event of the unknown type {kind[:120]!r}")
    obj = json_object(raw)
    if kind == "ERROR":
        raise status_error(obj)
    metadata = mapping(obj.get("metadata"))
    return WatchEvent(
        EventType.BOOKMARK,
        None,
        str(metadata.get("resourceVersion") or ""),
        initial_events_end=mapping(metadata.get("annotations")).get(INITIAL_EVENTS_END) == "true",
    )


def _one_by_one(body: bytes, fault: Exception) -> _Page:
    """A list that can't be decoded because of one of its items."""
    try:
        metadata = decoded(member(body, "metadata"))
        kind = _said(body, "kind")
        items = [msgspec.Raw(item) for item in elements(member(body, "items"))]
    except (ValueError, MalformedAnswer):
        raise _no_list(fault, body) from fault
    return _Page(dict(mapping(metadata)), items, str(kind))


def _said(body: bytes, name: str) -> object:
    """The value of a field, the empty string where it is not there."""
    try:
        value = member(body, name)
    except ValueError:
        return ""
    return decoded(value)


def _no_list(fault: Exception, body: bytes) -> MalformedAnswer:
    return MalformedAnswer(f"the answer to a LIST is no list: {fault}; it begins with {body[:120]!r}")
