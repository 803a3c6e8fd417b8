"""A queue with the store behind it: what is popped is applied, and what listeners would hear is kept."""

from collections.abc import Callable, Sequence
from typing import Any

from declctl.informer import DeltaFIFO, Indexer, RealFIFO
from declctl.informer.applier import Applier, RelistDifferences, resync_of
from declctl.informer.queues.real_fifo import Batch, Bookmark, Entry, Replacement, SyncAll
from declctl.objects import Notification, Record
from tests.rooms.informer.shapes import record


def entries(batch: Batch) -> Sequence[Entry]:
    return batch if isinstance(batch, list) else [batch]


class Line:
    """`make` gets what the store holds, and makes the queue in front of it."""

    def __init__(
        self, *stored: Record, make: Callable[..., RealFIFO | DeltaFIFO] = lambda known: RealFIFO()
    ) -> None:
        self.store = Indexer()
        for each in stored:
            self.store.add(each)
        self.queue = make(self.store.known)
        self._applier = Applier(self.store, in_order=isinstance(self.queue, RealFIFO))

    def apply(self, batch: Batch) -> Sequence[Notification]:
        """What listeners hear when it is applied; `processed` is left to the test."""
        match batch:
            case Replacement():
                return [told for part in self._applier.replace(batch, 0.0) for told in part]
            case Bookmark(version):
                self.store.bookmark(version)
                return []
            case SyncAll():
                return [resync_of(held, 0.0) for held in self.store.list()]
            case _:
                return self._applier.apply(batch, 0.0)

    @property
    def differences(self) -> RelistDifferences:
        return self._applier.differences

    def drained(self, limit: int = 100) -> list[str]:
        """What listeners hear when everything that waits is applied, in words."""
        told: list[Notification] = []
        while batch := self.queue.pop_batch_nowait(limit):
            told += self.apply(batch)
            self.queue.processed(batch)
        return words(told)

    @property
    def versions(self) -> dict[str, str]:
        """The version that the store holds of each name."""
        return {each.key.removeprefix("demo/"): each.resource_version for each in self.store.list()}


def play(queue: Any, *steps: str) -> None:
    """Does to a queue what is said: `add a 1`, `update a 2`, `delete a 3`, `resync`, `bookmark 4`, `pop`.

    `list a 5 b 6` is a list of two objects, at the version of the last one, or at 99 if it is empty.
    """
    for verb, *words in map(str.split, steps):
        if verb == "list":
            queue.replace(records(*words), words[-1] if words else "99")
        elif verb in ("add", "update", "delete"):
            getattr(queue, verb)(*records(*words))
        else:
            getattr(queue, "pop_nowait" if verb == "pop" else verb)(*words)


def records(*words: str) -> list[Record]:
    """Of names and versions in turn: `a`, `1`, `b`, `2`."""
    return [record(name, int(version)) for name, version in zip(words[::2], words[1::2], strict=True)]


def words(told: Sequence[Notification]) -> list[str]:
    """What was told, as `Deleted a 3 tombstone`."""
    return [
        f"{n.type} {n.key.removeprefix('demo/')} {n.record.resource_version}"
        + (" tombstone" if n.final_state_unknown else "")
        for n in told
    ]
