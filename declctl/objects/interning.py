"""Interning: equal labels and equal projected values of many objects are held once."""

from declctl.objects.reading import decoded
from declctl.objects.record import Projected

_MOST = 50_000  # entries; beyond it a table starts anew rather than grow for ever


class Interning:
    """The tables of one projection; used by one thread.

    `known_labels` and `known_values` look without adding: what was seen first, None if it was not.
    """

    def __init__(self) -> None:
        self._labels: dict[bytes, bytes] = {}
        self._values: dict[tuple[Projected, ...], tuple[Projected, ...]] = {}
        self.known_labels = self._labels.get
        self.known_values = self._values.get

    def labels(self, raw: bytes) -> bytes:
        """These labels, as the bytes that were seen first; raises MalformedAnswer if they are no JSON."""
        known = self._labels.get(raw)
        if known is None:
            if not raw.isascii():
                decoded(raw)  # a decoder that skips a value does not look at its encoding
            if len(self._labels) >= _MOST:
                self._labels.clear()
            known = self._labels[raw] = raw
        return known

    def values(self, values: tuple[Projected, ...]) -> tuple[Projected, ...]:
        """These values, as the tuple that was seen first."""
        known = self._values.setdefault(values, values)
        if len(self._values) > _MOST:
            self._values.clear()
        return known
