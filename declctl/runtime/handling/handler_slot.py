"""A handler's slot: what waits for the handler, which binding it goes to, and the workers that deliver it.

A slot belongs to a handler's name and outlives generations: a reload gives it a new binding and leaves what
waits where it is. Changes come in on the machinery loop (`add_all`) and are delivered by the slot's workers
(`Invocations`), in threads or on a loop for handlers; the `KeyedQueue` between them keeps the order.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from declctl.informer.processor import Registration
from declctl.kit import Clock, KeyedQueue, Latch
from declctl.kit.keyed_queue import EpochCounter, QueueItem
from declctl.kit.worker_pool import AsyncWorkerPool, ThreadWorkerPool, WorkerPool
from declctl.objects import Change, ChangeReason, ChangeType, Notification, Record, merge
from declctl.runtime.caching.managed_informer import ManagedInformer
from declctl.runtime.handling.binding import CallBinding, HandlerStatistics
from declctl.runtime.handling.context import Memo
from declctl.runtime.handling.invocations import Invocations, is_unsynced
from declctl.runtime.log import Log

# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every change.
_RESYNC, _DELETED, _REPLAY = ChangeType.RESYNC, ChangeType.DELETED, ChangeReason.REPLAY


@dataclass(frozen=True, slots=True)
class HandlerBinding(CallBinding):
    """What one generation puts into a handler's slot."""

    informers: Sequence[ManagedInformer] = ()  # which the handler listens to


class HandlerSlot:
    """The slot of one handler name: its queue, its bindings, its workers, and its places at informers.

    `work`, `memo` and `statistics` may be called by any thread, `work_async` on the loop of the binding; all
    else belongs to the machinery loop. Slots that share `epochs` are cut together by a step of that counter;
    the first binding counts from the next cut on.
    """

    def __init__(
        self,
        binding: HandlerBinding,
        *,
        clock: Clock,
        log: Log,
        loop: asyncio.AbstractEventLoop,
        epochs: EpochCounter | None = None,
    ) -> None:
        self.name = binding.plan.name
        self.registrations: dict[ManagedInformer, Registration] = {}  # what it listens to
        self.replayed = 0  # changes that came a second time for the sake of new code
        self.wake: Callable[[], None] = _no_workers  # something may be ready for the workers
        self.queue: KeyedQueue[Notification] = KeyedQueue(
            clock=clock,
            weigh=Notification.weight,
            merge=self._merge,
            limit=binding.policy.limit,
            epochs=epochs,
        )
        self._loop = loop  # the machinery's
        self._lock = threading.Lock()  # guards `_memos`
        self._memos: dict[str, Memo] = {}  # by uid; with an empty uid that of the handler itself
        # Changes of the first sync that are not dealt with, counted until the handler has synced. A number
        # and not their keys, which would take as much memory as the queue. It has a lock of its own: it
        # changes under the lock of the queue too.
        self._initial_left = 0
        self._initial_lock = threading.Lock()
        self._initial_complete = False  # no more of them will come
        self._synced = False  # all of them were dealt with; never false again
        self._settling: dict[int | None, Latch] = {}  # by epoch; with None for all calls: see `settled`
        self.invocations = Invocations(
            self.name,
            self.queue,
            loop=loop,
            clock=clock,
            log=log,
            binding_of=self._binding_of,
            memo=self.memo,
            ended=self._ended,
            finished=self._look_settled,
            wake=lambda: self.wake(),  # noqa: PLW0108 - which changes with the workers
        )
        self.work = self.invocations.deliver
        self.work_async = self.invocations.deliver_async
        # By epoch. The worker of a retry may look for the binding of an epoch the moment that it begins.
        self._bindings = {self.queue.epoch + (epochs is not None): binding}
        self.workers = self.make_workers(binding)  # to be started by the owner of the slot
        self.take_in(binding)

    # Bindings and epochs

    @property
    def binding(self) -> HandlerBinding:
        """The newest binding."""
        return self._bindings[self.queue.epoch]

    def expect(self, binding: HandlerBinding | None) -> None:
        """Let what comes after the next cut go to a new binding; None takes that back.

        It is said before the cut: a worker may take a retry of the new epoch the moment that there is one.
        """
        if binding is None:
            self._bindings.pop(self.queue.epoch + 1, None)
        else:
            self._bindings[self.queue.epoch + 1] = binding

    def take_in(self, binding: HandlerBinding) -> None:
        """Take what a binding wants, as it wants it."""
        queue = self.queue
        self._wanted, self._skips_initial, queue.limit, queue.keyed, queue.at_once = binding.policy

    def hand_over(self, epoch: int) -> None:
        """Give what waits of an ended epoch to the newest binding; what runs goes on."""
        self.queue.hand_over(epoch)
        self._look_settled()  # of a handed over epoch only the running calls count
        self.wake()

    def abandon(self, epoch: int) -> int:
        """Hand over, and wait no longer for what an ended epoch still runs.

        An asynchronous call is cancelled, any other is a zombie until it returns. Returns how many
        calls were left running.
        """
        self.hand_over(epoch)
        return self.invocations.abandon(self._bindings.get(epoch))

    def waiting(self, epoch: int) -> int:
        """How many changes of an ended epoch no call has begun for; none once they were handed over.

        They wait for a worker, or for a change of the same object.
        """
        if self.queue.handed_over(epoch):
            return 0
        return max(0, self.queue.outstanding(epoch) - len(self.invocations.of(self._bindings.get(epoch))))

    def outstanding(self, epoch: int) -> int:
        """How many changes of that epoch are neither done nor handed over."""
        if self.queue.handed_over(epoch):
            # The queue counts what waits by the old epoch still, though it goes to the newest binding.
            return len(self.invocations.of(self._bindings.get(epoch)))
        return self.queue.outstanding(epoch)

    def settled(self, epoch: int | None) -> Latch:
        """Opens when no change of an ended epoch is outstanding; for None, when no call is under way."""
        latch = self._settling.get(epoch)
        if latch is None:
            latch = self._settling[epoch] = Latch(f"epoch {epoch} of {self.name}")
        self.invocations.has_waiters = True
        self._look_settled()
        return latch

    def forget(self, epoch: int) -> None:
        """Drop the binding of an ended epoch, so that its generation can be collected."""
        if epoch != self.queue.epoch and not self.outstanding(epoch):
            self._bindings.pop(epoch, None)

    def close(self) -> int:
        """Drop what waits and what backs off; returns how many changes. A call that fails later is given up.

        Its workers have to be dismissed by then: what comes in later would wait for ever.
        """
        self.invocations.close()
        dropped = self.queue.clear()
        self._look_settled()
        return dropped

    # What comes in

    def attach(
        self, informers: Iterable[ManagedInformer], binding: HandlerBinding, *, initial: bool = True
    ) -> None:
        """Listen to informers, and first hear what they hold, if `initial`."""
        for managed in informers:
            self.registrations[managed] = managed.informer.add_listener(
                self, resync_period=binding.plan.resync_period, initial=initial, at_once=False
            )

    def detach(self, informers: Iterable[ManagedInformer] | None = None) -> None:
        """Listen to these informers no longer; to none for None."""
        for managed in tuple(self.registrations if informers is None else informers):
            self.registrations.pop(managed).remove()

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Take what happened, as far as the handler wants it. Neither waits nor raises."""
        wanted, skip = self._wanted, self._skips_initial
        taken = [(n.key, n) for n in notifications if n.type in wanted and not (skip and n.initial)]
        if taken:
            if not self._synced:
                with self._initial_lock:
                    self._initial_left += sum(n.initial for _, n in taken)
            self.queue.add_all(taken)
            self.wake()

    def replay(self, records: Sequence[Record], now: float) -> None:
        """Take objects that it knows, as they are, for the sake of new code; `now` is a time stamp."""
        if _RESYNC in self._wanted:
            self.replayed += len(records)
            self.add_all([Notification(_RESYNC, r, reason=_REPLAY, received_at=now) for r in records])

    def hears_kind_of(self, binding: HandlerBinding) -> bool:
        """Whether objects of a binding's informers are of the kinds of its own."""
        own, others = (
            {m.identity.group_kind for m in each} for each in (self.registrations, binding.informers)
        )
        return own == others

    @property
    def has_heard_all(self) -> bool:
        """Whether it was given all that its caches held first."""
        return all(registration.given.is_open for registration in self.registrations.values())

    def notice_first_sync(self) -> None:
        """Notice, now or later, when each of the caches has given the slot all that it held first."""
        for registration in self.registrations.values():
            registration.given.on_open(self._given)
        self._given()  # there may be no cache

    def _given(self) -> None:
        if self.has_heard_all:
            self.initial_complete()

    def cache_synced(self) -> None:
        """Some cache has synced: what backs off because it has read one that had not is due now.

        A call that is under way knows nothing of it: if it has to be made again, it backs off.
        """
        if self.queue.hurry(is_unsynced):
            self.wake()

    def initial_complete(self) -> None:
        """No more changes of the first sync will come. May be called again."""
        self._initial_complete = True
        self._look_synced()

    @property
    def has_synced(self) -> bool:
        """Whether the handler has dealt with every object of the first sync; once true, it stays true."""
        self._look_synced()
        return self._synced

    # Workers

    def make_workers(self, binding: HandlerBinding) -> WorkerPool[Notification]:
        """The workers that a binding wants: tasks if all its hooks are asynchronous, else threads."""
        size = binding.plan.queue.concurrency

        def on_left() -> None:
            self.wake()  # the workers of another pool may wait until this one has left

        if binding.target.all_async:
            name, loop = f"handler {self.name}", binding.loop.loop
            return AsyncWorkerPool(
                self.queue, self.work_async, name=name, loop=loop, size=size, on_left=on_left
            )
        name = f"declctl-handler-{self.name}"
        return ThreadWorkerPool(self.queue, self.work, name=name, size=size, on_left=on_left)

    def has_workers_for(self, binding: HandlerBinding) -> bool:
        """Whether its workers are such as a binding wants."""
        loop = self.workers.loop if isinstance(self.workers, AsyncWorkerPool) else None
        wanted = binding.loop.loop if binding.target.all_async else None
        return loop is wanted and self.workers.size == binding.plan.queue.concurrency

    def connect(self) -> None:
        """Let `wake` wake its workers from now on."""
        self.wake = self.workers.wake
        self.invocations.replace_worker = self.workers.replace_one

    def time_out_blocked(self) -> None:
        """Let calls fail that are past their timeout and can't hear of it, as their loop is blocked."""
        self.invocations.time_out_blocked()

    # What is asked of it

    def memo(self, uid: str) -> Memo:
        """What the handler remembers of an object; with an empty uid, of itself."""
        with self._lock:
            return self._memos.setdefault(uid, Memo())

    def statistics(self) -> HandlerStatistics:
        """The figures of this moment."""
        counts, queue, binding = self.invocations.counts(), self.queue.statistics(), self.binding
        return HandlerStatistics(
            name=self.name,
            generation=binding.generation,
            synced=self.has_synced,
            delivered=queue.taken - counts.filtered,
            succeeded=counts.succeeded,
            failed=counts.failed,
            retried=counts.retried,
            merged=queue.merged,
            dropped=queue.dropped,
            filtered=counts.filtered,
            queued=queue.waiting + queue.backing_off,
            running=queue.running,
            zombies=counts.zombies,
            p95_seconds=counts.p95(),
            last_error=counts.last_error,
            replayed=self.replayed,
            last_error_type=counts.last_error_type,
            disabled=bool(binding.target.disabled),
        )

    def under_way(self, binding: HandlerBinding) -> list[tuple[float, bool]]:
        """When each call of a binding under way began, and whether it keeps a worker from other changes."""
        return [(run.started, not run.overdue) for run in self.invocations.of(binding)]

    def running(self, bindings: Collection[int] | None = None) -> list[str]:
        """The keys of the calls under way, for messages; of some bindings only, by their `id`."""
        return self.invocations.keys(bindings)

    # Called back by the queue, and by invocations in the thread of their worker

    def _merge(self, waiting: Notification, new: Notification, attempted: bool) -> Sequence[Notification]:
        remaining = merge(waiting, new, attempted)
        if waiting.initial and not any(n.initial for n in remaining):
            self._initial_dealt_with()  # the first change of the object was merged away
        return remaining

    def _binding_of(self, item: QueueItem[Notification]) -> HandlerBinding:
        # An epoch that was handed over a moment ago may be forgotten by now.
        return self._bindings.get(self.queue.epoch_of(item)) or self.binding

    def _ended(self, change: Change, initial: bool) -> None:
        """A change is dealt with; its key is held still, so that the next change finds no old memo."""
        if initial and not self._synced:
            self._initial_dealt_with()
        if change.type is _DELETED:
            with self._lock:
                self._memos.pop(change.obj.uid, None)

    def _look_settled(self) -> None:
        for epoch, latch in tuple(self._settling.items()):
            if not (self.invocations.keys() if epoch is None else self.outstanding(epoch)):
                self._settling.pop(epoch, None)
                with suppress(RuntimeError):  # the loop is closed, and its waiters are gone
                    self._loop.call_soon_threadsafe(self._open_settled, latch)

    def _open_settled(self, latch: Latch) -> None:
        # On the machinery loop, as `settled` is: no new waiter can come between the two.
        self.invocations.has_waiters = bool(self._settling)
        latch.open()

    def _look_synced(self) -> None:
        if self._initial_complete and not self._synced:
            self._synced = not self._initial_left or self.queue.idle

    def _initial_dealt_with(self) -> None:
        with self._initial_lock:
            self._initial_left -= 1
            # From now on no event is counted as one of the first sync.
            self._synced = self._synced or (self._initial_complete and not self._initial_left)


def _no_workers() -> None:
    """A slot that is not connected has no workers to wake."""
