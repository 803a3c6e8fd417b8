"""Heap: a queue by priority, each key once (client-go's heap.go)."""

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from declctl.errors import QueueClosed
from declctl.informer.queues.queue import Waiting

T = TypeVar("T")


class Heap(Waiting, Generic[T]):
    """Values by `key`; the smallest by `order` is popped first, equal ones in the order they came.

    A value that is put again moves to where it belongs. After `close`, adding raises QueueClosed.
    Used on one loop.
    """

    def __init__(self, *, key: Callable[[T], str], order: Callable[[T], Any]) -> None:
        super().__init__()
        self._key = key
        self._order = order
        self._numbers = itertools.count()
        self._live: dict[str, tuple[int, T]] = {}  # key → number of its entry in the heap, value
        self._entries: list[tuple[Any, int, str]] = []  # also entries of values that were put again since

    def add(self, value: T) -> None:
        """Put a value, or move the one of its key (client-go 71, 76)."""
        self.bulk_add((value,))

    update = add

    def bulk_add(self, values: Iterable[T]) -> None:
        """Put many, up to the first on which `key` or `order` raises."""
        if self._closed:
            raise QueueClosed("the heap is closed: nothing can be added")
        try:
            for value in values:
                number, key = next(self._numbers), self._key(value)
                heapq.heappush(self._entries, (self._order(value), number, key))
                self._live[key] = (number, value)
            self._tidy()
        finally:
            self.wake()

    def add_if_not_present(self, value: T) -> None:
        """Put a value unless there is one of its key, which stays (client-go 74)."""
        if self._closed or self._key(value) not in self._live:
            self.add(value)

    def delete(self, key: str) -> None:
        """Take a value out; raises KeyError if it isn't there (client-go 75)."""
        del self._live[key]
        self._tidy()

    def get_by_key(self, key: str) -> T | None:
        """The value of a key; None if it isn't there."""
        held = self._live.get(key)
        return None if held is None else held[1]

    def list(self) -> list[T]:
        """Every value, in no order."""
        return [value for _, value in self._live.values()]

    def list_keys(self) -> tuple[str, ...]:
        """Every key, in no order."""
        return tuple(self._live)

    def peek(self) -> T | None:
        """The smallest value, left where it is; None if there is none."""
        while self._entries:
            _, number, key = self._entries[0]
            held = self._live.get(key)
            if held is not None and held[0] == number:
                return held[1]
            heapq.heappop(self._entries)  # it was deleted or put again
        return None

    def pop_nowait(self) -> T | None:
        """The smallest value; None if there is none."""
        value = self.peek()
        if value is not None:
            del self._live[heapq.heappop(self._entries)[2]]
        return value

    async def pop(self) -> T:
        """As `pop_nowait`, as soon as there is something; raises QueueClosed."""
        return await self.until(self.pop_nowait)

    def __len__(self) -> int:
        return len(self._live)

    def _tidy(self) -> None:
        # What was put again or deleted leaves an entry behind; more of those than values are too many.
        if len(self._entries) > 2 * len(self._live) + 16:
            self._entries = [(self._order(value), number, key) for key, (number, value) in self._live.items()]
            heapq.heapify(self._entries)
