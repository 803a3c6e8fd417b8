"""Worker budgets: a number of workers that several queues share, with fair turns.

Each queue keeps workers of its own. Before one of them takes an item, the queue asks the budget for a permit,
and returns it when the item is done, or waits for its retry. A queue that was refused has a turn: no other
queue gets a second permit before it.
"""

import threading
from collections.abc import Callable
from itertools import islice

from declctl.kit.clock import Clock

TURN_SECONDS = 0.1  # for which a permit is kept for the queue whose turn it is: its workers may be stuck


class WorkerBudget:
    """At most `limit` permits are given out at the same time. From any thread; no method waits.

    Members are the queues that share the budget. A member that was refused is woken when it is its turn.
    """

    def __init__(self, limit: int, *, clock: Clock) -> None:
        self._now = clock.monotonic
        self._lock = threading.Lock()
        self._limit = limit
        self._given = 0  # permits
        self._refused: dict[object, Callable[[], None]] = {}  # by member, with its `wake`: in order of turns
        self._offered_at = 0.0  # monotonic: the last time that members were woken for their turns

    @property
    def limit(self) -> int:
        """The number of permits."""
        return self._limit

    def resize(self, limit: int) -> None:
        """Change the number of permits; after a decrease, none is given until enough are returned."""
        if limit != self._limit:
            with self._lock:
                self._limit = limit
            self._offer()

    def acquire(self, member: object, wake: Callable[[], None]) -> bool:
        """Take a permit for a member; False if there is none, or if it is the turn of others.

        After False, `wake` is called when it is the turn of the member.
        """
        with self._lock:
            if self._may_acquire(member):
                self._given += 1
                self._refused.pop(member, None)
                return True
            self._refused.setdefault(member, wake)
            return False

    def release(self) -> None:
        """Return a permit."""
        with self._lock:
            self._given -= 1
        self._offer()

    def leave(self, member: object) -> None:
        """Note that a member has nothing to take: it gives up its turn."""
        if member in self._refused:
            with self._lock:
                self._refused.pop(member, None)
            self._offer()

    def wait(self, member: object) -> float | None:
        """Seconds until a member may try `acquire`: 0 for now; None if it is woken before."""
        with self._lock:
            if self._given >= self._limit:
                return None
            if self._may_acquire(member):
                return 0.0
            return max(0.0, self._offered_at + TURN_SECONDS - self._now())

    def _may_acquire(self, member: object) -> bool:
        free = self._limit - self._given
        if free <= 0:
            return False
        first = list(islice(self._refused, free))
        if len(first) < free or member in first:
            return True
        # The members whose turn it is have not come: their workers may all be stuck.
        return self._now() - self._offered_at >= TURN_SECONDS

    def _offer(self) -> None:
        with self._lock:
            free = max(0, self._limit - self._given)
            woken = list(islice(self._refused.values(), free))
            self._offered_at = self._now()
        for wake in woken:
            wake()
