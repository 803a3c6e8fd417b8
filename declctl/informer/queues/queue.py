"""The parts of every queue between a reflector and a store: entries, a transformer, the wait for a pop.

The queue decides what is popped next; the waiting shell waits for it. It is used on one loop: every waiter is
woken when something comes in or the queue is closed, and looks again.

A transformer (client-go's TransformFunc) works on objects on their way in. The transform of a manifest works
on the decoded object, before there is a record; this one is for programs that build a line of their own. It
has to give the same for its own result: a relist brings objects again that went through it before.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from declctl.errors import CacheError, QueueClosed
from declctl.objects import Delta, DeltaType, Record


class Replacement(NamedTuple):
    """All the objects that there are. `initial` for the first one."""

    records: Sequence[Record]
    resource_version: str
    initial: bool


class SyncAll(NamedTuple):
    """The store is to be replayed to the listeners whose resync is due."""


class Bookmark(NamedTuple):
    """Nothing has changed up to this version."""

    resource_version: str


Entry = Delta | Replacement | SyncAll | Bookmark


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

    A reflector fills it with `extend`, `replace` and `bookmark`, a controller empties it. What was
    popped counts as pending until it is given to `processed`.
    """

    def extend(self, deltas: Iterable[Delta]) -> None:
        """These happened, in this order."""
        ...

    def replace(self, records: Sequence[Record], resource_version: str) -> None:
        """These are all the objects there are, at that version."""
        ...

    def bookmark(self, resource_version: str) -> None:
        """Nothing has changed up to that version."""
        ...

    def resync(self) -> None:
        """Replay the store to those whose resync is due, after what is queued."""
        ...

    def pop_batch_nowait(self, limit: int) -> Sequence[Entry]:
        """The next entries; empty if there are none."""
        ...

    async def pop_batch(self, limit: int) -> Sequence[Entry]:
        """The next entries as soon as there are any; raises QueueClosed."""
        ...

    def processed(self, batch: Sequence[Entry]) -> None:
        """The batch is applied."""
        ...

    @property
    def has_synced(self) -> bool:
        """Whether what came first is applied."""
        ...

    def close(self) -> None:
        """Hand out what is left, then raise QueueClosed; wakes everybody who waits."""
        ...

    def __len__(self) -> int:
        """How many entries wait: changes, or keys where the changes of a key wait together."""
        ...


T = TypeVar("T")


class Waiting:
    """Lets callers wait until an attempt gives something."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Hand out what is left, then raise QueueClosed; wakes everybody who waits."""
        self._closed = True
        self._changed.set()

    def wake(self) -> None:
        """Let those who wait look again."""
        self._changed.set()

    async def until(self, attempt: Callable[[], T | None]) -> T:
        """What `attempt` gives, as soon as that is not None; raises QueueClosed."""
        while (found := attempt()) is None:
            if self._closed:
                raise QueueClosed("the queue is closed and empty")
            self._changed.clear()
            await self._changed.wait()
        return found


Transformer = Callable[[Record], Record]

_SYNC = DeltaType.SYNC


def _every(_: Delta) -> bool:
    return True


def transformed(
    transformer: Transformer, deltas: Iterable[Delta], wanted: Callable[[Delta], bool] = _every
) -> Iterator[Delta]:
    """The deltas with their live objects transformed: no tombstones, no resyncs, nothing out of scope.

    Nor those that are not `wanted`, which whoever queues them will drop. A delta on which the
    transformer raises is left out; the first fault is raised after the last delta, so that one
    object does not keep the others out.
    """
    faults: list[Exception] = []
    for delta in deltas:
        record = delta.record
        if record is None or not (_is_live(delta) and wanted(delta)):
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
    """All objects of a list; raises the first fault, because a list that lacks one would delete it."""
    return [_transformed(transformer, record) for record in records]


def _is_live(delta: Delta) -> bool:
    return not (delta.final_state_unknown or delta.out_of_scope or delta.type is _SYNC)


def _transformed(transformer: Transformer, record: Record) -> Record:
    made = transformer(record)
    if made.key != record.key:
        raise CacheError(f"the transformer made {made.key} of {record.key}: an object has to keep its key")
    return made
