"""Previous states (`keepPrevious`): each object as the last call that has succeeded had it.

They outlive reloads, as memos do, and end with the process. A state is kept as its compressed frame, and goes
with the call that has succeeded for an object that is gone.
"""

import threading
from collections.abc import Sequence

import msgspec

from declctl.objects import HeldObject, Record


class PreviousStates:
    """The states of one reconciler, by key. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below
        self._records: dict[str, Record] = {}
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """The bytes of all frames."""
        return self._bytes

    def get(self, key: str) -> Record | None:
        """The state of an object; None if no call has succeeded for it."""
        return self._records.get(key)

    def keep(self, key: str, record: Record | None) -> None:
        """Keep a state in the place of the one before; None: the object is gone."""
        if record is not None and isinstance(record.frame, HeldObject):
            record = msgspec.structs.replace(record, frame=record.frame.frame)  # without the decoded object
        with self._lock:
            before = self._records.pop(key, None)
            self._bytes -= 0 if before is None else len(before.frame)
            if record is not None:
                self._records[key] = record
                self._bytes += len(record.frame)

    def all_keys(self) -> Sequence[str]:
        """The keys of all states."""
        with self._lock:
            return tuple(self._records)

    def clear(self) -> None:
        """Drop all states."""
        with self._lock:
            self._records.clear()
            self._bytes = 0
