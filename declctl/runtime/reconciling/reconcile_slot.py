"""The slot of `mode: Reconcile`: keys wait in a work queue, and workers call `declctl_reconcile` with each.

Any number of changes lead to one call, which reads the newest state from the cache. Keys that changes of
objects lead to go before those of a first sync, a resync or a reload, which wait for a bounded number of
others (`workqueue`). A waiting key belongs to no generation: a worker that takes it calls the active code. So
a reload leaves the queue alone, and drains the running calls only.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import chain
from random import getrandbits
from typing import Any, Protocol

from msgspec.structs import replace

from declctl.errors import DeclctlError, HandlerFailed, NotSynced, Terminal, UnknownNamespace
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
    event_id_of,
    record_of,
)
from declctl.runtime.caching.kept_objects import KeptObjects, PendingChange
from declctl.runtime.caching.managed_informer import ManagedInformer
from declctl.runtime.handling.binding import CallBinding, HandlerStatistics, WatchStatistics
from declctl.runtime.handling.dead_letters import DeadLetter, DeadLetters, RequeueResult
from declctl.runtime.handling.failure_log import is_round
from declctl.runtime.handling.handler_slot import HandlerBinding, HandlerSlot
from declctl.runtime.handling.invocation import Invocation, Retry, waits_of
from declctl.runtime.handling.invocations import LONGEST_WAIT_FOR_SYNC, Invocations
from declctl.runtime.handling.outcomes import InvocationOutcome, LoopEnded, Suspended
from declctl.runtime.handling.write_loops import WriteLoops
from declctl.runtime.log import Log
from declctl.runtime.reconciling.finalizers import FinalizerSteps, HandlerFinalizer, reconcile_target
from declctl.runtime.reconciling.mapping import KeySource, Mapped
from declctl.runtime.reconciling.previous_states import PreviousStates
from declctl.runtime.reconciling.reconciliation import Reconciliation
from declctl.runtime.reconciling.unseen_writes import UnseenWrites
from declctl.runtime.reconciling.waiting_changes import MOST_GONE, WaitingChange, WaitingChanges
from declctl.runtime.tracing import tracing
from declctl.workqueue import BucketRateLimiter, Priority, Reasons, ReconcileQueue, Version
from declctl.writes import WriteOrigin, Written

_JITTER = 0.1  # of a back-off
_MOST_SHOWN = 3  # values in a log line
_RESYNC, _REPLAY = ChangeType.RESYNC, ChangeReason.REPLAY
_OUT_OF_SCOPE = str(ChangeReason.OUT_OF_SCOPE)
# The reasons of changes that were made just now, in contrast to first syncs, resyncs, replays and requeues.
_LIVE = frozenset(map(str, (ChangeReason.WATCH, ChangeReason.RELIST, ChangeReason.OUT_OF_SCOPE)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileBinding(HandlerBinding):
    """The binding of a reconciler. `informers` are those of all its sources, each once."""

    sources: Sequence[KeySource]  # what leads to keys; the reconciler's own resource comes first
    lister: Lister  # of the objects that it reconciles
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
        try:
            return (self.lister if snapshot is None else snapshot).get(key)
        except UnknownNamespace:
            return None


class LeftoverCache(Protocol):
    """The objects outside of the scope of a handler that have its finalizer (`leftovers`)."""

    def get(self, key: str) -> Record | None:
        """The newest state of an object; None if it is not known. From any thread."""
        ...

    @property
    def count(self) -> int:
        """The number of objects that are known. From any thread."""
        ...

    def is_undecided(self, key: str) -> bool:
        """Whether it is not known yet if an object has left the scope, or is gone. From any thread."""
        ...

    @property
    def has_undecided(self) -> bool:
        """Whether there are such objects."""
        ...

    def drop(self, chosen: Callable[[str, str], bool]) -> None:
        """Find out no more of objects that are chosen by key and uid. On the machinery loop."""
        ...

    def object_left(self, notification: Notification) -> None:
        """Find out whether an object with the finalizer has left the scope, or is gone.

        If it is gone, `object_gone` of the slot is called. On the machinery loop.
        """
        ...


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
        self._reconcile_slot = slot
        self._bucket = BucketRateLimiter(clock=clock)  # 10 a second, burst 100, as in client-go
        self.no_keys = 0  # values of mappings that are no keys

    def _make(self, item: QueueItem[Reasons], binding: CallBinding) -> Reconciliation:
        retry: Retry | None = item.retry_state
        own, left = _of_reconciler(binding), self._reconcile_slot.leftovers
        obj = unread = snapshots = None
        in_scope, undecided = True, False
        try:
            # First: the object of a snapshot is also that of the request, and the state of it that decides
            # whether it is reconciled or finalized.
            snapshots = None if binding.snapshots is None else binding.snapshots.take()
            obj = own.read(item.key, None if snapshots is None else snapshots.get(binding.plan.resource))
            if obj is None and left is not None:
                undecided = left.is_undecided(item.key)
                record, in_scope = left.get(item.key), False
                # That cache may lag behind, and have an object still that this handler has let go.
                released = self._reconcile_slot.finalizers.has_removed
                if record is not None and not released(item.key, record.uid):
                    obj = binding.view(record)
        except NotSynced as fault:
            unread = fault
        causes, before = tuple(item.value.causes), None if retry is None else retry.request
        previous = self._reconcile_slot.previous.get(item.key)
        # A new cause makes a new call of it: the handler may decide otherwise than in the failed attempts.
        same = before is not None and set(causes) <= set(before.causes)
        request = Request(
            key=ObjectKey(item.key),
            obj=obj,
            attempt=item.attempts + 1 - waits_of(item),
            causes=causes,
            id=before.id if before is not None and same else f"{getrandbits(128):032x}",
            previous=None if previous is None else binding.view(previous),
        )
        began = self._clock.monotonic()
        invocation = Reconciliation(
            item,
            binding,
            began,
            reconcile_target(binding).reconciling,
            self._slot.replace_worker,
            request=request,
            snapshots=snapshots,
            lag=None if item.value.changed_at is None else began - item.value.changed_at,
        )
        if unread is not None:
            invocation.can_not_read(unread)
        elif obj is None and undecided:
            # Since its turn has come. The handler would take it for one that is gone.
            invocation.implementations = ()
        elif obj is not None and own.finalizer is not None and not binding.target.disabled:
            try:
                self._reconcile_slot.finalizers.decide(invocation, own.finalizer, obj, in_scope=in_scope)
            except DeclctlError as fault:  # the object can't be decoded
                invocation.can_not_read(fault)
        return invocation

    def delay(self, binding: CallBinding, attempt: int) -> float:
        """The seconds to wait after failed attempt number `attempt`.

        Up to a tenth shorter than of a change: keys that failed together do not all come back together.
        """
        return super()._delay(binding, attempt) * (1 - _JITTER * self._clock.random())

    def _delay(self, binding: CallBinding, attempt: int) -> float:
        """As above, and longer if too many keys of the handler fail: they share a token bucket."""
        return max(self.delay(binding, attempt), self._bucket.when(None))

    def _is_terminal(self, failures: Sequence[BaseException]) -> bool:
        """Whether the reconciler has raised Terminal: then no attempt follows."""
        return any(isinstance(failure.__cause__, Terminal) for failure in failures)

    def _succeeded(self, invocation: Invocation[Reasons]) -> None:
        """As of any item; the object is kept as this call had it."""
        super()._succeeded(invocation)
        assert isinstance(invocation, Reconciliation)
        if invocation.binding.plan.keep_previous and not invocation.adds:
            obj = invocation.request.obj
            self._reconcile_slot.previous.keep(invocation.item.key, None if obj is None else record_of(obj))

    def _retry(self, invocation: Invocation[Reasons], outcome: InvocationOutcome, delay: float) -> None:
        """As of any item; changes of which no call has made anything are left for the next one."""
        if not isinstance(outcome, Suspended | LoopEnded):
            invocation.item.value = Reasons(invocation.item.value.causes)
        super()._retry(invocation, outcome, delay)

    def mapping_failed(self, waiting: WaitingChange, fault: DeclctlError, delay: float | None) -> None:
        """Count and log that a filter or a mapping has failed, as a failed call of the handler.

        The next attempt is in `delay` seconds; None: the change is given up.
        """
        binding = self._reconcile_slot.binding
        place = f"{waiting.sources[0].resource} {waiting.key}"
        waiting.fault = f"{place}: {fault}"
        if waiting.first_failed is None:
            waiting.first_failed = binding.generation
        self.figures.mapping_failed(binding, place, fault, waiting.first_failed, again=delay is not None)
        self._failures.mapping_failed(place, binding.generation, fault, delay)

    def mapping_waits(self, binding: CallBinding, key: str, fault: DeclctlError) -> None:
        """Count and log that a change waits until the reconciled kind is known, as a call for a cache."""
        self.figures.mapping_waits(key, fault)
        self._failures.mapping_waits(key, binding.generation, str(fault))

    def found_no_keys(self, source: KeySource, notification: Notification, mapped: Mapped) -> None:
        """Count and log values of a mapping that are no keys: the first of a source, the 10th, and so on."""
        found, generation = mapped.no_keys, self._reconcile_slot.binding.generation
        self.no_keys += len(found)
        times = self._failures.count((generation, "no keys", source.resource, source.way))
        if not is_round(times):
            return
        texts = " and ".join(each.text for each in found[:_MOST_SHOWN])
        more = "" if len(found) <= _MOST_SHOWN else f" and {len(found) - _MOST_SHOWN:,} more"
        are = "are no keys" if len(found) > 1 else "is no key"
        so_far = "" if times == 1 else f" ({times:,} changes by now)"
        self._log.warning(
            f"{self._name}: {source.resource} {notification.key} is not mapped by {source.way}: "
            f"{texts}{more} {are} of the reconciled kind{so_far}; a key is namespace/name, or a name",
            handler=self._name,
            key=str(notification.key),
            generation=generation,
            times=times,
        )


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
        self.previous = PreviousStates()
        self.leftovers: LeftoverCache | None = None  # objects that have left the scope with the finalizer
        wake = lambda: self.wake()  # noqa: E731, PLW0108 - the base class sets it later
        self.unseen = UnseenWrites(
            binding.plan.name,
            clock=clock,
            report=self._report_lag,
            wake=wake,
            is_undecided=self._is_undecided,
        )
        self._keys = ReconcileQueue[str](clock=clock, epochs=epochs, gate=self.unseen)
        self._log = log
        # Keys of the first sync that are not reconciled yet; None when the reconciler has synced.
        self._initial: set[str] | None = set()
        self._sources: Mapping[ManagedInformer, Sequence[KeySource]] = {}
        # Changes whose keys are not known, as a filter or a mapping has failed on them.
        self._unmapped = WaitingChanges(self._judge_again, self._give_up, loop=loop, clock=clock)
        # By resource and mapping: a watch keeps its figures over reloads.
        self._led: dict[tuple[str, str], WatchStatistics] = {}
        self._own_keys = 0  # that changes of the own resource have enqueued
        self._skips_initial = False
        # With a sharding: the uids of objects that are gone, by keys that wait for the call that says so.
        self._gone: dict[str, str] = {}
        super().__init__(
            binding,
            self._keys,
            DeadLetters(_newer, _weight),
            clock=clock,
            log=log,
            loop=loop,
            shares_epochs=epochs is not None,
        )

    @property
    def binding(self) -> ReconcileBinding:
        """The newest binding."""
        return _of_reconciler(self._bindings[self.queue.epoch])

    def apply_policy(self, binding: HandlerBinding) -> None:
        """Take the sources and limits of a binding."""
        self._own, *_ = sources = _of_reconciler(binding).sources
        self._sources = {
            managed: [source for source in sources if managed in source.informers]
            for managed in binding.informers
        }
        self._unmapped.use(self._sources)
        self._skips_initial = binding.policy.skips_initial
        if not binding.plan.keep_previous:
            self.previous.clear()
        self._keys.max_running = binding.policy.max_running
        self.let_finalizer_go("")
        self._keys.debounce = binding.policy.debounce
        self.wake()  # without a debounce, no key rests any longer

    def add_from(self, managed: ManagedInformer, notifications: Sequence[Notification]) -> None:
        """Queue the keys to which changes of an informer lead. Neither waits nor raises."""
        finalizer = self.binding.finalizer if managed in self._own.informers else None
        for notification in notifications:
            self.finalizers.note_release(notification)
            if notification.type is ChangeType.DELETED and ChangeType.DELETED not in self._own.types:
                self._forget_previous(managed, notification)
            skipped = notification.initial and self._skips_initial
            left = finalizer is not None and self._may_have_left(finalizer, notification)
            failures: dict[KeySource, Sequence[DeclctlError]] = {}
            queued = False
            for source in () if skipped else self._sources.get(managed, ()):
                if source is self._own and left:
                    continue
                mapped = self._add(source, notification, _version(notification))
                queued = queued or bool(mapped.keys and source is self._own)
                if mapped.failures:
                    failures[source] = mapped.failures
            if finalizer is not None and not (queued or left):
                self._add_deleted(finalizer, managed, notification)
            if not skipped:
                self._let_wait(managed, notification, failures)
        self.wake()

    def _forget_previous(self, managed: ManagedInformer, notification: Notification) -> None:
        """Drop the state of an object that is gone, and of which no call says so."""
        if managed in self._own.informers:
            self.previous.keep(notification.key, None)

    def _reasons(self, cause: Cause, version: Version | None = None, event: str | None = None) -> Reasons:
        """A cause with the version of the object whose change it is, and with the id of this change."""
        changed_at = self._clock.monotonic() if cause.reason in _LIVE else None
        return Reasons({cause: None}, version and (version,), changed_at, (event,) if event else ())

    def let_finalizer_go(self, finalizer: str) -> None:
        """Do not add this finalizer again to objects that are released from it; an empty one ends that.

        If the handler still has it then, all keys are due: their objects may have been released.
        """
        before = self.finalizers.let_go(finalizer)
        if before and not finalizer and self.binding.plan.finalizer == before:
            resource = self.binding.plan.resource
            for managed in self._own.informers:
                for key in tuple(managed.informer.indexer.known()):
                    cause = Cause(str(_RESYNC), resource, key, str(_REPLAY))
                    self._keys.add(key, Reasons({cause: None}), Priority.BACKGROUND)
            self.wake()

    def add_again(self, key: str, reasons: Reasons) -> None:
        """Queue a key for reasons that it was queued for before."""
        self._keys.add(key, reasons)
        self.wake()

    def add_leftover(self, notification: Notification) -> None:
        """Queue the key of an object outside of the handler's scope that is being deleted. Raises nothing."""
        cause = Cause(str(notification.type), self.binding.plan.resource, notification.key, _OUT_OF_SCOPE)
        self._keys.add(notification.key, self._reasons(cause))
        self.wake()

    def object_gone(self, notification: Notification) -> None:
        """Queue the key of an object that might have left the scope, and is gone. Raises nothing."""
        self._add(self._own, notification, None)
        self.wake()

    def _is_undecided(self, key: str) -> bool:
        """Whether no cache has such an object, and it is not known yet if it is gone or has left the scope.

        Its key is queued again if it is gone, or has left and is being deleted. From any thread.
        """
        left = self.leftovers
        if left is None or not left.is_undecided(key) or left.get(key) is not None:
            return False
        with suppress(NotSynced):
            return self.binding.read(key) is None
        return False

    def _may_have_left(self, finalizer: HandlerFinalizer, notification: Notification) -> bool:
        """Whether a Deleted may mean an object that lives on, outside of the scope; then it is looked for."""
        if notification.type is not ChangeType.DELETED:
            return False
        left, key = False, notification.key
        with suppress(DeclctlError):  # the object can't be decoded
            is_released = self.finalizers.has_removed(key, notification.record.uid)
            left = finalizer.has_left(notification) and not is_released
        if self.leftovers is not None and left:
            self.leftovers.object_left(notification)
            return True
        return False

    def _add_deleted(
        self, finalizer: HandlerFinalizer, managed: ManagedInformer, notification: Notification
    ) -> None:
        """Queue the key of an object to finalize, which filter, types or `initialSync` must not keep away."""
        try:
            if notification.type is not ChangeType.DELETED and finalizer.must_finalize(notification):
                reasons = self._reasons(self._own.cause(notification), _version(notification))
                self._keys.add(notification.key, reasons, _priority(notification))
        except DeclctlError as fault:  # the object can't be decoded: its next change is looked at
            failed = WaitingChange(managed, notification.key, (notification,), (self._own,))
            self._reconciliations.mapping_failed(failed, fault, None)

    def _add(self, source: KeySource, notification: Notification, version: Version | None) -> Mapped:
        """Queue the keys to which a change leads, and return them with what has failed."""
        report = partial(self.invocations.report_expression, self.binding, notification.key)
        mapped = source.keys(notification, report)
        if mapped.keys:
            event = None if tracing() is None else event_id_of(notification.record)
            reasons = self._reasons(source.cause(notification), version, event)
            is_own = source is self._own
            if is_own and self.shards is not None and notification.type is ChangeType.DELETED:
                self._gone.update(dict.fromkeys(mapped.keys, notification.record.uid))
            for key in mapped.keys:
                # Each process hears what is not sharded, and what it leads to is one's alone.
                if not (is_own or self.is_open(key)):
                    continue
                if notification.initial and self._initial is not None:
                    self._initial.add(key)
                self._keys.add(key, reasons, _priority(notification))
        if source is self._own:
            self._own_keys += len(mapped.keys)
        elif notification.type in source.types and not mapped.failures:
            place = source.resource, source.way
            counts = self._led.get(place) or self._led.setdefault(place, WatchStatistics(*place))
            counts.led += bool(mapped.keys)
            counts.led_nowhere += not mapped.keys
            counts.keys += len(mapped.keys)
            counts.no_keys += len(mapped.no_keys)
        if mapped.no_keys:
            self._reconciliations.found_no_keys(source, notification, mapped)
        return mapped

    def _let_wait(
        self,
        managed: ManagedInformer,
        notification: Notification,
        failures: Mapping[KeySource, Sequence[DeclctlError]],
    ) -> None:
        """Let a change wait on which sources have failed, or on whose object they have failed before."""
        waiting = self._unmapped.get(managed, notification.key)
        if waiting is not None:
            # It is judged as a whole: the states in between lead nowhere by themselves.
            waiting.merge(notification)
            waiting.sources = [s for s in self._sources[managed] if s in waiting.sources or s in failures]
            self._unmapped.wait(waiting, 0.0)
        elif failures:
            self._retry_or_end(WaitingChange(managed, notification.key, (notification,), ()), failures)

    def _judge_again(self, waiting: WaitingChange) -> None:
        """Queue the keys to which a waiting change leads, or let it wait longer."""
        failures: dict[KeySource, Sequence[DeclctlError]] = {}
        for source in waiting.sources:
            found = [self._add(source, change, None).failures for change in waiting.changes]
            if any(found):
                failures[source] = tuple(chain.from_iterable(found))
        self._retry_or_end(waiting, failures)
        self.wake()

    def _retry_or_end(
        self, waiting: WaitingChange, failures: Mapping[KeySource, Sequence[DeclctlError]]
    ) -> None:
        """Let a change wait whose sources have failed, as often as the plan allows."""
        waiting.sources, binding, delay = tuple(failures), self.binding, None
        found = tuple(chain.from_iterable(failures.values()))
        fault = next((each for each in found if not isinstance(each, NotSynced)), None)
        if fault is not None:
            waiting.attempts += 1
            most = binding.plan.most_attempts
            if most is None or waiting.attempts < most:
                delay = self._reconciliations.delay(binding, waiting.attempts)
            self._reconciliations.mapping_failed(waiting, fault, delay)
        elif found:
            # It is no attempt. The sync of a cache ends this wait before: then the kind is known.
            waiting.fault, delay = "", LONGEST_WAIT_FOR_SYNC
            self._reconciliations.mapping_waits(binding, waiting.key, found[0])
        if delay is None:
            self._unmapped.end(waiting)
        else:
            self._unmapped.wait(waiting, delay)

    def _give_up(self, waiting: WaitingChange) -> None:
        """Drop a change, as too many objects that are gone wait."""
        fault = HandlerFailed(f"more than {MOST_GONE:,} deleted objects wait for a filter or a mapping")
        self._reconciliations.mapping_failed(waiting, fault, None)
        self._unmapped.end(waiting)

    @property
    def unmapped_changes(self) -> int:
        """The number of changes that lead to no key yet."""
        return len(self._unmapped)

    @property
    def unmapped(self) -> str:
        """The changes whose keys are not known, in words; empty if there are none."""
        faults = self._unmapped.faults
        return (
            f"{self.name}: {len(faults):,} changes are not mapped to keys yet: {faults[-1]}" if faults else ""
        )

    @property
    def is_idle(self) -> bool:
        """Whether no key waits, runs or backs off, and no change waits for its keys.

        A key that only waits for its Requeue does not count.
        """
        return super().is_idle and not len(self._unmapped)

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
        return [managed for managed in self.registrations if managed in self._own.informers]

    def replay(self, managed: ManagedInformer, records: Sequence[Record], now: float) -> None:
        """Queue the keys of the reconciler's own objects, for new code."""
        for record in records:
            notification = Notification(_RESYNC, record, reason=_REPLAY, received_at=now)
            failures = self._add(self._own, notification, None).failures
            self._let_wait(managed, notification, {self._own: failures} if failures else {})
        self.replayed += len(records)
        self.wake()

    @property
    def is_settled(self) -> bool:
        """Whether all that it has heard has led to keys, and it has heard all of the first sync."""
        is_undecided = self.leftovers is not None and self.leftovers.has_undecided
        return super().is_settled and not len(self._unmapped) and not is_undecided

    def _letter_of(self, content: Any) -> Sequence[Notification]:  # noqa: ARG002 - the key is enough
        return ()

    def _put_letter(self, letter: DeadLetter, changes: Sequence[Notification]) -> None:  # noqa: ARG002
        self.dead_letters.put(letter, ())

    def _take_pending(self, now: float, *, whole: bool) -> Mapping[str, PendingChange | None]:
        """Each key with its causes, and the time for which it waits."""
        found, began = dict[str, PendingChange | None](), self._clock.monotonic()
        for key, items in self._keys.take_changes(whole=whole).items():
            causes = tuple(dict.fromkeys(cause for each in items for cause in each.value.causes))
            # What has no time of its own is due.
            due = min([began if each.due is None else each.due for each in items], default=None)
            found[key] = (
                None
                if due is None
                else PendingChange(
                    attempts=max(each.attempts for each in items),
                    due=now + due - began if due > began else None,
                    causes=causes,
                )
            )
        return found

    def requeue(self, key: str) -> RequeueResult:
        """Let a key be reconciled that was given up, with its newest state."""
        cause = Cause("Requeue", self.binding.plan.resource, key, "DeadLetter")

        def add(_: tuple[Cause, ...]) -> bool:
            self._keys.add(key, Reasons({cause: None}), rests=False)
            return True

        result = self.dead_letters.requeue(key, add)
        self.wake()
        return result

    def written(self, written: Written, origin: WriteOrigin, caches: Iterable[ManagedInformer]) -> None:
        """Hold keys back until the caches have a write of this handler."""
        self.unseen.note(written, origin, caches, own_kind=self.binding.object_kind)

    def guard_by(self, loops: WriteLoops) -> None:
        """Ask the loops of the process about own writes of the handler."""
        self.unseen.loops = loops

    def end_loop_delays(self) -> None:
        """Call keys at once that wait as their writes loop."""
        self.unseen.end_delays()
        self.wake()

    def _report_lag(self, message: str) -> None:
        self._log.warning(f"{self.name}: {message}", handler=self.name, generation=self.binding.generation)

    def statistics(self) -> HandlerStatistics:
        """The figures of this moment."""
        found = super().statistics()
        watches = dict.fromkeys((each.resource, str(each.map_to)) for each in self.binding.plan.watches)
        return replace(
            found,
            queued=found.queued + len(self._unmapped),
            unmapped=len(self._unmapped),
            no_keys=self._reconciliations.no_keys,
            own_keys=self._own_keys,
            watches=tuple(copy(self._led.get(each) or WatchStatistics(*each)) for each in watches),
            cache_waits=self.unseen.held_back,
            cache_lags=self.unseen.lagging,
            workqueue=self._keys.workqueue_statistics(),
            own_writes=self.unseen.own_writes,
            previous_bytes=self.previous.bytes,
            finalizer=self.binding.plan.finalizer or None,
            finalized=self.finalizers.finalized,
            leftovers=0 if self.leftovers is None else self.leftovers.count,
        )

    def continues_as(self, binding: HandlerBinding) -> bool:
        """Whether the binding has the same mode, and its own resource has the same kind."""
        is_alike = binding.is_sharded == self.binding.is_sharded
        return binding.reconciles and is_alike and binding.object_kind == self.binding.object_kind

    def _uid_of(self, key: str) -> str | None:
        left = None if self.leftovers is None else self.leftovers.get(key)
        return super()._uid_of(key) or (self._gone.get(key) if left is None else left.uid)

    def drop_shard(self, shard: int) -> int:
        """As of any handler; what waits for its keys is dropped, too."""
        for key in self.previous.all_keys():
            if self.shard_of(key) == shard:
                self.previous.keep(key, None)
        dropped = self._unmapped.drop(lambda change: self._is_of(change, shard)) + super().drop_shard(shard)
        if self.leftovers is not None:
            self.leftovers.drop(lambda key, uid: self.shard_of(key, uid) == shard)
        for key, uid in tuple(self._gone.items()):
            if self.shard_of(key, uid) == shard:
                del self._gone[key]
        return dropped

    def _is_of(self, change: WaitingChange, shard: int) -> bool:
        """Whether the object of a change, which may be of a watched kind, is of a shard."""
        scope = change.managed.informer.scope
        return not self.binding.is_sharded or (
            scope is not None and scope.shard_of(change.changes[-1].record) == shard
        )

    def retime(self, period: float) -> None:
        """Reconcile all keys each `period` seconds from now on; never for 0."""
        for managed, registration in self.registrations.items():
            if managed in self._own.informers:
                registration.retime(period)

    def _make_invocations(self, clock: Clock, log: Log) -> Invocations[Reasons]:
        self._reconciliations = Reconciliations(self, self._keys, loop=self._loop, clock=clock, log=log)
        return self._reconciliations

    def _listen(self, managed: ManagedInformer, binding: HandlerBinding, *, initial: bool) -> Registration:
        period = binding.plan.resync_period if managed in binding.own_informers else 0.0
        feed = _Feed(self, managed)
        return managed.informer.add_listener(feed, resync_period=period, initial=initial, deferred=True)

    def _go_on(self, managed: ManagedInformer, binding: HandlerBinding, kept: KeptObjects) -> Registration:
        """Queue the keys, each at its time and with the attempts that have failed."""
        now, period = self._clock.now().timestamp(), 0.0
        if managed in binding.own_informers:
            period = binding.plan.resync_period
            for key, each in kept.known[self.name].items():
                reasons = Reasons(dict.fromkeys(each.causes))
                seconds = 0.0 if each.due is None else max(0.0, each.due - now)
                self._keys.go_on(key, reasons, attempts=each.attempts, seconds=seconds)
        return managed.informer.add_listener(
            _Feed(self, managed), resync_period=period, knows=lambda: kept.records
        )

    def ended(self, invocation: Invocation[Reasons]) -> None:
        """A key was reconciled or given up; its worker has it still. In the thread of the worker."""
        assert isinstance(invocation, Reconciliation)
        item, again = invocation.item, None if invocation.failures else invocation.requeue
        if again is not None:
            cause = Cause("Requeue", invocation.binding.plan.resource, item.key, "Requested")
            self._keys.requeue(item, again.after, cause)
            self.wake()  # it may be due before all other keys: the workers look when
        elif invocation.adds and not invocation.failures:
            # It is held back until the caches have the write, as after any write of the handler.
            self._keys.add(item.key, Reasons(item.value.causes), Priority(item.priority), rests=False)
            return
        if self._initial is not None:
            self._initial.discard(item.key)
        if invocation.request.obj is None:
            self.forget_memo(item.key)
            self._gone.pop(item.key, None)

    def _look_synced(self) -> None:
        if self._initial_complete and not self._synced:
            self._synced = not self._initial or self._keys.idle
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


def _version(notification: Notification) -> Version | None:
    """Uid and version of a Modified of the watch, which is one write; None for any other change."""
    if notification.type is not ChangeType.MODIFIED or notification.reason is not ChangeReason.WATCH:
        return None
    return notification.record.uid, notification.record.resource_version


def _of_reconciler(binding: CallBinding) -> ReconcileBinding:
    assert isinstance(binding, ReconcileBinding)  # `continues_as` refuses all others
    return binding
