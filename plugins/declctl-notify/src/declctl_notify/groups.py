"""Groups: changes in, messages out, when they are due. Pure but for its state.

The words are those of Alertmanager. The first change of a group waits `group_wait` for others. After a
message, the next one of the group is sent `group_interval` later at the earliest. A change that was sent is
not repeated for `repeat_interval`; its repeats are counted, and one message tells of them afterwards.

Each change that is added is in a message (listed, or in a count), or still waits: `waiting` counts the
changes that wait. `Groups` is used under the lock of its target. Times are seconds of one clock.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from declctl_notify.text import plain_text

MOST_GROUPS: Final = 10_000
"""Groups of one target in which changes may wait. A change that would need another one is not taken."""

MOST_MARKS: Final = 20_000
"""Changes of one target that are remembered as sent. Others may be repeated."""


class GroupKey(NamedTuple):
    """What the changes of one message have in common: the rule, and a value for each expression."""

    rule: str
    values: tuple[tuple[str, str], ...] = ()  # expression and value

    def __str__(self) -> str:
        named = [f"{name} {value}" for name, value in self.values if value]
        return ", ".join([self.rule, *map(plain_text, named)])


class Timing(NamedTuple):
    """The times of a rule, in seconds."""

    group_wait: float
    group_interval: float
    repeat_interval: float


@dataclass(slots=True)
class Entry:
    """One line of a message: a change, with the number of changes that it stands for."""

    identity: tuple[str, str]  # the object and the fingerprint
    title: str
    body: str
    changes: int = 1
    repeats: bool = False  # it was sent before, and has been repeated since


@dataclass(slots=True)
class Message:
    """The changes of one group that are due together. `more` counts those that are not listed."""

    group: GroupKey
    severity: str
    entries: list[Entry]
    more: int = 0

    @property
    def changes(self) -> int:
        """How many changes it stands for."""
        return self.more + sum(entry.changes for entry in self.entries)


@dataclass(slots=True)
class _Mark:
    """A change that was sent."""

    until: float  # it is not repeated before
    repeats: Entry | None = None  # the last repeat, with the number of them


@dataclass(slots=True)
class _Group:
    timing: Timing
    severity: str
    max_changes: int
    pending: dict[tuple[str, str], Entry] = field(default_factory=dict[tuple[str, str], Entry])
    more: int = 0  # changes that wait beside those in `pending`
    marks: dict[tuple[str, str], _Mark] = field(default_factory=dict[tuple[str, str], _Mark])
    flush_at: float | None = None  # when `pending` is due; None if it is empty
    last_sent: float | None = None  # when the last message was made
    wake_at: float | None = None  # the only time at which its entry in the heap counts

    @property
    def waiting(self) -> int:
        """The changes that wait."""
        repeats = sum(mark.repeats.changes for mark in self.marks.values() if mark.repeats is not None)
        return self.more + repeats + sum(entry.changes for entry in self.pending.values())

    def earliest(self, at: float) -> float:
        """The first time from `at` on at which a message may be sent."""
        return at if self.last_sent is None else max(at, self.last_sent + self.timing.group_interval)


class Groups:
    """The groups of one target."""

    def __init__(self) -> None:
        self._groups: dict[GroupKey, _Group] = {}
        self._heap: list[tuple[float, GroupKey]] = []  # one entry counts for each group: see `wake_at`
        self._marks = 0  # of all groups
        self._all_wait = False  # changes wait in each group, and there are as many groups as there may be

    @property
    def waiting(self) -> int:
        """The changes that wait."""
        return sum(group.waiting for group in self._groups.values())

    @property
    def next_due(self) -> float | None:
        """When to call `due` next; None if nothing waits."""
        while self._heap:
            at, key = self._heap[0]
            group = self._groups.get(key)
            if group is not None and group.wake_at == at:
                return at
            heapq.heappop(self._heap)
        return None

    def add(
        self, key: GroupKey, entry: Entry, *, severity: str, timing: Timing, max_changes: int, now: float
    ) -> bool:
        """Add a change. False if there are too many groups; then it was not taken."""
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= MOST_GROUPS and not self._forget_idle():
                return False
            group = self._groups[key] = _Group(timing, severity, max_changes)
        group.timing, group.severity, group.max_changes = timing, severity, max_changes
        mark = group.marks.get(entry.identity)
        if mark is not None and now < mark.until:
            # The group is looked at when the mark ends: see `_flush`.
            entry.repeats = True
            entry.changes += mark.repeats.changes if mark.repeats is not None else 0
            mark.repeats = entry
            return True
        if mark is not None:  # its interval has ended: it is sent again, with the repeats that wait
            del group.marks[entry.identity]
            self._marks -= 1
            if mark.repeats is not None:
                entry.changes += mark.repeats.changes
        _put(group, entry)
        if group.flush_at is None:
            group.flush_at = group.earliest(now + timing.group_wait)
            if group.wake_at is None or group.flush_at < group.wake_at:
                self._wake(key, group, group.flush_at)
        return True

    def due(self, now: float) -> list[Message]:
        """The messages that are due, in the order of their times. Their changes do not wait here any more."""
        found: list[Message] = []
        while (at := self.next_due) is not None and at <= now:
            _, key = heapq.heappop(self._heap)
            self._all_wait = False
            found += self._flush(key, self._groups[key], now)
        return found

    def drain(self) -> list[Message]:
        """All that waits, as messages; nothing is left. For the end of a target."""
        found: list[Message] = []
        for key, group in self._groups.items():
            for mark in group.marks.values():
                if mark.repeats is not None:
                    _put(group, mark.repeats)
            if group.pending or group.more:
                found.append(_message(key, group))
        self._groups.clear()
        self._heap.clear()
        self._marks, self._all_wait = 0, False
        return found

    def _forget_idle(self) -> bool:
        """Forget the groups in which no change waits, with what they have sent. Whether there were any."""
        # Looking at all groups takes a while: it is not done for each change of a storm.
        if self._all_wait:
            return False
        idle = [key for key, group in self._groups.items() if not group.waiting]
        for key in idle:
            self._marks -= len(self._groups.pop(key).marks)
        self._all_wait = not idle
        return bool(idle)

    def _flush(self, key: GroupKey, group: _Group, now: float) -> Iterator[Message]:
        """Make a message of what is due; decide when the group is looked at again, or forget it."""
        # A group is looked at when a message of it may be sent, and not before.
        for identity, mark in list(group.marks.items()):
            if mark.until <= now:
                del group.marks[identity]
                self._marks -= 1
                if mark.repeats is not None:
                    _put(group, mark.repeats)
                    group.flush_at = now
        if group.flush_at is not None and group.flush_at <= now:
            message = _message(key, group)
            for entry in message.entries:
                if group.timing.repeat_interval > 0 and self._marks < MOST_MARKS:
                    self._marks += entry.identity not in group.marks
                    group.marks[entry.identity] = _Mark(now + group.timing.repeat_interval)
            group.pending, group.more, group.flush_at, group.last_sent = {}, 0, None, now
            yield message
        times = [group.earliest(mark.until) for mark in group.marks.values()]
        if group.flush_at is not None:
            times.append(group.flush_at)
        elif not times and group.last_sent is not None and group.earliest(now) > now:
            # The group is remembered until the next message may be sent at once.
            times.append(group.earliest(now))
        if times:
            self._wake(key, group, min(times))
        else:
            del self._groups[key]

    def _wake(self, key: GroupKey, group: _Group, at: float) -> None:
        group.wake_at = at
        heapq.heappush(self._heap, (at, key))


def _put(group: _Group, entry: Entry) -> None:
    """Add an entry to those that wait: the newest text of each identity, with the number of its changes."""
    before = group.pending.get(entry.identity)
    if before is not None:
        entry.changes += before.changes
        entry.repeats = entry.repeats or before.repeats
        group.pending[entry.identity] = entry
    elif len(group.pending) < group.max_changes:
        group.pending[entry.identity] = entry
    else:
        group.more += entry.changes


def _message(key: GroupKey, group: _Group) -> Message:
    return Message(key, group.severity, list(group.pending.values()), group.more)
