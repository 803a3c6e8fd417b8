"""The keyed queue: pending work in arrival order, one at a time for each key, bounded by weight.

This is the heart of delivery: what waits for a handler waits here, as a `QueueItem`. The queue decides and
never waits itself; any thread may call it. What a value means, what it weighs and how two of them merge is
the caller's business. An epoch says on which side of which reload a value was added.
"""

import heapq
import itertools
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from declctl.kit.clock import Clock

T = TypeVar("T")


class QueueItem(msgspec.Struct, Generic[T], eq=False):
    """One pending value on its way. Only the queue changes it; its taker reads it, and may set `retry`.

    `epoch` says before which cut it was added, `attempts` how often it was retried.
    """

    key: str
    value: T
    epoch: int
    weight: int
    added_at: float
    attempts: int = 0
    due: float | None = None  # in back-off until then
    gone: bool = False  # merged away while it waited: its turn is skipped
    passed: bool = False  # its turn came while its key was held: it follows when the key is free
    fixed: bool = False  # seen by a worker: nothing may be merged into it
    overlooked: bool = False  # out, and not waited for any longer
    retry: Any = None  # what its taker remembers until it takes it again; the queue does not look at it
    # The neighbours of its key, none of which is done or gone.
    before: "QueueItem[T] | None" = None
    after: "QueueItem[T] | None" = None

    def __repr__(self) -> str:
        return f"<QueueItem {self.key} of epoch {self.epoch}, {self.attempts} attempts>"


@dataclass(frozen=True, slots=True)
class KeyedQueueStatistics:
    """What went through: added = taken + waiting to be taken for the first time + merged + dropped.

    A value is taken once, however often it is retried, and no longer counts as taken once it is dropped.
    """

    added: int
    taken: int
    merged: int
    dropped: int
    waiting: int
    running: int
    backing_off: int
    weight: int


def passed_behind(holder: QueueItem[T]) -> Iterator[QueueItem[T]]:
    """The items of a held key whose turn has come already: they follow when the key is free."""
    item = holder.after
    while item is not None:
        if item.passed:
            yield item
        item = item.after


NO_EPOCH = -1  # of what backs off: it belongs to the epoch in which it is due


class EpochCounter:
    """The count of epochs, which several may share: one step cuts them all, however many they are."""

    __slots__ = ("newest",)

    def __init__(self, newest: int = 0) -> None:
        self.newest = newest

    def cut(self) -> int:
        """Begin a new epoch; returns the one that ended. Cannot fail."""
        old = self.newest
        self.newest = old + 1
        return old


class Epochs:
    """Counts what is pending of each epoch, and knows which epoch took over another one's backlog.

    Whoever owns it calls it under a lock, and counts in `pending` what it adds to the newest epoch.
    """

    __slots__ = ("adopted", "counter", "pending")

    def __init__(self, epochs: EpochCounter | None = None) -> None:
        self.counter = EpochCounter() if epochs is None else epochs
        self.pending = defaultdict[int, int](int)  # epoch → added and neither done nor gone
        self.adopted: dict[int, int] = {}  # epoch → the one that took over its backlog

    def hand_over(self, old: int) -> None:
        """Let the newest epoch take over the backlog of another one."""
        newest = self.counter.newest
        if old == newest:
            return
        self.adopted[old] = newest
        # Epochs of which nothing is pending are forgotten: no item belongs to them.
        self.adopted = {epoch: self.of(epoch) for epoch in self.adopted if epoch in self.pending}

    def of(self, epoch: int) -> int:
        """Whose the backlog of an epoch is by now."""
        adopted = self.adopted
        while epoch in adopted:
            epoch = adopted[epoch]
        return epoch

    def leave(self, epoch: int) -> None:
        """A value is done or gone."""
        left = self.pending[epoch] - 1
        if left:
            self.pending[epoch] = left
        else:
            del self.pending[epoch]

    def move(self, before: int, epoch: int) -> int:
        """A value goes from one epoch to another; returns the latter."""
        self.pending[epoch] += 1
        self.leave(before)
        return epoch


_MOST_VANISHED = 64  # turns of values that were merged away, before the row is cleared of them


class KeyedQueue(Generic[T]):
    """Values in arrival order, one at a time for each key.

    - Values of one key are handed out in the order they were added, never two at a time.
    - Values of different keys are handed out in the order they were added, except that a held key
      lets others pass.
    - A key is held from `take` until `done`; `retry` keeps holding it until the value is due and
      done.
    - No more than `at_once` are out at the same time, not counting what is overlooked; where it is
      lowered, nothing is handed out until enough have come back.
    - Below `limit` (in the unit of `weigh`) nothing is lost or merged. Beyond it, or always when
      `keyed`, a new value is merged with the one of its key that waits in the same epoch, by
      `merge(waiting, new, attempted)`, which returns the values that remain: none, one, or both;
      a value that was attempted and is on its way back can't be merged to nothing.
    - `cut` starts a new epoch and returns the old one: what was added before it is the old epoch's
      until it is retried or handed over. What backs off belongs to the epoch in which it is due.
      This is how a reload finds its consistent cut without touching what waits.
    - Several queues with one `epochs` counter are cut together, by a step of that.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        weigh: Callable[[T], int],
        merge: Callable[[T, T, bool], Sequence[T]],
        limit: int,
        keyed: bool = False,
        at_once: int = sys.maxsize,
        epochs: EpochCounter | None = None,
    ) -> None:
        self.limit = limit
        self.keyed = keyed
        self.at_once = at_once
        self._now = clock.monotonic
        self._weigh = weigh
        self._merge = merge
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._ready: deque[QueueItem[T]] = (
            deque()
        )  # turns in arrival order; some keys may be held, some be gone
        self._vanished = 0  # how many of them are gone
        self._released: deque[QueueItem[T]] = deque()  # taken before all turns; their keys are held for them
        self._held: dict[str, QueueItem[T]] = {}  # key → the one that runs, backs off or is released
        self._tail: dict[str, QueueItem[T]] = {}  # key → its last one, the only one to be merged into
        self._due: list[tuple[float, int, QueueItem[T]]] = []
        self._epochs = Epochs(epochs)
        self._added = self._taken = self._merged = self._dropped = self._weight = 0
        self._running = self._overlooked = 0  # what is out is one or the other

    def add(self, key: str, value: T) -> None:
        """Append a value of `key`."""
        self.add_all([(key, value)])

    def add_all(self, values: Sequence[tuple[str, T]]) -> None:
        """Append many at once, in their order."""
        with self._lock:
            now, epochs = self._now(), self._epochs
            epoch, pending = epochs.counter.newest, epochs.pending
            self._added += len(values)
            for key, value in values:
                tail = self._tail.get(key)
                full = self.keyed or self._weight >= self.limit
                # Only the last value of a key may take in a newer one: the order of a key is kept.
                if full and tail is not None and self._merge_into(tail, value, epoch):
                    continue
                weight = self._weigh(value)
                self._tail[key] = item = QueueItem(key, value, epoch, weight, now, before=tail)
                if tail is not None:
                    tail.after = item
                self._weight += weight
                pending[epoch] += 1
                self._ready.append(item)

    def take(self) -> QueueItem[T] | None:
        """The next value that may be worked on now, its key held; None if there is none."""
        with self._lock:
            if self._running >= self.at_once:
                return None
            if self._due:
                self._wake_due()
            # What was released waited for its key: its turn in the row has been already.
            item = self._released.popleft() if self._released else self._next_turn()
            if item is None:
                return None
            item.fixed = True  # its worker reads the value: nothing may be merged into it any more
            if item.attempts == 0:
                self._taken += 1
            self._running += 1
            return item

    def done(self, item: QueueItem[T]) -> bool:
        """The value was dealt with; the next of its key may be taken. Whether one waits for that."""
        with self._lock:
            self._come_back(item)
            self._weight -= item.weight
            self._epochs.leave(item.epoch)
            return self._release(item)

    def drop(self, item: QueueItem[T]) -> bool:
        """As `done`, for a value that nothing was done with: it counts as dropped, and not as taken."""
        with self._lock:
            self._taken -= 1
            self._dropped += 1
        return self.done(item)

    def retry(self, item: QueueItem[T], delay: float) -> None:
        """Hand the value out again in `delay` seconds. Its key stays held until that has been done.

        Until it is due, the value belongs to no epoch; then to the one that is the newest at that moment.
        """
        with self._lock:
            self._come_back(item)
            item.attempts += 1
            item.epoch = self._epochs.move(item.epoch, NO_EPOCH)
            item.due = self._now() + delay
            heapq.heappush(self._due, (item.due, next(self._order), item))
            if self.keyed:
                item.fixed = False
                self._absorb_newer(item)

    def hurry(self, chosen: Callable[[QueueItem[T]], bool]) -> bool:
        """Make due now what backs off and is `chosen`; whether there was any. O(n) in what backs off."""
        now, found = self._now(), False
        with self._lock:
            for at, (due, order, item) in enumerate(self._due):
                if due > now and chosen(item):
                    item.due = now
                    self._due[at] = (now, order, item)
                    found = True
            heapq.heapify(self._due)
        return found

    def overlook(self, item: QueueItem[T]) -> None:
        """Wait no longer for one that is out: another may be handed out in its place, but none of its key."""
        with self._lock:
            if not item.overlooked:
                item.overlooked = True
                self._running -= 1
                self._overlooked += 1

    def cut(self) -> int:
        """Start a new epoch for all that share the counter; returns the one that ended. Cannot fail."""
        return self._epochs.counter.cut()

    def part(self) -> None:
        """Share the counter with no other queue any longer: its newest epoch is the last."""
        with self._lock:
            self._epochs.counter = EpochCounter(self._epochs.counter.newest)

    def hand_over(self, old: int) -> None:
        """Give what is left of epoch `old`, except what is running, to the newest epoch."""
        with self._lock:
            self._epochs.hand_over(old)

    def handed_over(self, epoch: int) -> bool:
        """Whether that epoch has a backlog that belongs to a newer one."""
        return epoch in self._epochs.adopted

    def epoch_of(self, item: QueueItem[T]) -> int:
        """The epoch whose target shall work on this item, after hand-overs."""
        epoch, epochs = item.epoch, self._epochs
        if epoch == NO_EPOCH:
            epoch = epochs.counter.newest
        return epochs.of(epoch) if epochs.adopted else epoch

    def outstanding(self, epoch: int) -> int:
        """How many values of exactly that epoch are neither done nor gone."""
        with self._lock:
            return self._epochs.pending.get(epoch, 0)

    def clear(self) -> int:
        """Drop all that waits or backs off; returns how many. What is running goes on.

        All of them count as dropped: one that backs off counts as taken no longer.
        """
        with self._lock:
            resting = [*self._released, *(item for _, _, item in self._due)]
            left = [*resting, *(item for item in self._ready if not item.gone)]
            left += [item for holder in self._held.values() for item in passed_behind(holder)]
            for item in resting:
                del self._held[item.key]
            for item in left:
                item.before = item.after = None
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
            return len(left)

    @property
    def epoch(self) -> int:
        """The newest epoch: what is added now belongs to it."""
        return self._epochs.counter.newest

    def next_due(self) -> float | None:
        """Seconds until the first value in back-off is due; zero if something may be taken now.

        None if nothing is pending, or if as many are out as may be.
        """
        with self._lock:
            if self._running >= self.at_once:
                return None
            if self._released or self._ready:
                return 0.0
            return max(0.0, self._due[0][0] - self._now()) if self._due else None

    @property
    def turns(self) -> int:
        """How long the row of turns is, with those of values that were merged away."""
        return len(self._ready)

    @property
    def remembered_epochs(self) -> frozenset[int]:
        """The epochs of which values are pending, or whose backlog was handed over."""
        with self._lock:
            return frozenset((*self._epochs.pending, *self._epochs.adopted))

    @property
    def idle(self) -> bool:
        """Whether nothing waits, runs or backs off."""
        with self._lock:
            return not self._epochs.pending

    def statistics(self) -> KeyedQueueStatistics:
        """The figures of this moment."""
        with self._lock:
            pending = sum(self._epochs.pending.values())
            backing_off, running = len(self._due), self._running + self._overlooked
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

    # What follows is called under the lock.

    def _come_back(self, item: QueueItem[T]) -> None:
        if item.overlooked:
            item.overlooked = False
            self._overlooked -= 1
        else:
            self._running -= 1

    def _merge_into(self, waiting: QueueItem[T], value: T, epoch: int) -> bool:
        if waiting.fixed or self.epoch_of(waiting) != epoch:
            return False
        attempted = waiting.attempts > 0
        remaining = self._merge(waiting.value, value, attempted)
        if len(remaining) > 1 or (attempted and not remaining):
            return False
        if remaining:
            self._merged += 1
            self._replace(waiting, remaining[0])
        else:
            self._merged += 2  # neither of the two will be delivered
            self._vanish(waiting)
        return True

    def _replace(self, item: QueueItem[T], value: T) -> None:
        weight = self._weigh(value)
        self._weight += weight - item.weight
        item.value, item.weight = value, weight

    def _absorb_newer(self, item: QueueItem[T]) -> None:
        # Under `keyed` a newer value takes the place and the attempts of the one that failed.
        while (newer := item.after) is not None:
            remaining = self._merge(item.value, newer.value, True)
            if len(remaining) != 1:
                return
            self._merged += 1
            self._replace(item, remaining[0])
            self._vanish(newer)

    def _vanish(self, item: QueueItem[T]) -> None:
        before, after = item.before, item.after
        if before is not None:
            before.after = after
        if after is not None:
            after.before = before
        elif before is not None:
            self._tail[item.key] = before
        else:
            del self._tail[item.key]
        self._forget(item)
        item.gone = True
        if self._held.get(item.key) is item:  # its turn had come: it was the next to be taken
            self._released.remove(item)
            del self._held[item.key]
        elif not item.passed:
            del item.value  # the turn stays in the row for a while, and shall not keep the value alive
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
                item.passed = True  # the others may go on; it follows when its key is free
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

    def _wake_due(self) -> None:
        now = self._now()
        while self._due and self._due[0][0] <= now:
            _, _, item = heapq.heappop(self._due)
            item.due = None
            item.epoch = self._epochs.move(item.epoch, self._epochs.counter.newest)
            self._released.append(item)

    def _forget(self, item: QueueItem[T]) -> None:
        self._weight -= item.weight
        self._epochs.leave(item.epoch)
