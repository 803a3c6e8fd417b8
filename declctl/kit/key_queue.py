"""The queue of a handler: what waits for its workers, and when a key comes again.

    add ──┬───────────────────────▶ WAITING ──▶ take ──▶ RUNNING ──┬──▶ done, drop: it leaves
          ├─▶ RESTING (debounce) ─────▲ ▲                  │       └──▶ retry: BACKING_OFF ──▶ WAITING
          ├─▶ BEHIND (what its key has) ┘                  └─▶ OVERDUE: it holds its key until its call
          └─▶ REQUEUED (later) ──▶ WAITING                     returns, and counts towards no limit

Of a reconciler, a key whose turn has come may also be AWAITS_CACHE, until its gate releases it.

`KeyQueue` is what two kinds of queues share: rows of turns, the heap of what is due later, epochs, the limit
of workers, and figures. They differ in what a key may have. `ChangeQueue` has all values of a key, in order.
The `ReconcileQueue` of `workqueue` has each key once, with the reasons for it.

A queue decides and never waits; any thread may call it. No operation looks at all items, but for those that
say O(n).
"""

import heapq
import itertools
import sys
import threading
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from declctl.kit.clock import Clock
from declctl.kit.pending import ItemState, smallest_first
from declctl.kit.worker_budget import WorkerBudget

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

LIVE_IN_A_ROW = 4  # items of the first row that are handed out before one of the second row has its turn
LONGEST_REST = 10  # times the debounce, for which a value rests at most
NO_EPOCH = -1  # of an item whose turn has not come: that of its worker's `take` decides
_FEW = 64  # entries of items that are elsewhere by now, which are not worth a new row or heap
# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every change.
_RUNNING, _OVERDUE, _LEFT = ItemState.RUNNING, ItemState.OVERDUE, ItemState.LEFT
_WAITING, _RESTING = ItemState.WAITING, ItemState.RESTING
_BACKING_OFF, _REQUEUED = ItemState.BACKING_OFF, ItemState.REQUEUED


class Item(msgspec.Struct, Generic[K, T], eq=False):
    """One thing to do for a key. The queue changes it; its worker may set `retry_state` and the value."""

    key: K
    value: T  # what a worker receives
    added_at: float  # monotonic seconds; of a key, also when its time has come, and when it was taken
    # The code that has to process it. Of a change: that of the epoch in which it was added, its rest ended,
    # or it was taken again after a failure. Of a reconciler's key: that of the epoch in which it was taken.
    epoch: int = NO_EPOCH
    state: ItemState = _WAITING
    priority: int = 0  # the number of its row
    in_row: bool = False  # its turn has not come
    weight: int = 0  # in the unit of the queue's `weigh`
    attempts: int = 0  # calls of `retry`
    due: float | None = None  # monotonic seconds of the end of its rest, back-off or delay; else None
    entry: int = 0  # the number of its entry in the heap of what is due later
    latest: float = 0.0  # of a rest: `due` is never later
    budget: WorkerBudget | None = None  # whose permit it holds
    retry_state: Any = None  # for the worker, which stores here what the next attempt needs
    # Of the first item of a key in a queue of changes: the others, in their order. The last ones may rest.
    behind: "list[Item[K, T]] | None" = None
    again: bool = False  # of a listed copy: its key was added since a worker has it, and comes once more

    def __repr__(self) -> str:
        return f"<Item {self.key} of epoch {self.epoch}, {self.state}, {self.attempts} attempts>"

    @property
    def is_taken(self) -> bool:
        """Whether a worker has it: it has called neither `done` nor `drop` nor `retry`."""
        return self.state is _RUNNING or self.state is _OVERDUE


QueueItem = Item[str, T]
"""An item whose key is that of an object."""


class QueueFigures(msgspec.Struct, frozen=True):
    """The figures of a queue.

    Of a `ChangeQueue`: added = taken + waiting for the first time + merged + dropped. A value that is retried
    counts as taken once. A value that is dropped does not count as taken.
    """

    added: int
    taken: int
    merged: int
    dropped: int
    waiting: int  # now, neither running nor in back-off
    running: int  # taken and not done, now
    backing_off: int  # now
    requeued: int  # now: what calls have asked for
    weight: int  # of all pending values, now


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


class _Turns(Generic[K, T]):
    """Items in the order of their turns.

    An item has its place in it also while an earlier value of its key is not done. If its turn comes
    meanwhile it is passed over, and goes before all others when its key is free. So does what is to be
    retried.
    """

    __slots__ = ("_left", "_line", "_passed", "_priority", "waiting")

    def __init__(self, priority: int) -> None:
        self._priority = priority
        self._line: deque[Item[K, T]] = deque()
        self._passed: deque[Item[K, T]] = deque()  # whose turns had come before
        self._left = 0  # entries of items that have left before their turns
        self.waiting = 0  # items that may be taken

    def add(self, item: Item[K, T], state: ItemState = _WAITING) -> None:
        """Add an item at the end."""
        item.state, item.in_row = state, True
        self._line.append(item)
        if state is _WAITING:
            self.waiting += 1

    def free(self, item: Item[K, T]) -> None:
        """Let an item be taken that was added before: at its turn, or first if that has come."""
        item.state = _WAITING
        self.waiting += 1
        if not item.in_row:
            item.in_row = True
            self._passed.append(item)

    def pop(self) -> Item[K, T]:
        """Remove and return the item whose turn it is; raises IndexError if there is none."""
        while True:
            item = (self._passed or self._line).popleft()
            if not (item.in_row and item.priority == self._priority):  # as `_counts`, without a call
                self._left -= 1
                continue
            item.in_row = False
            if item.state is _WAITING:
                self.waiting -= 1
                return item

    def leave(self, item: Item[K, T]) -> None:
        """Remove an item before its turn."""
        item.in_row = False
        self.waiting -= item.state is _WAITING
        self._left += 1
        if self._left > _FEW and 2 * self._left > self.size:
            self._line = deque(filter(self._counts, self._line))
            self._passed = deque(filter(self._counts, self._passed))
            self._left = 0

    def passed(self) -> Iterator[Item[K, T]]:
        """The items whose turns had come before. The row must not change meanwhile."""
        return filter(self._counts, self._passed)

    def line(self) -> Iterator[Item[K, T]]:
        """The others, by their turns. The row must not change meanwhile."""
        return filter(self._counts, self._line)

    @property
    def size(self) -> int:
        """The number of entries, with those of items that have left."""
        return len(self._line) + len(self._passed)

    def _counts(self, item: Item[K, T]) -> bool:
        return item.in_row and item.priority == self._priority


class KeyQueue(ABC, Generic[K, T]):
    """Items that wait for workers, one at a time for each key. From any thread; no method waits.

    - A key is held from `take` until `done` or `drop`; a `ReconcileQueue` frees it at `retry`, too.
    - Items are handed out by their rows and turns: after each `LIVE_IN_A_ROW` items of the first row one of
      the second.
    - At most `max_running` items are running at the same time, without those of `exclude_from_limit`. After a
      decrease of `max_running`, no item is handed out until enough are done.
    - With a budget (`share_workers`), an item is handed out only with a permit of it.
    - With `debounce`, what is new rests: it waits only when nothing further has come for its key for so many
      seconds, and after `LONGEST_REST` times as many at the latest.
    - `cut` begins a new epoch, such as a reload, without touching the queue. Queues with the same `epochs`
      counter are cut together. A change belongs to one epoch when its turn has come; a reconciler's key, and
      what is to be retried, to the one in which it is taken. So a failure that was mended meanwhile is not
      repeated.
    """

    def __init__(
        self, *, clock: Clock, epochs: EpochCounter | None = None, max_running: int | None = None
    ) -> None:
        self.max_running = sys.maxsize if max_running is None else max_running
        self.debounce = 0.0  # seconds; 0 ends all rests
        self.budget: WorkerBudget | None = None
        self._wake: Callable[[], None] = lambda: None  # of the workers, when it is their turn in the budget
        self._now = clock.monotonic
        self._lock = threading.Lock()
        self._order = itertools.count(1)  # of items that are due at the same time
        self._rows: tuple[_Turns[K, T], _Turns[K, T]] = (_Turns(0), _Turns(1))
        self._in_a_row = 0  # items of the first row that were handed out since the last one of the second
        # A heap of what rests, backs off or was asked for. A rest that was extended is in it with an earlier
        # time, and an item whose `due` has ended early is in it for a while.
        self._later: list[tuple[float, int, Item[K, T]]] = []
        self._ended = 0  # entries of `_later` that stand for nothing
        self._epochs = EpochCounter() if epochs is None else epochs
        self._pending = defaultdict[int, int](int)  # by epoch: items that have not left; never 0
        self._adopted: dict[int, int] = {}  # by epoch: the one that took over its backlog
        self._added = self._taken = self._merged = self._dropped = self._weight = 0
        self._out: dict[K, Item[K, T]] = {}  # by key: what workers have, the longest first
        self._running = 0  # items, now; without those that are overdue
        self._number: dict[ItemState, int] = {_RESTING: 0, _BACKING_OFF: 0, _REQUEUED: 0}  # items, by state
        # Keys of which something has come or gone since `take_changes`; None before its first call.
        self._changed: set[K] | None = None
        self._dropped_items: dict[K, Sequence[Item[K, T]]] = {}  # by key, as they were before `clear`

    # What the two kinds of queues do differently. Called under the lock.

    @abstractmethod
    def _took(self, item: Item[K, T]) -> None:
        """An item is handed out: let it belong to the newest epoch, if it belongs to none."""

    @abstractmethod
    def _freed(self, item: Item[K, T]) -> bool:
        """The worker of an item, which has left, frees its key; returns whether the key waits again."""

    @abstractmethod
    def _came_due(self, item: Item[K, T], state: ItemState) -> None:
        """Let an item wait whose time has come; `state` is what it was in until now."""

    @abstractmethod
    def _drop_all(self) -> int:
        """Drop all items but those that workers have; returns how many count as dropped."""

    @abstractmethod
    def _drop_chosen(self, chosen: Callable[[Item[K, T]], bool]) -> int:
        """Drop the chosen ones of the items that no worker has; returns how many count as dropped."""

    @abstractmethod
    def _pending_of(self, key: K) -> Item[K, T] | None:
        """What a worker may take of a key, now or later; None for nothing, or if a worker has the key."""

    @abstractmethod
    def _all_of(self, key: K) -> Iterable[Item[K, T]]:
        """All items of a key, also what a worker has; the first one first."""

    @abstractmethod
    def _keys(self) -> Iterable[K]:
        """The keys of all items."""

    @abstractmethod
    def _in_order(self) -> Iterator[Item[K, T]]:
        """All items at their turns, as if nothing further came and each call took the same time."""

    # Workers

    def take(self) -> Item[K, T] | None:
        """Take the next item, and hold its key; None if no item may be taken now."""
        with self._lock:
            budget, is_free = self.budget, self._running < self.max_running
            if is_free and self._later:
                self._look_at_later()
            if budget is not None:
                if not (is_free and self._has_turn()):
                    budget.leave(self)
                    return None
                if not budget.acquire(self, self._wake):
                    return None
            item = self._next() if is_free else None
            if item is None:
                if budget is not None:
                    budget.release()
                return None
            item.budget = budget
            return self._handed_out(item)

    def take_key(self, key: K) -> Item[K, T] | None:
        """Take the item of a key out of its turn, however long it would rest, back off or be held.

        None if the key does not wait, or if a worker has it. Limits do not count. A replay calls it, which
        makes the calls in the order of a recording.
        """
        with self._lock:
            item = self._pending_of(key)
            if item is None:
                return None
            if item.due is not None:
                self._come_now(item)
                item = self._pending_of(key)  # it may have been merged with what has waited
                assert item is not None
            if item.in_row:
                self._rows[item.priority].leave(item)
            return self._handed_out(item)

    def done(self, item: Item[K, T]) -> bool:
        """Note that an item was processed, and free its key; returns whether the key waits again."""
        with self._lock:
            self._come_back(item)
            self._leave(item)
            return self._freed(item)

    def drop(self, item: Item[K, T]) -> bool:
        """As `done`, for an item that was not processed: it counts as dropped, and not as taken."""
        with self._lock:
            self._taken -= 1
            self._dropped += 1
        return self.done(item)

    @abstractmethod
    def retry(self, item: Item[K, T], delay: float) -> None:
        """Hand a taken item out again in `delay` seconds, or with a newer value if the queue allows it.

        Until it is taken again it belongs to no epoch. Many retries may be due together: those that wait for
        a worker at a `cut` belong to the new epoch, as those that are due later.
        """

    def hurry(self, chosen: Callable[[Item[K, T]], bool]) -> bool:
        """End the back-off of the `chosen` items; returns whether there was one. O(n)."""
        with self._lock:
            ended = [item for item in self._until(_BACKING_OFF) if chosen(item)]
            for item in ended:
                self._come_now(item)
            return bool(ended)

    def exclude_from_limit(self, item: Item[K, T]) -> None:
        """Do not count a taken item towards `max_running` any longer. Its key stays held."""
        with self._lock:
            if item.state is _RUNNING:
                item.state = _OVERDUE
                self._running -= 1
                _return_permit(item)

    def share_workers(self, budget: WorkerBudget | None, wake: Callable[[], None]) -> None:
        """Share the permits of a budget from now on; None to need none. Running items keep their permits.

        `wake` is called when the workers of this queue have a turn in the budget.
        """
        with self._lock:
            before, self.budget, self._wake = self.budget, budget, wake
        if before is not None and before is not budget:
            before.leave(self)

    def next_due(self) -> float | None:
        """Seconds until an item may be taken: 0 if one may be taken now, else until the first one is due.

        None if there is none, if `max_running` items are running, or if the budget has no permit.
        """
        with self._lock:
            return None if self._running >= self.max_running else self._seconds_to_turn()

    # Epochs

    @property
    def epoch(self) -> int:
        """The newest epoch."""
        return self._epochs.newest

    def part(self) -> None:
        """Stop sharing the counter: further cuts of the other queues do not concern this one."""
        with self._lock:
            self._epochs = EpochCounter(self._epochs.newest)

    def cut(self) -> int:
        """Begin a new epoch for all queues that share the counter; returns the old one. Never fails."""
        return self._epochs.cut()

    def hand_over(self, old: int) -> None:
        """Let the waiting items of epoch `old` belong to the newest epoch."""
        newest = self._epochs.newest
        if old != newest:
            with self._lock:
                owners = {**self._adopted, old: newest}.items()
                # No item belongs to an epoch of which nothing is pending: it is forgotten.
                self._adopted = {e: newest if to == old else to for e, to in owners if e in self._pending}

    def outstanding(self, epoch: int) -> int:
        """How many items the code of an epoch has to process, or has begun."""
        with self._lock:
            if not self._adopted:
                return self._pending.get(epoch, 0)
            found = sum(number for each, number in self._pending.items() if self._owner(each) == epoch)
            for item in self._out.values():  # what runs stays with the code that has begun it
                found += (item.epoch == epoch) - (self._owner(item.epoch) == epoch)
            return found

    @property
    def remembered_epochs(self) -> frozenset[int]:
        """The epochs with pending items, and those whose backlog was handed over."""
        with self._lock:
            return frozenset((*self._pending, *self._adopted))

    # The end, and figures

    def clear(self) -> int:
        """Drop all items that wait, rest or back off; returns how many. O(n). Running items stay."""
        with self._lock:
            dropped = self._drop_unnoted(self._drop_all)
            self._rows, self._in_a_row = (_Turns(0), _Turns(1)), 0
            self._later.clear()
            self._ended, self._number = 0, dict.fromkeys(self._number, 0)
            self._dropped += dropped
            if self.budget is not None:
                self.budget.leave(self)
            return dropped

    def drop_chosen(self, chosen: Callable[[Item[K, T]], bool]) -> int:
        """Drop the chosen ones of the items that wait, rest or back off; returns how many. O(n).

        Of a key with several values, the first one decides, and what waits behind it goes with it. `chosen`
        is called under the lock.
        """
        with self._lock:
            dropped = self._drop_chosen(chosen)
            self._dropped += dropped
            return dropped

    def taken(self) -> Sequence[Item[K, T]]:
        """The items that workers have."""
        with self._lock:
            return tuple(self._out.values())

    @property
    def idle(self) -> bool:
        """Whether no item waits, rests, runs or backs off. What a call has asked for does not count."""
        with self._lock:
            return sum(self._pending.values()) == self._number[_REQUEUED]

    @property
    def turns(self) -> int:
        """The length of the rows, with items that are elsewhere by now."""
        return sum(row.size for row in self._rows)

    def statistics(self) -> QueueFigures:
        """The figures of this moment."""
        with self._lock:
            return self._figures()

    def snapshot(self, most: int) -> tuple[QueueFigures, Sequence[Item[K, T]]]:
        """The figures of this moment, and copies of the next `most` items in the order of their turns.

        The items that run come first. The lock is held for a time that depends on `most`, and not on the
        number of items.
        """
        with self._lock:
            self._look_at_later()
            return self._figures(), [self._listed(item) for item in islice(self._in_order(), most)]

    def take_changes(self, *, whole: bool = False) -> Mapping[K, Sequence[Item[K, T]]]:
        """Copies of all items of the keys of which something has come or gone since the last call.

        At the first call, and with `whole`, of all keys; O(n) then. What is dropped at the end of the process
        counts as if it still waited: the next process goes on with it.
        """
        with self._lock:
            if whole:
                self._changed = None
            keys = self._keys() if self._changed is None else self._changed
            self._changed = set()
            found = {key: [replace(item, behind=None) for item in self._all_of(key)] for key in keys}
            return {**found, **self._dropped_items}

    # The methods below are called under the lock.

    def _handed_out(self, item: Item[K, T]) -> Item[K, T]:
        """Let a worker have an item."""
        item.state = _RUNNING
        self._out[item.key] = item
        self._running += 1
        if not item.attempts:
            self._taken += 1
        self._took(item)
        return item

    def _figures(self) -> QueueFigures:
        running, pending = len(self._out), sum(self._pending.values())
        return QueueFigures(
            added=self._added,
            taken=self._taken,
            merged=self._merged,
            dropped=self._dropped,
            waiting=pending - running - self._number[_BACKING_OFF] - self._number[_REQUEUED],
            running=running,
            backing_off=self._number[_BACKING_OFF],
            requeued=self._number[_REQUEUED],
            weight=self._weight,
        )

    def _listed(self, item: Item[K, T]) -> Item[K, T]:
        """A copy of an item, of the epoch whose code processes it by now."""
        if item.is_taken:
            return replace(item, state=_RUNNING)
        return replace(item, epoch=self._owner(item.epoch))

    def _owner(self, epoch: int) -> int:
        """The epoch to which the backlog of an epoch belongs now."""
        return self._adopted.get(epoch, epoch)

    def _has_turn(self) -> bool:
        """Whether a worker may find an item now."""
        return self._rows[0].waiting > 0 or self._rows[1].waiting > 0

    def _seconds_to_turn(self) -> float | None:
        first, second = self._rows
        if first.waiting or second.waiting or (self._number[_RESTING] and not self.debounce):
            return 0.0 if self.budget is None else self.budget.wait(self)
        later = self._first_later()
        return None if later is None or later.due is None else max(0.0, later.due - self._now())

    def _next(self) -> Item[K, T] | None:
        first, second = self._rows
        if second.waiting and (not first.waiting or self._in_a_row >= LIVE_IN_A_ROW):
            self._in_a_row = 0
            return second.pop()
        if not first.waiting:
            return None
        self._in_a_row += 1
        return first.pop()

    def _in_turns(self) -> Iterator[Item[K, T]]:
        """What waits, in the order in which `_next` would hand it out if nothing further came.

        For a queue in which no item is passed over.
        """
        rows = [row.line() for row in self._rows]
        first, second = (next(row, None) for row in rows)
        in_a_row = self._in_a_row
        while first is not None or second is not None:
            if second is not None and (first is None or in_a_row >= LIVE_IN_A_ROW):
                in_a_row = 0
                yield second
                second = next(rows[1], None)
            elif first is not None:
                in_a_row += 1
                yield first
                first = next(rows[0], None)

    def _drop_unnoted(self, drop: Callable[[], int]) -> int:
        """Drop items, which `take_changes` tells as if they had stayed."""
        if self._changed is not None:
            for key in self._keys():
                items = [replace(item, behind=None) for item in self._all_of(key) if not item.is_taken]
                if items:
                    self._dropped_items[key] = items
        return drop()

    def _note(self, key: K) -> None:
        """Something has come or gone of a key."""
        if self._changed is not None:
            self._changed.add(key)

    def _come_back(self, item: Item[K, T]) -> None:
        """An item comes back from its worker."""
        self._note(item.key)
        _return_permit(item)
        del self._out[item.key]
        self._running -= item.state is _RUNNING

    def _leave(self, item: Item[K, T]) -> None:
        """An item leaves the queue."""
        self._note(item.key)
        item.state = _LEFT
        self._weight -= item.weight
        self._leave_epoch(item.epoch)

    def _leave_epoch(self, epoch: int) -> None:
        if left := self._pending[epoch] - 1:
            self._pending[epoch] = left
        else:
            del self._pending[epoch]

    def _move(self, item: Item[K, T], epoch: int) -> None:
        """Let an item belong to another epoch."""
        if item.epoch != epoch:
            self._pending[epoch] += 1
            self._leave_epoch(item.epoch)
            item.epoch = epoch

    def _wait_until(self, item: Item[K, T], state: ItemState, due: float) -> None:
        """Let an item come at a time of its own."""
        item.state, item.due, item.entry = state, due, next(self._order)
        heapq.heappush(self._later, (due, item.entry, item))
        self._number[state] += 1

    def _end_delay(self, item: Item[K, T]) -> ItemState:
        """End the time for which an item waits; returns the state that it had. Its entry is still there."""
        item.due = None
        self._number[item.state] -= 1
        self._ended += 1
        if self._ended > _FEW and 2 * self._ended > len(self._later):
            self._later = list(filter(_stands, self._later))
            heapq.heapify(self._later)
            self._ended = 0
        return item.state

    def _come_now(self, item: Item[K, T]) -> None:
        """End the delay of an item, and let it wait."""
        self._came_due(item, self._end_delay(item))

    def _first_later(self) -> Item[K, T] | None:
        """The item that is due first; None if none is due later."""
        while self._later:
            at, entry, item = self._later[0]
            if not _stands(self._later[0]):
                heapq.heappop(self._later)
                self._ended -= 1
            elif item.due is not None and item.due > at:  # a rest that was extended
                heapq.heapreplace(self._later, (item.due, entry, item))
            else:
                return item
        return None

    def _look_at_later(self) -> None:
        """Let all items come whose time has come."""
        if self._number[_RESTING] and not self.debounce:
            self._end_rests()
        if not self._later or self._later[0][0] > (now := self._now()):
            return
        while (item := self._first_later()) is not None and item.due is not None and item.due <= now:
            self._come_now(item)

    def _rest(self, item: Item[K, T], now: float, *, not_before: float = 0.0) -> None:
        """Let a new item rest; at least until `not_before`."""
        item.latest = max(now + LONGEST_REST * self.debounce, not_before)
        self._wait_until(item, _RESTING, max(now + self.debounce, not_before))

    def _rest_longer(self, item: Item[K, T], now: float) -> None:
        """Something new has come for an item that rests. Never shortens a rest."""
        assert item.due is not None
        item.due = max(item.due, min(now + self.debounce, item.latest))

    def _until(self, state: ItemState) -> list[Item[K, T]]:
        """What rests or backs off, in the order of the ends. O(n)."""
        found = [e[2] for e in self._later if _stands(e) and e[2].state is state]
        return sorted(found, key=lambda item: (item.due or 0.0, item.entry))

    def _end_rests(self) -> None:
        for item in self._until(_RESTING):
            self._come_now(item)

    def _soonest(self) -> Iterator[Item[K, T]]:
        """What is due later, by the time; a rest that was extended may come too early."""
        return (entry[2] for entry in smallest_first(self._later) if _stands(entry))


def _stands(entry: tuple[float, int, Item[Any, Any]]) -> bool:
    """Whether an item is still due by an entry of the heap, now or later."""
    return entry[2].due is not None and entry[2].entry == entry[1]


def _return_permit(item: Item[Any, Any]) -> None:
    """Return the permit that an item holds, if it holds one."""
    if item.budget is not None:
        budget, item.budget = item.budget, None
        budget.release()
