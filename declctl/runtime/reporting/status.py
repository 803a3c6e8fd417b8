"""What a running controller says of itself.

The document of `declctl status` and `GET /status`, and its conditions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from typing import Any, cast

from declctl.informer import InformerStatistics, RelistDifferences
from declctl.kit import Clock
from declctl.objects.differences import Mutation
from declctl.runtime.caching.informer_pool import DecodingStatus
from declctl.runtime.checking.loaded_code import LoadedPlugin
from declctl.runtime.handling.binding import HandlerStatistics
from declctl.runtime.handling.context import RecordedEvents
from declctl.runtime.reloading.attempts import RetryStatus
from declctl.runtime.reloading.files import FileWatchStatus
from declctl.runtime.reloading.generation import OldGeneration
from declctl.runtime.threads import AbandonedCall
from declctl.runtime.watchdog import MachineryStatus
from declctl.transport import ServerStatus


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, as in a Kubernetes status. `status` is True, False or Unknown, as a string."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: datetime

    def document(self) -> dict[str, str]:
        """As JSON has it."""
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": self.last_transition_time.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }


class Conditions:
    """The conditions by type; the time of the last transition changes only when the status does."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._conditions: dict[str, Condition] = {}

    def set(self, kind: str, *, holds: bool, reason: str, message: str = "") -> bool:
        """State a condition; returns whether its status changed."""
        status = "True" if holds else "False"
        before = self._conditions.get(kind)
        changed = before is None or before.status != status
        since = self._clock.now() if before is None or changed else before.last_transition_time
        self._conditions[kind] = Condition(kind, status, reason, message, since)
        return changed

    def get(self, kind: str) -> Condition | None:
        """The condition of a type, if it was ever stated."""
        return self._conditions.get(kind)

    def all(self) -> tuple[Condition, ...]:
        """Every condition that was stated, in the order of first statement."""
        return tuple(self._conditions.values())


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """One resource over all its watches. `last_event_age` is in seconds.

    `bytes` counts frames, or the JSON of objects that are kept decoded. `queued` changes are not in the
    cache yet, `skipped` objects could not be used, `slow` steps of processing held up others,
    `mutations` counts cached objects that a reader changed and that were put right. `relist_differences`
    counts what lists after the first have found: changes in between were not seen. `decoding` says what
    came of their bytes, and `informers` has the figures of each watch. `error_type` is the class of `error`.
    """

    name: str
    synced: bool
    objects: int
    bytes: int
    lists: int
    watches: int
    relists: int
    resource_version: str
    last_event_age: float | None
    error: str | None
    state: str
    items_listed: int
    events: Mapping[str, int]
    queued: int = 0
    skipped: int = 0
    slow: int = 0
    mutations: int = 0
    last_mutation: Mutation | None = None
    relist_differences: RelistDifferences = field(default_factory=RelistDifferences)
    decoding: DecodingStatus = field(default_factory=DecodingStatus)
    informers: Sequence[InformerStatistics] = ()
    error_type: str | None = None

    @property
    def index_failures(self) -> Mapping[str, int]:
        """How many objects the function of each index has failed on; those without failures are left out."""
        found: dict[str, int] = {}
        for part in self.informers:
            for internal, (times, _) in part.index_faults.items():
                name = internal.partition("@")[0]
                found[name] = found.get(name, 0) + times
        return found

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "name": self.name,
            "synced": self.synced,
            "objects": self.objects,
            "bytes": self.bytes,
            "lists": self.lists,
            "watches": self.watches,
            "relists": self.relists,
            "relistDifferences": _plain(self.relist_differences),
            "resourceVersion": self.resource_version,
            "lastEventAge": self.last_event_age,
            "error": self.error,
            "errorType": self.error_type,
            "state": self.state,
            "queued": self.queued,
            "skipped": self.skipped,
            "slow": self.slow,
            "mutations": self.mutations,
            "lastMutation": self.last_mutation.places if self.last_mutation is not None else None,
            "decoding": self.decoding.document(),
            "informers": [_informer(informer) for informer in self.informers],
        }


@dataclass(frozen=True, slots=True)
class ControllerStatus:
    """The whole controller at one moment."""

    name: str
    generation: int
    bundle_hash: str
    ready: bool
    leader: bool
    generations_alive: int
    conditions: Sequence[Condition]
    resources: Sequence[ResourceStatus]
    handlers: Sequence[HandlerStatistics]
    plugins: Sequence[LoadedPlugin]
    reloads: Mapping[str, int]
    last_reload_seconds: float
    reload_plan_mismatches: int = 0  # requests of reloads that were not as planned
    removed: Mapping[str, int] = field(default_factory=dict[str, int])  # handlers → changes dropped with them
    old_generations: Sequence[OldGeneration] = ()  # those that were replaced and are alive
    server: ServerStatus = field(default_factory=lambda: ServerStatus(""))
    reload_retries: int = 0  # of refused reloads, since the start
    reload_retry: RetryStatus | None = None  # the refused reload that is tried again by itself
    recorded: RecordedEvents = field(default_factory=RecordedEvents)  # by ctx.record_event
    machinery: MachineryStatus = field(default_factory=MachineryStatus)
    abandoned: Sequence[AbandonedCall] = ()  # calls of staged code that nobody waits for and that go on
    file_watch: FileWatchStatus = field(default_factory=FileWatchStatus)

    def document(self) -> dict[str, Any]:
        """As JSON has it; the contract of `GET /status`."""
        return {
            "name": self.name,
            "generation": self.generation,
            "bundleHash": self.bundle_hash,
            "ready": self.ready,
            "leader": self.leader,
            "generationsAlive": self.generations_alive,
            "oldGenerations": [old.document() for old in self.old_generations],
            "reloadPlanMismatches": self.reload_plan_mismatches,
            "reloadRetry": self.reload_retry.document() if self.reload_retry is not None else None,
            "server": self.server.document(),
            "fileWatch": self.file_watch.document(),
            "conditions": [condition.document() for condition in self.conditions],
            "resources": [resource.document() for resource in self.resources],
            "handlers": [_handler(handler) for handler in self.handlers],
            "removedHandlers": [{"name": name, "dropped": n} for name, n in self.removed.items()],
            "recordedEvents": self.recorded.document(),
            "plugins": [plugin.document() for plugin in self.plugins],
            "machinery": self.machinery.document(),
            "abandonedCalls": [_abandoned(call) for call in self.abandoned],
        }


def _handler(handler: HandlerStatistics) -> dict[str, Any]:
    return {
        "name": handler.name,
        "synced": handler.synced,
        "delivered": handler.delivered,
        "succeeded": handler.succeeded,
        "failed": handler.failed,
        "retried": handler.retried,
        "merged": handler.merged,
        "dropped": handler.dropped,
        "filtered": handler.filtered,
        "replayed": handler.replayed,
        "queued": handler.queued,
        "running": handler.running,
        "p95Seconds": round(handler.p95_seconds, 6),
        "zombies": handler.zombies,
        "generation": handler.generation,
        "lastError": handler.last_error,
        "lastErrorType": handler.last_error_type,
        "disabled": handler.disabled,
    }


def _abandoned(call: AbandonedCall) -> dict[str, Any]:
    return {"name": call.what, "place": call.place, "seconds": round(call.seconds, 3)}


_ON_A_CLOCK = ("last_event_at", "error_since")  # moments that mean nothing to another process


def _informer(figures: InformerStatistics) -> dict[str, Any]:
    """An informer's stations, as JSON has them; what stands in the resource already is left out."""
    return {
        "name": figures.name,
        "state": figures.state,
        "synced": figures.synced,
        "indexFaults": {name: {"count": n, "last": last} for name, (n, last) in figures.index_faults.items()},
        "projection": _plain(figures.projection),
        "reflector": _plain(figures.reflector),
        "controller": _plain(figures.controller),
        "processor": _plain(figures.processor),
    }


def _plain(value: object) -> Any:
    if is_dataclass(value):
        shown = [field.name for field in fields(value) if field.name not in _ON_A_CLOCK]
        return {_camel(name): _plain(getattr(value, name)) for name in shown}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in cast("Mapping[object, object]", value).items()}
    return round(value, 6) if isinstance(value, float) else value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
