"""A LIST that is read while it comes: whole items are cut out of the bytes that are here.

Finding the end of an item must be cheaper than decoding it, and exact. So the place where the next
one may begin is searched for, by the bytes with which the first one began; and what stands before it
is decoded. No proper part of a JSON object is an object, nor are two of them: what the decoder
accepts is the item. What it does not accept is measured by its brackets, which is slow and happens to
items that are broken, or that hold something that begins as they do.

The last item, and what stands around the items, are left to the decoder of whole answers; so is
everything where the bytes are not written as API servers write them.
"""

import re

from declctl.errors import MalformedAnswer
from declctl.objects.envelopes import ListPage
from declctl.objects.items import ListItems
from declctl.objects.reading import decoded
from declctl.objects.splitting import end_of

_ITEMS = b'"items":['
# As far into an item as all items of a list are the same: what is longer is found faster.
_BEGIN = re.compile(rb'\{(?:"(?:kind|apiVersion)":"[^"\\]*",)*"metadata":\{(?:"name":")?|\{"[^"\\]*":')
_LONGEST_BEGIN = 1024  # bytes


class ItemCutter:
    """Feed it the body of a LIST, let it `cut` now and then, and ask it for the `page`.

    It holds what has come since the last cut. The page is the same however the body was cut into
    parts, and the same as if it had been decoded whole.
    """

    def __init__(self, items: ListItems) -> None:
        self._items = items
        self._head = b""  # what stands before the items, once they have begun
        self._body = bytearray()  # what comes after what was cut
        self._separator = b""
        self._searched = 0
        self._patience = 0  # bytes of the body that are needed to make sense of it
        self._cutting = True

    @property
    def held(self) -> int:
        """Bytes that have come and were not cut."""
        return len(self._body)

    def feed(self, part: memoryview) -> None:
        """The next bytes of the body."""
        self._body += part

    def cut(self) -> None:
        """Read the items that are complete, but for the last one."""
        if not self._cutting or len(self._body) < self._patience:
            return
        if self._separator or self._begin():
            at = self._cut_items()
            if at:
                del self._body[:at]
                self._searched -= at

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

    def _measure(self, at: int) -> int | None:
        """Read the item that begins at `at` by its brackets; where the next one begins, None if not here."""
        body = self._body
        end = end_of(body, at)
        if end is None or end + 2 > len(body):
            # Not before twice as much is here, so that a list that is one big riddle is measured a few
            # times and not with each part that comes.
            self._patience = 2 * (len(body) - at)
            return None
        if not body.startswith(b",{", end):
            self._cutting = False
            return None
        self._patience = 0
        self._items.read_or_skip(bytes(body[at:end]))
        return end + 1


def _is_head(head: bytes) -> bool:
    # It could also be the begin of some items further down.
    try:
        body = decoded(head + b"]}")
    except MalformedAnswer:
        return False
    return isinstance(body, dict) and body.get("items") == []
