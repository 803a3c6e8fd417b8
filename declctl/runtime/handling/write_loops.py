"""Own writes do not loop: the event of a conditional write leads to no call, and other loops are found.

A write that was conditional on a version, such as that of a status, and that changed the object, has exactly
one event, which tells the handler nothing new: its key is not reconciled because of it.

Two kinds of loops remain, which no single event shows:

- A **fight**: the handler writes the same again and again, because somebody else reverts it. That may be
  another process of the same name: the server takes both for one manager.
- **Feedback**: each call is caused by writes of handlers of this process alone. The `depth` of a write is the
  number of such calls in a row that have led to it; a change from outside begins anew.

More than ten calls for one key in a minute with such a write are a loop, if the writes are reverted or the
chain of own calls is longer than ten. It is named with the fields that change, and the
key is reconciled with growing delays until it has been quiet for a while.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from declctl.kit import Clock
from declctl.objects.differences import changed_paths
from declctl.objects.managed_fields import differs_under
from declctl.workqueue import Version
from declctl.writes import WriteOrigin, WriteVerb, Written

MOST_IN_A_MINUTE = 10  # writes of a key that lead to the next one
_MINUTE = 60.0
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0  # seconds between two calls of a key that loops
_MOST_REMEMBERED = 20_000  # versions, calls and last writes
_MOST_READS = 12  # of live objects for one key that loops
_MOST_FIELDS = 8  # that are named
_MOST_OTHERS = 3  # that are named
_TIME_STEP = 1.0  # seconds: the times of managed fields are whole
_GENERATION = "metadata.generation"  # which the server counts up whenever the spec changes

Versions = Sequence[Version] | None
"""The versions whose events led to a call; None if anything else did."""
_Before = Callable[[], Mapping[str, Any] | None]
"""Returns the object as a cache has it, before a write; None if no cache has it."""
_CallKey = tuple[str, str]  # handler, key


@dataclass(slots=True)
class WriteLoop:
    """The writes of one key that lead to the next one: a loop, if there are too many in a minute."""

    handler: str
    key: str
    is_found: bool = False  # it is a loop
    fights: bool = False  # somebody else reverts what it writes
    object: str = ""  # that it writes
    fields: tuple[str, ...] = ()  # that changed in the last writes
    namesake: str = ""  # the field manager of a fight, if the other side has the same one
    others: tuple[str, ...] = ()  # handlers and keys whose writes also lead to its calls
    times: deque[float] = field(default_factory=lambda: deque[float](maxlen=MOST_IN_A_MINUTE + 1))
    reads_left: int | None = None  # of the live object, to know who else writes; None until that is asked
    delay: float = 0.0
    until: float = float("-inf")  # monotonic seconds: the key is not reconciled before

    def __str__(self) -> str:
        """What leads to what, with the fields, and what to do about it."""
        other = "somebody"
        if self.namesake:
            other = f"another process with the field manager {self.namesake} (such as an install of the same "
            other += "name in another namespace)"
        why = f"its writes to {self.object} lead to its next call"
        advice = "write what is the same in each call for the same objects: no time, no counter"
        if self.others:
            why = f"{why}, as do those of {', '.join(self.others)}"
            advice = "let one handler alone write these fields, or write what does not change by itself"
        if self.fights:
            why = f"{other} reverts what it writes to {self.object}"
            advice = "see who else writes these fields (`declctl why`), and let one of the two stop"
        fields = ", ".join(self.fields) or "unknown"
        return (
            f"{self.handler} {self.key}: {why}, more than {MOST_IN_A_MINUTE} times a minute "
            f"(fields: {fields}); {advice}"
        )


class _OwnWrite(msgspec.Struct, frozen=True):
    """A version that a handler has written."""

    by: _CallKey
    depth: int
    exact: bool  # nothing but this write lies between it and the version before


class _LastWrite(msgspec.Struct, frozen=True):
    """The last write of a handler to an object, with one verb."""

    digest: int
    time: str  # of its managed fields, in whole seconds
    since: float  # monotonic seconds: the first write that was answered with this time


@dataclass(slots=True)
class _Call:
    """The newest call for a key."""

    reasons: Versions
    counted: bool = False  # one of its writes was counted


class WriteLoops:
    """The loops of all handlers of a process. From any thread.

    `report` takes the message of a loop when it is found, and when it has ended.
    """

    def __init__(self, *, clock: Clock, report: Callable[[str], None]) -> None:
        self._clock = clock
        self._report = report
        self._lock = threading.Lock()  # guards all of the following
        self._written: OrderedDict[Version, _OwnWrite] = OrderedDict()
        self._calls: dict[_CallKey, _Call] = {}  # written without the lock, in single steps
        self._last: OrderedDict[tuple[str, str, WriteVerb], _LastWrite] = OrderedDict()
        self._feeding: dict[_CallKey, WriteLoop] = {}

    def note(self, written: Written, origin: WriteOrigin, *, before: _Before) -> None:
        """Note a write that the server has stored."""
        if not origin.key or not written.uid or written.verb in (WriteVerb.DELETE, WriteVerb.CREATE):
            return
        with self._lock:
            found = self._noted(written, origin, before)
        if found is not None:
            self._report(found)

    def wants_live(self, origin: WriteOrigin) -> bool:
        """Whether to read the object of a fight before a write, as no cache says who else writes it.

        A call may write other objects, and may not be allowed to read: so there are twelve reads at most.
        """
        feeding = self._feeding.get((origin.handler, origin.key)) if self._feeding else None
        if feeding is None or not feeding.reads_left:
            return False
        feeding.reads_left -= 1
        return True

    def loops(self) -> Sequence[WriteLoop]:
        """The present loops, by handler and key. Those that have ended are reported and forgotten."""
        with self._lock:
            now = self._clock.monotonic()
            known = list(self._feeding.items())
            over = [at for at, each in known if now - each.times[-1] > _MINUTE + each.delay]
            ended = [self._feeding.pop(at) for at in over]
            present = [each for _, each in sorted(self._feeding.items()) if each.is_found]
        for loop in ended:
            if loop.is_found:
                self._report(f"{loop.handler} {loop.key} does not feed itself any longer")
        return present

    def is_own(self, handler: str, key: str, reasons: Versions) -> bool:
        """Whether a key is due because of its own conditional writes alone."""
        if not reasons or not self._written:
            return False
        # Without the lock: each lookup is one step, and an entry is never changed.
        for reason in reasons:
            write = self._written.get(reason)
            if write is None or not write.exact or write.by != (handler, key):
                return False
        return True

    def begin(self, handler: str, key: str, reasons: Versions) -> _Call:
        """Note that a call for a key begins."""
        # Without the lock. A call that is forgotten counts as one with causes from outside.
        if len(self._calls) >= _MOST_REMEMBERED:
            self._calls = {}
        call = self._calls[handler, key] = _Call(reasons)
        return call

    def delay(self, handler: str, key: str) -> float:
        """Seconds until a key that loops may be reconciled."""
        feeding = self._feeding.get((handler, key)) if self._feeding else None
        return 0.0 if feeding is None else max(0.0, feeding.until - self._clock.monotonic())

    def _noted(self, written: Written, origin: WriteOrigin, before: _Before) -> str | None:
        """Note a write; returns the message of a loop that was found by it. Under the lock."""
        at = origin.handler, origin.key
        place = origin.handler, written.uid, written.verb
        now, time, last = self._clock.monotonic(), _time_of(written), self._last.get(place)
        since = last.since if last is not None and last.time == time else now
        _remember(self._last, place, _LastWrite(written.digest, time, since))
        fights = last is not None and last.digest == written.digest
        # Another manager may have made the new version: an apply that changes nothing leaves its time alone.
        is_idle = fights and not written.based_on and now - since > _TIME_STEP
        if is_idle or not written.changed:
            return None
        call = self._call(origin)
        depth = self._depth(call.reasons)
        version = written.uid, written.resource_version
        _remember(self._written, version, _OwnWrite(at, depth, bool(written.based_on)))
        feeding = self._feeding.get(at)
        if not depth and not fights:
            # The cause is a change from outside: what came before does not count any more.
            if feeding is not None and not feeding.is_found:
                del self._feeding[at]
            return None
        if call.counted:
            return None
        call.counted = True
        if feeding is None:
            feeding = self._feeding[at] = WriteLoop(*at)
        feeding.times.append(now)
        feeding.others = self._others(at, call.reasons, feeding.others)
        # The differences are decoded and compared only when a loop is near.
        if len(feeding.times) > MOST_IN_A_MINUTE // 2 and (cached := before()) is not None:
            _compare(cached, written, feeding, fights=fights)
        many = len(feeding.times) > MOST_IN_A_MINUTE and now - feeding.times[0] < _MINUTE
        is_new = not feeding.is_found
        if is_new and not (many and (fights or depth > MOST_IN_A_MINUTE)):
            return None
        feeding.is_found, feeding.fights, feeding.object = True, fights, f"{written.kind} {written.key}"
        feeding.delay = min(LONGEST_DELAY, max(FIRST_DELAY, feeding.delay * 2))
        feeding.until = now + feeding.delay
        return f"{feeding}; it is called with growing delays from now on" if is_new else None

    def _call(self, origin: WriteOrigin) -> _Call:
        """The call that writes."""
        at = origin.handler, origin.key
        # Of a handler of changes, the version of its object is the reason, and tells its calls apart.
        reasons, call = None if origin.reads is None else (origin.reads,), self._calls.get(at)
        is_known = call is not None and (reasons is None or call.reasons == reasons)
        return call if call is not None and is_known else self.begin(*at, reasons)

    def _others(self, at: _CallKey, reasons: Versions, known: tuple[str, ...]) -> tuple[str, ...]:
        """Those of other handlers and keys whose writes led to a call, after those that are known."""
        writers = [write.by for reason in reasons or () if (write := self._written.get(reason)) is not None]
        found = dict.fromkeys((*known, *(" ".join(by) for by in writers if by != at)))
        return tuple(found)[:_MOST_OTHERS]

    def _depth(self, reasons: Versions) -> int:
        """The number of calls in a row that were caused by writes of this process alone."""
        known = [self._written.get(reason) for reason in reasons or ()]
        depths = [each.depth for each in known if each is not None]
        return 1 + max(depths) if depths and len(depths) == len(known) else 0


def _compare(cached: Mapping[str, Any], written: Written, feeding: WriteLoop, *, fights: bool) -> None:
    """Add the fields that a write has changed, and what the state before says of a fight."""
    found, _ = changed_paths(cached, written.obj, most=_MOST_FIELDS + 1)
    fields = dict.fromkeys((*feeding.fields, *found))
    fields.pop(_GENERATION, None)
    feeding.fields = tuple(fields)[:_MOST_FIELDS]
    if not fights:
        return
    if (cached.get("metadata") or {}).get("managedFields"):
        feeding.reads_left = 0
    elif feeding.reads_left is None:
        feeding.reads_left = _MOST_READS
    subresource = "status" if written.verb is WriteVerb.PATCH_STATUS else ""
    # The manager of a repeated write had other values: this process has not written these.
    if differs_under(dict(cached), written.obj, written.manager, written.verb.operation, subresource):
        feeding.namesake = written.manager


def _time_of(written: Written) -> str:
    """The time at which the manager of a write last changed the object, as the server has it."""
    entries: Any = (written.obj.get("metadata") or {}).get("managedFields") or ()
    times = [
        str(entry.get("time") or "")
        for entry in entries
        if entry.get("manager") == written.manager and entry.get("operation") == "Apply"
    ]
    return max(times, default="")


def _remember(known: "OrderedDict[Any, Any]", name: object, value: object) -> None:
    """Set a value as the newest one, and forget the oldest one of too many."""
    known.pop(name, None)
    known[name] = value
    if len(known) > _MOST_REMEMBERED:
        known.popitem(last=False)
