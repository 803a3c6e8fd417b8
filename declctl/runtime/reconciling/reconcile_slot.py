"""The slot of `mode: Reconcile`: keys wait in a work queue, and workers call `declctl_reconcile` with each.

Any number of changes lead to one call, which reads the newest state from the cache. Keys that changes of
objects lead to go before those of a first sync, a resync or a reload, which wait for a bounded number of
others (`workqueue`). A waiting key belongs to no generation: a worker that takes it calls the active code. So
a reload leaves the queue alone, and drains the running calls only.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from random import getrandbits
from typing import Protocol

import msgspec
from msgspec.structs import replace

from declctl.errors import DeclctlError, HandlerFailed, NotSynced, Terminal, UnknownNamespace
from declctl.hooks.calls import Implementation
from declctl.informer.processor import Registration
from declctl.informer.stores.lister import CacheSnapshot, Lister
from declctl.kit import Clock
from declctl.kit.key_queue import EpochCounter, QueueItem
from declctl.objects import (
    Cause,
    ChangeReason,
    ChangeType,
    Notification,
    ObjectKey,
    ObjectView,
    Record,
    Request,
    Requeue,
    event_id_of,
)
from declctl.runtime.caching.managed_informer import ManagedInformer
from declctl.runtime.handling.binding import CallBinding, HandlerStatistics, WatchStatistics
from declctl.runtime.handling.dead_letters import DeadLetters, RequeueResult
from declctl.runtime.handling.handler_slot import HandlerBinding, HandlerSlot
from declctl.runtime.handling.invocation import Invocation, MemoOf, ReportOf, Retry
from declctl.runtime.handling.invocations import LONGEST_WAIT_FOR_SYNC, Invocations
from declctl.runtime.handling.outcomes import InvocationOutcome, LoopEnded, Suspended
from declctl.runtime.handling.tap import SECRET, TapSubject
from declctl.runtime.handling.write_loops import WriteLoops
from declctl.runtime.log import Log
from declctl.runtime.reconciling.call_gate import CallGate
from declctl.runtime.reconciling.finalizers import FinalizerSteps, HandlerFinalizer, reconcile_target
from declctl.runtime.reconciling.mapping import KeySource, Mapped, UnusableValue
from declctl.runtime.reconciling.waiting_changes import MOST_GONE, WaitingChange, WaitingChanges
from declctl.runtime.tracing import TracedCall, tracing
from declctl.workqueue import (
    BucketRateLimiter,
    Priority,
    Reasons,
    ReconcileQueue,
    Version,
)
from declctl.writes import CallScope, WriteOrigin, Written

_JITTER = 0.1  # of a back-off
_MOST_SHOWN = 3  # values in a log line
_RESYNC, _REPLAY = ChangeType.RESYNC, ChangeReason.REPLAY
_OUT_OF_SCOPE = str(ChangeReason.OUT_OF_SCOPE)
# The reasons of changes that were made just now, in contrast to first syncs, resyncs, replays and requeues.
_LIVE = frozenset(map(str, (ChangeReason.WATCH, ChangeReason.RELIST, ChangeReason.OUT_OF_SCOPE)))


@dataclass(frozen=True, slots=True)
class ReconcileBinding(HandlerBinding):
    """The binding of a reconciler. `informers` are those of all its sources, each once."""

    sources: Sequence[KeySource] = ()  # what leads to keys; the reconciler's own resource comes first
    lister: Lister | None = None  # of the objects that it reconciles; never None
    finalizer: HandlerFinalizer | None = None

    @property
    def own_informers(self) -> Sequence[ManagedInformer]:
        """The caches of the objects that it reconciles."""
        return self.sources[0].informers

    @property
    def reconciles(self) -> bool:
        """True."""
        return True

    def make_slot(
        self, *, clock: Clock, log: Log, loop: asyncio.AbstractEventLoop, epochs: EpochCounter | None
    ) -> "ReconcileSlot":
        """A slot that begins with this binding."""
        return ReconcileSlot(self, clock=clock, log=log, loop=loop, epochs=epochs)

    def read(self, key: str, snapshot: CacheSnapshot | None = None) -> ObjectView | None:
        """The newest state of an object in the cache, or its state in a snapshot; raises NotSynced.

        None if there is none, also for a key of a namespace that is not watched: an object that has left the
        scope, or a mapping, may lead to it.
        """
        assert self.lister is not None
        try:
            return (self.lister if snapshot is None else snapshot).get(key)
        except UnknownNamespace:
            return None


class _LedChanges(msgspec.Struct):
    """The counts of one watch, as in WatchStatistics. Written on the machinery loop."""

    led: int = 0
    keys: int = 0
    led_nowhere: int = 0
    no_keys: int = 0


class LeftoverCache(Protocol):
    """The objects outside of the scope of a handler that have its finalizer."""

    def get(self, key: str) -> ObjectView | None:
        """The newest state of an object; None if it is not known. From any thread."""
        ...

    @property
    def count(self) -> int:
        """The number of objects that are known. From any thread."""
        ...

    def is_undecided(self, key: str) -> bool:
        """Whether it is not known yet if an object has left the scope, or is gone. From any thread."""
        ...

    def object_left(self, notification: Notification) -> None:
        """Find out whether an object with the finalizer has left the scope, or is gone.

        If it is gone, `object_gone` of the slot is called. On the machinery loop.
        """
        ...


class Reconciliation(Invocation[Reasons], eq=False, kw_only=True):
    """One call of a reconciler for a key."""

    request: Request
    unread: DeclctlError | None = None  # the object could not be read: its cache has not synced, for example
    last: Implementation | None = None  # called after the hooks: removes the finalizer if they have succeeded
    unlimited: bool = False  # retried without `maxAttempts`; a Terminal still ends it
    adds: bool = False  # it adds the finalizer; the hooks are called later, or now in a dry run
    requeue: Requeue | None = None  # the earliest that the hooks have returned
    caused_by: Sequence[str] = ()  # ids of events; empty without traces

    @property
    def subject(self) -> str:
        """The key, and why it is due."""
        causes = self.request.causes
        more = f" and {len(causes) - 1} more" if len(causes) > 1 else ""
        return f"{self.request.key}" + (f", because of {causes[0]}{more}" if causes else "")

    @property
    def event_id(self) -> str:
        """That of the request."""
        return self.request.id

    @property
    def uid(self) -> str:
        """That of the object that the call has received."""
        return "" if self.request.obj is None else self.request.obj.uid

    def traced(self) -> TracedCall:
        """What the span of the call says."""
        request, binding = self.request, self.binding
        return TracedCall(
            binding.plan.name,
            binding.generation,
            binding.plan.resource,
            request.id,
            request.attempt,
            binding.object_kind,
            request.namespace,
            request.name,
            self.uid,
            causes=tuple(map(str, request.causes)),
            waited=self.lag or 0.0,
        )

    def events(self) -> Sequence[str]:
        """The ids of changes that have led to the key, which are noted while there are traces."""
        return self.caused_by

    def content(self, state: Retry) -> tuple[Cause, ...]:  # noqa: ARG002 - the next call reads the newest state
        """Why the key was due."""
        return self.request.causes

    def tap_subject(self) -> TapSubject:
        """Why the key is due; of its object, only whether it is a Secret, also of one that is gone."""
        hidden = self.binding.object_kind == SECRET
        return TapSubject("Reconcile", causes=self.request.causes, is_secret=hidden)

    @property
    def most_attempts(self) -> int | None:
        """As of any item; None for what is done because of a finalizer."""
        return None if self.unlimited else super().most_attempts

    @property
    def has_succeeded(self) -> bool:
        """Whether no hook has failed so far, and none has returned a Requeue."""
        return not self.failures and self.requeue is None

    def select(self, report: ReportOf) -> bool:  # noqa: ARG002 - for other modes
        """Decide which hooks are called: a key is not filtered, the changes that lead to it are.

        False for a reconciler without code, and for an object that is being deleted without the finalizer of
        the handler.
        """
        if self.unread is not None:
            self.failures.append(self.unread)
            self.implementations = ()
            return True
        if self.last is not None:
            self.implementations = (*self.implementations, self.last)
        return bool(self.implementations)

    def take_snapshots(self) -> None:
        """No effect: `Reconciliations` has taken them before it has read the object of the request."""

    def arguments(self, implementation: Implementation, memo: MemoOf) -> Mapping[str, object]:
        """The request, and the context."""
        arguments: dict[str, object] = {"request": self.request}
        if "ctx" in implementation.parameters:
            request, obj = self.request, self.request.obj
            scope = CallScope(request.key, obj, request.id, request.causes)
            remember = partial(memo, request.key, None if obj is None else obj.uid)
            arguments["ctx"] = self.binding.make_context(remember, scope, self.snapshots)
        return arguments

    def take(self, result: object) -> None:
        """Receive what a reconciler has returned; raises HandlerFailed unless it is None or a Requeue."""
        if isinstance(result, Requeue):
            if self.requeue is None or result.after < self.requeue.after:
                self.requeue = result
        elif result is not None:
            hook = "declctl_reconcile" if self.last is None else "declctl_finalize"
            raise HandlerFailed(
                f"{hook} returned a {type(result).__name__}: return None or Requeue(after=seconds)"
            )

    def retry_state(self, first_failed: int | None, waits: int, *, is_unsynced: bool) -> Retry:
        """As of any item, with the request: its `id` is that of the next attempt."""
        state = super().retry_state(first_failed, waits, is_unsynced=is_unsynced)
        return state._replace(request=self.request)


class Reconciliations(Invocations[Reasons]):
    """The invocations of a reconciler."""

    def __init__(
        self,
        slot: "ReconcileSlot",
        queue: ReconcileQueue[str],
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        log: Log,
    ) -> None:
        super().__init__(slot, queue, loop=loop, clock=clock, log=log)
        self._keys = queue
        self._reconciled = slot
        self.no_keys = 0  # values of mappings that are no keys
        self._finalizers = slot.finalizers

    def _make(self, item: QueueItem[Reasons], binding: CallBinding) -> Reconciliation:
        retry: Retry | None = item.retry_state
        obj = unread = None
        in_scope, undecided = True, False
        snapshots = own = None
        try:
            # First: the object of a snapshot is also that of the request, and the state of it that decides
            # whether it is reconciled or finalized.
            if binding.snapshots is not None:
                snapshots = binding.snapshots.take()
                own = snapshots.get(binding.plan.resource)
            obj = _of_reconciler(binding).read(item.key, own)
            if obj is None and (left := self._reconciled.leftovers) is not None:
                obj, in_scope = left.get(item.key), False
                undecided = obj is None and left.is_undecided(item.key)
        except NotSynced as fault:
            unread = fault
        causes, before = tuple(item.value.causes), None if retry is None else retry.request
        # A new cause makes a new call of it: the handler may decide otherwise than in the failed attempts.
        same = before is not None and set(causes) <= set(before.causes)
        request = Request(
            key=ObjectKey(item.key),
            obj=obj,
            attempt=item.attempts + 1 - (0 if retry is None else retry.waits),
            causes=causes,
            id=before.id if before is not None and same else f"{getrandbits(128):032x}",
        )
        began = self._clock.monotonic()
        invocation = Reconciliation(
            item,
            binding,
            began,
            reconcile_target(binding).reconciling,
            self._slot.replace_worker,
            request=request,
            unread=unread,
            snapshots=snapshots,
            lag=None if item.value.changed_at is None else began - item.value.changed_at,
            caused_by=item.value.events,
        )
        if undecided:
            # The handler would take it for one that is gone. If it is, its key is queued again.
            invocation.implementations = ()
        finalizer = _of_reconciler(binding).finalizer
        if finalizer is not None and obj is not None and not binding.target.disabled:
            try:
                steps = self._finalizers.decide(
                    binding,
                    finalizer,
                    obj,
                    CallScope(request.key, obj, request.id, causes),
                    retry,
                    in_scope=in_scope,
                    succeeds=lambda: invocation.has_succeeded,
                )
            except DeclctlError as fault:  # the object can't be decoded
                invocation.unread = fault
            else:
                invocation.implementations = steps.implementations
                invocation.last, invocation.unlimited = steps.last, steps.unlimited
                invocation.adds = steps.adds
        return invocation

    def delay(self, binding: CallBinding, attempt: int) -> float:
        """The seconds to wait after failed attempt number `attempt`."""
        return self._delay(binding, attempt)

    def _delay(self, binding: CallBinding, attempt: int) -> float:
        """As of any item, up to a tenth shorter: keys that failed together do not all come back together."""
        return super()._delay(binding, attempt) * (1 - _JITTER * self._clock.random())

    def _is_terminal(self, failures: Sequence[BaseException]) -> bool:
        """Whether the reconciler has raised Terminal: then no attempt follows."""
        return any(isinstance(failure.__cause__, Terminal) for failure in failures)

    def _retry(self, invocation: Invocation[Reasons], outcome: InvocationOutcome, delay: float) -> None:
        """As of any item; changes of which no call has made anything are left for the next one."""
        if not isinstance(outcome, Suspended | LoopEnded):
            invocation.item.value = Reasons(invocation.item.value.causes)
        super()._retry(invocation, outcome, delay)

    def _succeeded(self, invocation: Invocation[Reasons]) -> None:
        """As of any item; a Requeue is noted, and the finalizer that was added is looked for."""
        assert isinstance(invocation, Reconciliation)
        if invocation.requeue is not None:
            cause = Cause("Requeue", invocation.binding.plan.resource, invocation.item.key, "Requested")
            self._keys.requeue(invocation.item, invocation.requeue.after, cause)
            self._slot.wake()  # it may be due before all other keys: the workers look when
        if invocation.adds:
            self._look_again(invocation)
        super()._succeeded(invocation)

    def mapping_failed(
        self,
        binding: CallBinding,
        place: str,
        failure: DeclctlError,
        first_failed: int | None,
        delay: float | None,
    ) -> None:
        """Count and log that a filter or a mapping has failed, as a failed call of the handler.

        `place` names the resource and its object. The next attempt is in `delay` seconds; None: the change is
        given up. `first_failed` is the generation on which the change failed first; None for this one.
        """
        self.figures.mapping_failed(binding, place, failure, first_failed, again=delay is not None)
        self._failures.mapping_failed(place, binding.generation, failure, delay)

    def mapping_waits(self, binding: CallBinding, key: str, fault: DeclctlError) -> None:
        """Count and log that a change waits until the reconciled kind is known, as a call for a cache."""
        self.figures.mapping_waits(key, fault)
        self._failures.mapping_waits(key, binding.generation, str(fault))

    def found_no_keys(
        self,
        binding: CallBinding,
        source: KeySource,
        notification: Notification,
        found: Sequence[UnusableValue],
    ) -> None:
        """Count and log values of a mapping that are no keys: the first of a source, the 10th, and so on."""
        self.no_keys += len(found)
        times = self._failures.count((binding.generation, "no keys", source.resource, source.way))
        if str(times).rstrip("0") != "1":
            return
        texts = " and ".join(each.text for each in found[:_MOST_SHOWN])
        more = "" if len(found) <= _MOST_SHOWN else f" and {len(found) - _MOST_SHOWN:,} more"
        are = "are no keys" if len(found) > 1 else "is no key"
        so_far = "" if times == 1 else f" ({times:,} changes by now)"
        self._log.warning(
            f"{self._name}: {source.resource} {notification.key} leads nowhere by {source.way}: "
            f"{texts}{more} {are} of the reconciled kind{so_far}; a key is namespace/name, or a name",
            handler=self._name,
            key=str(notification.key),
            generation=binding.generation,
            times=times,
        )

    def _look_again(self, invocation: Reconciliation) -> None:
        """Queue a key again if the cache shows its object with the finalizer already."""
        binding, key = _of_reconciler(invocation.binding), invocation.item.key
        assert binding.finalizer is not None
        try:
            due = self._finalizers.is_due(binding.finalizer, binding.read(key), key)
        except DeclctlError:  # the cache can't be read: the key comes again with its next change
            due = False
        if due:
            cause = Cause(str(ChangeType.MODIFIED), binding.plan.resource, key, str(ChangeReason.WATCH))
            self._reconciled.queue_key(key, cause)


class _Feed:
    """The listener of one informer: passes its changes to the slot, together with the informer."""

    def __init__(self, slot: "ReconcileSlot", managed: ManagedInformer) -> None:
        self.name = slot.name
        self._slot = slot
        self._managed = managed

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Queue the keys to which changes lead."""
        self._slot.add_from(self._managed, notifications)


class ReconcileSlot(HandlerSlot[Reasons]):
    """The slot of a reconciler: any number of changes of a key lead to one call."""

    def __init__(
        self,
        binding: HandlerBinding,
        *,
        clock: Clock,
        log: Log,
        loop: asyncio.AbstractEventLoop,
        epochs: EpochCounter | None = None,
    ) -> None:
        self.finalizers = FinalizerSteps()
        self.leftovers: LeftoverCache | None = None  # objects outside of the scope that have the finalizer
        wake = lambda: self.wake()  # noqa: E731, PLW0108 - the base class sets it later
        self.gate = CallGate(binding.plan.name, clock=clock, report=self._report_lag, wake=wake)
        # All failed keys together share a token bucket (10 a second, burst 100), as in client-go.
        limiter = BucketRateLimiter(clock=clock).when
        self._keys = ReconcileQueue[str](clock=clock, epochs=epochs, gate=self.gate, limiter=limiter)
        self._log = log
        # Keys of the first sync that are not reconciled yet; None when the reconciler has synced.
        self._initial: set[str] | None = set()
        self._sources: Mapping[ManagedInformer, Sequence[KeySource]] = {}
        # Changes whose keys are not known, as a filter or a mapping has failed on them.
        self._unmapped = WaitingChanges(self._judge_again, self._give_up, loop=loop, clock=clock)
        # By resource and mapping: a watch keeps its figures over reloads.
        self._led: dict[tuple[str, str], _LedChanges] = {}
        self._unmapped_fault = ""  # the last failure of these
        self._skips_initial = False
        super().__init__(
            binding,
            self._keys,
            DeadLetters(_newer, _weight),
            clock=clock,
            log=log,
            loop=loop,
            shares_epochs=epochs is not None,
        )

    def apply_policy(self, binding: HandlerBinding) -> None:
        """Take the sources and limits of a binding."""
        sources = _of_reconciler(binding).sources
        self._sources = {
            managed: [source for source in sources if managed in source.informers]
            for managed in binding.informers
        }
        self._unmapped.use(self._sources)
        self._skips_initial = binding.policy.skips_initial
        self._keys.max_running = binding.policy.max_running
        self.let_finalizer_go("")
        self._keys.debounce = binding.policy.debounce
        self.wake()  # without a debounce, no key rests any longer

    def add_from(self, managed: ManagedInformer, notifications: Sequence[Notification]) -> None:
        """Queue the keys to which changes of an informer lead. Neither waits nor raises."""
        finalizer = _of_reconciler(self.binding).finalizer
        for notification in notifications:
            self.finalizers.note_release(notification)
            skipped = notification.initial and self._skips_initial
            failed: list[KeySource] = []
            failures: list[DeclctlError] = []
            for source in self._sources.get(managed, ()):
                left = source.keys_of is None and self._may_have_left(finalizer, notification)
                mapped = (
                    Mapped() if skipped or left else self._add(source, notification, _reason(notification))
                )
                if mapped.failures:
                    failed.append(source)
                    failures += mapped.failures
                if finalizer is not None and source.keys_of is None:
                    queued = left or bool(mapped.keys)
                    self._look_for_finalizer(source, finalizer, notification, queued=queued)
            if not skipped:
                self._let_wait(managed, notification, failed, failures)
        self.wake()

    def queue_key(
        self,
        key: str,
        cause: Cause,
        priority: Priority = Priority.LIVE,
        *,
        rests: bool = True,
        reason: Version | None = None,
        event_id: str = "",
    ) -> None:
        """Let a key be reconciled, because of a cause; with `rests`, after the debounce.

        `reason` is the version of an object whose change is the cause; None for any other cause. `event_id`
        is the id of the change, for traces. The workers are not woken.
        """
        changed_at = self._clock.monotonic() if cause.reason in _LIVE else None
        reasons = Reasons({cause: None}, reason and (reason,), changed_at, (event_id,) if event_id else ())
        self._keys.add(key, reasons, priority, rests=rests)

    def let_finalizer_go(self, finalizer: str) -> None:
        """Do not add this finalizer again to objects that are released from it; an empty one ends that.

        If the handler still has it then, all keys are due: their objects may have been released.
        """
        before = self.finalizers.let_go(finalizer)
        if before and not finalizer and self.binding.plan.finalizer == before:
            resource = self.binding.plan.resource
            for managed in _own_informers(self.binding):
                for key in tuple(managed.informer.indexer.known()):
                    cause = Cause(str(_RESYNC), resource, key, str(_REPLAY))
                    self.queue_key(key, cause, Priority.BACKGROUND)
            self.wake()

    def add_leftover(self, notification: Notification) -> None:
        """Queue the key of an object outside of the handler's scope that is being deleted. Raises nothing."""
        cause = Cause(str(notification.type), self.binding.plan.resource, notification.key, _OUT_OF_SCOPE)
        self.queue_key(notification.key, cause)
        self.wake()

    def object_gone(self, notification: Notification) -> None:
        """Queue the key of an object that might have left the scope, and is gone. Raises nothing."""
        for managed in self._sources:
            for source in self._own_sources(managed):
                self._add(source, notification, _reason(notification))
        self.wake()

    def _may_have_left(self, finalizer: HandlerFinalizer | None, notification: Notification) -> bool:
        """Whether a Deleted may mean an object that lives on with the finalizer, outside of the scope."""
        if finalizer is None or self.leftovers is None:
            return False
        try:
            return finalizer.has_left(notification) and not self.finalizers.has_released(notification)
        except DeclctlError:  # the object can't be decoded
            return False

    def _look_for_finalizer(
        self,
        source: KeySource,
        finalizer: HandlerFinalizer,
        notification: Notification,
        *,
        queued: bool,
    ) -> None:
        """Queue the key of an object that the handler's filter, types or `initialSync` must not keep away.

        `queued`: its key waits in the queue anyway.
        """
        try:
            if not queued and self.finalizers.needs_call(finalizer, notification):
                cause, reason = source.cause(notification), _reason(notification)
                self.queue_key(notification.key, cause, _priority(notification), reason=reason)
            if notification.type is ChangeType.DELETED:
                if self.leftovers is not None and self._may_have_left(finalizer, notification):
                    self.leftovers.object_left(notification)
                self.finalizers.forget(notification.key)
        except DeclctlError as failure:  # the object can't be decoded: its next change is looked at
            place = f"{source.resource} {notification.key}"
            self._mapper.mapping_failed(self.binding, place, failure, None, None)

    def _add(self, source: KeySource, notification: Notification, reason: Version | None) -> Mapped:
        """Queue the keys to which a change leads, and return them with what has failed."""
        report = partial(self.invocations.report_expression, self.binding, notification.key)
        mapped = source.keys(notification, report)
        if mapped.keys:
            cause, priority = source.cause(notification), _priority(notification)
            event_id = "" if tracing() is None else event_id_of(notification.record)
            for key in mapped.keys:
                if notification.initial and self._initial is not None:
                    self._initial.add(key)
                self.queue_key(key, cause, priority, reason=reason, event_id=event_id)
        if source.keys_of is not None and notification.type in source.types and not mapped.failures:
            self._count(source, mapped)
        if mapped.no_keys:
            self._mapper.found_no_keys(self.binding, source, notification, mapped.no_keys)
        return mapped

    def _count(self, source: KeySource, mapped: Mapped) -> None:
        """Count what a change of a watched resource has led to."""
        counts = self._led.setdefault((source.resource, source.way), _LedChanges())
        counts.led += bool(mapped.keys)
        counts.led_nowhere += not mapped.keys
        counts.keys += len(mapped.keys)
        counts.no_keys += len(mapped.no_keys)

    def _watches(self) -> Iterator[WatchStatistics]:
        watches = ((watch.resource, str(watch.map_to)) for watch in self.binding.plan.watches)
        for resource, way in dict.fromkeys(watches):
            found = self._led.get((resource, way)) or _LedChanges()
            yield WatchStatistics(resource, way, found.led, found.keys, found.led_nowhere, found.no_keys)

    def _let_wait(
        self,
        managed: ManagedInformer,
        notification: Notification,
        failed: Sequence[KeySource],
        failures: Sequence[DeclctlError],
    ) -> None:
        """Let a change wait on which sources have failed, or on whose object they have failed before."""
        waiting = self._unmapped.get(managed, notification.key)
        if waiting is not None:
            # It is judged as a whole: the states in between lead nowhere by themselves.
            waiting.merge(notification)
            waiting.sources = [s for s in self._sources[managed] if s in waiting.sources or s in failed]
            self._unmapped.wait(waiting, 0.0)
        elif failed:
            waiting = WaitingChange(managed, notification.key, (notification,), failed)
            self._retry_or_give_up(waiting, failures)

    def _judge_again(self, waiting: WaitingChange[KeySource]) -> None:
        """Queue the keys to which a waiting change leads, or let it wait longer."""
        failed: list[KeySource] = []
        failures: list[DeclctlError] = []
        for source in waiting.sources:
            found = [self._add(source, change, None).failures for change in waiting.changes]
            if any(found):
                failed.append(source)
                failures += chain.from_iterable(found)
        waiting.sources = failed
        if failed:
            self._retry_or_give_up(waiting, failures)
        else:
            self._unmapped.end(waiting)
        self.wake()

    def _retry_or_give_up(self, waiting: WaitingChange[KeySource], failures: Sequence[DeclctlError]) -> None:
        """Let a change wait for its back-off, as often as the plan allows."""
        most, binding = self.binding.plan.most_attempts, self.binding
        faults = [failure for failure in failures if not isinstance(failure, NotSynced)]
        waiting.is_unsynced = not faults
        if not faults:
            waiting.waits += 1
            seconds = min(self._mapper.delay(binding, waiting.waits), LONGEST_WAIT_FOR_SYNC)
            self._mapper.mapping_waits(binding, waiting.key, failures[0])
            self._unmapped.wait(waiting, seconds)
            return
        waiting.attempts += 1
        delay = None
        if most is None or waiting.attempts < most:
            delay = self._mapper.delay(binding, waiting.attempts)
        place = f"{waiting.sources[0].resource} {waiting.key}"
        self._mapper.mapping_failed(binding, place, faults[0], waiting.first_failed, delay)
        self._unmapped_fault = f"{place}: {faults[0]}"
        if waiting.first_failed is None:
            waiting.first_failed = binding.generation
        if delay is None:
            self._unmapped.end(waiting)
        else:
            self._unmapped.wait(waiting, delay)

    def _give_up(self, waiting: WaitingChange[KeySource]) -> None:
        """Drop a change, as too many objects that are gone wait."""
        place = f"{waiting.sources[0].resource} {waiting.key}"
        failure = HandlerFailed(f"more than {MOST_GONE:,} deleted objects wait for a filter or a mapping")
        self._mapper.mapping_failed(self.binding, place, failure, waiting.first_failed, None)
        self._unmapped.end(waiting)

    @property
    def unmapped_changes(self) -> int:
        """The number of changes that lead to no key yet."""
        return len(self._unmapped)

    @property
    def unmapped(self) -> str:
        """The changes whose keys are not known, in words; empty if there are none."""
        number = self._unmapped.failing
        return f"{self.name}: {number:,} changes lead to no key yet: {self._unmapped_fault}" if number else ""

    @property
    def is_idle(self) -> bool:
        """Whether no key waits, runs or backs off, and no change waits for its keys.

        A key counts that comes as soon as the cache has its finalizer, and one that only waits for its
        Requeue does not.
        """
        return super().is_idle and not (len(self._unmapped) or self.finalizers.awaited)

    def cache_synced(self) -> None:
        """As of any handler; what waits for the reconciled kind is judged."""
        super().cache_synced()
        self._unmapped.kind_may_be_known()

    def cancel(self) -> int:
        """As of any handler; what waits for its keys is dropped."""
        self._unmapped.clear()
        return super().cancel()

    def close(self) -> int:
        """As of any handler; what waits for its keys is dropped and counted, too."""
        return self._unmapped.clear() + super().close()

    @property
    def replayed_caches(self) -> Sequence[ManagedInformer]:
        """Those of the reconciler's own objects: what it watches beside them leads to the same keys."""
        return [managed for managed in self.registrations if any(self._own_sources(managed))]

    def replay(self, managed: ManagedInformer, records: Sequence[Record], now: float) -> None:
        """Queue the keys of the reconciler's own objects, for new code."""
        for source in self._own_sources(managed):
            for record in records:
                notification = Notification(_RESYNC, record, reason=_REPLAY, received_at=now)
                mapped = self._add(source, notification, None)
                self._let_wait(managed, notification, [source] * bool(mapped.failures), mapped.failures)
        self.replayed += len(records)
        self.wake()

    def _own_sources(self, managed: ManagedInformer) -> Iterator[KeySource]:
        """The sources of an informer whose objects have the keys themselves."""
        return (source for source in self._sources.get(managed, ()) if source.keys_of is None)

    def requeue(self, key: str) -> RequeueResult:
        """Let a key be reconciled that was given up, with its newest state."""
        cause = Cause("Requeue", self.binding.plan.resource, key, "DeadLetter")

        def add(_: tuple[Cause, ...]) -> bool:
            self.queue_key(key, cause, rests=False)
            return True

        result = self.dead_letters.requeue(key, add)
        self.wake()
        return result

    def written(self, written: Written, origin: WriteOrigin, caches: Iterable[ManagedInformer]) -> None:
        """Hold keys back until the caches have a write of this handler."""
        own_kind = _own_informers(self.binding)[0].identity.group_kind
        self.gate.unseen.note(written, origin, caches, own_kind=own_kind)

    def guard_by(self, loops: WriteLoops) -> None:
        """Ask the loops of the process about own writes of the handler."""
        self.gate.loops = loops

    def _report_lag(self, message: str) -> None:
        self._log.warning(f"{self.name}: {message}", handler=self.name, generation=self.binding.generation)

    def statistics(self) -> HandlerStatistics:
        """The figures of this moment."""
        found = super().statistics()
        return replace(
            found,
            queued=found.queued + len(self._unmapped) + self.finalizers.awaited,
            unmapped=len(self._unmapped),
            no_keys=self._mapper.no_keys,
            watches=tuple(self._watches()),
            cache_waits=self.gate.unseen.held_back,
            cache_lags=self.gate.unseen.lagging,
            workqueue=self._keys.workqueue_statistics(),
            own_writes=self.gate.own_writes,
            finalizer=self.binding.plan.finalizer or None,
            finalized=self.finalizers.finalized,
            leftovers=0 if self.leftovers is None else self.leftovers.count,
        )

    def continues_as(self, binding: HandlerBinding) -> bool:
        """Whether the binding has the same mode, and its own resource has the same kind."""
        if not isinstance(binding, ReconcileBinding):
            return False
        own, other = (
            {each.identity.group_kind for each in _own_informers(of)} for of in (self.binding, binding)
        )
        return own == other

    def retime(self, period: float) -> None:
        """Reconcile all keys each `period` seconds from now on; never for 0."""
        for managed, registration in self.registrations.items():
            if managed in _own_informers(self.binding):
                registration.retime(period)

    def _make_invocations(self, clock: Clock, log: Log) -> Invocations[Reasons]:
        self._mapper = Reconciliations(self, self._keys, loop=self._loop, clock=clock, log=log)
        return self._mapper

    def _listen(self, managed: ManagedInformer, binding: HandlerBinding, *, initial: bool) -> Registration:
        is_own = managed in _own_informers(binding)
        period = binding.plan.resync_period if is_own else 0.0
        feed = _Feed(self, managed)
        return managed.informer.add_listener(feed, resync_period=period, initial=initial, deferred=True)

    def ended(self, invocation: Invocation[Reasons]) -> None:
        """A key was reconciled or given up; it is held still. In the thread of a worker."""
        assert isinstance(invocation, Reconciliation)
        initial = self._initial
        if initial is not None:
            initial.discard(invocation.item.key)
        if invocation.request.obj is None:
            self.forget_memo(invocation.item.key)

    def _look_synced(self) -> None:
        if self._initial_complete and not self._synced:
            self._synced = not self._initial or (self._keys.idle and not self.finalizers.awaited)
            if self._synced:
                self._initial = None


def _newer(older: tuple[Cause, ...], newer: tuple[Cause, ...]) -> tuple[Cause, ...]:  # noqa: ARG001 - a key needs no older causes
    return newer


def _weight(causes: tuple[Cause, ...]) -> int:
    return 200 * len(causes)  # their texts are short names and keys


def _priority(notification: Notification) -> Priority:
    """Behind live changes come those after which nothing is known to have changed."""
    in_background = notification.initial or notification.type is _RESYNC
    return Priority.BACKGROUND if in_background else Priority.LIVE


def _reason(notification: Notification) -> Version | None:
    """Uid and version of a Modified of the watch, which is one write; None for any other change."""
    if notification.type is not ChangeType.MODIFIED or notification.reason is not ChangeReason.WATCH:
        return None
    return notification.record.uid, notification.record.resource_version


def _of_reconciler(binding: CallBinding) -> ReconcileBinding:
    assert isinstance(binding, ReconcileBinding)  # `continues_as` refuses all others
    return binding


def _own_informers(binding: CallBinding) -> Sequence[ManagedInformer]:
    """The informers of the objects that a binding reconciles."""
    return _of_reconciler(binding).sources[0].informers
