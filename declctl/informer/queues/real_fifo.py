"""RealFIFO: changes of all keys in the order in which they happened (client-go's the_real_fifo.go).

Informers use this queue by default. The first part of the module is common to all queues: the batches, the
protocol, the wait for a pop, and the transformer.

A queue is used on one loop and needs no lock. Each waiter is woken by every change of the queue, and tries to
pop again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec

from declctl.errors import CacheError, QueueClosed
from declctl.kit import Latch
from declctl.objects import Delta, DeltaType, Record

T = TypeVar("T")
Transformer = Callable[[Record], Record]
"""Changes records when they are queued (client-go's TransformFunc).

It is for programs that use queues directly; the transform of a manifest works on the decoded object instead,
before there is a record. Applied to its own result, it must return that result: a relist brings transformed
records again.
"""


class Replacement(msgspec.Struct, frozen=True):
    """A complete list: all existing objects, or all of one namespace."""

    records: Sequence[Record]
    resource_version: str  # of the list
    initial: bool  # the first list of the queue, or of the namespace
    namespace: str | None = None  # None: of all that the store may have
    widenings: int = 0  # of the scope of shards, before the list began


class SyncAll(msgspec.Struct, frozen=True):
    """A resync: the listeners whose resync is due receive all cached objects again."""


class Bookmark(msgspec.Struct, frozen=True):
    """There are no further changes up to this version."""

    resource_version: str
    namespace: str | None = None  # None: in all that the store may have


class Departure(msgspec.Struct, frozen=True):
    """A namespace, or shards, are not listed and watched any longer: their objects leave the store."""

    namespace: str | None = None
    shards: frozenset[int] = frozenset()


Entry = Delta | Replacement | SyncAll | Bookmark | Departure
"""One entry of a queue."""

Batch = list[Delta] | Replacement | SyncAll | Bookmark | Departure
"""Entries that are popped and processed together: changes in their order, or one entry of another kind."""


def key_of_entry(entry: Record | Delta | Sequence[Delta]) -> str:
    """The key of a record, of a delta, or of the deltas that a DeltaFIFO pops together (client-go's KeyOf).

    Raises CacheError for an empty list. From any thread.
    """
    if isinstance(entry, Record | Delta):
        return entry.key
    if not entry:
        raise CacheError("an empty list of deltas has no key")
    return entry[-1].key


class Queue(Protocol):
    """Changes that are not in the store yet (client-go's Queue). Used on one loop.

    A reflector fills it with `extend`, `replace` and `bookmark`; a controller empties it. A popped batch
    counts as pending until it is passed to `processed`.
    """

    def extend(self, deltas: Iterable[Delta]) -> None:
        """Queue changes, in their order."""
        ...

    def replace(self, records: Sequence[Record], resource_version: str) -> None:
        """Queue a complete list at a version."""
        ...

    def bookmark(self, resource_version: str) -> None:
        """Queue the note that there are no further changes up to a version."""
        ...

    def resync(self) -> None:
        """Queue a resync, after the present entries."""
        ...

    def pop_batch_nowait(self, limit: int) -> Batch:
        """The next batch, of at most `limit` changes or keys; an empty list if the queue is empty."""
        ...

    async def pop_batch(self, limit: int) -> Batch:
        """Wait for the next batch; raises QueueClosed."""
        ...

    def processed(self, batch: Batch) -> None:
        """Note that a popped batch was applied to the store."""
        ...

    @property
    def has_synced(self) -> bool:
        """Whether the first list was applied."""
        ...

    def close(self) -> None:
        """Let pops raise QueueClosed when the queue is empty; wakes every waiter."""
        ...

    def __len__(self) -> int:
        """The number of pending entries: changes, or keys in a queue that keeps changes by key."""
        ...


class QueueBase:
    """The waiting part of a queue: callers wait until an attempt to pop succeeds."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the queue was closed."""
        return self._closed

    def close(self) -> None:
        """Let pops raise QueueClosed when the queue is empty; wakes every waiter."""
        self._closed = True
        self._changed.set()

    def wake(self) -> None:
        """Let waiters try again."""
        self._changed.set()

    async def until(self, attempt: Callable[[], T | None]) -> T:
        """Call `attempt` until it returns something; raises QueueClosed."""
        while (found := attempt()) is None:
            if self._closed:
                raise QueueClosed("the queue is closed and empty")
            # Cleared before the wait and after the attempt: on one loop nothing can come in between.
            self._changed.clear()
            await self._changed.wait()
        return found


class SyncingQueue(QueueBase):
    """A queue whose latch `synced` opens when the first replacement was processed.

    It opens at once if a change is queued before any replacement, as in client-go.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.synced = Latch(name)
        self._populated = False  # a change or a replacement has come

    @property
    def has_synced(self) -> bool:
        """Whether the first replacement was processed, or a change came before any replacement."""
        return self.synced.is_open

    def _populate_by_change(self) -> None:
        """Note that a change was queued. If it is the first entry, the queue waits for no list."""
        if not self._populated:
            self._populated = True
            self.synced.open()


class RealFIFO(SyncingQueue):
    """A queue in order of arrival. Every change is an entry of its own, and nothing is merged (RealFIFO).

    A replacement is one entry, and is compared with the store when it is processed. So changes that are
    queued before it are not lost (client-go's AtomicFIFO). `transformer` is applied once to every live object
    that is queued. Used on one loop.
    """

    def __init__(self, *, transformer: Transformer | None = None) -> None:
        super().__init__("RealFIFO")
        self._transformer = transformer
        self._entries: deque[Entry] = deque()
        self._replaced = False  # the first replacement has come
        self._initial: Replacement | None = None  # the first replacement, until it is processed

    def add(self, record: Record) -> None:
        """Queue an Added."""
        self.extend((Delta(DeltaType.ADDED, record.key, record),))

    def update(self, record: Record) -> None:
        """Queue an Updated."""
        self.extend((Delta(DeltaType.UPDATED, record.key, record),))

    def delete(self, record: Record, *, out_of_scope: bool = False) -> None:
        """Queue a Deleted, also for an unknown object (client-go 39)."""
        self.extend((Delta(DeltaType.DELETED, record.key, record, out_of_scope=out_of_scope),))

    def extend(self, deltas: Iterable[Delta]) -> None:
        """Queue changes, in their order.

        Raises the exceptions of the transformer, after it has queued all deltas on which it did not raise.
        """
        before = len(self._entries)
        try:
            self._entries.extend(
                deltas if self._transformer is None else transformed(self._transformer, deltas)
            )
        finally:
            # Also after a fault of the transformer: the deltas on which it did not raise are in the queue.
            if not self._populated and len(self._entries) > before:
                self._populate_by_change()
            self.wake()

    def replace(self, records: Sequence[Record], resource_version: str) -> None:
        """Queue a complete list at a version.

        Raises the exceptions of the transformer, with nothing queued.
        """
        # Transformed before anything is queued: a fault leaves the queue as it was.
        if self._transformer is not None:
            records = all_transformed(self._transformer, records)
        # Only the first entry decides when the queue has synced (client-go's initialPopulationCount).
        replacement = Replacement(records, resource_version, initial=not self._replaced)
        if not self._populated:
            self._initial = replacement
        self._populated = self._replaced = True
        self._put(replacement)

    def bookmark(self, resource_version: str) -> None:
        """Queue the note that there are no further changes up to a version."""
        self._put(Bookmark(resource_version))

    def depart(self, departure: Departure) -> None:
        """Queue a departure. Nothing of what departs may be queued after it."""
        self._put(departure)

    def resync(self) -> None:
        """Queue a resync, after the present entries (client-go 63)."""
        self._put(SyncAll())

    def pop_nowait(self) -> Entry | None:
        """The next entry; None if there is none."""
        return self._entries.popleft() if self._entries else None

    async def pop(self) -> Entry:
        """Wait for the next entry; raises QueueClosed."""
        return await self.until(self.pop_nowait)

    def pop_batch_nowait(self, limit: int) -> Batch:
        """At most `limit` deltas, or one entry of another kind; an empty list if the queue is empty.

        So a batch never has both the initial list and later changes (client-go 54, 56).
        """
        entries = self._entries
        # A replacement, a bookmark or a resync is a batch of its own: it is applied in another way.
        if entries and not isinstance(other := entries[0], Delta):
            entries.popleft()
            return other
        batch: list[Delta] = []
        while entries and len(batch) < limit and isinstance(delta := entries[0], Delta):
            batch.append(delta)
            entries.popleft()
        return batch

    async def pop_batch(self, limit: int) -> Batch:
        """Wait for the result of `pop_batch_nowait`; raises QueueClosed."""
        return await self.until(lambda: self.pop_batch_nowait(limit) or None)

    def processed(self, batch: Batch) -> None:
        """Note that a batch is in the store. The sync is complete with the first replacement."""
        if self._initial is not None and batch is self._initial:
            self._initial = None
            self.synced.open()

    def __len__(self) -> int:
        """The number of pending entries; a replacement is one."""
        return len(self._entries)

    def _put(self, entry: Entry) -> None:
        self._entries.append(entry)
        self.wake()


def _every(_: Delta) -> bool:
    return True


def transformed(
    transformer: Transformer, deltas: Iterable[Delta], wanted: Callable[[Delta], bool] = _every
) -> Iterator[Delta]:
    """The deltas, with their live objects transformed.

    Records of tombstones, of resyncs and of deltas out of scope are not live, and stay as they are. So do
    those of deltas that are not `wanted`, which the caller drops. A delta on which the transformer raises is
    left out; the first exception is raised after the last delta, so that one object does not block the
    others.
    """
    faults: list[Exception] = []
    for delta in deltas:
        record = delta.record
        is_live = not (delta.final_state_unknown or delta.out_of_scope or delta.type is DeltaType.SYNC)
        if record is None or not is_live or not wanted(delta):
            yield delta
            continue
        try:
            record = _transformed(transformer, record)
        except Exception as fault:  # noqa: BLE001 - the caller's function; it is raised below
            faults.append(fault)
        else:
            yield msgspec.structs.replace(delta, record=record)
    if faults:
        if len(faults) > 1:
            faults[0].add_note(f"the transformer raised on {len(faults) - 1} more")
        raise faults[0]


def all_transformed(transformer: Transformer, records: Iterable[Record]) -> Sequence[Record]:
    """All objects of a list, transformed. Raises the first exception: a shorter list would delete objects."""
    return [_transformed(transformer, record) for record in records]


def _transformed(transformer: Transformer, record: Record) -> Record:
    made = transformer(record)
    if made.key != record.key:
        raise CacheError(f"the transformer made {made.key} of {record.key}: an object has to keep its key")
    return made
