"""The items of a LIST: read one after the other, whoever cut them out of the answer, and then the page."""

from collections.abc import Callable

from declctl.errors import MalformedAnswer
from declctl.objects.envelopes import Envelopes, ListPage
from declctl.objects.record import Record
from declctl.objects.whole import WholeObjects

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
