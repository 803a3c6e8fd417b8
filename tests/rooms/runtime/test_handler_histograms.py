"""The histograms of a handler: how long changes wait for it, and how long its calls take."""

import pytest

from declctl.kit.histogram import Histogram, HistogramFigures
from declctl.manifest.model import Delivery, FilterSpec, RetrySpec
from declctl.objects import ChangeReason, ChangeType
from declctl.runtime.handling.binding import HANDLER_BOUNDS, Filter


def _in(figures: HistogramFigures) -> dict[float, int]:
    """The durations by their buckets; empty buckets are left out."""
    before, found = 0, {}
    for bound, number in zip((*figures.bounds, float("inf")), figures.cumulative, strict=True):
        if number > before:
            found[bound] = number - before
        before = number
    return found


def test_a_histogram_counts_up_to_each_bound_and_beyond_the_last() -> None:
    """A duration that equals a bound belongs to it, as Prometheus has it (`le`)."""
    histogram = Histogram((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 99.0):
        histogram.add(seconds)
    assert histogram.figures() == HistogramFigures((1.0, 2.0), (2, 3, 4), 102.0)
    assert histogram.figures().total == 4


def test_bounds_are_sorted() -> None:
    """The buckets of handlers go from a millisecond to minutes."""
    assert list(HANDLER_BOUNDS) == sorted(set(HANDLER_BOUNDS))


def test_the_lag_is_the_time_from_the_queue_to_the_call(bench, added, clock) -> None:
    """A change that waited for 0.2 s is in the bucket up to 0.25 s, however long its call took."""
    slot = bench.slot(lambda change: clock.set(7.0))
    slot.add_all([added("a")])
    clock.set(0.2)
    bench.work()
    figures = slot.statistics()
    assert _in(figures.lag) == {0.25: 1}
    assert _in(figures.duration) == {10: 1}
    assert figures.lag.sum == pytest.approx(0.2)
    assert figures.duration.sum == pytest.approx(7.0)


def test_a_merged_change_has_waited_since_the_oldest(bench, added, clock) -> None:
    """Under `Keyed`, a handler is late by the time since the first change that it does not know."""
    slot = bench.slot(lambda change: None, delivery=Delivery.KEYED)
    slot.add_all([added("a")])
    clock.set(50.0)
    slot.add_all([added("a", ChangeType.MODIFIED)])
    clock.set(0.5)
    bench.work()
    assert _in(slot.statistics().lag) == {60: 1}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (ChangeType.ADDED, ChangeReason.INITIAL),
        (ChangeType.RESYNC, ChangeReason.RESYNC),
        (ChangeType.RESYNC, ChangeReason.REPLAY),
    ],
)
def test_what_nobody_has_changed_has_no_lag(bench, added, clock, kind, reason) -> None:
    """A restart, a resync or a reload delivers thousands of objects; an alert on the lag stays quiet."""
    slot = bench.slot(lambda change: None)
    slot.add_all([added("a", kind, reason=reason, initial=reason is ChangeReason.INITIAL)])
    clock.set(100.0)
    bench.work()
    figures = slot.statistics()
    assert (figures.lag.total, figures.duration.total) == (0, 1)


def test_a_retry_has_no_lag(bench, added, clock) -> None:
    """The back-off of a handler that fails is no delay of events; each of its calls has a duration."""

    def fails(change) -> None:
        raise ValueError

    slot = bench.slot(fails, retry=RetrySpec(max_attempts=3, initial_backoff=1.0, max_backoff=1.0))
    slot.add_all([added("a")])
    for _ in range(3):
        bench.work()
        clock.set(1.0)
    figures = slot.statistics()
    assert (figures.lag.total, figures.duration.total) == (1, 3)


def test_a_change_without_a_call_is_in_no_histogram(bench, added, clock) -> None:
    """What the filter keeps away was not called for."""
    spec = FilterSpec(label_selector="app=web")
    slot = bench.bound(bench.binding(lambda change: None), Filter(spec, bench.binding().plan.events))
    slot.add_all([added("a")])
    bench.work()
    figures = slot.statistics()
    assert (figures.filtered, figures.lag.total, figures.duration.total) == (1, 0, 0)
