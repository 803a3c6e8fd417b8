"""From deltas to the store, and from the store to notifications: here the cache changes.

What is told is what changed: an object that comes again as it is stored is not told, one that was
deleted and made again is told as two changes (client-go tells an update whose uid has changed, and
so do we where it is asked for).
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

from declctl.informer.queues import Replacement
from declctl.informer.stores import Indexer
from declctl.objects import ChangeReason, ChangeType, Delta, DeltaType, Notification, Record

_SLICE = 500  # objects of a replacement until the loop may do something else

# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every delta.
_GONE, _SYNC, _REPLACED = DeltaType.DELETED, DeltaType.SYNC, DeltaType.REPLACED
_ADDED, _MODIFIED, _DELETED = ChangeType.ADDED, ChangeType.MODIFIED, ChangeType.DELETED
_WATCH, _INITIAL, _RELIST = ChangeReason.WATCH, ChangeReason.INITIAL, ChangeReason.RELIST
_RESYNC, _RESYNCED = ChangeType.RESYNC, ChangeReason.RESYNC

UidChange = Literal["recreate", "update"]


class Additions:
    """The notifications of objects that are all new. Each is made when it is read: for whoever listens."""

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


Told = list[Notification] | Additions
"""What listeners have to be told, in its order."""


class Applier:
    """Applies changes to a store, its only writer. `now` is in seconds since the epoch.

    `uid_change` says how another uid under a key is told: as a delete and an add, or as an update.
    """

    def __init__(self, indexer: Indexer, *, uid_change: UidChange = "recreate") -> None:
        self._indexer = indexer
        self._recreates = uid_change == "recreate"
        self._held = indexer.held

    def apply(self, deltas: Sequence[Delta], now: float) -> Told:
        """Apply deltas in their order; what listeners have to be told of them."""
        told: list[Notification] = []
        for delta in deltas:
            kind, key, record = delta.type, delta.key, delta.record
            if kind is _GONE:
                last = None if delta.final_state_unknown or delta.out_of_scope else record
                self._remove(key, last, told, _reason_of(delta), now)
            elif kind is _SYNC:
                if (held := self._held(key)) is not None:
                    told.append(resync_of(held, now))
            elif record is not None:
                reason = _WATCH
                if kind is _REPLACED:
                    reason = _INITIAL if delta.initial else _RELIST
                held = self._held(record.key)
                if held is not record:
                    self._put(record, held, told, reason, now)
        last_record = deltas[-1].record if deltas else None
        if last_record is not None:
            self._indexer.bookmark(last_record.resource_version)
        return told

    def replace(self, replacement: Replacement, now: float) -> Iterator[Told]:
        """Make the store hold these objects, compared in place, a slice at a time.

        After each slice the store has what was told and nothing else. What is missing goes first.
        """
        indexer = self._indexer
        listed = {record.key for record in replacement.records} if indexer.known() else ()
        gone = iter([key for key in indexer.known() if key not in listed])
        del listed
        while keys := tuple(islice(gone, _SLICE)):
            told: list[Notification] = []
            for key in keys:
                self._remove(key, None, told, _RELIST, now)
            yield told
        reason, records = _INITIAL if replacement.initial else _RELIST, replacement.records
        for start in range(0, len(records), _SLICE):
            yield self._put_all(records[start : start + _SLICE], reason, now)
        indexer.bookmark(replacement.resource_version)

    def _put_all(self, records: Sequence[Record], reason: ChangeReason, now: float) -> Told:
        if self._held(records[0].key) is None:
            added = {record.key: record for record in records}
            if len(added) == len(records) and self._indexer.put_new(added):
                return Additions(records, reason, now)
        told: list[Notification] = []
        for record in records:
            held = self._held(record.key)
            if held is not record:  # a relist brings the record that is held, where nothing has changed
                self._put(record, held, told, reason, now)
        return told

    def _put(
        self, record: Record, held: Record | None, told: list[Notification], reason: ChangeReason, now: float
    ) -> None:
        """`held` is what the store has of the object, and another record."""
        if held is None:
            told.append(Notification(_ADDED, record, None, reason is _INITIAL, False, reason, now))
        elif held.revision == record.revision and held.resource_version:
            if held.layout is record.layout:
                return
            # The same object, decoded anew: nobody has to hear of it.
        elif self._recreates and held.uid != record.uid:
            told.append(_tombstone(held, reason, now))
            told.append(Notification(_ADDED, record, None, False, False, reason, now))
        else:
            told.append(Notification(_MODIFIED, record, held, False, False, reason, now))
        self._indexer.put(record.key, record)

    def _remove(
        self, key: str, last: Record | None, told: list[Notification], reason: ChangeReason, now: float
    ) -> None:
        """`last` is the final state; without it, it is unknown, or the object only left our sight."""
        held = self._indexer.take(key)
        if held is None:
            return
        if last is not None:
            told.append(Notification(_DELETED, last, reason=reason, received_at=now))
        elif reason is ChangeReason.OUT_OF_SCOPE:
            told.append(Notification(_DELETED, held, reason=reason, received_at=now))
        else:
            told.append(_tombstone(held, reason, now))


def resync_of(record: Record, now: float) -> Notification:
    """The notification that replays a record; its old state is the same."""
    return Notification(_RESYNC, record, reason=_RESYNCED, received_at=now)


def _tombstone(held: Record, reason: ChangeReason, now: float) -> Notification:
    return Notification(_DELETED, held, final_state_unknown=True, reason=reason, received_at=now)


def _reason_of(delta: Delta) -> ChangeReason:
    if delta.out_of_scope:
        return ChangeReason.OUT_OF_SCOPE
    return _RELIST if delta.final_state_unknown else _WATCH
