"""Deletes: preconditions, finalizers, graceful pods, and the contents of namespaces and definitions.

An object that can't go yet gets a deletionTimestamp; it goes when no finalizer and no content holds it any
more. Synchronous: when a method returns, all its consequences are in the history, in order: contents first,
then the namespace or definition that held them.

`Target` names the object of a write; `Write` and `Deletion` are its options.
"""

import dataclasses
import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field

from declctl.kit import Clock
from declctl.objects import KubeObject
from declctl.sandbox import kinds, status
from declctl.sandbox.history import EtcdHistory, Stored, key_of
from declctl.sandbox.kinds import Registry, ServedKind


@dataclass(frozen=True, slots=True)
class Target:
    """Which object: its kind, namespace (empty if cluster-scoped) and name."""

    kind: ServedKind
    namespace: str
    name: str

    @property
    def key(self) -> str:
        """Its key in the collection."""
        return key_of(self.namespace if self.kind.namespaced else "", self.name)


@dataclass(frozen=True, slots=True)
class Write:
    """How to write. `dry_run` changes nothing; `manager` is the field manager.

    `direct` is for programs of the sandbox: they write the status with the rest, name no version, and what
    they create has no owners. `keep_uid` lets a create bring its uid. For unknown fields of custom objects
    `field_validation` decides: Strict refuses them, Warn adds to `warnings`, which the answer carries.
    """

    dry_run: bool = False
    manager: str = "unknown"
    subresource: str = ""
    direct: bool = False
    keep_uid: bool = False
    field_validation: str = "Warn"
    warnings: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Deletion:
    """How to delete. `grace` is in seconds, None leaves it to the object.

    Preconditions are checked if they are not empty. `orphans` leaves the dependents to themselves.
    """

    dry_run: bool = False
    grace: int | None = None
    uid: str = ""
    version: str = ""
    orphans: bool = False


_AT_ONCE = Deletion(grace=0)


class Remover:
    """Deletes objects, and keeps the registry in step with the definitions that go."""

    def __init__(self, history: EtcdHistory, registry: Registry, clock: Clock) -> None:
        self._history = history
        self._registry = registry
        self._clock = clock
        self.orphaned: set[str] = set()  # uids of what was deleted without its dependents
        # The deleted objects that finalizers or contents still hold, by group, plural and key.
        self._leaving: dict[tuple[str, str, str], Target] = {}

    def delete(self, target: Target, deletion: Deletion) -> tuple[KubeObject, bool]:
        """Delete the object or mark it; returns its last state and whether it is gone.

        Refused with 404 or 409.
        """
        stored = self._history.get(target.kind.resource, target.key)
        if stored is None:
            raise status.not_found(target.kind, target.name)
        _check(target, stored, deletion)
        obj = stored.rendered(target.kind)
        if deletion.dry_run:
            return obj, True
        if deletion.orphans:
            self.orphaned.add(stored.uid)
        if "deletionTimestamp" not in obj["metadata"] and self._leaves_slowly(target.kind, obj, deletion):
            obj = self._mark(target.kind, obj, deletion)
        self._leaving[*target.kind.resource, target.key] = target
        # Contents go at once: there is no kubelet whose grace could be waited for.
        for content in tuple(self._contents(target.kind, obj)):
            self.delete(content, _AT_ONCE)
        self.settle()
        return obj, self._history.get(target.kind.resource, target.key) is None

    def release(self, target: Target) -> bool:
        """Drop a marked object that only finalizers held; returns whether it is gone.

        As in the real server, the write that takes the last finalizer away is the deletion: no MODIFIED comes
        before it.
        """
        stored = self._history.get(target.kind.resource, target.key)
        marked = self._leaving.get((*target.kind.resource, target.key))
        if stored is None or marked is None or any(self._contents(target.kind, stored.decode())):
            return False
        del self._leaving[*target.kind.resource, target.key]
        self._drop(target)
        self.settle()
        return True

    def settle(self) -> None:
        """Drop the marked objects that nothing holds any more."""
        # An object that goes may release another one, so look again until none is ready. The loop ends: each
        # round removes at least one.
        while ready := [(key, target) for key, target in self._leaving.items() if not self._held(target)]:
            for key, target in ready:
                if self._leaving.pop(key, None) is not None:
                    self._drop(target)

    def _drop(self, target: Target) -> None:
        if self._history.get(target.kind.resource, target.key) is None:
            return
        last = self._history.drop(target.kind.resource, target.key)
        # A kind is served no more from the moment that its definition is gone.
        if kinds.is_definition(target.kind):
            resource = kinds.resource_of(last.decode())
            self._registry.remove(resource)
            self._history.forget(resource)

    def _held(self, target: Target) -> bool:
        stored = self._history.get(target.kind.resource, target.key)
        if stored is None:
            return False
        obj = stored.decode()
        return bool(obj["metadata"].get("finalizers")) or any(self._contents(target.kind, obj))

    def _leaves_slowly(self, kind: ServedKind, obj: KubeObject, deletion: Deletion) -> bool:
        spec = obj.get("spec") or {}
        # There is no kubelet: a pod on a node is marked, as its watchers expect, and gone in the next step.
        graceful = kind.resource == ("", "pods") and bool(spec.get("nodeName")) and deletion.grace != 0
        whole = kind.resource == ("", "namespaces") or kinds.is_definition(kind)
        return graceful or whole or bool(obj["metadata"].get("finalizers"))

    def _mark(self, kind: ServedKind, obj: KubeObject, deletion: Deletion) -> KubeObject:
        metadata: KubeObject = obj["metadata"]
        grace = 0
        if kind.resource == ("", "pods"):
            grace = deletion.grace
            grace = (
                grace
                if grace is not None
                else (obj.get("spec") or {}).get("terminationGracePeriodSeconds", 30)
            )
        moment = self._clock.now() + dt.timedelta(seconds=grace)
        metadata["deletionTimestamp"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata["deletionGracePeriodSeconds"] = grace
        if "generation" in metadata and not kinds.is_definition(kind):
            metadata["generation"] += 1  # its controller behaves differently from now on
        if kind.resource == ("", "namespaces"):
            del metadata["deletionGracePeriodSeconds"]
            obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
        return self._history.put(kind.resource, kinds.as_stored(kind, obj)).rendered(kind)

    def _contents(self, kind: ServedKind, obj: KubeObject) -> Iterator[Target]:
        if kind.resource == ("", "namespaces"):
            space = obj["metadata"]["name"]
            resources = {served.resource: served for served in self._registry.served() if served.namespaced}
            for resource, served in resources.items():
                for stored in self._history.collection(resource).present(0).within(space):
                    yield Target(served, space, stored.name)
        elif kinds.is_definition(kind):
            resource = kinds.resource_of(obj)
            # All versions of a kind show the same objects: one is enough.
            for served in self._registry.versions(resource)[:1]:
                for stored in self._history.collection(resource).objects.values():
                    yield Target(served, stored.namespace, stored.name)


def _check(target: Target, stored: Stored, deletion: Deletion) -> None:
    why = ""
    if deletion.uid and deletion.uid != stored.uid:
        why = (
            f"the UID in the precondition ({deletion.uid}) does not match the UID in record ({stored.uid}). "
            "The object might have been deleted and then recreated"
        )
    elif deletion.version and deletion.version != str(stored.version):
        why = (
            f"the ResourceVersion in the precondition ({deletion.version}) does not match the "
            f"ResourceVersion in record "
            f"({stored.version}). The object might have been modified"
        )
    if why:
        # Here the real server names the kind where it names the resource everywhere else.
        raise status.conflict(dataclasses.replace(target.kind, plural=target.kind.kind), target.name, why)
