"""RealFIFO: what happened, in the order in which it happened, over all keys (client-go's the_real_fifo.go).

Every change is an entry of its own; nothing is merged. A replacement is one entry, compared with
the store when it is processed, so that nothing queued can be forgotten by it (client-go's
AtomicFIFO).
"""

from collections import deque
from collections.abc import Iterable, Sequence

from declctl.informer.queues.queue import (
    Bookmark,
    Entry,
    Replacement,
    SyncAll,
    Transformer,
    Waiting,
    all_transformed,
    transformed,
)
from declctl.kit import Latch
from declctl.objects import Delta, DeltaType, Record


class RealFIFO(Waiting):
    """The in-order queue. Used on one loop; `pop_batch_nowait` decides, `pop_batch` waits.

    `transformer` is applied to every live object once, on its way in. `synced` opens when
    `has_synced` turns true.
    """

    def __init__(self, *, transformer: Transformer | None = None) -> None:
        super().__init__()
        self.synced = Latch("RealFIFO")
        self._transformer = transformer
        self._entries: deque[Entry] = deque()
        self._populated = False
        self._replaced = False
        self._initial: Replacement | None = None  # until it is processed

    def add(self, record: Record) -> None:
        """An object appeared."""
        self.extend((Delta(DeltaType.ADDED, record.key, record),))

    def update(self, record: Record) -> None:
        """An object changed."""
        self.extend((Delta(DeltaType.UPDATED, record.key, record),))

    def delete(self, record: Record, *, out_of_scope: bool = False) -> None:
        """An object is gone. Always queued, known or not (client-go 39)."""
        self.extend((Delta(DeltaType.DELETED, record.key, record, out_of_scope=out_of_scope),))

    def extend(self, deltas: Iterable[Delta]) -> None:
        """These happened, in this order.

        Raises what the transformer raises, with every delta queued on which it did not.
        """
        if self._transformer is None and self._populated:
            self._entries.extend(deltas)
            self.wake()
        else:
            self._extend_carefully(deltas)

    def replace(self, records: Sequence[Record], resource_version: str) -> None:
        """These are all the objects there are, at that version.

        Raises what the transformer raises, with nothing queued.
        """
        if self._transformer is not None:
            records = all_transformed(self._transformer, records)
        replacement = Replacement(records, resource_version, initial=not self._replaced)
        if not self._populated:
            self._initial = replacement
        self._populated = self._replaced = True
        self._put(replacement)

    def bookmark(self, resource_version: str) -> None:
        """Nothing has changed up to that version."""
        self._put(Bookmark(resource_version))

    def resync(self) -> None:
        """Replay the store to those whose resync is due, after what is queued (client-go 63)."""
        self._put(SyncAll())

    def pop_nowait(self) -> Entry | None:
        """The next entry; None if there is none."""
        return self._entries.popleft() if self._entries else None

    async def pop(self) -> Entry:
        """The next entry as soon as there is one; raises QueueClosed."""
        return (await self.pop_batch(1))[0]

    def pop_batch_nowait(self, limit: int) -> list[Entry]:
        """At most `limit` deltas, or one entry of another kind; empty if there is nothing.

        So a batch never mixes the initial list with what comes after it (client-go 54, 56).
        """
        batch: list[Entry] = []
        entries = self._entries
        while entries and len(batch) < limit:
            if not isinstance(entries[0], Delta):
                return batch or [entries.popleft()]
            batch.append(entries.popleft())
        return batch

    async def pop_batch(self, limit: int) -> list[Entry]:
        """As `pop_batch_nowait`, as soon as there is something; raises QueueClosed."""
        return await self.until(lambda: self.pop_batch_nowait(limit) or None)

    def processed(self, batch: Sequence[Entry]) -> None:
        """The batch is in the store: only then can the queue say that it has synced."""
        if self._initial is not None and any(entry is self._initial for entry in batch):
            self._initial = None
            self.synced.open()

    @property
    def has_synced(self) -> bool:
        """Whether the first replacement was processed; at once if single changes came first."""
        return self.synced.is_open

    def __len__(self) -> int:
        """How many entries wait; a replacement is one."""
        return len(self._entries)

    def _extend_carefully(self, deltas: Iterable[Delta]) -> None:
        if self._transformer is not None:
            deltas = transformed(self._transformer, deltas)
        before = len(self._entries)
        try:
            self._entries.extend(deltas)
        finally:
            if not self._populated and len(self._entries) > before:
                self._populated = True
                self.synced.open()
            self.wake()

    def _put(self, entry: Entry) -> None:
        self._entries.append(entry)
        self.wake()
