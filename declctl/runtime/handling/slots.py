"""All slots by the names of their handlers; what a commit does to them, and how old epochs drain.

`prepare` makes all that a commit takes over, while a generation is staged. `commit` runs on the
machinery loop between two deltas: it calls no user code, does no I/O and waits for nothing, so that
no handler can see an event with its new code that another sees with its old code. `until_ready` returns in
the turn of the loop in which a commit is consistent.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from declctl.errors import ReloadRefused
from declctl.informer import Registration
from declctl.kit import Clock
from declctl.kit.keyed_queue import EpochCounter
from declctl.kit.worker_pool import AsyncWorkerPool, ThreadWorkerPool, WorkerPool
from declctl.manifest.model import DrainPolicy
from declctl.objects import Notification
from declctl.runtime.caching.informer_pool import ManagedInformer
from declctl.runtime.caching.managed_informer import Question, ask, ask_the_rest
from declctl.runtime.handling.handler import Binding, Handler
from declctl.runtime.handling.relocation import FreshnessProof, Gap, Move, Refilter, may_differ
from declctl.runtime.log import Log
from declctl.runtime.threads import in_thread

Shared = dict[tuple[tuple[ManagedInformer, ...], tuple[ManagedInformer, ...]], Move]
"""Moves by the caches that are left and those that are come to."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a generation puts a handler: its binding, and the informers it listens to."""

    binding: Binding
    informers: Sequence[ManagedInformer]


@dataclass(eq=False)
class Slot:
    """A handler, its workers, and its registrations with informers."""

    handler: Handler
    workers: WorkerPool[Notification]
    registrations: dict[ManagedInformer, Registration] = field(
        default_factory=dict[ManagedInformer, Registration]
    )

    def hears_kind_of(self, place: Place) -> bool:
        """Whether objects of the caches there are what those of its own are."""
        return {c.identity.group_kind for c in self.registrations} == {
            c.identity.group_kind for c in place.informers
        }

    @property
    def has_heard_all(self) -> bool:
        """Whether it was told all that its caches held first."""
        return all(registration.given.is_open for registration in self.registrations.values())

    @property
    def is_joining(self) -> bool:
        """Whether it has still to hear of what was in a cache when it came to it."""
        return any(registration.is_joining for registration in self.registrations.values())


@dataclass(frozen=True, slots=True)
class Transfer:
    """A handler that goes to other caches, or hears of other objects of the same.

    It leaves those that are `gone`. Of those that `come` it hears what `move` says, and then what
    happens; the `missing` tell it all that they hold, when they are filled.
    """

    slot: Slot
    place: Place
    gone: Sequence[ManagedInformer]
    come: Sequence[ManagedInformer]
    missing: Sequence[ManagedInformer]
    move: Move | None


@dataclass(frozen=True, slots=True)
class Ended:
    """A slot's epoch that a commit has ended, to be drained.

    `closing` says that the handler is gone.
    """

    slot: Slot
    epoch: int
    closing: bool


@dataclass(frozen=True, slots=True)
class Undrained:
    """What a handler was not through with when an old generation was waited for no longer.

    `waiting` changes waited: they went to the new code, or were dropped where the handler was `removed`.
    `running` calls had not returned.
    """

    handler: str
    waiting: int
    running: int
    removed: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a commit takes over: made aside, so that it is short, and dropped if it comes to nothing.

    `table` has all slots as they will be. Of those, `fresh` are new, and `staying` expect new bindings: some
    take other changes than before (`taking`), some get other workers (`pools`) or another resync period
    (`retimed`, seconds). `leaving` are not in it. `ended` are the epochs of all that were there before; the
    backlog of those that are `stranded` goes to the new code at once, as the old code can't be called.
    `proofs` are what `transfers` wait for.
    """

    table: Mapping[str, Slot]
    fresh: Sequence[tuple[Slot, Place]]
    staying: Sequence[Slot]
    taking: Sequence[tuple[Slot, Binding]]
    pools: Sequence[tuple[Slot, WorkerPool[Notification]]]
    retimed: Sequence[tuple[Slot, float]]
    transfers: Sequence[Transfer]
    leaving: Sequence[Slot]
    ended: Sequence[Ended]
    stranded: Sequence[Ended]
    proofs: Sequence[FreshnessProof]

    @property
    def moves(self) -> Sequence[Move]:
        """Each move once."""
        return tuple(dict.fromkeys(t.move for t in self.transfers if t.move is not None))

    @property
    def new_pools(self) -> Sequence[WorkerPool[Notification]]:
        """All workers that were made for it."""
        return (*(slot.workers for slot, _ in self.fresh), *(workers for _, workers in self.pools))


def transfer_of(
    slot: Slot,
    place: Place,
    *,
    same_code: bool,
    shared: Shared,
) -> Transfer | None:
    """Where a handler has to go, if anywhere; those that leave the same caches for the same share a move."""
    before, old, new = tuple(slot.registrations), slot.handler.binding.filter, place.binding.filter
    if _begins_anew(slot, place):
        # Its changes were dropped meanwhile: it hears all that is there, as a handler that is added.
        return Transfer(slot, place, gone=before, come=(), missing=tuple(place.informers), move=None)
    gone = tuple(cached for cached in before if cached not in place.informers)
    added = tuple(cached for cached in place.informers if cached not in slot.registrations)
    come = tuple(cached for cached in added if cached.informer.has_synced)
    missing = tuple(cached for cached in added if cached not in come)
    move: Move | None = None
    if may_differ(old, new, same_code=same_code):
        after = [cached for cached in place.informers if cached not in missing]
        move = Refilter(slot.handler.name, old, new, before=before, after=after)
    elif gone or come:
        move = shared.setdefault((gone, come), Move(gone, come))
    return Transfer(slot, place, gone, come, missing, move) if move is not None or missing else None


def proofs_of(kept: Iterable[tuple[Slot, Place]]) -> Sequence[FreshnessProof]:
    """What has to be proven before these handlers may go where they are put: one proof for each way there."""
    ways: dict[tuple[tuple[ManagedInformer, ...], ManagedInformer], list[str]] = {}
    for slot, place in kept:
        before = tuple(slot.registrations)
        if before and not _begins_anew(slot, place):
            for cached in place.informers:
                if cached not in slot.registrations:
                    ways.setdefault((before, cached), []).append(slot.handler.name)
    return [FreshnessProof(names, before, cached) for (before, cached), names in ways.items()]


def _begins_anew(slot: Slot, place: Place) -> bool:
    """Whether a handler was disabled, so that it has heard of nothing."""
    return bool(slot.handler.binding.target.disabled) and not place.binding.target.disabled


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

    def _workers(self, handler: Handler, binding: Binding) -> WorkerPool[Notification]:
        size, queue = binding.plan.queue.concurrency, handler.queue

        def on_left() -> None:
            handler.on_pending()  # the workers of another pool may wait until this one has left

        if binding.target.all_async:
            name, loop = f"handler {handler.name}", binding.loop.loop
            return AsyncWorkerPool(
                queue, handler.work_async, name=name, loop=loop, size=size, on_left=on_left
            )
        name = f"declctl-handler-{handler.name}"
        return ThreadWorkerPool(queue, handler.work, name=name, size=size, on_left=on_left)

    def _recrew(self, slot: Slot, workers: WorkerPool[Notification]) -> None:
        before, slot.workers = slot.workers, workers
        if not self._held:
            _connect(slot)
        before.dismiss()
        if not self._held:
            workers.wake()


async def _start(pools: Sequence[WorkerPool[Notification]]) -> None:
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


def _fits(workers: WorkerPool[Notification], binding: Binding) -> bool:
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


_CHECK = 0.005  # seconds between two looks
_CATCH_UP_SECONDS = 2.0  # that caches have to catch up by themselves
_LONGEST_HOLD = 1.0  # seconds


async def follow(moves: Sequence[Move], *, timeout: float) -> None:
    """Compare all that is cached.

    Raises ReloadRefused where a filter raises, or all of them take longer than `timeout` seconds.
    """
    for move in moves:
        for _ in move.begin():
            await asyncio.sleep(0)
    await ask(_refilters(moves), timeout=timeout)


async def until_ready(
    moves: Sequence[Move],
    proofs: Sequence[FreshnessProof],
    slots: Iterable[Slot],
    indexes: Sequence[Question] = (),
    *,
    clock: Clock,
    timeout: float,
) -> None:
    """Return when handlers may be moved, all is known that they have to hear, and `indexes` are complete.

    None may be moved into its past: the `proofs` have to succeed. None of these `slots` may still be hearing
    of what was in its caches when it came. Both is waited for, for `timeout` seconds. Raises ReloadRefused
    as `follow` does, and CacheLags.
    """
    slots, questions = tuple(slots), (*indexes, *_refilters(moves))
    began = clock.monotonic()
    chase = _Chase(clock)
    while True:
        waited = clock.monotonic() - began
        joining = next((slot for slot in slots if slot.is_joining), None)
        gap = _first_gap(proofs)
        if joining is None and gap is None:
            if any(question.stale for question in questions):
                await ask(questions, timeout=timeout)
                await ask_the_rest(questions)
            if _first_gap(proofs) is None:
                return  # nothing has come in meanwhile: this is the moment
        elif waited >= timeout:
            if gap is not None:
                raise gap.refusal(timeout)
            assert joining is not None
            message = f"{joining.handler.name} has not heard of all objects yet, after {timeout:g} s"
            raise ReloadRefused("NotSynced", message)
        elif joining is None and gap is not None and chase.is_endless(gap):
            await ask(questions, timeout=timeout)
            if await _caught_up_while_held(proofs, questions, clock=clock):
                return
            chase.begin_anew()
        else:
            await clock.sleep(_CHECK)


class _Chase:
    """How caches catch up with others that go on. Where one does not by itself, it is listed.

    It may never end: while one is listed, more is heard, or objects change faster than it takes them in.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._late: Gap | None = None  # the first that there was after two seconds
        self._requested: dict[ManagedInformer, float] = {}  # when a list was requested last

    def begin_anew(self) -> None:
        """Let caches catch up by themselves once more."""
        self._began, self._late = self._clock.monotonic(), None

    def request_relist(self, gap: Gap) -> None:
        """Have the cache listed, which is enough as a rule: it is done every two seconds at most."""
        now = self._clock.monotonic()
        if now - self._requested.get(gap.target, float("-inf")) >= _CATCH_UP_SECONDS:
            self._requested[gap.target] = now
            gap.target.informer.request_relist()

    def is_endless(self, gap: Gap) -> bool:
        """Whether caches have closed an older gap, and there is this one now."""
        if not gap.key:
            self.request_relist(gap)
        elif self._clock.monotonic() - self._began >= _CATCH_UP_SECONDS:
            if self._late is not None and self._late.is_closed:
                return True
            self._late = self._late or gap
            self.request_relist(self._late)
        return False


async def _caught_up_while_held(
    proofs: Sequence[FreshnessProof], questions: Sequence[Question], *, clock: Clock
) -> bool:
    """Let caches catch up while those that they follow take in nothing: until the next turn of the loop.

    Returns whether they have caught up, after a second at most.
    """
    began = clock.monotonic()
    targets = {proof.target for proof in proofs}
    with ExitStack() as held:
        for source in dict.fromkeys(source for proof in proofs for source in proof.sources):
            if source not in targets:
                held.enter_context(source.informer.held())
        for proof in proofs:
            if (gap := proof.gap) is not None:
                gap.target.informer.request_relist()
        while _first_gap(proofs) is not None:
            if clock.monotonic() - began >= _LONGEST_HOLD:
                return False
            await clock.sleep(_CHECK)
        if any(question.stale for question in questions):
            await ask_the_rest(questions)
        return _first_gap(proofs) is None


def _first_gap(proofs: Iterable[FreshnessProof]) -> Gap | None:
    return next((gap for proof in proofs if (gap := proof.gap) is not None), None)


def _refilters(moves: Sequence[Move]) -> Sequence[Refilter]:
    return [move for move in moves if isinstance(move, Refilter)]
