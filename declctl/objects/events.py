"""What happens to objects, as values: on the wire, in the line, and as a handler sees it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from declctl.objects.key import ObjectKey
from declctl.objects.record import Record
from declctl.objects.view import ObjectView


class EventType(StrEnum):
    """The types of watch events.

    DROPPED and SKIPPED are ours: the transform took the object out of the cache; it is of another
    kind, and nobody wanted it.
    """

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    DROPPED = "DROPPED"
    SKIPPED = "SKIPPED"


class WatchEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a WATCH. `record` is None for a bookmark, and for what was skipped.

    `version` is that of an event without a record. `oddity` says why it was skipped, or why the object
    could be read in part only.
    """

    type: EventType
    record: Record | None
    version: str = ""
    initial_events_end: bool = False
    oddity: str = ""

    @property
    def resource_version(self) -> str:
        """The version that is reached with it; empty if it tells none."""
        return self.version if self.record is None else self.record.resource_version


class DeltaType(StrEnum):
    """Why a delta is in the queue (client-go's DeltaType)."""

    ADDED = "Added"
    UPDATED = "Updated"
    DELETED = "Deleted"
    REPLACED = "Replaced"
    SYNC = "Sync"


class Delta(msgspec.Struct, frozen=True, gc=False):
    """One change on its way to the store.

    `record` is None for a tombstone without a known object.
    """

    type: DeltaType
    key: str
    record: Record | None
    final_state_unknown: bool = False
    initial: bool = False
    out_of_scope: bool = False


class ChangeType(StrEnum):
    """What a handler is told."""

    ADDED = "Added"
    MODIFIED = "Modified"
    DELETED = "Deleted"
    RESYNC = "Resync"


class ChangeReason(StrEnum):
    """Why a handler is told."""

    INITIAL = "Initial"
    WATCH = "Watch"
    RELIST = "Relist"
    RESYNC = "Resync"
    OUT_OF_SCOPE = "OutOfScope"
    REPLAY = "Replay"


class Notification(msgspec.Struct, frozen=True, gc=False):
    """A change of the cache on its way to a listener.

    It holds records, so that waiting costs frames and not objects.

    `record` is the object now (for Deleted: its last known state), `old` the one before. A Deleted that
    was merged with a Modified keeps the `old` of that: a filter has to know whether it was told of it.
    `received_at` is in seconds since the epoch, when the event came off the wire. `judged` says that no
    filter has to be asked any more.
    """

    type: ChangeType
    record: Record
    old: Record | None = None
    initial: bool = False
    final_state_unknown: bool = False
    reason: ChangeReason = ChangeReason.WATCH
    received_at: float = 0.0
    judged: bool = False

    @property
    def key(self) -> str:
        """The key of the object."""
        return self.record.key

    def weight(self) -> int:
        """Bytes that it holds on to while it waits."""
        return 256 + len(self.record.frame) + (len(self.old.frame) if self.old is not None else 0)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook receives as `change`. Frozen; it may grow fields.

    `obj` is the object (for Deleted: its last known state); `old` is None unless the type is
    Modified or Resync. `received` is `received_at` in seconds since the epoch.
    """

    type: ChangeType
    resource: str
    obj: ObjectView
    old: ObjectView | None
    initial: bool
    final_state_unknown: bool
    reason: ChangeReason
    generation: int
    received: float

    @property
    def key(self) -> ObjectKey:
        """`namespace/name`, or `name`."""
        return self.obj.key

    @property
    def received_at(self) -> datetime:
        """When the event came off the wire, in UTC."""
        return datetime.fromtimestamp(self.received, UTC)


def merge(waiting: Notification, new: Notification, attempted: bool) -> Sequence[Notification]:
    """What remains of two pending changes of one key: the table of the contract.

    `attempted` says that a handler has already seen `waiting` and failed on it, so that it can't be
    taken back.
    """
    match waiting.type, new.type:
        case ChangeType.RESYNC, _:
            return [new]
        case _, ChangeType.RESYNC:
            return [waiting]
        case ChangeType.ADDED, ChangeType.MODIFIED:
            return [msgspec.structs.replace(waiting, record=new.record, judged=False)]
        case ChangeType.MODIFIED, ChangeType.MODIFIED:
            return [msgspec.structs.replace(new, old=waiting.old)]
        case ChangeType.ADDED, ChangeType.DELETED if not attempted:
            return []
        case ((ChangeType.MODIFIED | ChangeType.DELETED), ChangeType.DELETED) if (
            waiting.old or waiting.judged
        ):
            # Whoever was to hear of it, or knew it, has to hear that it is gone.
            return [msgspec.structs.replace(new, old=waiting.old, judged=waiting.judged)]
        case ((ChangeType.MODIFIED | ChangeType.ADDED | ChangeType.DELETED), ChangeType.DELETED):
            return [new]
        case _:
            return [waiting, new]


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a LIST: its records, the version of the list, and how to go on.

    `skipped` says why items are not among the records: they are of another kind, or can't be read.
    `kept_raw` says of which records only the metadata could be read.
    """

    records: Sequence[Record]
    resource_version: str
    continue_token: str
    remaining: int | None
    skipped: Sequence[str] = ()
    kept_raw: Sequence[str] = ()
