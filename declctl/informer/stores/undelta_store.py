"""UndeltaStore: whoever wants the whole state, not what changed, gets all of it after each write."""

from collections.abc import Callable, Iterable, Sequence

from declctl.informer.stores.indexer import Indexer
from declctl.objects import Delta, Record


class UndeltaStore:
    """Calls `push` with every record after each write, never after a read (client-go's undelta_store.go).

    A batch of deltas is one write. A reflector can feed it directly. Used on one loop; `push` runs
    within the write, and what it raises comes out of it, with the store written already.
    """

    def __init__(self, push: Callable[[Sequence[Record]], None]) -> None:
        self._indexer = Indexer()
        self._push = push

    def add(self, record: Record) -> None:
        """Put a record."""
        self._indexer.add(record)
        self._push(self.list())

    update = add

    def delete(self, record: Record) -> None:
        """Take a record out."""
        self._indexer.delete(record)
        self._push(self.list())

    def extend(self, deltas: Iterable[Delta]) -> None:
        """Apply changes in their order, then push once."""
        self._indexer.extend(deltas)
        self._push(self.list())

    def replace(self, records: Iterable[Record], resource_version: str = "") -> None:
        """Hold these records and no others."""
        self._indexer.replace(records, resource_version)
        self._push(self.list())

    def bookmark(self, resource_version: str) -> None:
        """Nothing has changed up to that version: nothing is pushed."""
        self._indexer.bookmark(resource_version)

    def resync(self) -> None:
        """Nothing: what is stored is in sync with itself."""

    def get(self, record: Record) -> Record | None:
        """What is stored under the key of a record; None if nothing is."""
        return self._indexer.get(record)

    def get_by_key(self, key: str) -> Record | None:
        """The record of a key; None if it isn't there."""
        return self._indexer.get_by_key(key)

    def list(self) -> list[Record]:
        """Every record."""
        return self._indexer.list()

    def list_keys(self) -> Sequence[str]:
        """Every key."""
        return self._indexer.list_keys()

    def __len__(self) -> int:
        return len(self._indexer)
