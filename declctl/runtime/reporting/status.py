"""The status of a running controller: the document of `declctl status` and `GET /status`.

Each figure of the document and of the metrics is one row of a table (`Figure`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from declctl.informer.applier import RelistDifferences
from declctl.informer.informer import InformerStatistics
from declctl.informer.reflector.namespaces import NamespaceStatistics
from declctl.kit import Clock
from declctl.kit.documents import camel_case, document_of
from declctl.kit.histogram import HistogramFigures
from declctl.objects.differences import Mutation
from declctl.objects.refusals import granting_command
from declctl.runtime.checking.loaded_code import READY, LoadedPlugin
from declctl.runtime.handling.binding import HandlerStatistics
from declctl.runtime.handling.circuit_breaker import BreakerState, BreakerStatus
from declctl.runtime.handling.server_warnings import ServerWarning, WarningTotal
from declctl.runtime.log import LogLevelStatus
from declctl.runtime.reasons import HANDLERS_HEALTHY, fault_reasons
from declctl.runtime.reloading.attempts import RetryStatus
from declctl.runtime.reloading.changes import Result
from declctl.runtime.reloading.files import FileWatchStatus
from declctl.runtime.reloading.generation import OldGeneration
from declctl.runtime.scheduling.schedules import RunOutcome, ScheduleStatistics
from declctl.runtime.threads import AbandonedCall
from declctl.runtime.watchdog import MachineryStatus
from declctl.transport import RequestTotal, ServerStatus
from declctl.workqueue import DURATION_BOUNDS
from declctl.writes import KindWrites, RecordedEvents, WaitingWrites, WriteTotal

if TYPE_CHECKING:  # imported only for a manifest with an election
    from declctl.leadership import LeadershipStatus
    from declctl.runtime.sharding import ReplicaStatus

_Watches = Sequence[InformerStatistics]
_CHANGES_KEPT = 100  # of the conditions
_NAMED_NAMESPACES = 100  # of the namespaces of one resource, in the document


class Figure(NamedTuple):
    """One figure: a field of the status document, a metric, or both."""

    name: str  # of the attribute of the statistics; the document has it in camel case
    metric: str = ""  # empty: the figure is only in the document
    help: str = ""  # the metric's help text
    counts: bool = True  # a counter, whose name ends in `_total`; else a gauge
    label: str = ""  # one more label of the metric
    value: str = ""  # of that label; without it the figure is a mapping from label values to numbers
    read: Callable[[Any], Any] | None = None  # returns the value from the statistics; default: the attribute
    shown: bool = True  # in the document
    histogram: bool = False  # its value is a HistogramFigures

    def of(self, statistics: object) -> Any:
        """The value."""
        return getattr(statistics, self.name) if self.read is None else self.read(statistics)


SUSPENDED = "Suspended"
"""The state of a plugin whose circuit breaker is not closed."""

_LEFT_OUT = "Objects that are not cached: dropped by the transform, or because it failed."
_READ = "Objects that were read: projected in part, or fully decoded."
_CALLS = "Calls, by result."
_RUNS = "Times of a schedule, by result: calls, and times at which nothing was called."

PROCESS_FIGURES = (
    Figure("generation", "declctl_generation", "The generation that runs.", counts=False),
    Figure(
        "generations_alive",
        "declctl_generations_alive",
        "Generations with loaded code: more than one while an old one drains, or in a probation.",
        counts=False,
    ),
    Figure(
        "reloads",
        "declctl_reloads",
        "Attempts to reload, by result.",
        label="result",
        read=lambda s: {str(result): s.reloads.get(str(result), 0) for result in Result},
    ),
    Figure(
        "reload_retries",
        "declctl_reload_retries",
        "Retries of reloads that were refused although no file was at fault.",
    ),
    Figure(
        "reload_plan_mismatches",
        "declctl_reload_plan_mismatches",
        "LISTs or WATCHes of a resource that a reload had not planned.",
    ),
    Figure("last_reload_seconds", "declctl_reload_seconds", "How long the last reload took.", counts=False),
    Figure(
        "zombies",
        "declctl_zombie_invocations",
        "Calls that have not returned and whose callers have given up.",
        counts=False,
        read=lambda s: sum(each.zombies for each in (*s.handlers, *s.schedules)) + len(s.abandoned_calls),
    ),
    Figure(
        "server_reachable",
        "declctl_server_reachable",
        "0 while the API server does not answer.",
        counts=False,
        read=lambda s: int(s.server.unreachable_since is None),
    ),
    Figure(
        "server_outages",
        "declctl_server_outages",
        "How often the API server did not answer.",
        read=lambda s: s.server.outages,
    ),
    Figure(
        "server_rollbacks",
        "declctl_server_rollbacks",
        "Changes of the API server's history, as after a restore from a backup.",
        read=lambda s: s.server.rollbacks,
    ),
    Figure(
        "file_watch_failures",
        "declctl_file_watch_failures",
        "Failed checks of the bundle's files, so that edits were not noticed.",
        read=lambda s: s.file_watch.failures,
    ),
    Figure(
        "recorded",
        "declctl_recorded_events",
        "Kubernetes Events of ctx.record_event, by result.",
        label="result",
        read=lambda s: document_of(s.recorded_events),
    ),
    Figure(
        "write_retries",
        "declctl_write_retries",
        "Requests of ctx.apply, ctx.apply_set and ctx.patch_status that were repeated, by reason.",
        label="reason",
    ),
    Figure(
        "leader",
        "declctl_leader",
        "1 if this process leads, or there is no election.",
        counts=False,
        read=lambda s: int(s.leader),
    ),
)
# In the order of the document. A row without the name of a metric is shown in the document alone.
RESOURCE_FIGURES = (
    Figure("name"),
    Figure("synced", "declctl_synced", "0 until the cache has been filled once.", counts=False),
    Figure("objects", "declctl_cache_objects", "Objects in the cache.", counts=False),
    Figure("bytes", "declctl_cache_bytes", "Bytes that their frames take.", counts=False),
    Figure("lists", "declctl_lists", "LISTs begun."),
    Figure("watches", "declctl_watches", "WATCHes begun."),
    Figure("relists"),
    Figure(
        "relist_differences",
        "declctl_relist_differences",
        "Objects that lists after the first found changed: changes in between were not seen.",
        label="type",
        read=lambda resource: document_of(resource.relist_differences),
    ),
    Figure("resource_version"),
    Figure("last_event_age"),
    Figure("error"),
    Figure("error_type"),
    Figure("state"),
    Figure("queued"),
    Figure("skipped"),
    Figure("slow"),
    Figure(
        "events",
        "declctl_watch_events",
        "Watch events that came in, by type.",
        label="type",
        read=lambda resource: dict(sorted(resource.events.items())),
        shown=False,
    ),
    Figure("mutations", "declctl_cache_mutations", "Cached objects that a reader changed; this was undone."),
    Figure("namespaces", read=lambda resource: _namespaces(resource.namespaces)),
    Figure(
        "selected_namespaces",
        "declctl_selected_namespaces",
        "Namespaces that the selector of the resource matches.",
        counts=False,
        read=lambda resource: resource.namespaces and len(resource.namespaces.names),
        shown=False,
    ),
    Figure("last_mutation", read=lambda resource: resource.last_mutation and resource.last_mutation.places),
    Figure(
        "index_failures",
        "declctl_index_failures",
        "Objects that an index function failed on.",
        label="index",
        shown=False,
    ),
)
# Two rows with one metric are two fields of the document, and two labels of that metric.
DECODING_FIGURES = (
    Figure("objects"),
    Figure("projected", "declctl_decoded_objects", _READ, label="how", value="projected"),
    Figure("whole", "declctl_decoded_objects", _READ, label="how", value="whole"),
    Figure("unexpected"),
    Figure("unread", "declctl_unread_objects", "Objects that can't be decoded and are kept as they came."),
    Figure("dropped", "declctl_transform_left_out", _LEFT_OUT, label="result", value="dropped"),
    Figure("failed", "declctl_transform_left_out", _LEFT_OUT, label="result", value="failed"),
    Figure("last_fault"),
    Figure(
        "frame_ratio",
        "declctl_frame_ratio",
        "Bytes of objects to those of their frames, lately.",
        counts=False,
    ),
    Figure(
        "trainings",
        "declctl_frame_trainings",
        "Attempts to train a dictionary that compresses frames better.",
    ),
    Figure(
        "dictionaries",
        "declctl_frame_dictionaries",
        "Dictionaries that frames are made with.",
        counts=False,
    ),
)
HANDLER_FIGURES = (
    Figure("name"),
    Figure("mode"),
    Figure("watches"),
    Figure("synced"),
    Figure("delivered"),
    Figure("succeeded", "declctl_handler_results", _CALLS, label="result", value="succeeded"),
    Figure("failed", "declctl_handler_results", _CALLS, label="result", value="failed"),
    Figure("retried", "declctl_handler_results", _CALLS, label="result", value="retried"),
    Figure("merged", "declctl_handler_merged", "Changes that were merged with another."),
    Figure(
        "dropped",
        "declctl_handler_dropped",
        "Changes that were dropped: of removed handlers and of disabled plugins.",
    ),
    Figure(
        "filtered",
        "declctl_handler_filtered",
        "Changes that were not delivered: by the filter, or because the handler has no hook for them.",
    ),
    Figure(
        "invalid",
        "declctl_handler_invalid",
        "Changes that were not delivered, as the object does not fit the class of its resource.",
    ),
    Figure(
        "expression_errors",
        "declctl_handler_expression_errors",
        "Evaluations of filter.expression that failed, and counted as false.",
    ),
    Figure(
        "replayed",
        "declctl_handler_replayed",
        "Cached objects that it received again because its code had changed.",
    ),
    Figure(
        "previous_bytes",
        "declctl_handler_previous_bytes",
        "Bytes of the objects that keepPrevious keeps, compressed.",
        counts=False,
    ),
    Figure(
        "dead_letters",
        "declctl_handler_dead_letters",
        "Keys whose changes were given up, and that can be requeued.",
        counts=False,
    ),
    Figure(
        "dead_letters_dropped",
        "declctl_handler_dead_letters_dropped",
        "Dead letters that were dropped because there were too many.",
    ),
    Figure(
        "unmapped",
        "declctl_handler_unmapped",
        "Changes that are not mapped to a key yet, as a filter or a mapping has failed; they are retried.",
        counts=False,
    ),
    Figure(
        "no_keys",
        "declctl_handler_no_keys",
        "Values found by mapTo that are no valid keys, and are ignored.",
    ),
    Figure(
        "own_writes",
        "declctl_handler_own_writes",
        "Keys that were not processed, as only the handler's own writes had changed their objects.",
    ),
    Figure(
        "cache_waits",
        "declctl_handler_cache_waits",
        "Calls that waited until caches had what the handler had written.",
    ),
    Figure(
        "cache_lags",
        "declctl_handler_cache_lags",
        "Writes of the handler that a cache did not have after 10 s.",
    ),
    Figure("finalizer"),
    Figure(
        "finalized",
        "declctl_handler_finalized",
        "Objects from which the finalizer was removed after declctl_finalize.",
    ),
    Figure(
        "leftovers",
        "declctl_handler_leftovers",
        "Objects outside of the scope of the handler that have its finalizer.",
        counts=False,
    ),
    Figure("queued", "declctl_handler_queue_depth", "Changes that wait.", counts=False),
    Figure("running", "declctl_handler_running", "Calls under way.", counts=False),
    Figure("timeouts", "declctl_handler_timeouts", "Calls that took longer than the timeout of the handler."),
    Figure(
        "terminal_failures",
        "declctl_handler_terminal_failures",
        "Calls of a reconciler that raised Terminal, so that they were not tried again.",
    ),
    Figure(
        "gone",
        "declctl_handler_gone",
        "Calls that ended because the object that they would have read or written no longer exists.",
    ),
    Figure(
        "conflicts",
        "declctl_handler_conflicts",
        "Calls that are made again because others have written meanwhile what they have written.",
    ),
    Figure("p50_seconds"),
    Figure("p95_seconds"),
    Figure("p99_seconds"),
    Figure(
        "duration",
        "declctl_handler_duration_seconds",
        "How long calls took, with the filter of the handler, by handler.",
        histogram=True,
        shown=False,
    ),
    Figure("zombies"),
    Figure(
        "oldest_call_seconds",
        "declctl_handler_oldest_call_seconds",
        "For how long the oldest call under way has run, whether or not it is waited for; 0 if none is.",
        counts=False,
    ),
    Figure("problems"),
    Figure(
        "unhealthy",
        "declctl_handler_unhealthy",
        "Calls or keys for which the condition HandlersHealthy is False, by its reason; 0 for none.",
        counts=False,
        label="reason",
        read=lambda handler: {
            **dict.fromkeys(fault_reasons(HANDLERS_HEALTHY), 0),
            **{each.reason: each.count for each in handler.problems},
        },
        shown=False,
    ),
    Figure(
        "processes",
        "declctl_handler_processes",
        "Processes of a handler with `isolation`.",
        counts=False,
        read=lambda handler: handler.isolation and len(handler.isolation.processes),
        shown=False,
    ),
    Figure(
        "process_bytes",
        "declctl_handler_process_bytes",
        "Resident memory of the processes of a handler with `isolation`; shared pages count in each.",
        counts=False,
        read=lambda handler: handler.isolation and sum(each.bytes for each in handler.isolation.processes),
        shown=False,
    ),
    Figure(
        "process_ends",
        "declctl_handler_process_ends",
        "Processes of a handler with `isolation` that have ended, by cause.",
        label="cause",
        read=lambda handler: handler.isolation and handler.isolation.ends,
        shown=False,
    ),
    Figure("isolation"),
    Figure("generation"),
    Figure("last_error"),
    Figure("last_error_type"),
    Figure("last_error_time"),
    Figure("disabled"),
)
# Each row has the labels handler and resource, which is that of the handler.
LAG_FIGURES = (
    Figure(
        "lag",
        "declctl_event_lag_seconds",
        "From the receipt of a change by the cache to its first call, without first syncs and resyncs.",
        histogram=True,
    ),
)
# Of a reconciler's work queue, under client-go's names and label (util/workqueue/metrics.go).
WORKQUEUE_FIGURES = (
    Figure("depth", "workqueue_depth", "Keys that wait for a worker.", counts=False),
    Figure("adds_total", "workqueue_adds", "Keys that were added, without those that waited already."),
    Figure(
        "queue_duration_seconds",
        "workqueue_queue_duration_seconds",
        "How long a key has waited before a worker took it.",
        histogram=True,
        read=lambda s: HistogramFigures(
            DURATION_BOUNDS, s.queue_duration_seconds_bucket, s.queue_duration_seconds_sum
        ),
    ),
    Figure(
        "work_duration_seconds",
        "workqueue_work_duration_seconds",
        "How long a worker has processed a key.",
        histogram=True,
        read=lambda s: HistogramFigures(
            DURATION_BOUNDS, s.work_duration_seconds_bucket, s.work_duration_seconds_sum
        ),
    ),
    Figure(
        "unfinished_work_seconds",
        "workqueue_unfinished_work_seconds",
        "For how long the keys in process have been processed, in total: growth means that calls hang.",
        counts=False,
    ),
    Figure(
        "longest_running_processor_seconds",
        "workqueue_longest_running_processor_seconds",
        "For how long the longest-running worker has processed its key.",
        counts=False,
    ),
    Figure("retries_total", "workqueue_retries", "Failed keys that were added again."),
)
SCHEDULE_FIGURES = (
    Figure("name"),
    Figure("next_run"),
    Figure(
        "next_run_timestamp",
        "declctl_schedule_next_run_timestamp_seconds",
        "When the schedule is due, in seconds since 1970.",
        counts=False,
        read=lambda schedule: _timestamp(schedule.next_run),
        shown=False,
    ),
    Figure("last_run"),
    Figure("last_outcome"),
    Figure("last_success"),
    Figure(
        "last_success_timestamp",
        "declctl_schedule_last_success_timestamp_seconds",
        "The time of the last call that succeeded, in seconds since 1970; absent before the first.",
        counts=False,
        read=lambda schedule: _timestamp(schedule.last_success),
        shown=False,
    ),
    Figure("last_seconds"),
    Figure("succeeded", "declctl_schedule_results", _RUNS, label="result", value="succeeded"),
    Figure("failed", "declctl_schedule_results", _RUNS, label="result", value="failed"),
    Figure("skipped", "declctl_schedule_results", _RUNS, label="result", value="skipped"),
    Figure("running", "declctl_schedule_running", "1 while the function is called.", counts=False),
    Figure(
        "fails",
        "declctl_schedule_fails",
        "1 if the last call that has ended has failed.",
        counts=False,
        read=lambda schedule: int(schedule.last_outcome is RunOutcome.FAILED),
        shown=False,
    ),
    Figure("zombies"),
    Figure("generation"),
    Figure("last_error"),
    Figure("last_error_type"),
)


def _namespaces(selected: NamespaceStatistics | None) -> dict[str, Any] | None:
    """The namespaces of a selector, of which only some are named; None without a selector."""
    if selected is None:
        return None
    return document_of(selected) | {
        "matched": len(selected.names),
        "names": list(selected.names[:_NAMED_NAMESPACES]),
    }


def _timestamp(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()


# Each row has the labels type and status.
CONDITION_FIGURES = (
    Figure(
        "reason",
        "declctl_condition",
        "1 for each reason that a condition has now, with its status: those of `declctl explain`.",
        counts=False,
        label="reason",
        read=lambda condition: dict.fromkeys((condition.reason, *condition.others), 1),
    ),
)


# Each row has the labels handler, verb and result.
WRITE_FIGURES = (
    Figure("handler"),
    Figure("verb"),
    Figure("result"),
    Figure("count", "declctl_writes", "Writes of ctx.apply, ctx.apply_set, ctx.patch_status and ctx.delete."),
)


WAITING_WRITE_FIGURES = (
    Figure(
        "waiting",
        "declctl_writes_waiting",
        "Writes of a handler that wait for the rate limit of `spec.writes`; absent if none waits.",
        counts=False,
    ),
)


# Each row has the labels handler and kind.
WARNING_FIGURES = (
    Figure(
        "count",
        "declctl_server_warnings",
        "Warnings of the API server, by the handler whose call has sent the request, and by kind.",
    ),
)


# Under client-go's name and labels (rest/request.go): code, method and host.
REQUEST_FIGURES = (
    Figure("count", "rest_client_requests", "Requests to the API server, by code of the answer and method."),
)


# Each row has the label name, which is that of the Lease, as in client-go.
ELECTION_FIGURES = (
    Figure(
        "leading",
        "leader_election_master_status",
        "1 if this process leads, by the name of its lease.",
        counts=False,
        read=lambda election: int(election.leading),
    ),
    Figure(
        "slow_paths",
        "leader_election_slowpath",
        "Renewals of the lease that failed, so that it was read again.",
    ),
    Figure("transitions", "declctl_leader_transitions", "How often the lease went to another process."),
    Figure(
        "refused_writes",
        "declctl_leader_refused_writes",
        "Writes that were not sent, because this process did not lead.",
    ),
)


# Each row has the label name, which is the beginning of the names of the Leases.
SHARDING_FIGURES = (
    Figure("total", "declctl_slots", "Slots into which the objects are cut.", counts=False),
    Figure("held", "declctl_slots_held", "Slots whose Leases this process has.", counts=False),
    Figure("handled", "declctl_slots_handled", "Slots that this process handles.", counts=False),
    Figure("free", "declctl_slots_free", "Slots that no process holds, as this one sees it.", counts=False),
    Figure(
        "free_seconds",
        "declctl_slots_free_seconds",
        "For how long this process has seen the slot free that has been so for the longest time.",
        counts=False,
    ),
    Figure("members", "declctl_sharding_members", "Processes that share the slots.", counts=False),
    Figure("gained", "declctl_slots_gained", "Slots that this process has taken."),
    Figure("given_back", "declctl_slots_given_back", "Slots that this process has given back in order."),
    Figure("lost", "declctl_slots_lost", "Slots whose Leases this process could not renew in time."),
    Figure(
        "refused_writes",
        "declctl_slots_refused_writes",
        "Writes that were not sent, because this process did not hold the slot of their call.",
    ),
)


def _document(figures: Iterable[Figure], statistics: object) -> dict[str, Any]:
    return {camel_case(figure.name): document_of(figure.of(statistics)) for figure in figures if figure.shown}


class ControllerCondition(msgspec.Struct, frozen=True):
    """One condition, as in a Kubernetes status. `status` is True, False or Unknown, as a string."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: datetime
    others: Sequence[str] = ()  # further reasons that hold, which the metrics alone have


class Conditions:
    """The conditions by type; the time of the last transition changes only when the status does."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._conditions: dict[str, ControllerCondition] = {}
        # Of the status, the oldest first.
        self._changes: deque[ControllerCondition] = deque(maxlen=_CHANGES_KEPT)

    def set(
        self, kind: str, *, holds: bool, reason: str, message: str = "", others: Sequence[str] = ()
    ) -> bool:
        """State a condition; returns whether its status changed. `others` are further reasons."""
        status = "True" if holds else "False"
        before = self._conditions.get(kind)
        changed = before is None or before.status != status
        # As in Kubernetes, a new reason or message is no transition.
        since = self._clock.now() if before is None or changed else before.last_transition_time
        condition = ControllerCondition(kind, status, reason, message, since, others)
        self._conditions[kind] = condition
        if before is not None and changed:
            self._changes.append(condition)
        return changed

    def set_faults(self, kind: str, faults: Mapping[str, Sequence[str]], *, holds: bool) -> bool:
        """State a condition by what is wrong: sentences by reason. `holds`: its status if nothing is.

        The first reason with a sentence is that of the condition, and the message has the sentences of all.
        """
        reason, *others = [reason for reason, found in faults.items() if found] or ["AsExpected"]
        message = "; ".join(sentence for found in faults.values() for sentence in found)
        return self.set(kind, holds=holds != bool(message), reason=reason, message=message, others=others)

    def get(self, kind: str) -> ControllerCondition | None:
        """The condition of a type, if it was ever stated."""
        return self._conditions.get(kind)

    def all(self) -> tuple[ControllerCondition, ...]:
        """Every condition that was stated, in the order of first statement."""
        return tuple(self._conditions.values())

    def changes(self) -> tuple[ControllerCondition, ...]:
        """The newest 100 changes of a status, the oldest first, each as the condition was from then on."""
        return tuple(self._changes)


class LastReload(msgspec.Struct, frozen=True):
    """The newest attempt that has changed or refused something.

    A condition says since when its status holds; the time of an attempt is here.
    """

    time: datetime  # of its end
    result: str  # Applied, Refused or RolledBack
    reason: str  # of the refusal or the rollback; otherwise the result


class DecodingStatus(msgspec.Struct, frozen=True):
    """The decoding figures of one resource over all its watches, since the start of the process."""

    objects: int = 0  # that were read
    whole: int = 0  # of these, decoded completely: all of them if there is a transform
    unexpected: int = 0  # decoded completely because a field has another type than it should
    unread: int = 0  # not decodable beyond the metadata: cached and delivered as they came
    dropped: int = 0  # by the transform
    failed: int = 0  # not cached because the transform raised or could not be applied
    last_fault: str | None = None  # of the transform
    frame_ratio: float = 0.0  # size on the wire by size in memory; 0 before the first object
    trainings: int = 0  # of compression
    dictionaries: int = 0  # that the trainings made

    @property
    def projected(self) -> int:
        """Objects that were read in part: only the fields that are needed."""
        return self.objects - self.whole


def decoding_status(parts: Sequence[InformerStatistics], *, transformed: bool) -> DecodingStatus:
    """Sums the figures of several watches. `transformed`: their objects pass a transform."""
    decoders = [part.projection for part in parts]
    whole = sum(each.decoded_whole for each in decoders)
    return DecodingStatus(
        objects=sum(each.objects for each in decoders),
        whole=whole,
        unexpected=0 if transformed else whole,
        unread=sum(part.reflector.kept_raw for part in parts),
        dropped=sum(each.dropped for each in decoders),
        failed=sum(each.failed for each in decoders),
        last_fault=next((each.last_fault for each in decoders if each.last_fault), None),
        frame_ratio=_mean_frame_ratio(parts),
        trainings=sum(each.frames.trainings for each in decoders),
        dictionaries=sum(each.frames.dictionaries for each in decoders),
    )


def _mean_frame_ratio(parts: Sequence[InformerStatistics]) -> float:
    """The mean of the watches' ratios, weighted by the number of objects."""
    known = [part for part in parts if part.projection.frames.ratio]
    objects = sum(part.objects for part in known)
    if not objects:
        return known[0].projection.frames.ratio if known else 0.0
    return sum(part.projection.frames.ratio * part.objects for part in known) / objects


class ResourceStatus(msgspec.Struct, frozen=True):
    """The status of one resource over all its watches."""

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
    relist_differences: RelistDifferences = msgspec.field(default_factory=RelistDifferences)
    decoding: DecodingStatus = msgspec.field(default_factory=DecodingStatus)
    informers: Sequence[InformerStatistics] = ()
    error_type: str | None = None
    namespaces: NamespaceStatistics | None = None  # None unless the manifest selects namespaces by labels

    @property
    def index_failures(self) -> Mapping[str, int]:
        """By index, the number of objects on which its function has failed; only indexes with failures."""
        found: dict[str, int] = {}
        for part in self.informers:
            for internal, (times, _) in part.index_faults.items():
                # Behind the @ is the definition of the index: two indexes may have one name.
                name = internal.partition("@")[0]
                found[name] = found.get(name, 0) + times
        return found

    @property
    def advice(self) -> str:
        """What to do if it has not synced, or if its watch fails."""
        waiting = [part for part in self.informers if not part.synced]
        if self.namespaces is not None and self.namespaces.error is not None:
            command = granting_command(self.namespaces.error)
            how = f" (`{command}`)" if command else ""
            return f"when namespaces can be listed and watched{how}, it goes on by itself"
        if any(part.forbidden for part in waiting):
            command = granting_command(self.error or "")
            how = f"`{command}`" if command else "`declctl validate --cluster` says what is missing"
            return f"grant list and watch on it ({how}), and it goes on by itself"
        if any(part.missing for part in waiting):
            return "mend its apiVersion and kind, or install its definition, and it goes on by itself"
        if any(part.reflector.unavailable for part in self.informers):
            return "mend the API service of its group (`kubectl get apiservices`), and it goes on by itself"
        if any(part.reflector.refused for part in self.informers):
            return "mend its entry in the manifest, such as its fieldSelector: the server refuses the request"
        return "it goes on by itself"

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return _document(RESOURCE_FIGURES, self) | {
            "decoding": _document(DECODING_FIGURES, self.decoding)
            | {"frameRatio": round(self.decoding.frame_ratio, 3)},
            "informers": [_informer(informer) for informer in self.informers],
        }


class PluginStatus(msgspec.Struct, frozen=True):
    """An installed plugin: whether it is loaded and called."""

    name: str
    version: str
    state: (
        str  # Ready; Disabled: it could not be loaded; Suspended: it is not called, as its calls have failed
    )
    reason: str | None = None  # why it is not Ready
    circuit_breaker: BreakerStatus | None = None  # of a plugin with onError: Disable that handlers call

    @classmethod
    def of(cls, plugin: LoadedPlugin, breaker: BreakerStatus | None) -> "PluginStatus":
        """The status of a plugin of a generation, and of its breaker, if it has one."""
        state, reason = plugin.state, plugin.reason
        if breaker is not None and breaker.state is not BreakerState.CLOSED:
            state = SUSPENDED
            reason = f"{breaker.failures} calls in a row have failed, the last with {breaker.last_error}"
        return cls(plugin.name, plugin.version, state, reason, breaker)

    def document(self) -> dict[str, Any]:
        """As JSON has it. The error is in `reason` alone, which not everybody may read."""
        return document_of(self, without=("last_error",))


PLUGIN_FIGURES = (
    Figure(
        "ready",
        "declctl_plugin_ready",
        "0 if it could not be loaded, or is suspended.",
        counts=False,
        read=lambda plugin: int(plugin.state == READY),
    ),
)
BREAKER_FIGURES = (
    Figure(
        "open",
        "declctl_plugin_circuit_breaker_open",
        "1 while the plugin is suspended, because its calls have failed.",
        counts=False,
        read=lambda breaker: int(breaker.state is not BreakerState.CLOSED),
    ),
    Figure("opened", "declctl_plugin_circuit_breaker_opened", "How often the plugin was suspended."),
    Figure("trials", "declctl_plugin_circuit_breaker_trials", "Calls on trial of a suspended plugin."),
)


class ControllerStatus(msgspec.Struct, frozen=True):
    """The whole controller at one moment."""

    name: str
    generation: int
    bundle_hash: str
    ready: bool
    leader: bool
    generations_alive: int
    conditions: Sequence[ControllerCondition]
    resources: Sequence[ResourceStatus]
    handlers: Sequence[HandlerStatistics]
    plugins: Sequence[PluginStatus]
    reloads: Mapping[str, int]
    last_reload_seconds: float
    last_reload: LastReload | None = None  # None before the first attempt
    reload_plan_mismatches: int = 0  # requests of reloads that were not as planned
    removed: Mapping[str, int] = msgspec.field(
        default_factory=dict[str, int]
    )  # handlers → changes dropped with them
    old_generations: Sequence[OldGeneration] = ()  # those that were replaced and are alive
    server: ServerStatus = msgspec.field(default_factory=lambda: ServerStatus(""))
    reload_retries: int = 0  # of refused reloads, since the start
    reload_retry: RetryStatus | None = None  # the refused reload that is tried again by itself
    recorded_events: RecordedEvents = msgspec.field(default_factory=RecordedEvents)  # by ctx.record_event
    writes: Sequence[WriteTotal] = ()  # by handler, verb and result
    write_retries: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])  # by reason
    # By handler whose writes wait for the rate limit; the one that has waited longest comes first.
    waiting_writes: Sequence[WaitingWrites] = ()
    warnings: Sequence[ServerWarning] = ()  # of the API server, the newest first
    warning_totals: Sequence[WarningTotal] = ()  # by handler and kind
    machinery: MachineryStatus = msgspec.field(default_factory=MachineryStatus)
    abandoned_calls: Sequence[
        AbandonedCall
    ] = ()  # calls of staged code that go on after their callers have given up
    file_watch: FileWatchStatus = msgspec.field(default_factory=FileWatchStatus)
    schedules: Sequence[ScheduleStatistics] = ()
    leader_election: "LeadershipStatus | None" = None  # None without an election
    sharding: "ReplicaStatus | None" = None  # None without a sharding
    client_requests: Sequence[RequestTotal] = ()  # to the API server, by method and result
    log_level: LogLevelStatus | None = None  # None: that of the start
    condition_changes: Sequence[ControllerCondition] = ()  # of the status, the oldest first
    kind_writes: Sequence[KindWrites] = ()  # by handler, kind and verb; Kubernetes Events, too
    process: str = ""  # its pod; outside of a cluster, its machine and its id

    def document(self) -> dict[str, Any]:
        """As JSON has it; the contract of `GET /status`."""
        return document_of(self, without=_NOT_AS_THEY_ARE) | {
            "handlers": [_document(HANDLER_FIGURES, handler) for handler in self.handlers],
            "schedules": [_document(SCHEDULE_FIGURES, schedule) for schedule in self.schedules],
            "writes": [_document(WRITE_FIGURES, total) for total in self.writes],
            "removedHandlers": [{"name": name, "dropped": n} for name, n in self.removed.items()],
        }


# Fields of the status that the metrics or the page have, and the document not, or in another form.
_NOT_AS_THEY_ARE = (
    "handlers",
    "schedules",
    "writes",
    "removed",
    "reloads",
    "last_reload_seconds",
    "reload_retries",
    "client_requests",
    "warning_totals",
    "others",
    "condition_changes",
    "kind_writes",
)
# Moments of a monotonic clock mean nothing to another process; the document has ages instead.
_ON_A_CLOCK = ("last_event_at", "error_since")


def _informer(figures: InformerStatistics) -> dict[str, Any]:
    """The figures of an informer's parts, as JSON has them, without those that the resource has."""
    return {
        "name": figures.name,
        "state": figures.state,
        "synced": figures.synced,
        "indexFaults": {name: {"count": n, "last": last} for name, (n, last) in figures.index_faults.items()},
        "projection": document_of(figures.projection, without=_ON_A_CLOCK),
        "reflector": document_of(figures.reflector, without=_ON_A_CLOCK),
        "controller": document_of(figures.controller, without=_ON_A_CLOCK),
        "processor": document_of(figures.processor, without=_ON_A_CLOCK),
    }
