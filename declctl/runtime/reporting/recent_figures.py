"""The figures of the last 15 minutes: for `GET /figures`, and for the lines and rates of the page.

They are samples of the status, taken every 10 seconds by the process itself, so that a page that is opened
after an incident shows it. No text of an object, a handler or a server is in them.
"""

import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from math import isnan, nan
from typing import TYPE_CHECKING, Any, NamedTuple

from declctl.kit import Clock
from declctl.kit.histogram import HistogramFigures
from declctl.runtime.handling.handler_figures import percentiles
from declctl.runtime.reasons import DEGRADED, RELOADED

if TYPE_CHECKING:  # for annotations alone
    from declctl.runtime.handling.binding import HandlerStatistics
    from declctl.runtime.reporting.status import ControllerStatus, ResourceStatus

SAMPLE_SECONDS = 10.0
SAMPLES = 90  # that are kept: 15 minutes
_LEAST_SECONDS = 1.0  # for which a rate is the mean
_SHARE = 0.99
_DIGITS = 6  # of what is sampled


class FigureKey(NamedTuple):
    """What is sampled: a figure of a handler or a resource, or a count of an arrow of the graph."""

    group: str  # handlers, resources, watches or writes
    name: str  # of the handler or the resource
    figure: str  # as the document names it; of an arrow, what it leads to


class SampledFigure(NamedTuple):
    """A figure of the document. A counter is sampled as it is, and shown as a rate in a second."""

    name: str
    read: Callable[[Any], float | None]
    counts: bool = False


def _calls(handler: "HandlerStatistics") -> int:
    return handler.succeeded + handler.failed + handler.retried


def events(resource: "ResourceStatus") -> int:
    """The events of the watches of a resource, without bookmarks, which are of no object."""
    return sum(count for kind, count in resource.events.items() if kind != "BOOKMARK")


CALLS, UNSUCCESSFUL, EVENTS = "callsPerSecond", "unsuccessfulPerSecond", "eventsPerSecond"
P99, LAG, WAITING, OBJECTS, AGE = "p99Seconds", "lagSeconds", "waiting", "objects", "lastEventAge"
_HANDLER = (
    SampledFigure(CALLS, _calls, counts=True),
    SampledFigure(UNSUCCESSFUL, lambda h: h.failed + h.retried, counts=True),
    SampledFigure(WAITING, lambda h: h.queued),
    SampledFigure("running", lambda h: h.running),
)
_INTERVAL = (P99, LAG)  # of the calls since the sample before
_RESOURCE = (
    SampledFigure(EVENTS, events, counts=True),
    SampledFigure(OBJECTS, lambda r: r.objects),
    SampledFigure(AGE, lambda r: r.last_event_age),
    SampledFigure("relists", lambda r: r.relists),  # since the start
)
_COUNTERS = frozenset(each.name for each in (*_HANDLER, *_RESOURCE) if each.counts)


def watch_key(handler: str, resource: str, map_to: str = "") -> FigureKey:
    """The keys that a watch of a reconciler has enqueued; without `map_to`, that of its own resource."""
    return FigureKey("watches", handler, f"{resource} {map_to}")


def write_key(handler: str, kind: object, verb: str) -> FigureKey:
    """The writes of a handler to a kind."""
    return FigureKey("writes", handler, f"{verb} {kind}")


def figures_now(status: "ControllerStatus") -> Mapping[FigureKey, float | None]:
    """The figures of a status that are sampled as they are."""
    return dict(_figures(status))


def _figures(status: "ControllerStatus") -> Iterator[tuple[FigureKey, float | None]]:
    for handler in status.handlers:
        for figure in _HANDLER:
            yield FigureKey("handlers", handler.name, figure.name), figure.read(handler)
        if handler.workqueue is not None:
            yield watch_key(handler.name, handler.resource), handler.own_keys
        for watch in handler.watches:
            yield watch_key(handler.name, watch.resource, watch.map_to), watch.keys
    for resource in status.resources:
        for figure in _RESOURCE:
            yield FigureKey("resources", resource.name, figure.name), figure.read(resource)
    for writes in status.kind_writes:
        yield write_key(writes.handler, writes.kind, writes.verb), writes.count


class FigureMark(NamedTuple):
    """A moment that stands in all lines: an attempt to reload, or a condition that changed its status."""

    time: datetime  # in UTC
    text: str  # in words of declctl alone
    good: bool


def marks(status: "ControllerStatus", attempts: Iterable[Mapping[str, Any]]) -> Sequence[FigureMark]:
    """The marks, the oldest first. `attempts` are those of the history.

    The condition `Reloaded` has none of its own: the attempts say the same.
    """
    found = [
        FigureMark(datetime.fromisoformat(each["time"]), *_attempt(each))
        for each in attempts
        if each["result"] in _ATTEMPTS
    ]
    for change in status.condition_changes:
        if change.type != RELOADED:
            good = (change.status == "True") is (change.type != DEGRADED)
            text = f"{change.type} is {change.status}: {change.reason}"
            found.append(FigureMark(change.last_transition_time, text, good))
    return sorted(found)


_ATTEMPTS = {
    "Applied": "Generation {} applied",
    "Refused": "Reload refused",
    "RolledBack": "Rolled back to {}",
}


def _attempt(attempt: Mapping[str, Any]) -> tuple[str, bool]:
    result, reason = attempt["result"], attempt.get("reason") or ""
    words = _ATTEMPTS[result].format(attempt.get("generation"))
    # Only words of declctl: a reason of another form may have a text of others.
    is_word = reason.isalnum() and reason != result
    return f"{words}: {reason}" if is_word else words, result == "Applied"


class RecentFigures:
    """The newest 90 samples of the figures of handlers, resources and arrows. From any thread.

    A figure takes 8 bytes for each sample: about 6 KB for a handler, and 4 KB for a resource, with the
    objects around. Figures that end are dropped 15 minutes later.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards all of the following
        self.number = 0  # samples since the start
        self._times = _ring()  # of the wall clock, in seconds since 1970
        self._moments = _ring()  # of the monotonic clock
        self._series: dict[FigureKey, array[float]] = {}  # a ring for each figure, in which NaN is no value
        # As `values` and `extent` have them, since the last sample.
        self._shown: dict[FigureKey, tuple[list[float | None], tuple[float, float] | None]] = {}
        # By handler, at the last sample: of its calls, and of the lag of events.
        self._before: dict[str, tuple[HistogramFigures | None, HistogramFigures | None]] = {}

    async def run(self, status: "Callable[[], ControllerStatus]") -> None:
        """Take a sample every 10 seconds, until cancelled."""
        while True:
            self.sample(status())
            await self._clock.pause(SAMPLE_SECONDS)

    def sample(self, status: "ControllerStatus") -> None:
        """Add a sample, in place of the one of 15 minutes before."""
        with self._lock:
            self._sample(status)

    def _sample(self, status: "ControllerStatus") -> None:
        place = self.number % SAMPLES
        self.number += 1
        self._shown.clear()
        self._times[place], self._moments[place] = self._clock.now().timestamp(), self._clock.monotonic()
        taken = {**figures_now(status), **dict(self._of_intervals(status.handlers))}
        for key in taken.keys() - self._series.keys():
            self._series[key] = _ring()
        for key, ring in tuple(self._series.items()):
            value = taken.get(key)
            ring[place] = nan if value is None else round(value, _DIGITS)
            if key not in taken and all(map(isnan, ring)):
                del self._series[key]

    def values(self, key: FigureKey) -> Sequence[float | None]:
        """The samples of a figure, the oldest first; None where there is none.

        Those of a counter are rates in a second since the sample before. A counter that was not there then,
        or has fallen, has begun at 0 since.
        """
        with self._lock:
            return self._known(key)[0]

    def extent(self, key: FigureKey) -> tuple[float, float] | None:
        """The least and the most of `values`; None if there are none."""
        with self._lock:
            return self._known(key)[1]

    def rate(self, key: FigureKey, count: float, *, over: float = SAMPLE_SECONDS) -> float | None:
        """How much a counter that is at `count` now has grown in a second, as the mean of `over` seconds.

        The time begins at a sample, so it is a little longer; it is shorter if nothing older is known. None
        less than a second after the first sample.
        """
        grown, seconds = 0.0, 0.0
        with self._lock:
            ring, now = self._series.get(key), self._clock.monotonic()
            for number in range(self.number - 1, max(0, self.number - SAMPLES) - 1, -1):
                place = number % SAMPLES
                before = nan if ring is None else ring[place]
                grown, seconds = _grown(before, count), now - self._moments[place]
                if seconds >= over or _is_new(before, count):
                    break
        return grown / seconds if seconds >= _LEAST_SECONDS else None

    def document(self, found: Iterable[FigureMark]) -> dict[str, Any]:
        """The document of `GET /figures`, with the marks that are not older than the first sample."""
        shown = [
            {"time": each.time.timestamp(), "text": each.text, "good": each.good}
            for each in self.recent(found)
        ]
        with self._lock:  # all values are of the same samples
            times = [self._times[place] for place in self._places()]
            handlers = self._of_group("handlers", (*(each.name for each in _HANDLER), *_INTERVAL))
            return {
                "sample": self.number,
                "seconds": SAMPLE_SECONDS,
                "times": [round(time, 3) for time in times],
                "controller": {name: _sums(handlers, name) for name in (CALLS, UNSUCCESSFUL, WAITING)},
                "handlers": handlers,
                "resources": self._of_group("resources", [each.name for each in _RESOURCE]),
                "marks": shown,
            }

    def recent(self, found: Iterable[FigureMark]) -> Sequence[FigureMark]:
        """The marks that are not older than the first sample."""
        with self._lock:
            places = self._places()
            if not places:
                return []
            first = datetime.fromtimestamp(self._times[places[0]] - SAMPLE_SECONDS, UTC)
        return [each for each in found if each.time >= first]

    # The methods below are called under the lock.

    def _known(self, key: FigureKey) -> tuple[list[float | None], tuple[float, float] | None]:
        found = self._shown.get(key)
        if found is None:
            values = self._values(key)
            known = [value for value in values if value is not None]
            found = self._shown[key] = values, (min(known), max(known)) if known else None
        return found

    def _places(self) -> Sequence[int]:
        """The places of the samples in each ring, the oldest first."""
        return [number % SAMPLES for number in range(max(0, self.number - SAMPLES), self.number)]

    def _values(self, key: FigureKey) -> list[float | None]:
        ring = self._series.get(key)
        if ring is None:
            return [None for _ in self._places()]
        if key.figure not in _COUNTERS:
            return [None if isnan(ring[place]) else ring[place] for place in self._places()]
        return [None, *(self._rate_between(ring, *pair) for pair in pairwise(self._places()))]

    def _rate_between(self, ring: Sequence[float], before: int, after: int) -> float | None:
        if isnan(ring[after]):
            return None
        seconds = self._moments[after] - self._moments[before]
        return round(_grown(ring[before], ring[after]) / seconds, _DIGITS)

    def _of_group(self, group: str, figures: Sequence[str]) -> list[dict[str, Any]]:
        names = dict.fromkeys(key.name for key in self._series if key.group == group)
        return [
            {"name": name, **{figure: self._known(FigureKey(group, name, figure))[0] for figure in figures}}
            for name in names
        ]

    def _of_intervals(
        self, handlers: "Iterable[HandlerStatistics]"
    ) -> Iterator[tuple[FigureKey, float | None]]:
        """The 99th percentiles of the calls since the sample before, and of the lag of their events."""
        known, self._before = self._before, {each.name: (each.duration, each.lag) for each in handlers}
        for handler in handlers:
            if handler.duration is None or handler.lag is None:
                continue
            duration, lag = known.get(handler.name, (None, None))
            calls, lag = handler.duration.since(duration).total, handler.lag.since(lag)
            durations = handler.durations[-calls:] if calls else ()
            p99 = percentiles(durations, _SHARE)[0] if durations else None
            yield FigureKey("handlers", handler.name, P99), p99
            yield FigureKey("handlers", handler.name, LAG), lag.quantile(_SHARE)


def _is_new(before: float, after: float) -> bool:
    """Whether a counter began after a sample: it was not there, or it has fallen."""
    return isnan(before) or after < before


def _grown(before: float, after: float) -> float:
    return after if _is_new(before, after) else after - before


def _ring() -> "array[float]":
    return array("d", [nan]) * SAMPLES


def _sums(handlers: Sequence[Mapping[str, Any]], figure: str) -> list[float | None]:
    """The sums of a figure over all handlers, for each sample."""
    columns = zip(*(handler[figure] for handler in handlers), strict=True)
    known = ([value for value in column if value is not None] for column in columns)
    return [round(sum(values), _DIGITS) if values else None for values in known]
