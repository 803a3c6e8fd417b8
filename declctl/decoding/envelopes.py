"""What objects come in: a LIST and its items, the lines of a WATCH, the kind that is written on each object.

The items of a LIST are read one after the other, also while the answer still comes. Finding the end of an
item must be cheaper than decoding it, and exact. So the place where the next item may begin is searched
for, by the bytes with which the first one began; and what stands before it is decoded. No proper part of a
JSON object is an object, nor are two of them: what the decoder accepts is the item. What it does not accept
is measured by its brackets, which is slow and happens to items that are broken, or that hold something that
begins as they do.

The last item, and what stands around the items, are left to the decoder of whole answers; so is everything
where the bytes are not written as API servers write them.

What is held is limited, what passes is not: an item may have `answers.OBJECT_BYTES`, and a list that can't
be cut `answers.LIST_BYTES`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from declctl.decoding.decoders import WholeObjects
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
_WITHOUT_KIND = b'{"metadata":'  # how the items of a list begin
_SHOWN = 120  # characters of a name that a server made up


class UnexpectedKind(NamedTuple):
    """What is said of an object of another kind than the expected one."""

    reason: str  # a sentence that names both kinds
    resource_version: str  # of the object; empty if it has none


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
        # A handful of comparisons, and only where a line begins otherwise than the one before.
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
            if len(body) > answers.OBJECT_BYTES:  # looking for the item at fault would take minutes
                raise _no_list(fault, body) from fault
            # One broken object must not hide all others: the list is taken apart at its brackets.
            page = _one_by_one(body, fault)
        if page.kind == "Table" or (page.items is None and not page.kind.endswith("List")):
            # Taken for an empty list, it would empty the cache.
            raise MalformedAnswer(
                f"the answer to a LIST is a {page.kind[:_SHOWN] or 'thing'} that holds no objects; "
                f"it begins with {body[:120]!r}"
            )
        return page.metadata, map(bytes, page.items or ())

    def unexpected_kind_of_item(self, raw: bytes) -> UnexpectedKind | None:
        """The same of an item of a list, in which objects of most kinds don't say their kind."""
        return None if raw.startswith(self._items) else self.unexpected_kind(raw)

    def unexpected_kind(self, raw: bytes) -> UnexpectedKind | None:
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
        return UnexpectedKind(reason, found.metadata.resourceVersion)


def event_without_object(kind: str, raw: bytes) -> WatchEvent:
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


_MOST_REASONS = 1000  # of what was skipped; a list of empty braces would hold a hundred bytes for each
_LIKE_OTHERS = "an object can't be used, as many before it"


class ListItems:
    """The items of one answer. Made by `Projection.items`.

    Items may be read while the answer still comes; `page` reads those that are left in it.
    """

    def __init__(
        self, envelopes: Envelopes, record: Callable[[bytes], Record | None], whole: WholeObjects
    ) -> None:
        self._envelopes = envelopes
        self._record = record
        self._whole = whole
        self._records: list[Record] = []
        self._skipped: list[str] = []
        self._kept_raw: list[str] = []

    def read(self, raw: bytes) -> None:
        """Read one item. Raises MalformedAnswer for one that nobody can store, which is then not counted.

        What is accepted is one whole object: neither a part of one nor more than one.
        """
        if (unexpected_kind := self._envelopes.unexpected_kind_of_item(raw)) is not None:
            self._skip(unexpected_kind.reason)
            return
        record = self._record(raw)
        if self._whole.decode_warning:
            (self._skipped if record is None else self._kept_raw).append(self._whole.take_decode_warning())
        if record is not None:
            self._records.append(record)

    def read_or_skip(self, raw: bytes) -> None:
        """The same; an item that nobody can store is skipped."""
        try:
            self.read(raw)
        except MalformedAnswer as fault:
            self._skip(str(fault))

    def _skip(self, reason: str) -> None:
        # The first reasons help; a million of them would only fill the memory.
        self._skipped.append(reason if len(self._skipped) < _MOST_REASONS else _LIKE_OTHERS)

    def page(self, body: bytes) -> ListPage:
        """The page, where `body` is the answer without the items that were read already.

        Raises MalformedAnswer if it is no list, or if none of its objects can be used.
        """
        metadata, items = self._envelopes.page(body)
        for raw in items:
            self.read_or_skip(raw)
        if self._skipped and not self._records:
            # Taken for an empty list, it would empty the cache.
            raise MalformedAnswer(f"no object of a LIST can be used; the first: {self._skipped[0]}")
        # A foreign server may write anything here; only a number says how much is to come.
        remaining = metadata.get("remainingItemCount")
        return ListPage(
            self._records,
            resource_version=str(metadata.get("resourceVersion") or ""),
            continue_token=str(metadata.get("continue") or ""),
            remaining=remaining if isinstance(remaining, int) else None,
            skipped=self._skipped,
            kept_raw=self._kept_raw,
        )


_ITEMS = b'"items":['
# As far into an item as all items of a list are the same: what is longer is found faster.
_BEGIN = re.compile(rb'\{(?:"(?:kind|apiVersion)":"[^"\\]*",)*"metadata":\{(?:"name":")?|\{"[^"\\]*":')
_LONGEST_BEGIN = 1024  # bytes


class ItemCutter:
    """Feed it the body of a LIST, let it `cut` now and then, and ask it for the `page`.

    It holds what has come since the last cut. The page is the same however the body was cut into
    parts, and the same as if it had been decoded whole.
    """

    def __init__(
        self, items: ListItems, *, longest: int = answers.OBJECT_BYTES, most: int = answers.LIST_BYTES
    ) -> None:
        self._items = items
        self._longest = longest  # bytes of one item
        self._most = most  # bytes of a list that can't be cut
        self._head = b""  # what stands before the items, once they have begun
        self._body = bytearray()  # what comes after what was cut
        self._separator = b""
        self._searched = 0
        self._needed = 0  # bytes of the body that are needed to make sense of it
        self._cutting = True
        self._scan: BracketScan | None = None  # of the item at the beginning, while its end is looked for

    @property
    def held(self) -> int:
        """Bytes that have come and were not cut."""
        return len(self._body)

    def feed(self, part: memoryview) -> None:
        """The next bytes of the body."""
        self._body += part

    def cut(self) -> None:
        """Read the items that are complete, but for the last one.

        Raises MalformedAnswer for an item, or a list that can't be cut, that is too long to be held.
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
        """The page, when everything is here; raises MalformedAnswer where there is none to be had."""
        return self._items.page(self._head + self._body)

    def _begin(self) -> bool:
        """Find where the items begin; False if that is not here, or nowhere."""
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
        """Read items from the beginning of the body; returns where the first one begins that was not read."""
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
        """The same for items that do not begin as the first one did; at least half of an item stays.

        Slow, and only for lists that nobody has seen yet: without it they would be held whole.
        """
        while self._cutting and len(self._body) - at > self._longest // 2:
            after = self._measure(at)
            if after is None:
                break
            at = after
        self._searched = max(self._searched, at)
        return at

    def _measure(self, at: int) -> int | None:
        """Read the item that begins at `at` by its brackets; where the next one begins, None if not here.

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
            # A string without an end is scanned from its beginning: not before twice as much of it is here.
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
    # It could also be the begin of some items further down.
    try:
        body = decoded(head + b"]}")
    except MalformedAnswer:
        return False
    return isinstance(body, dict) and body.get("items") == []
