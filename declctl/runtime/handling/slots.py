"""The slots: every handler by its name, how a commit gives them new bindings, and how old ones drain.

`prepare` makes all that a commit takes over, while a generation is staged. `commit` runs on the
machinery loop between two deltas: it calls no user code, does no I/O and waits for nothing, so that
no handler can see an event with its new code that another sees with its old code.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from declctl.errors import ReloadRefused
from declctl.kit import Clock
from declctl.kit.keyed_queue import EpochCounter
from declctl.manifest.model import DrainPolicy
from declctl.objects import Notification
from declctl.runtime.caching.informer_pool import ManagedInformer
from declctl.runtime.handling.freshness import FreshnessProof
from declctl.runtime.handling.handler import Binding, Handler
from declctl.runtime.handling.moving import Move
from declctl.runtime.handling.placing import (
    Ended,
    Place,
    Prepared,
    Shared,
    Slot,
    Transfer,
    Undrained,
    proofs_of,
    transfer_of,
)
from declctl.runtime.handling.worker_pools import AsyncWorkerPool, ThreadWorkerPool, WorkerPool
from declctl.runtime.log import Log
from declctl.runtime.threads import in_thread

_DRAIN_CHECK = 0.02  # seconds between two looks at what is left of an old generation


class Slots:
    """All handlers of the process. Used on the machinery loop only."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop, clock: Clock, log: Log) -> None:
        self._loop = loop  # the machinery's
        self._clock = clock
        self._log = log
        self._slots: Mapping[str, Slot] = {}
        self._leaving: list[Slot] = []
        self._dropped: Counter[str] = Counter()  # by handlers that were removed, of the whole process
        self._held = False  # workers are not woken: what comes waits
        self._era = EpochCounter()  # of all slots that are not leaving: one step cuts them all

    @property
    def is_held(self) -> bool:
        """Whether handlers are called for nothing yet."""
        return self._held

    def hold(self) -> None:
        """Call no handler until `let_go`: what happens waits for it. Before the first commit."""
        self._held = True

    def let_go(self) -> None:
        """Let handlers begin with what has waited. Twice is harmless."""
        if self._held:
            self._held = False
            for slot in self._everyone():
                _connect(slot)
                slot.workers.wake()

    def cache_synced(self) -> None:
        """Some cache has synced: changes that wait to read one are worked on now."""
        for slot in self._everyone():
            slot.handler.cache_synced()

    def begin_proofs(self, places: Mapping[str, Place]) -> Sequence[FreshnessProof]:
        """Begin to prove that caches are as new as what handlers have heard that go there.

        Before new caches are listed. The proofs have to be closed where `prepare` does not get them.
        """
        proofs = proofs_of((self._slots[name], places[name]) for name in self._staying(places))
        for proof in proofs:
            proof.begin()
        return proofs

    async def prepare(
        self, places: Mapping[str, Place], proofs: Sequence[FreshnessProof] = (), *, same_code: bool
    ) -> Prepared:
        """Make what a commit of `places` needs; nothing that runs is touched.

        Where the code is not the same, filters that call it are taken for others. The `proofs` are those of
        the same places. Raises ReloadRefused where the system has no threads left.
        """
        prepared = self._prepared(places, proofs, same_code=same_code)
        try:
            await _start(prepared.new_pools)
        except BaseException:
            self.discard(prepared)
            raise
        return prepared

    def discard(self, prepared: Prepared) -> None:
        """It comes to nothing: let go what was made for it."""
        for followed in (*prepared.moves, *prepared.proofs):
            followed.close()
        for slot in prepared.staying:
            slot.handler.expect(None)
        for workers in prepared.new_pools:
            workers.dismiss()

    def commit(self, prepared: Prepared) -> Sequence[Ended]:
        """Make what was prepared what is listening; returns the epochs that ended. Cannot fail.

        Its time grows with the handlers of which more than the code is new, with what they have to be told,
        and with nothing else.
        """
        for slot in prepared.leaving:
            slot.handler.queue.part()
            _detach(slot, slot.registrations)
        self._era.cut()
        for stranded in prepared.stranded:
            stranded.slot.handler.queue.hand_over(stranded.epoch)
        for slot, binding in prepared.taking:
            slot.handler.take_in(binding)
        for slot, workers in prepared.pools:
            self._recrew(slot, workers)
        self._leaving += prepared.leaving
        told = {move: move.told for move in prepared.moves}
        for transfer in prepared.transfers:
            _transfer(transfer, told)
        for followed in (*told, *prepared.proofs):
            followed.close()
        for slot, period in prepared.retimed:
            for registration in slot.registrations.values():
                registration.retime(period)
        for slot, place in prepared.fresh:
            if not self._held:
                _connect(slot)
            _attach(slot, place, place.informers)
        self._slots = prepared.table
        return prepared.ended

    async def drain(self, ended: Sequence[Ended], *, policy: DrainPolicy, timeout: float) -> list[Undrained]:
        """Wait until what was queued before the commit is dealt with, for at most `timeout` seconds.

        Of a handler that stays, what is left then goes to the new binding. Of one that is gone it is dropped
        and counted, together with the changes that back off; these are not waited for. Calls that still run
        after `timeout` go on, and are not waited for either. Returns what each handler had left.
        """
        if policy is DrainPolicy.HANDOVER or self._held:  # nothing of it has begun
            for epoch in ended:
                if not epoch.closing:
                    epoch.slot.handler.hand_over(epoch.epoch)
        await self._until_drained(ended, timeout)
        left = [self._give_up(epoch) for epoch in ended]
        return [each for each in left if each.waiting or each.running]

    def _give_up(self, ended: Ended) -> Undrained:
        """Wait no longer for what is left of an epoch."""
        handler = ended.slot.handler
        waiting = handler.waiting(ended.epoch)
        if ended.closing:  # before a worker takes the place of one that is stuck, and takes what waits
            ended.slot.workers.dismiss()
            self._leaving.remove(ended.slot)
            waiting = handler.close()
        running = handler.abandon(ended.epoch) if handler.outstanding(ended.epoch) else 0
        if ended.closing:
            dropped = handler.queue.statistics().dropped
            if dropped:
                self._dropped[handler.name] += dropped
        return Undrained(handler.name, waiting, running, removed=ended.closing)

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many changes were dropped with handlers that were removed, by their names, in this process."""
        return self._dropped

    async def finished(self, ended: Sequence[Ended]) -> None:
        """Return when the last call of those epochs has returned, and forget their bindings."""
        while any(e.slot.handler.outstanding(e.epoch) for e in ended):
            await self._clock.sleep(0.25)
        for epoch in ended:
            epoch.slot.handler.forget(epoch.epoch)

    def handlers(self) -> list[Handler]:
        """The handlers in manifest order."""
        return [slot.handler for slot in self._slots.values()]

    def slot(self, name: str) -> Slot | None:
        """The slot of a handler."""
        return self._slots.get(name)

    def initial_complete(self) -> None:
        """Tell each slot whose informers have all synced that no more initial changes will come."""
        for slot in self._slots.values():
            if slot.has_heard_all:
                slot.handler.initial_complete()

    def unheard(self) -> list[str]:
        """The handlers that have not been told all that their caches held first."""
        return [name for name, slot in self._slots.items() if not slot.has_heard_all]

    async def stop(self, timeout: float) -> tuple[list[str], Mapping[str, int]]:
        """Take no more, let running calls finish for `timeout` seconds.

        Returns the calls that were left running, as `handler key`, and by handler how many changes waited:
        they are dropped.
        """
        for slot in self._everyone():
            _detach(slot, slot.registrations)
            slot.workers.dismiss()
        deadline = self._clock.monotonic() + timeout
        while self._running() and self._clock.monotonic() < deadline:
            await self._clock.sleep(_DRAIN_CHECK)
        running = self._running()
        waited = {slot.handler.name: slot.handler.close() for slot in self._everyone()}
        return running, {name: number for name, number in waited.items() if number}

    def calls_of(self, places: Mapping[str, Place]) -> list[str]:
        """The calls under way for these bindings, as `call of notify for default/web`."""
        bindings = {id(place.binding) for place in places.values()}
        return [
            f"call of {slot.handler.name} for {key}"
            for slot in self._everyone()
            for key in slot.handler.running(bindings)
        ]

    def time_out_blocked(self) -> None:
        """Let calls fail that are past their timeout and can't hear of it, as their loop is blocked."""
        for slot in self._everyone():
            slot.handler.time_out_blocked()

    def _running(self) -> list[str]:
        return [f"{slot.handler.name} {key}" for slot in self._everyone() for key in slot.handler.running()]

    def _everyone(self) -> list[Slot]:
        return [*self._slots.values(), *self._leaving]

    async def _until_drained(self, ended: Sequence[Ended], timeout: float) -> None:
        deadline = self._clock.monotonic() + timeout
        while any(e.slot.handler.outstanding(e.epoch) for e in ended):
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return
            await self._clock.sleep(min(_DRAIN_CHECK, left))

    def _staying(self, places: Mapping[str, Place]) -> Sequence[str]:
        """The handlers that live on.

        Another kind is another resource. A handler that goes to it is a new one of the same name. What waits
        for the old one stays with it, and its objects are not gone because nobody listens any longer.
        """
        before = self._slots
        return [n for n, place in places.items() if n in before and before[n].hears_kind_of(place)]

    def _prepared(
        self, places: Mapping[str, Place], proofs: Sequence[FreshnessProof], *, same_code: bool
    ) -> Prepared:
        before, stays = self._slots, frozenset(self._staying(places))
        kept = [(before[name], place) for name, place in places.items() if name in stays]
        fresh = {name: (self._make(place), place) for name, place in places.items() if name not in stays}
        leaving = [slot for name, slot in before.items() if name not in stays]
        shared: Shared = {}
        transfers = [transfer_of(slot, place, same_code=same_code, shared=shared) for slot, place in kept]
        taking = [(s, p.binding) for s, p in kept if s.handler.binding.intake != p.binding.intake]
        epoch = self._era.newest
        ended = [Ended(slot, epoch, closing=False) for slot, _ in kept]
        ended += [Ended(slot, epoch, closing=True) for slot in leaving]
        for slot, place in kept:
            slot.handler.expect(place.binding)
        return Prepared(
            table={name: before[name] if name in stays else fresh[name][0] for name in places},
            fresh=tuple(fresh.values()),
            staying=[slot for slot, _ in kept],
            taking=taking,
            pools=[
                (s, self._workers(s.handler, p.binding)) for s, p in kept if not _fits(s.workers, p.binding)
            ],
            retimed=[(s, p.binding.plan.resync_period) for s, p in kept if _period(s) != _period(p)],
            transfers=[transfer for transfer in transfers if transfer is not None],
            leaving=leaving,
            ended=ended,
            stranded=[Ended(slot, epoch, closing=False) for slot, place in kept if _is_stranded(slot, place)],
            proofs=proofs,
        )

    def _make(self, place: Place) -> Slot:
        handler = Handler(place.binding, clock=self._clock, log=self._log, loop=self._loop, era=self._era)
        return Slot(handler, self._workers(handler, place.binding))

    def _workers(self, handler: Handler, binding: Binding) -> WorkerPool:
        size = binding.plan.queue.concurrency
        if binding.target.all_async:
            return AsyncWorkerPool(handler, size=size, loop=binding.loop.loop)
        return ThreadWorkerPool(handler, size=size)

    def _recrew(self, slot: Slot, workers: WorkerPool) -> None:
        before, slot.workers = slot.workers, workers
        if not self._held:
            _connect(slot)
        before.dismiss()
        if not self._held:
            workers.wake()


async def _start(pools: Sequence[WorkerPool]) -> None:
    if not pools:
        return

    def start() -> None:
        for workers in pools:
            workers.start()

    try:
        await in_thread(start, name="declctl-workers")
    except RuntimeError as error:
        wanted = sum(workers.size for workers in pools)
        message = f"{wanted} workers of handlers can't be started: {error}"
        raise ReloadRefused("NoThreads", message) from error


def _fits(workers: WorkerPool, binding: Binding) -> bool:
    wanted = binding.loop.loop if binding.target.all_async else None
    same_kind = (workers.loop if isinstance(workers, AsyncWorkerPool) else None) is wanted
    return same_kind and workers.size == binding.plan.queue.concurrency


def _is_stranded(slot: Slot, place: Place) -> bool:
    """Whether the old code of a handler can't be called any more: the loop that it needs is blocked."""
    before = slot.handler.binding
    needs_loop = any(implementation.is_async for implementation in before.target.implementations)
    return needs_loop and before.loop is not place.binding.loop


def _connect(slot: Slot) -> None:
    slot.handler.on_pending = slot.workers.wake
    slot.handler.on_replaced = slot.workers.replace_one


def _transfer(transfer: Transfer, told: Mapping[Move, Sequence[Notification]]) -> None:
    slot, place = transfer.slot, transfer.place
    _detach(slot, transfer.gone)
    if transfer.move is not None:
        slot.handler.add_all(told[transfer.move])
    _attach(slot, place, transfer.come, initial=False)
    _attach(slot, place, transfer.missing)


def _period(where: Slot | Place) -> float:
    binding = where.handler.binding if isinstance(where, Slot) else where.binding
    return binding.plan.resync_period


def _attach(slot: Slot, place: Place, informers: Iterable[ManagedInformer], *, initial: bool = True) -> None:
    for cached in informers:
        slot.registrations[cached] = cached.informer.add_listener(
            slot.handler,
            resync_period=place.binding.plan.resync_period,
            initial=initial,
            at_once=False,
        )


def _detach(slot: Slot, caches: Iterable[ManagedInformer]) -> None:
    for cached in tuple(caches):
        slot.registrations.pop(cached).remove()
