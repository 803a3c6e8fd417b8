"""The store: records by key, and by every index (client-go's thread_safe_store.go).

One loop writes. Any thread may read: what a reader gets is a copy made in one step under the
interpreter's lock, so that it is complete at one moment; there is no lock to wait for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from declctl.errors import CacheError, UnknownIndex
from declctl.informer.stores.indices import Index, IndexFunc
from declctl.objects import Record


class Indexer:
    """Records by key and by index."""

    def __init__(self, indexers: Mapping[str, IndexFunc] | None = None) -> None:
        self._records: dict[str, Record] = {}
        self._indices = {name: Index(function) for name, function in (indexers or {}).items()}
        self._building: dict[str, Index] = {}
        self._bytes = 0
        self.last_store_sync_resource_version = ""

    def add(self, record: Record) -> None:
        """Put a record, in the store and in every index."""
        before = self._records.get(record.key)
        self._bytes += len(record.frame) - (len(before.frame) if before is not None else 0)
        self._records[record.key] = record
        for index in self._indices.values():
            index.put(record)
        for index in self._building.values():
            index.put(record)

    update = add

    def delete(self, key: str) -> Record | None:
        """Take a record out; returns it, None if it wasn't there."""
        record = self._records.pop(key, None)
        if record is not None:
            self._bytes -= len(record.frame)
            for index in (*self._indices.values(), *self._building.values()):
                index.remove(key)
        return record

    def replace(self, records: Iterable[Record], resource_version: str = "") -> None:
        """Hold these records and no others."""
        kept = {record.key for record in records}
        for key in [key for key in self._records if key not in kept]:
            self.delete(key)
        for record in records:
            self.add(record)
        self.last_store_sync_resource_version = resource_version

    def get_by_key(self, key: str) -> Record | None:
        """The record of a key."""
        return self._records.get(key)

    def list(self) -> list[Record]:
        """Every record."""
        return list(self._records.values())

    def list_keys(self) -> Sequence[str]:
        """Every key."""
        return list(self._records)

    def known(self) -> Mapping[str, Record]:
        """The records by key, read-only and live; for the loop that writes."""
        return MappingProxyType(self._records)

    def by_index(self, name: str, value: str) -> Sequence[Record]:
        """The records that have the value; raises UnknownIndex."""
        return self._index(name).records(value)

    def index_keys(self, name: str, value: str) -> Sequence[str]:
        """Their keys; raises UnknownIndex."""
        return self._index(name).keys(value)

    def list_index_func_values(self, name: str) -> Sequence[str]:
        """Every value of an index; raises UnknownIndex."""
        return self._index(name).values()

    def get_indexers(self) -> Mapping[str, IndexFunc]:
        """The index functions by name."""
        return {name: index.function for name, index in self._indices.items()}

    def add_indexers(self, indexers: Mapping[str, IndexFunc]) -> None:
        """Add indexes, at any time, with what is in the store.

        A name that is taken raises and changes nothing.
        """
        self._refuse_taken(indexers)
        fresh = {name: Index(function) for name, function in indexers.items()}
        for record in self._records.values():
            for index in fresh.values():
                index.put(record)
        self._indices |= fresh

    def remove_indexers(self, names: Iterable[str]) -> None:
        """Forget indexes; names that are not there are passed over."""
        gone = set(names)
        self._indices = {name: index for name, index in self._indices.items() if name not in gone}
        for name in gone:
            self._building.pop(name, None)

    def build_index(self, name: str, function: IndexFunc) -> "IndexBuild":
        """Begin an index that is filled in slices, while it follows every change.

        It can be read once it is complete.
        """
        self._refuse_taken({name: function})
        index = self._building[name] = Index(function)
        return IndexBuild(
            self.list(), current=self._records.get, index=index, publish=lambda: self._publish(name)
        )

    def index_faults(self) -> Mapping[str, tuple[int, str | None]]:
        """For each index whose function has failed: how often, and the last fault in words."""
        return {name: (i.faults, i.last_fault) for name, i in self._indices.items() if i.faults}

    @property
    def bytes(self) -> int:
        """Bytes of all frames."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, key: object) -> bool:
        return key in self._records

    def _index(self, name: str) -> Index:
        try:
            return self._indices[name]
        except KeyError:
            known = ", ".join(sorted(self._indices)) or "none"
            raise UnknownIndex(f"there is no index {name!r}; there are: {known}") from None

    def _refuse_taken(self, indexers: Mapping[str, IndexFunc]) -> None:
        taken = sorted(name for name in indexers if name in self._indices or name in self._building)
        if taken:
            raise CacheError(f"an index named {taken[0]!r} exists already")

    def _publish(self, name: str) -> None:
        index = self._building.pop(name, None)
        if index is not None:
            # A new table instead of a changed one: a reader in another thread has the old one or
            # the new one.
            self._indices = {**self._indices, name: index}


class IndexBuild:
    """An index under way.

    `step` fills a slice of it and says whether it is complete, and then it can be read.
    """

    def __init__(
        self,
        records: Sequence[Record],
        *,
        current: Callable[[str], Record | None],
        index: Index,
        publish: Callable[[], None],
    ) -> None:
        self._records = records
        self._current = current
        self._index = index
        self._publish = publish
        self._next = 0

    def step(self, budget: int) -> bool:
        """Index at most `budget` more objects; True when all are in."""
        until = self._next + budget
        for record in self._records[self._next : until]:
            # What has changed since the build began is in the index already, or gone.
            if self._current(record.key) is record:
                self._index.put(record)
        self._next = until
        if until < len(self._records):
            return False
        self._publish()
        self._records = ()
        return True


ThreadSafeStore = Indexer
"""client-go's name for the same: there the indexer adds a key function, here records know their key."""
