"""The indexer: the store of an informer, where each record is found under its own key (client-go's store.go).

One loop writes, any thread may read: see `thread_safe_store`.
"""

from collections.abc import Iterable

from declctl.errors import CacheError, NoKey
from declctl.informer.stores.thread_safe_store import IndexedRecords
from declctl.objects import Delta, DeltaType, Record


class Indexer(IndexedRecords):
    """Records by key and by index. A reflector can feed it directly, without a queue between them.

    Writing a record whose key is empty raises NoKey and changes nothing.
    """

    def add(self, record: Record) -> None:
        """Put a record; its version is reached."""
        self.put(_key(record), record)
        self.bookmark(record.resource_version)

    update = add

    def delete(self, record: Record) -> Record | None:
        """Take a record out, given its final state, whose version is reached.

        Returns what was stored, None if it wasn't there.
        """
        held = self.take(_key(record))
        self.bookmark(record.resource_version)
        return held

    def replace(self, records: Iterable[Record], resource_version: str = "") -> None:
        """Hold these records and no others, as of a version."""
        self.put_all({_key(record): record for record in records}, resource_version)

    def extend(self, deltas: Iterable[Delta]) -> None:
        """Apply changes in their order."""
        for delta in deltas:
            if delta.record is None or delta.out_of_scope:
                self.take(delta.key)
            elif delta.type is DeltaType.DELETED:
                self.delete(delta.record)
            else:
                self.add(delta.record)

    def get(self, record: Record) -> Record | None:
        """What is stored under the key of a record; None if nothing is."""
        return self.get_by_key(record.key)

    def make(self, change: Delta) -> None:
        """Make one change of a transaction; raises CacheError if it can't be made."""
        if not change.key:
            raise NoKey("a change has no key", change)
        if change.record is not None and change.record.key != change.key:
            raise CacheError(f"a change of {change.key} has the record of {change.record.key or 'no key'}")
        super().make(change)


def _key(record: Record) -> str:
    if not record.key:
        raise NoKey("a record has no key", record)
    return record.key
