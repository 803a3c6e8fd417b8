"""Stores that no informer uses: an ExpirationCache, a MutationCache, an UndeltaStore (client-go's three).

- `ExpirationCache` forgets records when they are old.
- `MutationCache` reads one's own writes: it has the newer of the store and of what a write was answered with.
- `UndeltaStore` gives all records to a function after each write.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from declctl.errors import CacheError
from declctl.informer.event_handlers import DeletedFinalStateUnknown
from declctl.informer.stores.indices import IndexFunc, values_of
from declctl.informer.stores.thread_safe_store import Indexer
from declctl.kit import Clock
from declctl.kit.callbacks import plain, refuse_async
from declctl.objects import NO_ORDER, Delta, ObjectView, Record, record_of, version_order


@dataclass(frozen=True, slots=True)
class TimestampedEntry:
    """A record, and when it was put there (seconds on the cache's clock)."""

    record: Record
    timestamp: float


class ExpirationPolicy(Protocol):
    """Decides what is too old."""

    def is_expired(self, entry: TimestampedEntry) -> bool:
        """Whether the entry is to be forgotten."""
        ...


class TTLPolicy:
    """Entries live for `ttl` seconds, the last of them included; without a positive `ttl`, for ever."""

    def __init__(self, ttl: float, clock: Clock) -> None:
        self._ttl = ttl
        self._clock = clock

    def is_expired(self, entry: TimestampedEntry) -> bool:
        """Whether it is older than that (client-go 102)."""
        return self._ttl > 0 and self._clock.monotonic() - entry.timestamp > self._ttl


class ExpirationCache:
    """Records by key, each with the time of its last write.

    What has expired is forgotten when it is asked for, not before: until then `list_keys` and
    `len` count it. Used from any thread.
    """

    def __init__(self, policy: ExpirationPolicy, *, clock: Clock) -> None:
        refuse_async(policy.is_expired, "is_expired of an expiration policy")
        self._policy = policy
        self._clock = clock
        self._entries: dict[str, TimestampedEntry] = {}
        # Between the look at an entry and its removal nobody may put a new one there (client-go 100).
        self._lock = threading.RLock()

    @classmethod
    def with_ttl(cls, ttl: float, *, clock: Clock) -> "ExpirationCache":
        """A cache whose entries live for `ttl` seconds (client-go's NewTTLStore)."""
        return cls(TTLPolicy(ttl, clock), clock=clock)

    def add(self, record: Record) -> None:
        """Put a record; its time begins anew."""
        with self._lock:
            self._entries[record.key] = TimestampedEntry(record, self._clock.monotonic())

    update = add

    def delete(self, record: Record) -> None:
        """Take a record out; nothing happens if it isn't there."""
        with self._lock:
            self._entries.pop(record.key, None)

    def replace(self, records: Iterable[Record], resource_version: str = "") -> None:  # noqa: ARG002 - the contract
        """Hold these records and no others; the time of each begins anew."""
        now = self._clock.monotonic()
        # Made outside of the lock: `records` may be a generator of the caller.
        entries = {record.key: TimestampedEntry(record, now) for record in records}
        with self._lock:
            self._entries = entries

    def resync(self) -> None:
        """Nothing: what is stored is in sync with itself."""

    def get(self, record: Record) -> Record | None:
        """What is stored under the key of a record and has not expired; None if nothing is."""
        return self.get_by_key(record.key)

    def get_by_key(self, key: str) -> Record | None:
        """The record of a key; None if it isn't there or has expired (client-go 99)."""
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
            # A copy: `get_by_key` removes what has expired while this goes over them.
            keys = tuple(self._entries)
            return [record for key in keys if (record := self.get_by_key(key)) is not None]

    def list_keys(self) -> Sequence[str]:
        """Every key, those of expired records too."""
        return list(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(frozen=True, slots=True)
class FakeExpirationPolicy:
    """For tests: everything expires except what `retains` accepts (client-go's FakeExpirationPolicy)."""

    retains: Callable[[Record], bool]

    def is_expired(self, entry: TimestampedEntry) -> bool:
        """Whether it isn't retained."""
        return not plain(self.retains(entry.record), "`retains` of a FakeExpirationPolicy")


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
                # An event may have overtaken the answer. A tombstone is newer than each state of its object.
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
                # The store indexes its own state; the newer state may have left this value.
                if newest is record or value in _values(function, newest):
                    found.append(newest)
            keys = {record.key for record in stored}
            # What the store has under another value, or not at all, may have this value in its newest state.
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
            # The store has caught up: the mutation is of no more use.
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
            # The least recently used goes: its reader sees the store's state, which is older but true.
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
