"""The bars: the figures that declctl has to reach, beside the measured ones."""

from collections.abc import Callable
from dataclasses import dataclass

from harness.catalogue import BEFORE, ISOLATED, OURS, RUN
from harness.results import Results
from harness.tables import NONE, on_top, shown
from harness.text import Table

_TYPED, _DYNAMIC = "client-go", "client-go-dynamic"
_MILLION = 1_000_000
Measure = Callable[[Results, str], float | None]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: the figure that `measure` gives for a peer of ours must be at most `most`, in `unit`."""

    what: str
    most: float
    measure: Measure
    unit: str = ""


def judged(results: Results) -> Table:
    """The table of the bars: for each peer of ours the figure, and whether it meets the bar."""
    columns = ["the bar", "at most"]
    for key in OURS:
        columns += [results.peers.get(key, key), ""]
    rows = [[bar.what, _written(bar, bar.most), *_verdicts(results, bar)] for bar in BARS]
    objects = f"{results.size('cache'):,}"
    notes = [f"Bars without another number are for 100,000 pods; these were measured with {objects}."]
    return Table("the bar", columns, rows, notes)


def _verdicts(results: Results, bar: Bar) -> list[str]:
    cells: list[str] = []
    for key in OURS:
        value = bar.measure(results, key)
        cells += [NONE, "not measured"] if value is None else [_written(bar, value), verdict(value, bar.most)]
    return cells


def verdict(value: float, most: float) -> str:
    """`met`, or `missed` with the factor."""
    if value <= most:
        return "met"
    return f"missed, {shown(value / most)}x the bar" if most else "missed"


def _written(bar: Bar, value: float) -> str:
    if bar.unit == "1/":
        return f"1/{shown(1 / value)}" if value < 1 else f"{shown(value)} x"
    return f"{shown(value)} {bar.unit}".strip()


def _to(name: str, peer: str, scenario: str = "cache") -> Measure:
    """A figure of ours, divided by the same figure of another peer."""

    def measure(results: Results, ours: str) -> float | None:
        mine, theirs = results.figure(scenario, ours, name), results.figure(scenario, peer, name)
        return mine / theirs if mine is not None and theirs else None

    return measure


def _over(name: str, base: str, scenario: str = "cache") -> Measure:
    """A figure of ours, divided by another figure of the same peer."""

    def measure(results: Results, ours: str) -> float | None:
        high, low = results.figure(scenario, ours, name), results.figure(scenario, ours, base)
        return high / low if high is not None and low else None

    return measure


def _time(peer: str, scenario: str) -> Measure:
    """The time of a reconcile of ours, divided by that of another peer."""

    def measure(results: Results, ours: str) -> float | None:
        mine = results.figure(scenario, ours, "flood_rate")
        theirs = results.figure(scenario, peer, "flood_rate")
        return theirs / mine if mine and theirs is not None else None

    return measure


def _plain(scenario: str, name: str, *, objects: int = 0, scale: float = 1) -> Measure:
    def measure(results: Results, ours: str) -> float | None:
        value = results.figure(scenario, ours, name, objects=objects)
        return None if value is None else value * scale

    return measure


def _added(scenario: str) -> Measure:
    def measure(results: Results, ours: str) -> float | None:
        return on_top(results, ours, scenario)

    return measure


def _late(results: Results, ours: str) -> float | None:
    """1 if not all changes of the hot object were delivered, else 0."""
    records = results.of("hot", ours)
    return None if not records else float(any("hot_told" not in record.figures for record in records))


def _isolated(results: Results, ours: str) -> float | None:
    """The latency beside an isolated handler that computes, divided by the quiet one."""
    beside, quiet = (
        results.figure("burning", ISOLATED, "latency_p99"),
        results.figure("sync", RUN, "latency_p99"),
    )
    return beside / quiet if ours == RUN and beside is not None and quiet else None


BARS = (
    Bar("CPU to sync, of client-go typed protobuf's", 1 / 3, _to("sync_cpu", _TYPED), "1/"),
    Bar("CPU to sync, of client-go dynamic's", 1 / 10, _to("sync_cpu", _DYNAMIC), "1/"),
    Bar("resident after sync, of typed protobuf's", 1 / 6, _to("sync_resident", _TYPED), "1/"),
    Bar("resident after sync, of dynamic's", 1 / 20, _to("sync_resident", _DYNAMIC), "1/"),
    Bar("settled, of typed protobuf's", 1 / 6, _to("settled_resident", _TYPED), "1/"),
    Bar("settled, of dynamic's", 1 / 20, _to("settled_resident", _DYNAMIC), "1/"),
    Bar("peak during the first list, of steady", 1.25, _over("settled_peak", "settled_resident"), "x"),
    Bar("peak during a relist, of steady", 1.25, _over("relist_peak", "settled_resident"), "x"),
    Bar("first Added, plain function, on top", 1.5, _added("sync"), "s CPU"),
    Bar("first Added, coroutine, on top", 1.0, _added("async"), "s CPU"),
    Bar("CPU for each MODIFIED, of typed protobuf's", 1.0, _to("flood_cpu", _TYPED, "sync"), "x"),
    Bar(
        "CPU for each MODIFIED, coroutine, of the baseline's",
        1.0,
        _to("flood_cpu", BEFORE, "async"),
        "x",
    ),
    Bar("resident after sync, of the baseline's", 1.0, _to("sync_resident", BEFORE, "async"), "x"),
    Bar("wire to handler at 1,000/s, p50", 1.0, _plain("sync", "latency_p50"), "ms"),
    Bar("wire to handler at 1,000/s, p99", 4.0, _plain("sync", "latency_p99"), "ms"),
    Bar("the same with a core burning, p99", 25.0, _plain("burning", "latency_p99"), "ms"),
    Bar("the same if the computing handler is isolated, of quiet", 2.0, _isolated, "x"),
    Bar("time of an idle reconcile, of kopf's on.update", 1 / 10, _time("kopf-update", "reconcile"), "1/"),
    Bar(
        "time of an idle reconcile, of controller-runtime's",
        2.0,
        _time("controller-runtime", "reconcile"),
        "x",
    ),
    Bar(
        "time of a reconcile with one status, of controller-runtime's",
        4 / 3,
        _time("controller-runtime", "reconcile-status"),
        "x",
    ),
    Bar(
        "CPU of a reconcile with one status, of controller-runtime's",
        0.75,
        _to("flood_cpu", "controller-runtime", "reconcile-status"),
        "x",
    ),
    Bar(
        "CPU of the first reconciles with one status, of controller-runtime's",
        1.5,
        _to("added_cpu", "controller-runtime", "reconcile-status"),
        "x",
    ),
    Bar("hot Leases: changes not delivered", 0, _late),
    Bar("hot Leases: memory after, of before", 1.1, _over("hot_after", "hot_before", "hot"), "x"),
    Bar("unchanged relist: CPU, of the first sync's", 1.1, _over("relist_cpu", "sync_cpu"), "x"),
    Bar("unchanged relist: notifications", 0, _plain("unchanged", "unchanged_told")),
    Bar("1,000,000 pods: settled", 1000, _plain("sizes", "settled_resident", objects=_MILLION), "MB"),
    Bar("1,000,000 pods: lists until synced", 1, _plain("sizes", "sync_lists", objects=_MILLION)),
    Bar(
        "1,000,000 pods: a read by index",
        1,
        _plain("sizes", "read_seconds", objects=_MILLION, scale=1e3),
        "ms",
    ),
)
