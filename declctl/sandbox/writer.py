"""The rules of writing: how create, replace, patch and apply change an object before it is stored.

They are optimistic concurrency, generated names, generations, a status that has a path of its own, ownership
of fields, and definitions that take effect. Synchronous: when a method returns, the write is in the history.

An object is read (`defaults`, `schemas`), its fields get an owner (`apply`), and what the request may not
change is put back; then it is checked, and stored if it differs from what is there.
"""

import copy
import random
import uuid
from collections.abc import Callable
from typing import Final

from declctl.kit import Clock
from declctl.objects import KubeObject
from declctl.sandbox import apply, defaults, immutable, kinds, patches, schemas, status, validation
from declctl.sandbox.history import EtcdHistory, Stored
from declctl.sandbox.kinds import Registry, ServedKind
from declctl.sandbox.patches import Patch
from declctl.sandbox.remover import Remover, Target, Write
from declctl.sandbox.status import StatusCause

_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # of generated names: no vowels, so that no words come out
_OMITTED_IF_EMPTY: Final = frozenset(
    {"labels", "annotations", "finalizers", "ownerReferences", "managedFields"}
)
_KEPT: Final = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")


class Writer:
    """Creates and replaces objects, and keeps the registry in step with the definitions that are stored."""

    def __init__(
        self,
        history: EtcdHistory,
        registry: Registry,
        remover: Remover,
        *,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        self._history = history
        self._registry = registry  # changed by each definition that is stored
        self._remover = remover  # drops an object when a write takes its last finalizer
        self._clock = clock
        self._chance = chance  # draws uids and generated names

    def create(self, kind: ServedKind, namespace: str, given: KubeObject, write: Write) -> KubeObject:
        """Store a new object; returns it as stored. Refused with 400, 403, 404, 409 or 422."""
        # The caller keeps its document: this one is changed below.
        obj = _read(kind, validation.check_shape(kind, copy.deepcopy(given)), write)
        # What a program of the sandbox creates has the owners that it brings, and no others.
        if not write.direct:
            obj = apply.created(obj, kind=kind, author=self._author(kind, write))
        return self._create(kind, namespace, obj, write)

    def _create(self, kind: ServedKind, namespace: str, obj: KubeObject, write: Write) -> KubeObject:
        metadata: KubeObject = obj["metadata"]
        _settle_namespace(kind, namespace, metadata)
        # 500 and no reason: the real server has no better word for it either.
        if metadata.pop("resourceVersion", None):
            raise status.Refusal(500, "", "resourceVersion should not be set on objects to be created")
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = f"{metadata['generateName']}{''.join(self._chance.choices(_ALPHABET, k=5))}"
        # A client that creates an object does not decide its status; programs of the sandbox may.
        if kind.status and not write.direct:
            obj.pop("status", None)
        self._check(kind, obj, None, write)
        target = Target(kind, namespace, metadata["name"])
        self._check_namespace(target)
        brought = str(metadata.get("uid") or "") if write.keep_uid else ""
        # What only a server sets is not taken from a client.
        for field in (*_KEPT, "selfLink"):
            metadata.pop(field, None)
        drawn = uuid.UUID(int=self._chance.getrandbits(128), version=4)
        metadata |= {"uid": brought or str(drawn), "creationTimestamp": self._now()}
        if kind.generations:
            metadata["generation"] = 1
        if not kind.custom:
            defaults.initial_status(kind, obj)
        # Last, as in the real server: an invalid object is 422 also where the name is taken.
        present = self._history.get(kind.resource, target.key)
        if present is not None:
            leaving = "deletionTimestamp" in present.decode()["metadata"]
            raise status.already_exists(kind, metadata["name"], leaving=leaving)
        return self._store(kind, obj, write)

    def replace(self, target: Target, given: KubeObject, write: Write) -> KubeObject:
        """Store a new state of an object; returns the stored one. A write without a change stores nothing."""
        kind = target.kind
        obj = _read(kind, validation.check_shape(kind, copy.deepcopy(given)), write)
        return self._replace(target, obj, write, self._tracked)

    def _replace(self, target: Target, obj: KubeObject, write: Write, tracked: "Tracking") -> KubeObject:
        kind = target.kind
        metadata: KubeObject = obj["metadata"]
        _settle_namespace(kind, target.namespace, metadata)
        if metadata.setdefault("name", target.name) != target.name:
            raise status.bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL "
                f"({target.name})"
            )
        stored = self.existing(target)
        _check_identity(target, stored, metadata, write)
        old = stored.rendered(kind)
        return self._put(target, old, tracked(kind, old, obj, write), write)

    def modify(self, target: Target, change: Callable[[KubeObject], KubeObject], write: Write) -> KubeObject:
        """Replace the object by what `change` makes of it."""
        return self.replace(target, change(self.existing(target).rendered(target.kind)), write)

    def patch(self, target: Target, patch: Patch, write: Write) -> tuple[KubeObject, bool]:
        """The object as stored, and whether the patch created it (only server-side apply does)."""
        if patch.media_type not in patches.accepted(target.kind):
            raise status.unsupported_media_type(patches.accepted(target.kind))
        if patch.media_type == patches.APPLY_PATCH:
            return self._apply(target, patch, write)
        change = patches.MERGES[patch.media_type]
        if patch.media_type != patches.JSON_PATCH and not isinstance(patch.body, dict):
            raise status.bad_request("error decoding patch: a merge patch is a JSON object")

        def patched(live: KubeObject) -> KubeObject:
            if write.subresource != "scale":
                return change(live, patch.body)
            # The patch is of the Scale, which is made for it and read back.
            return patches.scaled(target.kind, live, change(patches.scale_of(target.kind, live), patch.body))

        return self.modify(target, patched, write), False

    def existing(self, target: Target) -> Stored:
        """The present state; refused with 404."""
        stored = self._history.get(target.kind.resource, target.key)
        if stored is None:
            raise status.not_found(target.kind, target.name)
        return stored

    def _apply(self, target: Target, patch: Patch, write: Write) -> tuple[KubeObject, bool]:
        kind = target.kind
        if write.manager == "":
            cause = StatusCause.required("fieldManager", "is required for apply patch")
            raise status.invalid_options("PatchOptions", [cause])
        config = validation.check_shape(kind, copy.deepcopy(patch.body))
        stored = self._history.get(kind.resource, target.key)
        if stored is None and write.subresource:  # a subresource can't be created
            raise status.not_found(kind, target.name)
        live = None if stored is None else stored.rendered(kind)
        author = self._author(kind, write)
        applied = apply.applied(live, config, kind=kind, author=author, force=patch.force)
        if live is None and (uid := applied["metadata"].get("uid")):
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise status.conflict(kind, target.name, why)
        applied["metadata"].setdefault("name", target.name)
        # A schema has been followed already: what it does not know can't be applied.
        applied = _filled(kind, applied)
        if live is None:
            # An apply that names a version creates the object all the same: only a create refuses it.
            applied["metadata"].pop("resourceVersion", None)
            return self._create(kind, target.namespace, applied, write), True
        return self._replace(target, applied, write, lambda _, __, new, ___: new), False

    def _tracked(self, kind: ServedKind, old: KubeObject, new: KubeObject, write: Write) -> KubeObject:
        """The new state with its owners."""
        author = self._author(kind, write)
        if write.subresource != "scale" or kind.scale is None:
            return apply.updated(old, new, kind=kind, author=author)
        path = tuple(f"f:{step}" for step in kind.scale.spec.split("."))
        return apply.scaled(old, new, path, kind=kind, author=author)

    def _put(self, target: Target, old: KubeObject, given: KubeObject, write: Write) -> KubeObject:
        kind = target.kind
        new = apply.keep_times(old, _combined(kind, old, given, write))
        self._check(kind, new, old, write)
        # Controllers compare observedGeneration with it: metadata and status must not count.
        counts = kind.generations and write.subresource != "status"
        if counts and _wanted(kind, old) != _wanted(kind, new):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        # No version and no event for a write that changes nothing: controllers would hear themselves.
        if new == old:
            return old
        # The write that takes the last finalizer away is the deletion.
        if not write.dry_run and not new["metadata"].get("finalizers") and self._remover.release(target):
            return new
        return self._store(kind, new, write)

    def _check(self, kind: ServedKind, new: KubeObject, old: KubeObject | None, write: Write) -> None:
        causes = [] if old is None else validation.new_finalizers(old, new)
        if kind.custom:
            causes += schemas.faults(kind, new, old, write.subresource, write.warnings)
        elif old is not None and not write.direct:
            causes += immutable.changed_fields(kind, old, new)
        validation.check(kind, new, causes)
        if kind.custom:
            schemas.write_numbers(new)
        if kind.custom and write.subresource != "status":
            write.warnings.extend(schemas.finalizer_warnings(new, old))

    def _store(self, kind: ServedKind, obj: KubeObject, write: Write) -> KubeObject:
        if kinds.is_definition(kind):
            validation.check_definition(obj)
            obj = kinds.established(obj, self._now())
        if write.dry_run:
            return obj
        stored = self._history.put(kind.resource, kinds.as_stored(kind, obj))
        if kinds.is_definition(kind):
            self._registry.replace(kinds.resource_of(obj), kinds.kinds_of(obj))
        return stored.rendered(kind)

    def _author(self, kind: ServedKind, write: Write) -> apply.Author:
        # Programs of the sandbox write the status with the rest.
        resets = () if write.direct else apply.resets(kind, write.subresource)
        return apply.Author(write.manager, self._now(), write.subresource, resets)

    def _now(self) -> str:
        return self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")  # as objects write a time

    def _check_namespace(self, target: Target) -> None:
        if not target.kind.namespaced:
            return
        space = self._history.get(("", "namespaces"), target.namespace)
        if space is None:
            spaces = self._registry.at("", "v1", "namespaces") or target.kind
            raise status.not_found(spaces, target.namespace)
        if "deletionTimestamp" in space.decode()["metadata"]:
            where = f"namespace {target.namespace}"
            cause = StatusCause("NamespaceTerminating", f"{where} is being terminated", "metadata.namespace")
            why = f"unable to create new content in {where} because it is being terminated"
            raise status.forbidden(target.kind, target.name, why, [cause])


Tracking = Callable[[ServedKind, KubeObject, KubeObject, Write], KubeObject]


def _read(kind: ServedKind, obj: KubeObject, write: Write) -> KubeObject:
    """An object of a request as the server takes it."""
    if not kind.custom:
        return defaults.normalise(kind, obj)
    if kind.schema is not None:
        unknown = [f'unknown field "{path}"' for path in schemas.read(kind.schema, obj)]
        if unknown and write.field_validation == "Strict":
            raise status.bad_request(
                f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
                f"strict decoding error: {', '.join(unknown)}"
            )
        if write.field_validation == "Warn":
            write.warnings.extend(unknown)
    return _filled(kind, obj)


def _filled(kind: ServedKind, obj: KubeObject) -> KubeObject:
    """An object with its defaults, and with metadata as the server writes them."""
    if not kind.custom:
        return defaults.normalise(kind, obj)
    obj["metadata"] = defaults.normalise_metadata(obj["metadata"])
    schemas.fill(kind.schema, obj)
    return obj


def _settle_namespace(kind: ServedKind, namespace: str, metadata: KubeObject) -> None:
    if not kind.namespaced:
        metadata.pop("namespace", None)
    elif metadata.setdefault("namespace", namespace) != namespace:
        raise status.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def _check_identity(target: Target, stored: Stored, metadata: KubeObject, write: Write) -> None:
    version, uid = metadata.get("resourceVersion"), metadata.get("uid")
    if not version and target.kind.conditional and not write.direct:
        cause = StatusCause.invalid("metadata.resourceVersion", 0, "must be specified for an update")
        raise status.invalid(target.kind.plural, target.name, [cause], group=target.kind.group)
    if uid and uid != stored.uid:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {stored.uid}"
        raise status.conflict(target.kind, target.name, why)
    if version and version != str(stored.version):
        raise status.modified(target.kind, target.name)


def _combined(kind: ServedKind, old: KubeObject, given: KubeObject, write: Write) -> KubeObject:
    """What is written: the status alone through /status, everything but the status otherwise."""
    new = {**given, "metadata": {**given["metadata"]}}
    if write.subresource == "status" and kind.custom:
        kept = {"metadata": {**old["metadata"], "managedFields": new["metadata"].get("managedFields")}}
        new = {**{key: value for key, value in old.items() if key != "status"}, **kept}
        if "status" in given:
            new["status"] = given["status"]
    elif not write.direct:
        for path in apply.resets(kind, write.subresource):
            _put_back(new, old, [step.removeprefix("f:") for step in path])
    metadata = {key: value for key, value in new["metadata"].items() if value or key not in _OMITTED_IF_EMPTY}
    for field in (*_KEPT, "resourceVersion"):
        metadata.pop(field, None)
        if field in old["metadata"]:
            metadata[field] = old["metadata"][field]
    return {**new, "metadata": metadata}


def _put_back(new: KubeObject, old: KubeObject, path: list[str]) -> None:
    """Give a field the value that it had, in place."""
    *holders, name = path
    for holder in holders:
        new, old = new[holder], old[holder]
    new.pop(name, None)
    if name in old:
        new[name] = old[name]


def _wanted(kind: ServedKind, obj: KubeObject) -> KubeObject:
    """What a controller follows: each change counts metadata.generation up."""
    ignored = {"metadata", "apiVersion", "kind"} | ({"status"} if kind.status else set())
    wanted = {key: value for key, value in obj.items() if key not in ignored}
    # As in the real server: the revisions of a Deployment are in its annotations.
    return wanted | ({"annotations": obj["metadata"].get("annotations")} if kind.kind == "Deployment" else {})
