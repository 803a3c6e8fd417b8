"""DeltaFIFO: all pending changes of a key, popped together (client-go's delta_fifo.go, its seeds' contract).

Keys are served in the order in which they were first queued. A replacement is turned into Replaced
deltas and tombstones when it comes in, by comparing it with what is queued and what is in the
store. Unlike client-go's it has synced only when the last initial delta was processed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from declctl.informer.queues.queue import Bookmark, Entry, Transformer, Waiting, all_transformed, transformed
from declctl.kit import Latch
from declctl.objects import Delta, DeltaType, Record

# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every delta.
_DELETED, _REPLACED, _SYNC = DeltaType.DELETED, DeltaType.REPLACED, DeltaType.SYNC


def _nothing() -> Mapping[str, Record]:
    return {}


class DeltaFIFO(Waiting):
    """The accumulating queue. `known` is what the store holds (client-go's KnownObjects).

    Used on one loop by one consumer; `pop_batch_nowait` decides, `pop_batch` waits. What was popped
    last counts as known until it is given to `processed`, or until the next pop. `emit_replaced`
    says whether a list is queued as Replaced or, as in old programs, as Sync (EmitDeltaTypeReplaced).
    `transformer` is applied to every live object once, on its way in. `synced` opens when
    `has_synced` turns true.
    """

    def __init__(
        self,
        known: Callable[[], Mapping[str, Record]] = _nothing,
        *,
        emit_replaced: bool = True,
        transformer: Transformer | None = None,
    ) -> None:
        super().__init__()
        self.synced = Latch("DeltaFIFO")
        self._known = known
        self._listed_as = _REPLACED if emit_replaced else _SYNC
        self._transformer = transformer
        self._items: dict[str, list[Delta]] = {}  # in the order in which the keys were first queued
        self._popped: Sequence[Entry] = ()  # last, and not processed yet: neither queued nor in the store
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
        self.extend((Delta(_DELETED, record.key, record, out_of_scope=out_of_scope),))

    def extend(self, deltas: Iterable[Delta]) -> None:
        """These happened, in this order.

        Raises what the transformer raises, with every delta queued on which it did not.
        """
        if self._transformer is not None:
            deltas = transformed(self._transformer, deltas, self._concerns)
        items, known, any_came = self._items, self._known(), False
        try:
            for delta in deltas:
                any_came = True
                if delta.type is _DELETED and not (
                    delta.key in items or delta.key in known or self._concerns(delta)
                ):
                    continue
                self._put(delta)
        finally:
            if any_came and not self._populated:
                self._populated = True
                self.synced.open()
            self.wake()

    def replace(self, records: Sequence[Record], resource_version: str) -> None:
        """These are all the objects there are.

        Replaced (or Sync) for each, a tombstone for every other (client-go 3-22). Raises what the
        transformer raises, with nothing queued.
        """
        if self._transformer is not None:
            records = all_transformed(self._transformer, records)
        initial, known, pending = not self._replaced, self._known(), self._pending()
        listed = {record.key for record in records}
        for record in records:
            self._put(Delta(self._listed_as, record.key, record, initial=initial))
        for key in sorted(key for key in pending.keys() | known.keys() if key not in listed):
            newest = pending.get(key)
            if newest is not None and newest.type is _DELETED:
                continue
            last = known.get(key) if newest is None else newest.record
            self._put(Delta(_DELETED, key, last, final_state_unknown=True, initial=initial))
        if not self._items:
            self._empty = Bookmark(resource_version)  # who waits has to learn that the list is in
        if not self._populated:
            self._initial = set(self._items)
            self._open_if_synced()
        self._populated = self._replaced = True
        self.wake()

    def bookmark(self, resource_version: str) -> None:
        """Nothing is queued: this queue knows no versions (client-go 36)."""

    def resync(self) -> None:
        """Sync for each object of the store that has nothing pending (client-go 14, 15)."""
        pending = self._pending()
        for key, record in self._known().items():
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

    def pop_batch_nowait(self, limit: int) -> list[Entry]:
        """The deltas of at most `limit` keys, each key's together; empty if there is nothing."""
        batch: list[Entry] = []
        for key in [key for key, _ in zip(self._items, range(limit), strict=False)]:
            batch += self._items.pop(key)
        if not batch and self._empty is not None:
            batch, self._empty = [self._empty], None
        if batch:
            self._popped = batch
        return batch

    async def pop_batch(self, limit: int) -> list[Entry]:
        """As `pop_batch_nowait`, as soon as there is something; raises QueueClosed."""
        return await self.until(lambda: self.pop_batch_nowait(limit) or None)

    def processed(self, batch: Sequence[Entry]) -> None:
        """The batch is in the store: only then can the queue say that it has synced."""
        if batch is self._popped:
            self._popped = ()
        if self._initial:
            self._initial.difference_update(entry.key for entry in batch if isinstance(entry, Delta))
            self._open_if_synced()

    @property
    def has_synced(self) -> bool:
        """Whether everything of the first replacement was processed; at once if changes came first."""
        return self.synced.is_open

    def __len__(self) -> int:
        """How many keys have changes that wait."""
        return len(self._items)

    def _put(self, delta: Delta) -> None:
        pending = self._items.get(delta.key)
        if pending is None:
            self._items[delta.key] = [delta]
        elif delta.type is _DELETED and pending[-1].type is _DELETED:
            if pending[-1].final_state_unknown:
                pending[-1] = delta  # the one that knows the object wins over a tombstone
        else:
            pending.append(delta)

    def _pending(self) -> dict[str, Delta]:
        """The newest delta of each key that the store has not seen all of."""
        newest = {entry.key: entry for entry in self._popped if isinstance(entry, Delta)}
        newest.update((key, deltas[-1]) for key, deltas in self._items.items())
        return newest

    def _concerns(self, delta: Delta) -> bool:
        """Whether it says something about an object that there may be."""
        if delta.type is not _DELETED or delta.key in self._items or delta.key in self._known():
            return True
        return any(isinstance(entry, Delta) and entry.key == delta.key for entry in self._popped)

    def _open_if_synced(self) -> None:
        if not self._initial:
            self.synced.open()
