"""A living handler's resource is watched anew: what it has to hear, and when it may be moved.

Two watches of one server are never at the same version. A handler may only be moved once its new
caches have seen all that its old ones have told it; what then differs is the difference in scope,
and what the new ones have seen since. It is known for each object all the time that a reload is
staged, so that the commit has nothing to compare.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from declctl.informer import Registration
from declctl.objects import ChangeReason, ChangeType, LabelSelector, Notification, Record, version_order
from declctl.runtime.caching.caches import Cached

_SLICE = 500  # objects that are compared before the loop may do something else

Told = tuple[Notification, ...]


class Move:
    """What a handler hears that leaves some caches for others: true differences only.

    From `begin` to `close` it listens to all of them, and compares each object of which they tell.
    Used on the machinery loop; several handlers may share one.
    """

    def __init__(self, before: Iterable[Cached], after: Iterable[Cached]) -> None:
        self.before = tuple(before)
        self.after = tuple(after)
        self._old = [_Scope(cached) for cached in self.before]
        self._new = [_Scope(cached) for cached in self.after]
        self._told: dict[str, Told] = {}  # of objects that differ
        self._doubtful: dict[str, None] = {}  # objects that one side may have seen more of than the other
        self._registrations: list[Registration] = []
        self._transforms = {cached.identity.transform for cached in self.after}

    def begin(self) -> Iterator[None]:
        """Follow the caches from now on, and compare all that they hold, a slice at a time."""
        caches = tuple(dict.fromkeys((*self.before, *self.after)))
        for cached in caches:
            registration = cached.informer.add_listener(self, resync_period=0.0, initial=False)
            self._registrations.append(registration)
        for cached in caches:
            keys = iter(tuple(cached.informer.indexer.known()))
            while part := tuple(islice(keys, _SLICE)):
                self.compare(part)
                yield

    def close(self) -> None:
        """Follow the caches no longer."""
        for registration in self._registrations:
            registration.remove()
        self._registrations.clear()

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Something has happened to these objects in one of the caches."""
        self.compare([notification.key for notification in notifications])

    def compare(self, keys: Iterable[str]) -> None:
        """What is told of these objects, as they are now."""
        for key in keys:
            old, new = self.held(key)
            self.tell(key, difference(old, new))
            self.doubt(key, old, new)

    def held(self, key: str) -> tuple[Record | None, Record | None]:
        """An object as the old caches have it, and as the new ones do."""
        return _held(self.before, key), _held(self.after, key)

    def tell(self, key: str, told: Told) -> None:
        """This, and nothing else, is told of an object."""
        if told:
            self._told[key] = told
        else:
            self._told.pop(key, None)

    def doubt(self, key: str, old: Record | None, new: Record | None) -> None:
        """Look again, in `is_behind`, at an object that one side may have seen more of than the other."""
        if old is not new and self._is_doubtful(old, new):
            self._doubtful[key] = None
        else:
            self._doubtful.pop(key, None)

    @property
    def is_behind(self) -> bool:
        """Whether the new caches have yet to see something that the old ones have told.

        An object that only one side has is judged where it is in the scope of both.
        """
        for key in tuple(self._doubtful):
            old, new = self.held(key)
            if self._lags(old, new):
                return True
            if old is not None:  # what the new caches have seen, they go on having seen
                del self._doubtful[key]
        return False

    @property
    def told(self) -> list[Notification]:
        """What a handler has to hear if it is moved now, that has heard of all that the old caches hold."""
        return [notification for told in self._told.values() for notification in told]

    def _is_doubtful(self, old: Record | None, new: Record | None) -> bool:
        if old is None:
            return new is not None and any(True for _ in self._told_deleted_by(new))
        return self._lags(old, new)

    def _lags(self, old: Record | None, new: Record | None) -> bool:
        if old is None:
            # It was deleted, and that will come.
            return new is not None and any(s.seen >= _version(new) for s in self._told_deleted_by(new))
        if new is None:
            # It was made, and will come.
            return any(scope.seen < _version(old) for scope in self._new if scope.covers(old))
        return _version(new) < _version(old)

    def _told_deleted_by(self, new: Record) -> Iterator["_Scope"]:
        """The old caches that would hold an object if it were still there; one that drops more may not."""
        return (scope for scope in self._old if self._transforms == {scope.transform} and scope.covers(new))


class _Scope:
    """What a cache is sure to hold."""

    def __init__(self, cached: Cached) -> None:
        watch = cached.identity.watch
        self.transform = cached.identity.transform
        self._indexer = cached.informer.indexer
        self._namespace = watch.namespace
        self._unknown = bool(watch.field_selector)  # a field selector is not judged
        self._labels = LabelSelector.parse(watch.label_selector) if watch.label_selector else None

    def covers(self, record: Record) -> bool:
        """Whether the cache is sure to hold this object, if it is there."""
        if self._unknown or self._namespace not in (None, record.object_key.namespace):
            return False
        return self._labels is None or self._labels.matches(record.labels)

    @property
    def seen(self) -> tuple[int, str]:
        """The order of the version that the cache is at."""
        return version_order(self._indexer.last_store_sync_resource_version)


def difference(old: Record | None, new: Record | None, *, was: bool | None = True, now: bool = True) -> Told:
    """What is told of an object, from what was known of it to what it is; either may be out of sight.

    `was` and `now` say whether a filter let it pass. `was` is None where the filter raised: the handler may
    not know the object, so that no Deleted is told.
    """
    known = old if was is not False else None
    passing = new if now else None
    if known is not None and passing is not None and known.uid == passing.uid:
        if _version(passing) <= _version(known):
            return ()
        return (Notification(ChangeType.MODIFIED, passing, known, reason=ChangeReason.RELIST),)
    told: list[Notification] = []
    if known is not None and was:
        told.append(Notification(ChangeType.DELETED, known, reason=ChangeReason.OUT_OF_SCOPE))
    if passing is not None:
        told.append(Notification(ChangeType.ADDED, passing, initial=True, reason=ChangeReason.INITIAL))
    return tuple(told)


def _held(caches: Sequence[Cached], key: str) -> Record | None:
    for cached in caches:
        record = cached.informer.indexer.held(key)
        if record is not None:
            return record
    return None


def _version(record: Record) -> tuple[int, str]:
    return version_order(record.resource_version)
