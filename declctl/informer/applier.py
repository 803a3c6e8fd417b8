"""The applier: changes the store by what was queued, and makes the notifications of what has changed.

An object that comes again as it is stored makes no notification. One that was deleted and made again makes
two, Deleted and Added. (client-go makes one update, whose uid has changed; `uid_change="update"` does that.)

`Reprojection` decodes a whole store anew by another projection, without a question to the server and without
a notification.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, Protocol

import msgspec

from declctl.decoding.projection import Projection
from declctl.errors import CacheError, MalformedAnswer
from declctl.informer.queues.real_fifo import Replacement
from declctl.informer.stores.thread_safe_store import Indexer
from declctl.objects import (
    ChangeReason,
    ChangeType,
    Delta,
    DeltaType,
    Notification,
    Record,
    newer_version,
)

_MOST_LEFT, _MOST_ROUNDS = 50, 10  # objects that may be left for the take-over, and attempts to get there
_LOOKS = 20  # records that can be compared in the time in which one is made
_TAKEN_OVER_AT_ONCE = 250  # objects of a step of a take-over: some 1 ms
_log = logging.getLogger("declctl.informer")
# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every delta.
_GONE, _SYNC, _REPLACED = DeltaType.DELETED, DeltaType.SYNC, DeltaType.REPLACED
_ADDED, _MODIFIED, _DELETED = ChangeType.ADDED, ChangeType.MODIFIED, ChangeType.DELETED
_WATCH, _INITIAL, _RELIST = ChangeReason.WATCH, ChangeReason.INITIAL, ChangeReason.RELIST
_RESYNC, _RESYNCED = ChangeType.RESYNC, ChangeReason.RESYNC

UidChange = Literal["recreate", "update"]


class Additions:
    """The notifications of objects that are all new. Each is made when a listener reads it."""

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


@dataclass(frozen=True, slots=True)
class RelistDifferences:
    """How many objects the lists after the first have brought that differ from what was held.

    Each stands for one change or more. States in between were not seen, nor were objects that came and went
    in between. An object that was made anew counts as `deleted` and as `added`.
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
    """Applies changes to a store, its only writer. `now` is in seconds since the epoch.

    `uid_change` says what another uid under a key becomes: Deleted and Added, or an update. `in_order` says
    that deltas come in the order of their versions, over all keys, as those of a RealFIFO do.
    """

    slice_size = 500  # objects of a replacement until the loop may do something else

    def __init__(
        self, indexer: Indexer, *, uid_change: UidChange = "recreate", in_order: bool = True
    ) -> None:
        self.differences = NO_DIFFERENCES  # what lists after the first have found
        self._in_order = in_order
        self._indexer = indexer
        self._recreates = uid_change == "recreate"
        self._held = indexer.held  # the record that is stored under a key, or None

    def apply(self, deltas: Sequence[Delta], now: float) -> Notifications:
        """Apply deltas in their order; returns their notifications."""
        made: list[Notification] = []
        relisted = False  # a DeltaFIFO brings lists as deltas
        for delta in deltas:
            kind, key, record = delta.type, delta.key, delta.record
            if kind is _GONE:
                # Of what left our sight the record is no final state: the object may well go on.
                last = None if delta.final_state_unknown or delta.out_of_scope else record
                reason = _WATCH
                if delta.out_of_scope:
                    reason = ChangeReason.OUT_OF_SCOPE
                elif delta.final_state_unknown:
                    reason, relisted = _RELIST, True
                self._remove(key, last, made, reason, now)
            elif kind is _SYNC:
                if (held := self._held(key)) is not None:
                    made.append(resync_of(held, now))
            elif record is not None:
                reason = _WATCH
                if kind is _REPLACED:
                    reason = _INITIAL if delta.initial else _RELIST
                    relisted |= not delta.initial
                held = self._held(record.key)
                if held is not record:
                    self._put(record, held, made, reason, now)
        self._bookmark(deltas)
        if relisted:
            self.differences += _differences([each for each in made if each.reason is _RELIST])
        return made

    def replace(self, replacement: Replacement, now: float) -> Iterator[Notifications]:
        """Make the store hold these objects and no others; yields notifications, a slice at a time.

        After each slice the store has exactly the changes of the notifications so far. Objects that are not
        in the list go first.
        """
        indexer = self._indexer
        listed = {record.key for record in replacement.records} if indexer.known() else ()
        gone = iter([key for key in indexer.known() if key not in listed])
        del listed  # a set of 100,000 keys, which the generator would keep until its end
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
        indexer.bookmark(replacement.resource_version)

    def _bookmark(self, deltas: Sequence[Delta]) -> None:
        """Let the store reach the version of these deltas."""
        reached = "" if self._in_order else self._indexer.last_store_sync_resource_version
        for delta in reversed(deltas):
            # A resync brings what is stored, which is older than what the store has reached.
            if delta.record is None or delta.type is _SYNC:
                continue
            reached = newer_version(reached, delta.record.resource_version)
            if reached and self._in_order:
                break  # those before it are older
        self._indexer.bookmark(reached)

    def _put_all(self, records: Sequence[Record], reason: ChangeReason, now: float) -> Notifications:
        # Nearly always all of a slice are new, or none: the first one says which way is worth a try.
        if self._held(records[0].key) is None:
            added = {record.key: record for record in records}
            if len(added) == len(records) and self._indexer.put_new(added):
                return Additions(records, reason, now)
        made: list[Notification] = []
        for record in records:
            held = self._held(record.key)
            if held is not record:  # a relist brings the record that is held, where nothing has changed
                self._put(record, held, made, reason, now)
        return made

    def _put(
        self, record: Record, held: Record | None, made: list[Notification], reason: ChangeReason, now: float
    ) -> None:
        """Store a record. `held` is what the store has of the object, and another record."""
        if held is None:
            made.append(Notification(_ADDED, record, None, reason is _INITIAL, False, reason, now))
        elif held.revision == record.revision and (held.resource_version or _same(held, record)):
            # The same version of the same object. Of another layout, it was decoded anew, which is no change.
            if held.layout is record.layout:
                if _same_content(held, record):
                    return
                # A server that was put back to a backup gives the same version to another state.
                made.append(Notification(_MODIFIED, record, held, False, False, reason, now))
        elif self._recreates and held.uid != record.uid:
            made.append(_tombstone(held, reason, now))
            made.append(Notification(_ADDED, record, None, False, False, reason, now))
        else:
            made.append(Notification(_MODIFIED, record, held, False, False, reason, now))
        self._indexer.put(record.key, record)

    def _remove(
        self, key: str, last: Record | None, made: list[Notification], reason: ChangeReason, now: float
    ) -> None:
        """Take an object out. `last` is its final state; None if that is unknown, or it left our sight."""
        held = self._indexer.take(key)
        if held is None:
            return  # no listener has been notified of it
        if last is not None:
            made.append(Notification(_DELETED, last, reason=reason, received_at=now))
        elif reason is ChangeReason.OUT_OF_SCOPE:
            made.append(Notification(_DELETED, held, reason=reason, received_at=now))
        else:
            made.append(_tombstone(held, reason, now))


def resync_of(record: Record, now: float) -> Notification:
    """The notification that replays a record; its old state is the same."""
    return Notification(_RESYNC, record, reason=_RESYNCED, received_at=now)


def _tombstone(held: Record, reason: ChangeReason, now: float) -> Notification:
    return Notification(_DELETED, held, final_state_unknown=True, reason=reason, received_at=now)


def _differences(notifications: Notifications) -> RelistDifferences:
    """The differences that a list has found, by the notifications that it made."""
    if isinstance(notifications, Additions):
        return RelistDifferences(added=len(notifications))
    kinds = [notification.type for notification in notifications]
    return RelistDifferences(kinds.count(_ADDED), kinds.count(_MODIFIED), kinds.count(_DELETED))


def _same_content(held: Record, record: Record) -> bool:
    """Whether two records of one version are equal. Lists give back the held record, but after a rollback."""
    try:
        return held.decode() == record.decode()
    except MalformedAnswer:
        return True  # a record that can't be read is replaced by its next version


def _same(held: Record, record: Record) -> bool:
    """Whether two states without a version are the same: a list or a watch may bring an object again."""
    if held.layout is not record.layout or held.labels_json != record.labels_json:
        return False
    codec = record.layout.codec  # which compresses otherwise once it has learned from the first objects
    return held.frame == record.frame or codec.decode(held.frame) == codec.decode(record.frame)


class Remake(Protocol):
    """Makes records anew; raises CacheError for one that can't be."""

    def __call__(self, record: Record) -> Record:
        """Make one."""
        ...

    def many(self, records: Sequence[Record]) -> Sequence[Record]:
        """Make many, in less time."""
        ...


class Reprojection:
    """The records of one store, made anew from their own frames. Used by the loop that writes the store.

    What is made is kept aside while the store goes on changing: until the take-over nothing has happened.
    Then it takes the places of the records that it was made of, where these are still the same state of
    their object. What has changed meanwhile is made anew at that moment. With `take_over_first` each record
    takes its place as soon as it is made.

    `projection` is what the source decodes with from the take-over on, and `remake` makes records that are
    like those of it.
    """

    def __init__(self, indexer: Indexer, projection: Projection, remake: Remake) -> None:
        self.projection = projection
        self.is_over = False  # it has taken over completely, or another one does
        self._indexer = indexer
        self._remake = remake
        self._layout = projection.layout
        self._made: dict[str, Record] = {}  # by key, and not in the store yet
        self._round: Iterator[Record] = iter(indexer.list())  # what this round has not looked at
        self._rounds = 0  # that are complete
        self._made_in_round = 0
        self._in_place = False  # records are put into the store as soon as they are made

    def step(self, budget: int) -> bool:
        """Make at most `budget` more records; True when none or few are left that have changed meanwhile.

        Also True where another reprojection has taken over: then nothing is left to do. Raises CacheError for
        an object that can't be made anew. Then the store is as it was, or, after `take_over_first`, as far
        as it came.
        """
        if self.is_over:
            return True
        lacking: list[Record] = []
        for looked, record in enumerate(self._round, 1):
            held = self._indexer.held(record.key)
            if held is not None and held.layout is not self._layout and not self._is_made(held):
                lacking.append(held)
            if len(lacking) >= budget or looked >= budget * _LOOKS:
                self._make(lacking)
                return False
        self._make(lacking)
        self._rounds += 1
        if self._in_place:
            self.is_over = True  # what came meanwhile was decoded by the new projection
            return True
        # Each round makes what has changed since the one before it, and is shorter. A store that changes
        # faster than that is taken over as it is.
        if self._made_in_round <= _MOST_LEFT or self._rounds >= _MOST_ROUNDS:
            return True
        self._made_in_round = 0
        self._round = iter(self._indexer.list())
        return False

    def take_over_first(self) -> None:
        """Put each record into the store as soon as it is made."""
        self._in_place = True
        self._round = iter(self._indexer.list())

    def take_over(self) -> Generator[None]:
        """Put what was made into the store, a slice at a time; nothing before the first slice is asked for.

        An object that changed into something that can't be made anew stays as it is: readable as before.
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
        """Do no more: all is done, or another reprojection takes over."""
        self.is_over = True
        self._made.clear()

    def deltas(self, batch: Sequence[Delta]) -> Sequence[Delta]:
        """Changes that waited in the queue, as the new projection would have decoded them.

        The states before them as well: what differs between two states is what has changed.
        """
        return [self._delta(delta) for delta in batch]

    def replacement(self, replacement: Replacement) -> Generator[None, None, Replacement]:
        """The same for a list, a slice at a time."""
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
        """Let the store hold the record of a key as the new projection decodes it."""
        held = None if self.is_over else self._indexer.held(key)
        if held is not None and held.layout is not self._layout:
            record = self._current(held)
            if record is not held:
                self._indexer.put(key, record)

    def _delta(self, delta: Delta) -> Delta:
        self._put(delta.key)
        record = delta.record
        # What left our sight has nothing in its frame: the cache has its last state.
        if record is None or record.layout is self._layout or delta.out_of_scope:
            return delta
        return msgspec.structs.replace(delta, record=self._current(record))

    def _is_made(self, record: Record) -> bool:
        """Whether this state of an object was made. Without a version, states can't be told apart."""
        made = self._made.get(record.key)
        return made is not None and made.revision == record.revision and bool(record.resource_version)

    def _current(self, record: Record) -> Record:
        """A record as the new projection decodes it; as it is, if it can't be made anew."""
        if record.layout is self._layout:
            return record
        if self._is_made(record):
            return self._made.pop(record.key)
        try:
            return self._remake(record)
        except CacheError as fault:
            _log.warning("%s; it stays as it was decoded before", fault)
            return record
