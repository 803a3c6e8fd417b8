"""ThreadSafeStore: records by key, and by every index (client-go's thread_safe_store.go).

One loop writes, any thread may read. A read copies its result in one step under the interpreter's lock, so
the result is complete at one moment, and no single write makes a reader wait.

For the loop, a write to the store and to its indexes is one step. For other threads it is several steps. A
new object is in the store first, then in each index. An object whose value changes stands in an index under
both values for a moment: never under neither, and never under a value that it did not have. `transaction` and
`put_all` are one step for every thread: a read during them waits for their end. A `snapshot` is taken between
two writes, and several reads of it see one moment.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import TypeVar

from declctl.errors import CacheError, NoKey, TransactionError
from declctl.informer.stores.indices import (
    Index,
    IndexBuild,
    IndexFunc,
    refuse_no_index,
    values_of,
)
from declctl.informer.stores.store_snapshot import StoreSnapshot, index_by_namespace, unknown_index
from declctl.objects import Delta, DeltaType, Record

T = TypeVar("T")


class SequenceLock:
    """Lets reads meet a batch of writes before or after it, never within (a sequence lock, as in Linux).

    The writer enters it for a batch. A read takes no lock and costs a few instructions. A read that meets a
    batch is repeated once, when the batch is done. The thread of the writer never waits, so that an index
    function may read the store that calls it; it sees the writes so far.
    """

    __slots__ = ("_sequence", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held during each batch; the writer may hold it for single writes, too
        self._sequence = 0  # odd while a batch is written

    def __enter__(self) -> None:
        self.lock.acquire()
        self._sequence += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sequence += 1
        self.lock.release()

    def read(self, copy: Callable[[], T]) -> T:
        """The result of `copy`, called before or after a batch, never within one. From any thread."""
        # A batch changes the count when it begins and when it ends: an equal count means that none did.
        sequence = self._sequence
        if not sequence & 1:
            found = copy()
            if sequence == self._sequence:
                return found
        with self.lock:
            return copy()


class IndexedRecords:
    """Records by key and by index: the common part of ThreadSafeStore and Indexer.

    The loop writes, any thread reads. A read of an index that does not exist raises UnknownIndex, which names
    the existing ones.
    """

    def __init__(self, indexers: Mapping[str, IndexFunc] | None = None) -> None:
        self.last_store_sync_resource_version = ""  # the newest version whose changes are all in the store
        self._records: dict[str, Record] = {}
        # As `get_by_key`, for the writing loop. Not a method: that call would double the cost of a lookup.
        self.stored = self._records.get
        self._indices = _indices(indexers or {})  # complete indexes, by name; replaced as a whole
        self._building: dict[str, IndexBuild] = {}  # indexes that are not complete yet, by name
        self._written: tuple[Index | IndexBuild, ...] = tuple(self._indices.values())  # both, for each write
        self._bytes = 0  # of all frames
        self._batches = SequenceLock()
        # Held during each write, so that a snapshot is taken between two. A read waits for batches only.
        self.lock = self._batches.lock
        # Those that may be read; a reference whose snapshot is gone is removed by the next write.
        self._snapshots: tuple[weakref.ref[StoreSnapshot], ...] = ()
        # True while a list replaces the records in slices, or a namespace leaves. The states in between never
        # existed on the server: a list is in the order of keys.
        self.is_being_replaced = False

    def put(self, key: str, record: Record) -> None:
        """Store a record, also in every index. `last_store_sync_resource_version` stays as it is."""
        with self.lock:
            before = self._records.get(key)
            if self._snapshots:
                for snapshot in self._alive():
                    snapshot.note(key, before)
            self._bytes += len(record.frame) - (len(before.frame) if before is not None else 0)
            self._records[key] = record
            for index in self._written:
                index.put(key, record, before)

    def put_new(self, records: Mapping[str, Record]) -> bool:
        """Store records if all their keys are new; returns whether they are. Otherwise nothing is changed.

        Cheaper than a `put` for each: all are stored at once, then added to one index after the other.
        """
        if not self._records.keys().isdisjoint(records):
            return False
        with self.lock:
            for snapshot in self._alive():
                snapshot.note_new(records)
            # All keys are new, so no older state has to be removed from an index.
            self._records.update(records)
            self._bytes += sum([len(record.frame) for record in records.values()])
            for index in self._written:
                index.put_new(records)
        return True

    def take(self, key: str) -> Record | None:
        """Remove a record from the store and every index; returns it, None if there was none."""
        with self.lock:
            held = self._records.get(key)
            if held is None:
                return None
            snapshots = self._alive()
            for snapshot in snapshots:
                snapshot.note(key, held)
            del self._records[key]
            self._bytes -= len(held.frame)
            for index in self._written:
                index.remove(key, held)
            for snapshot in snapshots:
                snapshot.note_removed(key)
        return held

    def put_all(self, records: Mapping[str, Record], resource_version: str) -> None:
        """Replace all records by these, as of a version. One step for readers in any thread."""
        with self._batches:
            for key in [key for key in self._records if key not in records]:
                self.take(key)
            # For the first list the store is empty, and all keys are new.
            if not self.put_new(records):
                for key, record in records.items():
                    self.put(key, record)
            self.last_store_sync_resource_version = resource_version

    def transaction(self, changes: Iterable[Delta]) -> None:
        """Apply changes in their order, as one step for readers in any thread (client-go 92).

        A DELETED change removes its key, every other stores its record. The store reaches the version of the
        last record. A change that can't be applied (without a record to store, or without a key) does not
        prevent the others; then TransactionError says which changes were applied.
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
        """Note that the store has all changes up to a version; no effect for an empty one."""
        if resource_version:
            self.last_store_sync_resource_version = resource_version

    def resync(self) -> None:
        """No effect: there is no queue to resync (client-go's Store)."""

    def get_by_key(self, key: str) -> Record | None:
        """The record of a key; None if there is none."""
        return self._batches.read(lambda: self._records.get(key))

    def list(self) -> list[Record]:
        """Every record."""
        return self._batches.read(lambda: list(self._records.values()))

    def list_keys(self) -> Sequence[str]:
        """Every key."""
        return self._batches.read(lambda: list(self._records))

    def list_by_namespace(self, namespace: str) -> Sequence[Record]:
        """The records of a namespace (client-go's ListAllByNamespace).

        They are looked up in the index NAMESPACE_INDEX if that is `namespace_index()`; otherwise all keys are
        compared.
        """
        index = index_by_namespace(self._indices)
        if index is not None:
            return self._batches.read(lambda: index.records(namespace))
        # Without that index the beginning of each key is compared.
        prefix = f"{namespace}/"
        return [record for record in self.list() if record.key.startswith(prefix)]

    def known(self) -> Mapping[str, Record]:
        """A read-only view of the records by key, which follows every change. For the writing loop."""
        return MappingProxyType(self._records)

    def index(self, name: str, record: Record) -> Sequence[Record]:
        """The stored records that share an index value with this record, which need not be stored.

        Raises UnknownIndex, CacheError if the index function returns no list of strings for the record, and
        the exceptions of the function.
        """
        index = self._index(name)
        values = values_of(index.function, record)

        def copy() -> dict[str, Record]:
            return {held.key: held for value in values for held in index.records(value)}

        return tuple(self._batches.read(copy).values())

    def by_index(self, name: str, value: str) -> Sequence[Record]:
        """The records with a value in an index; raises UnknownIndex."""
        index = self._index(name)
        return self._batches.read(lambda: index.records(value))

    def index_keys(self, name: str, value: str) -> Sequence[str]:
        """The keys of the records with a value in an index; raises UnknownIndex."""
        index = self._index(name)
        return self._batches.read(lambda: index.keys(value))

    def list_index_func_values(self, name: str) -> Sequence[str]:
        """Every value of an index; raises UnknownIndex."""
        return self._batches.read(self._index(name).values)

    def get_indexers(self) -> Mapping[str, IndexFunc]:
        """The index functions by name."""
        return {name: index.function for name, index in self._indices.items()}

    def add_indexers(self, indexers: Mapping[str, IndexFunc]) -> None:
        """Add indexes, complete with all stored records (client-go 93).

        Raises CacheError for a name that exists already; then nothing is changed. An unfinished build with
        one of these names is given up.
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
        """Remove indexes, also unfinished builds; unknown names are ignored."""
        gone = set(names)
        self._give_up_builds(gone)
        with self.lock:
            if gone & self._indices.keys():
                for snapshot in self._alive():
                    snapshot.note_removed_indexes()
            self._publish({name: index for name, index in self._indices.items() if name not in gone})

    def build_index(self, name: str, function: IndexFunc) -> IndexBuild:
        """Begin an index that is filled in slices and follows every change meanwhile.

        The index can be read when the build is finished. An unfinished build with the same name is given up.
        Raises CacheError for a name that exists already.
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

    @property
    def unfinished_indexes(self) -> Sequence[str]:
        """The names of the indexes that are being built and can't be read yet."""
        return tuple(self._building)

    def index_faults(self) -> Mapping[str, tuple[int, str | None]]:
        """For each index whose function has failed: the number of faults, and the last one as a sentence."""
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
        """Apply one change of a transaction; raises CacheError if it can't be applied."""
        kind, key, record = change.type, change.key, change.record
        if kind is DeltaType.DELETED:
            self.take(key)
        elif record is None:
            raise CacheError(f"there is nothing to put under {key}: {kind} without a record")
        else:
            self.put(key, record)
        if record is not None and not change.out_of_scope:
            self.bookmark(record.resource_version)

    def snapshot(self) -> StoreSnapshot:
        """All records and indexes as they are between two writes. From any thread.

        Costs the same for a store of any size. Until the next write, all callers get the same snapshot.
        """
        with self.lock:
            newest = self._snapshots[-1]() if self._snapshots else None
            if newest is None or not newest.is_current(self._indices):
                newest = StoreSnapshot(self._records, self._indices, self.lock)
                self._alive()  # forgets those that are gone: there may be no write for long
                self._snapshots = (*self._snapshots, weakref.ref(newest))
            return newest

    @property
    def snapshots(self) -> int:
        """The number of different snapshots that may still be read."""
        with self.lock:
            return len(self._alive())

    def _alive(self) -> Sequence[StoreSnapshot]:
        """The snapshots that may still be read. Under the lock."""
        if not self._snapshots:
            return ()
        alive = [snapshot for reference in self._snapshots if (snapshot := reference()) is not None]
        if len(alive) < len(self._snapshots):
            self._snapshots = tuple(reference for reference in self._snapshots if reference() is not None)
        return alive

    def _index(self, name: str) -> Index:
        index = self._indices.get(name)
        if index is None:
            raise unknown_index(name, self._indices)
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
    """Records under keys that the caller chooses (client-go's ThreadSafeStore).

    One loop writes, any thread reads.
    """

    def add(self, key: str, record: Record) -> None:
        """Store a record under a key; the store reaches the record's version."""
        self.put(key, record)
        self.bookmark(record.resource_version)

    update = add

    def delete(self, key: str, record: Record | None = None) -> Record | None:
        """Remove the record of a key; returns it, None if there was none.

        `record` is the final state, if it is known: the store reaches its version (client-go 83).
        """
        held = self.take(key)
        if record is not None:
            self.bookmark(record.resource_version)
        return held

    def replace(self, records: Mapping[str, Record], resource_version: str = "") -> None:
        """Replace all records by these, as of a version."""
        self.put_all(records, resource_version)

    def get(self, key: str) -> Record | None:
        """The record of a key; None if there is none."""
        return self.get_by_key(key)


class Indexer(IndexedRecords):
    """Records under their own keys (client-go's Indexer). A reflector can write to it directly.

    One loop writes, any thread reads. Writing a record with an empty key raises NoKey and changes nothing.
    """

    def add(self, record: Record) -> None:
        """Store a record; the store reaches its version."""
        self.put(_key(record), record)
        self.bookmark(record.resource_version)

    update = add

    def delete(self, record: Record) -> Record | None:
        """Remove a record, given its final state, whose version the store reaches.

        Returns the stored record, None if there was none.
        """
        held = self.take(_key(record))
        self.bookmark(record.resource_version)
        return held

    def replace(self, records: Iterable[Record], resource_version: str = "") -> None:
        """Replace all records by these, as of a version."""
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
        """The stored record with the key of this one; None if there is none."""
        return self.get_by_key(record.key)

    def make(self, change: Delta) -> None:
        """Apply one change of a transaction; raises CacheError if it can't be applied."""
        if not change.key:
            raise NoKey("a change has no key", change)
        if change.record is not None and change.record.key != change.key:
            raise CacheError(f"a change of {change.key} has the record of {change.record.key or 'no key'}")
        super().make(change)


def _key(record: Record) -> str:
    if not record.key:
        raise NoKey("a record has no key", record)
    return record.key
