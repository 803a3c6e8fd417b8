"""Envelopes of objects: a LIST and its items, the events of a WATCH, and the kind of each object.

The items of a LIST are read one by one while the answer arrives. Finding the end of an item has to be exact
and cheaper than decoding it. So the next position is searched at which the bytes are those with which the
first item began, and the bytes before it are decoded. Neither a proper part of a JSON object nor a sequence
of two is an object: if the decoder accepts the bytes, they are the item. Otherwise the end of the item is
found by its brackets. That is slow, and happens to broken items, and to items that contain the beginning of
an item.

The last item and the text around the items are decoded with the rest of the answer. So is the whole answer,
if it is not written as API servers write it.

The size of a list is not limited. An item may have `answers.OBJECT_BYTES`, and a list that can't be read item
by item `answers.LIST_BYTES`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from declctl.decoding.decoders import Restriction, WholeObjects
from declctl.errors import MalformedAnswer
from declctl.objects import answers
from declctl.objects.answers import (
    BracketScan,
    decoded,
    elements,
    json_object,
    mapping,
    member,
    status_error,
)
from declctl.objects.frame import UNREADABLE
from declctl.objects.record import EventType, ListPage, Record, WatchEvent

CHANGES = {str(kind): kind for kind in (EventType.MODIFIED, EventType.ADDED, EventType.DELETED)}
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_OPENED = re.compile(rb'\{"type":"([A-Z]+)","object":(.*)\}\s*', re.DOTALL)
_WITHOUT_KIND = b'{"metadata":'  # the beginning of items without a kind
_SHOWN = 120  # characters of a kind or version in messages


class UnexpectedKind(NamedTuple):
    """What is said of an object of another kind than the expected one."""

    reason: str  # a sentence that names both kinds
    resource_version: str  # of the object; empty if it has none


class Opening(NamedTuple):
    """The beginning of a line of a WATCH, as API servers write it."""

    prefix: bytes
    change: EventType  # the type of the event
    start: int  # where the object begins


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
    """Reads the envelopes of objects of one kind. Used by one thread.

    `openings` are the beginnings of events with an object of this kind.
    """

    def __init__(self, api_version: str, kind: str) -> None:
        self._own = (api_version, kind)
        # Go writes the fields of a built-in type in their declared order, and those of a custom resource by
        # name.
        as_type = b'{"kind":"%b","apiVersion":"%b"' % (kind.encode(), api_version.encode())
        by_name = b'{"apiVersion":"%b","kind":"%b"' % (api_version.encode(), kind.encode())
        self._items = (_WITHOUT_KIND, as_type, by_name)
        self.openings = [
            Opening(b'{"type":"%b","object":' % word.encode() + begins, change, len(word) + 20)
            for begins in ((by_name, as_type) if "." in api_version else (as_type, by_name))
            for word, change in CHANGES.items()
        ]

    def opening(self, line: bytes) -> Opening | None:
        """The opening with which a line of a WATCH begins; None for any other line."""
        # At most six comparisons, and only for a line that begins otherwise than the one before.
        return next((opening for opening in self.openings if line.startswith(opening.prefix)), None)

    def line(self, line: bytes) -> tuple[str, bytes]:
        """The type and the object of a line of a WATCH; raises MalformedAnswer if it is no event."""
        try:
            event = _EVENT.decode(line)
        except UNREADABLE as fault:
            found = _OPENED.fullmatch(line) if isinstance(fault, RecursionError) else None
            if found is not None:
                return found[1].decode(), found[2]  # the object is nested too deep for msgspec to skip it
            message = f"a line of a WATCH is no event: {fault}; it begins with {line[:120]!r}"
            raise MalformedAnswer(message) from fault
        return event.type, bytes(event.object)

    def page(self, body: bytes) -> tuple[dict[str, Any], Iterator[bytes]]:
        """The metadata and the items of a LIST; raises MalformedAnswer for any other answer."""
        try:
            page = _PAGE.decode(body)
        except msgspec.ValidationError as fault:
            raise _no_list(fault, body) from fault
        except UNREADABLE as fault:
            if len(body) > answers.OBJECT_BYTES:  # splitting it at its brackets would take minutes
                raise _no_list(fault, body) from fault
            # One broken object must not hide the others: the list is split at its brackets.
            page = _one_by_one(body, fault)
        if page.kind == "Table" or (page.items is None and not page.kind.endswith("List")):
            # Used as an empty list, it would empty the cache.
            raise MalformedAnswer(
                f"the answer to a LIST is a {page.kind[:_SHOWN] or 'thing'} that holds no objects; "
                f"it begins with {body[:120]!r}"
            )
        return page.metadata, map(bytes, page.items or ())

    def unexpected_kind_of_item(self, raw: bytes) -> UnexpectedKind | None:
        """As `unexpected_kind`, for an item of a list. Nearly all items have no kind or the expected one."""
        return None if raw.startswith(self._items) else self.unexpected_kind(raw)

    def unexpected_kind(self, raw: bytes) -> UnexpectedKind | None:
        """The kind of an object if it is not the expected one; None if it is that one or missing."""
        try:
            found = _KIND.decode(raw)
        except UNREADABLE:
            return None  # reading the object will raise the error
        if found.kind in ("", self._own[1]) and found.apiVersion in ("", self._own[0]):
            return None
        api_version, kind = self._own
        said = f"{found.kind[:_SHOWN]} ({found.apiVersion[:_SHOWN]})"
        reason = f"an object is a {said} and not a {kind} ({api_version})"
        return UnexpectedKind(reason, found.metadata.resourceVersion)


def event_without_object(kind: str, raw: bytes) -> WatchEvent:
    """The event of a line without a changed object: a bookmark.

    Raises the StatusError of an ERROR event, and MalformedAnswer for any other type.
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
    """A list of which an item can't be decoded, split at its brackets."""
    try:
        metadata = decoded(member(body, "metadata"))
        kind = _said(body, "kind")
        items = [msgspec.Raw(item) for item in elements(member(body, "items"))]
    except (ValueError, MalformedAnswer):
        raise _no_list(fault, body) from fault
    return _Page(dict(mapping(metadata)), items, str(kind))


def _said(body: bytes, name: str) -> object:
    """The value of a field; an empty string if it is missing."""
    try:
        value = member(body, name)
    except ValueError:
        return ""
    return decoded(value)


def _no_list(fault: Exception, body: bytes) -> MalformedAnswer:
    return MalformedAnswer(f"the answer to a LIST is no list: {fault}; it begins with {body[:120]!r}")


_MOST_REASONS = 1000  # sentences about skipped items; the further items share one
_LIKE_OTHERS = "an object can't be used, as many before it"


class ListItems:
    """Collects the records of one LIST answer. `Projection.items` makes it; used by one thread at a time.

    Items may be read while the answer arrives; `page` reads the remaining ones.
    """

    def __init__(
        self,
        envelopes: Envelopes,
        record: Callable[[bytes], Record | None],
        whole: WholeObjects,
        restriction: Restriction,
    ) -> None:
        self._envelopes = envelopes
        self._record = record
        self._whole = whole
        self._restriction = restriction
        self._outside = 0  # items that it has left out
        self._records: list[Record] = []
        self._skipped: list[str] = []
        self._kept_raw: list[str] = []

    def read(self, raw: bytes) -> None:
        """Read one item, which has to be exactly one JSON object.

        Raises MalformedAnswer for any other bytes, and for an object without a name; nothing is counted then.
        """
        if (unexpected_kind := self._envelopes.unexpected_kind_of_item(raw)) is not None:
            self._skip(unexpected_kind.reason)
            return
        record = self._record(raw)
        if record is None and self._restriction.take() is not None:
            self._outside += 1
        if self._whole.decode_warning:
            (self._skipped if record is None else self._kept_raw).append(self._whole.take_decode_warning())
        if record is not None:
            self._records.append(record)

    def read_or_skip(self, raw: bytes) -> None:
        """As `read`; an item that can't be stored is skipped, with the reason."""
        try:
            self.read(raw)
        except MalformedAnswer as fault:
            self._skip(str(fault))

    def _skip(self, reason: str) -> None:
        # The first reasons help; a million reasons would fill the memory.
        self._skipped.append(reason if len(self._skipped) < _MOST_REASONS else _LIKE_OTHERS)

    def page(self, body: bytes) -> ListPage:
        """The complete page. `body` is the answer without the items that were read already.

        Raises MalformedAnswer if the answer is no list, or if none of its objects can be used.
        """
        metadata, items = self._envelopes.page(body)
        for raw in items:
            self.read_or_skip(raw)
        if self._skipped and not self._records and not self._outside:
            # Used as an empty list, it would empty the cache.
            raise MalformedAnswer(f"no object of a LIST can be used; the first: {self._skipped[0]}")
        # A server may write any value here; only a number is used.
        remaining = metadata.get("remainingItemCount")
        return ListPage(
            self._records,
            resource_version=str(metadata.get("resourceVersion") or ""),
            continue_token=str(metadata.get("continue") or ""),
            remaining=remaining if isinstance(remaining, int) else None,
            skipped=self._skipped,
            kept_raw=self._kept_raw,
            outside=self._outside,
            shard_selector=str(mapping(metadata.get("shardInfo")).get("selector") or ""),
        )


_ITEMS = b'"items":['
# The beginning of an item that all items of a list have in common; a longer text is found faster.
_BEGIN = re.compile(rb'\{(?:"(?:kind|apiVersion)":"[^"\\]*",)*"metadata":\{(?:"name":")?|\{"[^"\\]*":')
_LONGEST_BEGIN = 1024  # bytes


class ItemCutter:
    """Reads the body of a LIST item by item: `feed` it the parts, `cut` now and then, and take the `page`.

    It keeps the bytes since the last item that was cut. The page does not depend on the size of the parts,
    and is the same as that of the whole body. Used by one thread at a time.
    """

    def __init__(
        self, items: ListItems, *, longest: int = answers.OBJECT_BYTES, most: int = answers.LIST_BYTES
    ) -> None:
        self._items = items
        self._longest = longest  # bytes of one item
        self._most = most  # bytes of a list that can't be cut
        self._head = b""  # the text before the items; empty until the first item was found
        self._body = bytearray()  # the bytes that were not cut
        self._separator = b""  # the text between two items and the beginning of each; empty as `_head`
        self._searched = 0  # the bytes of the body in which the separator was searched
        self._needed = 0  # bytes of the body until which `cut` does not try again
        self._cutting = True  # False if the list is not written as API servers write it
        self._scan: BracketScan | None = None  # of the first item, until its end has arrived

    @property
    def held(self) -> int:
        """The number of bytes that were not cut."""
        return len(self._body)

    def feed(self, part: memoryview) -> None:
        """Append the next bytes of the body."""
        self._body += part

    def cut(self) -> None:
        """Read the complete items, except the last one.

        Raises MalformedAnswer for an item that is too long, and for a long list that can't be read item by
        item.
        """
        body = self._body
        if self._cutting and len(body) >= self._needed and (self._separator or self._begin()):
            at = self._cut_items()
            if self._cutting and len(body) - at > self._longest:
                at = self._cut_by_brackets(at)
            if at:
                del body[:at]
                self._searched = max(self._searched - at, 0)
        if len(body) > self._most:
            raise MalformedAnswer(
                f"a LIST is longer than {answers.in_mebibytes(self._most)} and not written as API servers "
                "write it, so that it can't be read item by item; it begins with "
                f"{(self._head + body[:120])[:120]!r}. Ask for less: by namespace, or by a selector"
            )

    def page(self) -> ListPage:
        """The page, after the last bytes; raises MalformedAnswer as `ListItems.page`."""
        return self._items.page(self._head + self._body)

    def _begin(self) -> bool:
        """Find the beginning of the items; False if it has not arrived yet, or if there is none."""
        body = self._body
        at = body.find(_ITEMS, self._searched) + len(_ITEMS)
        if at < len(_ITEMS):
            self._searched = max(len(body) - len(_ITEMS), 0)
            return False
        if len(body) < at + _LONGEST_BEGIN:
            return False
        begin = _BEGIN.match(body, at)
        if begin is None or not _is_head(bytes(body[:at])):
            self._cutting = False
            return False
        self._separator = b"}," + begin[0]
        self._head = bytes(body[:at])
        del body[:at]
        self._searched = 0
        return True

    def _cut_items(self) -> int:
        """Read items from the beginning of the body; returns the position of the first unread one."""
        body, separator, read = self._body, self._separator, self._items.read
        at, searched = 0, self._searched
        if self._scan is not None:
            after = self._measure(0)
            if after is None:
                return 0
            at = searched = after
        with memoryview(body) as view:
            while (end := body.find(separator, searched)) >= 0:
                try:
                    read(bytes(view[at : end + 1]))
                except MalformedAnswer:
                    after = self._measure(at)
                    if after is None:
                        break
                    searched = at = after
                else:
                    searched = at = end + 2
            else:
                searched = max(len(body) - len(separator) + 1, at)
        self._searched = searched
        return at

    def _cut_by_brackets(self, at: int) -> int:
        """As `_cut_items`, by brackets, for items that do not begin as the first one did.

        It is slow, and prevents that a list of such items is kept as a whole. It ends when the rest is
        shorter than half of the longest item.
        """
        while self._cutting and len(self._body) - at > self._longest // 2:
            after = self._measure(at)
            if after is None:
                break
            at = after
        self._searched = max(self._searched, at)
        return at

    def _measure(self, at: int) -> int | None:
        """Read the item at `at` by its brackets; returns the position of the next one, None without it.

        Raises MalformedAnswer for an item that is too long.
        """
        body = self._body
        scan = self._scan or BracketScan()
        try:
            end = scan.end_of(body, at)
        except ValueError as fault:
            raise self._unusable(at, str(fault)) from fault
        held = len(body) - at
        if (held if end is None else end - at) > self._longest:
            raise self._unusable(at, f"is longer than {answers.in_mebibytes(self._longest)}")
        if end is None or end + 2 > len(body):
            self._scan = None if end is not None else scan
            # A string without an end is scanned again from its beginning, so only after its size has doubled.
            self._needed = min(held + held - scan.scanned, self._longest + 1)
            return None
        self._scan = None
        if not body.startswith(b",{", end):
            self._cutting = False
            return None
        self._needed = 0
        self._items.read_or_skip(bytes(body[at:end]))
        return end + 1

    def _unusable(self, at: int, what: str) -> MalformedAnswer:
        begin = bytes(self._body[at : at + 120])
        return MalformedAnswer(
            f"an item of a LIST {what}, as no object of an API server; it begins with {begin!r}. "
            "Make the object smaller, or leave it out by a selector"
        )


def _is_head(head: bytes) -> bool:
    # The text could also be the beginning of an `items` field within an object.
    try:
        body = decoded(head + b"]}")
    except MalformedAnswer:
        return False
    return isinstance(body, dict) and body.get("items") == []
