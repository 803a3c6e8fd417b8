"""DeltaFIFO: all pending changes of a key, popped together (client-go's delta_fifo.go, its seeds' contract).

Keys are served in the order in which they were first queued. A replacement is turned into Replaced
deltas and tombstones when it comes in, by comparing it with what is queued and what is in the
store. Unlike client-go's it has synced only when the last initial delta was processed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from declctl.informer.queues.entries import Bookmark, Entry
from declctl.informer.queues.waiting import Waiting
from declctl.objects import Delta, DeltaType, Record


def _nothing() -> Mapping[str, Record]:
    return {}


class DeltaFIFO(Waiting):
    """The accumulating queue. `known` is what the store holds (client-go's KnownObjects).

    Used on one loop; `pop_batch_nowait` decides, `pop_batch` waits.
    """

    def __init__(self, known: Callable[[], Mapping[str, Record]] = _nothing) -> None:
        super().__init__()
        self._known = known
        self._items: dict[str, list[Delta]] = {}  # in the order in which the keys were first queued
        self._populated = False
        self._replaced = False
        self._initial: set[str] = set()  # keys of the first replacement that are not processed yet
        self._empty: Bookmark | None = None  # a replacement by nothing, over which nothing is gone

    def add(self, record: Record) -> None:
        """An object appeared."""
        self.extend((Delta(DeltaType.ADDED, record.key, record),))

    def update(self, record: Record) -> None:
        """An object changed."""
        self.extend((Delta(DeltaType.UPDATED, record.key, record),))

    def delete(self, record: Record, *, out_of_scope: bool = False) -> None:
        """An object is gone.

        Dropped if it is neither queued nor in the store (client-go 11, 12).
        """
        self.extend((Delta(DeltaType.DELETED, record.key, record, out_of_scope=out_of_scope),))

    def extend(self, deltas: Iterable[Delta]) -> None:
        """These happened, in this order."""
        self._populated = True
        known = self._known()
        for delta in deltas:
            if delta.type is DeltaType.DELETED and delta.key not in self._items and delta.key not in known:
                continue
            self._put(delta)
        self.wake()

    def replace(self, records: Sequence[Record], resource_version: str) -> None:
        """These are all the objects there are.

        Replaced for each, a tombstone for every other (client-go 3-21).
        """
        initial = not self._replaced
        listed = {record.key for record in records}
        for record in records:
            self._put(Delta(DeltaType.REPLACED, record.key, record, initial=initial))
        known = self._known()
        gone = {key for key in self._items if key not in listed} | {key for key in known if key not in listed}
        for key in sorted(gone):
            pending = self._items.get(key)
            if pending and pending[-1].type is DeltaType.DELETED:
                continue
            last = pending[-1].record if pending else known.get(key)
            self._put(Delta(DeltaType.DELETED, key, last, final_state_unknown=True, initial=initial))
        if not self._populated:
            self._initial = set(self._items)
        self._populated = self._replaced = True
        if not self._items:
            self._empty = Bookmark(resource_version)  # who waits has to learn that the list is in
        self.wake()

    def bookmark(self, resource_version: str) -> None:
        """Nothing is queued: this queue knows no versions (client-go 36)."""

    def resync(self) -> None:
        """Sync for each object of the store that has nothing queued (client-go 14, 15)."""
        for key, record in self._known().items():
            if key not in self._items:
                self._put(Delta(DeltaType.SYNC, key, record))
        self.wake()

    def pop_nowait(self) -> list[Delta]:
        """All pending deltas of the key that waits longest; empty if there is none."""
        key = next(iter(self._items), None)
        return [] if key is None else self._items.pop(key)

    async def pop(self) -> list[Delta]:
        """As `pop_nowait`, as soon as there is something; raises QueueClosed."""
        return await self.until(lambda: self.pop_nowait() or None)

    def pop_batch_nowait(self, limit: int) -> list[Entry]:
        """The deltas of at most `limit` keys, each key's together; empty if there is nothing."""
        batch: list[Entry] = []
        for key in [key for key, _ in zip(self._items, range(limit), strict=False)]:
            batch += self._items.pop(key)
        if not batch and self._empty is not None:
            batch, self._empty = [self._empty], None
        return batch

    async def pop_batch(self, limit: int) -> list[Entry]:
        """As `pop_batch_nowait`, as soon as there is something; raises QueueClosed."""
        return await self.until(lambda: self.pop_batch_nowait(limit) or None)

    def processed(self, batch: Sequence[Entry]) -> None:
        """The batch is in the store: only then can the queue say that it has synced."""
        if self._initial:
            self._initial.difference_update(entry.key for entry in batch if isinstance(entry, Delta))

    @property
    def has_synced(self) -> bool:
        """Whether everything of the first replacement was processed; at once if changes came first."""
        return self._populated and not self._initial

    def __len__(self) -> int:
        return len(self._items)

    def _put(self, delta: Delta) -> None:
        pending = self._items.get(delta.key)
        if pending is None:
            self._items[delta.key] = [delta]
        elif delta.type is DeltaType.DELETED and pending[-1].type is DeltaType.DELETED:
            if pending[-1].final_state_unknown:
                pending[-1] = delta  # the one that knows the object wins over a tombstone
        else:
            pending.append(delta)
