"""The Grafana dashboard of a controller, made from the catalog of metrics: `deploy/dashboard.json`.

`python -m declctl.admin.dashboard` prints it. Panels that answer a question are listed here by hand. A metric
that none of them shows gets a panel in the last row, so that the dashboard is complete by construction. The
descriptions of panels are the help texts of their metrics.

The JSON is Grafana's classic model: for import, for provisioning from a file, and for the sidecar of
kube-prometheus-stack. The data source is a variable.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from declctl.admin.metrics import MetricInfo, catalog
from declctl.kit.text import to_json

UID = "declctl-controller"
SCHEMA_VERSION = 39  # of the JSON model: that of Grafana 11, which newer versions migrate when they load it

_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SELECTOR = '{job=~"$job", instance=~"$instance"}'
_COLUMNS = 24  # of a dashboard
_HEIGHT, _STAT_HEIGHT = 8, 4  # of panels, in the rows of Grafana's grid
_UNITS = {"seconds": "s", "bytes": "bytes"}  # Grafana's, by the base units in the names of metrics
_NAME = re.compile(r"[a-z][a-z0-9_]*(?=\{\})")
_SUFFIX = re.compile(r"_(bucket|sum|count)$")


class _Query(NamedTuple):
    """One query of a panel. `{}` behind the name of a metric becomes the selector of the dashboard."""

    expression: str
    legend: str = ""  # Grafana's pattern


class _Panel(NamedTuple):
    """One panel: a graph, or the newest value (`stat`)."""

    title: str
    queries: Sequence[_Query]
    unit: str = "none"  # Grafana's name of it
    stat: bool = False
    red_from: float | None = None  # of a stat: the lowest value that is red
    green_from: float | None = None  # of a stat: the lowest value that is green; others are red


class _Row(NamedTuple):
    title: str
    panels: Sequence[_Panel]
    collapsed: bool = False


def _rate(metric: str, *by: str, **equal: str) -> _Query:
    """The rate of a counter in the sum over the other labels; `equal` has labels that are selected."""
    chosen = "".join(f', {name}="{value}"' for name, value in equal.items())
    selected = f"{metric}{{}}" if not chosen else f"{metric}{_SELECTOR[:-1]}{chosen}}}"
    expression = f"rate({selected}[$__rate_interval])"
    legend = " ".join(f"{{{{{name}}}}}" for name in by)
    return _Query(f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})", legend)


def _quantiles(metric: str, by: str) -> tuple[_Query, ...]:
    """The median and the 99th percentile of a histogram."""
    rate = f"sum by ({by}, le) (rate({metric}_bucket{{}}[$__rate_interval]))"
    return tuple(
        _Query(f"histogram_quantile({share}, {rate})", f"{{{{{by}}}}} {name}")
        for share, name in ((0.5, "median"), (0.99, "p99"))
    )


def _value(metric: str, *by: str, how: str = "sum") -> _Query:
    legend = " ".join(f"{{{{{name}}}}}" for name in by)
    grouped = f"{how} by ({', '.join(by)})" if by else how
    return _Query(f"{grouped} ({metric}{{}})" if by else f"{grouped}({metric}{{}})", legend)


def _increase(metric: str, **equal: str) -> _Query:
    chosen = "".join(f', {name}="{value}"' for name, value in equal.items())
    return _Query(f"sum(increase({metric}{_SELECTOR[:-1]}{chosen}}}[$__range]))")


_ROWS = (
    _Row(
        "Overview",
        (
            _Panel("Generation", [_value("declctl_generation", how="max")], stat=True),
            _Panel(
                "Refused reloads",
                [_increase("declctl_reloads_total", result="Refused")],
                stat=True,
                red_from=1,
            ),
            _Panel(
                "Calls and keys in trouble", [_value("declctl_handler_unhealthy")], stat=True, red_from=1
            ),
            _Panel("Dead letters", [_value("declctl_handler_dead_letters")], stat=True, red_from=1),
            _Panel("Calls that hang", [_value("declctl_zombie_invocations")], stat=True, red_from=1),
            _Panel(
                "API server", [_value("declctl_server_reachable", how="min")], stat=True, green_from=1
            ),
        ),
    ),
    _Row(
        "Events and caches",
        (
            _Panel("Watch events", [_rate("declctl_watch_events_total", "resource", "type")], "ops"),
            _Panel("Lag of events", _quantiles("declctl_event_lag_seconds", "handler"), "s"),
            _Panel("LISTs and WATCHes", [
                _Query(_rate("declctl_lists_total", "resource").expression, "{{resource}} LIST"),
                _Query(_rate("declctl_watches_total", "resource").expression, "{{resource}} WATCH"),
            ], "ops"),
            _Panel("Objects", [_value("declctl_cache_objects", "resource")]),
            _Panel("Size of caches", [_value("declctl_cache_bytes", "resource")], "bytes"),
            _Panel(
                "Changes that only a list has found",
                [_rate("declctl_relist_differences_total", "resource", "type")],
                "ops",
            ),
        ),
    ),
    _Row(
        "Handlers",
        (
            _Panel("Calls", [_rate("declctl_handler_results_total", "handler", "result")], "ops"),
            _Panel("Duration of calls", _quantiles("declctl_handler_duration_seconds", "handler"), "s"),
            _Panel("Queued changes", [_value("declctl_handler_queue_depth", "handler")]),
            _Panel("Running calls", [_value("declctl_handler_running", "handler")]),
            _Panel("Oldest call", [_value("declctl_handler_oldest_call_seconds", "handler", how="max")], "s"),
            _Panel("Filtered, merged and dropped changes", [
                _Query(_rate("declctl_handler_filtered_total", "handler").expression, "{{handler}} filtered"),
                _Query(_rate("declctl_handler_merged_total", "handler").expression, "{{handler}} merged"),
                _Query(_rate("declctl_handler_dropped_total", "handler").expression, "{{handler}} dropped"),
            ], "ops"),
        ),
    ),
    _Row(
        "Reconcilers",
        (
            _Panel("Depth of work queues", [_value("workqueue_depth", "name")]),
            _Panel("Added keys", [_rate("workqueue_adds_total", "name")], "ops"),
            _Panel("Retries", [_rate("workqueue_retries_total", "name")], "ops"),
            _Panel("Wait in the queue", _quantiles("workqueue_queue_duration_seconds", "name"), "s"),
            _Panel("Work on a key", _quantiles("workqueue_work_duration_seconds", "name"), "s"),
            _Panel("Unfinished work", [
                _Query("sum by (name) (workqueue_unfinished_work_seconds{})", "{{name}} in total"),
                _Query(
                    "max by (name) (workqueue_longest_running_processor_seconds{})", "{{name}} longest"
                ),
            ], "s"),
        ),
    ),
    _Row(
        "Writes and the API server",
        (
            _Panel("Writes", [_rate("declctl_writes_total", "handler", "verb", "result")], "ops"),
            _Panel("Repeated writes", [_rate("declctl_write_retries_total", "reason")], "ops"),
            _Panel("Warnings", [_rate("declctl_server_warnings_total", "handler", "kind")], "ops"),
            _Panel("Requests", [_rate("rest_client_requests_total", "method", "code")], "reqps"),
        ),
    ),
    _Row(
        "Reloads and leadership",
        (
            _Panel("Reloads", [_rate("declctl_reloads_total", "result")], "ops"),
            _Panel("Duration of the last reload", [_value("declctl_reload_seconds", "instance")], "s"),
            _Panel("Generations in memory", [_value("declctl_generations_alive", "instance", how="max")]),
            _Panel("Leader", [_value("leader_election_master_status", "name", "instance", how="max")]),
            _Panel("Slots", [_value("declctl_slots_handled", "instance", how="max")]),
            _Panel("Slots that move", [_rate("declctl_slots_gained_total", "instance")], "ops"),
            _Panel("Plugins that are ready", [_value("declctl_plugin_ready", "plugin", how="min")]),
            _Panel("Schedules", [_rate("declctl_schedule_results_total", "schedule", "result")], "ops"),
        ),
    ),
    _Row(
        "Process",
        (
            _Panel("CPU", [_rate("process_cpu_seconds_total", "instance")], "percentunit"),
            _Panel("Memory", [_value("process_resident_memory_bytes", "instance")], "bytes"),
            _Panel("Open files", [
                _value("process_open_fds", "instance"),
                _Query("min by (instance) (process_max_fds{})", "{{instance}} limit"),
            ]),
        ),
    ),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana's JSON model has it."""
    metrics = {info.name: info for info in catalog()}
    shown = {name for row in _ROWS for panel in row.panels for name in _names(panel)}
    others = [_panel_of(info) for info in metrics.values() if info.name not in shown and info.type != "info"]
    rows = (*_ROWS, _Row("All other metrics", others, collapsed=True))
    return {
        "uid": UID,
        "title": "declctl controller",
        "description": "One or several controllers of declctl: events, handlers, reloads, writes.",
        "tags": ["declctl", "kubernetes"],
        "editable": True,
        "graphTooltip": 1,  # one crosshair for all graphs
        "schemaVersion": SCHEMA_VERSION,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "timezone": "browser",
        "templating": {"list": [*_variables()]},
        "annotations": {"list": [_reloads()]},
        "links": [],
        "panels": [*_placed(rows, metrics)],
    }


def _panel_of(info: MetricInfo) -> _Panel:
    """The panel of a metric that no other panel shows."""
    title, unit = info.name, _UNITS.get(info.name.rpartition("_")[2], "none")
    if info.type == "histogram":
        return _Panel(title, _quantiles(info.name, info.labels[-1]), unit)
    labels = info.labels or ("instance",)
    if info.type == "counter":
        return _Panel(title, [_rate(info.name, *labels)], "ops")
    if info.name.endswith(("_timestamp_seconds", "_start_time_seconds")):
        # Grafana takes milliseconds.
        return _Panel(
            title, [_Query(f"1000 * max by ({', '.join(labels)}) ({info.name}{{}})")], "dateTimeFromNow"
        )
    return _Panel(title, [_value(info.name, *labels, how="max")], unit)


def _names(panel: _Panel) -> Iterator[str]:
    """The metrics of a panel, by their names in the catalog."""
    for query in panel.queries:
        text = query.expression.replace(_SELECTOR, "{}")
        text = re.sub(re.escape(_SELECTOR[:-1]) + r"[^}]*\}", "{}", text)
        for name in _NAME.findall(text):
            yield _SUFFIX.sub("", name)


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    for name, query in (
        ("controller", "label_values(declctl_controller_info, controller)"),
        ("job", 'label_values(declctl_controller_info{controller=~"$controller"}, job)'),
        (
            "instance",
            'label_values(declctl_controller_info{controller=~"$controller", job=~"$job"}, instance)',
        ),
    ):
        yield {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": _DATASOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,  # when the time range changes
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "current": {"text": "All", "value": "$__all"},
        }


def _reloads() -> dict[str, Any]:
    """The annotation that marks each new generation in all graphs."""
    return {
        "name": "New generations",
        "enable": True,
        "hide": False,
        "iconColor": "blue",
        "datasource": _DATASOURCE,
        "expr": _selected("changes(declctl_generation{}[$__rate_interval]) > 0"),
    }


def _placed(rows: Sequence[_Row], metrics: Mapping[str, MetricInfo]) -> Iterator[dict[str, Any]]:
    """The rows and their panels, each with an id and a place. A collapsed row contains its panels."""
    top = number = 0
    for row in rows:
        number += 1
        head: dict[str, Any] = {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": row.collapsed,
            "gridPos": {"x": 0, "y": top, "w": _COLUMNS, "h": 1},
            "panels": [],
        }
        top += 1
        panels: list[dict[str, Any]] = []
        stats = row.panels[0].stat
        width, height = (_COLUMNS // 6, _STAT_HEIGHT) if stats else (_COLUMNS // 3, _HEIGHT)
        for index, panel in enumerate(row.panels):
            number += 1
            line, column = divmod(index, _COLUMNS // width)
            place = {"x": column * width, "y": top + line * height, "w": width, "h": height}
            panels.append({"id": number, "gridPos": place, **_drawn(panel, metrics)})
        if row.collapsed:
            head["panels"] = panels  # they take no place until the row is opened
            yield head
        else:
            yield head
            yield from panels
            top += -(-len(panels) // (_COLUMNS // width)) * height


def _drawn(panel: _Panel, metrics: Mapping[str, MetricInfo]) -> dict[str, Any]:
    """A panel without its place."""
    helps = dict.fromkeys(metrics[name].help for name in _names(panel) if name in metrics)
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.stat:
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if panel.red_from is not None:
            steps.append({"color": "red", "value": panel.red_from})
        if panel.green_from is not None:
            steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.green_from}]
        defaults |= {"thresholds": {"mode": "absolute", "steps": steps}, "color": {"mode": "thresholds"}}
        options: dict[str, Any] = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "textMode": "auto",
            "orientation": "auto",
        }
    else:
        defaults |= {"custom": {"fillOpacity": 10, "showPoints": "never", "lineWidth": 1}, "min": 0}
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": " ".join(helps),
        "datasource": _DATASOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "expr": _selected(query.expression),
                "legendFormat": query.legend or "__auto",
                "range": not panel.stat,
                "instant": panel.stat,
            }
            for index, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


def _selected(expression: str) -> str:
    return expression.replace("{}", _SELECTOR)


if __name__ == "__main__":
    sys.stdout.write(f"{to_json(dashboard(), indent=2)}\n")
