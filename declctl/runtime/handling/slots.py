"""All slots, by the names of their handlers: the commit of new bindings, and the drain of old epochs.

`prepare` makes everything that a commit needs, while a generation is staged. `commit` is one step of the
machinery loop: it calls no user code, does no I/O and awaits nothing. So each event is queued for all
handlers before it, or for all handlers after it.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from declctl.errors import ReloadRefused
from declctl.kit import Clock, all_open
from declctl.kit.key_queue import EpochCounter
from declctl.kit.worker_budget import WorkerBudget
from declctl.kit.worker_pool import WorkerPool
from declctl.manifest.model import DrainPolicy, filters_differ
from declctl.objects import Notification
from declctl.runtime.caching.held_shards import HeldShards
from declctl.runtime.caching.managed_informer import ManagedInformer, cached_record
from declctl.runtime.handling.dead_letters import DeadLetter, RequeueResult
from declctl.runtime.handling.handler_counts import HandlerProblem
from declctl.runtime.handling.handler_slot import EventSlot, HandlerBinding, HandlerSlot
from declctl.runtime.handling.moves import FreshnessProof, MoveDifferences, Refilter
from declctl.runtime.handling.tap import HandlerTap
from declctl.runtime.handling.write_loops import WriteLoop, WriteLoops
from declctl.runtime.log import Log
from declctl.runtime.threads import in_thread
from declctl.writes import WriteOrigin, Written

AnySlot = HandlerSlot[Any]
"""The slot of a handler of either mode."""

SharedDifferences = dict[tuple[tuple[ManagedInformer, ...], tuple[ManagedInformer, ...]], MoveDifferences]
"""The differences of moves, by the caches that handlers leave and the caches that they join."""


class Move(msgspec.Struct, frozen=True):
    """A handler that leaves or joins caches, or gets another filter, together with its new binding."""

    slot: AnySlot
    binding: HandlerBinding
    leaves: Sequence[ManagedInformer]
    joins: Sequence[ManagedInformer]  # synced caches: the handler receives the `differences`
    filling: Sequence[ManagedInformer]  # caches that have not synced: the handler receives all their objects
    differences: MoveDifferences | None

    def make(self, notifications: Sequence[Notification]) -> None:
        """Register the slot at its new caches, and queue the notifications of the differences."""
        self.slot.detach(self.leaves)
        if isinstance(self.slot, EventSlot):  # a reconciler is called for all its keys, after the commit
            self.slot.add_all(
                [each for each in notifications if self.slot.is_open(each.key, each.record.uid)]
            )
        self.slot.attach(self.joins, self.binding, initial=False)
        self.slot.attach(self.filling, self.binding)
        self.slot.notice_first_sync()


class DrainingEpoch(msgspec.Struct, frozen=True):
    """An epoch of one slot that the old binding has to drain. `closing`: the handler was removed."""

    slot: AnySlot
    epoch: int
    closing: bool


class DrainRemainder(msgspec.Struct, frozen=True):
    """The changes and calls of one handler that were left at the end of a drain."""

    handler: str
    waiting: int  # changes; they went to the new code, or were dropped if the handler was removed
    running: int  # calls that had not returned
    removed: bool


class PreparedCommit(msgspec.Struct, frozen=True):
    """Everything that a commit needs. It is made before, so that the commit is short."""

    table: Mapping[str, AnySlot]  # all slots after the commit
    new: Sequence[tuple[AnySlot, HandlerBinding]]  # new slots
    staying: Sequence[AnySlot]  # slots that get new bindings
    policy_changes: Sequence[tuple[AnySlot, HandlerBinding]]  # staying slots with another delivery policy
    resumed: Sequence[AnySlot]  # staying slots whose plugin has another circuit breaker, or none
    pools: Sequence[tuple[AnySlot, WorkerPool[Any]]]  # staying slots that get new workers
    retimed: Sequence[tuple[AnySlot, float]]  # staying slots with another resync period, in seconds
    moves: Sequence[Move]
    leaving: Sequence[AnySlot]  # slots of removed handlers
    ended: Sequence[DrainingEpoch]  # of all slots before the commit
    stranded: Sequence[DrainingEpoch]  # the old code can't be called: the new code gets their backlog
    proofs: Sequence[FreshnessProof]  # that have to succeed before the commit

    @property
    def differences(self) -> Sequence[MoveDifferences]:
        """The differences of the moves, each once: several handlers may share them."""
        found = (move.differences for move in self.moves)
        return tuple(dict.fromkeys(each for each in found if each is not None))

    @property
    def new_pools(self) -> Sequence[WorkerPool[Any]]:
        """The workers that were made for this commit."""
        return (*(slot.workers for slot, _ in self.new), *(workers for _, workers in self.pools))


class Slots:
    """All handlers of the process. Used on the machinery loop only."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        log: Log,
        shards: HeldShards | None = None,
    ) -> None:
        self._loop = loop  # the machinery's
        self._shards = shards  # of this process; None without a sharding
        self._clock = clock
        self._log = log
        self.tap = HandlerTap()  # receives the calls of all handlers
        self._slots: Mapping[str, AnySlot] = {}  # by handler, in manifest order; exchanged by a commit
        self._leaving: list[AnySlot] = []  # of removed handlers, until they are drained
        self._dropped: Counter[str] = Counter()  # changes of removed handlers, by name, in this process
        self._budgets: Mapping[str, WorkerBudget] = {}  # by the name of a queue that handlers share
        self._loops = WriteLoops(clock=clock, report=log.warning)
        self._paused = False  # workers are not woken, and changes wait
        self._standing_by = False  # no slot listens to a cache: another process calls the handlers
        self._epochs = EpochCounter()  # of all slots that are not leaving: one step ends the epoch of all

    def pause(self) -> None:
        """Call no handler until `resume`; changes wait. Before the first commit."""
        self._paused = True

    def resume(self) -> None:
        """Let handlers begin with the waiting changes. A second call has no effect."""
        if self._paused:
            self._paused = False
            for slot in self._all():
                slot.connect()
                slot.wake()

    def stand_by(self) -> None:
        """Listen to no cache until `take_over`, as another process calls the handlers.

        Called before the first commit. Nothing is queued meanwhile, and each commit makes the slots anew.
        """
        self._standing_by = True

    def take_over(self) -> None:
        """Listen to the caches from now on: handlers receive all cached objects, as at a start.

        A second call has no effect.
        """
        if self._standing_by:
            self._standing_by = False
            for slot in self._slots.values():
                self._listen(slot, slot.binding)

    # Shards

    def _acts(self, binding: HandlerBinding) -> bool:
        """Whether a handler is called here. Of what is not sharded, the process with shard 0 handles all."""
        return self._shards is None or binding.is_sharded or 0 in self._shards.open

    def begin_unsharded(self) -> None:
        """Let the handlers of resources that are not sharded receive all objects: shard 0 was opened."""
        for slot in self._slots.values():
            if not slot.binding.is_sharded and not slot.registrations:
                self._listen(slot, slot.binding)

    def close_shard(self, shard: int) -> int:
        """Drop what waits of a shard that caches tell of no longer; returns how much. Calls go on."""
        dropped = 0
        for slot in self._all():
            if shard == 0 and not slot.binding.is_sharded:
                slot.detach()
            dropped += slot.drop_shard(shard)
        return dropped

    async def until_left(self, shard: int, *, timeout: float) -> None:
        """Wait for the running calls of a shard that was closed, for `timeout` seconds at most."""
        ends = [slot.end_of_shard(shard) for slot in self._all()]
        await all_open(ends, clock=self._clock, timeout=timeout)

    def cut_off(self, shard: int, *, at: str) -> list[str]:
        """Wait for calls of a closed shard no longer; returns those that ran, as `handler key`."""
        return [f"{slot.name} {key}" for slot in self._all() for key in slot.cut_off(shard, at=at)]

    @property
    def is_standing_by(self) -> bool:
        """Whether another process calls the handlers."""
        return self._standing_by

    def cancel(self) -> int:
        """Call no handler any more, and cancel the asynchronous calls that run; returns how many calls run.

        The other calls go on: nothing can stop a thread.
        """
        return sum(slot.cancel() for slot in self._all())

    def cache_synced(self) -> None:
        """Retry the changes that wait for the sync of a cache, as a cache has synced."""
        for slot in self._all():
            slot.cache_synced()

    def wants_live(self, origin: WriteOrigin) -> bool:
        """Whether the live object before a write says more of a loop than the cached one."""
        return self._loops.wants_live(origin)

    def written(
        self,
        written: Written,
        origin: WriteOrigin,
        caches: Iterable[ManagedInformer],
        live: Mapping[str, Any] | None = None,
    ) -> None:
        """Note a write of a handler that the server has stored; `caches` are all that there are.

        `live` is the object before it, if that was read.
        """
        there = tuple(caches)
        self._loops.note(written, origin, before=lambda: live or _before(written, there))
        slot = self._slots.get(origin.handler)
        if slot is not None:
            slot.written(written, origin, there)

    def write_loops(self) -> Sequence[WriteLoop]:
        """The keys that feed themselves by their writes."""
        return self._loops.loops()

    def forget_write_loops(self, handler: str) -> None:
        """Call the keys of a handler that loop at once, as its code has changed."""
        self._loops.forget(handler)
        if (slot := self._slots.get(handler)) is not None:
            slot.end_loop_delays()

    def unmapped(self) -> Sequence[str]:
        """What keeps changes from leading to keys, in words: one text for each reconciler concerned."""
        return [text for slot in self._slots.values() if (text := slot.unmapped)]

    def problems(self) -> Sequence[tuple[str, HandlerProblem]]:
        """Why handlers are unhealthy, each problem with the name of its handler."""
        return [(name, each) for name, slot in self._slots.items() for each in slot.problems()]

    def let_finalizer_go(self, handler: str, finalizer: str) -> None:
        """Let objects be released from a finalizer, because an edit removes it from the manifest."""
        if (slot := self._slots.get(handler)) is not None:
            slot.let_finalizer_go(finalizer)

    def keep_finalizers(self) -> None:
        """Add finalizers again to all objects, because the manifest is that of the running generation."""
        for slot in self._slots.values():
            slot.let_finalizer_go("")

    def begin_proofs(self, bindings: Mapping[str, HandlerBinding]) -> Sequence[FreshnessProof]:
        """Begin proofs for the caches that handlers join: each must be as new as the changes they received.

        Called before new caches are listed. One proof serves all handlers that leave and join the same
        caches. The caller closes the proofs if it does not pass them to `prepare`.
        """
        ways: dict[tuple[tuple[ManagedInformer, ...], ManagedInformer], list[str]] = {}
        for name in self._staying(bindings):
            slot, binding = self._slots[name], bindings[name]
            before = tuple(slot.registrations)
            # A reconciler needs no proof: it is called for all keys of a new cache.
            if before and not binding.reconciles and not _begins_anew(slot, binding):
                for managed in binding.informers:
                    if managed not in slot.registrations:
                        ways.setdefault((before, managed), []).append(name)
        proofs = [FreshnessProof(names, before, managed) for (before, managed), names in ways.items()]
        for proof in proofs:
            proof.begin()
        return proofs

    async def prepare(
        self,
        bindings: Mapping[str, HandlerBinding],
        proofs: Sequence[FreshnessProof] = (),
        *,
        same_code: bool,
    ) -> PreparedCommit:
        """Prepare the commit of `bindings` (by handler), without a change to the present ones.

        Unless `same_code`, filters with user functions count as changed. `proofs` are those of the same
        bindings. Raises ReloadRefused (NoThreads) if the system has no threads left.
        """
        prepared = self._prepared(bindings, proofs, same_code=same_code)
        try:
            await _start(prepared.new_pools)
        except BaseException:
            self.discard(prepared)
            raise
        return prepared

    def discard(self, prepared: PreparedCommit) -> None:
        """Undo `prepare`, as there will be no commit."""
        for each in (*prepared.differences, *prepared.proofs):
            each.close()
        for slot in prepared.staying:
            slot.expect(None)
        for workers in prepared.new_pools:
            workers.dismiss()

    def commit(self, prepared: PreparedCommit) -> Sequence[DrainingEpoch]:
        """Give the slots their new bindings; returns the epochs to be drained. Can't fail.

        Its time grows only with the number of handlers that change in more than their code, and with the
        differences that they receive.
        """
        # A removed handler keeps its epoch: its backlog is drained by its last binding.
        for slot in prepared.leaving:
            slot.queue.part()
            slot.detach()
        # From here on, added changes belong to the new bindings.
        self._epochs.cut()
        # The loop of the old code is blocked, so the new code takes its changes.
        for stranded in prepared.stranded:
            stranded.slot.queue.hand_over(stranded.epoch)
        for slot, binding in prepared.policy_changes:
            slot.apply_policy(binding)
        for slot in prepared.resumed:
            slot.end_suspension()
        self._share_workers(prepared.table.values())
        for slot, workers in prepared.pools:
            self._exchange_workers(slot, workers)
        self._leaving += prepared.leaving
        # Read before the first move, and once: several handlers may share the differences.
        found = {each: each.notifications for each in prepared.differences}
        for move in prepared.moves:
            move.make(found[move.differences] if move.differences is not None else ())
        for each in (*found, *prepared.proofs):
            each.close()
        for slot, period in prepared.retimed:
            slot.retime(period)
        for slot, binding in prepared.new:
            if not self._paused:
                slot.connect()
            if not self._standing_by:
                self._listen(slot, binding)
        self._slots = prepared.table
        return prepared.ended

    async def drain(
        self, ended: Sequence[DrainingEpoch], *, policy: DrainPolicy, timeout: float
    ) -> list[DrainRemainder]:
        """Wait until the changes of ended epochs are handled, for at most `timeout` seconds.

        After that, the rest of a staying handler goes to its new binding; with HANDOVER it goes there at
        once. The rest of a removed handler is dropped and counted, together with its changes that back off,
        which are not waited for. An asynchronous call that still runs is cancelled; any other becomes a
        zombie. Returns the rest of each handler.
        """
        # A debounce of a removed handler does not outlast it: no change would come to rest there.
        for each in ended:
            if each.closing:
                each.slot.end_debounce()
        # While workers are paused, no call has begun: the new code takes all changes.
        if policy is DrainPolicy.HANDOVER or self._paused:
            for each in ended:
                if not each.closing:
                    each.slot.hand_over(each.epoch)
        end_of = [each.slot.end_of(each.epoch) for each in ended]
        await all_open(end_of, clock=self._clock, timeout=timeout)
        left = [self._give_up(each) for each in ended]
        return [each for each in left if each.waiting or each.running]

    def _give_up(self, ended: DrainingEpoch) -> DrainRemainder:
        """Hand over or drop the rest of an ended epoch."""
        slot = ended.slot
        waiting = slot.waiting(ended.epoch)
        if ended.closing:  # before `abandon`, which lets another worker take waiting changes
            slot.workers.dismiss()
            self._leaving.remove(slot)
            waiting = slot.close()
            if letters := len(slot.dead_letters):
                self._log.warning(
                    f"the handler {slot.name} was removed, and its dead letters with it: {letters}",
                    handler=slot.name,
                )
        running = slot.abandon(ended.epoch) if slot.outstanding(ended.epoch) else 0
        slot.hand_over(ended.epoch)  # also what the epoch has taken over from an earlier one
        slot.drained()
        if ended.closing and (dropped := slot.queue.statistics().dropped):
            self._dropped[slot.name] += dropped
        return DrainRemainder(slot.name, waiting, running, removed=ended.closing)

    @property
    def dropped(self) -> Mapping[str, int]:
        """The number of changes that were dropped with removed handlers, by name, in this process."""
        return self._dropped

    async def finished(self, ended: Sequence[DrainingEpoch]) -> None:
        """Wait until the last call of these epochs has returned, and forget their bindings."""
        for each in ended:
            await each.slot.end_of(each.epoch).wait()
        for each in ended:
            each.slot.forget(each.epoch)

    def all(self) -> list[AnySlot]:
        """The slots in manifest order, without those of removed handlers."""
        return list(self._slots.values())

    def get(self, name: str) -> AnySlot | None:
        """The slot of a handler; None if there is no such handler."""
        return self._slots.get(name)

    def dead_letters(self) -> list[DeadLetter]:
        """The dead letters of all handlers, in manifest order."""
        return [letter for slot in self._slots.values() for letter in slot.dead_letters.all()]

    def requeue(self, handler: str | None = None, key: str | None = None) -> Mapping[RequeueResult, int]:
        """Queue dead letters again: of all handlers, of one, or of one key; returns the number by result."""
        slots = self._slots.values() if handler is None else [self._slots[handler]]
        results = Counter[RequeueResult]()
        for slot in slots:
            keys = [letter.key for letter in slot.dead_letters.all()] if key is None else [key]
            results.update(map(slot.requeue, keys))
        return results

    def incomplete(self) -> list[str]:
        """The handlers that have not received the first objects of all their caches."""
        return [name for name, slot in self._slots.items() if not slot.has_received_all]

    async def stop(self, timeout: float) -> tuple[list[str], Mapping[str, int]]:
        """Stop all handlers: wait for running calls for `timeout` seconds, and drop waiting changes.

        Changes that a debounce holds back are handled before, within the same time. Returns the calls that
        still run, as `handler key`, and the number of dropped changes by handler.
        """
        slots, end, dropped = self._all(), self._clock.monotonic() + timeout, Counter[str]()
        for slot in slots:
            slot.detach()
        # Workers that have never been woken would not begin now, and `cancel` has dismissed them all.
        working = [] if self._paused else [slot for slot in slots if not slot.workers.is_dismissed]
        await self._finish_resting(working, dropped, timeout=timeout)
        for slot in slots:
            slot.workers.dismiss()
        idle = [slot.end_of(None) for slot in slots]
        await all_open(idle, clock=self._clock, timeout=max(0.0, end - self._clock.monotonic()))
        running = [f"{slot.name} {key}" for slot in slots for key in slot.running()]
        for slot in slots:
            slot.stop_isolated_calls("the drain of this process")
            dropped[slot.name] += slot.close()
        return running, {name: number for name, number in dropped.items() if number}

    async def _finish_resting(
        self, slots: Iterable[AnySlot], dropped: Counter[str], *, timeout: float
    ) -> None:
        """Wait until the changes are handled that a debounce has held back, for at most `timeout` seconds."""
        resting: list[AnySlot] = []
        for slot in slots:
            rested, number = slot.keep_resting()
            dropped[slot.name] += number
            if rested:
                resting.append(slot)
            else:
                slot.workers.dismiss()
        await all_open(
            [slot.end_of(slot.queue.epoch) for slot in resting], clock=self._clock, timeout=timeout
        )

    def calls_of(self, bindings: Iterable[HandlerBinding]) -> list[str]:
        """The running calls of these bindings, as `call of notify for default/web`."""
        ids = {id(binding) for binding in bindings}
        return [f"call of {slot.name} for {key}" for slot in self._all() for key in slot.running(ids)]

    def time_out_blocked(self) -> None:
        """Time out calls on a blocked loop, which can't do that itself."""
        for slot in self._all():
            slot.time_out_blocked()

    def _share_workers(self, slots: Iterable[AnySlot]) -> None:
        """Let the handlers with the same named queue share its workers; a removed handler keeps its part."""
        budgets: dict[str, WorkerBudget] = {}
        for slot in slots:
            queue = slot.binding.plan.queue
            if not queue.is_shared:
                slot.share_workers(None)
                continue
            if queue.name not in budgets:
                budget = self._budgets.get(queue.name) or WorkerBudget(queue.concurrency, clock=self._clock)
                budget.resize(queue.concurrency)
                budgets[queue.name] = budget
            slot.share_workers(budgets[queue.name])
        self._budgets = budgets

    def _all(self) -> list[AnySlot]:
        return [*self._slots.values(), *self._leaving]

    def _staying(self, bindings: Mapping[str, HandlerBinding]) -> Sequence[str]:
        """The handlers of `bindings` whose slots go on.

        With objects of another kind, a handler is a new one under the old name. The old one keeps its queue,
        and receives no Deleted for its objects. A slot that has listened to no cache has nothing to go on
        with.
        """
        if self._standing_by:
            return ()
        slots = self._slots
        return [
            n
            for n, binding in bindings.items()
            if n in slots and slots[n].continues_as(binding) and self._acts(binding)
        ]

    def _prepared(
        self, bindings: Mapping[str, HandlerBinding], proofs: Sequence[FreshnessProof], *, same_code: bool
    ) -> PreparedCommit:
        before, stays = self._slots, frozenset(self._staying(bindings))
        kept = [(before[name], binding) for name, binding in bindings.items() if name in stays]
        new = {name: (self._make(each), each) for name, each in bindings.items() if name not in stays}
        leaving = [slot for name, slot in before.items() if name not in stays]
        shared: SharedDifferences = {}
        moves = [
            _move(slot, binding, same_code=same_code, shared=shared, clock=self._clock)
            for slot, binding in kept
        ]
        epoch = self._epochs.newest
        ended = [DrainingEpoch(slot, epoch, closing=False) for slot, _ in kept]
        for slot, binding in kept:
            slot.expect(binding)
        return PreparedCommit(
            table={name: before[name] if name in stays else new[name][0] for name in bindings},
            new=tuple(new.values()),
            staying=[slot for slot, _ in kept],
            # The sources of a reconciler are those of its generation.
            policy_changes=[(s, b) for s, b in kept if b.reconciles or s.binding.policy != b.policy],
            resumed=[s for s, b in kept if s.binding.breaker not in (None, b.breaker)],
            pools=[(s, s.make_workers(b)) for s, b in kept if not s.has_workers_for(b)],
            retimed=[
                (slot, binding.plan.resync_period)
                for slot, binding in kept
                if slot.binding.plan.resync_period != binding.plan.resync_period
            ],
            moves=[move for move in moves if move is not None],
            leaving=leaving,
            ended=[*ended, *(DrainingEpoch(slot, epoch, closing=True) for slot in leaving)],
            stranded=[e for e, (slot, b) in zip(ended, kept, strict=True) if _is_stranded(slot, b)],
            proofs=proofs,
        )

    def _listen(self, slot: AnySlot, binding: HandlerBinding) -> None:
        if self._acts(binding):
            slot.attach(binding.informers, binding)
        slot.notice_first_sync()

    def _exchange_workers(self, slot: AnySlot, workers: WorkerPool[Any]) -> None:
        before, slot.workers = slot.workers, workers
        if not self._paused:
            slot.connect()
        before.dismiss()
        if not self._paused:
            workers.wake()

    def _make(self, binding: HandlerBinding) -> AnySlot:
        slot = binding.make_slot(clock=self._clock, log=self._log, loop=self._loop, epochs=self._epochs)
        slot.guard_by(self._loops)
        slot.tap, slot.shards = self.tap, self._shards
        return slot


def _before(written: Written, caches: Iterable[ManagedInformer]) -> Mapping[str, Any] | None:
    """The object of a write as a cache has it; None if none does."""
    record = cached_record(caches, written.kind, written.key)
    return None if record is None or record.uid != written.uid else record.read()


def _move(
    slot: AnySlot, binding: HandlerBinding, *, same_code: bool, shared: SharedDifferences, clock: Clock
) -> Move | None:
    """The move of a handler to other caches or another filter, or None. Equal moves share differences."""
    before, old, new = tuple(slot.registrations), slot.binding.filter, binding.filter
    if _begins_anew(slot, binding):
        # Its changes were dropped while it was disabled: it receives all objects, as a new handler.
        return Move(
            slot, binding, leaves=before, joins=(), filling=tuple(binding.informers), differences=None
        )
    left = tuple(managed for managed in before if managed not in binding.informers)
    added = tuple(managed for managed in binding.informers if managed not in slot.registrations)
    if binding.reconciles:
        if not left and not added:
            return None
        return Move(slot, binding, leaves=left, joins=(), filling=added, differences=None)
    joined = tuple(managed for managed in added if managed.informer.has_synced)
    filling = tuple(managed for managed in added if managed not in joined)
    differences: MoveDifferences | None = None
    old_spec, new_spec = (None if each is None else each.spec for each in (old, new))
    if filters_differ(old_spec, new_spec, same_code=same_code):
        after = [managed for managed in binding.informers if managed not in filling]
        report = partial(slot.invocations.report_expression, binding)
        differences = Refilter(slot.name, old, new, before=before, after=after, clock=clock, report=report)
    elif left or joined:
        differences = shared.setdefault((left, joined), MoveDifferences(left, joined, clock=clock))
    if differences is None and not filling:
        return None
    return Move(slot, binding, left, joined, filling, differences)


async def _start(pools: Sequence[WorkerPool[Any]]) -> None:
    if not pools:
        return

    def start() -> None:
        for workers in pools:
            workers.start()

    try:
        # The start of a thread blocks its starter, which must not be the machinery loop.
        await in_thread(start, name="declctl-workers")
    except RuntimeError as error:
        count = sum(workers.size for workers in pools)
        message = f"{count} workers of handlers can't be started: {error}"
        raise ReloadRefused("NoThreads", message) from error


def _begins_anew(slot: AnySlot, binding: HandlerBinding) -> bool:
    """Whether a handler was disabled, so that it has received no changes."""
    return bool(slot.binding.target.disabled) and not binding.target.disabled


def _is_stranded(slot: AnySlot, binding: HandlerBinding) -> bool:
    """Whether the old code of a handler can't be called any more because its loop is blocked."""
    before = slot.binding
    needs_loop = any(implementation.is_async for implementation in before.target.implementations)
    return needs_loop and before.loop is not binding.loop
