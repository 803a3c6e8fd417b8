"""The items of a LIST, read one after the other, also while the answer still comes.

Finding the end of an item must be cheaper than decoding it, and exact. So the place where the next
one may begin is searched for, by the bytes with which the first one began; and what stands before it
is decoded. No proper part of a JSON object is an object, nor are two of them: what the decoder
accepts is the item. What it does not accept is measured by its brackets, which is slow and happens to
items that are broken, or that hold something that begins as they do.

The last item, and what stands around the items, are left to the decoder of whole answers; so is
everything where the bytes are not written as API servers write them.

What is held is limited, what passes is not: an item may have `limits.OBJECT_BYTES`, and a list that can't
be cut `limits.LIST_BYTES`.
"""

import re
from collections.abc import Callable

from declctl.decoding.envelopes import Envelopes
from declctl.decoding.slow_path import WholeObjects
from declctl.errors import MalformedAnswer
from declctl.objects import limits
from declctl.objects.events import ListPage
from declctl.objects.reading import BracketScan, decoded
from declctl.objects.record import Record

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
        if (foreign := self._envelopes.foreign_item(raw)) is not None:
            self._skip(foreign.reason)
            return
        record = self._record(raw)
        if self._whole.oddity:
            (self._skipped if record is None else self._kept_raw).append(self._whole.take_oddity())
        if record is not None:
            self._records.append(record)

    def read_or_skip(self, raw: bytes) -> None:
        """The same; an item that nobody can store is skipped."""
        try:
            self.read(raw)
        except MalformedAnswer as fault:
            self._skip(str(fault))

    def _skip(self, reason: str) -> None:
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
        self, items: ListItems, *, longest: int = limits.OBJECT_BYTES, most: int = limits.LIST_BYTES
    ) -> None:
        self._items = items
        self._longest = longest  # bytes of one item
        self._most = most  # bytes of a list that can't be cut
        self._head = b""  # what stands before the items, once they have begun
        self._body = bytearray()  # what comes after what was cut
        self._separator = b""
        self._searched = 0
        self._patience = 0  # bytes of the body that are needed to make sense of it
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
        if self._cutting and len(body) >= self._patience and (self._separator or self._begin()):
            at = self._cut_items()
            if self._cutting and len(body) - at > self._longest:
                at = self._cut_by_brackets(at)
            if at:
                del body[:at]
                self._searched = max(self._searched - at, 0)
        if len(body) > self._most:
            raise MalformedAnswer(
                f"a LIST is longer than {limits.in_mebibytes(self._most)} and not written as API servers "
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
            raise self._unusable(at, f"is longer than {limits.in_mebibytes(self._longest)}")
        if end is None or end + 2 > len(body):
            self._scan = None if end is not None else scan
            # A string without an end is scanned from its beginning: not before twice as much of it is here.
            self._patience = min(held + held - scan.scanned, self._longest + 1)
            return None
        self._scan = None
        if not body.startswith(b",{", end):
            self._cutting = False
            return None
        self._patience = 0
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
