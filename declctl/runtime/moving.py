"""A living handler's resource is watched anew: what it has to hear, and when it may be moved.

Two watches of one server are never at the same version. A handler may only be moved once its new
caches have seen all that its old ones have told it; what then differs is the difference in scope,
and what the new ones have seen since.
"""

from collections.abc import Collection, Mapping, Sequence

from declctl.objects import ChangeReason, ChangeType, LabelSelector, Notification, Record
from declctl.runtime.caches import Cached


def differences(
    gone: Sequence[Cached], come: Sequence[Cached], untold: Collection[str] = ()
) -> list[Notification]:
    """What a handler has to hear that leaves some caches for others: true differences only.

    `untold` are the objects of those that it leaves of which it has not heard yet.
    """
    before = {key: record for key, record in _records(gone).items() if key not in untold}
    return differences_between(before, _records(come))


def differences_between(before: Mapping[str, Record], after: Mapping[str, Record]) -> list[Notification]:
    """The same of objects by their keys."""
    told: list[Notification] = []
    for key, record in before.items():
        if key not in after or after[key].uid != record.uid:
            told.append(Notification(ChangeType.DELETED, record, reason=ChangeReason.OUT_OF_SCOPE))
    for key, record in after.items():
        old = before.get(key)
        if old is None or old.uid != record.uid:
            told.append(Notification(ChangeType.ADDED, record, initial=True, reason=ChangeReason.INITIAL))
        elif _version(record) > _version(old):
            told.append(Notification(ChangeType.MODIFIED, record, old, reason=ChangeReason.RELIST))
    return told


def is_behind(gone: Sequence[Cached], come: Sequence[Cached]) -> bool:
    """Whether the new caches have yet to see something that the old ones have told.

    An object that only one side has is judged where it is in the scope of both.
    """
    before, after = _records(gone), _records(come)
    for key, record in before.items():
        new = after.get(key)
        if new is None and any(_seen(c) < _version(record) for c in come if _covers(c, record)):
            return True  # it was made, and will come
        if new is not None and _version(new) < _version(record):
            return True
    return any(
        _seen(cached) >= _version(record) and _covers(cached, record) and _same_transform(cached, come)
        for key, record in after.items()
        if key not in before
        for cached in gone
    )  # it was deleted, and that will come


def _records(caches: Sequence[Cached]) -> Mapping[str, Record]:
    return {record.key: record for cached in caches for record in cached.informer.indexer.list()}


def _covers(cached: Cached, record: Record) -> bool:
    """Whether a cache is sure to hold this object, if it is there; a field selector is not judged."""
    watch = cached.identity.watch
    if watch.field_selector or watch.namespace not in (None, record.object_key.namespace):
        return False
    return not watch.label_selector or LabelSelector.parse(watch.label_selector).matches(record.labels)


def _same_transform(cached: Cached, others: Sequence[Cached]) -> bool:
    """Whether what one of them drops the others drop too."""
    return all(other.identity.transform == cached.identity.transform for other in others)


def _seen(cached: Cached) -> int:
    return _number(cached.informer.indexer.last_store_sync_resource_version)


def _version(record: Record) -> int:
    return _number(record.resource_version)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
