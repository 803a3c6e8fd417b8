"""The queue of keys: each key waits once, however much leads to it, together with why it is due.

It is the queue of a reconciler. Client-go's work queues (`queue`) are built of it.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from enum import Enum, IntEnum, auto
from itertools import islice
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from declctl.kit import Clock
from declctl.kit.histogram import Histogram
from declctl.kit.key_queue import NO_EPOCH, EpochCounter, Item, KeyQueue, QueueFigures
from declctl.kit.pending import ItemState
from declctl.objects import Cause

K = TypeVar("K", bound=Hashable)

DURATION_BOUNDS = tuple(10.0**power for power in range(-8, 4))  # seconds; client-go's buckets
MOST_CAUSES = 16  # that are kept for one key, and as many of its other reasons; further ones are left out
_WAITING, _BEHIND = ItemState.WAITING, ItemState.BEHIND
_RESTING, _BACKING_OFF, _REQUEUED = ItemState.RESTING, ItemState.BACKING_OFF, ItemState.REQUEUED
_AWAITS_CACHE, _WRITE_LOOP = ItemState.AWAITS_CACHE, ItemState.WRITE_LOOP

Version = tuple[str, str]
"""The uid and the version of an object."""


class Priority(IntEnum):
    """The priority of a key. A lower number goes first."""

    LIVE = 0  # something has changed
    BACKGROUND = 1  # a first sync, a resync or a reload: nothing is known to have changed


class QueueStatistics(msgspec.Struct, frozen=True):
    """The figures of a queue under client-go's metric names (`workqueue_<field>`). Durations are in seconds.

    `depth` is the number of items that are still to be handed out (adds minus gets,
    util/workqueue/metrics.go): queued items, and items that were added again while a worker has them. Each of
    the two histograms has its count, its sum, and the number of durations up to each of DURATION_BOUNDS and
    without a bound.
    """

    depth: int
    adds_total: int
    retries_total: int
    queue_duration_seconds_count: int
    queue_duration_seconds_sum: float
    queue_duration_seconds_bucket: tuple[int, ...]
    work_duration_seconds_count: int
    work_duration_seconds_sum: float
    work_duration_seconds_bucket: tuple[int, ...]
    unfinished_work_seconds: float
    longest_running_processor_seconds: float


class Reasons(msgspec.Struct):
    """Why a key is due."""

    causes: dict[Cause, None]  # a set that keeps the order; `MOST_CAUSES` at most
    # The versions of objects whose changes are the causes; None if anything else is one, or there are many.
    versions: Sequence[Version] | None = None
    changed_at: float | None = None  # monotonic seconds of the oldest change that was made just now
    events: Sequence[str] = ()  # the ids of these changes, if there are traces

    def merge(self, newer: "Reasons") -> "Reasons":
        """The reasons of both. Neither changes: a worker may have one of them."""
        causes = self.causes
        if not newer.causes.keys() <= causes.keys():
            causes = dict(islice((causes | newer.causes).items(), MOST_CAUSES))
        versions = None
        if self.versions is not None and newer.versions is not None:
            both = (*self.versions, *newer.versions)
            versions = both if len(both) <= MOST_CAUSES else None
        times = [each for each in (self.changed_at, newer.changed_at) if each is not None]
        events = (*self.events, *newer.events)[:MOST_CAUSES] if newer.events else self.events
        return Reasons(causes, versions, min(times, default=None), events)

    def without_first(self) -> "Reasons | None":
        """What is left without the oldest change; None if there is no other one, as far as that is known."""
        causes, versions = dict(islice(self.causes.items(), 1, None)), (self.versions or ())[1:]
        if not causes and not versions:
            return None
        return Reasons(causes or self.causes, versions or None, self.changed_at, self.events)


class Admission(Enum):
    """What a gate says of a key whose turn it is."""

    CALL = auto()
    HOLD = auto()  # it is held back, until the gate releases it
    SKIP = auto()  # it need not be reconciled


class Gate(Protocol[K]):
    """Holds keys back whose turn has come. Called under the lock of the queue, and never calls it."""

    def judge(self, item: Item[K, Reasons]) -> Admission:
        """What becomes of a key whose turn has come."""
        ...

    def take_released(self) -> K | None:
        """A key that is held back no longer; None if there is none."""
        ...

    def begins(self, item: Item[K, Reasons]) -> None:
        """Notice that a worker gets a key."""
        ...

    @property
    def others(self) -> int:
        """The number of held keys that count towards `max_running`: they wait for others' writes only."""
        ...

    def held(self) -> Sequence[tuple[K, float]]:
        """The keys that are held back, each with the monotonic time before which it is not released."""
        ...

    def next_due(self) -> float | None:
        """Seconds until `take_released` has to be called; None without keys."""
        ...

    def forget(self, key: K) -> None:
        """Hold a key back no longer, and release it never: it is not in the queue any more."""
        ...

    def clear(self) -> None:
        """Hold no key back any longer."""
        ...

    def __len__(self) -> int:
        """The number of keys that are held back."""
        ...


class ReconcileQueue(KeyQueue[K, Reasons]):
    """Keys that wait for a reconciler, each once. From any thread; no method waits.

    - A key that is added again while it waits is handed out once, with the reasons of both (client-go 234).
    - A key that is added while a worker has it comes again after that (client-go 233, 235, 237).
    - Keys of priority BACKGROUND wait behind those of priority LIVE, but not for ever.
    - A failed key comes when its delay has passed, or when it is added. Either call has its attempts and the
      reasons of both.
    - A call ends the delay of its key, as in controller-runtime's priority queue: an earlier retry is made
      with it, and an earlier `requeue` is outdated. Its own result decides when the key comes again.
    - With `debounce`, a key that is added rests first. A retry and a `requeue` do not.
    - A waiting key belongs to no epoch: the code that takes it reconciles it.
    - A `gate` may hold keys back whose turn has come, or say that they need not be reconciled.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        epochs: EpochCounter | None = None,
        gate: Gate[K] | None = None,
    ) -> None:
        super().__init__(clock=clock, epochs=epochs)
        self._gate = gate
        # By key, beside `_out`: what is in its row, held by the gate, or behind what a worker has;
        # what rests; what backs off or was asked for.
        self._waiting: dict[K, Item[K, Reasons]] = {}
        self._resting: dict[K, Item[K, Reasons]] = {}
        self._delayed: dict[K, Item[K, Reasons]] = {}
        self._closed = False
        self._adds = self._retries = 0  # as client-go counts them
        self._waited, self._worked = Histogram(DURATION_BOUNDS), Histogram(DURATION_BOUNDS)

    def add(
        self,
        key: K,
        reasons: Reasons,
        priority: Priority = Priority.LIVE,
        *,
        rests: bool = True,
    ) -> bool:
        """Let a key be reconciled; with `rests`, after the debounce. Returns whether it did not wait already.

        No effect after `clear`.
        """
        with self._lock:
            if self._closed:
                return False
            self._added += 1
            item = self._new(key, reasons, priority)
            if not (rests and self.debounce):
                return self._let_wait(item)
            if (resting := self._resting.get(key)) is None:
                self._resting[key] = item
                self._rest(item, item.added_at)
                return True
            self._rest_longer(resting, item.added_at)
            self._merge(resting, item)
            return False

    def add_after(self, key: K, seconds: float, reasons: Reasons, priority: Priority = Priority.LIVE) -> None:
        """Add a key in `seconds`, at once for 0 or less. No effect after `clear`.

        Of several delays the shortest counts, and of their priorities the highest. A key that backs off still
        does, for that time. Raises ValueError for NaN: a key with it would never be due, and would keep the
        others waiting.
        """
        if math.isnan(seconds):
            raise ValueError("a delay takes a number of seconds, not nan")
        if seconds <= 0:
            self.add(key, reasons, priority, rests=False)
            return
        with self._lock:
            if self._closed:
                return
            item, delayed = self._new(key, reasons, priority), self._delayed.get(key)
            due = item.added_at + seconds
            if delayed is None:
                self._delayed[key] = item
                self._wait_until(item, _REQUEUED, due)
                return
            self._merge(delayed, item)
            if delayed.due is None or due < delayed.due:
                self._wait_until(delayed, self._end_delay(delayed), due)

    def go_on(self, key: K, reasons: Reasons, *, attempts: int, seconds: float) -> None:
        """Let a key come in `seconds` that has waited in an earlier process, and has failed `attempts` times.

        No effect after `clear`.
        """
        if not attempts:
            self.add_after(key, seconds, reasons)
            return
        with self._lock:
            if self._closed or key in self._delayed:
                return
            self._added += 1
            self._taken += 1
            item = self._new(key, reasons, Priority.LIVE)
            item.attempts = attempts
            self._delayed[key] = item
            self._wait_until(item, _BACKING_OFF, item.added_at + max(0.0, seconds))

    def requeue(self, item: Item[K, Reasons], seconds: float, cause: Cause) -> None:
        """Let a key that was reconciled come again in `seconds`; before `done`."""
        # With the priority of this call, as in controller-runtime: a key that has changed does not wait
        # behind all keys of a first sync.
        self.add_after(item.key, seconds, Reasons({cause: None}), Priority(item.priority))

    def retry(self, item: Item[K, Reasons], delay: float) -> None:
        """Let a failed key come again in `delay` seconds, or with the next reason for it."""
        with self._lock:
            self._retries += 1
            self._come_back(item)
            item.attempts += 1
            # Without versions: a failed key is called in any case, also if its own writes had led to it.
            item.value = replace(item.value, versions=None)
            self._undelay(item.key)  # this call has asked for it, and then failed
            if self._closed:
                self._leave(item)
            else:
                self._delayed[item.key] = item
                self._move(item, NO_EPOCH)
                self._wait_until(item, _BACKING_OFF, self._now() + delay)
                self._share_priority(item.key)
            self._freed(item)

    def end_delay(self, key: K, *, comes: bool = True) -> bool:
        """Let a delayed key come now, or not at all; returns whether it was delayed."""
        with self._lock:
            if not comes:
                return self._undelay(key) is not None
            if (delayed := self._delayed.get(key)) is not None:
                self._come_now(delayed)
            return delayed is not None

    def workqueue_statistics(self) -> QueueStatistics:
        """The figures under client-go's names. A key that rests or is delayed is not in them yet."""
        with self._lock:
            now = self._now()
            running = [now - item.added_at for item in self._out.values()]
            waited, worked = self._waited.figures(), self._worked.figures()
            return QueueStatistics(
                depth=super()._figures().waiting - self._number[_RESTING],
                adds_total=self._adds,
                retries_total=self._retries,
                queue_duration_seconds_count=waited.total,
                queue_duration_seconds_sum=waited.sum,
                queue_duration_seconds_bucket=tuple(waited.cumulative),
                work_duration_seconds_count=worked.total,
                work_duration_seconds_sum=worked.sum,
                work_duration_seconds_bucket=tuple(worked.cumulative),
                unfinished_work_seconds=sum(running),
                longest_running_processor_seconds=max(running, default=0.0),
            )

    # The methods below are called under the lock.

    def _figures(self) -> QueueFigures:
        """As of any queue. A key that waits counts once: as running if a worker has it, never as delayed."""
        figures, waiting = super()._figures(), self._waiting.keys()
        states = [self._delayed[key].state for key in waiting & self._delayed.keys()]
        return replace(
            figures,
            waiting=figures.waiting - len(waiting & self._out.keys()),
            backing_off=figures.backing_off - states.count(_BACKING_OFF),
            requeued=figures.requeued - states.count(_REQUEUED),
        )

    def _new(self, key: K, reasons: Reasons, priority: Priority) -> Item[K, Reasons]:
        self._note(key)
        self._pending[NO_EPOCH] += 1
        return Item(key, reasons, self._now(), priority=priority)

    def _let_wait(self, item: Item[K, Reasons]) -> bool:
        """Let an item wait; returns whether its key did not wait already."""
        key = item.key
        if (waiting := self._waiting.get(key)) is not None:
            self._merge(waiting, item)
            return False
        self._adds += 1
        self._waiting[key] = item
        self._share_priority(key)
        if key in self._out:
            item.state = _BEHIND
        else:
            self._rows[item.priority].add(item)
        return True

    def _merge(self, pending: Item[K, Reasons], newer: Item[K, Reasons]) -> None:
        """Let a pending item come for what a newer one has come for, too, which leaves."""
        self._merged += 1
        self._leave(newer)
        if newer.attempts:
            _carry(newer, pending)
        else:
            pending.value = pending.value.merge(newer.value)
        if newer.priority < pending.priority:
            waits = pending.state is _WAITING
            if waits:
                self._rows[pending.priority].leave(pending)
            pending.priority = newer.priority
            if waits:
                self._rows[pending.priority].add(pending)

    def _share_priority(self, key: K) -> None:
        """Let a key that has failed wait with the priority of the failed call, if that is higher."""
        waiting, delayed = self._waiting.get(key), self._delayed.get(key)
        if waiting is not None and delayed is not None and delayed.state is _BACKING_OFF:
            waiting.priority = min(waiting.priority, delayed.priority)

    def _undelay(self, key: K) -> Item[K, Reasons] | None:
        """Let what is delayed of a key leave; returns it. It has failed if it has attempts."""
        item = self._delayed.pop(key, None)
        if item is not None:
            self._end_delay(item)
            self._leave(item)
        return item

    def _came_due(self, item: Item[K, Reasons], state: ItemState) -> None:
        del (self._resting if state is _RESTING else self._delayed)[item.key]
        item.added_at = self._now()
        self._let_wait(item)

    def _has_turn(self) -> bool:
        return super()._has_turn() or bool(self._gate)  # what it holds may be released

    def _seconds_to_turn(self) -> float | None:
        gate = self._gate
        if gate is None:
            return super()._seconds_to_turn()
        due = None if gate.others >= self.max_running else super()._seconds_to_turn()
        released = gate.next_due()
        if released == 0.0 and self.budget is not None:
            released = self.budget.wait(self)
        return min((each for each in (due, released) if each is not None), default=None)

    def _next(self) -> Item[K, Reasons] | None:
        gate = self._gate
        if gate is None:
            return super()._next()
        # A key that was held back goes before others: each of these may hold back further ones.
        if (key := gate.take_released()) is not None:
            return self._waiting[key]
        while gate.others < self.max_running and (item := super()._next()) is not None:
            match gate.judge(item):
                case Admission.CALL:
                    return item
                case Admission.HOLD:
                    item.state = _AWAITS_CACHE
                case Admission.SKIP:
                    del self._waiting[item.key]
                    self._leave(item)
        return None

    def _took(self, item: Item[K, Reasons]) -> None:
        now = self._now()
        self._move(item, self._epochs.newest)
        del self._waiting[item.key]
        if self._gate is not None:
            self._gate.begins(item)  # before it has the reasons of a failed call: these lead to no loop
        if (delayed := self._undelay(item.key)) is not None and delayed.attempts:
            _carry(delayed, item)  # which was taken before
            self._taken -= 1
            self._merged += 1
        self._waited.add(now - item.added_at)
        item.added_at = now

    def _freed(self, item: Item[K, Reasons]) -> bool:
        self._worked.add(self._now() - item.added_at)
        waiting = self._waiting.get(item.key)
        if waiting is not None:
            self._rows[waiting.priority].add(waiting)
        return waiting is not None

    def _drop_all(self) -> int:
        self._closed, dropped = True, 0
        for items in (self._waiting, self._resting, self._delayed):
            for item in items.values():
                dropped += item.state is not _REQUEUED
                item.due = None
                self._taken -= item.attempts > 0
                self._leave(item)
            items.clear()
        if self._gate is not None:
            self._gate.clear()
        return dropped

    def _drop_chosen(self, chosen: Callable[[Item[K, Reasons]], bool]) -> int:
        dropped = 0
        for items in (self._waiting, self._resting, self._delayed):
            for item in tuple(items.values()):
                if not chosen(item):
                    continue
                del items[item.key]
                dropped += item.state is not _REQUEUED
                self._taken -= item.attempts > 0
                if item.state is _AWAITS_CACHE and self._gate is not None:
                    self._gate.forget(item.key)
                if item.in_row:
                    self._rows[item.priority].leave(item)
                if item.due is not None:
                    self._end_delay(item)
                self._leave(item)
        return dropped

    def _pending_of(self, key: K) -> Item[K, Reasons] | None:
        if key in self._out:
            return None
        return self._waiting.get(key) or self._resting.get(key) or self._delayed.get(key)

    def _all_of(self, key: K) -> Iterator[Item[K, Reasons]]:
        for items in (self._out, self._waiting, self._resting, self._delayed):
            if (item := items.get(key)) is not None:
                yield item

    def _keys(self) -> Iterable[K]:
        return {*self._out, *self._waiting, *self._resting, *self._delayed}

    def _in_order(self) -> Iterator[Item[K, Reasons]]:
        for item in self._out.values():
            yield replace(item, again=item.key in self._waiting)
        if self._gate is not None:
            for key, until in self._gate.held():
                item = self._waiting[key]
                yield replace(item, due=until, state=_WRITE_LOOP) if until > self._now() else item
        yield from self._in_turns()
        yield from (item for item in self._soonest() if item.key not in self._waiting)


def _carry(failed: Item[K, Reasons], item: Item[K, Reasons]) -> None:
    """Let the next call for a key that has failed know that, and why the failed one was made."""
    item.value = failed.value.merge(item.value)
    item.attempts, item.retry_state = failed.attempts, failed.retry_state
