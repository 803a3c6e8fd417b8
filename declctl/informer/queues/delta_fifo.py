"""DeltaFIFO: all pending changes of a key, popped together (client-go's delta_fifo.go, its seeds' contract).

Keys are served in the order in which they were first queued. A replacement is turned into Replaced
deltas and tombstones when it comes in, by comparing it with what is queued and what is in the
store.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from declctl.informer.queues.entries import Entry, SyncAll
from declctl.objects import Delta, DeltaType, Record


class DeltaFIFO:
    """The accumulating queue. `known` is what the store holds."""

    def __init__(self, known: Callable[[], Mapping[str, Record]]) -> None:
        self._known = known
        self._items: dict[str, list[Delta]] = {}
        self._queue: deque[str | SyncAll] = deque()
        self._ready = asyncio.Event()
        self._populated = False
        self._initial: set[str] = set()

    def add(self, record: Record) -> None:
        """An object appeared."""
        self._populated = True
        self._put(Delta(DeltaType.ADDED, record.key, record))

    def update(self, record: Record) -> None:
        """An object changed."""
        self._populated = True
        self._put(Delta(DeltaType.UPDATED, record.key, record))

    def delete(self, record: Record, *, out_of_scope: bool = False) -> None:
        """An object is gone.

        Dropped if it is neither queued nor in the store (client-go 11, 12).
        """
        self._populated = True
        if record.key in self._items or record.key in self._known():
            self._put(Delta(DeltaType.DELETED, record.key, record, out_of_scope=out_of_scope))

    def replace(self, records: Sequence[Record], resource_version: str) -> None:  # noqa: ARG002 - the contract
        """These are all the objects there are.

        Replaced for each, a tombstone for every other (client-go 3-21).
        """
        initial = not self._populated
        listed = {record.key for record in records}
        for record in records:
            self._put(Delta(DeltaType.REPLACED, record.key, record, initial=initial))
        known = self._known()
        for key in [key for key in (*self._items, *known) if key not in listed]:
            pending = self._items.get(key)
            if pending and pending[-1].type is DeltaType.DELETED:
                continue
            last = pending[-1].record if pending else known.get(key)
            self._put(Delta(DeltaType.DELETED, key, last, final_state_unknown=True, initial=initial))
        if initial:
            self._populated = True
            self._initial = set(self._items)

    def resync(self, listeners: Sequence[object]) -> None:
        """Replay the store to some listeners, after everything that is queued."""
        self._queue.append(SyncAll(tuple(listeners)))
        self._ready.set()

    def pop_batch_nowait(self, limit: int) -> list[Entry]:
        """The deltas of at most `limit` keys, each key's together and in order.

        Empty if there is nothing.
        """
        batch: list[Entry] = []
        popped = 0
        while self._queue and popped < limit:
            head = self._queue.popleft()
            if isinstance(head, SyncAll):
                batch.append(head)
                break
            batch += self._items.pop(head)
            popped += 1
        if not self._queue:
            self._ready.clear()
        return batch

    def processed(self, batch: Sequence[Entry]) -> None:
        """The batch is in the store: only then can the queue say that it has synced."""
        if self._initial:
            self._initial.difference_update(entry.key for entry in batch if isinstance(entry, Delta))

    @property
    def has_synced(self) -> bool:
        """Whether everything of the first replacement was processed."""
        return self._populated and not self._initial

    async def wait(self) -> None:
        """Return when there is something to pop."""
        await self._ready.wait()

    def __len__(self) -> int:
        return len(self._queue)

    def _put(self, delta: Delta) -> None:
        pending = self._items.get(delta.key)
        if pending is None:
            self._items[delta.key] = [delta]
            self._queue.append(delta.key)
            self._ready.set()
        elif delta.type is DeltaType.DELETED and pending[-1].type is DeltaType.DELETED:
            if pending[-1].final_state_unknown:
                pending[-1] = delta  # the one that knows the object wins over a tombstone
        else:
            pending.append(delta)
