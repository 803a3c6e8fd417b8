"""ThreadSafeStore: records by key, and by every index (client-go's thread_safe_store.go).

One loop writes. Any thread may read: what a reader gets is a copy made in one step under the
interpreter's lock, so that it is complete at one moment; no single write makes a reader wait. For
the loop, a write to the store and to its indexes is one step. A reader in another thread that asks
twice may find a write half done in between: objects that are new are in the store first, then in each
index; one whose value changes stands under both values for a moment, never under none and never under
one that it did not have. `transaction` and a replacement are one step for every thread: whoever asks
meanwhile waits for the end.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import TypeVar

from declctl.errors import CacheError, NoKey, TransactionError, UnknownIndex
from declctl.informer.stores.indices import (
    NAMESPACE_INDEX,
    Index,
    IndexBuild,
    IndexFunc,
    namespace_index,
    refuse_no_index,
    values_of,
)
from declctl.objects import Delta, DeltaType, Record

T = TypeVar("T")


class SequenceLock:
    """Entered by the writer for a batch of writes; reads go through `read`.

    A read is made without a lock and costs a few instructions, unless it met a batch: then it is made
    again, once, when the batch is done. The thread that writes is let in at once, so that an index
    function may read the store that asks it, and sees what is written so far.
    """

    __slots__ = ("_lock", "_sequence")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sequence = 0  # odd while a batch is written

    def __enter__(self) -> None:
        self._lock.acquire()
        self._sequence += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sequence += 1
        self._lock.release()

    def read(self, copy: Callable[[], T]) -> T:
        """What `copy` gives before or after a batch, never within one."""
        # A batch changes the count when it begins and when it ends: an equal count means that none did.
        sequence = self._sequence
        if not sequence & 1:
            found = copy()
            if sequence == self._sequence:
                return found
        with self._lock:
            return copy()


_BY_NAMESPACE = namespace_index()


class IndexedRecords:
    """What every store of records can do, whoever decides about keys.

    Whoever asks for an index that isn't there gets UnknownIndex, naming those that are.
    `last_store_sync_resource_version` is the newest version that the store has reached. `held` gives
    the record of a key, or None, as `get_by_key` does, for the loop that writes and waits for nobody.
    """

    def __init__(self, indexers: Mapping[str, IndexFunc] | None = None) -> None:
        self.last_store_sync_resource_version = ""
        self._records: dict[str, Record] = {}
        self.held = self._records.get  # no method, which would cost as much as all the rest of a lookup
        self._indices = _indices(indexers or {})
        self._building: dict[str, IndexBuild] = {}
        # Those that follow every change.
        self._written: tuple[Index | IndexBuild, ...] = tuple(self._indices.values())
        self._bytes = 0
        self._batches = SequenceLock()

    def put(self, key: str, record: Record) -> None:
        """Put a record, in the store and in every index. No version is reached by that alone."""
        before = self._records.get(key)
        self._bytes += len(record.frame) - (len(before.frame) if before is not None else 0)
        self._records[key] = record
        for index in self._written:
            index.put(key, record, before)

    def put_new(self, records: Mapping[str, Record]) -> bool:
        """Put records, if none of their keys is stored; else nothing is changed. Whether they were put.

        As `put` one by one, and cheaper: they are in the store at once, then in one index after the other.
        """
        if not self._records.keys().isdisjoint(records):
            return False
        # All keys are new, so no index has to forget an older state.
        self._records.update(records)
        self._bytes += sum([len(record.frame) for record in records.values()])
        for index in self._written:
            index.put_new(records)
        return True

    def take(self, key: str) -> Record | None:
        """Take a record out, of the store and of every index; returns it, None if it wasn't there."""
        held = self._records.pop(key, None)
        if held is not None:
            self._bytes -= len(held.frame)
            for index in self._written:
                index.remove(key, held)
        return held

    def put_all(self, records: Mapping[str, Record], resource_version: str) -> None:
        """Hold these records and no others: one step for readers in any thread."""
        with self._batches:
            for key in [key for key in self._records if key not in records]:
                self.take(key)
            # The first list meets an empty store, where the fast way is possible.
            if not self.put_new(records):
                for key, record in records.items():
                    self.put(key, record)
            self.last_store_sync_resource_version = resource_version

    def transaction(self, changes: Iterable[Delta]) -> None:
        """Make changes in their order: one step for readers in any thread (client-go 92).

        A DELETED one takes the key out, every other puts its record. The version reached is that of
        the last record, as if the changes were made one by one. A change that can't be made (it has
        no record to put, or no key of its own) keeps none of the others from being made;
        TransactionError then says which ones were.
        """
        asked = tuple(changes)
        succeeded: list[int] = []
        faults: list[CacheError] = []
        with self._batches:
            for position, change in enumerate(asked):
                try:
                    self.make(change)
                except CacheError as fault:
                    faults.append(fault)
                else:
                    succeeded.append(position)
        if faults:
            raise TransactionError(total=len(asked), succeeded=succeeded, faults=faults) from faults[0]

    def bookmark(self, resource_version: str) -> None:
        """The store has everything up to that version."""
        if resource_version:
            self.last_store_sync_resource_version = resource_version

    def resync(self) -> None:
        """Nothing: what is stored is in sync with itself (client-go's Store contract)."""

    def get_by_key(self, key: str) -> Record | None:
        """The record of a key; None if it isn't there."""
        return self._batches.read(lambda: self._records.get(key))

    def list(self) -> list[Record]:
        """Every record."""
        return self._batches.read(lambda: list(self._records.values()))

    def list_keys(self) -> Sequence[str]:
        """Every key."""
        return self._batches.read(lambda: list(self._records))

    def list_by_namespace(self, namespace: str) -> Sequence[Record]:
        """The records of a namespace.

        The index NAMESPACE_INDEX has them if it is `namespace_index()`; else each record is looked at
        (client-go's ListAllByNamespace).
        """
        index = self._indices.get(NAMESPACE_INDEX)
        if index is not None and index.function == _BY_NAMESPACE:
            return self._batches.read(lambda: index.records(namespace))
        # Without that index the key says the namespace.
        prefix = f"{namespace}/"
        return [record for record in self.list() if record.key.startswith(prefix)]

    def known(self) -> Mapping[str, Record]:
        """The records by key, read-only and live; for the loop that writes."""
        return MappingProxyType(self._records)

    def index(self, name: str, record: Record) -> Sequence[Record]:
        """The records that share a value with this one, which need not be stored.

        Raises UnknownIndex, CacheError where the index function gives no list of strings for the
        record, and what the function raises.
        """
        index = self._index(name)
        values = values_of(index.function, record)

        def copy() -> dict[str, Record]:
            return {held.key: held for value in values for held in index.records(value)}

        return tuple(self._batches.read(copy).values())

    def by_index(self, name: str, value: str) -> Sequence[Record]:
        """The records that have the value; raises UnknownIndex."""
        index = self._index(name)
        return self._batches.read(lambda: index.records(value))

    def index_keys(self, name: str, value: str) -> Sequence[str]:
        """Their keys; raises UnknownIndex."""
        index = self._index(name)
        return self._batches.read(lambda: index.keys(value))

    def list_index_func_values(self, name: str) -> Sequence[str]:
        """Every value of an index; raises UnknownIndex."""
        return self._batches.read(self._index(name).values)

    def get_indexers(self) -> Mapping[str, IndexFunc]:
        """The index functions by name."""
        return {name: index.function for name, index in self._indices.items()}

    def add_indexers(self, indexers: Mapping[str, IndexFunc]) -> None:
        """Add indexes, at any time, with what is in the store (client-go 93).

        A name that is taken raises CacheError and changes nothing. A build of one of these names that
        is not finished is given up.
        """
        taken = sorted(self._indices.keys() & indexers.keys())
        if taken:
            raise CacheError(f"an index named {taken[0]!r} exists already")
        fresh = _indices(indexers)
        for index in fresh.values():
            index.put_new(self._records)
        # A finished index makes the one that is being built under its name useless.
        self._give_up_builds(fresh)
        self._publish({**self._indices, **fresh})

    def remove_indexers(self, names: Iterable[str]) -> None:
        """Forget indexes, also those that are being built; names that are not there are passed over."""
        gone = set(names)
        self._give_up_builds(gone)
        self._publish({name: index for name, index in self._indices.items() if name not in gone})

    def build_index(self, name: str, function: IndexFunc) -> IndexBuild:
        """Begin an index that is filled in slices while it follows every change.

        This loop fills it, or a thread asks its function. It can be read once it is complete. A build of
        that name that was begun before and not finished is given up. A name that is taken raises CacheError.
        """
        if name in self._indices:
            raise CacheError(f"an index named {name!r} exists already")
        [index] = _indices({name: function}).values()

        def finish() -> None:
            if self._building.get(name) is build:
                del self._building[name]
                self._publish({**self._indices, name: index})

        self._give_up_builds([name])
        build = self._building[name] = IndexBuild(self._records, index=index, finish=finish)
        self._publish(self._indices)
        return build

    def index_faults(self) -> Mapping[str, tuple[int, str | None]]:
        """For each index whose function has failed: how often, and the last fault in words."""
        return {name: (i.faults, i.last_fault) for name, i in self._indices.items() if i.faults}

    @property
    def bytes(self) -> int:
        """Bytes of all frames."""
        return self._bytes

    def __len__(self) -> int:
        return self._batches.read(lambda: len(self._records))

    def __contains__(self, key: object) -> bool:
        return self._batches.read(lambda: key in self._records)

    def make(self, change: Delta) -> None:
        """Make one change of a transaction; raises CacheError if it can't be made."""
        kind, key, record = change.type, change.key, change.record
        if kind is DeltaType.DELETED:
            self.take(key)
        elif record is None:
            raise CacheError(f"there is nothing to put under {key}: {kind} without a record")
        else:
            self.put(key, record)
        if record is not None and not change.out_of_scope:
            self.bookmark(record.resource_version)

    def _index(self, name: str) -> Index:
        index = self._indices.get(name)
        if index is None:
            known = ", ".join(sorted(self._indices)) or "none"
            raise UnknownIndex(f"there is no index {name!r}; there are: {known}")
        return index

    def _give_up_builds(self, names: Iterable[str]) -> None:
        for name in names:
            if (build := self._building.pop(name, None)) is not None:
                build.give_up()

    def _publish(self, indices: dict[str, Index]) -> None:
        # A new table instead of a changed one: a reader in another thread has the old or the new one.
        self._indices = indices
        self._written = (*indices.values(), *self._building.values())


def _indices(indexers: Mapping[str, IndexFunc]) -> dict[str, Index]:
    for name, function in indexers.items():
        refuse_no_index(name, function)
    return {name: Index(function) for name, function in indexers.items()}


class ThreadSafeStore(IndexedRecords):
    """Records under keys that the caller gives."""

    def add(self, key: str, record: Record) -> None:
        """Put a record under a key; its version is reached."""
        self.put(key, record)
        self.bookmark(record.resource_version)

    update = add

    def delete(self, key: str, record: Record | None = None) -> Record | None:
        """Take a record out; returns it, None if it wasn't there.

        `record` is its final state if that is known: its version is reached then (client-go 83).
        """
        held = self.take(key)
        if record is not None:
            self.bookmark(record.resource_version)
        return held

    def replace(self, records: Mapping[str, Record], resource_version: str = "") -> None:
        """Hold these records and no others, as of a version."""
        self.put_all(records, resource_version)

    def get(self, key: str) -> Record | None:
        """The record of a key; None if it isn't there."""
        return self.get_by_key(key)


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
