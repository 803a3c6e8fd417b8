"""Pending work in arrival order, one at a time for each key, bounded by weight.

This is the heart of delivery: what waits for a handler waits here. It decides and never waits
itself; any thread may call it. What a value means, what it weighs and how two of them merge is the
caller's business.
"""

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from declctl.kit.clock import Clock

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Ticket(Generic[T]):
    """One pending value on its way. Only `Lanes` changes it; who took it reads it.

    `epoch` says before which cut it was added, `attempts` how often it was retried.
    """

    key: str
    value: T
    epoch: int
    weight: int
    added_at: float
    attempts: int = 0
    due: float | None = None  # in back-off until then
    gone: bool = False  # merged away to nothing while it waited


@dataclass(frozen=True, slots=True)
class LanesStatistics:
    """What went through: added = taken for the first time + waiting for it + merged + dropped."""

    added: int
    taken: int
    merged: int
    dropped: int
    waiting: int
    running: int
    backing_off: int
    weight: int


class Lanes(Generic[T]):
    """Values in arrival order, in one lane for each key.

    - Values of one key are handed out in the order they were added, never two at a time.
    - Values of different keys are handed out in the order they were added, except that a held key
      lets others pass.
    - A key is held from `take` until `done`; `retry` keeps holding it until the value is due and
      done.
    - Below `limit` (in the unit of `weigh`) nothing is lost or merged. Beyond it, or always when
      `keyed`, a new value is merged with the one of its key that waits in the same epoch, by
      `merge(waiting, new, attempted)`, which returns the values that remain: none, one, or both.
    - `cut` starts a new epoch and returns the old one: what was added before it is the old epoch's
      until it is retried or handed over. This is how a reload finds its consistent cut without
      touching what waits.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        weigh: Callable[[T], int],
        merge: Callable[[T, T, bool], Sequence[T]],
        limit: int,
        keyed: bool = False,
    ) -> None:
        self.limit = limit
        self.keyed = keyed
        self._clock = clock
        self._weigh = weigh
        self._merge = merge
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._ready: deque[Ticket[T]] = deque()  # arrival order; the key of a ticket here may be held
        self._released: deque[Ticket[T]] = deque()  # their keys are held for them
        self._held: dict[
            str, deque[Ticket[T]]
        ] = {}  # key → what waits behind the one that is running or backing off
        self._tail: dict[
            str, Ticket[T]
        ] = {}  # key → the last one that waits, the only one that may be merged into
        self._due: list[tuple[float, int, Ticket[T]]] = []
        self._outstanding: dict[int, int] = {0: 0}  # epoch → added and neither done nor gone
        self._adopted: dict[int, int] = {}  # epoch → the one that took over its backlog
        self._epoch = 0
        self._added = self._taken = self._merged = self._dropped = self._running = self._weight = 0

    def add(self, key: str, value: T) -> None:
        """Append a value of `key`."""
        with self._lock:
            self._add(key, value)

    def add_all(self, values: Sequence[tuple[str, T]]) -> None:
        """Append many at once, in their order."""
        with self._lock:
            for key, value in values:
                self._add(key, value)

    def take(self) -> Ticket[T] | None:
        """The next value that may be worked on now, its key held; None if there is none."""
        with self._lock:
            self._wake_due()
            while self._released or self._ready:
                ticket = self._pop_released() if self._released else self._pop_ready()
                if ticket is None:
                    continue
                if self._tail.get(ticket.key) is ticket:
                    del self._tail[ticket.key]
                if ticket.attempts == 0:
                    self._taken += 1
                self._running += 1
                return ticket
            return None

    def done(self, ticket: Ticket[T]) -> None:
        """The value was dealt with; the next of its key may be taken."""
        with self._lock:
            self._running -= 1
            self._forget(ticket)
            self._release(ticket.key)

    def retry(self, ticket: Ticket[T], delay: float) -> None:
        """Hold the key and hand the value out again in `delay` seconds, in the newest epoch."""
        with self._lock:
            self._running -= 1
            ticket.attempts += 1
            self._outstanding[self._epoch] += 1
            self._leave(ticket.epoch)
            ticket.epoch = self._epoch
            ticket.due = self._clock.monotonic() + delay
            heapq.heappush(self._due, (ticket.due, next(self._order), ticket))
            if self.keyed:
                self._absorb_newer(ticket)

    def cut(self) -> int:
        """Start a new epoch; returns the one that ended. O(1), and cannot fail."""
        with self._lock:
            old = self._epoch
            self._epoch += 1
            self._outstanding[self._epoch] = 0
            return old

    def hand_over(self, old: int) -> None:
        """Give what is left of epoch `old`, except what is running, to the newest epoch."""
        with self._lock:
            if old != self._epoch:
                self._adopted[old] = self._epoch

    def handed_over(self, epoch: int) -> bool:
        """Whether that epoch's backlog belongs to a newer one."""
        return epoch in self._adopted

    def epoch_of(self, ticket: Ticket[T]) -> int:
        """The epoch whose target shall work on this ticket, after hand-overs."""
        epoch = ticket.epoch
        while epoch in self._adopted:
            epoch = self._adopted[epoch]
        return epoch

    def outstanding(self, epoch: int) -> int:
        """How many values of exactly that epoch are neither done nor gone."""
        with self._lock:
            return self._outstanding.get(epoch, 0)

    def clear(self) -> int:
        """Drop all that waits or backs off; returns how many. What is running goes on."""
        with self._lock:
            left = [t for t in self._ready if not t.gone]
            left += [t for t in self._released if not t.gone]
            left += [t for lane in self._held.values() for t in lane if not t.gone]
            left += [t for _, _, t in self._due if not t.gone and t.due is not None]
            released = {t.key for t in self._released} | {t.key for _, _, t in self._due}
            self._ready.clear()
            self._released.clear()
            self._due.clear()
            self._tail.clear()
            for key in released:
                self._held.pop(key, None)
            for lane in self._held.values():
                lane.clear()
            for ticket in left:
                self._forget(ticket)
            self._dropped += sum(1 for t in left if t.attempts == 0)
            return len(left)

    @property
    def epoch(self) -> int:
        """The newest epoch: what is added now belongs to it."""
        return self._epoch

    def next_due(self) -> float | None:
        """Seconds until the first value in back-off is due; zero if something may be taken now.

        None if nothing is pending.
        """
        with self._lock:
            if self._released or self._ready:
                return 0.0
            return max(0.0, self._due[0][0] - self._clock.monotonic()) if self._due else None

    @property
    def idle(self) -> bool:
        """Whether nothing waits, runs or backs off."""
        with self._lock:
            return not any(self._outstanding.values())

    def statistics(self) -> LanesStatistics:
        """The figures of this moment."""
        with self._lock:
            pending = sum(self._outstanding.values())
            backing_off = sum(1 for _, _, ticket in self._due if not ticket.gone)
            return LanesStatistics(
                added=self._added,
                taken=self._taken,
                merged=self._merged,
                dropped=self._dropped,
                waiting=pending - self._running - backing_off,
                running=self._running,
                backing_off=backing_off,
                weight=self._weight,
            )

    # What follows is called under the lock.

    def _add(self, key: str, value: T) -> None:
        self._added += 1
        if self.keyed or self._weight >= self.limit:
            waiting = self._tail.get(key)
            if (
                waiting is not None
                and self.epoch_of(waiting) == self._epoch
                and self._merge_into(waiting, value)
            ):
                return
        ticket = Ticket(key, value, self._epoch, self._weigh(value), self._clock.monotonic())
        self._outstanding[self._epoch] += 1
        self._weight += ticket.weight
        self._tail[key] = ticket
        self._ready.append(ticket)

    def _merge_into(self, waiting: Ticket[T], value: T) -> bool:
        remaining = self._merge(waiting.value, value, waiting.attempts > 0)
        if len(remaining) > 1:
            return False
        if not remaining:
            self._merged += 2  # neither of the two will be delivered
            waiting.gone = True
            del self._tail[waiting.key]
            self._forget(waiting)
            return True
        self._merged += 1
        self._replace(waiting, remaining[0])
        return True

    def _replace(self, ticket: Ticket[T], value: T) -> None:
        weight = self._weigh(value)
        self._weight += weight - ticket.weight
        ticket.value, ticket.weight = value, weight

    def _absorb_newer(self, ticket: Ticket[T]) -> None:
        # Under `keyed` a newer value takes the place and the attempts of the one that failed.
        lane = self._held[ticket.key]
        tail = self._tail.get(ticket.key)
        if tail is not None and not any(tail is waiting for waiting in lane):
            # It arrived while the key was held and has not been looked at since: it stands in
            # `_ready`.
            self._ready.remove(tail)
            lane.append(tail)
        while lane:
            newer = lane[0]
            if newer.gone:
                lane.popleft()
                continue
            remaining = self._merge(ticket.value, newer.value, True)
            if len(remaining) != 1:
                return
            lane.popleft()
            self._merged += 1
            self._replace(ticket, remaining[0])
            newer.gone = True
            self._forget(newer)
            if self._tail.get(ticket.key) is newer:
                del self._tail[ticket.key]
        self._tail[ticket.key] = ticket

    def _pop_released(self) -> Ticket[T] | None:
        ticket = self._released.popleft()
        if ticket.gone:  # merged away after its turn had come
            self._release(ticket.key)
            return None
        return ticket

    def _pop_ready(self) -> Ticket[T] | None:
        ticket = self._ready.popleft()
        if ticket.gone:
            return None
        lane = self._held.get(ticket.key)
        if lane is not None:
            lane.append(ticket)
            return None
        self._held[ticket.key] = deque()
        return ticket

    def _release(self, key: str) -> None:
        lane = self._held[key]
        while lane:
            ticket = lane.popleft()
            if not ticket.gone:
                self._released.append(ticket)
                return
        del self._held[key]

    def _wake_due(self) -> None:
        now = self._clock.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, ticket = heapq.heappop(self._due)
            ticket.due = None
            self._released.append(ticket)

    def _forget(self, ticket: Ticket[T]) -> None:
        self._weight -= ticket.weight
        self._leave(ticket.epoch)

    def _leave(self, epoch: int) -> None:
        self._outstanding[epoch] -= 1
        if not self._outstanding[epoch] and epoch != self._epoch:
            del self._outstanding[epoch]
