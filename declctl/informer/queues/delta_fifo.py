"""Queues in which each key has one place: DeltaFIFO, FIFO and Heap (client-go's delta_fifo, fifo and heap).

A place holds all pending changes of the key (DeltaFIFO), its newest object (FIFO), or a value by its priority
(Heap).
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from declctl.errors import QueueClosed
from declctl.informer.queues.real_fifo import (
    Batch,
    Bookmark,
    QueueBase,
    SyncingQueue,
    Transformer,
    all_transformed,
    transformed,
)
from declctl.objects import Delta, DeltaType, Record

T = TypeVar("T")

# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every delta.
_DELETED, _REPLACED, _SYNC = DeltaType.DELETED, DeltaType.REPLACED, DeltaType.SYNC


def _nothing() -> Mapping[str, Record]:
    return {}


class DeltaFIFO(SyncingQueue):
    """All pending changes of a key, popped together. `known` is what the store holds (KnownObjects).

    Keys are served in the order in which they were first queued. A replacement is turned into Replaced
    deltas and tombstones when it comes in, by comparing it with what is queued and what is in the
    store. Unlike client-go's it has synced only when the last initial delta was processed.

    Used on one loop by one consumer; `pop_batch_nowait` decides, `pop_batch` waits. What was popped last
    counts as known until it is given to `processed`, or until the next pop. `emit_replaced` says whether a
    list is queued as Replaced or, as in old programs, as Sync (EmitDeltaTypeReplaced). `transformer` is
    applied to every live object once, on its way in.
    """

    def __init__(
        self,
        known: Callable[[], Mapping[str, Record]] = _nothing,
        *,
        emit_replaced: bool = True,
        transformer: Transformer | None = None,
    ) -> None:
        super().__init__("DeltaFIFO")
        self._known = known
        self._listed_as = _REPLACED if emit_replaced else _SYNC
        self._transformer = transformer
        self._items: dict[str, list[Delta]] = {}  # in the order in which the keys were first queued
        self._popped: Sequence[Delta] = ()  # last, and not processed yet: neither queued nor in the store
        self._replaced = False  # the first replacement has come
        self._initial: set[str] = set()  # keys of the first replacement that are not processed yet
        self._empty: Bookmark | None = None  # a replacement by nothing, which leaves nothing to delete

    def add(self, record: Record) -> None:
        """Queue that an object appeared."""
        self.extend((Delta(DeltaType.ADDED, record.key, record),))

    def update(self, record: Record) -> None:
        """Queue that an object changed."""
        self.extend((Delta(DeltaType.UPDATED, record.key, record),))

    def delete(self, record: Record, *, out_of_scope: bool = False) -> None:
        """Queue that an object is gone, if it is queued or in the store (client-go 11, 12)."""
        self.extend((Delta(_DELETED, record.key, record, out_of_scope=out_of_scope),))

    def extend(self, deltas: Iterable[Delta]) -> None:
        """Queue these changes, in this order.

        Raises what the transformer raises, with every delta queued on which it did not raise.
        """
        if self._transformer is not None:
            deltas = transformed(self._transformer, deltas, self._concerns)
        try:
            for delta in deltas:
                if self._concerns(delta):
                    self._put(delta)
                self._populate_by_change()  # also by one that is dropped, as client-go does
        finally:
            self.wake()

    def replace(self, records: Sequence[Record], resource_version: str) -> None:
        """Queue all the objects that there are.

        A Replaced (or Sync) for each, a tombstone for every other object (client-go 3-22). Raises what the
        transformer raises, with nothing queued.
        """
        if self._transformer is not None:
            records = all_transformed(self._transformer, records)
        # What the store does not know yet counts as known, too: it may be popped and not processed.
        initial, known, pending = not self._replaced, self._known(), self._pending()
        listed = {record.key for record in records}
        for record in records:
            self._put(Delta(self._listed_as, record.key, record, initial=initial))
        # Sorted, so that the same list gives the same order of tombstones.
        for key in sorted(key for key in pending.keys() | known.keys() if key not in listed):
            newest = pending.get(key)
            if newest is not None and newest.type is _DELETED:
                continue  # its end is queued already
            last = known.get(key) if newest is None else newest.record
            self._put(Delta(_DELETED, key, last, final_state_unknown=True, initial=initial))
        if not self._items:
            self._empty = Bookmark(resource_version)  # the consumer has to learn that the list is in
        if not self._populated:
            self._initial = set(self._items)
            self._open_if_synced()
        self._populated = self._replaced = True
        self.wake()

    def bookmark(self, resource_version: str) -> None:
        """Queue nothing: this queue knows no versions (client-go 36)."""

    def resync(self) -> None:
        """Queue a Sync for each object of the store that has nothing pending (client-go 14, 15)."""
        pending = self._pending()
        for key, record in self._known().items():
            # A pending change is newer than the store, and is a replay by itself.
            if key not in pending:
                self._put(Delta(_SYNC, key, record))
        self.wake()

    def pop_nowait(self) -> list[Delta]:
        """All pending deltas of the key that waits longest; empty if there is none."""
        key = next(iter(self._items), None)
        if key is None:
            return []
        self._popped = deltas = self._items.pop(key)
        return deltas

    async def pop(self) -> list[Delta]:
        """As `pop_nowait`, as soon as there is something; raises QueueClosed."""
        return await self.until(lambda: self.pop_nowait() or None)

    def pop_batch_nowait(self, limit: int) -> Batch:
        """The deltas of at most `limit` keys, each key's together; an empty list if nothing waits."""
        batch: list[Delta] = []
        for key in list(itertools.islice(self._items, limit)):
            batch += self._items.pop(key)
        if batch:
            self._popped = batch
        # After all keys: an empty list has no deltas by which the consumer could learn of it.
        elif self._empty is not None:
            bookmark, self._empty = self._empty, None
            return bookmark
        return batch

    async def pop_batch(self, limit: int) -> Batch:
        """As `pop_batch_nowait`, as soon as there is something; raises QueueClosed."""
        return await self.until(lambda: self.pop_batch_nowait(limit) or None)

    def processed(self, batch: Batch) -> None:
        """Note that the batch is in the store: only then can the queue say that it has synced."""
        if batch is self._popped:
            self._popped = ()
        if self._initial and isinstance(batch, list):
            self._initial.difference_update(delta.key for delta in batch)
            self._open_if_synced()

    def __len__(self) -> int:
        """How many keys have changes that wait."""
        return len(self._items)

    def _put(self, delta: Delta) -> None:
        pending = self._items.get(delta.key)
        if pending is None:
            self._items[delta.key] = [delta]
        elif delta.type is not _DELETED or pending[-1].type is not _DELETED:
            pending.append(delta)
        elif pending[-1].final_state_unknown:
            # Two deletes in a row are one. The one that knows the object wins over a tombstone.
            pending[-1] = delta

    def _pending(self) -> dict[str, Delta]:
        """The newest delta of each key that the store has not seen all of."""
        newest = {delta.key: delta for delta in self._popped}
        newest.update((key, deltas[-1]) for key, deltas in self._items.items())
        return newest

    def _concerns(self, delta: Delta) -> bool:
        """Whether a delta says something about an object that there may be."""
        if delta.type is not _DELETED or delta.key in self._items or delta.key in self._known():
            return True
        return any(popped.key == delta.key for popped in self._popped)

    def _open_if_synced(self) -> None:
        if not self._initial:
            self.synced.open()


class FIFO(SyncingQueue):
    """A queue of objects, not of changes: a pop gives the newest state of a key, once.

    A key keeps its place when its object changes, and leaves it when it is deleted. Used on one loop.
    """

    def __init__(self) -> None:
        super().__init__("FIFO")
        self._items: dict[str, Record] = {}  # in the order of their places
        self._initial: set[str] = set()  # keys of the first replacement that are not processed yet

    def add(self, record: Record) -> None:
        """Put an object, in the place that its key has already or at the end."""
        self._items[record.key] = record
        self._populate_by_change()
        self.wake()

    update = add

    def delete(self, record: Record) -> None:
        """Take an object out; nothing happens if it isn't there."""
        waited = self._items.pop(record.key, None)
        self._populate_by_change()
        if waited is not None:
            self.processed(record)

    def replace(self, records: Sequence[Record], resource_version: str = "") -> None:  # noqa: ARG002 - the contract
        """Hold these objects and no others; those that stay keep their places."""
        wanted = {record.key: record for record in records}
        never_popped = self._items.keys() - wanted
        self._items = {key: wanted[key] for key in self._items if key in wanted} | wanted
        # What leaves before it was popped will never be processed: the sync does not wait for it.
        self._initial = self._initial - never_popped if self._populated else set(wanted)
        self._populated = True
        self._open_if_synced()
        self.wake()

    def get_by_key(self, key: str) -> Record | None:
        """The object that waits under a key; None if there is none."""
        return self._items.get(key)

    def list(self) -> list[Record]:
        """Every object that waits, in order."""
        return list(self._items.values())

    def list_keys(self) -> Sequence[str]:
        """Every key that waits, in order."""
        return list(self._items)

    def pop_nowait(self) -> Record | None:
        """The object that waits longest; None if there is none."""
        key = next(iter(self._items), None)
        return None if key is None else self._items.pop(key)

    async def pop(self) -> Record:
        """As `pop_nowait`, as soon as there is something; raises QueueClosed."""
        return await self.until(self.pop_nowait)

    def processed(self, record: Record) -> None:
        """Note that an object that was popped is processed."""
        if self._initial:
            self._initial.discard(record.key)
            self._open_if_synced()

    def __len__(self) -> int:
        return len(self._items)

    def _open_if_synced(self) -> None:
        if not self._initial:
            self.synced.open()


class Heap(QueueBase, Generic[T]):
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
