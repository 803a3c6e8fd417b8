"""A living handler's resource is watched anew: what it has to hear.

A handler may only be moved once its new caches have seen all that its old ones have told it (`freshness`).
What then differs is the difference in scope, and what the new ones have seen since. It is known for each
object all the time that a reload is staged, so that the commit has nothing to compare.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from declctl.informer import Registration
from declctl.objects import ChangeReason, ChangeType, Notification, Record, version_order
from declctl.runtime.caching.informer_pool import ManagedInformer

_SLICE = 500  # objects that are compared before the loop may do something else

Told = tuple[Notification, ...]


class Move:
    """What a handler hears that leaves some caches for others: true differences only.

    From `begin` to `close` it listens to all of them, and compares each object of which they tell.
    Used on the machinery loop; several handlers may share one.
    """

    def __init__(self, before: Iterable[ManagedInformer], after: Iterable[ManagedInformer]) -> None:
        self.before = tuple(before)
        self.after = tuple(after)
        self._told: dict[str, Told] = {}  # of objects that differ
        self._registrations: list[Registration] = []

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

    def held(self, key: str) -> tuple[Record | None, Record | None]:
        """An object as the old caches have it, and as the new ones do."""
        return _held(self.before, key), _held(self.after, key)

    def tell(self, key: str, told: Told) -> None:
        """This, and nothing else, is told of an object."""
        if told:
            self._told[key] = told
        else:
            self._told.pop(key, None)

    @property
    def told(self) -> list[Notification]:
        """What a handler has to hear if it is moved now, that has heard of all that the old caches hold."""
        return [notification for told in self._told.values() for notification in told]


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


def _held(caches: Sequence[ManagedInformer], key: str) -> Record | None:
    for cached in caches:
        record = cached.informer.indexer.held(key)
        if record is not None:
            return record
    return None


def _version(record: Record) -> tuple[int, str]:
    return version_order(record.resource_version)
