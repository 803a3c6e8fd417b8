"""The binding of a handler to the code of one generation: functions, filter, policy and tally.

A filter is client-go's FilteringResourceEventHandler: an object that begins to pass is Added, one that ceases
to pass is Deleted. The filter judges a change at its delivery, after merging.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import msgspec

from declctl.hooks.calls import HookTarget
from declctl.kit import LoopThread
from declctl.kit.backoff import Backoff
from declctl.kit.histogram import HistogramFigures
from declctl.manifest.model import Delivery, FilterSpec, InitialSync
from declctl.manifest.plan import HandlerPlan
from declctl.objects import (
    Change,
    ChangeReason,
    ChangeType,
    FieldPath,
    LabelSelector,
    Notification,
    ObjectView,
    Record,
    record_of,
)
from declctl.objects.differences import ChangedPaths
from declctl.objects.expressions import EvaluationFailed, Expression, compile_expression
from declctl.runtime.handling.circuit_breaker import CircuitBreaker
from declctl.runtime.handling.context import Snapshots, SnapshotSource
from declctl.runtime.handling.failures import ClientRefusal
from declctl.runtime.handling.handler_counts import CallTally, HandlerProblem
from declctl.workqueue import QueueStatistics
from declctl.writes import CallScope

Accepts = Callable[[ObjectView], bool]

_ADDED, _MODIFIED, _DELETED = ChangeType.ADDED, ChangeType.MODIFIED, ChangeType.DELETED
_RESYNC = ChangeType.RESYNC


Report = Callable[[EvaluationFailed], None]
"""Takes each evaluation of the filter's expression that has failed, which counts as false."""


def _ignore(_: EvaluationFailed) -> None:
    """The report of a caller that needs none."""


class WatchStatistics(msgspec.Struct):
    """What a watch of a reconciler has led to since the process started; equal watches are one."""

    resource: str
    map_to: str  # in the words of the manifest
    led: int = 0  # changes that have led to keys
    keys: int = 0  # to which they have led, one for each change and key
    led_nowhere: int = 0  # changes that have led to no key: by the filter, or because there is none
    no_keys: int = 0  # values that are no keys


class ChildStatistics(msgspec.Struct, frozen=True):
    """One process of an isolated handler."""

    pid: int
    bytes: int  # of its resident memory, pages that it shares with others included
    calls: int  # that it has begun
    seconds: float  # since its start


class IsolationStatistics(msgspec.Struct, frozen=True):
    """The processes of an isolated handler. The counts are those since declctl started."""

    processes: tuple[ChildStatistics, ...]
    ends: dict[str, int]  # processes that have ended, by cause; each is replaced when it is needed
    last_end: str | None  # in words
    last_end_type: str | None  # its cause


class Isolation(Protocol):
    """The processes that make the calls of a binding. From any thread."""

    def stop_calls(self, why: str) -> None:
        """End the calls that run, with their processes; `why` is their failure, in words."""
        ...

    def stop_call(self, key: str, why: str) -> None:
        """End the call for one key, with its process."""
        ...

    def statistics(self) -> IsolationStatistics:
        """The figures of this moment."""
        ...


class HandlerStatistics(msgspec.Struct, frozen=True):
    """The figures of one handler in `status`. Times are in seconds.

    delivered + merged + dropped + filtered + changes that wait for their first delivery = all changes. A
    delivered change has succeeded, has failed, runs, or backs off. The plugin of a `disabled` handler could
    not be loaded: its changes are dropped.
    """

    name: str
    generation: int
    synced: bool
    delivered: int
    succeeded: int
    failed: int
    retried: int
    merged: int
    dropped: int
    filtered: int
    queued: int
    running: int
    zombies: int
    p95_seconds: float
    last_error: str | None
    replayed: int = 0
    last_error_type: str | None = None
    last_error_time: datetime | None = None  # of the newest failure, also if it was retried
    disabled: bool = False
    expression_errors: int = 0  # evaluations of `filter.expression` that failed, and counted as false
    timeouts: int = 0  # calls that took longer than `timeout`
    terminal_failures: int = 0  # calls of a reconciler that raised Terminal
    gone: int = 0  # calls that ended as their object was gone
    conflicts: int = 0  # calls that are made again as others have written meanwhile; part of `retried`
    dead_letters: int = 0  # now
    dead_letters_dropped: int = 0  # because there were too many
    cache_waits: int = 0  # calls that waited until caches had what the handler had written
    cache_lags: int = 0  # writes that a cache did not have after 10 s
    workqueue: QueueStatistics | None = None  # of a reconciler
    unmapped: int = 0  # changes, now, on which a filter or a mapping of a reconciler has failed
    no_keys: int = 0  # values that a `mapTo` has found, and that are no keys
    own_keys: int = 0  # keys that changes of the resource of a reconciler have enqueued
    invalid: int = 0  # changes whose object does not fit its class, and was not handled; part of `filtered`
    previous_bytes: int = 0  # of the objects that `keepPrevious` keeps
    own_writes: int = 0  # changes that led to no call, as the handler itself had written them
    isolation: IsolationStatistics | None = None  # of an isolated handler
    finalizer: str | None = None  # its name, if the handler has one
    finalized: int = 0  # objects from which it was removed after `declctl_finalize`
    mode: str = ""  # as in the manifest
    watches: Sequence[WatchStatistics] = ()
    p50_seconds: float = 0.0  # of the newest calls, as `p95_seconds`
    p99_seconds: float = 0.0
    durations: Sequence[float] = ()  # of the newest calls, in seconds, the oldest first
    leftovers: int = 0  # objects outside of the scope of the handler that have it
    resource: str = ""  # its name in the manifest
    lag: HistogramFigures | None = None  # from a change, when it was queued for the handler, to its call
    duration: HistogramFigures | None = None  # of calls, with their filters
    oldest_call_seconds: float = 0.0  # since the oldest call under way began, zombies included; 0 without one
    problems: Sequence[HandlerProblem] = ()  # what the condition HandlersHealthy says of it


class FilterOutcome(NamedTuple):
    """A notification, with the result of the filter."""

    notification: Notification
    delivered: Notification  # what the handler receives


class Filter:
    """A handler's filter in one generation. Used by any thread.

    `events` are the types of changes that the handler receives. `accepts` is the user's function. Raises
    FilterFailed, which `accepts` makes of the function's exceptions. An expression that fails counts as
    false, and goes to `report`.
    """

    def __init__(self, spec: FilterSpec, events: Iterable[str], accepts: Accepts | None = None) -> None:
        self.spec = spec
        self.events = frozenset(ChangeType(name) for name in events)
        self._selector = LabelSelector.parse(spec.label_selector) if spec.label_selector else None
        self._accepts = accepts
        paths = [FieldPath.parse(path) for path in spec.changed_paths]
        self._changed = ChangedPaths(paths) if paths else None
        # The one expression judges either objects or changes.
        expression = compile_expression(spec.expression) if spec.expression else None
        judges_objects = expression is not None and expression.judges_objects
        self._of_object: Expression | None = expression if judges_objects else None
        self._of_change: Expression | None = None if judges_objects else expression

    @property
    def judges_objects(self) -> bool:
        """Whether it judges objects, so that they enter and leave it.

        `changedPaths` do not, nor does an expression that judges changes.
        """
        return self.spec.object_part != FilterSpec() or self._accepts is not None

    @property
    def judged_types(self) -> frozenset[ChangeType]:
        """The types of changes to which it is applied. Objects enter and leave it by a Modified."""
        if self.judges_objects and self.events & {_ADDED, _DELETED}:
            return self.events | {_MODIFIED}
        return self.events

    def passes(self, obj: ObjectView, report: Report = _ignore) -> bool:
        """Whether an object passes."""
        if self._selector is not None and not self._selector.matches(obj.labels):
            return False
        if self._of_object is not None and not self._holds(report, self._of_object.matches, record_of(obj)):
            return False
        return self._accepts is None or self._accepts(obj)

    def apply(
        self,
        notification: Notification,
        obj: ObjectView,
        old: ObjectView | None,
        known: Notification | None = None,
        report: Report = _ignore,
    ) -> Notification | None:
        """The notification that the handler receives for another one; None for none.

        `obj` and `old` are views of its records. `known` is the notification on which the handler
        has failed before, if a newer one was merged into it: the handler may have acted on it.
        """
        result = self._result(notification, obj, old, known, report)
        if result is None or result.type not in self.events:
            return None
        # A retry passed with the older notification, and is not judged again, as with `changedPaths`.
        if self._of_change is None or known is not None:
            return result
        matches = self._of_change.matches_change
        return result if self._holds(report, matches, result, _old_of(result)) else None

    def _holds(self, report: Report, matches: Callable[..., bool], *states: object) -> bool:
        """The result of the expression. An evaluation that fails is reported."""
        try:
            return matches(*states)
        except EvaluationFailed as failure:
            report(failure)
            return False

    def _result(
        self,
        notification: Notification,
        obj: ObjectView,
        old: ObjectView | None,
        known: Notification | None,
        report: Report,
    ) -> Notification | None:
        if notification.type is _DELETED:
            # After a merge with a Modified, the handler knows the object in the state before that.
            before = known is not None or self.passes(
                obj if notification.old is None else ObjectView(notification.old), report
            )
            return notification if before else None
        now = self.passes(obj, report)
        if known is not None:
            # A retry with a newer one merged into it: the handler may have acted on the older one.
            return _again(notification, known, now=now)
        # Only an update can enter or leave the filter: its two states are judged one by one.
        if notification.type is not _MODIFIED or notification.old is None:
            return notification if now else None
        before = self.passes(old or ObjectView(notification.old), report)
        if before and now:
            # `changedPaths` compare the state that the handler knows with the new one.
            same = self._changed is not None and not self._changed.differ(
                notification.old, notification.record
            )
            return None if same else notification
        if now:
            return _entering(notification)
        return _leaving(notification, notification.old) if before else None


def _old_of(notification: Notification) -> Record | None:
    """The old state that a hook receives: a Resync has the same object twice, and a Deleted has none."""
    if notification.type is _RESYNC:
        return notification.record
    return notification.old if notification.type is _MODIFIED else None


def entering_or_leaving(change: Change, result: Notification, view: type[ObjectView]) -> Change:
    """The change for a hook, if the filter has turned it into another type; `view` is of its binding."""
    return msgspec.structs.replace(
        change, type=result.type, obj=view(result.record), old=None, initial=False, reason=result.reason
    )


def _again(change: Notification, known: Notification, *, now: bool) -> Notification:
    """The notification for a change after a failure on `known`; `now`: the object passes the filter."""
    if not now:
        return known if known.type is _DELETED else _leaving(change, known.record)
    if known.type in (_ADDED, _DELETED) and change.type is _MODIFIED:
        return _entering(change)
    return change


def _entering(change: Notification) -> Notification:
    return Notification(_ADDED, change.record, reason=change.reason, received_at=change.received_at)


def _leaving(change: Notification, last: Record) -> Notification:
    return Notification(_DELETED, last, reason=ChangeReason.OUT_OF_SCOPE, received_at=change.received_at)


class DeliveryPolicy(NamedTuple):
    """The changes that a slot queues, and the limits of the queue."""

    types: frozenset[ChangeType]  # changes of other types are not queued
    skips_initial: bool  # changes of the first sync are not queued
    merge_above: int  # bytes; above it, changes of one object are merged
    keyed: bool  # changes of one object are always merged
    max_running: int  # the most changes that are delivered at the same time
    debounce: float  # seconds for which a key has to be quiet; 0 for none


@dataclass(frozen=True, slots=True)
class CallBinding:
    """The part of a `HandlerBinding` that invocations need."""

    generation: int
    plan: HandlerPlan
    target: HookTarget  # the functions to call
    # Makes `ctx`, of the memo, the call and its snapshots.
    make_context: Callable[[Callable[[], Any], CallScope, Snapshots | None], object]
    loop: LoopThread  # for `async def` hooks
    filter: Filter | None = None
    snapshots: SnapshotSource | None = None  # None for a handler that includes none
    breaker: CircuitBreaker | None = field(default=None, compare=False)  # of a plugin with onError: Disable
    # Digests of the functions, with their imports and plugins: equal in generations with the same code.
    code: tuple[str, ...] = field(default=(), compare=False)
    tally: CallTally = field(default_factory=CallTally, compare=False)
    isolation: Isolation | None = field(default=None, compare=False)  # of an isolated handler
    view: type[ObjectView] = ObjectView  # the class of the objects that hooks receive
    # Both are made before the commit, which has to be short.
    policy: DeliveryPolicy = field(init=False, compare=False)
    backoff: Backoff = field(init=False, compare=False)  # of changes that have failed

    @property
    def object_kind(self) -> tuple[str, str] | None:
        """The group and the kind of the handler's objects; None if they are not known."""
        return None

    def lacks(self, key: str, uid: str, refusal: ClientRefusal) -> bool:  # noqa: ARG002 - for other bindings
        """Whether a refusal is about the object of a call, which no cache has any more. From any thread."""
        return False

    def __post_init__(self) -> None:
        """Derive the policy and the back-off from the plan."""
        plan, retry = self.plan, self.plan.retry
        events = frozenset(ChangeType(name) for name in plan.events)
        policy = DeliveryPolicy(
            events if self.filter is None else self.filter.judged_types,
            skips_initial=plan.initial_sync is InitialSync.SKIP,
            merge_above=plan.buffer_bytes,
            keyed=plan.delivery is Delivery.KEYED,
            max_running=plan.queue.concurrency,
            debounce=plan.debounce,
        )
        object.__setattr__(self, "policy", policy)
        object.__setattr__(self, "backoff", Backoff(retry.initial_backoff, retry.max_backoff))
