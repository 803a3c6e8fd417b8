"""The figures of an informer: those of its stations, and what people ask for first."""

from collections.abc import Mapping
from dataclasses import dataclass

from declctl.decoding import ProjectionStatistics
from declctl.informer.applying import RelistDifferences
from declctl.informer.controller import Controller, ControllerStatistics
from declctl.informer.processor import ProcessorStatistics, SharedProcessor
from declctl.informer.reflector import ReflectorStatistics
from declctl.informer.stores import Indexer
from declctl.kit import Clock


@dataclass(frozen=True, slots=True)
class InformerStatistics:
    """One informer in `status`. `last_event_age` is in seconds, `bytes` counts frames.

    `index_faults` has, for each index whose function failed, how often and the last fault. `missing`
    says that the server does not have the kind, `forbidden` that it does not let us see it.
    `relist_differences` is what lists after the first have found. What each station says of itself is in
    `projection` (what was decoded, since the start), `reflector`, `controller` (the queue and its
    processing) and `processor` (the listeners).
    """

    name: str
    synced: bool
    state: str
    objects: int
    bytes: int
    lists: int
    watches: int
    relists: int
    resource_version: str
    last_event_age: float | None
    events: Mapping[str, int]
    items_listed: int
    failures: int
    idle_closes: int
    error: str | None
    missing: bool
    forbidden: bool
    index_faults: Mapping[str, tuple[int, str | None]]
    projection: ProjectionStatistics
    reflector: ReflectorStatistics
    controller: ControllerStatistics
    processor: ProcessorStatistics
    relist_differences: RelistDifferences


def informer_statistics(
    name: str,
    projection: ProjectionStatistics,
    indexer: Indexer,
    controller: Controller,
    processor: SharedProcessor,
    relist_differences: RelistDifferences,
    clock: Clock,
) -> InformerStatistics:
    """The figures of this moment."""
    reflector = controller.reflector.statistics()
    last = reflector.last_event_at
    return InformerStatistics(
        name=name,
        synced=controller.has_synced,
        state=reflector.state,
        objects=len(indexer),
        bytes=indexer.bytes,
        lists=reflector.lists,
        watches=reflector.watches,
        relists=reflector.relists,
        resource_version=reflector.resource_version,
        last_event_age=None if last is None else max(0.0, clock.monotonic() - last),
        events=reflector.events,
        items_listed=reflector.items_listed,
        failures=reflector.failures,
        idle_closes=reflector.idle_closes,
        error=reflector.error,
        missing=reflector.missing,
        forbidden=reflector.forbidden,
        index_faults=indexer.index_faults(),
        projection=projection,
        reflector=reflector,
        controller=controller.statistics(),
        processor=processor.statistics(),
        relist_differences=relist_differences,
    )
