"""Versioned objects: the present ones, the past ones, and the order of changes.

Synchronous; knows neither HTTP nor rules.

Objects are kept as JSON bytes without `apiVersion` and `kind`, because these depend on the version in the
request; bytes are shared by lists, watchers and history. A collection remembers a bounded number
of changes; older ones are compacted.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from declctl.objects import KubeObject
from declctl.sandbox import status
from declctl.sandbox.kinds import ResourceId, ServedKind, as_served

EventType = Literal["ADDED", "MODIFIED", "DELETED"]
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Stored:
    """One state of one object.

    `data` is its JSON without apiVersion and kind; `version` its resource version.
    """

    key: str
    namespace: str
    name: str
    uid: str
    version: int
    labels: Mapping[str, str]
    data: bytes

    @classmethod
    def of(cls, obj: KubeObject, version: int) -> "Stored":
        """Encode `obj` as of `version`; `obj` itself is not changed."""
        # Encoded once, with its version: lists, watches and history share these bytes.
        metadata: KubeObject = {**obj["metadata"], "resourceVersion": str(version)}
        body = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")}
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        return cls(
            key=key_of(namespace, name),
            namespace=namespace,
            name=name,
            uid=metadata.get("uid", ""),
            version=version,
            labels=metadata.get("labels") or {},
            data=_ENCODER.encode({"metadata": metadata, **body}),
        )

    def decode(self) -> KubeObject:
        """A fresh copy, without apiVersion and kind."""
        obj: KubeObject = msgspec.json.decode(self.data)
        return obj

    def rendered(self, kind: ServedKind) -> KubeObject:
        """A fresh copy in the version of `kind`."""
        return {"kind": kind.kind, "apiVersion": kind.api_version, **as_served(kind, self.decode())}

    def encoded(self, kind: ServedKind) -> bytes:
        """The JSON in the version of `kind`."""
        if kind.is_new_event:
            return _ENCODER.encode(self.rendered(kind))
        return head(kind) + self.data[1:]

    def as_of(self, version: int) -> "Stored":
        """The same content under another resource version."""
        return Stored.of(self.decode(), version)


@dataclass(frozen=True, slots=True, eq=False)
class StoreEvent:
    """One step of history. For DELETED, `new` is the last state under the version of the deletion."""

    type: EventType
    version: int
    new: Stored
    old: Stored | None


def key_of(namespace: str, name: str) -> str:
    """The key in a collection; sorted keys are in the order of etcd, which is the order of lists."""
    return f"{namespace}/{name}" if namespace else name


def head(kind: ServedKind) -> bytes:
    """How the JSON of an object of `kind` begins."""
    return f'{{"kind":"{kind.kind}","apiVersion":"{kind.api_version}",'.encode()


class Snapshot:
    """The objects of one collection as they were at one version."""

    def __init__(self, version: int, keys: Sequence[str], objects: Mapping[str, Stored]) -> None:
        self.version = version
        self._keys = keys  # those of `objects`, sorted
        self._objects = objects

    def __iter__(self) -> Iterator[Stored]:
        return self.within("")

    def within(self, namespace: str, after: str = "") -> Iterator[Stored]:
        """Those of `namespace` (all if empty) with keys greater than `after`, in the order of keys."""
        prefix = f"{namespace}/" if namespace else ""
        start = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
        for at in range(start, len(self._keys)):
            key = self._keys[at]
            if not key.startswith(prefix):
                return
            yield self._objects[key]


class Collection:
    """The objects of one resource, and the changes that it remembers (at most `limit`)."""

    def __init__(self, limit: int, floor: int) -> None:
        self.objects: dict[str, Stored] = {}  # the present, by key
        self.floor = floor  # changes up to this version are forgotten
        self._log: list[StoreEvent] = []  # the changes after `floor`, oldest first
        self._limit = limit  # of changes
        self._sorted: list[str] | None = []  # the keys in order; None until a list asks for them again
        self._past: Snapshot | None = (
            None  # the one that `at` made last: the pages of a list ask for the same
        )

    def apply(self, change: StoreEvent) -> None:
        """Make it the present."""
        key = change.new.key
        if change.type == "DELETED":
            del self.objects[key]
        else:
            self.objects[key] = change.new
        # The set of keys is as it was after a modification, and so is its order.
        if change.type != "MODIFIED":
            self._sorted = None
        self._log.append(change)
        if len(self._log) > self._limit:
            # Half at a time, so that a full log does not cost a copy for each change.
            self.compact(self._log[len(self._log) // 2].version)

    def copy(self) -> "Collection":
        """Another one with the same objects and changes."""
        other = Collection(self._limit, self.floor)
        other.objects, other._log, other._sorted = dict(self.objects), list(self._log), None
        return other

    def compact(self, version: int) -> None:
        """Forget the changes up to and including `version`."""
        self.floor = max(self.floor, version)
        self._log = [change for change in self._log if change.version > version]
        self._past = None

    def since(self, version: int) -> list[StoreEvent]:
        """The changes after `version`, oldest first; refused with 410 if some of them are forgotten."""
        if version < self.floor:
            raise status.too_old(version, self.floor)
        return self._log[bisect_right(self._log, version, key=lambda change: change.version) :]

    def present(self, version: int) -> Snapshot:
        """The objects now; `version` is the newest version of the whole server.

        Valid until the next change.
        """
        if self._sorted is None:
            self._sorted = sorted(self.objects)
        return Snapshot(version, self._sorted, self.objects)

    def at(self, version: int) -> Snapshot:
        """The objects as they were at `version`; refused with 410 if that was compacted."""
        newer = self.since(version)
        if not newer:
            return self.present(version)
        if self._past is None or self._past.version != version:
            objects = dict(self.objects)
            # Undo what came later, the newest first.
            for change in reversed(newer):
                if change.old is None:
                    objects.pop(change.new.key, None)
                else:
                    objects[change.new.key] = change.old
            self._past = Snapshot(version, sorted(objects), objects)
        return self._past


@dataclass(frozen=True, slots=True)
class Backup:
    """What a history was at one moment: to be put back."""

    version: int
    floor: int
    collections: Mapping[ResourceId, Collection]


class EtcdHistory:
    """Every collection under one counter of versions, as in etcd.

    Subscribers are called with every change, after it is made.
    """

    def __init__(self, *, remembered: int = 20_000) -> None:
        self.version = 1  # the newest that was given
        self._floor = 0  # the version of the last `compact`; collections that come later begin there
        self._remembered = remembered  # changes for each collection
        self._collections: dict[ResourceId, Collection] = {}
        self._subscribers: list[Callable[[ResourceId, StoreEvent], None]] = []

    def collection(self, resource: ResourceId) -> Collection:
        """The collection of a resource; made when it is first asked for."""
        if resource not in self._collections:
            self._collections[resource] = Collection(self._remembered, self._floor)
        return self._collections[resource]

    def get(self, resource: ResourceId, key: str) -> Stored | None:
        """The present state of an object."""
        return self.collection(resource).objects.get(key)

    def put(self, resource: ResourceId, obj: KubeObject) -> Stored:
        """Store a new state under the next version."""
        metadata = obj["metadata"]
        old = self.get(resource, key_of(metadata.get("namespace", ""), metadata["name"]))
        new = Stored.of(obj, self.version + 1)
        self._commit(resource, StoreEvent("MODIFIED" if old else "ADDED", new.version, new, old))
        return new

    def drop(self, resource: ResourceId, key: str) -> Stored:
        """Delete an object that exists; returns its last state under the version of the deletion."""
        old = self.collection(resource).objects[key]
        new = old.as_of(self.version + 1)
        self._commit(resource, StoreEvent("DELETED", new.version, new, old))
        return new

    def compact(self) -> int:
        """Forget every change: each version but the present one is too old from now on.

        Returns the present version.
        """
        self._floor = self.version
        for collection in self._collections.values():
            collection.compact(self.version)
        return self.version

    def forget(self, resource: ResourceId) -> None:
        """Drop an empty collection with its history.

        A later one under the same name remembers nothing of it.
        """
        self._collections[resource] = Collection(self._remembered, self.version)

    def save(self) -> Backup:
        """What there is now, as a snapshot of etcd has it."""
        copies = {resource: found.copy() for resource, found in self._collections.items()}
        return Backup(self.version, self._floor, copies)

    def restore(self, backup: Backup) -> None:
        """Go back to what there was: versions that were given since then are given again, to other changes.

        Subscribers are not notified.
        """
        self.version, self._floor = backup.version, backup.floor
        self._collections = {resource: kept.copy() for resource, kept in backup.collections.items()}

    def subscribe(self, call: Callable[[ResourceId, StoreEvent], None]) -> None:
        """Call `call` with every change from now on."""
        self._subscribers.append(call)

    def _commit(self, resource: ResourceId, change: StoreEvent) -> None:
        self.version = change.version
        self.collection(resource).apply(change)
        for call in self._subscribers:
            call(resource, change)
