"""Garbage collection by owner references, as kube-controller-manager does it.

An object whose owners are all gone is deleted in the background, also if they never were. Owners are found
by kind, name and uid, a namespaced one in the namespace of its dependent. An object that has lost some of its
owners keeps the others. A delete with `propagationPolicy: Orphan` takes the references away instead;
`Foreground` is treated as `Background`.

Synchronous. `changed` notes what may be garbage, and `collect` looks at it: some time after the change, as in
a cluster. So a dependent may be created before its owner, if both come in one step.
"""

from collections import defaultdict

import msgspec

from declctl.objects import KubeObject
from declctl.sandbox.history import EtcdHistory, Stored, StoreEvent, key_of
from declctl.sandbox.kinds import Registry, ResourceId, ServedKind
from declctl.sandbox.remover import Deletion, Remover, Target, Write
from declctl.sandbox.writer import Writer

_ObjectId = tuple[ResourceId, str]  # resource and key
_COLLECTOR = Write(manager="kube-controller-manager")


class _Reference(msgspec.Struct):
    uid: str = ""
    kind: str = ""
    name: str = ""
    apiVersion: str = ""  # noqa: N815 - as in the object


class _OwnedMetadata(msgspec.Struct):
    ownerReferences: list[_Reference] | None = None  # noqa: N815 - as in the object


class _Owned(msgspec.Struct):
    metadata: _OwnedMetadata


_OWNED = msgspec.json.Decoder(_Owned)


class GarbageCollector:
    """Deletes the dependents of owners that are gone, as soon as `collect` is called."""

    def __init__(self, history: EtcdHistory, registry: Registry, remover: Remover, writer: Writer) -> None:
        self._history = history
        self._registry = registry
        self._remover = remover
        self._writer = writer
        # The objects that name an owner, by its uid; insertion orders decide what goes first.
        self._dependents: defaultdict[str, dict[_ObjectId, None]] = defaultdict(dict)
        self._waiting: dict[_ObjectId, None] = {}  # that `collect` has to look at

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to look at."""
        return not self._waiting

    def changed(self, resource: ResourceId, change: StoreEvent) -> None:
        """Note a change: a new dependent, or a lost owner."""
        now = () if change.type == "DELETED" else _owners(change.new)
        self._index((resource, change.new.key), () if change.old is None else _owners(change.old), now)
        if change.type == "DELETED":
            self._waiting.update(self._dependents.get(change.new.uid, {}))

    def restart(self) -> None:
        """Look at all objects: the history was put back to a backup."""
        self._dependents.clear()
        self._waiting.clear()
        for resource in {kind.resource for kind in self._registry.served()}:
            for stored in self._history.collection(resource).objects.values():
                self._index((resource, stored.key), (), _owners(stored))

    def collect(self) -> None:
        """Delete what has lost its owners, and what this leaves without owners, until nothing is left."""
        while self._waiting:
            found = next(iter(self._waiting))
            del self._waiting[found]
            self._look_at(*found)

    def _index(self, dependent: _ObjectId, before: tuple[str, ...], now: tuple[str, ...]) -> None:
        for uid in before:
            if uid not in now:
                self._dependents[uid].pop(dependent, None)
                if not self._dependents[uid]:
                    del self._dependents[uid]
        for uid in now:
            self._dependents[uid][dependent] = None
        if now and now != before:
            self._waiting[dependent] = None

    def _look_at(self, resource: ResourceId, key: str) -> None:
        stored, kinds = self._history.get(resource, key), self._registry.versions(resource)
        if stored is None or not kinds:
            return
        target = Target(kinds[0], stored.namespace, stored.name)
        obj = stored.rendered(target.kind)
        if "deletionTimestamp" in obj["metadata"]:
            return
        references: list[KubeObject] = obj["metadata"].get("ownerReferences") or []
        kept = [each for each in references if not self._is_gone(each, target)]
        # Of an owner that was deleted as an orphan's, only the reference goes.
        is_orphan = any(each.get("uid") in self._remover.orphaned for each in references)
        if len(kept) == len(references):
            return
        if kept or is_orphan:
            metadata = {**obj["metadata"], "ownerReferences": kept}
            self._writer.replace(target, {**obj, "metadata": metadata}, _COLLECTOR)
        else:
            self._remover.delete(target, Deletion())

    def _is_gone(self, reference: KubeObject, dependent: Target) -> bool:
        """Whether an owner is gone for sure: an unknown kind, or a namespaced one that can't be, may come."""
        kind = self._registry.of(reference)
        if kind is None or (kind.namespaced and not dependent.kind.namespaced):
            return False
        owner = self._owner(kind, str(reference.get("name")), dependent.namespace)
        return owner is None or owner.uid != reference.get("uid")

    def _owner(self, kind: ServedKind, name: str, namespace: str) -> Stored | None:
        return self._history.get(kind.resource, key_of(namespace if kind.namespaced else "", name))


def _owners(stored: Stored) -> tuple[str, ...]:
    """The uids of the owners of an object."""
    if b'"ownerReferences"' not in stored.data:
        return ()
    return tuple(each.uid for each in _OWNED.decode(stored.data).metadata.ownerReferences or ())
