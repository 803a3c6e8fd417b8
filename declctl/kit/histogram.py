"""Histograms of durations, as Prometheus has them: how many there were up to each of some fixed bounds."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class HistogramFigures(NamedTuple):
    """The figures of a histogram at one moment."""

    bounds: Sequence[float]  # seconds, ascending
    cumulative: Sequence[int]  # the number of durations up to each bound, and of all
    sum: float  # seconds, of all durations

    @property
    def total(self) -> int:
        """The number of all durations."""
        return self.cumulative[-1]

    def since(self, before: "HistogramFigures | None") -> "HistogramFigures":
        """The durations that came after `before`; all of them if it is None, or of another histogram."""
        if before is None or before.total > self.total:
            return self
        added = [now - then for now, then in zip(self.cumulative, before.cumulative, strict=True)]
        return self._replace(cumulative=added, sum=self.sum - before.sum)

    def quantile(self, share: float) -> float | None:
        """A quantile in seconds, as `histogram_quantile` of Prometheus estimates it; None without a duration.

        Durations are taken to be spread evenly between two bounds. Those above the last bound count as it.
        """
        if not self.total:
            return None
        rank = share * self.total
        place = bisect_left(self.cumulative, rank)
        if place >= len(self.bounds):
            return self.bounds[-1]
        lower, before = (self.bounds[place - 1], self.cumulative[place - 1]) if place else (0.0, 0)
        return lower + (self.bounds[place] - lower) * (rank - before) / (self.cumulative[place] - before)


class Histogram:
    """Counts durations by fixed bounds, in seconds. The owner's lock guards it.

    `add` costs a search in the bounds and two additions: no lock and no object of its own, as it is called
    for each change of each handler.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)  # by the first bound that is not below the duration
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def figures(self) -> HistogramFigures:
        """A copy of the figures of this moment."""
        return HistogramFigures(self._bounds, tuple(accumulate(self._counts)), self._sum)
