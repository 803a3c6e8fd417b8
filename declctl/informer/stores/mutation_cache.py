"""MutationCache: what this process has written, until the informer shows it (client-go's mutation_cache.go).

For controllers that read what they have just written: a few answers of the API server are kept over
the informer's store, and whichever of the two is newer is given.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from declctl.errors import CacheError
from declctl.informer.event_handlers import DeletedFinalStateUnknown
from declctl.informer.stores.indexer import Indexer
from declctl.informer.stores.indices import IndexFunc, values_of
from declctl.kit import Clock
from declctl.objects import NO_ORDER, ObjectView, Record, record_of, version_order

Mutated = Record | ObjectView | DeletedFinalStateUnknown
"""An object as a handler is called with it, or its record."""


class _Mutation(NamedTuple):
    record: Record
    deleted: bool  # a tombstone: the informer saw this object go
    until: float


class MutationCache:
    """The newer of the store and of what `mutation` was told, for `ttl` seconds and `size` objects.

    Resource versions are compared as integers, as etcd writes them; others raise CacheError. With
    `include_adds`, objects that the store does not have are given too: it may be that they were
    deleted since, and the store never saw them. Wire `on_add_or_update` and `on_delete` to the
    informer's events, so that nothing outlives its use: they take what handlers are called with, a
    DeletedFinalStateUnknown included, and records. Used from any thread.
    """

    def __init__(
        self,
        store: Indexer,
        *,
        clock: Clock,
        ttl: float = 300.0,
        include_adds: bool = False,
        size: int = 100,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ttl = ttl
        self._include_adds = include_adds
        self._size = size
        self._mutations: OrderedDict[str, _Mutation] = OrderedDict()  # the least recently used first
        self._lock = threading.RLock()

    def mutation(self, obj: Mutated) -> None:
        """The API server answered a write with this object.

        Passed over if something newer is known, or that the object is gone (client-go 105, 106).
        """
        record = _record(obj)
        with self._lock:
            version = _version(record)
            held = self._get(record.key)
            if held is not None:
                known = _version(held.record)
                if version < known or (held.deleted and (version == known or record.uid == held.record.uid)):
                    return
            self._put(record, deleted=False)

    def get_by_key(self, key: str) -> Record | None:
        """The newest known state of an object.

        None if the store does not have it and added ones are not included.
        """
        with self._lock:
            stored = self._store.get_by_key(key)
            if stored is not None:
                return self._newer(stored)
            held = self._get(key) if self._include_adds else None
            return None if held is None or held.deleted else held.record

    def by_index(self, name: str, value: str) -> Sequence[Record]:
        """The newest known state of each object that has the value in that state; raises UnknownIndex.

        (client-go gives each object that the store has under the value, also where its newest state has
        another one.) Included adds are looked at as well.
        """
        with self._lock:
            stored = self._store.by_index(name, value)
            function = self._store.get_indexers()[name]
            found: list[Record] = []
            for record in stored:
                newest = self._newer(record)
                if newest is record or value in _values(function, newest):
                    found.append(newest)
            keys = {record.key for record in stored}
            for key in [key for key in self._mutations if key not in keys]:
                record = self._mutated(key)
                if record is not None and value in _values(function, record):
                    found.append(record)
            return found

    def on_add_or_update(self, obj: Mutated) -> None:
        """The informer shows this state: an older mutation is of no more use (client-go 103)."""
        record = _record(obj)
        with self._lock:
            held = self._get(record.key)
            if held is not None and _version(record) >= _version(held.record):
                del self._mutations[record.key]

    def on_delete(self, obj: Mutated) -> None:
        """The informer shows that the object is gone.

        A mutation stays only if it is newer and of another object with the same name; then it may
        still be there (client-go 104).
        """
        record = _record(obj)
        with self._lock:
            held = self._get(record.key)
            if (
                held is not None
                and held.record.uid != record.uid
                and _version(record) < _version(held.record)
            ):
                return
            self._put(record, deleted=True)

    def _mutated(self, key: str) -> Record | None:
        """What was written under a key, where that is newer than the store, or an included add."""
        held = self._get(key, used=False)
        if held is None or held.deleted:
            return None
        stored = self._store.get_by_key(key)
        if stored is None:
            return held.record if self._include_adds else None
        return held.record if _version(stored) < _version(held.record) else None

    def _newer(self, stored: Record) -> Record:
        held = self._get(stored.key)
        if held is None:
            return stored
        if _version(stored) >= _version(held.record):
            del self._mutations[stored.key]
            return stored
        return stored if held.deleted else held.record

    def _get(self, key: str, *, used: bool = True) -> _Mutation | None:
        held = self._mutations.get(key)
        if held is not None and self._clock.monotonic() > held.until:
            del self._mutations[key]
            return None
        if held is not None and used:
            self._mutations.move_to_end(key)
        return held

    def _put(self, record: Record, *, deleted: bool) -> None:
        self._mutations[record.key] = _Mutation(record, deleted, self._clock.monotonic() + self._ttl)
        self._mutations.move_to_end(record.key)
        if len(self._mutations) > self._size:
            self._mutations.popitem(last=False)


def _record(obj: Mutated) -> Record:
    match obj:
        case DeletedFinalStateUnknown():
            return record_of(obj.obj)
        case ObjectView():
            return record_of(obj)
        case Record():
            return obj


def _version(record: Record) -> tuple[int, str]:
    version = record.resource_version
    order = version_order(version)
    if order == NO_ORDER and version not in ("", "0"):
        raise CacheError(
            f"a MutationCache compares resource versions as integers: {record.key} has {version!r}"
        )
    return order


def _values(function: IndexFunc, record: Record) -> Sequence[str]:
    try:
        return values_of(function, record)
    except Exception:  # noqa: BLE001 - the user's function; the store's index counts its faults
        return ()
