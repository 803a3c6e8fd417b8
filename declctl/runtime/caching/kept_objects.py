"""What a process keeps of the keys of its handlers, and what the next one begins with."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from declctl.objects import Cause, Notification, Record


class PendingChange(msgspec.Struct, frozen=True):
    """What a handler has still to deal with for one key."""

    old: Record | None = None  # the state that it knows; None for an object that is new to it
    attempts: int = 0  # that have failed
    due: float | None = None  # seconds since the epoch; None: at once
    causes: Sequence[Cause] = ()


class KeptLetter(msgspec.Struct, frozen=True):
    """A dead letter."""

    text: bytes  # the letter as JSON
    changes: Sequence[Notification] = ()  # that were given up; none for a key of a reconciler


class KeyState(msgspec.Struct, frozen=True):
    """All that is kept of one key of a handler; empty if there is nothing any more."""

    pending: PendingChange | None = None
    memo: Mapping[str, Any] | None = None  # JSON-like values
    uid: str | None = None  # of the object that the memo belongs to
    letter: KeptLetter | None = None


class KeptObjects(msgspec.Struct, frozen=True):
    """What the process before has kept of a cache, and of the handlers of its objects."""

    records: Mapping[str, Record]  # by key
    # By handler that knows these records: its keys with something to do. Any other handler hears all.
    known: Mapping[str, Mapping[str, PendingChange]]
    states: Mapping[str, Mapping[str, KeyState]]  # by handler: memos and dead letters

    def known_to(self, handler: str) -> Mapping[str, Record]:
        """The objects as a handler of changes knows them: before what it had still to deal with."""
        known = dict(self.records)
        for key, each in self.known[handler].items():
            if each.old is None:
                known.pop(key, None)
            else:
                known[key] = each.old
        return known
