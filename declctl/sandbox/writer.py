"""The rules of writing: how create, replace, patch and apply change an object before it is stored.

They are optimistic concurrency, generated names, generations, a status that has a path of its own, ownership
of fields, and definitions that take effect. Synchronous: when a method returns, the write is in the history.

The server fills in the defaults without which kubectl, merge keys or /scale would stumble. A real API server
fills in far more (pull policies, probes, tolerations); a controller must not count on what it finds here.
"""

import copy
import random
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from declctl.kit import Clock
from declctl.objects import KubeObject
from declctl.sandbox import apply, kinds, patches, status, validation
from declctl.sandbox.history import EtcdHistory, Stored
from declctl.sandbox.kinds import Registry, ServedKind
from declctl.sandbox.patches import Patch
from declctl.sandbox.remover import Remover, Target, Write
from declctl.sandbox.status import StatusCause


def apply_defaults(kind: ServedKind, obj: KubeObject) -> None:
    """Fill in what is missing, in place."""
    fill = None if kind.custom else _FILLERS.get(kind.kind)
    if fill is not None and isinstance(obj.get("spec", {}), dict):
        fill(obj)


def _pod_spec(spec: Any) -> None:
    if not isinstance(spec, dict):
        return
    spec.setdefault("restartPolicy", "Always")
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        _ports(container)


def _ports(owner: Any) -> None:
    # The protocol is one of the merge keys: without it a patch would not find its port.
    ports = owner.get("ports") if isinstance(owner, dict) else None
    for port in ports if isinstance(ports, list) else ():
        if isinstance(port, dict):
            port.setdefault("protocol", "TCP")


def _pod(obj: KubeObject) -> None:
    _pod_spec(obj.get("spec"))
    _pending(obj)


def _pending(obj: KubeObject) -> None:
    obj.setdefault("status", {}).setdefault("phase", "Pending")


def _replicated(obj: KubeObject) -> None:
    obj.setdefault("spec", {}).setdefault("replicas", 1)
    _template(obj)


def _template(obj: KubeObject) -> None:
    template = (obj.get("spec") or {}).get("template")
    if isinstance(template, dict):
        _pod_spec(template.get("spec"))
    obj.setdefault("status", {})


def _service(obj: KubeObject) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    _ports(spec)
    for port in spec.get("ports") or ():
        port.setdefault("targetPort", port.get("port"))
    obj.setdefault("status", {"loadBalancer": {}})


def _namespace(obj: KubeObject) -> None:
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
    obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    obj.setdefault("status", {}).setdefault("phase", "Active")


_FILLERS: Final[Mapping[str, Callable[[KubeObject], Any]]] = {
    "DaemonSet": _template,
    "Deployment": _replicated,
    "Job": _template,
    "Namespace": _namespace,
    "PersistentVolumeClaim": _pending,
    "Pod": _pod,
    "ReplicaSet": _replicated,
    "ReplicationController": _replicated,
    "Secret": lambda obj: obj.setdefault("type", "Opaque"),
    "Service": _service,
    "StatefulSet": _replicated,
}

_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # of generated names: no vowels, so that no words come out
_OMITTED_IF_EMPTY: Final = frozenset({"labels", "annotations", "finalizers", "ownerReferences"})
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
        obj = validation.check_shape(kind, copy.deepcopy(given))
        metadata: KubeObject = obj["metadata"]
        _settle_namespace(kind, namespace, metadata)
        # 500 and no reason: the real server has no better word for it either.
        if metadata.pop("resourceVersion", None):
            raise status.Refusal(500, "", "resourceVersion should not be set on objects to be created")
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = f"{metadata['generateName']}{''.join(self._chance.choices(_ALPHABET, k=5))}"
        validation.check(kind, obj)
        target = Target(kind, namespace, metadata["name"])
        self._check_namespace(target)
        # A client that creates an object does not decide its status; programs of the sandbox may.
        if kind.status and not write.keep_status:
            obj.pop("status", None)
        brought = str(metadata.get("uid") or "") if write.keep_uid else ""
        # What only a server sets is not taken from a client.
        for field in (*_KEPT, "selfLink"):
            metadata.pop(field, None)
        drawn = uuid.UUID(int=self._chance.getrandbits(128), version=4)
        metadata |= {"uid": brought or str(drawn), "creationTimestamp": self._now()}
        if kind.generations:
            metadata["generation"] = 1
        apply_defaults(kind, obj)
        # Last, as in the real server: an invalid object is 422 also where the name is taken.
        if self._history.get(kind.resource, target.key) is not None:
            raise status.already_exists(kind, metadata["name"])
        return self._store(kind, obj, write)

    def replace(self, target: Target, given: KubeObject, write: Write) -> KubeObject:
        """Store a new state of an object; returns the stored one. A write without a change stores nothing."""
        kind = target.kind
        obj = validation.check_shape(kind, copy.deepcopy(given))
        metadata: KubeObject = obj["metadata"]
        _settle_namespace(kind, target.namespace, metadata)
        if metadata.setdefault("name", target.name) != target.name:
            raise status.bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL "
                f"({target.name})"
            )
        stored = self.existing(target)
        _check_identity(target, stored, metadata, write)
        return self._put(target, stored.rendered(kind), obj, write)

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
        metadata: KubeObject = config["metadata"]
        metadata.setdefault("name", target.name)
        if kind.namespaced:
            metadata.setdefault("namespace", target.namespace)
        # Status and the rest have owners of their own: each is applied through its own path.
        if write.subresource == "status":
            known = ("apiVersion", "kind", "metadata", "status")
            config = {key: config[key] for key in known if key in config}
        elif kind.status:
            config.pop("status", None)
        stored = self._history.get(kind.resource, target.key)
        if stored is None and write.subresource:  # a subresource can't be created
            raise status.not_found(kind, target.name)
        if stored is None and (uid := metadata.get("uid")):
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise status.conflict(kind, target.name, why)
        live = None if stored is None else stored.rendered(kind)
        applied = apply.server_side_apply(
            live, config, kind=kind, author=self._author(write), force=patch.force
        )
        if live is None:
            return self.create(kind, target.namespace, applied, write), True
        return self.replace(target, applied, write), False

    def _put(self, target: Target, old: KubeObject, given: KubeObject, write: Write) -> KubeObject:
        kind = target.kind
        new = _combined(kind, old, given, write)
        apply_defaults(kind, new)
        validation.check(kind, new)
        # Adding finalizers to an object that is being deleted would hold it for ever.
        validation.check_finalizers(kind, old, new)
        # An apply has computed managedFields already; for all other writes they follow from the change.
        ownership = new["metadata"].get("managedFields")
        if ownership == old["metadata"].get("managedFields") or ownership in ([], [{}]):
            new = apply.track_update(old, new, kind=kind, author=self._author(write))
        # Controllers compare observedGeneration with it: metadata and status must not count.
        if kind.generations and _spec(old) != _spec(new):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        # No version and no event for a write that changes nothing: controllers would hear themselves.
        if new == old:
            return old
        # The write that takes the last finalizer away is the deletion.
        if not write.dry_run and not new["metadata"].get("finalizers") and self._remover.release(target):
            return new
        return self._store(kind, new, write)

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

    def _author(self, write: Write) -> apply.Author:
        return apply.Author(write.manager, self._now(), write.subresource)

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


def _settle_namespace(kind: ServedKind, namespace: str, metadata: KubeObject) -> None:
    if not kind.namespaced:
        metadata.pop("namespace", None)
    elif metadata.setdefault("namespace", namespace) != namespace:
        raise status.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def _check_identity(target: Target, stored: Stored, metadata: KubeObject, write: Write) -> None:
    version, uid = metadata.get("resourceVersion"), metadata.get("uid")
    if not version and target.kind.conditional and not write.keep_status:
        cause = StatusCause.invalid("metadata.resourceVersion", 0, "must be specified for an update")
        raise status.invalid(target.kind.plural, target.name, [cause], group=target.kind.group)
    if uid and uid != stored.uid:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {stored.uid}"
        raise status.conflict(target.kind, target.name, why)
    if version and version != str(stored.version):
        raise status.modified(target.kind, target.name)


def _combined(kind: ServedKind, old: KubeObject, given: KubeObject, write: Write) -> KubeObject:
    """What is written: the status alone through /status, everything but the status otherwise."""
    new: KubeObject
    if write.subresource == "status":
        new = {**old, "status": given.get("status"), "metadata": {**old["metadata"]}}
        # Only an apply brings ownership that differs.
        if given["metadata"].get("managedFields") is not None:
            new["metadata"]["managedFields"] = given["metadata"]["managedFields"]
    else:
        new = {**given, "metadata": {**given["metadata"]}}
        if "managedFields" in old["metadata"]:
            new["metadata"].setdefault("managedFields", old["metadata"]["managedFields"])
        if kind.status and not write.keep_status:
            new["status"] = old.get("status")
    before: KubeObject = old["metadata"]
    metadata: KubeObject = {
        key: value for key, value in new["metadata"].items() if value or key not in _OMITTED_IF_EMPTY
    }
    for field in (*_KEPT, "resourceVersion"):
        metadata.pop(field, None)
        if field in before:
            metadata[field] = before[field]
    new["metadata"] = metadata
    return {key: value for key, value in new.items() if value is not None}


def _spec(obj: KubeObject) -> KubeObject:
    return {
        key: value for key, value in obj.items() if key not in ("metadata", "status", "apiVersion", "kind")
    }
