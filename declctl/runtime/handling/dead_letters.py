"""Dead letters: what a handler with `onFailure: DeadLetter` has given up, kept until it is requeued.

A handler has one letter for each key. They are kept in memory, with a limit on their number and on their
bytes: beyond it the oldest letter is dropped and counted. They survive reloads, and with `state` restarts;
they end with the removal of the handler.
"""

import threading
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

C = TypeVar("C")

MOST_LETTERS = 1000  # of one handler
MOST_BYTES = 16 << 20  # of the letters of one handler
_OWN_BYTES = 512  # of a letter without its texts and its content


class RequeueResult(StrEnum):
    """The result of a request to requeue the letter of a key."""

    REQUEUED = "Requeued"
    NONE = "None"  # the key has no letter
    PENDING = "Pending"  # a newer change of the key waits or runs, which goes first


class DeadLetter(msgspec.Struct, frozen=True):
    """What is known of a change, or of a key, that was given up. Times are in UTC."""

    handler: str
    key: str
    type: str  # of the change; Reconcile for a key of a reconciler
    error: str  # of the last attempt, at most 2000 characters
    error_type: str
    traceback: str  # its end
    attempts: int  # of the newest change
    first_failed_at: datetime  # of the oldest change
    failed_at: datetime  # the last attempt
    generation: int  # on which the last attempt was made
    changes: int = 1  # that were given up since the handler last succeeded with the key


class _Entry(NamedTuple, Generic[C]):
    """A letter, and what is queued again for it."""

    letter: DeadLetter
    content: C
    weight: int  # bytes


class DeadLetters(Generic[C]):
    """The letters of one handler, by key. From any thread.

    `fold(older, newer)` makes one content of two of the same key, and `weigh` returns the bytes of a content.
    """

    def __init__(self, fold: Callable[[C, C], C], weigh: Callable[[C], int]) -> None:
        self.dropped = 0  # letters that were dropped because there were too many, or too large ones
        self._fold = fold
        self._weigh = weigh
        self._lock = threading.Lock()  # guards all of this
        self._entries: dict[str, _Entry[C]] = {}  # by key, the letter that was put last is the last one
        self._bytes = 0  # of all entries

    def put(self, letter: DeadLetter, content: C) -> None:
        """Keep a letter. A letter of the same key is replaced, and its content stays part of the new one."""
        with self._lock:
            older = self._remove(letter.key)
            if older is not None:
                content = self._fold(older.content, content)
                letter = replace(
                    letter,
                    first_failed_at=older.letter.first_failed_at,
                    changes=older.letter.changes + letter.changes,
                )
            texts = len(letter.error) + len(letter.traceback)
            entry = _Entry(letter, content, _OWN_BYTES + texts + self._weigh(content))
            self._entries[letter.key] = entry
            self._bytes += entry.weight
            # A letter that is larger than the limit is kept alone: it is the newest one.
            while len(self._entries) > 1 and (len(self._entries) > MOST_LETTERS or self._bytes > MOST_BYTES):
                self._remove(next(iter(self._entries)))
                self.dropped += 1

    def requeue(self, key: str, add: Callable[[C], bool]) -> RequeueResult:
        """Queue the content of a letter again with `add`, and forget the letter if `add` returns True.

        The lock is held meanwhile: what is given up anew is a new letter, which comes after that.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return RequeueResult.NONE
            if not add(entry.content):
                return RequeueResult.PENDING
            self._remove(key)
            return RequeueResult.REQUEUED

    def succeeded(self, key: str) -> None:
        """Forget the letter of a key: the handler has succeeded with a newer change of it."""
        if self._entries:  # without the lock, as this is called for each success
            with self._lock:
                self._remove(key)

    def forget(self, key: str) -> None:
        """Forget the letter of a key: another process handles the key."""
        with self._lock:
            self._remove(key)

    def all(self) -> list[DeadLetter]:
        """The letters; the one whose newest change was given up last is the last one."""
        with self._lock:
            return [entry.letter for entry in self._entries.values()]

    def get(self, key: str) -> tuple[DeadLetter, C] | None:
        """The letter of a key, and what is queued again for it."""
        entry = self._entries.get(key)
        return None if entry is None else (entry.letter, entry.content)

    def keys(self) -> list[str]:
        """The keys that have a letter."""
        with self._lock:
            return list(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _remove(self, key: str) -> _Entry[C] | None:
        """Remove a letter. Under the lock."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.weight
        return entry
