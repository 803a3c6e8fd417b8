"""StoreSnapshot: the records of a store as they were at one moment, without a copy of them.

A snapshot reads the live records of its store. Before each write, the store notes the state before it in
every snapshot that is alive. A note counts more than the live state. So it costs nothing to take a snapshot,
and a write costs more only while there are snapshots.

All readers between two writes share one snapshot. There is nothing to release: the next write forgets a
snapshot that is not referred to.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from declctl.errors import UnknownIndex
from declctl.informer.stores.indices import NAMESPACE_INDEX, Index, IndexFunc, namespace_index
from declctl.objects import Record

T = TypeVar("T")

_BY_NAMESPACE = namespace_index()


class StoreSnapshot:
    """The records of a store at one moment. Any thread reads; only the store notes, under its lock.

    It keeps the former record of each object that has changed since then, and the keys of later objects while
    they exist. So it never needs more memory than a copy of the store of then, and a list of its keys of now.
    (If an index of it is removed from the store, later objects are noted even after their end.)

    A read looks at the live state first, and at the notes after that. A write makes its note before it
    changes the live state. So a read that meets a write finds the note, or has found the state before it.
    """

    __slots__ = (
        "__weakref__",
        "_before",
        "_before_by_value",
        "_count",
        "_forgets",
        "_forgotten",
        "_indices",
        "_lock",
        "_records",
    )

    def __init__(
        self,
        records: Mapping[str, Record],
        indices: Mapping[str, Index],
        lock: AbstractContextManager[object],
    ) -> None:
        """Made under `lock`, which the store holds during each write."""
        self._records = records  # of the store, and live
        self._indices = indices  # those of then; each is live
        self._lock = lock
        self._count = len(records)
        # By key: the state before the first change since then; None for an object that did not exist.
        self._before: dict[str, Record | None] = {}
        # The former records among them by index and value. An entry is made before the one in `_before`.
        self._before_by_value: dict[Index, dict[str, dict[str, Record]]] = {}
        self._forgotten = 0  # notes that were removed, because their objects came and went
        self._forgets = True  # False from the moment at which the store removes an index

    # Called by the store, under its lock

    def is_current(self, indices: Mapping[str, Index]) -> bool:
        """Whether no write has come since, and the store has the same indexes."""
        return not self._before and not self._forgotten and self._indices is indices

    def note(self, key: str, before: Record | None) -> None:
        """Note the state of an object before a write; None if it does not exist."""
        if key in self._before:
            return  # only the first state counts
        if before is not None:
            for index in self._indices.values():
                for value in index.held(key, before):
                    by_value = self._before_by_value.setdefault(index, {})
                    by_value.setdefault(value, {})[key] = before
        self._before[key] = before

    def note_new(self, records: Mapping[str, Record]) -> None:
        """Note that objects do not exist that are written next."""
        for key in records:
            self._before.setdefault(key, None)

    def note_removed(self, key: str) -> None:
        """After a removal: forget an object that did not exist then, and does not now."""
        if self._forgets and self._before.get(key, self) is None:
            # Counted first: a read that has found the object before its removal is repeated.
            self._forgotten += 1
            del self._before[key]

    def note_removed_indexes(self) -> None:
        """Forget nothing from now on: the store has removed an index, which keeps its present objects."""
        self._forgets = False

    # Reads

    def get_by_key(self, key: str) -> Record | None:
        """The record of a key; None if there was none."""
        return self._read(lambda: self._by_key(key))

    def list(self) -> Sequence[Record]:
        """Every record."""
        return self._read(lambda: list(self._all().values()))

    def list_keys(self) -> Sequence[str]:
        """Every key."""
        return self._read(lambda: list(self._all()))

    def list_by_namespace(self, namespace: str) -> Sequence[Record]:
        """The records of a namespace."""
        index = index_by_namespace(self._indices)
        if index is not None:
            return self._read(lambda: self._in_index(index, namespace))
        prefix = f"{namespace}/"
        return [record for record in self.list() if record.key.startswith(prefix)]

    def by_index(self, name: str, value: str) -> Sequence[Record]:
        """The records with a value in an index; raises UnknownIndex."""
        index = self._index(name)
        return self._read(lambda: self._in_index(index, value))

    def list_index_func_values(self, name: str) -> Sequence[str]:
        """Every value of an index; raises UnknownIndex."""
        index = self._index(name)
        return self._read(lambda: self._values(index))

    def get_indexers(self) -> Mapping[str, IndexFunc]:
        """The index functions by name."""
        return {name: index.function for name, index in self._indices.items()}

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get_by_key(key) is not None

    @property
    def noted(self) -> int:
        """The number of objects that have changed, have gone, or are new since then."""
        return len(self._before)

    def _read(self, copy: Callable[[], T]) -> T:
        """The result of `copy`, during which no note was removed."""
        forgotten = self._forgotten
        found = copy()
        if forgotten == self._forgotten:
            return found
        with self._lock:
            return copy()

    def _by_key(self, key: str) -> Record | None:
        live = self._records.get(key)
        return self._before.get(key, live)

    def _all(self) -> dict[str, Record]:
        # Both copies are one step each for the writer, as the keys are plain strings.
        live = dict(self._records)
        for key, before in dict(self._before).items():
            if before is None:
                live.pop(key, None)
            else:
                live[key] = before
        return live

    def _in_index(self, index: Index, value: str) -> Sequence[Record]:
        live = index.bucket(value)
        if self._before:
            live = {key: record for key, record in live.items() if key not in self._before}
            live |= self._before_by_value.get(index, {}).get(value, {})
        return list(live.values())

    def _values(self, index: Index) -> Sequence[str]:
        live = index.values()
        if not self._before:
            return live
        before = self._before
        found = [value for value in live if any(key not in before for key in index.keys(value))]
        return list(dict.fromkeys([*found, *self._before_by_value.get(index, {})]))

    def _index(self, name: str) -> Index:
        index = self._indices.get(name)
        if index is None:
            raise unknown_index(name, self._indices)
        return index


def index_by_namespace(indices: Mapping[str, Index]) -> Index | None:
    """The index NAMESPACE_INDEX if it is `namespace_index()`, else None."""
    index = indices.get(NAMESPACE_INDEX)
    return index if index is not None and index.function == _BY_NAMESPACE else None


def unknown_index(name: str, indices: Mapping[str, Index]) -> UnknownIndex:
    """The error for an index that is not among the existing ones."""
    known = ", ".join(sorted(indices)) or "none"
    return UnknownIndex(f"there is no index {name!r}; there are: {known}")
