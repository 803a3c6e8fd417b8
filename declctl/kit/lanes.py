"""Pending work in arrival order, one at a time for each key, bounded by weight.

This is the heart of delivery: what waits for a handler waits here. It decides and never waits
itself; any thread may call it. What a value means, what it weighs and how two of them merge is the
caller's business.
"""

import heapq
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from declctl.kit.clock import Clock
from declctl.kit.epochs import NO_EPOCH, Epochs, Era
from declctl.kit.tickets import LanesStatistics, Ticket, passed_behind

__all__ = ["Era", "Lanes", "LanesStatistics", "Ticket"]

T = TypeVar("T")

_MOST_VANISHED = 64  # turns of values that were merged away, before the row is cleared of them


class Lanes(Generic[T]):
    """Values in arrival order, in one lane for each key.

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
    - Several that are given one `era` are cut together, by a step of that.
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
        era: Era | None = None,
    ) -> None:
        self.limit = limit
        self.keyed = keyed
        self.at_once = at_once
        self._now = clock.monotonic
        self._weigh = weigh
        self._merge = merge
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._ready: deque[Ticket[T]] = deque()  # turns in arrival order; some keys may be held, some be gone
        self._vanished = 0  # how many of them are gone
        self._released: deque[Ticket[T]] = deque()  # taken before all turns; their keys are held for them
        self._held: dict[str, Ticket[T]] = {}  # key → the one that runs, backs off or is released
        self._tail: dict[str, Ticket[T]] = {}  # key → its last one, the only one to be merged into
        self._due: list[tuple[float, int, Ticket[T]]] = []
        self._epochs = Epochs(era)
        self._added = self._taken = self._merged = self._dropped = self._weight = 0
        self._running = self._overlooked = 0  # what is out is one or the other

    def add(self, key: str, value: T) -> None:
        """Append a value of `key`."""
        self.add_all([(key, value)])

    def add_all(self, values: Sequence[tuple[str, T]]) -> None:
        """Append many at once, in their order."""
        with self._lock:
            now, epochs = self._now(), self._epochs
            epoch, pending = epochs.era.newest, epochs.pending
            self._added += len(values)
            for key, value in values:
                tail = self._tail.get(key)
                full = self.keyed or self._weight >= self.limit
                if full and tail is not None and self._merge_into(tail, value, epoch):
                    continue
                weight = self._weigh(value)
                self._tail[key] = ticket = Ticket(key, value, epoch, weight, now, before=tail)
                if tail is not None:
                    tail.after = ticket
                self._weight += weight
                pending[epoch] += 1
                self._ready.append(ticket)

    def take(self) -> Ticket[T] | None:
        """The next value that may be worked on now, its key held; None if there is none."""
        with self._lock:
            if self._running >= self.at_once:
                return None
            if self._due:
                self._wake_due()
            ticket = self._released.popleft() if self._released else self._next_turn()
            if ticket is None:
                return None
            ticket.fixed = True
            if ticket.attempts == 0:
                self._taken += 1
            self._running += 1
            return ticket

    def done(self, ticket: Ticket[T]) -> bool:
        """The value was dealt with; the next of its key may be taken. Whether one waits for that."""
        with self._lock:
            self._come_back(ticket)
            self._weight -= ticket.weight
            self._epochs.leave(ticket.epoch)
            return self._release(ticket)

    def drop(self, ticket: Ticket[T]) -> bool:
        """As `done`, for a value that nothing was done with: it counts as dropped, and not as taken."""
        with self._lock:
            self._taken -= 1
            self._dropped += 1
        return self.done(ticket)

    def retry(self, ticket: Ticket[T], delay: float) -> None:
        """Hand the value out again in `delay` seconds. Its key stays held until that has been done.

        Until it is due, the value belongs to no epoch; then to the one that is the newest at that moment.
        """
        with self._lock:
            self._come_back(ticket)
            ticket.attempts += 1
            ticket.epoch = self._epochs.move(ticket.epoch, NO_EPOCH)
            ticket.due = self._now() + delay
            heapq.heappush(self._due, (ticket.due, next(self._order), ticket))
            if self.keyed:
                ticket.fixed = False
                self._absorb_newer(ticket)

    def hurry(self, chosen: Callable[[Ticket[T]], bool]) -> bool:
        """Make due now what backs off and is `chosen`; whether there was any. O(n) in what backs off."""
        now, found = self._now(), False
        with self._lock:
            for at, (due, order, ticket) in enumerate(self._due):
                if due > now and chosen(ticket):
                    ticket.due = now
                    self._due[at] = (now, order, ticket)
                    found = True
            heapq.heapify(self._due)
        return found

    def overlook(self, ticket: Ticket[T]) -> None:
        """Wait no longer for one that is out: another may be handed out in its place, but none of its key."""
        with self._lock:
            if not ticket.overlooked:
                ticket.overlooked = True
                self._running -= 1
                self._overlooked += 1

    def cut(self) -> int:
        """Start a new epoch, of all that share the era; returns the one that ended. O(1), and cannot fail."""
        return self._epochs.era.cut()

    def part(self) -> None:
        """Share the era with nobody any longer: its newest epoch is the last."""
        with self._lock:
            self._epochs.era = Era(self._epochs.era.newest)

    def hand_over(self, old: int) -> None:
        """Give what is left of epoch `old`, except what is running, to the newest epoch."""
        with self._lock:
            self._epochs.hand_over(old)

    def handed_over(self, epoch: int) -> bool:
        """Whether that epoch has a backlog that belongs to a newer one."""
        return epoch in self._epochs.adopted

    def epoch_of(self, ticket: Ticket[T]) -> int:
        """The epoch whose target shall work on this ticket, after hand-overs."""
        epoch, epochs = ticket.epoch, self._epochs
        if epoch == NO_EPOCH:
            epoch = epochs.era.newest
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
            resting = [*self._released, *(ticket for _, _, ticket in self._due)]
            left = [*resting, *(ticket for ticket in self._ready if not ticket.gone)]
            left += [ticket for holder in self._held.values() for ticket in passed_behind(holder)]
            for ticket in resting:
                del self._held[ticket.key]
            for ticket in left:
                ticket.before = ticket.after = None
                self._forget(ticket)
            for running in self._held.values():
                running.after = None
            self._tail = dict(self._held)
            self._ready.clear()
            self._released.clear()
            self._due.clear()
            self._vanished = 0
            self._dropped += len(left)
            self._taken -= sum(1 for ticket in left if ticket.attempts)
            return len(left)

    @property
    def epoch(self) -> int:
        """The newest epoch: what is added now belongs to it."""
        return self._epochs.era.newest

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
    def idle(self) -> bool:
        """Whether nothing waits, runs or backs off."""
        with self._lock:
            return not self._epochs.pending

    def statistics(self) -> LanesStatistics:
        """The figures of this moment."""
        with self._lock:
            pending = sum(self._epochs.pending.values())
            backing_off, running = len(self._due), self._running + self._overlooked
            return LanesStatistics(
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

    def _come_back(self, ticket: Ticket[T]) -> None:
        if ticket.overlooked:
            ticket.overlooked = False
            self._overlooked -= 1
        else:
            self._running -= 1

    def _merge_into(self, waiting: Ticket[T], value: T, epoch: int) -> bool:
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

    def _replace(self, ticket: Ticket[T], value: T) -> None:
        weight = self._weigh(value)
        self._weight += weight - ticket.weight
        ticket.value, ticket.weight = value, weight

    def _absorb_newer(self, ticket: Ticket[T]) -> None:
        # Under `keyed` a newer value takes the place and the attempts of the one that failed.
        while (newer := ticket.after) is not None:
            remaining = self._merge(ticket.value, newer.value, True)
            if len(remaining) != 1:
                return
            self._merged += 1
            self._replace(ticket, remaining[0])
            self._vanish(newer)

    def _vanish(self, ticket: Ticket[T]) -> None:
        before, after = ticket.before, ticket.after
        if before is not None:
            before.after = after
        if after is not None:
            after.before = before
        elif before is not None:
            self._tail[ticket.key] = before
        else:
            del self._tail[ticket.key]
        self._forget(ticket)
        ticket.gone = True
        if self._held.get(ticket.key) is ticket:  # its turn had come: it was the next to be taken
            self._released.remove(ticket)
            del self._held[ticket.key]
        elif not ticket.passed:
            del ticket.value  # the turn stays in the row for a while, and shall not keep the value alive
            self._vanished += 1
            if self._vanished > _MOST_VANISHED and self._vanished * 2 > len(self._ready):
                self._ready = deque(turn for turn in self._ready if not turn.gone)
                self._vanished = 0

    def _next_turn(self) -> Ticket[T] | None:
        while self._ready:
            ticket = self._ready.popleft()
            if ticket.gone:
                self._vanished -= 1
            elif ticket.key in self._held:
                ticket.passed = True
            else:
                self._held[ticket.key] = ticket
                return ticket
        return None

    def _release(self, ticket: Ticket[T]) -> bool:
        del self._held[ticket.key]
        following, ticket.after = ticket.after, None
        if following is None:
            del self._tail[ticket.key]
            return False
        following.before = None
        if following.passed:
            self._held[ticket.key] = following
            self._released.append(following)
        return True

    def _wake_due(self) -> None:
        now = self._now()
        while self._due and self._due[0][0] <= now:
            _, _, ticket = heapq.heappop(self._due)
            ticket.due = None
            ticket.epoch = self._epochs.move(ticket.epoch, self._epochs.era.newest)
            self._released.append(ticket)

    def _forget(self, ticket: Ticket[T]) -> None:
        self._weight -= ticket.weight
        self._epochs.leave(ticket.epoch)
