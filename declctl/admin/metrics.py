"""`GET /metrics`: the status as Prometheus reads it, under the names of the contract.

Nothing is counted here. A registry of its own keeps out what handlers register globally, and asks the
runtime at each scrape.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from declctl.admin.access import Reason, refusal
from declctl.admin.endpoints import Controlled
from declctl.runtime.checking.loaded_code import READY, LoadedPlugin
from declctl.runtime.handling.binding import HandlerStatistics
from declctl.runtime.reporting.status import ControllerStatus, ResourceStatus

_RESULTS = ("succeeded", "failed", "retried")


class Metrics:
    """The endpoint."""

    def __init__(self, runtime: Controlled, refused: Mapping[Reason, int]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(StatusCollector(runtime.status, refused))

    async def scrape(self, request: web.Request) -> web.StreamResponse:
        """All metrics, in the format that the scraper asks for."""
        accept = request.headers.get("Accept", "")
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # the client asks for a version that is no number
            return refusal(406, f"Metrics have no format {accept[:100]!r}; leave Accept out.")
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})


class StatusCollector(Collector):
    """Metrics out of one status."""

    def __init__(self, status: Callable[[], ControllerStatus], refused: Mapping[Reason, int]) -> None:
        self._status = status
        self._refused = refused

    def collect(self) -> Iterable[Metric]:
        """Every metric that this version fills."""
        status = self._status()
        yield from _process(status)
        yield from _caches(status.resources)
        yield from _decoding(status.resources)
        yield from _handlers(status.handlers, status.removed)
        yield _plugins(status.plugins)
        refused = CounterMetricFamily(
            "declctl_admin_refused",
            "Requests and connections that the admin address refused.",
            labels=("reason",),
        )
        for reason, count in self._refused.items():
            refused.add_metric((str(reason),), count)
        yield refused

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names are known at a scrape."""
        return ()


def _process(status: ControllerStatus) -> Iterable[Metric]:
    yield _gauge("declctl_generation", "The generation that runs.", status.generation)
    yield _gauge(
        "declctl_generations_alive",
        "Generations in memory: more than one while one drains, or may come back.",
        status.generations_alive,
    )
    reloads = CounterMetricFamily("declctl_reloads", "Attempts to reload, by result.", labels=("result",))
    for result in ("Applied", "Unchanged", "Refused", "RolledBack", "Superseded"):
        reloads.add_metric((result,), status.reloads.get(result, 0))
    yield reloads
    yield _counter(
        "declctl_reload_retries",
        "Reloads that were refused for no fault of the files, and tried again.",
        status.reload_retries,
    )
    yield _counter(
        "declctl_reload_plan_mismatches",
        "LISTs or WATCHes of a resource that a reload had not planned.",
        status.reload_plan_mismatches,
    )
    yield _gauge("declctl_reload_seconds", "How long the last reload took.", status.last_reload_seconds)
    zombies = sum(handler.zombies for handler in status.handlers) + len(status.abandoned)
    yield _gauge(
        "declctl_zombie_invocations", "Calls that nobody waits for and that have not returned.", zombies
    )
    away = status.server.unreachable_since is not None
    yield _gauge("declctl_server_reachable", "0 while the API server does not answer.", int(not away))
    yield _counter(
        "declctl_server_outages", "How often the API server did not answer.", status.server.outages
    )
    yield _counter(
        "declctl_server_rollbacks",
        "How often the API server's history was another one than before, as after a restore.",
        status.server.rollbacks,
    )
    yield _counter(
        "declctl_file_watch_failures",
        "Looks at the bundle's files that failed, so that edits were not noticed.",
        status.file_watch.failures,
    )
    recorded = CounterMetricFamily(
        "declctl_recorded_events",
        "Kubernetes Events of ctx.record_event, by what became of them.",
        labels=("result",),
    )
    for result, count in status.recorded.document().items():
        recorded.add_metric((result,), count)
    yield recorded
    yield _gauge("declctl_leader", "1 if this process acts.", int(status.leader))


def _caches(resources: Sequence[ResourceStatus]) -> Iterable[Metric]:
    by = ("resource",)
    objects = GaugeMetricFamily("declctl_cache_objects", "Objects in the cache.", labels=by)
    size = GaugeMetricFamily("declctl_cache_bytes", "Bytes that their frames take.", labels=by)
    lists = CounterMetricFamily("declctl_lists", "LISTs begun.", labels=by)
    watches = CounterMetricFamily("declctl_watches", "WATCHes begun.", labels=by)
    events = CounterMetricFamily(
        "declctl_watch_events", "Watch events that came in, by type.", labels=("resource", "type")
    )
    relisted = CounterMetricFamily(
        "declctl_relist_differences",
        "Objects that lists after the first found changed: changes in between were not seen.",
        labels=("resource", "type"),
    )
    mutations = CounterMetricFamily(
        "declctl_cache_mutations", "Cached objects that a reader changed; put right.", labels=by
    )
    unindexed = CounterMetricFamily(
        "declctl_index_failures", "Objects that an index function failed on.", labels=("resource", "index")
    )
    for resource in resources:
        name = (resource.name,)
        mutations.add_metric(name, resource.mutations)
        objects.add_metric(name, resource.objects)
        size.add_metric(name, resource.bytes)
        lists.add_metric(name, resource.lists)
        watches.add_metric(name, resource.watches)
        found = resource.relist_differences
        for kind in ("added", "modified", "deleted"):
            relisted.add_metric((resource.name, kind), getattr(found, kind))
        for kind, count in sorted(resource.events.items()):
            events.add_metric((resource.name, str(kind)), count)
        for index, count in resource.index_failures.items():
            unindexed.add_metric((resource.name, index), count)
    yield from (objects, size, lists, watches, relisted, events, mutations, unindexed)


def _decoding(resources: Sequence[ResourceStatus]) -> Iterable[Metric]:
    by = ("resource",)
    decoded = CounterMetricFamily(
        "declctl_decoded_objects",
        "Objects that were read: projected in part, or decoded whole.",
        labels=("resource", "how"),
    )
    unread = CounterMetricFamily(
        "declctl_unread_objects", "Objects that can't be decoded and are kept as they came.", labels=by
    )
    left_out = CounterMetricFamily(
        "declctl_transform_left_out",
        "Objects that are not cached: dropped by the transform, or because it failed.",
        labels=("resource", "result"),
    )
    ratio = GaugeMetricFamily(
        "declctl_frame_ratio", "Bytes of objects to those of their frames, lately.", labels=by
    )
    trainings = CounterMetricFamily(
        "declctl_frame_trainings", "Attempts to learn a dictionary that makes frames smaller.", labels=by
    )
    dictionaries = GaugeMetricFamily(
        "declctl_frame_dictionaries", "Dictionaries that frames are made with.", labels=by
    )
    for resource in resources:
        name, figures = resource.name, resource.decoding
        decoded.add_metric((name, "projected"), figures.projected)
        decoded.add_metric((name, "whole"), figures.whole)
        unread.add_metric((name,), figures.unread)
        left_out.add_metric((name, "dropped"), figures.dropped)
        left_out.add_metric((name, "failed"), figures.failed)
        ratio.add_metric((name,), figures.frame_ratio)
        trainings.add_metric((name,), figures.trainings)
        dictionaries.add_metric((name,), figures.dictionaries)
    yield from (decoded, unread, left_out, ratio, trainings, dictionaries)


def _handlers(handlers: Sequence[HandlerStatistics], removed: Mapping[str, int]) -> Iterable[Metric]:
    by = ("handler",)
    results = CounterMetricFamily(
        "declctl_handler_results", "Calls, by what became of them.", labels=("handler", "result")
    )
    depth = GaugeMetricFamily("declctl_handler_queue_depth", "Changes that wait.", labels=by)
    merged = CounterMetricFamily(
        "declctl_handler_merged", "Changes that were merged with another.", labels=by
    )
    dropped = CounterMetricFamily(
        "declctl_handler_dropped",
        "Changes that were dropped: with a handler that was removed, or as its plugin is disabled.",
        labels=by,
    )
    filtered = CounterMetricFamily(
        "declctl_handler_filtered",
        "Changes that were kept from it: by its filter, or as it has no hook for them.",
        labels=by,
    )
    replayed = CounterMetricFamily(
        "declctl_handler_replayed",
        "Cached objects that it was told again, as its code had changed.",
        labels=by,
    )
    for handler in handlers:
        for result, count in zip(_RESULTS, (handler.succeeded, handler.failed, handler.retried), strict=True):
            results.add_metric((handler.name, result), count)
        depth.add_metric((handler.name,), handler.queued)
        merged.add_metric((handler.name,), handler.merged)
        dropped.add_metric((handler.name,), handler.dropped + removed.get(handler.name, 0))
        filtered.add_metric((handler.name,), handler.filtered)
        replayed.add_metric((handler.name,), handler.replayed)
    here = {handler.name for handler in handlers}
    for name in removed.keys() - here:  # a counter goes on when its handler is gone
        dropped.add_metric((name,), removed[name])
    yield from (results, depth, merged, dropped, filtered, replayed)


def _plugins(plugins: Sequence[LoadedPlugin]) -> Metric:
    ready = GaugeMetricFamily(
        "declctl_plugin_ready", "0 if it could not be loaded and is disabled.", labels=("plugin",)
    )
    for plugin in plugins:
        ready.add_metric((plugin.name,), int(plugin.state == READY))
    return ready


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)


def _counter(name: str, documentation: str, value: float) -> Metric:
    return CounterMetricFamily(name, documentation, value=value)
