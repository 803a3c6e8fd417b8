"""What stands in a queue, and what every queue between a reflector and a store can do."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from declctl.errors import CacheError
from declctl.objects import Delta, Record


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
