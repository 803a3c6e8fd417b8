"""The results as tables: the figure of each peer, and its ratio to that of declctl."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.catalogue import BASE, BEFORE, CANDIDATES, ISOLATED, KINDS, OURS, RUN
from harness.results import Results
from harness.text import Table

NONE = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """One figure. `scale` converts to the shown unit. `of` computes a figure that is not stored."""

    head: str
    name: str
    scale: float = 1
    compared: bool = False
    of: Callable[[Results, str], float | None] | None = None


def tables(results: Results) -> list[Table]:
    """All tables that have figures."""
    made = [_cache(results), _listening(results), _burning(results), _hot(results), _unchanged(results)]
    made += [_reconciling(results)]
    made += [_kinds(results), _sizes(results), _reload(results), _command_line(results), _left_out(results)]
    return [table for table in made if table.rows]


def summary(results: Results) -> Table:
    """A row for each client, with the figures by which a reader chooses one."""
    figures = (
        ("cache", BASE, Column("CPU s to sync", "sync_cpu", compared=True)),
        ("cache", BASE, Column("resident MB", "sync_resident", compared=True)),
        ("sync", BASE, Column("CPU µs a change", "flood_cpu", 1e6, compared=True)),
        ("sync", BASE, Column("p99 ms of a change", "latency_p99")),
        ("reconcile", RUN, Column("CPU µs a reconcile", "flood_cpu", 1e6, compared=True)),
    )
    rows = [
        [
            c.title,
            *(_cells(results, scenario, c.key, (column,), base)[0] for scenario, base, column in figures),
        ]
        for c in CANDIDATES
        if c.key not in (BEFORE, ISOLATED)
    ]
    title = (
        f"{results.size('cache'):,} pods in a cache, {results.size('reconcile'):,} objects of a reconciler"
    )
    measured = [row for row in rows if set(row[1:]) != {NONE}]
    return Table(title, ["", *(column.head for _, _, column in figures)], measured)


def _cache(results: Results) -> Table:
    columns = (
        Column("CPU s", "sync_cpu", compared=True),
        Column("wall s", "sync_wall"),
        Column("resident MB", "sync_resident", compared=True),
        Column("settled MB", "settled_resident", compared=True),
        Column("peak MB", "sync_peak", compared=True),
        Column("read µs", "read_seconds", 1e6),
        Column("relist CPU s", "relist_cpu"),
        Column("relist peak MB", "relist_peak"),
    )
    return _table(results, "cache", "one index, no handler", columns)


def _listening(results: Results) -> Table:
    """The rows of sync handlers, and below them those of async handlers."""
    parts: list[Sequence[str]] = []
    notes: list[str] = []
    heads: Sequence[str] = []
    for scenario, what in (("sync", ""), ("async", ", coroutine")):
        columns = (
            Column(
                "first Added, CPU s on top",
                "added",
                of=lambda found, peer, s=scenario: on_top(found, peer, s),
            ),
            Column("CPU µs a change", "flood_cpu", 1e6, compared=True),
            Column("changes a second", "flood_rate"),
            Column("p50 ms", "latency_p50"),
            Column("p99 ms", "latency_p99"),
            Column("most ms", "latency_most"),
        )
        found = _table(results, scenario, "", columns)
        parts += [[f"{row[0]}{what}", *row[1:]] for row in found.rows]
        heads, notes = found.columns, [*notes, *found.notes]
    title = f"{results.size('sync'):,} pods, one index, one handler; latencies at 1,000 changes a second"
    return Table(title, heads, parts, notes)


def on_top(results: Results, peer: str, scenario: str) -> float | None:
    """The seconds of CPU for the first notifications: the difference to a sync without a listener."""
    objects = results.size(scenario)
    delivered = results.figure(scenario, peer, "added_cpu", objects=objects)
    alone = results.figure("cache", peer, "sync_cpu", objects=objects)
    return None if delivered is None or alone is None else max(0.0, delivered - alone)


def _burning(results: Results) -> Table:
    columns = (
        Column("p50 ms", "latency_p50"),
        Column("p99 ms", "latency_p99"),
        Column("most ms", "latency_most"),
    )
    return _table(results, "burning", "1,000 changes a second, a second handler keeps a core busy", columns)


def _hot(results: Results) -> Table:
    columns = (
        Column("took s", "hot_wall"),
        Column("delivered", "hot_told"),
        Column("of these merged", "hot_merged"),
        Column("CPU µs a change", "hot_cpu", 1e6),
        Column("before MB", "hot_before"),
        Column("peak MB", "hot_peak"),
        Column("after MB", "hot_after"),
    )
    return _table(results, "hot", "one of them changes 5,000 times a second", columns)


def _unchanged(results: Results) -> Table:
    columns = (Column("notified", "unchanged_told"),)
    found = _table(results, "unchanged", "a relist in which nothing has changed", columns)
    said = {"0": "no", "1": "yes"}
    return Table(
        found.title,
        found.columns,
        [[row[0], *(said.get(cell, cell) for cell in row[1:])] for row in found.rows],
    )


def _reconciling(results: Results) -> Table:
    """The rows of reconcilers without work, and below them those that write a status."""
    columns = (
        Column("reconciles a second", "flood_rate", compared=True),
        Column("CPU µs a reconcile", "flood_cpu", 1e6, compared=True),
        Column("p50 ms", "latency_p50"),
        Column("p99 ms", "latency_p99"),
        Column("first reconciles, CPU s", "added_cpu"),
        Column("settled MB", "settled_resident", compared=True),
    )
    parts: list[Sequence[str]] = []
    for scenario, what in (("reconcile", "nothing to do"), ("reconcile-status", "one status")):
        found = _table(results, scenario, "", columns, base=RUN)
        parts += [[f"{row[0]}, {what}", *row[1:]] for row in found.rows]
    objects = f"{results.size('reconcile'):,} custom resources"
    title = f"{objects}, one reconciler with eight workers; latencies at 200 changes a second"
    return Table(title, ["", *(column.head for column in columns)], parts)


def _kinds(results: Results) -> Table:
    objects = results.size("kinds")
    rows: list[list[str]] = []
    for kind in KINDS:
        for candidate in CANDIDATES:
            if results.of("kinds", candidate.key, kind=kind):
                name = f"{kind}: {candidate.title}"
                rows.append(
                    [name, *(_kind_cell(results, candidate.key, kind, column) for column in _KIND_COLUMNS)]
                )
    return Table(f"{objects:,} objects of each kind", ["kind", *(c.head for c in _KIND_COLUMNS)], rows)


_KIND_COLUMNS = (
    Column("CPU s", "sync_cpu", compared=True),
    Column("settled MB", "settled_resident", compared=True),
    Column("peak MB", "sync_peak"),
)


def _kind_cell(results: Results, peer: str, kind: str, column: Column) -> str:
    value = results.figure("kinds", peer, column.name, kind=kind)
    base = results.figure("kinds", BASE, column.name, kind=kind)
    return _cell(value, base if column.compared and peer not in OURS else None, column.scale)


def _sizes(results: Results) -> Table:
    sizes = sorted({record.objects for record in results.records if record.scenario == "sizes"})
    names = (
        ("CPU s", "sync_cpu", 1.0),
        ("wall s", "sync_wall", 1.0),
        ("settled MB", "settled_resident", 1.0),
    )
    names = (*names, ("peak MB", "sync_peak", 1.0), ("read µs", "read_seconds", 1e6))
    rows = [
        [
            f"{size:,}: {candidate.title}",
            *(_cell(results.figure("sizes", candidate.key, n, objects=size), None, s) for _, n, s in names),
        ]
        for size in sizes
        for candidate in CANDIDATES
        if results.of("sizes", candidate.key, objects=size)
    ]
    return Table("declctl by the number of pods", ["pods", *(head for head, _, _ in names)], rows)


def _reload(results: Results) -> Table:
    columns = (
        Column("reload took ms", "reload_seconds", 1e3),
        Column("LISTs", "reload_lists"),
        Column("p99 ms", "reload_p99"),
        Column("longest wait ms", "reload_most"),
        Column("without a reload ms", "latency_most"),
    )
    return _table(results, "reload", "handlers edited while 1,000 changes come a second", columns)


def _command_line(results: Results) -> Table:
    rows = [
        [record.peer, _cell(results.figure("command-line", record.peer, "wall"), None, 1000), NONE]
        if "wall" in record.figures
        else [record.peer, NONE, _cell(results.figure("command-line", record.peer, "resident"), None)]
        for record in results.records
        if record.scenario == "command-line" and record.run == 1
    ]
    return Table("the command line", ["", "ms", "resident MB"], rows)


def _left_out(results: Results) -> Table:
    return Table(
        "left out", ["peer", "why"], [[results.peers[key], why] for key, why in results.left_out.items()]
    )


def _table(
    results: Results, scenario: str, says: str, columns: Sequence[Column], *, base: str = BASE
) -> Table:
    """The figures of a scenario; compared ones have their ratio to those of the peer `base`."""
    objects = results.size(scenario)
    measured = [candidate for candidate in CANDIDATES if results.of(scenario, candidate.key)]
    rows = [[c.title, *_cells(results, scenario, c.key, columns, base)] for c in measured]
    kind = next((record.kind for record in results.records if record.scenario == scenario), "")
    notes = [f"{c.title}: {why}" for c in measured if (why := results.failed(scenario, c.key))]
    return Table(f"{objects:,} {kind}, {says}", ["", *(column.head for column in columns)], rows, notes)


def _cells(results: Results, scenario: str, peer: str, columns: Sequence[Column], base: str) -> list[str]:
    cells: list[str] = []
    failed = results.failed(scenario, peer).split(": ")[
        1:2
    ]  # the reason without the step, which is in the note
    for column in columns:
        value = _value(results, scenario, peer, column)
        if value is None and failed:
            cells.append(failed.pop())
            continue
        compared = column.compared and peer not in OURS
        cells.append(
            _cell(value, _value(results, scenario, base, column) if compared else None, column.scale)
        )
    return cells


def _value(results: Results, scenario: str, peer: str, column: Column) -> float | None:
    return column.of(results, peer) if column.of else results.figure(scenario, peer, column.name)


def _cell(value: float | None, base: float | None, scale: float = 1) -> str:
    if value is None:
        return NONE
    return f"{shown(value * scale)} ({shown(value / base)}x)" if base else shown(value * scale)


def shown(value: Any) -> str:
    """The value with three significant digits."""
    if value >= 1000:
        return f"{value:,.0f}"
    if value == int(value) and value < 1000:
        return f"{value:.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
