"""RealFIFO: what happened, in the order in which it happened, over all keys (client-go's the_real_fifo.go).

Every change is an entry of its own; nothing is merged. A replacement is one entry, compared with
the store when it is processed, so that nothing queued can be forgotten by it (client-go's
AtomicFIFO).
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from declctl.informer.queues.entries import Entry, Replacement, SyncAll
from declctl.objects import Delta, DeltaType, Record


class RealFIFO:
    """The in-order queue. Used on one loop; `pop_batch_nowait` decides, `wait` waits."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._ready = asyncio.Event()
        self._populated = False
        self._initial: Replacement | None = None

    def add(self, record: Record) -> None:
        """An object appeared."""
        self._put(Delta(DeltaType.ADDED, record.key, record))

    def update(self, record: Record) -> None:
        """An object changed."""
        self._put(Delta(DeltaType.UPDATED, record.key, record))

    def delete(self, record: Record, *, out_of_scope: bool = False) -> None:
        """An object is gone. Always queued, known or not (client-go 39)."""
        self._put(Delta(DeltaType.DELETED, record.key, record, out_of_scope=out_of_scope))

    def replace(self, records: Sequence[Record], resource_version: str) -> None:
        """These are all the objects there are, at that version."""
        replacement = Replacement(records, resource_version, initial=not self._populated)
        if not self._populated:
            self._populated = True
            self._initial = replacement
        self._put(replacement)

    def resync(self, listeners: Sequence[object]) -> None:
        """Replay the store to some listeners, after everything that is queued."""
        self._put(SyncAll(tuple(listeners)))

    def pop_batch_nowait(self, limit: int) -> list[Entry]:
        """At most `limit` entries, in order.

        A replacement or a resync ends a batch. Empty if there is nothing.
        """
        batch: list[Entry] = []
        entries = self._entries
        while entries and len(batch) < limit:
            entry = entries.popleft()
            batch.append(entry)
            if not isinstance(entry, Delta):
                break
        if not entries:
            self._ready.clear()
        return batch

    def processed(self, batch: Sequence[Entry]) -> None:
        """The batch is in the store: only then can the queue say that it has synced."""
        if self._initial is not None and any(entry is self._initial for entry in batch):
            self._initial = None

    @property
    def has_synced(self) -> bool:
        """Whether the first replacement was processed."""
        return self._populated and self._initial is None

    async def wait(self) -> None:
        """Return when there is something to pop."""
        await self._ready.wait()

    def __len__(self) -> int:
        return len(self._entries)

    def _put(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._ready.set()
