"""`GET /metrics`: the status in the format of Prometheus, under the names of the contract.

Nothing is counted here. A private registry leaves out the metrics that handlers register globally. It reads
the status at each scrape.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from aiohttp import web
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from declctl.admin.access import Reason, refusal
from declctl.admin.endpoints import ControlledRuntime
from declctl.runtime.handling.binding import HandlerStatistics
from declctl.runtime.reporting.status import (
    BREAKER_FIGURES,
    DECODING_FIGURES,
    ELECTION_FIGURES,
    HANDLER_FIGURES,
    PLUGIN_FIGURES,
    PROCESS_FIGURES,
    RESOURCE_FIGURES,
    SCHEDULE_FIGURES,
    WORKQUEUE_FIGURES,
    WRITE_FIGURES,
    ControllerStatus,
    Figure,
    Histogram,
)

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Metrics:
    """The endpoint."""

    def __init__(self, runtime: ControlledRuntime, refused: Mapping[Reason, int]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(StatusCollector(runtime.status, refused))

    async def scrape(self, request: web.Request) -> web.StreamResponse:
        """All metrics, in the format that the scraper accepts."""
        accept = request.headers.get("Accept", "")
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # the client accepts a version that is no number
            return refusal(406, f"Metrics have no format {accept[:100]!r}; leave Accept out.")
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})


class StatusCollector(Collector):
    """Makes metrics of one status."""

    def __init__(self, status: Callable[[], ControllerStatus], refused: Mapping[Reason, int]) -> None:
        self._status = status
        self._refused = refused

    def collect(self) -> Iterable[Metric]:
        """All metrics of this version."""
        status = self._status()
        yield from _families(PROCESS_FIGURES, [((), status)])
        resources = [((resource.name,), resource) for resource in status.resources]
        yield from _families(RESOURCE_FIGURES, resources, by=("resource",))
        decoding = [(name, resource.decoding) for name, resource in resources]
        yield from _families(DECODING_FIGURES, decoding, by=("resource",))
        yield from _handlers(status.handlers, status.removed)
        queues = [((handler.name,), handler.workqueue) for handler in status.handlers if handler.workqueue]
        if queues:  # of reconcilers
            yield from _families(WORKQUEUE_FIGURES, queues, by=("name",))
        schedules = [((schedule.name,), schedule) for schedule in status.schedules]
        if schedules:  # most controllers have none
            yield from _families(SCHEDULE_FIGURES, schedules, by=("schedule",))
        writes = [((total.handler, total.verb, total.result), total) for total in status.writes]
        yield from _families(WRITE_FIGURES, writes, by=("handler", "verb", "result"))
        if status.leader_election is not None:
            name = status.leader_election.lease.partition("/")[2]
            yield from _families(ELECTION_FIGURES, [((name,), status.leader_election)], by=("name",))
        plugins = [((plugin.name,), plugin) for plugin in status.plugins]
        yield from _families(PLUGIN_FIGURES, plugins, by=("plugin",))
        breakers = [(name, plugin.circuit_breaker) for name, plugin in plugins if plugin.circuit_breaker]
        if breakers:  # of plugins with onError: Disable
            yield from _families(BREAKER_FIGURES, breakers, by=("plugin",))
        refused = CounterMetricFamily(
            "declctl_admin_refused",
            "Requests and connections that the admin address refused.",
            labels=("reason",),
        )
        for reason, count in self._refused.items():
            refused.add_metric((str(reason),), count)
        yield refused

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names are known only at a scrape."""
        return ()


def _handlers(handlers: Sequence[HandlerStatistics], removed: Mapping[str, int]) -> Iterable[Metric]:
    # The counter of dropped changes goes on after the removal of a handler, and when it is added again.
    figures = [((h.name,), replace(h, dropped=h.dropped + removed.get(h.name, 0))) for h in handlers]
    here = {handler.name for handler in handlers}
    for family in _families(HANDLER_FIGURES, figures, by=("handler",)):
        if isinstance(family, CounterMetricFamily) and family.name == "declctl_handler_dropped":
            for name in removed.keys() - here:
                family.add_metric((name,), removed[name])
        yield family


def _families(
    figures: Iterable[Figure], found: Sequence[tuple[tuple[str, ...], object]], *, by: tuple[str, ...] = ()
) -> Iterable[_Family]:
    """The metrics of these figures. `found` has statistics, each with the values of the labels `by`."""
    measured = [figure for figure in figures if figure.metric]
    families = dict[str, _Family]()
    for figure in measured:
        if figure.metric not in families:
            labels = (*by, figure.label) if figure.label else by
            families[figure.metric] = _kind_of(figure)(figure.metric, figure.help, labels=labels)
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
    return families.values()


def _kind_of(figure: Figure) -> Callable[..., _Family]:
    if figure.histogram:
        return HistogramMetricFamily
    return CounterMetricFamily if figure.counts else GaugeMetricFamily


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """The bounds as texts, with the number of durations up to each."""
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return [(bound, float(number)) for bound, number in zip(bounds, histogram.cumulative, strict=True)]
