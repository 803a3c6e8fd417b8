"""Queues in which each key has one place: DeltaFIFO, FIFO and Heap (client-go's delta_fifo, fifo and heap).

In a DeltaFIFO the place holds all pending changes of the key, in a FIFO its newest object, and in a Heap a
value that is ordered by its priority.
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
    """A queue that pops all pending changes of a key together (client-go's DeltaFIFO).

    - `known`: returns the records of the store by key (KnownObjects).
    - `emit_replaced`: True, the default, queues a list as Replaced deltas; False as Sync, for old programs
      (EmitDeltaTypeReplaced).
    - `transformer`: applied once to every live object that is queued.

    Keys are popped in the order in which they were first queued. A replacement is compared with the queue and
    the store when it is queued, and becomes Replaced deltas and tombstones. Unlike client-go's, the queue has
    synced only when the last initial delta was processed.

    Used on one loop by one consumer. The last popped deltas count as known until `processed`, or until the
    next pop.
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
        self._popped: Sequence[Delta] = ()  # the last ones, until they are processed: not in the store yet
        self._replaced = False  # the first replacement has come
        self._initial: set[str] = set()  # keys of the first replacement that are not processed yet
        self._empty: Bookmark | None = None  # for an empty list that deletes no object

    def add(self, record: Record) -> None:
        """Queue an Added."""
        self.extend((Delta(DeltaType.ADDED, record.key, record),))

    def update(self, record: Record) -> None:
        """Queue an Updated."""
        self.extend((Delta(DeltaType.UPDATED, record.key, record),))

    def delete(self, record: Record, *, out_of_scope: bool = False) -> None:
        """Queue a Deleted, if the key is queued or in the store (client-go 11, 12)."""
        self.extend((Delta(_DELETED, record.key, record, out_of_scope=out_of_scope),))

    def extend(self, deltas: Iterable[Delta]) -> None:
        """Queue changes, in their order.

        Raises the exceptions of the transformer, after it has queued all deltas on which it did not raise.
        """
        if self._transformer is not None:
            deltas = transformed(self._transformer, deltas, self._concerns)
        try:
            for delta in deltas:
                if self._concerns(delta):
                    self._put(delta)
                self._populate_by_change()  # also for a delta that is not queued, as in client-go
        finally:
            self.wake()

    def replace(self, records: Sequence[Record], resource_version: str) -> None:
        """Queue a complete list: Replaced (or Sync) for its objects, tombstones for all other known ones.

        (client-go 3-22.) Raises the exceptions of the transformer, with nothing queued.
        """
        if self._transformer is not None:
            records = all_transformed(self._transformer, records)
        # Objects that were popped and not processed count as known, although the store may not have them.
        initial, known, pending = not self._replaced, self._known(), self._pending()
        listed = {record.key for record in records}
        for record in records:
            self._put(Delta(self._listed_as, record.key, record, initial=initial))
        # Sorted, so that the same list gives the same order of tombstones.
        for key in sorted(key for key in pending.keys() | known.keys() if key not in listed):
            newest = pending.get(key)
            if newest is not None and newest.type is _DELETED:
                continue  # its deletion is queued already
            last = known.get(key) if newest is None else newest.record
            self._put(Delta(_DELETED, key, last, final_state_unknown=True, initial=initial))
        if not self._items:
            self._empty = Bookmark(resource_version)  # without deltas, it shows the consumer that a list came
        if not self._populated:
            self._initial = set(self._items)
            self._open_if_synced()
        self._populated = self._replaced = True
        self.wake()

    def bookmark(self, resource_version: str) -> None:
        """No effect: this queue has no versions (client-go 36)."""

    def resync(self) -> None:
        """Queue a Sync for each object of the store that has nothing pending (client-go 14, 15)."""
        pending = self._pending()
        for key, record in self._known().items():
            # A pending change is newer than the stored state, and notifies the listeners anyway.
            if key not in pending:
                self._put(Delta(_SYNC, key, record))
        self.wake()

    def pop_nowait(self) -> list[Delta]:
        """All pending deltas of the key that waits longest; an empty list if none waits."""
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
        # After all keys: an empty list has no deltas of its own.
        elif self._empty is not None:
            bookmark, self._empty = self._empty, None
            return bookmark
        return batch

    async def pop_batch(self, limit: int) -> Batch:
        """As `pop_batch_nowait`, as soon as there is something; raises QueueClosed."""
        return await self.until(lambda: self.pop_batch_nowait(limit) or None)

    def processed(self, batch: Batch) -> None:
        """Note that a batch is in the store. The sync is complete with the last initial delta."""
        if batch is self._popped:
            self._popped = ()
        if self._initial and isinstance(batch, list):
            self._initial.difference_update(delta.key for delta in batch)
            self._open_if_synced()

    def __len__(self) -> int:
        """The number of keys with pending changes."""
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
        """The newest delta of each key with changes that the store does not have yet."""
        newest = {delta.key: delta for delta in self._popped}
        newest.update((key, deltas[-1]) for key, deltas in self._items.items())
        return newest

    def _concerns(self, delta: Delta) -> bool:
        """Whether a delta has to be queued: not the deletion of an unknown object."""
        if delta.type is not _DELETED or delta.key in self._items or delta.key in self._known():
            return True
        return any(popped.key == delta.key for popped in self._popped)

    def _open_if_synced(self) -> None:
        if not self._initial:
            self.synced.open()


class FIFO(SyncingQueue):
    """A queue of objects, and not of changes: a pop returns the newest state of a key (client-go's FIFO).

    A key keeps its place when its object changes, and loses it when the object is deleted. Used on one loop.
    """

    def __init__(self) -> None:
        super().__init__("FIFO")
        self._items: dict[str, Record] = {}  # in the order of their places
        self._initial: set[str] = set()  # keys of the first replacement that are not processed yet

    def add(self, record: Record) -> None:
        """Queue an object in the place of its key, or at the end."""
        self._items[record.key] = record
        self._populate_by_change()
        self.wake()

    update = add

    def delete(self, record: Record) -> None:
        """Remove an object; no effect if it is not queued."""
        waited = self._items.pop(record.key, None)
        self._populate_by_change()
        if waited is not None:
            self.processed(record)

    def replace(self, records: Sequence[Record], resource_version: str = "") -> None:  # noqa: ARG002 - the contract
        """Replace all objects by these; keys that stay keep their places."""
        wanted = {record.key: record for record in records}
        never_popped = self._items.keys() - wanted
        self._items = {key: wanted[key] for key in self._items if key in wanted} | wanted
        # A key that is removed here is never popped, so the sync does not wait for it.
        self._initial = self._initial - never_popped if self._populated else set(wanted)
        self._populated = True
        self._open_if_synced()
        self.wake()

    def get_by_key(self, key: str) -> Record | None:
        """The queued object of a key; None if there is none."""
        return self._items.get(key)

    def list(self) -> list[Record]:
        """Every queued object, in order."""
        return list(self._items.values())

    def list_keys(self) -> Sequence[str]:
        """Every queued key, in order."""
        return list(self._items)

    def pop_nowait(self) -> Record | None:
        """The object that waits longest; None if there is none."""
        key = next(iter(self._items), None)
        return None if key is None else self._items.pop(key)

    async def pop(self) -> Record:
        """As `pop_nowait`, as soon as there is something; raises QueueClosed."""
        return await self.until(self.pop_nowait)

    def processed(self, record: Record) -> None:
        """Note that a popped object was processed."""
        if self._initial:
            self._initial.discard(record.key)
            self._open_if_synced()

    def __len__(self) -> int:
        return len(self._items)

    def _open_if_synced(self) -> None:
        if not self._initial:
            self.synced.open()


class Heap(QueueBase, Generic[T]):
    """A priority queue (client-go's Heap). Used on one loop.

    `key` returns the key of a value, `order` its priority. The value with the smallest priority is popped
    first, equal ones in the order in which they were added. A value with the key of another one replaces it.
    After `close`, adding raises QueueClosed.
    """

    def __init__(self, *, key: Callable[[T], str], order: Callable[[T], Any]) -> None:
        super().__init__()
        self._key = key
        self._order = order
        self._numbers = itertools.count()
        self._live: dict[str, tuple[int, T]] = {}  # by key: number of the heap entry, value
        self._entries: list[tuple[Any, int, str]] = []  # the heap; entries of replaced values stay in it

    def add(self, value: T) -> None:
        """Add a value, in the place of the one with its key (client-go 71, 76)."""
        self.bulk_add((value,))

    update = add

    def bulk_add(self, values: Iterable[T]) -> None:
        """Add values. If `key` or `order` raises, the values before are added."""
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
        """Add a value unless there is one with its key (client-go 74)."""
        if self._closed or self._key(value) not in self._live:
            self.add(value)

    def delete(self, key: str) -> None:
        """Remove the value of a key; raises KeyError if there is none (client-go 75)."""
        del self._live[key]
        self._tidy()

    def get_by_key(self, key: str) -> T | None:
        """The value of a key; None if there is none."""
        held = self._live.get(key)
        return None if held is None else held[1]

    def list(self) -> list[T]:
        """Every value, in no order."""
        return [value for _, value in self._live.values()]

    def list_keys(self) -> tuple[str, ...]:
        """Every key, in no order."""
        return tuple(self._live)

    @property
    def entries(self) -> int:
        """How many entries it holds: one for each value, and some whose value was put again or deleted."""
        return len(self._entries)

    def peek(self) -> T | None:
        """The smallest value, which stays queued; None if there is none."""
        while self._entries:
            _, number, key = self._entries[0]
            held = self._live.get(key)
            if held is not None and held[0] == number:
                return held[1]
            heapq.heappop(self._entries)  # the value was deleted or replaced
        return None

    def pop_nowait(self) -> T | None:
        """Remove and return the smallest value; None if there is none."""
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
        # Replaced and deleted values leave entries in the heap. It is rebuilt when these are the majority.
        if len(self._entries) > 2 * len(self._live) + 16:
            self._entries = [(self._order(value), number, key) for key, (number, value) in self._live.items()]
            heapq.heapify(self._entries)
