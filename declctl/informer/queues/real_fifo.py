"""RealFIFO: what happened, in the order in which it happened, over all keys (client-go's the_real_fifo.go).

It is the queue that informers use by default. Before it stands what all queues share: the batches, the
protocol, the wait for a pop, and the transformer.

A queue decides what is popped next, and a thin shell waits for it. A queue is used on one loop, which is its
lock: each waiter is woken when something comes in or the queue is closed, and looks again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from declctl.errors import CacheError, QueueClosed
from declctl.kit import Latch
from declctl.objects import Delta, DeltaType, Record

T = TypeVar("T")
Transformer = Callable[[Record], Record]
"""Changes objects on their way into a queue (client-go's TransformFunc).

The transform of a manifest works on the decoded object, before there is a record; this one is for programs
that build a line of their own. It has to give the same for its own result: a relist brings objects again that
went through it before.
"""


@dataclass(frozen=True, slots=True)
class Replacement:
    """All the objects that there are. `initial` for the first one."""

    records: Sequence[Record]
    resource_version: str
    initial: bool


@dataclass(frozen=True, slots=True)
class SyncAll:
    """The store is to be replayed to the listeners whose resync is due."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Nothing has changed up to this version."""

    resource_version: str


Entry = Delta | Replacement | SyncAll | Bookmark
"""What waits in a queue."""

Batch = list[Delta] | Replacement | SyncAll | Bookmark
"""What is popped and processed together: changes in their order, or one entry of another kind."""


def key_of_entry(entry: Record | Delta | Sequence[Delta]) -> str:
    """The key of a record, of a delta, or of the deltas that a DeltaFIFO pops together (client-go's KeyOf).

    Raises CacheError for an empty list.
    """
    if isinstance(entry, Record | Delta):
        return entry.key
    if not entry:
        raise CacheError("an empty list of deltas has no key")
    return entry[-1].key


class Queue(Protocol):
    """What happened and is not applied yet.

    A reflector fills it with `extend`, `replace` and `bookmark`, a controller empties it. A batch that was
    popped counts as pending until it is given to `processed`.
    """

    def extend(self, deltas: Iterable[Delta]) -> None:
        """Queue these changes, in this order."""
        ...

    def replace(self, records: Sequence[Record], resource_version: str) -> None:
        """Queue all the objects that there are, at that version."""
        ...

    def bookmark(self, resource_version: str) -> None:
        """Queue that nothing has changed up to that version."""
        ...

    def resync(self) -> None:
        """Queue a replay of the store to the listeners whose resync is due, after what is queued."""
        ...

    def pop_batch_nowait(self, limit: int) -> Batch:
        """The next batch, of at most `limit` changes or keys; an empty list if nothing waits."""
        ...

    async def pop_batch(self, limit: int) -> Batch:
        """The next batch as soon as there is one; raises QueueClosed."""
        ...

    def processed(self, batch: Batch) -> None:
        """Note that a batch, as it was popped, is applied."""
        ...

    @property
    def has_synced(self) -> bool:
        """Whether what came first is applied."""
        ...

    def close(self) -> None:
        """Hand out what is left, then raise QueueClosed; wakes every waiter."""
        ...

    def __len__(self) -> int:
        """How many entries wait: changes, or keys where the changes of a key wait together."""
        ...


class QueueBase:
    """The waiting shell of a queue: it lets callers wait until an attempt to pop gives something."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Hand out what is left, then raise QueueClosed; wakes every waiter."""
        self._closed = True
        self._changed.set()

    def wake(self) -> None:
        """Let waiters look again."""
        self._changed.set()

    async def until(self, attempt: Callable[[], T | None]) -> T:
        """What `attempt` gives, as soon as that is not None; raises QueueClosed."""
        while (found := attempt()) is None:
            if self._closed:
                raise QueueClosed("the queue is closed and empty")
            # Cleared before the wait and after the attempt: on one loop nothing can come in between.
            self._changed.clear()
            await self._changed.wait()
        return found


class SyncingQueue(QueueBase):
    """A queue that knows when what came first was processed: then `synced` opens.

    If changes come before the first replacement, it has synced at once.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.synced = Latch(name)
        self._populated = False  # a change or a replacement has come

    @property
    def has_synced(self) -> bool:
        """Whether everything of the first replacement was processed; at once if changes came first."""
        return self.synced.is_open

    def _populate_by_change(self) -> None:
        """Note that a change has come. If it is the first thing that has come, no list is waited for."""
        if not self._populated:
            self._populated = True
            self.synced.open()


class RealFIFO(SyncingQueue):
    """The in-order queue. Every change is an entry of its own, and nothing is merged.

    A replacement is one entry, compared with the store when it is processed, so that nothing queued can be
    forgotten by it (client-go's AtomicFIFO). Used on one loop; `pop_batch_nowait` decides, `pop_batch` waits.
    `transformer` is applied to every live object once, on its way in.
    """

    def __init__(self, *, transformer: Transformer | None = None) -> None:
        super().__init__("RealFIFO")
        self._transformer = transformer
        self._entries: deque[Entry] = deque()
        self._replaced = False  # the first replacement has come
        self._initial: Replacement | None = None  # the first replacement, until it is processed

    def add(self, record: Record) -> None:
        """Queue that an object appeared."""
        self.extend((Delta(DeltaType.ADDED, record.key, record),))

    def update(self, record: Record) -> None:
        """Queue that an object changed."""
        self.extend((Delta(DeltaType.UPDATED, record.key, record),))

    def delete(self, record: Record, *, out_of_scope: bool = False) -> None:
        """Queue that an object is gone, known or not (client-go 39)."""
        self.extend((Delta(DeltaType.DELETED, record.key, record, out_of_scope=out_of_scope),))

    def extend(self, deltas: Iterable[Delta]) -> None:
        """Queue these changes, in this order.

        Raises what the transformer raises, with every delta queued on which it did not raise.
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
        """Queue all the objects that there are, at that version.

        Raises what the transformer raises, with nothing queued.
        """
        # Transformed before anything is queued: a fault leaves the queue as it was.
        if self._transformer is not None:
            records = all_transformed(self._transformer, records)
        # Only what came first decides whether the queue has synced (client-go's initialPopulationCount).
        replacement = Replacement(records, resource_version, initial=not self._replaced)
        if not self._populated:
            self._initial = replacement
        self._populated = self._replaced = True
        self._put(replacement)

    def bookmark(self, resource_version: str) -> None:
        """Queue that nothing has changed up to that version."""
        self._put(Bookmark(resource_version))

    def resync(self) -> None:
        """Queue a replay of the store, after what is queued (client-go 63)."""
        self._put(SyncAll())

    def pop_nowait(self) -> Entry | None:
        """The next entry; None if there is none."""
        return self._entries.popleft() if self._entries else None

    async def pop(self) -> Entry:
        """The next entry as soon as there is one; raises QueueClosed."""
        return await self.until(self.pop_nowait)

    def pop_batch_nowait(self, limit: int) -> Batch:
        """At most `limit` deltas, or one entry of another kind; an empty list if nothing waits.

        So a batch never mixes the initial list with what comes after it (client-go 54, 56).
        """
        entries = self._entries
        # A replacement, a bookmark or a replay is a batch of its own: it is applied in another way.
        if entries and not isinstance(other := entries[0], Delta):
            entries.popleft()
            return other
        batch: list[Delta] = []
        while entries and len(batch) < limit and isinstance(delta := entries[0], Delta):
            batch.append(delta)
            entries.popleft()
        return batch

    async def pop_batch(self, limit: int) -> Batch:
        """As `pop_batch_nowait`, as soon as there is something; raises QueueClosed."""
        return await self.until(lambda: self.pop_batch_nowait(limit) or None)

    def processed(self, batch: Batch) -> None:
        """Note that the batch is in the store: only then can the queue say that it has synced."""
        if self._initial is not None and batch is self._initial:
            self._initial = None
            self.synced.open()

    def __len__(self) -> int:
        """How many entries wait; a replacement is one."""
        return len(self._entries)

    def _put(self, entry: Entry) -> None:
        self._entries.append(entry)
        self.wake()


def _every(_: Delta) -> bool:
    return True


def transformed(
    transformer: Transformer, deltas: Iterable[Delta], wanted: Callable[[Delta], bool] = _every
) -> Iterator[Delta]:
    """The deltas with their live objects transformed: no tombstones, no resyncs, nothing out of scope.

    Objects of deltas that are not `wanted` are not transformed either: the caller will drop them. A delta on
    which the transformer raises is left out. The first fault is raised after the last delta, so that one
    object does not keep the others out.
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
    """All objects of a list; raises the first fault, because a list that lacks an object would delete it."""
    return [_transformed(transformer, record) for record in records]


def _transformed(transformer: Transformer, record: Record) -> Record:
    made = transformer(record)
    if made.key != record.key:
        raise CacheError(f"the transformer made {made.key} of {record.key}: an object has to keep its key")
    return made
