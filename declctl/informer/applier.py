"""The applier: applies queued changes to the store, and makes the notifications of the differences.

An object that comes again in its stored state makes no notification. An object that was deleted and created
again makes two, Deleted and Added. client-go makes one update with another uid; so does
`uid_change="update"`.

`Reprojection` decodes a whole store with another projection, without a request to the server and without
notifications.
"""

import logging
from collections.abc import Collection, Generator, Iterator, Sequence
from itertools import islice
from typing import Literal

import msgspec
from msgspec.structs import replace

from declctl.decoding.projection import Projection, RecordRemaker
from declctl.errors import CacheError, MalformedAnswer
from declctl.informer.queues.real_fifo import Bookmark, Departure, Replacement
from declctl.informer.stores.thread_safe_store import Indexer
from declctl.objects import (
    ChangeReason,
    ChangeType,
    Delta,
    DeltaType,
    Notification,
    Record,
    newer_version,
    version_order,
)

_MOST_LEFT, _MOST_ROUNDS = 50, 10  # objects that may be left to the take-over, and rounds to get there
_LOOKS = 20  # records that can be compared in the time in which one is made
_TAKEN_OVER_AT_ONCE = 250  # objects of one step of a take-over, some 1 ms
_log = logging.getLogger("declctl.informer")
# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every delta.
_GONE, _SYNC, _REPLACED = DeltaType.DELETED, DeltaType.SYNC, DeltaType.REPLACED
_ADDED, _MODIFIED, _DELETED = ChangeType.ADDED, ChangeType.MODIFIED, ChangeType.DELETED
_WATCH, _INITIAL, _RELIST = ChangeReason.WATCH, ChangeReason.INITIAL, ChangeReason.RELIST
_RESYNC, _RESYNCED = ChangeType.RESYNC, ChangeReason.RESYNC

UidChange = Literal["recreate", "update"]


class Additions:
    """The Added notifications of new objects. Each is made when it is iterated."""

    __slots__ = ("_now", "_reason", "_records")

    def __init__(self, records: Sequence[Record], reason: ChangeReason, now: float) -> None:
        self._records = records
        self._reason = reason
        self._now = now

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Notification]:
        reason, now, initial = self._reason, self._now, self._reason is _INITIAL
        for record in self._records:
            yield Notification(_ADDED, record, None, initial, False, reason, now)


Notifications = list[Notification] | Additions
"""Notifications for the listeners, in order."""


class RelistDifferences(msgspec.Struct, frozen=True):
    """The objects that differed between the cache and a later list, summed over all lists but the first.

    Each stands for one or more changes. States in between were not seen, and neither were objects that were
    created and deleted in between. An object that was created anew counts as `deleted` and as `added`.
    """

    added: int = 0
    modified: int = 0
    deleted: int = 0

    def __add__(self, other: "RelistDifferences") -> "RelistDifferences":
        return RelistDifferences(
            self.added + other.added, self.modified + other.modified, self.deleted + other.deleted
        )

    def __sub__(self, other: "RelistDifferences") -> "RelistDifferences":
        return RelistDifferences(
            self.added - other.added, self.modified - other.modified, self.deleted - other.deleted
        )

    def __str__(self) -> str:
        return f"{self.added:,} added, {self.modified:,} modified, {self.deleted:,} deleted"


NO_DIFFERENCES = RelistDifferences()


class Applier:
    """Applies changes to a store. Only an Applier and a Reprojection write to it. Used on one loop.

    - `uid_change`: `recreate` makes Deleted and Added of another uid under a key, `update` a Modified.
    - `in_order`: the deltas of all keys come in the order of their versions, as from a RealFIFO.

    The parameter `now` is a Unix time stamp, in seconds.
    """

    slice_size = 500  # objects of a replacement until other tasks of the loop may run

    def __init__(
        self, indexer: Indexer, *, uid_change: UidChange = "recreate", in_order: bool = True
    ) -> None:
        self.differences = NO_DIFFERENCES  # of all lists after the first
        self._in_order = in_order
        self._indexer = indexer
        self._recreates = uid_change == "recreate"
        self._stored = indexer.stored  # the record that is stored under a key, or None

    def apply(self, deltas: Sequence[Delta], now: float) -> Notifications:
        """Apply deltas in their order; returns their notifications."""
        made: list[Notification] = []
        relisted = False  # a DeltaFIFO brings lists as deltas
        for delta in deltas:
            kind, key, record = delta.type, delta.key, delta.record
            if kind is _GONE:
                # An object that has left the selection may still exist: its record is no final state.
                last = None if delta.final_state_unknown or delta.out_of_scope else record
                reason = _WATCH
                if delta.out_of_scope:
                    reason = ChangeReason.OUT_OF_SCOPE
                elif delta.final_state_unknown:
                    reason, relisted = _RELIST, True
                self._remove(key, last, made, reason, now)
            elif kind is _SYNC:
                if (stored := self._stored(key)) is not None:
                    made.append(resync_of(stored, now))
            elif record is not None:
                reason = _WATCH
                if kind is _REPLACED:
                    reason = _INITIAL if delta.initial else _RELIST
                    relisted |= not delta.initial
                stored = self._stored(record.key)
                if stored is not record:
                    self._put(record, stored, made, reason, now)
        self._bookmark(deltas)
        if relisted:
            self.differences += _differences([each for each in made if each.reason is _RELIST])
        return made

    def replace(self, replacement: Replacement, now: float) -> Iterator[Notifications]:
        """Replace all objects of the store, or of a namespace; yields the notifications, a slice at a time.

        Objects that are not in the list are removed first. After each slice, the store has exactly the
        changes of the notifications so far.
        """
        indexer = self._indexer
        indexer.is_being_replaced = True
        try:
            yield from self._replace(replacement, now)
        finally:
            indexer.is_being_replaced = False
        self.bookmark(Bookmark(replacement.resource_version, replacement.namespace))

    def _replace(self, replacement: Replacement, now: float) -> Iterator[Notifications]:
        existing = self._existing(replacement)
        listed = {record.key for record in replacement.records} if existing else ()
        gone = iter([key for key in existing if key not in listed])
        del listed  # maybe 100,000 keys, which the generator would keep until its end
        while keys := tuple(islice(gone, self.slice_size)):
            removed: list[Notification] = []
            for key in keys:
                self._remove(key, None, removed, _RELIST, now)
            self.differences += _differences(removed)
            yield removed
        reason, records = _INITIAL if replacement.initial else _RELIST, replacement.records
        for start in range(0, len(records), self.slice_size):
            put = self._put_all(records[start : start + self.slice_size], reason, now)
            if reason is _RELIST:
                self.differences += _differences(put)
            yield put

    def bookmark(self, bookmark: Bookmark) -> None:
        """Let the store reach the version of a bookmark."""
        self._indexer.bookmark(bookmark.resource_version)

    def depart(self, departure: Departure, now: float) -> Iterator[Notifications]:
        """Remove all objects of a namespace, as out of scope; yields the notifications, a slice at a time."""
        indexer = self._indexer
        keys = iter([record.key for record in indexer.list_by_namespace(departure.namespace)])
        indexer.is_being_replaced = True
        try:
            while part := tuple(islice(keys, self.slice_size)):
                removed: list[Notification] = []
                for key in part:
                    self._remove(key, None, removed, ChangeReason.OUT_OF_SCOPE, now)
                yield removed
        finally:
            indexer.is_being_replaced = False

    @property
    def newest_version(self) -> str:
        """The newest version of which the store has changes."""
        return self._indexer.last_store_sync_resource_version

    def _existing(self, replacement: Replacement) -> Collection[str]:  # noqa: ARG002 - for subclasses
        """The keys of the stored objects that a list replaces."""
        return self._indexer.known().keys()

    def _bookmark(self, deltas: Sequence[Delta]) -> None:
        """Let the store reach the version of these deltas."""
        reached = "" if self._in_order else self._indexer.last_store_sync_resource_version
        for delta in reversed(deltas):
            # A resync has a stored record, whose version the store has reached long ago.
            if delta.record is None or delta.type is _SYNC:
                continue
            reached = newer_version(reached, delta.record.resource_version)
            if reached and self._in_order:
                break  # those before it are older
        self._indexer.bookmark(reached)

    def _put_all(self, records: Sequence[Record], reason: ChangeReason, now: float) -> Notifications:
        # Nearly always all objects of a slice are new, or none is: the first one decides.
        if self._stored(records[0].key) is None:
            added = {record.key: record for record in records}
            if len(added) == len(records) and self._indexer.put_new(added):
                return Additions(records, reason, now)
        made: list[Notification] = []
        for record in records:
            stored = self._stored(record.key)
            if stored is not record:  # a list returns the stored record of an unchanged object
                self._put(record, stored, made, reason, now)
        return made

    def _put(
        self,
        record: Record,
        stored: Record | None,
        made: list[Notification],
        reason: ChangeReason,
        now: float,
    ) -> None:
        """Store a record, and add its notification to `made`. `stored` is the stored record, or None."""
        if stored is None:
            made.append(Notification(_ADDED, record, None, reason is _INITIAL, False, reason, now))
        elif stored.revision == record.revision and (stored.resource_version or _same(stored, record)):
            # The same version of the same object. With another layout it was decoded anew, which is no
            # change.
            if stored.layout is record.layout:
                if _same_content(stored, record):
                    return
                # A server that was restored from a backup uses the same version for another state.
                made.append(Notification(_MODIFIED, record, stored, False, False, reason, now))
        elif self._recreates and stored.uid != record.uid:
            made.append(_tombstone(stored, reason, now))
            made.append(Notification(_ADDED, record, None, False, False, reason, now))
        else:
            made.append(Notification(_MODIFIED, record, stored, False, False, reason, now))
        self._indexer.put(record.key, record)

    def _remove(
        self, key: str, last: Record | None, made: list[Notification], reason: ChangeReason, now: float
    ) -> None:
        """Remove an object, and add its notification to `made`.

        `last` is its final state; None if that is unknown, or if the object left the selection.
        """
        stored = self._indexer.take(key)
        if stored is None:
            return  # no listener was notified of the object
        if last is not None:
            made.append(Notification(_DELETED, last, reason=reason, received_at=now))
        elif reason is ChangeReason.OUT_OF_SCOPE:
            made.append(Notification(_DELETED, stored, reason=reason, received_at=now))
        else:
            made.append(_tombstone(stored, reason, now))


class NamespacedApplier(Applier):
    """Applies the changes of several namespaces, each at a version of its own, to one store.

    The version of the store (`last_store_sync_resource_version`) is the lowest one of the namespaces: it has
    all changes up to that.
    """

    def __init__(self, indexer: Indexer, *, uid_change: UidChange = "recreate") -> None:
        super().__init__(indexer, uid_change=uid_change)
        self._versions: dict[str, str] = {}  # by namespace: the version up to which the store has all changes
        self._lowest = ""  # the namespace of the lowest version

    def bookmark(self, bookmark: Bookmark) -> None:
        """Let a namespace reach a version."""
        if bookmark.namespace is not None:
            self._reach(bookmark.namespace, bookmark.resource_version)

    def depart(self, departure: Departure, now: float) -> Iterator[Notifications]:
        """Remove all objects of a namespace, as out of scope; yields the notifications, a slice at a time."""
        yield from super().depart(departure, now)
        self._versions.pop(departure.namespace, None)
        self._look_for_lowest()

    @property
    def newest_version(self) -> str:
        """The newest version of which the store has changes; empty without a namespace."""
        return max(self._versions.values(), key=version_order, default="")

    def version_of(self, namespace: str) -> str | None:
        """The version up to which the store has all changes of a namespace; None before its first list."""
        return self._versions.get(namespace)

    def _existing(self, replacement: Replacement) -> Collection[str]:
        # Before its first list, the store has no object of a namespace.
        if replacement.namespace is None or replacement.initial:
            return ()
        return [record.key for record in self._indexer.list_by_namespace(replacement.namespace)]

    def _bookmark(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            if delta.record is not None and delta.type is not _SYNC:
                self._reach(delta.key.partition("/")[0], delta.record.resource_version)

    def _reach(self, namespace: str, version: str) -> None:
        if not version:
            return
        self._versions[namespace] = version
        # The lowest version changes only with that of its namespace, or by a namespace that is older still.
        lowest = self._versions.get(self._lowest, "")
        if self._lowest in ("", namespace) or version_order(version) < version_order(lowest):
            self._look_for_lowest()

    def _look_for_lowest(self) -> None:
        versions = self._versions
        self._lowest = min(versions, key=lambda each: version_order(versions[each]), default="")
        # Without a namespace the store has no version.
        self._indexer.last_store_sync_resource_version = versions.get(self._lowest, "")


def resync_of(record: Record, now: float) -> Notification:
    """The notification that sends a cached record again."""
    return Notification(_RESYNC, record, reason=_RESYNCED, received_at=now)


def _tombstone(stored: Record, reason: ChangeReason, now: float) -> Notification:
    return Notification(_DELETED, stored, final_state_unknown=True, reason=reason, received_at=now)


def _differences(notifications: Notifications) -> RelistDifferences:
    """The differences of a list, counted by its notifications."""
    if isinstance(notifications, Additions):
        return RelistDifferences(added=len(notifications))
    kinds = [notification.type for notification in notifications]
    return RelistDifferences(kinds.count(_ADDED), kinds.count(_MODIFIED), kinds.count(_DELETED))


def _same_content(stored: Record, record: Record) -> bool:
    """Whether two records of one version have equal content. Seldom called: see `_put_all`."""
    try:
        return stored.decode() == record.decode()
    except MalformedAnswer:
        return True  # an unreadable record is replaced by its next version


def _same(stored: Record, record: Record) -> bool:
    """Whether two states without a version are equal: a list or a watch may bring an object again."""
    if stored.layout is not record.layout or stored.labels_json != record.labels_json:
        return False
    codec = record.layout.codec  # equal objects have other frames once it has learned a dictionary
    return stored.frame == record.frame or codec.decode(stored.frame) == codec.decode(record.frame)


class Reprojection:
    """Converts the records of one store to the layout of another projection. Used on the loop of the store.

    `projection` decodes for the source from the take-over on; `remake` makes a record of its layout.

    Converted records are kept aside until the take-over, while the store goes on changing. The take-over puts
    them into the store, unless the object has changed meanwhile; then its new state is remade at that
    moment. With `take_over_first`, each record is put into the store as soon as it is remade.
    """

    def __init__(self, indexer: Indexer, projection: Projection, remake: RecordRemaker) -> None:
        self.projection = projection
        self.is_over = False  # the take-over is complete, or another reprojection took its place
        self._indexer = indexer
        self._remake = remake
        self._layout = projection.layout
        self._made: dict[str, Record] = {}  # by key: remade records that are not in the store yet
        self._round: Iterator[Record] = iter(indexer.list())  # records that this round has not reached
        self._rounds = 0  # complete rounds over the store
        self._made_in_round = 0  # records that this round has remade
        self._in_place = False  # `take_over_first` was called

    def step(self, budget: int) -> bool:
        """Convert at most `budget` more records; True when the take-over may begin.

        It may when no record is left, or only few that keep changing, or after ten rounds over the store.
        Also True if another reprojection took its place. Raises CacheError for an object that can't be
        remade; then the store is unchanged, or, after `take_over_first`, partly remade.
        """
        if self.is_over:
            return True
        lacking: list[Record] = []
        for looked, record in enumerate(self._round, 1):
            stored = self._indexer.stored(record.key)
            if stored is not None and stored.layout is not self._layout and not self._is_made(stored):
                lacking.append(stored)
            if len(lacking) >= budget or looked >= budget * _LOOKS:
                self._make(lacking)
                return False
        self._make(lacking)
        self._rounds += 1
        if self._in_place:
            self.is_over = True  # later changes are decoded by the new projection
            return True
        # Each round remakes the changes since the round before it, and is shorter. A store that changes too
        # fast for that is taken over as it is after some rounds.
        if self._made_in_round <= _MOST_LEFT or self._rounds >= _MOST_ROUNDS:
            return True
        self._made_in_round = 0
        self._round = iter(self._indexer.list())
        return False

    def take_over_first(self) -> None:
        """Begin anew, and put each record into the store as soon as it is remade."""
        self._in_place = True
        self._round = iter(self._indexer.list())

    def take_over(self) -> Generator[None]:
        """Put the remade records into the store, a slice at a time, after a first empty slice.

        An object in a new state that can't be remade keeps its record, which stays readable.
        """
        yield
        for number, key in enumerate(self._indexer.list_keys(), 1):
            self._put(key)
            if not number % _TAKEN_OVER_AT_ONCE:
                yield
            if self.is_over:
                return
        self.supersede()

    def supersede(self) -> None:
        """End it: the take-over is complete, or another reprojection takes its place."""
        self.is_over = True
        self._made.clear()

    def deltas(self, batch: Sequence[Delta]) -> Sequence[Delta]:
        """Queued changes, remade in the new layout.

        The stored state of each object is remade first, so that old and new state have the same layout.
        """
        return [self._delta(delta) for delta in batch]

    def replacement(self, replacement: Replacement) -> Generator[None, None, Replacement]:
        """A queued list, remade as in `deltas`, a slice at a time."""
        records: list[Record] = []
        for start in range(0, len(replacement.records), _TAKEN_OVER_AT_ONCE):
            for record in replacement.records[start : start + _TAKEN_OVER_AT_ONCE]:
                self._put(record.key)
                records.append(self._current(record))
            yield
        return replace(replacement, records=records)

    def _make(self, lacking: Sequence[Record]) -> None:
        for record in self._remake.many(lacking):
            if self._in_place:
                self._indexer.put(record.key, record)
            else:
                self._made[record.key] = record
        self._made_in_round += len(lacking)

    def _put(self, key: str) -> None:
        """Convert the stored record of a key in place."""
        stored = None if self.is_over else self._indexer.stored(key)
        if stored is not None and stored.layout is not self._layout:
            record = self._current(stored)
            if record is not stored:
                self._indexer.put(key, record)

    def _delta(self, delta: Delta) -> Delta:
        self._put(delta.key)
        record = delta.record
        # The record of an object that left the selection has an empty frame; the cache has its last state.
        if record is None or record.layout is self._layout or delta.out_of_scope:
            return delta
        return msgspec.structs.replace(delta, record=self._current(record))

    def _is_made(self, record: Record) -> bool:
        """Whether this state of an object was remade. False for a state without a version."""
        made = self._made.get(record.key)
        return made is not None and made.revision == record.revision and bool(record.resource_version)

    def _current(self, record: Record) -> Record:
        """The record in the new layout; unchanged if it can't be remade."""
        if record.layout is self._layout:
            return record
        if self._is_made(record):
            return self._made.pop(record.key)
        try:
            return self._remake(record)
        except CacheError as fault:
            _log.warning("%s; it stays as it was decoded before", fault)
            return record
