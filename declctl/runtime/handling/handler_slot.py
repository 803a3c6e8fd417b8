"""A handler's slot: the queue of the handler, its bindings, and the workers that call its hooks.

A slot belongs to the name of a handler and outlives generations: a reload gives it a new binding and does not
touch the queue. Its workers take the items of the queue and call hooks with them (`Invocations`), in threads
or on a loop for handlers.

`HandlerSlot` is what both modes share. An `EventSlot` queues changes, in the order of their arrival
(`ChangeQueue`). The slot of `mode: Reconcile` queues keys; it is in `reconcile_slot`.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from declctl.informer.processor import Registration
from declctl.kit import Clock, Latch
from declctl.kit.change_queue import ChangeQueue
from declctl.kit.key_queue import NO_EPOCH, EpochCounter, Item, KeyQueue, QueueItem
from declctl.kit.pending import ItemState
from declctl.kit.worker_budget import WorkerBudget
from declctl.kit.worker_pool import AsyncWorkerPool, ThreadWorkerPool, WorkerPool
from declctl.objects import ChangeReason, ChangeType, Notification, Record, merge
from declctl.objects.resource import name_of
from declctl.runtime.caching.held_shards import HeldShards
from declctl.runtime.caching.kept_objects import KeptLetter, KeptObjects, KeyState, PendingChange
from declctl.runtime.caching.managed_informer import ManagedInformer
from declctl.runtime.handling.binding import CallBinding, HandlerStatistics
from declctl.runtime.handling.context import Memo
from declctl.runtime.handling.dead_letters import DeadLetter, DeadLetters, RequeueResult
from declctl.runtime.handling.failures import ClientRefusal
from declctl.runtime.handling.handler_counts import HandlerProblem
from declctl.runtime.handling.invocation import Invocation, Retry, is_suspended, is_unsynced
from declctl.runtime.handling.invocations import (
    EventInvocation,
    EventInvocations,
    GivenUp,
    Invocations,
)
from declctl.runtime.handling.queue_listing import QueueListing, listed_items
from declctl.runtime.handling.tap import HandlerTap
from declctl.runtime.handling.write_loops import WriteLoop, WriteLoops
from declctl.runtime.log import Log
from declctl.writes import WriteOrigin, Written

T = TypeVar("T")

# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every change.
_RESYNC, _DELETED, _REPLAY = ChangeType.RESYNC, ChangeType.DELETED, ChangeReason.REPLAY


@dataclass(frozen=True, slots=True)
class HandlerBinding(CallBinding):
    """The binding of a handler's slot to one generation."""

    informers: Sequence[ManagedInformer] = ()  # to which the handler listens
    plural: Callable[[], str] = field(default=str, compare=False)  # of the handler's objects; "" if not known

    @property
    def own_informers(self) -> Sequence[ManagedInformer]:
        """The caches of the handler's objects."""
        return self.informers

    @property
    def object_kind(self) -> tuple[str, str] | None:
        """The group and the kind of the handler's objects."""
        own = self.own_informers
        return own[0].identity.group_kind if own else None

    def lacks(self, key: str, uid: str, refusal: ClientRefusal) -> bool:
        """Whether a refusal is about the object of a call, which the caches do not have any more.

        With a 409, another object has to have its key: without one, the object may just be out of scope.
        """
        group, kind = self.object_kind or ("", "")
        details = refusal.details
        if (details.name, details.group) != (name_of(key), group) or not uid:
            return False
        if details.kind not in (kind, self.plural()):
            return False
        found = [managed.informer.indexer.get_by_key(key) for managed in self.own_informers]
        uids = [record.uid for record in found if record is not None]
        return uid not in uids and (bool(uids) or refusal.reason == "NotFound")

    @property
    def is_sharded(self) -> bool:
        """Whether the processes of the controller share the handler's objects."""
        own = self.own_informers
        return bool(own) and own[0].identity.watch.sharded

    @property
    def reconciles(self) -> bool:
        """Whether it belongs to `mode: Reconcile`."""
        return False

    def make_slot(
        self, *, clock: Clock, log: Log, loop: asyncio.AbstractEventLoop, epochs: EpochCounter | None
    ) -> "HandlerSlot[Any]":
        """A slot that begins with this binding; the parameters are those of `EventSlot`."""
        return EventSlot(self, clock=clock, log=log, loop=loop, epochs=epochs)


class HandlerSlot(ABC, Generic[T]):
    """The slot of one handler name: its queue, its bindings, its workers, and its registrations at informers.

    `work`, `recover`, `wake`, `memo` and `statistics` may be called by any thread, `work_async` on the loop
    of the binding. All else is used on the machinery loop. Slots that share an epoch counter begin a new
    epoch together, and the first binding of a slot is then for the next one: `shares_epochs`.
    """

    def __init__(
        self,
        binding: HandlerBinding,
        queue: KeyQueue[str, T],
        dead_letters: DeadLetters[Any],
        *,
        clock: Clock,
        log: Log,
        loop: asyncio.AbstractEventLoop,
        shares_epochs: bool,
    ) -> None:
        self.name = binding.plan.name
        self.registrations: dict[ManagedInformer, Registration] = {}  # by informer
        self._heard_last: Sequence[ManagedInformer] = ()  # before the end
        self.replayed = 0  # objects that were delivered again because of new code
        self.wake: Callable[[], None] = _no_workers  # called when the queue may have items for the workers
        self.replace_worker: Callable[[], None] = _no_workers  # starts another one in the place of a zombie's
        self.shards: HeldShards | None = None  # of the process; None without a sharding
        self.tap = HandlerTap()  # receives each call; that of the process, if the slot belongs to one
        self.queue = queue
        self.dead_letters = dead_letters  # what was given up; they go with the slot
        self._loop = loop  # the machinery's
        self._clock = clock
        self._lock = threading.Lock()  # guards `_memos`
        self._memos: dict[str, tuple[str | None, Memo]] = {}  # by key, with the uid of the object
        self._initial_complete = False  # everything of the first sync was added
        self._synced = False  # all of it was handled; never false again
        self._latches: dict[int | None, Latch] = {}  # those of `end_of`, by epoch
        self._shard_latches: dict[int, Latch] = {}  # those of `end_of_shard`
        self.invocations = self._make_invocations(clock, log)
        self.work = self.invocations.deliver
        self.work_async = self.invocations.deliver_async
        self.recover = self.invocations.recover
        # A slot that shares its epochs begins with the next one, at the commit.
        first = queue.epoch + 1 if shares_epochs else queue.epoch
        # By epoch. A worker may need the binding of an epoch as soon as the epoch begins.
        self._bindings = {first: binding}
        self.workers = self.make_workers(binding)  # the owner of the slot starts them
        self.apply_policy(binding)

    # The differences between the modes

    @abstractmethod
    def apply_policy(self, binding: HandlerBinding) -> None:
        """Queue changes by the policy of a binding from now on."""

    @property
    @abstractmethod
    def replayed_caches(self) -> Sequence[ManagedInformer]:
        """The informers whose objects a replay brings again."""

    @abstractmethod
    def replay(self, managed: ManagedInformer, records: Sequence[Record], now: float) -> None:
        """Queue objects of one of `replayed_caches` again, for new code. `now` is a Unix time stamp."""

    @abstractmethod
    def _go_on(self, managed: ManagedInformer, binding: HandlerBinding, kept: KeptObjects) -> Registration:
        """Register at an informer, as one that knows the objects of the process before."""

    @abstractmethod
    def _take_pending(self, now: float, *, whole: bool) -> Mapping[str, PendingChange | None]:
        """What there is still to do, by key: what has come and, as None, gone since the last call.

        With `whole`, all. `now` is a Unix time stamp.
        """

    @abstractmethod
    def _letter_of(self, content: Any) -> Sequence[Notification]:
        """What a dead letter has given up."""

    @abstractmethod
    def _put_letter(self, letter: DeadLetter, changes: Sequence[Notification]) -> None:
        """Have a dead letter of the process before."""

    @abstractmethod
    def requeue(self, key: str) -> RequeueResult:
        """Queue again what the dead letter of a key has, and forget the letter."""

    @abstractmethod
    def ended(self, invocation: Invocation[T]) -> None:
        """An item was dealt with; its key is held still. In the thread of a worker."""

    @abstractmethod
    def continues_as(self, binding: HandlerBinding) -> bool:
        """Whether the slot can go on with a binding: it has the same mode, and objects of the same kinds."""

    @abstractmethod
    def _make_invocations(self, clock: Clock, log: Log) -> Invocations[T]:
        """The invocations of the slot; called once."""

    @abstractmethod
    def _listen(self, managed: ManagedInformer, binding: HandlerBinding, *, initial: bool) -> Registration:
        """Register at an informer."""

    @abstractmethod
    def _look_synced(self) -> None:
        """Set `_synced` if everything of the first sync was handled."""

    def written(self, written: Written, origin: WriteOrigin, caches: Iterable[ManagedInformer]) -> None:
        """Note a write of this handler that the server has stored; `caches` are all that there are.

        No effect for a handler of changes: it receives each change, and the next one does not replace it.
        """

    def guard_by(self, loops: WriteLoops) -> None:
        """Ask the loops of the process about own writes. No effect for a handler of changes."""

    def end_loop_delays(self) -> None:
        """Call keys at once that wait as their writes loop. No effect for a handler of changes."""

    # Bindings and epochs

    @property
    def binding(self) -> HandlerBinding:
        """The newest binding."""
        return self._bindings[self.queue.epoch]

    def share_workers(self, budget: WorkerBudget | None) -> None:
        """Share the permits of a budget with other slots; None: the workers are those of this slot alone."""
        if budget is not self.queue.budget:
            self.queue.share_workers(budget, self._take_turn)
            self.wake()  # the workers may wait for a turn in the budget before

    def _take_turn(self) -> None:
        self.wake()  # of the present workers, which a reload may exchange

    def expect(self, binding: HandlerBinding | None) -> None:
        """Set the binding of the next epoch; None removes it.

        It is set before the epoch begins: a worker may take a retry of the new epoch at once.
        """
        if binding is None:
            self._bindings.pop(self.queue.epoch + 1, None)
        else:
            self._bindings[self.queue.epoch + 1] = binding

    def hand_over(self, epoch: int) -> None:
        """Give the waiting changes of an ended epoch to the newest binding; running calls go on."""
        self.queue.hand_over(epoch)
        self.open_latches()  # after that, only the running calls of the epoch are outstanding
        self.wake()

    def abandon(self, epoch: int) -> int:
        """Hand an ended epoch over, and stop waiting for its running calls; returns their number.

        An asynchronous call is cancelled; any other is a zombie until it returns.
        """
        self.hand_over(epoch)
        return self.invocations.under_way.abandon(self._bindings.get(epoch))

    def cancel(self) -> int:
        """Take nothing any more, and cancel the asynchronous calls that run; returns how many calls run."""
        self.detach()
        self.workers.dismiss()
        self.invocations.close(then="and this process ends: the next leader begins with all objects")
        at = "the end of the leadership"
        return sum(
            self.invocations.under_way.abandon(binding, at=at) for binding in tuple(self._bindings.values())
        )

    def stop_isolated_calls(self, at: str) -> None:
        """End the calls in other processes that still run at this moment."""
        for binding in tuple(self._bindings.values()):
            if binding.isolation is not None:
                binding.isolation.stop_calls(f"it outlived {at}")

    def waiting(self, epoch: int) -> int:
        """The number of changes of an ended epoch that no call has begun for; 0 after `hand_over`.

        They wait for a worker, or for a change of the same object.
        """
        return max(
            0, self.queue.outstanding(epoch) - len(self.invocations.under_way.of(self._bindings.get(epoch)))
        )

    def outstanding(self, epoch: int) -> int:
        """The number of changes of an epoch that are neither handled nor handed over."""
        return self.queue.outstanding(epoch)

    def end_of(self, epoch: int | None) -> Latch:
        """A latch that opens when no change of an ended epoch is outstanding; for None, when no call runs."""
        latch = self._latches.get(epoch)
        if latch is None:
            latch = self._latches[epoch] = Latch(f"epoch {epoch} of {self.name}")
        self.open_latches()
        return latch

    def forget(self, epoch: int) -> None:
        """Drop the binding of an ended epoch, so that its generation can be collected."""
        if epoch != self.queue.epoch and not self.outstanding(epoch):
            self._bindings.pop(epoch, None)

    def end_debounce(self) -> None:
        """Let the changes that rest be handled now, in the newest epoch: the handler was removed.

        No effect for a reconciler, whose waiting keys are dropped then.
        """

    def keep_resting(self) -> tuple[bool, int]:
        """Let the changes that rest be handled now, and drop all other waiting ones: the process ends.

        Returns whether a change has rested, and the number of dropped ones. No effect for a reconciler: the
        next process reconciles every key.
        """
        return False, 0

    def close(self) -> int:
        """Drop all waiting and backing off changes; returns their number. Later failures are not retried.

        The workers have to be dismissed before: no worker takes later changes.
        """
        self.invocations.close()
        dropped = self.queue.clear()
        self.open_latches()
        return dropped

    # Shards. With a sharding alone, and from any thread

    def shard_of(self, key: str, uid: str = "") -> int | None:
        """The shard of an object of the handler; 0 if they are not sharded. None if it is not known."""
        assert self.shards is not None
        return self.shards.shard_of(key, lambda: uid or self._uid_of(key)) if self.binding.is_sharded else 0

    def _uid_of(self, key: str) -> str | None:
        """The uid of an object as the caches have it; None if they have none."""
        found = (managed.informer.indexer.get_by_key(key) for managed in self.binding.own_informers)
        return next((record.uid for record in found if record is not None), None)

    def _shard_of_item(self, item: QueueItem[T]) -> int | None:
        return self.shard_of(item.key)

    def is_handled_here(self, item: QueueItem[T]) -> bool:
        """Whether this process handles the shard of an item; True without a sharding."""
        return self.shards is None or self._shard_of_item(item) in self.shards.open

    def is_open(self, key: str, uid: str = "") -> bool:
        """Whether this process handles the shard of an object; True without a sharding."""
        return self.shards is None or self.shard_of(key, uid) in self.shards.open

    def drop_shard(self, shard: int) -> int:
        """Drop what waits of a shard that was closed, and what is remembered of it; returns how many waited.

        The caches have its objects still. On the machinery loop.
        """
        keys: list[str] = []

        def is_chosen(item: QueueItem[T]) -> bool:
            if self._shard_of_item(item) != shard:
                return False
            keys.append(item.key)
            return True

        dropped = self.queue.drop_chosen(is_chosen)
        for key in keys:
            self.invocations.figures.fails_no_longer(key)
        for key in [letter.key for letter in self.dead_letters.all()]:
            if self.shard_of(key) == shard:
                self.dead_letters.forget(key)
        with self._lock:
            for key, (uid, _) in tuple(self._memos.items()):
                if self.shard_of(key, uid or "") == shard:
                    del self._memos[key]
        return dropped

    def end_of_shard(self, shard: int) -> Latch:
        """A latch that opens when no call of a closed shard is waited for. On the machinery loop."""
        latch = self._shard_latches[shard] = Latch(f"shard {shard} of {self.name}")
        self.open_latches()
        return latch

    def cut_off(self, shard: int, *, at: str) -> list[str]:
        """Wait for no call of a closed shard any longer: each is cancelled or ended, or is a zombie.

        Returns their keys. None of them may write any more (`may_write`), also if the shard comes back.
        """
        return self.invocations.under_way.cut_off(lambda item: self._shard_of_item(item) == shard, at=at)

    # Listening

    def attach(
        self, informers: Iterable[ManagedInformer], binding: HandlerBinding, *, initial: bool = True
    ) -> None:
        """Listen to informers. With `initial`, an Added for each cached object comes first.

        If the handler knows the objects that the process before has kept, what differs comes in their place,
        with what that process had still to deal with.
        """
        for managed in informers:
            kept = managed.kept if initial else None
            if kept is not None and managed in binding.own_informers:
                self._recall(kept.states.get(self.name, {}))
            if kept is not None and self.name in kept.known:
                self.registrations[managed] = self._go_on(managed, binding, kept)
            else:
                self.registrations[managed] = self._listen(managed, binding, initial=initial)

    def _recall(self, states: Mapping[str, KeyState]) -> None:
        """Have the memos and the dead letters of the process before."""
        for key, each in states.items():
            if each.memo is not None:
                with self._lock:
                    self._memos[key] = (each.uid, Memo(each.memo))
            if each.letter is not None:
                letter = msgspec.json.decode(each.letter.text, type=DeadLetter)
                self._put_letter(letter, each.letter.changes)

    def take_states(self, now: float, *, whole: bool) -> Mapping[str, KeyState]:
        """What is kept of each key of which something has come or gone since the last call; `whole`: of all.

        It says what there is still to do, if the slot `is_settled`. `now` is a Unix time stamp.
        """
        pending = self._take_pending(now, whole=whole)
        keys = pending.keys()
        if whole:
            with self._lock:
                keys = {*keys, *self._memos}
            keys = {*keys, *self.dead_letters.keys()}
        return {key: self._state_of(key, pending.get(key)) for key in keys}

    def _state_of(self, key: str, pending: PendingChange | None) -> KeyState:
        uid, memo = self._memos.get(key, (None, None))
        entry = self.dead_letters.get(key)
        if entry is None:
            return KeyState(pending, memo or None, uid)
        letter, content = entry
        text = msgspec.json.encode(letter)
        return KeyState(pending, memo or None, uid, KeptLetter(text, self._letter_of(content)))

    def detach(self, informers: Iterable[ManagedInformer] | None = None) -> None:
        """Stop listening to these informers; for None, to all."""
        if informers is None:
            self._heard_last = tuple(self.registrations)
        for managed in tuple(self.registrations if informers is None else informers):
            self.registrations.pop(managed).remove()

    @property
    def heard_caches(self) -> Sequence[ManagedInformer]:
        """The caches to which it listens, or has listened until the process ended."""
        return tuple(self.registrations) or self._heard_last

    def retime(self, period: float) -> None:
        """Receive the cached objects as Resync each `period` seconds from now on; never for 0."""
        for registration in self.registrations.values():
            registration.retime(period)

    def let_finalizer_go(self, finalizer: str) -> None:
        """Let objects be released from a finalizer; see `ReconcileSlot`. No effect in other modes."""

    def cache_synced(self) -> None:
        """Retry at once what backs off because of a read of an unsynced cache: a cache has synced.

        A running call does not notice that: if it fails, it backs off.
        """
        if self.queue.hurry(is_unsynced):
            self.wake()

    def end_suspension(self) -> None:
        """Call at once for what waits for a suspended plugin: another config of it may work."""
        if self.queue.hurry(is_suspended):
            self.wake()

    @property
    def has_received_all(self) -> bool:
        """Whether the slot has received the first objects of all its caches."""
        return all(registration.received_initial.is_open for registration in self.registrations.values())

    def notice_first_sync(self) -> None:
        """Call `initial_complete` when the slot has received the first objects of all its caches."""
        for registration in self.registrations.values():
            registration.received_initial.on_open(self._look_received)
        self._look_received()  # the slot may have no cache

    def _look_received(self) -> None:
        if self.has_received_all:
            self.initial_complete()

    def initial_complete(self) -> None:
        """Record that all changes of the first sync were added. May be called again."""
        self._initial_complete = True
        self._look_synced()

    @property
    def is_settled(self) -> bool:
        """Whether all that it has heard is in its queue, by keys, and it has heard all of the first sync."""
        return self._initial_complete

    @property
    def has_synced(self) -> bool:
        """Whether the handler has handled every object of the first sync; once true, it stays true."""
        self._look_synced()
        return self._synced

    # Workers

    def make_workers(self, binding: HandlerBinding) -> WorkerPool[T]:
        """Make the workers of a binding: tasks if all its hooks are asynchronous, else threads."""
        size = binding.plan.queue.concurrency

        def on_left() -> None:
            self.wake()  # workers of another pool may wait for the end of this one

        if binding.target.all_async:
            name, loop = f"handler {self.name}", binding.loop.loop
            return AsyncWorkerPool(
                self.queue,
                self.work_async,
                recover=self.recover,
                name=name,
                loop=loop,
                size=size,
                on_left=on_left,
            )
        name = f"declctl-handler-{self.name}"
        return ThreadWorkerPool(
            self.queue, self.work, recover=self.recover, name=name, size=size, on_left=on_left
        )

    def has_workers_for(self, binding: HandlerBinding) -> bool:
        """Whether the present workers have the kind, loop and number that a binding requires."""
        loop = self.workers.loop if isinstance(self.workers, AsyncWorkerPool) else None
        required = binding.loop.loop if binding.target.all_async else None
        return loop is required and self.workers.size == binding.plan.queue.concurrency

    def connect(self) -> None:
        """Make `wake` wake the present workers."""
        self.wake, self.replace_worker = self.workers.wake, self.workers.replace_one

    def time_out_blocked(self) -> None:
        """Fail the calls that are past their timeout on a blocked loop, which can't cancel them."""
        self.invocations.under_way.time_out_blocked()

    # Memos and figures

    def problems(self) -> Sequence[HandlerProblem]:
        """Why the handler is unhealthy, in the order of urgency; empty if it is not. From any thread."""
        return [*self.invocations.under_way.problems(), *self.invocations.figures.problems()]

    @property
    def is_suspended(self) -> bool:
        """Whether zombies have all workers, so that the handler is not called. From any thread."""
        return self.invocations.under_way.is_suspended

    def drained(self) -> None:
        """Let calls of older code keep no worker any longer: its drain has ended."""
        self.invocations.under_way.drained()

    @property
    def unmapped(self) -> str:
        """What keeps changes from leading to keys of a reconciler, in words; empty if nothing does."""
        return ""

    @property
    def is_idle(self) -> bool:
        """Whether no change waits, runs or backs off."""
        return self.queue.idle

    def memo(self, key: str, uid: str | None) -> Memo:
        """The memo of an object; `uid` is None if the object is gone."""
        with self._lock:
            known = self._memos.get(key)
            # An object of the same name that was made anew has a memo of its own.
            if known is None or (uid is not None and known[0] != uid):
                known = self._memos[key] = (uid, Memo())
            return known[1]

    def forget_memo(self, key: str) -> None:
        """Drop the memo of an object that is gone."""
        with self._lock:
            self._memos.pop(key, None)

    def statistics(self) -> HandlerStatistics:
        """The figures of this moment."""
        counted, queue = self.invocations.figures.statistics(), self.queue.statistics()
        binding = self.binding
        return HandlerStatistics(
            name=self.name,
            mode=str(binding.plan.mode),
            generation=binding.generation,
            synced=self.has_synced,
            delivered=queue.taken - counted["filtered"],
            merged=queue.merged,
            dropped=queue.dropped,
            queued=queue.waiting + queue.backing_off,
            running=queue.running,
            zombies=self.invocations.under_way.zombies,
            replayed=self.replayed,
            disabled=bool(binding.target.disabled),
            dead_letters=len(self.dead_letters),
            dead_letters_dropped=self.dead_letters.dropped,
            resource=binding.plan.resource,
            oldest_call_seconds=self.invocations.under_way.oldest_seconds(),
            problems=self.problems(),
            isolation=None if binding.isolation is None else binding.isolation.statistics(),
            **counted,
        )

    @property
    def unmapped_changes(self) -> int:
        """The number of changes that lead to no key of a reconciler yet."""
        return 0

    def listing(self, most: int, write_loops: Sequence[WriteLoop] = ()) -> QueueListing:
        """What waits for the handler: the next `most` items, in the order of their turns. From any thread.

        A call that begins meanwhile may be missing. `write_loops` are those of the process.
        """
        figures, items = self.queue.snapshot(most)
        delayed = figures.backing_off + figures.requeued
        return QueueListing(
            handler=self.name,
            mode=str(self.binding.plan.mode),
            waiting=figures.waiting,
            running=figures.running,
            backing_off=delayed,
            unmapped=self.unmapped_changes,
            left_out=max(0, figures.waiting + figures.running + delayed - len(items)),
            items=listed_items(items, self._generation_of, self._clock),
            write_loops=[str(each) for each in write_loops if each.handler == self.name][:most],
        )

    def _generation_of(self, item: Item[Any, Any]) -> int | None:
        if item.epoch == NO_EPOCH:
            return None
        # An epoch that was handed over a moment ago may be forgotten by now.
        return (self._bindings.get(item.epoch) or self.binding).generation

    def under_way(self, binding: HandlerBinding) -> list[tuple[float, bool]]:
        """When each call of a binding under way began, and whether it keeps a worker from other changes."""
        calls = self.invocations.under_way.of(binding)
        return [(call.started, call.keeps_worker or not call.overdue) for call in calls]

    def running(self, bindings: Collection[int] | None = None) -> list[str]:
        """The keys of the calls under way, for messages; of some bindings only, by their `id`."""
        return self.invocations.under_way.keys(bindings)

    # Called back by invocations, in the thread of their worker

    def binding_of(self, item: QueueItem[T]) -> HandlerBinding:
        """The binding of an item."""
        # An epoch that was handed over a moment ago may be forgotten by now.
        return self._bindings.get(item.epoch) or self.binding

    def open_latches(self) -> None:
        """Open the latches whose calls have ended. From any thread."""
        for shard, latch in tuple(self._shard_latches.items()):
            running = [each for each in self.queue.taken() if each.state is ItemState.RUNNING]
            if not any(self._shard_of_item(each) == shard for each in running):
                self._shard_latches.pop(shard, None)
                with suppress(RuntimeError):  # as below
                    self._loop.call_soon_threadsafe(self._open_latch, latch)
        if not self._latches:
            return
        for epoch, latch in tuple(self._latches.items()):
            if not (self.invocations.under_way if epoch is None else self.outstanding(epoch)):
                self._latches.pop(epoch, None)
                with suppress(RuntimeError):  # the loop is closed, and its waiters are gone
                    self._loop.call_soon_threadsafe(self._open_latch, latch)

    def _open_latch(self, latch: Latch) -> None:
        latch.open()


class EventSlot(HandlerSlot[Notification]):
    """The slot of a handler that receives changes: one at a time for each key, in order."""

    def __init__(
        self,
        binding: HandlerBinding,
        *,
        clock: Clock,
        log: Log,
        loop: asyncio.AbstractEventLoop,
        epochs: EpochCounter | None = None,
    ) -> None:
        # Changes of the first sync that are not handled yet, counted until the handler has synced. Their keys
        # would take as much memory as the queue. The number has its own lock, because it is also changed
        # under the lock of the queue.
        self._initial_left = 0
        self._initial_lock = threading.Lock()
        self._attempted: dict[str, PendingChange] = {}  # by the process before: what comes first of a key
        self._changes = ChangeQueue[Notification](
            clock=clock,
            weigh=Notification.weight,
            merge=self._merge,
            merge_above=binding.policy.merge_above,
            epochs=epochs,
        )
        super().__init__(
            binding,
            self._changes,
            DeadLetters(_fold, _weight),
            clock=clock,
            log=log,
            loop=loop,
            shares_epochs=epochs is not None,
        )

    def apply_policy(self, binding: HandlerBinding) -> None:
        """Queue changes by the policy of a binding from now on."""
        queue, policy = self._changes, binding.policy
        self._types, self._skips_initial = policy.types, policy.skips_initial
        queue.merge_above, queue.keyed, queue.max_running = (
            policy.merge_above,
            policy.keyed,
            policy.max_running,
        )
        queue.debounce = policy.debounce
        self.wake()  # without a debounce, nothing rests any longer

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Queue the changes of the handler's types. Neither waits nor raises."""
        types, skip = self._types, self._skips_initial
        taken = [(n.key, n) for n in notifications if n.type in types and not (skip and n.initial)]
        if self._attempted and not self._initial_complete:
            taken = [(key, n) for key, n in taken if not self._goes_on(key, n)]
        if taken:
            if not self._synced:
                with self._initial_lock:
                    self._initial_left += sum(n.initial for _, n in taken)
            self._changes.add_all(taken)
            self.wake()

    def end_debounce(self) -> None:
        """Let the changes that rest be handled now, in the newest epoch."""
        self._changes.debounce = 0.0
        self.wake()

    def keep_resting(self) -> tuple[bool, int]:
        """Let the changes that rest be handled now, and drop all other waiting ones."""
        rested, dropped = self._changes.keep_resting()
        if rested:
            self.wake()
        return rested, dropped

    def _take_pending(self, now: float, *, whole: bool) -> Mapping[str, PendingChange | None]:
        """The oldest state of each key that the handler knows, and whether it knows one."""
        found, began = dict[str, PendingChange | None](), self._clock.monotonic()
        for key, items in self._changes.take_changes(whole=whole).items():
            first = next((each for each in items if each.value.type is not _RESYNC), None)
            if first is None:
                found[key] = None
                continue
            change, due = first.value, first.due
            old = None if change.type is ChangeType.ADDED else change.old or change.record
            # A rest ends with the process.
            at = now + due - began if first.attempts and due is not None and due > began else None
            found[key] = PendingChange(old, attempts=first.attempts, due=at)
        return found

    def _letter_of(self, content: Any) -> Sequence[Notification]:
        return [each.notification for each in content]

    def _put_letter(self, letter: DeadLetter, changes: Sequence[Notification]) -> None:
        state = Retry(frozenset(), None, 0, is_unsynced=False)
        self.dead_letters.put(letter, tuple(GivenUp(each, state) for each in changes))

    def _shard_of_item(self, item: QueueItem[Notification]) -> int | None:
        return self.shard_of(item.key, item.value.record.uid)

    @property
    def replayed_caches(self) -> Sequence[ManagedInformer]:
        """All, unless the handler receives no Resync."""
        return tuple(self.registrations) if _RESYNC in self._types else ()

    def replay(self, managed: ManagedInformer, records: Sequence[Record], now: float) -> None:  # noqa: ARG002
        """Queue cached objects again as Resync, for new code."""
        self.replayed += len(records)
        self.add_all([Notification(_RESYNC, r, reason=_REPLAY, received_at=now) for r in records])

    def requeue(self, key: str) -> RequeueResult:
        """Queue the changes of a dead letter again, as they were: with their objects of that time.

        PENDING if a newer change of the key waits, runs or is retried: it would be delivered before.
        """
        result = self.dead_letters.requeue(key, partial(self._add_again, key))
        self.wake()
        return result

    def _add_again(self, key: str, changes: tuple[GivenUp, ...]) -> bool:
        """Queue changes that were given up, unless a newer one of their key goes before."""
        if not self._synced:
            with self._initial_lock:
                self._initial_left += sum(change.notification.initial for change in changes)
        is_free = self._changes.add_if_free(key, changes)
        for change in () if is_free else changes:
            if change.notification.initial and not self._synced:
                self._initial_dealt_with()
        return is_free

    def continues_as(self, binding: HandlerBinding) -> bool:
        """Whether the binding has the same mode, and its informers have objects of the same kinds."""
        own, others = (
            {m.identity.group_kind for m in each} for each in (self.registrations, binding.informers)
        )
        is_alike = binding.is_sharded == self.binding.is_sharded and not binding.reconciles
        return own == others and is_alike

    def _make_invocations(self, clock: Clock, log: Log) -> Invocations[Notification]:
        return EventInvocations(self, self._changes, loop=self._loop, clock=clock, log=log)

    def _listen(self, managed: ManagedInformer, binding: HandlerBinding, *, initial: bool) -> Registration:
        period = binding.plan.resync_period
        return managed.informer.add_listener(self, resync_period=period, initial=initial, deferred=True)

    def _go_on(self, managed: ManagedInformer, binding: HandlerBinding, kept: KeptObjects) -> Registration:
        period, knows = binding.plan.resync_period, partial(kept.known_to, self.name)
        self._attempted |= {key: each for key, each in kept.known[self.name].items() if each.attempts}
        return managed.informer.add_listener(self, resync_period=period, knows=knows)

    def _goes_on(self, key: str, change: Notification) -> bool:
        """Queue a change that the process before has attempted; returns False for any other."""
        before = self._attempted.pop(key, None)
        if before is None:
            return False
        seconds = 0.0 if before.due is None else before.due - self._clock.now().timestamp()
        self._changes.go_on(key, change, attempts=before.attempts, seconds=seconds)
        self.wake()
        return True

    # Called back by the queue, and by invocations in the thread of their worker

    def _merge(self, waiting: Notification, new: Notification, attempted: bool) -> Sequence[Notification]:
        remaining = merge(waiting, new, attempted)
        if waiting.initial and not any(n.initial for n in remaining):
            self._initial_dealt_with()  # the first change of the object was merged away
        return remaining

    def ended(self, invocation: Invocation[Notification]) -> None:
        """A change is dealt with; its key is held still, so that the next change finds no old memo."""
        assert isinstance(invocation, EventInvocation)
        if invocation.item.value.initial and not self._synced:
            self._initial_dealt_with()
        if invocation.change.type is _DELETED:
            self.forget_memo(invocation.item.key)

    def _look_synced(self) -> None:
        if self._initial_complete and not self._synced:
            self._synced = not self._initial_left or self._changes.idle

    def _initial_dealt_with(self) -> None:
        with self._initial_lock:
            self._initial_left -= 1
            # From now on no event is counted as one of the first sync.
            self._synced = self._synced or (self._initial_complete and not self._initial_left)


def _fold(older: tuple[GivenUp, ...], newer: tuple[GivenUp, ...]) -> tuple[GivenUp, ...]:
    """The changes of a key that were given up one after the other, merged as waiting changes are.

    What can't be merged, such as a Deleted and the Added after it, stays two changes; there are no more.
    """
    changes = list(older)
    for change in newer:
        changes.append(change)
        while len(changes) > 1:
            first, second = changes[-2:]
            merged = merge(first.notification, second.notification, True)
            if len(merged) != 1:
                break
            # Both were attempted: what failed on either is called again.
            failed = first.state.failed | second.state.failed
            state = first.state._replace(failed=failed, outcome=first.state.outcome or second.state.outcome)
            changes[-2:] = [GivenUp(merged[0], state)]
    return tuple(changes[-2:])


def _weight(changes: tuple[GivenUp, ...]) -> int:
    return sum(change.notification.weight() for change in changes)


def _no_workers() -> None:
    """A slot that is not connected has no workers to wake."""
