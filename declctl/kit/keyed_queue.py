"""The keyed queue: pending values in order of arrival, one at a time for each key.

Every notification that waits for a handler is a `QueueItem` of such a queue. The queue decides and never
waits; any thread may call it. The caller defines the weight of a value, and the merge of two values of one
key, which limits the weight of the queue. An epoch is the time between two calls of `cut`, such as two
reloads. A value belongs to the epoch in which it was added. After a failure it belongs, with all values that
wait behind it, to the epoch in which it is taken again: a failure that was mended meanwhile is not repeated.
"""

import heapq
import itertools
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Generic, TypeVar

import msgspec

from declctl.kit.clock import Clock
from declctl.kit.debounce import Rest, RestingValues
from declctl.kit.pending import ItemState, PendingItem, QueueSnapshot, smallest_first
from declctl.kit.worker_budget import WorkerBudget

T = TypeVar("T")


class QueueItem(msgspec.Struct, Generic[T], eq=False):
    """One pending value. Only the queue changes it; a worker reads it, and may set `retry_state`."""

    key: str
    value: T
    # In which the value was added, its rest ended, or it was taken again after a failure; else NO_EPOCH.
    epoch: int
    weight: int  # in the unit of the queue's `weigh`
    added_at: float  # monotonic seconds
    attempts: int = 0  # calls of `retry`
    due: float | None = None  # monotonic seconds of the end of the back-off; None if it is not in back-off
    gone: bool = False  # merged into another value: its turn is skipped
    passed: bool = False  # its turn came while its key was held: it is released when the key is free
    fixed: bool = False  # a worker has taken it: no value may be merged into it
    taken: bool = False  # a worker has it now: neither `done` nor `retry` was called
    excluded: bool = False  # taken, and no longer counted towards `max_running`
    budget: WorkerBudget | None = None  # whose permit it holds
    retry_state: Any = None  # for the worker, which stores here what the next attempt needs
    rest: "Rest[QueueItem[T]] | None" = None  # while newer values of the key are awaited
    # The previous and the next value of the same key; both are neither done nor gone.
    before: "QueueItem[T] | None" = None
    after: "QueueItem[T] | None" = None

    def __repr__(self) -> str:
        return f"<QueueItem {self.key} of epoch {self.epoch}, {self.attempts} attempts>"


class KeyedQueueStatistics(msgspec.Struct, frozen=True):
    """The figures of a queue: added = taken + waiting for the first time + merged + dropped.

    A value that is retried counts as taken once. A value that is dropped does not count as taken.
    """

    added: int
    taken: int
    merged: int
    dropped: int
    waiting: int  # now, neither running nor in back-off
    running: int  # taken and not done, now
    backing_off: int  # now
    weight: int  # of all pending values, now


def passed_behind(holder: QueueItem[T]) -> Iterator[QueueItem[T]]:
    """The further items of a held key whose turn has come: they are released when the key is free."""
    item = holder.after
    while item is not None:
        if item.passed:
            yield item
        item = item.after


def _next_passed(item: QueueItem[T]) -> list[QueueItem[T]]:
    """The item that is released when this one is done; none if its turn has not come."""
    return [item.after] if item.after is not None and item.after.passed else []


def return_permit(item: QueueItem[Any]) -> None:
    """Return the permit that an item holds, if it holds one."""
    if item.budget is not None:
        budget, item.budget = item.budget, None
        budget.release()


def _nothing() -> None:
    """The `wake` of a queue without a budget."""


NO_EPOCH = -1  # of a value that rests, or that is to be retried, and of those behind the latter


class EpochCounter:
    """The number of the present epoch. Queues that share a counter begin a new epoch in one step."""

    __slots__ = ("newest",)

    def __init__(self, newest: int = 0) -> None:
        self.newest = newest

    def cut(self) -> int:
        """Begin a new epoch; returns the number of the one that ended. Never fails."""
        old = self.newest
        self.newest = old + 1
        return old


class Epochs:
    """Counts the pending values of each epoch, and maps each epoch to the one that took over its backlog.

    The owner calls it under a lock, and itself counts in `pending` the values that it adds to the newest
    epoch.
    """

    __slots__ = ("adopted", "counter", "pending")

    def __init__(self, epochs: EpochCounter | None = None) -> None:
        self.counter = EpochCounter() if epochs is None else epochs
        self.pending = defaultdict[int, int](int)  # by epoch: values neither done nor gone; never 0
        self.adopted: dict[int, int] = {}  # by epoch: the one that took over its backlog

    def hand_over(self, old: int) -> None:
        """Let the newest epoch take over the backlog of another one."""
        newest = self.counter.newest
        if old == newest:
            return
        self.adopted[old] = newest
        # Epochs without pending values are removed: no item belongs to them.
        self.adopted = {epoch: self.of(epoch) for epoch in self.adopted if epoch in self.pending}

    def of(self, epoch: int) -> int:
        """The epoch to which the backlog of an epoch belongs now."""
        adopted = self.adopted
        while epoch in adopted:
            epoch = adopted[epoch]
        return epoch

    def leave(self, epoch: int) -> None:
        """Count that a value of an epoch is done or gone."""
        left = self.pending[epoch] - 1
        if left:
            self.pending[epoch] = left
        else:
            del self.pending[epoch]

    def move(self, before: int, epoch: int) -> int:
        """Count that a value moves from one epoch to another; returns the other one."""
        self.pending[epoch] += 1
        self.leave(before)
        return epoch


_MOST_LISTED = 10_000  # values of the row of turns that a snapshot looks at, while it holds the lock
_MOST_VANISHED = 64  # gone items in the row of turns, before it is rebuilt without them


class KeyedQueue(Generic[T]):
    """Values in order of arrival, one at a time for each key. From any thread; no method waits.

    - The values of one key are handed out in the order in which they were added, never two at a time.
    - Values of different keys are handed out in the order in which they were added; a value whose key is held
      is passed over until the key is free.
    - A key is held from `take` until `done`. After `retry`, it stays held until the value was due, taken and
      done.
    - At most `max_running` values are running at the same time, without those of `exclude_from_limit`. After
      a decrease of `max_running`, no value is handed out until enough are done.
    - Up to the weight `merge_above` of all values, none is merged. Beyond it, and always if `keyed`, a new
      value is merged with the waiting one of its key and epoch. `merge(waiting, new, attempted)` returns the
      values that remain: none, one, or both. A value that was attempted before can't be merged to none.
    - With a budget (`share_workers`), a value is handed out only with a permit of it.
    - With `debounce`, a new value rests: it is handed out when no further value of its key has come for so
      many seconds, and after `LONGEST_REST` times as many at the latest. Meanwhile newer values of its key
      are merged with it. While all values together have the weight `merge_above` or more, none rests.
    - `cut` begins a new epoch. A waiting value belongs to its epoch until it is retried or handed over; a
      value that rests will belong to the epoch in which that ends, and a value that is retried to the one in
      which it is taken. So does what waits behind the latter, as its turn can't come before. So a reload
      separates old and new values in one step, without touching the queue.
    - Queues with the same `epochs` counter are cut together.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        weigh: Callable[[T], int],
        merge: Callable[[T, T, bool], Sequence[T]],
        merge_above: int,
        keyed: bool = False,
        max_running: int = sys.maxsize,
        epochs: EpochCounter | None = None,
    ) -> None:
        self.merge_above = merge_above
        self.keyed = keyed
        self.max_running = max_running
        self.debounce = 0.0  # seconds; 0 ends all rests
        self.budget: WorkerBudget | None = None
        self._wake: Callable[[], None] = _nothing  # of the workers, when it is their turn in the budget
        self._now = clock.monotonic
        self._weigh = weigh
        self._merge = merge
        self._lock = threading.Lock()
        self._order = itertools.count()  # of values in back-off that are due at the same time
        # The row of turns, in order of arrival. The keys of some may be held, and some may be gone.
        self._ready: deque[QueueItem[T]] = deque()
        self._vanished = 0  # how many items in `_ready` are gone
        self._released: deque[QueueItem[T]] = deque()  # handed out before `_ready`; they hold their keys
        self._held: dict[str, QueueItem[T]] = {}  # by key: the item that runs, backs off or is released
        # By key: its last item, the only one that may be merged into.
        self._tail: dict[str, QueueItem[T]] = {}
        self._due: list[tuple[float, int, QueueItem[T]]] = []  # a heap of the items in back-off
        self._resting: RestingValues[QueueItem[T]] = RestingValues()  # they hold no key
        self._epochs = Epochs(epochs)
        self._added = self._taken = self._merged = self._dropped = self._weight = 0
        self._running = self._excluded = 0  # taken and not done; each such item counts as one of both
        self._parted = False  # no further epoch will begin

    def add(self, key: str, value: T) -> None:
        """Append a value of `key`."""
        self.add_all([(key, value)])

    def add_all(self, values: Sequence[tuple[str, T]]) -> None:
        """Append several values, in their order."""
        with self._lock:
            now, epochs = self._now(), self._epochs
            epoch = epochs.counter.newest
            self._added += len(values)
            if self._resting.number and not self.debounce:
                self._end_rests()
            for key, value in values:
                tail = self._tail.get(key)
                full = self.keyed or self._weight >= self.merge_above
                # Only the last value of a key may be merged with a newer one, so that the order is kept.
                if tail is not None and (full or tail.rest) and self._merge_into(tail, value, epoch, now):
                    continue
                rests = self.debounce > 0
                if rests and self._weight >= self.merge_above:
                    rests = False
                    self._end_rests()
                self._append(key, value, epoch, now, rests)

    def add_if_free(self, key: str, values: Sequence[tuple[T, Any]]) -> bool:
        """Append values of `key`, each with its `retry_state`, unless the key has a pending value.

        Returns whether they were appended. None of them is merged with another. A value that has a
        `retry_state` was attempted before.
        """
        with self._lock:
            if key in self._tail:
                return False
            for value, state in values:
                item = self._append(key, value, self._epochs.counter.newest, self._now(), False)
                item.retry_state = state
            self._added += len(values)
            return True

    def take(self) -> QueueItem[T] | None:
        """Take the next item, and hold its key; None if no item may be taken now."""
        with self._lock:
            budget = self.budget
            if self._running >= self.max_running:
                if budget is not None:
                    budget.leave(self)
                return None
            if self._due:
                self._wake_due()
            if self._resting.number:
                self._look_rested()
            if budget is not None:
                if not (self._released or self._ready):
                    budget.leave(self)
                    return None
                if not budget.acquire(self, self._wake):
                    return None
            # A released item waited for its key: its turn in the row came before.
            item = self._released.popleft() if self._released else self._next_turn()
            if item is None:
                if budget is not None:
                    budget.release()
                return None
            item.budget = budget
            item.fixed = item.taken = True  # the worker reads the value, which must not change any longer
            if item.attempts == 0:
                self._taken += 1
            elif item.epoch == NO_EPOCH:
                self._join_epoch(item, self._epochs.counter.newest)
            self._running += 1
            return item

    def done(self, item: QueueItem[T]) -> bool:
        """Note that an item was processed, and free its key; returns whether a further item has that key."""
        with self._lock:
            self._come_back(item)
            self._weight -= item.weight
            self._epochs.leave(item.epoch)
            return self._release(item)

    def drop(self, item: QueueItem[T]) -> bool:
        """As `done`, for an item that was not processed: it counts as dropped, and not as taken."""
        with self._lock:
            self._taken -= 1
            self._dropped += 1
        return self.done(item)

    def retry(self, item: QueueItem[T], delay: float) -> None:
        """Hand the item out again in `delay` seconds; its key stays held.

        Until it is taken again, the item belongs to no epoch, and neither does what waits behind it; after
        that, to the one that is the newest at that moment. Many retries may be due together: those that wait
        for a worker at a `cut` belong to the new epoch, as those that are due later.
        """
        with self._lock:
            self._come_back(item)
            item.attempts += 1
            self._join_epoch(item, NO_EPOCH)
            item.due = self._now() + delay
            heapq.heappush(self._due, (item.due, next(self._order), item))
            if self.keyed:
                item.fixed = False
                self._absorb_newer(item)

    def hurry(self, chosen: Callable[[QueueItem[T]], bool]) -> bool:
        """End the back-off of the `chosen` items; returns whether there was one. O(n)."""
        now, found = self._now(), False
        with self._lock:
            for at, (due, order, item) in enumerate(self._due):
                if due > now and chosen(item):
                    item.due = now
                    self._due[at] = (now, order, item)
                    found = True
            heapq.heapify(self._due)
        return found

    def exclude_from_limit(self, item: QueueItem[T]) -> None:
        """Do not count a taken item towards `max_running` any longer. Its key stays held."""
        with self._lock:
            if not item.excluded:
                item.excluded = True
                self._running -= 1
                self._excluded += 1
                return_permit(item)

    def share_workers(self, budget: WorkerBudget | None, wake: Callable[[], None]) -> None:
        """Share the permits of a budget from now on; None to need none. Running items keep their permits.

        `wake` is called when the workers of this queue have a turn in the budget.
        """
        with self._lock:
            before, self.budget, self._wake = self.budget, budget, wake
        if before is not None and before is not budget:
            before.leave(self)

    def cut(self) -> int:
        """Begin a new epoch for all queues that share the counter; returns the old one. Never fails."""
        return self._epochs.counter.cut()

    def part(self) -> None:
        """Stop sharing the counter: further cuts of the other queues do not concern this one.

        No other code will come: what is behind a retry, and retries that are due, count as outstanding.
        """
        with self._lock:
            self._epochs.counter = EpochCounter(self._epochs.counter.newest)
            self._parted = True

    def hand_over(self, old: int) -> None:
        """Let the waiting items of epoch `old` belong to the newest epoch."""
        with self._lock:
            self._epochs.hand_over(old)

    def handed_over(self, epoch: int) -> bool:
        """Whether an epoch has a backlog that was handed over to a newer one."""
        return epoch in self._epochs.adopted

    def epoch_of(self, item: QueueItem[T]) -> int:
        """The epoch whose code has to process an item, after hand-overs."""
        epoch, epochs = item.epoch, self._epochs
        if epoch == NO_EPOCH:
            epoch = epochs.counter.newest
        return epochs.of(epoch) if epochs.adopted else epoch

    def outstanding(self, epoch: int) -> int:
        """How many values of exactly this epoch are neither done nor gone.

        After `part`, those that will belong to it are among them, but for what backs off or rests.
        """
        with self._lock:
            found = self._epochs.pending.get(epoch, 0)
            if self._parted and epoch == self._epochs.counter.newest:
                self._wake_due()
                waits_for_time = len(self._due) + self._resting.number
                found += self._epochs.pending.get(NO_EPOCH, 0) - waits_for_time
            return found

    def end_debounce(self) -> bool:
        """End all rests: their values belong to the newest epoch. Returns whether there was one. O(n)."""
        with self._lock:
            self.debounce = 0.0
            rested = self._resting.number > 0
            self._end_rests()
            return rested

    def keep_resting(self) -> tuple[bool, int]:
        """End all rests, and drop all other waiting values but those of the same keys. O(n).

        Returns whether a value has rested, and the number of dropped values. If none has rested, nothing is
        dropped. Values in back-off stay.
        """
        with self._lock:
            self.debounce = 0.0
            if not self._resting.number:
                return False, 0
            waiting = [item for item in self._ready if not item.gone]
            rested = list(self._resting.all())
            keys = {item.key for item in rested}
            behind = [item for holder in self._held.values() for item in passed_behind(holder)]
            dropped = [item for item in (*waiting, *behind) if item.key not in keys]
            self._ready = deque(item for item in waiting if item.key in keys)
            self._vanished = 0
            for item in dropped:
                self._unlink(item)
                self._forget(item)
            for item in rested:
                self._rested(item)
            self._dropped += len(dropped)
            return True, len(dropped)

    def clear(self) -> int:
        """Drop all items that wait or back off; returns how many. Running items stay.

        They count as dropped, and an item in back-off does not count as taken any longer.
        """
        with self._lock:
            resting = [*self._released, *(item for _, _, item in self._due)]
            left = [*resting, *(item for item in self._ready if not item.gone)]
            left += [item for holder in self._held.values() for item in passed_behind(holder)]
            left += self._resting.all()
            for item in resting:
                del self._held[item.key]
            for item in left:
                item.before = item.after = item.rest = None
                self._forget(item)
            for running in self._held.values():
                running.after = None
            self._tail = dict(self._held)
            self._ready.clear()
            self._released.clear()
            self._due.clear()
            self._vanished = 0
            self._dropped += len(left)
            self._taken -= sum(1 for item in left if item.attempts)
            if self.budget is not None:
                self.budget.leave(self)
            return len(left)

    @property
    def epoch(self) -> int:
        """The newest epoch, to which a value belongs that is added now."""
        return self._epochs.counter.newest

    def next_due(self) -> float | None:
        """Seconds until an item may be taken: 0 if one may be taken now, else until the first back-off ends.

        None if no item waits or backs off, if `max_running` items are running, or if the budget has no
        permit.
        """
        with self._lock:
            if self._running >= self.max_running:
                return None
            if self._released or self._ready or (self._resting.number and not self.debounce):
                return 0.0 if self.budget is None else self.budget.wait(self)
            moments = [self._due[0][0]] if self._due else []
            if (rested := self._resting.next()) is not None:
                moments.append(rested)
            return max(0.0, min(moments) - self._now()) if moments else None

    @property
    def turns(self) -> int:
        """The length of the row of turns, with items that are gone."""
        return len(self._ready)

    @property
    def remembered_epochs(self) -> frozenset[int]:
        """The epochs with pending values, and those whose backlog was handed over."""
        with self._lock:
            return frozenset((*self._epochs.pending, *self._epochs.adopted))

    @property
    def idle(self) -> bool:
        """Whether no item waits, runs or backs off."""
        with self._lock:
            return not self._epochs.pending

    def statistics(self) -> KeyedQueueStatistics:
        """The figures of this moment."""
        with self._lock:
            return self._figures()

    def snapshot(self, most: int, running: Iterable[QueueItem[T]] = ()) -> QueueSnapshot:
        """The numbers of this moment, and the next `most` items in the order of their turns.

        The items that run come first: those of `running`, which the owner of the workers knows. The lock is
        held for a time that depends on `most`, and not on the number of items.
        """
        with self._lock:
            figures, now = self._figures(), self._now()
            items = [self._pending_item(item) for item in islice(self._in_order(running, now), most)]
            return QueueSnapshot(figures.waiting, figures.running, figures.backing_off, items)

    # The methods below are called under the lock.

    def _figures(self) -> KeyedQueueStatistics:
        pending = sum(self._epochs.pending.values())
        backing_off, running = len(self._due), self._running + self._excluded
        return KeyedQueueStatistics(
            added=self._added,
            taken=self._taken,
            merged=self._merged,
            dropped=self._dropped,
            waiting=pending - running - backing_off,
            running=running,
            backing_off=backing_off,
            weight=self._weight,
        )

    def _in_order(self, running: Iterable[QueueItem[T]], now: float) -> Iterator[QueueItem[T]]:
        """All items at their turns, as if no further value came and each call took the same time."""
        # The further items of their keys, each to be released when the one before it is done.
        passed: deque[QueueItem[T]] = deque()
        due = smallest_first(self._due)
        later: list[tuple[float, int, QueueItem[T]]] = []  # the first item that is not due yet
        # Some of `running` may be done by now, or back off.
        for item in chain((item for item in running if item.taken), self._released):
            yield item
            passed.extend(_next_passed(item))
        for entry in due:
            if entry[0] > now:
                later.append(entry)
                break
            yield entry[2]
            passed.extend(_next_passed(entry[2]))
        while passed:
            yield passed[0]
            passed.extend(_next_passed(passed.popleft()))
        for item in islice(self._ready, _MOST_LISTED):
            holder = None if item.gone else self._held.get(item.key)
            # What waits behind a retry comes after it, and not at its own turn.
            if not (item.gone or (holder is not None and holder.due is not None and holder.due > now)):
                yield item
        backing_off = ((moment, item) for moment, _, item in chain(later, due))
        resting = ((rest.until, rest.value) for rest in self._resting.soonest())
        for _, item in heapq.merge(backing_off, resting, key=lambda entry: entry[0]):
            yield item
            behind = item.after if item.rest is None else None
            while behind is not None:
                if behind.rest is None:
                    yield behind
                behind = behind.after

    def _pending_item(self, item: QueueItem[T]) -> PendingItem:
        due, epoch = item.due, None
        if item.taken:
            state = ItemState.RUNNING
        elif due is not None:
            state = ItemState.BACKING_OFF
        elif item.rest is not None:
            state, due = ItemState.RESTING, item.rest.until
        else:
            state = ItemState.WAITING if item.before is None else ItemState.BEHIND
        # A value without an epoch is processed by the code that runs when its turn comes.
        if item.epoch != NO_EPOCH:
            epoch = self._epochs.of(item.epoch)
        return PendingItem(
            item.key, state, item.added_at, due, item.attempts, item.retry_state, item.value, epoch
        )

    def _come_back(self, item: QueueItem[T]) -> None:
        return_permit(item)
        item.taken = False
        if item.excluded:
            item.excluded = False
            self._excluded -= 1
        else:
            self._running -= 1

    def _append(self, key: str, value: T, epoch: int, now: float, rests: bool) -> QueueItem[T]:
        tail, weight = self._tail.get(key), self._weigh(value)
        if rests or (tail is not None and self._is_behind_retry(key)):
            epoch = NO_EPOCH
        self._tail[key] = item = QueueItem(key, value, epoch, weight, now, before=tail)
        if tail is not None:
            tail.after = item
        self._weight += weight
        self._epochs.pending[epoch] += 1
        if rests:
            # Values of one key end their rests in their order.
            before = tail.rest.until if tail is not None and tail.rest is not None else 0.0
            item.rest = self._resting.begin(item, now, self.debounce, not_before=before)
        else:
            self._ready.append(item)
        return item

    def _merge_into(self, waiting: QueueItem[T], value: T, epoch: int, now: float) -> bool:
        if waiting.fixed or self.epoch_of(waiting) != epoch:
            return False
        attempted = waiting.attempts > 0 or waiting.retry_state is not None
        remaining = self._merge(waiting.value, value, attempted)
        if len(remaining) > 1 or (attempted and not remaining):
            return False
        if remaining:
            self._merged += 1
            self._replace(waiting, remaining[0])
            if waiting.rest is not None:
                self._resting.extend(waiting.rest, now, self.debounce)
        else:
            self._merged += 2  # neither of the two is handed out
            self._vanish(waiting)
        return True

    def _replace(self, item: QueueItem[T], value: T) -> None:
        weight = self._weigh(value)
        self._weight += weight - item.weight
        item.value, item.weight = value, weight

    def _absorb_newer(self, item: QueueItem[T]) -> None:
        # With `keyed`, a newer value takes the place and the attempts of the one that failed.
        while (newer := item.after) is not None:
            remaining = self._merge(item.value, newer.value, True)
            if len(remaining) != 1:
                return
            self._merged += 1
            self._replace(item, remaining[0])
            self._vanish(newer)

    def _unlink(self, item: QueueItem[T]) -> None:
        before, after = item.before, item.after
        if before is not None:
            before.after = after
        if after is not None:
            after.before = before
        elif before is not None:
            self._tail[item.key] = before
        else:
            del self._tail[item.key]

    def _vanish(self, item: QueueItem[T]) -> None:
        self._unlink(item)
        self._forget(item)
        item.gone = True
        if item.rest is not None:
            self._resting.end(item.rest)
            item.rest = None
        elif self._held.get(item.key) is item:  # it was released, and would have been taken next
            self._released.remove(item)
            del self._held[item.key]
        elif not item.passed:
            del item.value  # the item stays in the row for a while, and must not keep the value alive
            self._vanished += 1
            if self._vanished > _MOST_VANISHED and self._vanished * 2 > len(self._ready):
                self._ready = deque(turn for turn in self._ready if not turn.gone)
                self._vanished = 0

    def _next_turn(self) -> QueueItem[T] | None:
        while self._ready:
            item = self._ready.popleft()
            if item.gone:
                self._vanished -= 1
            elif item.key in self._held:
                item.passed = True  # other keys go on; this item is released when its key is free
            else:
                self._held[item.key] = item
                return item
        return None

    def _release(self, item: QueueItem[T]) -> bool:
        del self._held[item.key]
        following, item.after = item.after, None
        if following is None:
            del self._tail[item.key]
            return False
        following.before = None
        if following.passed:
            self._held[item.key] = following
            self._released.append(following)
        return True

    def _join_epoch(self, item: QueueItem[T], epoch: int) -> None:
        """Move an item that holds its key to an epoch, with the values that wait behind it."""
        item.epoch = self._epochs.move(item.epoch, epoch)
        behind = item.after
        while behind is not None:
            # A value that rests gets its epoch when that ends.
            if behind.rest is None and behind.epoch != epoch:
                behind.epoch = self._epochs.move(behind.epoch, epoch)
            behind = behind.after

    def _is_behind_retry(self, key: str) -> bool:
        """Whether a value of a key waits behind one that is to be retried."""
        holder = self._held.get(key)
        return holder is not None and holder.epoch == NO_EPOCH

    def _wake_due(self) -> None:
        now = self._now()
        while self._due and self._due[0][0] <= now:
            _, _, item = heapq.heappop(self._due)
            item.due = None
            self._released.append(item)

    def _look_rested(self) -> None:
        if not self.debounce:
            self._end_rests()
            return
        for item in self._resting.due(self._now()):
            self._rested(item)

    def _end_rests(self) -> None:
        for item in self._resting.all():
            self._rested(item)

    def _rested(self, item: QueueItem[T]) -> None:
        item.rest = None
        if not self._is_behind_retry(item.key):
            item.epoch = self._epochs.move(item.epoch, self._epochs.counter.newest)
        self._ready.append(item)

    def _forget(self, item: QueueItem[T]) -> None:
        self._weight -= item.weight
        self._epochs.leave(item.epoch)
