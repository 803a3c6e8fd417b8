"""The tap: what handlers are called for and what becomes of it, live, for those who listen.

While nobody listens, a call costs one read of `HandlerTap.listeners`. A listener has a queue of its own,
bounded by number and bytes: a slow listener loses calls, is told how many, and delays no handler. The paths
that changed are found when the listener reads, and not in the thread of a handler. No value of an object
leaves the tap: it has keys, paths, times, and the texts of errors. The texts of calls for Secrets are hidden.
"""

import asyncio
import fnmatch
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from declctl.errors import MalformedAnswer
from declctl.objects import Cause, Record
from declctl.objects.differences import changed_paths
from declctl.runtime.recorder import Recorder

MOST_WAITING = 1000  # calls that wait for one listener
MOST_BYTES = 16 << 20  # of their objects
_MOST_PATHS = 12  # that are named of one change
_LONGEST_PATH = 200  # characters: a key of a map may have megabytes
SECRET = ("", "Secret")  # group and kind of Secrets
_HIDDEN = "(hidden: the object is a Secret)"
_CALL_BYTES = 512  # of a waiting call, besides its objects


class TapOutcome(StrEnum):
    """What became of one call of a handler."""

    SUCCEEDED = "succeeded"
    RETRIED = "retried"  # it failed, and is tried again
    FAILED = "failed"  # it failed, and is given up
    DEAD_LETTER = "deadLetter"  # the same, and `declctl get deadletters` has it
    GONE = "gone"  # its object is gone, so that it can't be written; it is not called again
    FILTERED = "filtered"  # no hook was called: a filter, or nothing to do
    WAITING = "waiting"  # for a cache that has not synced, or a suspended plugin; it is called again
    OVERDUE = "overdue"  # it is not waited for any longer; another line comes if it returns


_FAILURES = (TapOutcome.RETRIED, TapOutcome.FAILED, TapOutcome.DEAD_LETTER, TapOutcome.OVERDUE)


class TapSubject(msgspec.Struct, frozen=True):
    """What a handler was called for, as its mode knows it."""

    type: str  # of the change, or Reconcile
    reason: str = ""  # of the change, such as Watch or Relist; empty for a key
    causes: tuple[Cause, ...] = ()  # of a key, the oldest first
    before: Record | None = None  # of a Modified
    after: Record | None = None  # the present state; None for a key
    is_secret: bool = False


class TappedCall(msgspec.Struct, frozen=True):
    """One call of a handler, for a change or a key, with its outcome."""

    at: datetime  # when it ended, in UTC
    handler: str
    resource: str  # of the handler, its name in the manifest
    key: str
    subject: TapSubject
    outcome: TapOutcome
    seconds: float  # from the begin of the call, with its filter
    generation: int
    attempt: int  # from 1
    error: str = ""
    error_type: str = ""
    retry_in: float | None = None  # seconds

    @property
    def weight(self) -> int:
        """The bytes that it keeps in memory while it waits for a listener."""
        states = self.subject.before, self.subject.after
        return _CALL_BYTES + sum(len(each.frame) for each in states if each is not None)

    def document(self) -> dict[str, Any]:
        """As JSON has it. Decodes the objects of a Modified, so that it is called in a thread."""
        subject, (paths, more) = self.subject, self._paths()
        return {
            "kind": "call",
            "time": _moment(self.at),
            "handler": self.handler,
            "resource": self.resource,
            "type": subject.type,
            "key": self.key,
            "reason": subject.reason,
            "causes": [str(cause) for cause in subject.causes],
            "paths": paths,
            "morePaths": more,
            "outcome": str(self.outcome),
            "seconds": round(self.seconds, 6),
            "generation": self.generation,
            "attempt": self.attempt,
            "error": _HIDDEN if self.error and subject.is_secret else self.error,
            "errorType": self.error_type,
            "retryInSeconds": None if self.retry_in is None else round(self.retry_in, 3),
        }

    def _paths(self) -> tuple[Sequence[str], int]:
        """The paths at which a Modified differs, and the number of further ones."""
        before, after = self.subject.before, self.subject.after
        if before is None or after is None:
            return [], 0
        try:
            paths, more = changed_paths(before.read(), after.read(), most=_MOST_PATHS)
        except (MalformedAnswer, RuntimeError):
            # Undecodable, nested too deep, or changed by a reader meanwhile: the call is shown all the same.
            return [], 0
        return [path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}…" for path in paths], more


class TapMark(msgspec.Struct, frozen=True):
    """A line between calls: an attempt to reload, with its outcome."""

    at: datetime
    result: str
    generation: int  # that runs after it
    reason: str
    line: str  # as in the log

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "kind": "reload",
            "time": _moment(self.at),
            "result": self.result,
            "generation": self.generation,
            "reason": self.reason,
            "line": self.line,
        }


def _moment(at: datetime) -> str:
    return f"{at.strftime('%Y-%m-%dT%H:%M:%S')}.{at.microsecond // 1000:03d}Z"


class TapFilter(msgspec.Struct, frozen=True):
    """Which calls a listener receives; an empty text lets all through. Marks always pass."""

    of: str = ""  # a handler or a resource, also one of a cause
    handler: str = ""
    namespace: str = ""
    name: str = ""  # of the object; a pattern with `*`, `?` and `[…]`
    failed: bool = False  # failed calls alone

    def matches(self, call: TappedCall) -> bool:
        """Whether a call passes."""
        if self.failed and call.outcome not in _FAILURES:
            return False
        if self.handler and call.handler != self.handler:
            return False
        if self.of and self.of not in (
            call.handler,
            call.resource,
            *(each.resource for each in call.subject.causes),
        ):
            return False
        namespace, _, name = call.key.rpartition("/")
        if self.namespace and namespace != self.namespace:
            return False
        return not self.name or fnmatch.fnmatchcase(name, self.name)


class TapListener:
    """The calls that wait for one listener. `add` may be called by any thread, the rest on its loop."""

    def __init__(self, chosen: TapFilter, loop: asyncio.AbstractEventLoop) -> None:
        self._filter = chosen
        self.is_closed = False  # nothing comes any more
        self._loop = loop
        self._lock = threading.Lock()  # guards the three fields below
        self._waiting: deque[TappedCall | TapMark] = deque()
        self._bytes = 0  # of the calls in `_waiting`
        self._dropped = 0  # calls since the last `take`
        self._arrived = asyncio.Event()  # something waits, or the listener is closed

    def add(self, item: TappedCall | TapMark) -> None:
        """Let an item wait, or count it as dropped; marks are never dropped. Neither waits nor raises."""
        weight = 0  # of a mark
        if isinstance(item, TappedCall):
            if not self._filter.matches(item):
                return
            weight = item.weight
        with self._lock:
            first = not self._waiting and not self._dropped
            is_full = len(self._waiting) >= MOST_WAITING or self._bytes >= MOST_BYTES
            if weight and is_full:
                self._dropped += 1
            else:
                self._waiting.append(item)
                self._bytes += weight
        if first:  # else it is awake already
            with suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self._arrived.set)

    async def wait(self, seconds: float) -> bool:
        """Wait until something may be taken; False after so many seconds without it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        return self._arrived.is_set()

    def take(self) -> tuple[Sequence[TappedCall | TapMark], int]:
        """What waits, the oldest first, and the number of calls that were dropped after these."""
        with self._lock:
            taken, dropped = tuple(self._waiting), self._dropped
            self._waiting.clear()
            self._bytes = self._dropped = 0
            if not self.is_closed:
                self._arrived.clear()
        return taken, dropped

    def close(self) -> None:
        """End the wait: nothing comes any more."""
        self.is_closed = True
        self._arrived.set()


class HandlerTap:
    """Hands calls and marks to the listeners. `add` may be called by any thread, the rest on one loop."""

    def __init__(self) -> None:
        # Read before a call is described. It is replaced as a whole, so that readers need no lock.
        self.listeners: tuple[TapListener, ...] = ()
        self.recorder: Recorder | None = None  # of all calls; set before the first one

    def listen(self, chosen: TapFilter, loop: asyncio.AbstractEventLoop) -> TapListener:
        """A new listener on `loop`, until `leave`."""
        listener = TapListener(chosen, loop)
        self.listeners = (*self.listeners, listener)
        return listener

    def leave(self, listener: TapListener) -> None:
        """Hand a listener nothing any more. May be repeated."""
        self.listeners = tuple(each for each in self.listeners if each is not listener)

    def add(self, item: TappedCall | TapMark) -> None:
        """Hand a mark to all listeners, and a call to those whose filters it passes."""
        for listener in self.listeners:
            listener.add(item)

    def close(self) -> None:
        """End the waits of all listeners: the process ends. On their loop."""
        for listener in self.listeners:
            listener.close()
