"""Interning: equal labels and equal strings of many objects are held once."""

from collections.abc import Iterable, Mapping

from declctl.objects.reading import decoded, mapping
from declctl.objects.record import Projected

_MOST = 50_000  # entries; beyond it a table starts anew rather than grow for ever


class Interning:
    """The tables of one projection; used by one thread."""

    def __init__(self) -> None:
        self._labels: dict[bytes, Mapping[str, str]] = {}
        self._strings: dict[str, str] = {}

    def labels(self, raw: bytes) -> Mapping[str, str]:
        """The labels that these bytes are; raises MalformedAnswer if they are no JSON."""
        labels = self._labels.get(raw)
        if labels is None:
            if len(self._labels) >= _MOST:
                self._labels.clear()
            strings = self._bounded_strings()
            # null is "" in Go
            texts = [(str(k), "" if v is None else str(v)) for k, v in mapping(decoded(raw)).items()]
            labels = {strings.setdefault(k, k): strings.setdefault(v, v) for k, v in texts}
            self._labels[raw] = labels
        return labels

    def values(self, values: Iterable[Projected]) -> tuple[Projected, ...]:
        """These values, each string the one that was seen first."""
        strings = self._bounded_strings()
        return tuple([strings.setdefault(v, v) if type(v) is str else v for v in values])

    def _bounded_strings(self) -> dict[str, str]:
        if len(self._strings) >= _MOST:
            self._strings.clear()
        return self._strings
