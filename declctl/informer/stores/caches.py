"""Stores for programs, which no informer uses (client-go's ExpirationCache, MutationCache, UndeltaStore).

- `ExpirationCache` drops records after some time.
- `MutationCache` lets a program read its own writes: it returns the newer of the state in a store and the
  state with which the API server answered a write.
- `UndeltaStore` calls a function with all records after each write.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from declctl.errors import CacheError
from declctl.informer.event_handlers import DeletedFinalStateUnknown
from declctl.informer.stores.indices import IndexFunc, values_of
from declctl.informer.stores.thread_safe_store import Indexer
from declctl.kit import Clock
from declctl.kit.callbacks import plain, refuse_async
from declctl.objects import NO_ORDER, Delta, ObjectView, Record, record_of, version_order


class TimestampedEntry(msgspec.Struct, frozen=True):
    """A record with the time of its last write."""

    record: Record
    timestamp: float  # monotonic seconds on the clock of the cache


class ExpirationPolicy(Protocol):
    """Decides which entries have expired (client-go's ExpirationPolicy)."""

    def is_expired(self, entry: TimestampedEntry) -> bool:
        """Whether the entry has expired. A plain function, called under the lock of the cache."""
        ...


class TTLPolicy:
    """Entries expire after more than `ttl` seconds; never, if `ttl` is 0 or negative (TTLPolicy)."""

    def __init__(self, ttl: float, clock: Clock) -> None:
        self._ttl = ttl
        self._clock = clock

    def is_expired(self, entry: TimestampedEntry) -> bool:
        """Whether the entry is older than `ttl` (client-go 102)."""
        return self._ttl > 0 and self._clock.monotonic() - entry.timestamp > self._ttl


class ExpirationCache:
    """Records by key, which expire (client-go's ExpirationCache). From any thread.

    An expired record is removed when it is read; until then `list_keys` and `len` count it. `policy` decides
    what has expired, on times of `clock`. Raises TypeError for a policy with an asynchronous `is_expired`.
    """

    def __init__(self, policy: ExpirationPolicy, *, clock: Clock) -> None:
        refuse_async(policy.is_expired, "is_expired of an expiration policy")
        self._policy = policy
        self._clock = clock
        self._entries: dict[str, TimestampedEntry] = {}  # by key, expired ones included
        # Held from the check of an entry to its removal, so that no new entry is removed (client-go 100).
        self._lock = threading.RLock()

    @classmethod
    def with_ttl(cls, ttl: float, *, clock: Clock) -> "ExpirationCache":
        """A cache whose entries expire after `ttl` seconds (client-go's NewTTLStore)."""
        return cls(TTLPolicy(ttl, clock), clock=clock)

    def add(self, record: Record) -> None:
        """Store a record, with the present time."""
        with self._lock:
            self._entries[record.key] = TimestampedEntry(record, self._clock.monotonic())

    update = add

    def delete(self, record: Record) -> None:
        """Remove the record with this key; no effect if there is none."""
        with self._lock:
            self._entries.pop(record.key, None)

    def replace(self, records: Iterable[Record], resource_version: str = "") -> None:  # noqa: ARG002 - the contract
        """Replace all records by these, with the present time."""
        now = self._clock.monotonic()
        # Outside of the lock: `records` may be a generator, which runs code of the caller.
        entries = {record.key: TimestampedEntry(record, now) for record in records}
        with self._lock:
            self._entries = entries

    def resync(self) -> None:
        """No effect: there is no queue to resync (client-go's Store)."""

    def get(self, record: Record) -> Record | None:
        """The stored record with the key of this one; None if it is missing or has expired."""
        return self.get_by_key(record.key)

    def get_by_key(self, key: str) -> Record | None:
        """The record of a key; None if it is missing or has expired (client-go 99)."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if plain(self._policy.is_expired(entry), "is_expired of an expiration policy"):
                del self._entries[key]
                return None
            return entry.record

    def list(self) -> list[Record]:
        """Every record that has not expired (client-go 101)."""
        with self._lock:
            # A copy of the keys: `get_by_key` removes expired entries during the iteration.
            keys = tuple(self._entries)
            return [record for key in keys if (record := self.get_by_key(key)) is not None]

    def list_keys(self) -> Sequence[str]:
        """Every key, including those of expired records."""
        return list(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class FakeExpirationPolicy(msgspec.Struct, frozen=True):
    """For tests: every entry has expired unless `retains` is true for its record (FakeExpirationPolicy)."""

    retains: Callable[[Record], bool]

    def is_expired(self, entry: TimestampedEntry) -> bool:
        """Whether `retains` is false for the record."""
        return not plain(self.retains(entry.record), "`retains` of a FakeExpirationPolicy")


Mutated = Record | ObjectView | DeletedFinalStateUnknown
"""An object as a handler receives it, or its record."""


class _Mutation(NamedTuple):
    record: Record  # the state after the write, or the last known state of a deleted object
    deleted: bool  # a tombstone: the informer has shown that this object is gone
    until: float  # monotonic seconds; the mutation is ignored after this


class MutationCache:
    """Reads the newer of two states: that in a store, and that after a write (client-go's MutationCache).

    - `store`: the indexer that an informer fills.
    - `ttl`: seconds for which a mutation is kept.
    - `size`: the number of mutations that are kept; beyond it the least recently used one is dropped.
    - `include_adds`: also return objects that the store does not have. Such an object may have been deleted
      without the store ever having had it.

    Resource versions are compared as integers; every other version raises CacheError. Call `on_add_or_update`
    and `on_delete` from a handler of the informer, so that mutations are dropped when the store has caught
    up. From any thread.
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
        """Note the state with which the API server answered a write.

        Ignored if a newer state of the object is known, or its deletion (client-go 105, 106). Raises
        CacheError for a version that is no integer.
        """
        record = _record(obj)
        with self._lock:
            version = _version(record)
            held = self._get(record.key)
            if held is not None:
                known = _version(held.record)
                # An event may have overtaken the answer. A tombstone is newer than each state of its object.
                if version < known or (held.deleted and (version == known or record.uid == held.record.uid)):
                    return
            self._put(record, deleted=False)

    def get_by_key(self, key: str) -> Record | None:
        """The newest known state of an object.

        None if the store does not have the object, unless `include_adds` is set and the object was written.
        """
        with self._lock:
            stored = self._store.get_by_key(key)
            if stored is not None:
                return self._newer(stored)
            held = self._get(key) if self._include_adds else None
            return None if held is None or held.deleted else held.record

    def by_index(self, name: str, value: str) -> Sequence[Record]:
        """The newest state of each object that has the value in that state. Raises UnknownIndex.

        client-go returns each object that the store has under the value, even if its newest state has another
        value. With `include_adds`, objects that the store does not have are searched, too.
        """
        with self._lock:
            stored = self._store.by_index(name, value)
            function = self._store.get_indexers()[name]
            found: list[Record] = []
            for record in stored:
                newest = self._newer(record)
                # The store indexes its own state; the newer state may have left this value.
                if newest is record or value in _values(function, newest):
                    found.append(newest)
            keys = {record.key for record in stored}
            # An object that the store has under another value, or not at all, may have this value by now.
            for key in [key for key in self._mutations if key not in keys]:
                record = self._mutated(key)
                if record is not None and value in _values(function, record):
                    found.append(record)
            return found

    def on_add_or_update(self, obj: Mutated) -> None:
        """Drop the mutation of an object if the informer shows the same or a newer state (client-go 103)."""
        record = _record(obj)
        with self._lock:
            held = self._get(record.key)
            if held is not None and _version(record) >= _version(held.record):
                del self._mutations[record.key]

    def on_delete(self, obj: Mutated) -> None:
        """Note that the informer shows an object as deleted.

        A mutation stays only if it is newer and has another uid: it is of a later object with the same name
        (client-go 104).
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
        """The state after a write, if it is newer than the store or an included add; else None."""
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
            # The store has caught up with the write.
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
            # Without its mutation a reader sees the state of the store, which is older and still correct.
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


class UndeltaStore:
    """Calls `push` with all records after each write (client-go's UndeltaStore). Used on one loop.

    `extend` with several deltas is one write. A reflector can write to it directly. `push` is called within
    the write, when the store is changed already; its exceptions are raised by the write.
    """

    def __init__(self, push: Callable[[Sequence[Record]], None]) -> None:
        self._indexer = Indexer()
        self._push = push

    def add(self, record: Record) -> None:
        """Store a record."""
        self._indexer.add(record)
        self._push(self.list())

    update = add

    def delete(self, record: Record) -> None:
        """Remove the record with this key."""
        self._indexer.delete(record)
        self._push(self.list())

    def extend(self, deltas: Iterable[Delta]) -> None:
        """Apply changes in their order, then push once."""
        self._indexer.extend(deltas)
        self._push(self.list())

    def replace(self, records: Iterable[Record], resource_version: str = "") -> None:
        """Replace all records by these."""
        self._indexer.replace(records, resource_version)
        self._push(self.list())

    def bookmark(self, resource_version: str) -> None:
        """Note that no record has changed up to a version; `push` is not called."""
        self._indexer.bookmark(resource_version)

    def resync(self) -> None:
        """No effect: there is no queue to resync (client-go's Store)."""

    def get(self, record: Record) -> Record | None:
        """The stored record with the key of this one; None if there is none."""
        return self._indexer.get(record)

    def get_by_key(self, key: str) -> Record | None:
        """The record of a key; None if there is none."""
        return self._indexer.get_by_key(key)

    def list(self) -> list[Record]:
        """Every record."""
        return self._indexer.list()

    def list_keys(self) -> Sequence[str]:
        """Every key."""
        return self._indexer.list_keys()

    def __len__(self) -> int:
        return len(self._indexer)
