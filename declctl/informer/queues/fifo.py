"""FIFO: one place for each key, holding its newest object (client-go's fifo.go)."""

from collections.abc import Sequence

from declctl.informer.queues.queue import Waiting
from declctl.kit import Latch
from declctl.objects import Record


class FIFO(Waiting):
    """A queue of objects, not of changes: whoever pops gets the newest state of each key once.

    A key keeps its place when its object changes, and leaves it when it is deleted. Used on one
    loop. `synced` opens when `has_synced` turns true.
    """

    def __init__(self) -> None:
        super().__init__()
        self.synced = Latch("FIFO")
        self._items: dict[str, Record] = {}
        self._populated = False
        self._initial: set[str] = set()  # keys of the first replacement that are not dealt with yet

    def add(self, record: Record) -> None:
        """Put an object, in the place that its key has already or at the end."""
        self._items[record.key] = record
        self._filled_by_hand()
        self.wake()

    update = add

    def delete(self, record: Record) -> None:
        """Take an object out; nothing happens if it isn't there."""
        waited = self._items.pop(record.key, None)
        self._filled_by_hand()
        if waited is not None:
            self._dealt_with(record.key)

    def replace(self, records: Sequence[Record], resource_version: str = "") -> None:  # noqa: ARG002 - the contract
        """Hold these objects and no others; those that stay keep their places."""
        wanted = {record.key: record for record in records}
        never_popped = self._items.keys() - wanted
        self._items = {key: wanted[key] for key in self._items if key in wanted} | wanted
        self._initial = self._initial - never_popped if self._populated else set(wanted)
        self._populated = True
        self._open_if_synced()
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
        self._dealt_with(record.key)

    @property
    def has_synced(self) -> bool:
        """Whether everything of the first replacement was dealt with; at once if single adds came first."""
        return self.synced.is_open

    def __len__(self) -> int:
        return len(self._items)

    def _filled_by_hand(self) -> None:
        if not self._populated:
            self._populated = True
            self.synced.open()

    def _dealt_with(self, key: str) -> None:
        if self._initial:
            self._initial.discard(key)
            self._open_if_synced()

    def _open_if_synced(self) -> None:
        if not self._initial:
            self.synced.open()
