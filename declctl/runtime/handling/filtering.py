"""Filters: which changes a handler is told, judged where they are delivered.

They are client-go's FilteringResourceEventHandler, and more: an object that comes to pass is Added, one
that ceases to pass is Deleted. What is judged is the pair that is delivered, after merging.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from declctl.manifest.model import FilterSpec
from declctl.objects import (
    Change,
    ChangeReason,
    ChangeType,
    FieldPath,
    LabelSelector,
    Notification,
    ObjectView,
    Record,
)
from declctl.objects.changed_paths import ChangedPaths

_ADDED, _MODIFIED, _DELETED = ChangeType.ADDED, ChangeType.MODIFIED, ChangeType.DELETED

Accepts = Callable[[ObjectView], bool]


class Judged(NamedTuple):
    """A change, and what a filter has made of it."""

    change: Notification
    told: Notification


class Filter:
    """A handler's filter in one generation; any thread may ask it.

    `events` are those that the handler hears, `accepts` is the user's function. Raises what that raises,
    and nothing else.
    """

    def __init__(self, spec: FilterSpec, events: Iterable[str], accepts: Accepts | None = None) -> None:
        self.spec = spec
        self.events = frozenset(ChangeType(name) for name in events)
        self._selector = LabelSelector.parse(spec.label_selector) if spec.label_selector else None
        self._accepts = accepts
        paths = [FieldPath.parse(path) for path in spec.changed_paths]
        self._changed = ChangedPaths(paths) if paths else None

    @property
    def judges_objects(self) -> bool:
        """Whether objects enter and leave it."""
        return self._selector is not None or self._accepts is not None

    @property
    def heeded(self) -> frozenset[ChangeType]:
        """The changes that it has to see for the handler to hear its events: entering is a Modified."""
        if self.judges_objects and self.events & {_ADDED, _DELETED}:
            return self.events | {_MODIFIED}
        return self.events

    def passes(self, obj: ObjectView) -> bool:
        """Whether an object is in it."""
        if self._selector is not None and not self._selector.matches(obj.labels):
            return False
        return self._accepts is None or self._accepts(obj)

    def judge(
        self, change: Notification, obj: ObjectView, old: ObjectView | None, told: Notification | None = None
    ) -> Notification | None:
        """What the handler is told of a change; None for nothing.

        `obj` and `old` are views of the change's records. `told` is what the handler has already failed
        on, where that was merged with something newer: it may know of it, so it can't be taken back.
        """
        made = self._judged(change, obj, old, told)
        return made if made is not None and made.type in self.events else None

    def _judged(
        self, change: Notification, obj: ObjectView, old: ObjectView | None, told: Notification | None
    ) -> Notification | None:
        if change.type is _DELETED:
            # One that was merged with a Modified is known by how it was before that.
            known = told is not None or self.passes(obj if change.old is None else ObjectView(change.old))
            return change if known else None
        now = self.passes(obj)
        if told is not None:
            return _again(change, told, now=now)
        if change.type is not _MODIFIED or change.old is None:
            return change if now else None
        before = self.passes(old or ObjectView(change.old))
        if before and now:
            same = self._changed is not None and not self._changed.differ(change.old, change.record)
            return None if same else change
        if now:
            return _entering(change)
        return _leaving(change, change.old) if before else None


def entering_or_leaving(change: Change, told: Notification) -> Change:
    """What a hook receives of a change that a filter has made another of."""
    return msgspec.structs.replace(
        change, type=told.type, obj=ObjectView(told.record), old=None, initial=False, reason=told.reason
    )


def _again(change: Notification, told: Notification, *, now: bool) -> Notification:
    if not now:
        return told if told.type is _DELETED else _leaving(change, told.record)
    if told.type in (_ADDED, _DELETED) and change.type is _MODIFIED:
        return _entering(change)
    return change


def _entering(change: Notification) -> Notification:
    return Notification(_ADDED, change.record, reason=change.reason, received_at=change.received_at)


def _leaving(change: Notification, last: Record) -> Notification:
    return Notification(_DELETED, last, reason=ChangeReason.OUT_OF_SCOPE, received_at=change.received_at)
