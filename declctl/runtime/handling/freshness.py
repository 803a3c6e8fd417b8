"""Is a cache as new as what a handler has heard that is to go to it? Nothing is told twice, or back in time.

Two watches of one server are never at the same version, and one that fails stays behind for long. The
versions of one resource are numbers that grow, over all its watches (KEP-5504), so that they say which one is
newer. A watch that matches few objects says seldom at which version it is. So what has changed since staging
began is judged object by object, and for what happened before the cache is listed once more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from declctl.errors import ReloadRefused
from declctl.informer import Registration
from declctl.objects import (
    NO_ORDER,
    ChangeReason,
    ChangeType,
    LabelSelector,
    Notification,
    Record,
    version_order,
)
from declctl.runtime.caching.informer_pool import ManagedInformer

_Order = tuple[int, str]


class CacheLags(ReloadRefused):
    """A cache has not caught up in time. `target` is that cache."""

    def __init__(self, message: str, target: ManagedInformer) -> None:
        super().__init__("CacheLags", message)
        self.target = target


class _Answer(Enum):
    """Whether a cache will be told of a change that another one has told."""

    COMES = auto()  # one of the two states is in its scope
    UNKNOWN = auto()  # a field selector is not judged
    IF_HELD = auto()  # neither state is in its scope: it is told if it holds an older state


@dataclass(frozen=True, slots=True)
class Gap:
    """What a cache has yet to see: a version, and the object that changed then.

    `key` is empty for what was heard before staging began: which objects that were is not known.
    """

    target: ManagedInformer
    version: str
    key: str
    handlers: Sequence[str]

    @property
    def is_closed(self) -> bool:
        """Whether the cache has reached the version by now."""
        return _reached(self.target) >= version_order(self.version)

    def refusal(self, seconds: float) -> CacheLags:
        """Why nothing can be moved, after so many seconds: the same words while the cache stays there."""
        informer = self.target.informer
        at = informer.indexer.last_store_sync_resource_version
        why = informer.statistics().error or "its watch brings nothing newer"
        message = (
            f"{', '.join(self.handlers)} would go back in time: after {seconds:g} s the cache of "
            f"{self.target.identity.watch} is at version {at}, and newer ones were heard: {why}"
        )
        return CacheLags(message, self.target)


class FreshnessProof:
    """Proves that the cache `target` has seen all that some handlers have heard from the caches `sources`.

    From `begin` to `close` it listens to the sources. Begin before a new target is listed: the list is as new
    as what was heard by then, and of what is heard later the objects are known. Used on the machinery loop.

    Two things are not proven. Where resource versions are no numbers, there is never a gap. And an object
    that comes from the scope of the target to that of a source just then, of which only the source has
    heard, is taken for one that the target never held.
    """

    def __init__(
        self, handlers: Sequence[str], sources: Iterable[ManagedInformer], target: ManagedInformer
    ) -> None:
        self.handlers = handlers
        self.sources = tuple(sources)
        self.target = target
        self._scope = _Scope(target)
        self._floor = NO_ORDER  # the version that had been heard when it began
        self._due: dict[str, tuple[_Order, _Answer]] = {}  # by key, the last change that was heard since
        self._registrations: list[Registration] = []

    def begin(self) -> None:
        """Note what has been heard, and what is from now on."""
        self._floor = self._heard
        for source in self.sources:
            listener = _SourceListener(self, source)
            registration = source.informer.add_listener(listener, resync_period=0.0, initial=False)
            self._registrations.append(registration)

    def close(self) -> None:
        """Note no more. Twice is harmless."""
        for registration in self._registrations:
            registration.remove()
        self._registrations.clear()

    def note(self, source: ManagedInformer, notification: Notification) -> None:
        """Handlers hear this from one of the sources."""
        record, old = notification.record, notification.old
        if notification.type is ChangeType.RESYNC or not self._scope.reaches(record):
            return
        version = version_order(record.resource_version)
        if notification.type is ChangeType.DELETED and notification.reason is not ChangeReason.WATCH:
            # The record is the last one that was seen. The object was deleted later, by this version.
            version = version_order(source.informer.last_sync_resource_version)
        found = {self._scope.covers(state) for state in (record, old or record)}
        if True in found:
            self._due[record.key] = version, _Answer.COMES
        elif None in found:
            self._due[record.key] = version, _Answer.UNKNOWN
        elif record.key not in self._due:
            self._due[record.key] = version, _Answer.IF_HELD

    @property
    def gap(self) -> Gap | None:
        """What the target has yet to see; None if it is as new as what was heard."""
        seen, heard = _reached(self.target), self._heard
        if NO_ORDER in (seen, heard):
            return None
        if heard < self._floor:  # the server was put back to a backup: what was heard before is no history
            self._floor = heard
            self._due.clear()
        if seen < self._floor:
            return Gap(self.target, self._floor[1], "", self.handlers)
        for key, (version, answer) in tuple(self._due.items()):
            if seen < version and not self._has_passed(key, version, answer):
                return Gap(self.target, version[1], key, self.handlers)
            del self._due[key]
        return None

    def _has_passed(self, key: str, version: _Order, answer: _Answer) -> bool:
        held = self.target.informer.indexer.held(key)
        if held is None:
            return answer is _Answer.IF_HELD
        return version_order(held.resource_version) >= version

    @property
    def _heard(self) -> _Order:
        return max(map(_reached, self.sources), default=NO_ORDER)


def _reached(cached: ManagedInformer) -> _Order:
    """The version that a cache is at."""
    return version_order(cached.informer.indexer.last_store_sync_resource_version)


class _SourceListener:
    """Tells a proof what one of its sources tells."""

    def __init__(self, proof: FreshnessProof, source: ManagedInformer) -> None:
        self._proof = proof
        self._source = source

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Something has happened in the source."""
        for notification in notifications:
            self._proof.note(self._source, notification)


class _Scope:
    """Which objects a cache holds, as far as its watch says."""

    def __init__(self, cached: ManagedInformer) -> None:
        watch = cached.identity.watch
        self._namespace = watch.namespace
        self._has_fields = bool(watch.field_selector)  # a field selector is not judged
        self._labels = LabelSelector.parse(watch.label_selector) if watch.label_selector else None

    def reaches(self, record: Record) -> bool:
        """Whether it may ever hold this object: objects keep their namespace."""
        return self._namespace in (None, record.object_key.namespace)

    def covers(self, record: Record) -> bool | None:
        """Whether it holds an object in this state; None if that is not known."""
        if self._labels is not None and not self._labels.matches(record.labels):
            return False
        return None if self._has_fields else True
