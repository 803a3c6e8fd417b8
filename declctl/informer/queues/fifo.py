"""FIFO: one place for each key, holding its newest object (client-go's fifo.go)."""

from collections.abc import Sequence

from declctl.informer.queues.waiting import Waiting
from declctl.objects import Record


class FIFO(Waiting):
    """A queue of objects, not of changes: whoever pops gets the newest state of each key once.

    A key keeps its place when its object changes, and leaves it when it is deleted. Used on one
    loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self._items: dict[str, Record] = {}
        self._populated = False
        self._initial: set[str] = set()

    def add(self, record: Record) -> None:
        """Put an object, in the place that its key has already or at the end."""
        self._populated = True
        self._items[record.key] = record
        self.wake()

    update = add

    def delete(self, record: Record) -> None:
        """Take an object out; nothing happens if it isn't there."""
        self._populated = True
        self._items.pop(record.key, None)
        self._initial.discard(record.key)

    def replace(self, records: Sequence[Record], resource_version: str = "") -> None:  # noqa: ARG002 - the contract
        """Hold these objects and no others; those that stay keep their places."""
        wanted = {record.key: record for record in records}
        self._items = {key: wanted[key] for key in self._items if key in wanted} | wanted
        if not self._populated:
            self._initial = set(wanted)
        self._populated = True
        self.wake()

    def get_by_key(self, key: str) -> Record | None:
        """The object that waits under a key."""
        return self._items.get(key)

    def list(self) -> list[Record]:
        """Every object that waits, in order."""
        return list(self._items.values())

    def list_keys(self) -> Sequence[str]:
        """Every key that waits, in order."""
        return list(self._items)

    def pop_nowait(self) -> Record | None:
        """The object that waits longest; None if there is none."""
        key = next(iter(self._items), None)
        return None if key is None else self._items.pop(key)

    async def pop(self) -> Record:
        """As `pop_nowait`, as soon as there is something; raises QueueClosed."""
        return await self.until(self.pop_nowait)

    def processed(self, record: Record) -> None:
        """What was popped has been dealt with."""
        self._initial.discard(record.key)

    @property
    def has_synced(self) -> bool:
        """Whether everything of the first replacement was dealt with; at once if single adds came first."""
        return self._populated and not self._initial

    def __len__(self) -> int:
        return len(self._items)
