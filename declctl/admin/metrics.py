"""`GET /metrics`: the status in the format of Prometheus, under the names of the contract.

Nothing is counted here. A private registry leaves out the metrics that handlers register globally. It reads
the status at each scrape. The metrics that plugins add (`declctl_metrics`) follow those of declctl. They are
collected and written in threads, one collector at a time, so that none of them spoils the answer. `catalog`
lists the metrics without a process, for the dashboard, for alert rules and for the documentation.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from aiohttp import web
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from declctl import __version__
from declctl.admin.access import Reason, refusal
from declctl.kit.histogram import HistogramFigures
from declctl.runtime.handling.binding import HandlerStatistics
from declctl.runtime.handling.plugin_metrics import ScrapeFault
from declctl.runtime.reporting.status import (
    BREAKER_FIGURES,
    CONDITION_FIGURES,
    DECODING_FIGURES,
    ELECTION_FIGURES,
    HANDLER_FIGURES,
    LAG_FIGURES,
    PLUGIN_FIGURES,
    PROCESS_FIGURES,
    REQUEST_FIGURES,
    RESOURCE_FIGURES,
    SCHEDULE_FIGURES,
    SHARDING_FIGURES,
    WAITING_WRITE_FIGURES,
    WARNING_FIGURES,
    WORKQUEUE_FIGURES,
    WRITE_FIGURES,
    ControllerStatus,
    Figure,
)

if TYPE_CHECKING:  # for annotations alone
    from declctl.runtime.runtime import Runtime

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_EOF = b"# EOF\n"
_UNITS = ("seconds", "bytes", "ratio")  # base units of Prometheus, as the names of metrics end


class MetricInfo(NamedTuple):
    """One metric, as `catalog` lists it."""

    name: str  # as in queries: that of a counter ends in `_total`, that of a histogram has no suffix
    type: str  # counter, gauge, histogram or info
    labels: tuple[str, ...]
    help: str
    only: str = ""  # when it is there, in words; empty for always


class _FigureGroup(NamedTuple):
    """Figures that are read from the same statistics."""

    figures: Sequence[Figure]
    labels: tuple[str, ...] = ()  # whose values come with the statistics
    only: str = ""  # as in MetricInfo; the metrics have no HELP and TYPE lines without statistics then


_REFUSED = (
    Figure(
        "reason",
        "declctl_admin_refused",
        "Requests and connections that the admin address and the metrics address refused.",
        label="reason",
        read=lambda refused: {str(reason): count for reason, count in refused.items()},
    ),
)
_LEFT_OUT = (
    Figure(
        "reason",
        "declctl_plugin_metrics_failed",
        "How often a collector of a plugin or of handler files was left out of a scrape, by reason.",
        label="reason",
        read=lambda faults: {str(reason): count for reason, count in faults.items()},
    ),
)
_PROCESS = _FigureGroup(PROCESS_FIGURES)
_CONDITIONS = _FigureGroup(CONDITION_FIGURES, ("type", "status"))
_RESOURCES = _FigureGroup(RESOURCE_FIGURES, ("resource",))
_DECODING = _FigureGroup(DECODING_FIGURES, ("resource",))
_HANDLERS = _FigureGroup(HANDLER_FIGURES, ("handler",))
_LAGS = _FigureGroup(LAG_FIGURES, ("resource", "handler"))
_WORKQUEUES = _FigureGroup(WORKQUEUE_FIGURES, ("name",), "of `mode: Reconcile`")
_SCHEDULES = _FigureGroup(SCHEDULE_FIGURES, ("schedule",), "with `schedules`")
_WRITES = _FigureGroup(WRITE_FIGURES, ("handler", "verb", "result"))
_WAITING_WRITES = _FigureGroup(WAITING_WRITE_FIGURES, ("handler",))
_WARNINGS = _FigureGroup(WARNING_FIGURES, ("handler", "kind"))
_ELECTION = _FigureGroup(ELECTION_FIGURES, ("name",), "with `leaderElection`")
_SHARDING = _FigureGroup(SHARDING_FIGURES, ("name",), "with `sharding`")
_PLUGINS = _FigureGroup(PLUGIN_FIGURES, ("plugin",))
_BREAKERS = _FigureGroup(BREAKER_FIGURES, ("plugin",), "of plugins with `onError: Disable`")
_REQUESTS = _FigureGroup(REQUEST_FIGURES, ("code", "method", "host"))
_SCRAPES = _FigureGroup(_LEFT_OUT, ("plugin",), "with `declctl_metrics`")
_ADMIN = _FigureGroup(_REFUSED)
_GROUPS = (
    *(_PROCESS, _CONDITIONS, _RESOURCES, _DECODING, _HANDLERS, _LAGS, _WORKQUEUES),
    *(_SCHEDULES, _WRITES, _WAITING_WRITES, _WARNINGS, _ELECTION, _SHARDING, _PLUGINS, _BREAKERS, _SCRAPES),
    *(_REQUESTS, _ADMIN),
)
_BUILD = MetricInfo(
    "declctl_build_info", "info", ("version", "python"), "1, with the versions of declctl and of Python."
)
_CONTROLLER = MetricInfo(
    "declctl_controller_info",
    "info",
    ("controller",),
    "1, with the name of the controller that this process runs.",
)
_SELECTED = "declctl_selected_namespaces"


class Metrics:
    """The endpoint."""

    def __init__(self, runtime: "Runtime", refused: Mapping[Reason, int]) -> None:
        self._plugins = runtime.plugin_metrics
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(StatusCollector(runtime.status, refused, lambda: self._plugins.faults))
        ProcessCollector(registry=self._registry)  # `process_*`, where there is a /proc

    async def scrape(self, request: web.Request) -> web.StreamResponse:
        """All metrics, in the format that the scraper accepts: OpenMetrics, or the text format."""
        accept = request.headers.get("Accept", "")
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # the client accepts a version that is no number
            return refusal(406, f"Metrics have no format {accept[:100]!r}; leave Accept out.")
        # First, so that what is left out of this scrape is counted in it.
        added = await self._plugins.scrape(lambda families: encode(_collected(families)))
        parts = [encode(self._registry), *added]
        end = _EOF if parts[0].endswith(_EOF) else b""  # of OpenMetrics, once
        body = b"".join([*(part.removesuffix(end) for part in parts), end])
        return web.Response(body=body, headers={"Content-Type": content_type})


def _collected(families: Sequence[Metric]) -> CollectorRegistry:
    """A registry with metrics that were collected."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return registry


class _Families(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class StatusCollector(Collector):
    """Makes metrics of one status."""

    def __init__(
        self,
        status: Callable[[], ControllerStatus],
        refused: Mapping[Reason, int],
        left_out: Callable[[], Mapping[str, Mapping[ScrapeFault, int]]] = dict,
    ) -> None:
        self._status = status
        self._refused = refused
        self._left_out = left_out  # collectors of plugins, by plugin

    def collect(self) -> Iterable[Metric]:
        """All metrics of this version."""
        status = self._status()
        yield _info(_BUILD, {"version": __version__, "python": platform.python_version()})
        yield _info(_CONTROLLER, {"controller": status.name})
        yield from _families(_PROCESS, [((), status)])
        yield from _families(_CONDITIONS, [((each.type, each.status), each) for each in status.conditions])
        resources = [((resource.name,), resource) for resource in status.resources]
        yield from _families(_RESOURCES, resources)
        yield from _families(_DECODING, [(name, resource.decoding) for name, resource in resources])
        yield from _handlers(status.handlers, status.removed)
        yield from _families(_LAGS, [((h.resource, h.name), h) for h in status.handlers])
        queues = [((handler.name,), handler.workqueue) for handler in status.handlers if handler.workqueue]
        yield from _families(_WORKQUEUES, queues)
        yield from _families(_SCHEDULES, [((schedule.name,), schedule) for schedule in status.schedules])
        writes = [((total.handler, total.verb, total.result), total) for total in status.writes]
        yield from _families(_WRITES, writes)
        waiting = [((each.handler,), each) for each in status.waiting_writes]
        yield from _families(_WAITING_WRITES, waiting)
        warnings = [((total.handler, total.kind), total) for total in status.warning_totals]
        yield from _families(_WARNINGS, warnings)
        election = status.leader_election
        elections = [] if election is None else [((election.lease.partition("/")[2],), election)]
        yield from _families(_ELECTION, elections)
        sharding = status.sharding
        shared = [] if sharding is None else [((sharding.leases.partition("/")[2],), sharding)]
        yield from _families(_SHARDING, shared)
        plugins = [((plugin.name,), plugin) for plugin in status.plugins]
        yield from _families(_PLUGINS, plugins)
        breakers = [(name, plugin.circuit_breaker) for name, plugin in plugins if plugin.circuit_breaker]
        yield from _families(_BREAKERS, breakers)
        yield from _families(_SCRAPES, [((name,), faults) for name, faults in self._left_out().items()])
        # One process has one API server, so this label has one value; client-go's dashboards have it.
        host = urlsplit(status.server.url).netloc
        requests = [((total.code, total.method, host), total) for total in status.client_requests]
        yield from _families(_REQUESTS, requests)
        yield from _families(_ADMIN, [((), self._refused)])

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names are known only at a scrape."""
        return ()


def catalog() -> Sequence[MetricInfo]:
    """Every metric of this version, in the order of a scrape; of `process_*`, those of this system."""
    found: dict[str, MetricInfo] = {_BUILD.name: _BUILD, _CONTROLLER.name: _CONTROLLER}
    for group in _GROUPS:
        for figure in group.figures:
            if figure.metric:
                family = _family(group, figure)
                only = "with a selector of namespaces" if figure.metric == _SELECTED else group.only
                info = MetricInfo(_name_of(family), family.type, _labels(group, figure), figure.help, only)
                found.setdefault(info.name, info)
    for family in ProcessCollector(registry=None).collect():
        name = _name_of(family)
        found[name] = MetricInfo(name, family.type, (), family.documentation)
    return tuple(found.values())


def _name_of(family: Metric) -> str:
    """The name in queries; prometheus-client keeps that of a counter without its suffix."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def _info(info: MetricInfo, values: Mapping[str, str]) -> Metric:
    return InfoMetricFamily(info.name.removesuffix("_info"), info.help, value=dict(values))


def _handlers(handlers: Sequence[HandlerStatistics], removed: Mapping[str, int]) -> Iterable[Metric]:
    # The counter of dropped changes goes on after the removal of a handler, and when it is added again.
    figures = [((h.name,), replace(h, dropped=h.dropped + removed.get(h.name, 0))) for h in handlers]
    here = {handler.name for handler in handlers}
    for family in _families(_HANDLERS, figures):
        if isinstance(family, CounterMetricFamily) and family.name == "declctl_handler_dropped":
            for name in removed.keys() - here:
                family.add_metric((name,), removed[name])
        yield family


def _families(group: _FigureGroup, found: Sequence[tuple[tuple[str, ...], object]]) -> Iterator[_Family]:
    """The metrics of a group. `found` has statistics, each with the values of the labels of the group."""
    if group.only and not found:
        return  # most controllers have none
    measured = [figure for figure in group.figures if figure.metric]
    families = dict[str, _Family]()
    for figure in measured:
        if figure.metric not in families:
            families[figure.metric] = _family(group, figure)
    for labels, statistics in found:
        for figure in measured:
            family, value = families[figure.metric], figure.of(statistics)
            if value is None:
                continue  # it is not known yet
            if isinstance(family, HistogramMetricFamily):
                family.add_metric(labels, _buckets(value), value.sum)
            elif figure.value:
                family.add_metric((*labels, figure.value), value)
            elif figure.label:
                for each, count in value.items():
                    family.add_metric((*labels, each), count)
            else:
                family.add_metric(labels, value)
    yield from families.values()


def _family(group: _FigureGroup, figure: Figure) -> _Family:
    kind = CounterMetricFamily if figure.counts else GaugeMetricFamily
    if figure.histogram:
        kind = HistogramMetricFamily
    unit = figure.metric.rpartition("_")[2]
    labels = _labels(group, figure)
    return kind(figure.metric, figure.help, labels=labels, unit=unit if unit in _UNITS else "")


def _labels(group: _FigureGroup, figure: Figure) -> tuple[str, ...]:
    return (*group.labels, figure.label) if figure.label else group.labels


def _buckets(histogram: HistogramFigures) -> list[tuple[str, float]]:
    """The bounds as texts, with the number of durations up to each."""
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return [(bound, float(number)) for bound, number in zip(bounds, histogram.cumulative, strict=True)]
