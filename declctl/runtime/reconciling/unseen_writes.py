"""Reads follow writes: what a reconciler has written, and what the caches do not have yet.

A write returns before the watch brings it. A reconciler that reads the cache in between misses it: it counts
too few children, and creates another one. So the version of each write is kept until the caches of its kind
have it. Until then, the key that wrote is not reconciled again. Other keys of the handler wait as well, for a
shorter time. A write of the reconciled object itself, such as its status, holds back its own key only.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from declctl.kit import Clock
from declctl.objects import NO_ORDER, FieldSelector, LabelSelector, Record, version_order
from declctl.objects.resource import namespace_of
from declctl.runtime.caching.identities import CacheIdentity
from declctl.writes import WriteOrigin, WriteVerb, Written

# For which a key waits for its own writes. An idle watch is closed before, by the default of `idleTimeout`.
OWN_SECONDS = 120.0
OTHERS_SECONDS = 10.0  # after the write, for which other keys wait for it
_MOST_UNSEEN = 1000  # writes, after which those that the caches have by now are looked for
_FIRST_LOOK, _LONGEST_LOOK = 0.005, 0.25  # seconds between two looks of a worker
_SILENCE = 60.0  # seconds between two log lines about caches that lag


class Store(Protocol):
    """The part of an indexer that is needed. From any thread."""

    def get_by_key(self, key: str) -> Record | None:
        """The record of a key."""
        ...


class CacheState(Protocol):
    """The part of an informer that is needed. From any thread."""

    @property
    def is_stopped(self) -> bool:
        """Whether it has stopped."""
        ...

    @property
    def has_synced(self) -> bool:
        """Whether its first list is in the store."""
        ...

    @property
    def indexer(self) -> Store:
        """Its store."""
        ...

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def follows(self, namespace: str | None) -> bool:
        """Whether it lists and watches a namespace; False for one outside of its selector of namespaces."""
        ...

    def version_in(self, namespace: str | None) -> str | None:
        """The version up to which it has all changes in a namespace; None before the first list of it."""
        ...


class WatchedCache(Protocol):
    """The part of a managed informer that is needed."""

    @property
    def identity(self) -> CacheIdentity:
        """Its watch."""
        ...

    @property
    def informer(self) -> CacheState:
        """Its informer."""
        ...


@dataclass(slots=True, eq=False)
class UnseenWrite:
    """A write that a cache did not have when the server answered."""

    cache: CacheState
    key: str  # of the object
    uid: str
    version: str  # that the write returned; empty for some deletes
    deletes: bool
    selected: bool  # whether the cache selects the object in its new state
    writer: str  # the key that was reconciled
    since: float  # monotonic seconds
    reported: bool = False  # a log line has named it

    def is_seen(self) -> bool:
        """Whether the cache has the write, or a newer state. From any thread."""
        cache, namespace = self.cache, namespace_of(self.key)
        # Reads of an unsynced cache raise NotSynced. Its list will be newer than the write.
        if cache.is_stopped or not cache.has_synced or not cache.follows(namespace):
            return True
        # The same holds for a namespace that a selector has just matched.
        if (version := cache.version_in(namespace)) is None:
            return True
        stored = cache.indexer.get_by_key(self.key)
        if self.deletes:
            # By uid: another object may have the name by now. An object with finalizers stays for a while.
            if stored is None or stored.uid != self.uid:
                return True
            return bool(self.version) and _reaches(stored.resource_version, self.version)
        # The store has all events up to this version; a bookmark moves it, too.
        if _reaches(version, self.version):
            return True
        if stored is None:
            return not self.selected
        return _reaches(stored.resource_version, self.version)

    def __str__(self) -> str:
        what = "the delete" if self.deletes else f"version {self.version}"
        return f"{what} of {self.key} ({self.cache.name})"


class UnseenWrites:
    """The unseen writes of one reconciler. From any thread.

    `report` takes a message about a cache that lags.
    """

    def __init__(self, *, clock: Clock, report: Callable[[str], None]) -> None:
        self._clock = clock
        self._report = report
        self._lock = threading.Lock()  # guards all of the following
        self._by_writer: dict[str, list[UnseenWrite]] = {}
        self._shared: list[UnseenWrite] = []  # those that other keys wait for, too
        self._count = 0  # of writes in `_by_writer`, with those that were seen meanwhile
        self._silent_until = float("-inf")  # monotonic seconds: no log line before this
        self.lagging = 0  # writes that a cache did not have after OTHERS_SECONDS

    def note(
        self,
        written: Written,
        origin: WriteOrigin,
        caches: Iterable[WatchedCache],
        *,
        own_kind: tuple[str, str],
    ) -> None:
        """Keep a write that the server has stored, for each cache that may have its object.

        `own_kind` is the group and kind that the reconciler reconciles.
        """
        kind = (written.kind.group, written.kind.kind)
        is_own = (kind, str(written.key)) == (own_kind, origin.key)
        for each in caches:
            if each.identity.group_kind != kind:
                continue
            write = self._unseen(written, origin, each)
            if write is None or write.is_seen():
                continue
            with self._lock:
                self._by_writer.setdefault(origin.key, []).append(write)
                self._count += 1
                if not is_own:
                    self._shared.append(write)
                if self._count > _MOST_UNSEEN:
                    self._sweep()

    def before(self, key: str) -> tuple[UnseenWrite, ...]:
        """The writes that a call for a key has to wait for."""
        if not self._by_writer and not self._shared:
            return ()
        now = self._clock.monotonic()
        with self._lock:
            own = self._left(self._by_writer.get(key, ()), now, OWN_SECONDS)
            if own:
                self._by_writer[key] = own
            else:
                self._by_writer.pop(key, None)
            self._shared = self._left(self._shared, now, OTHERS_SECONDS)
            return (*own, *(write for write in self._shared if write.writer != key))

    def are_over(self, key: str, writes: Iterable[UnseenWrite]) -> bool:
        """Whether a call for a key need not wait for these writes any longer."""
        now = self._clock.monotonic()
        return not any(
            self._left([write], now, OWN_SECONDS if write.writer == key else OTHERS_SECONDS)
            for write in writes
        )

    @property
    def kept(self) -> int:
        """The number of writes that are kept, with those that were seen meanwhile."""
        with self._lock:
            return sum(map(len, self._by_writer.values()))

    def look_after(self, writes: Iterable[UnseenWrite]) -> float:
        """Seconds until the queue checks again whether these are seen; longer if they wait for long."""
        age = self._clock.monotonic() - max((write.since for write in writes), default=0.0)
        return min(_LONGEST_LOOK, max(_FIRST_LOOK, age / 10))

    def _unseen(self, written: Written, origin: WriteOrigin, cache: WatchedCache) -> UnseenWrite | None:
        watch, metadata = cache.identity.watch, written.obj.get("metadata") or {}
        deletes = written.verb is WriteVerb.DELETE
        if watch.namespace not in (None, written.key.namespace):
            return None
        if not written.uid if deletes else version_order(written.resource_version) == NO_ORDER:
            return None  # nothing tells whether the cache has it
        return UnseenWrite(
            cache.informer,
            str(written.key),
            written.uid,
            # Of an object that goes on for a while, with its finalizers or its grace period.
            written.resource_version if not deletes or metadata.get("deletionTimestamp") else "",
            deletes,
            _selects(watch.label_selector, watch.field_selector, written.obj),
            origin.key,
            self._clock.monotonic(),
        )

    def _left(self, writes: Iterable[UnseenWrite], now: float, limit: float) -> list[UnseenWrite]:
        """The writes that are still waited for."""
        left: list[UnseenWrite] = []
        for write in writes:
            if write.is_seen():
                continue
            age = now - write.since
            if age < limit:
                left.append(write)
            if age >= OTHERS_SECONDS and not write.reported:
                write.reported = True
                self.lagging += 1
                self._tell(write, now)
        return left

    def _tell(self, write: UnseenWrite, now: float) -> None:
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE
            age = now - write.since
            self._report(
                f"a cache lags: it has lacked {write} for {age:.0f} s. {write.writer} waits for "
                f"its own writes up to {OWN_SECONDS:.0f} s; other keys do not wait any longer, and may read "
                "an older state"
            )

    def _sweep(self) -> None:
        """Drop the writes that are seen, of all keys. Under the lock."""
        now = self._clock.monotonic()
        left = {key: self._left(writes, now, OWN_SECONDS) for key, writes in self._by_writer.items()}
        self._by_writer = {key: writes for key, writes in left.items() if writes}
        self._shared = self._left(self._shared, now, OTHERS_SECONDS)
        # As many again may come before the next sweep: a cache that lags costs no sweep for each write.
        self._count = min(_MOST_UNSEEN // 2, sum(map(len, self._by_writer.values())))


def _reaches(version: str, other: str) -> bool:
    """Whether a version is the other one or a newer one."""
    orders = version_order(version), version_order(other)
    return version == other or (NO_ORDER not in orders and orders[0] >= orders[1])


def _selects(labels: str, fields: str, obj: Mapping[str, Any]) -> bool:
    """Whether a cache with these selectors has an object."""
    metadata: Mapping[str, Any] = obj.get("metadata") or {}
    if labels and not LabelSelector.parse(labels).matches(metadata.get("labels") or {}):
        return False
    return not fields or FieldSelector.parse(fields).matches(obj)
