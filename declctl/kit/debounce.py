"""Debounce: values that rest until nothing new has come for a time.

A rest ends when it was not extended for the seconds of the debounce, and after `LONGEST_REST` times these
seconds at the latest: what never comes to rest is handled, too.
"""

import heapq
import itertools
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from declctl.kit.pending import smallest_first

T = TypeVar("T")

LONGEST_REST = 10  # times the seconds of the debounce
_MOST_ENDED = 64  # ended rests in the heap, before it is rebuilt without them


class Rest(msgspec.Struct, Generic[T], eq=False):
    """The rest of one value. Times are monotonic, in seconds."""

    value: T
    until: float
    latest: float  # `until` is never later
    order: int  # of its begin
    ended: bool = False


class RestingValues(Generic[T]):
    """Values that rest, each until its own time. The owner calls all methods under one lock."""

    def __init__(self) -> None:
        # A heap; a rest that was extended is in it with an earlier time, and one that has ended may be.
        self._heap: list[tuple[float, int, Rest[T]]] = []
        self._order = itertools.count()
        self.number = 0  # of values that rest

    def begin(self, value: T, now: float, seconds: float, *, not_before: float = 0.0) -> Rest[T]:
        """Let a value rest for `seconds`; at least until `not_before`."""
        until = max(now + seconds, not_before)
        rest = Rest(value, until, max(now + LONGEST_REST * seconds, not_before), next(self._order))
        heapq.heappush(self._heap, (until, rest.order, rest))
        self.number += 1
        return rest

    def extend(self, rest: Rest[T], now: float, seconds: float) -> None:
        """Something new has come: let the value rest for `seconds` from now. Never shortens a rest."""
        rest.until = max(rest.until, min(now + seconds, rest.latest))

    def end(self, rest: Rest[T]) -> None:
        """End a rest before its time; its value does not come any more."""
        rest.ended = True
        self.number -= 1
        if len(self._heap) > _MOST_ENDED and len(self._heap) > 2 * self.number:
            self._heap[:] = [entry for entry in self._heap if not entry[2].ended]
            heapq.heapify(self._heap)

    def due(self, now: float) -> Iterator[T]:
        """End the rests whose time has come; those of the same time in the order of their begin."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, _, rest = heapq.heappop(heap)
            if rest.ended:
                continue
            if rest.until > now:
                heapq.heappush(heap, (rest.until, rest.order, rest))
                continue
            self.end(rest)
            yield rest.value

    def all(self) -> Iterator[T]:
        """End all rests, in the order of their times."""
        rests = sorted(
            (rest for _, _, rest in self._heap if not rest.ended), key=lambda rest: (rest.until, rest.order)
        )
        self._heap.clear()
        for rest in rests:
            self.end(rest)
            yield rest.value

    def soonest(self) -> Iterator[Rest[T]]:
        """The rests by their ends; one that was extended may come too early. Ends none.

        The values must not change meanwhile.
        """
        return (rest for _, _, rest in smallest_first(self._heap) if not rest.ended)

    @property
    def size(self) -> int:
        """How many rests are in memory, with those that have ended early."""
        return len(self._heap)

    def next(self) -> float | None:
        """When `due` has to be called next; None if nothing rests. It may find nothing to end then."""
        return self._heap[0][0] if self.number else None
