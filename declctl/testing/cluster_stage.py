"""ControllerTest documents on the API server of a cluster, each in namespaces of its own.

One with a name of its own stands for `default`. Others that the document or the manifest names are made under
their names, and must not be there before. The controller under test watches these alone. Afterwards they are
removed with all that is in them.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast
from uuid import uuid4

from declctl.errors import ApiError, Conflict, NotFound, UsageError
from declctl.manifest.controller_test import DEFAULT_NAMESPACE, LoadedTest, defined_kinds
from declctl.manifest.values import Json, value_at
from declctl.objects import GroupVersionKind, KubeObject, Resource
from declctl.testing.blocking_client import DEFINITION, LOOK_SECONDS, BlockingClient, ClusterChoice
from declctl.testing.stages import FIELD_MANAGER, TestingStage

if TYPE_CHECKING:  # late: it has the whole runtime
    from declctl.testing.controller import HostedController

T = TypeVar("T")
_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
_NAMESPACES: Final = GroupVersionKind("", "v1", "Namespace")
_ANY: Final = GroupVersionKind("", "v1", "ConfigMap")  # what each server has, with the revision of its etcd
_MERGE: Final = "application/merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml"
# Children go in the background; no kubelet may be there that ends a Pod after its grace period.
_AT_ONCE: Final[KubeObject] = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
_NAMESPACE_SECONDS: Final = 60.0  # for which a namespace of another test is waited for
_QUIET_SECONDS: Final = 0.3  # without a call or a write, after which the controller counts as at rest
_MOST_QUIET_SECONDS: Final = 5.0  # for which a controller that is never at rest is waited for
# Groups of kinds whose status controllers of a cluster write.
_WORKLOADS: Final = frozenset({"", "apps", "batch", "policy", "autoscaling"})


class ClusterStage(TestingStage):
    """Namespaces of a cluster. Time is that of this machine, and `advance` moves the controller's clock."""

    def __init__(self, test: LoadedTest, cluster: ClusterChoice) -> None:
        super().__init__(test)
        self._cluster = cluster
        self._namespaces = [f"declctl-test-{uuid4().hex[:8]}", *self._named_namespaces()]
        self._access = BlockingClient(cluster)
        self._made: list[tuple[Resource, str]] = []  # namespaces, and objects outside of them
        self._touched: set[GroupVersionKind] = set()  # kinds of which there may be objects
        # By field and value: a namespace and uids of the document as the server has them, and back.
        self._as_served = {("namespace", DEFAULT_NAMESPACE): self._namespaces[0]}
        self._as_written = {("namespace", self._namespaces[0]): DEFAULT_NAMESPACE}
        self._until = 0.0  # monotonic seconds, until which the present step is waited for

    def prepare(self) -> str:
        """Make the namespaces; returns why the document can't be played here, empty if it can.

        Raises ApiError.
        """
        refusal = self._refusal()
        made = map(self._make_namespace, [] if refusal else self._namespaces)
        return refusal or next(filter(None, made), "")

    def _refusal(self) -> str:
        if any(step.fault is not None for step in self._test.spec.steps):
            return "faults need the API server in memory"
        if any(each.namespace_selector for each in self.bundle.controller.resources):
            return "its controller chooses namespaces by their labels, and would act on others"
        if DEFAULT_NAMESPACE in self._changed_namespaces():
            return f"it changes the namespace {DEFAULT_NAMESPACE} itself, for which another one stands here"
        for each in self._watched():
            if not self._is_served_in_namespaces(each):
                return f"its controller watches {each.kind}, which is in no namespace, and would act on all"
        foreign = [each.kind for each in self._written_status() if each.group in _WORKLOADS]
        if foreign and self._has_controllers():
            return f"it writes the status of a {foreign[0]}, which controllers of this cluster write, too"
        return ""

    def _make_namespace(self, name: str) -> str:
        """Create a namespace of the test. One of another test is waited for; returns why it can't be made."""
        labels = {_MANAGED_BY: FIELD_MANAGER}
        body: KubeObject = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": labels},
        }
        resource, until = self._access.resource(_NAMESPACES), time.monotonic() + _NAMESPACE_SECONDS
        while True:
            try:
                self._access.request("POST", resource.path(), body)
            except Conflict:
                if not self._is_of_tests(resource.path(None, name)) or time.monotonic() > until:
                    return f"the cluster has the namespace {name} already, and the test would change it"
                time.sleep(LOOK_SECONDS)
            else:
                self._made.append((resource, name))
                return ""

    def _is_of_tests(self, path: str) -> bool:
        try:
            found = self._access.request("GET", path)
        except NotFound:
            return True
        return value_at(found, "metadata", "labels", _MANAGED_BY) == FIELD_MANAGER

    def make_controller(self, manifest: Path) -> "HostedController":
        """A controller that watches the namespaces of the test."""
        from declctl.testing.cluster_controller import ControllerOnCluster

        return ControllerOnCluster(manifest, self._cluster, self._namespaces)

    def load(self, objects: Sequence[KubeObject]) -> None:
        """Create definitions that are missing, then the other objects with their status."""
        for each in sorted(objects, key=lambda one: one.get("kind") != DEFINITION):
            if each.get("kind") == DEFINITION:
                self._access.define(each)
                continue
            resource = self._access.resource(_kind_of(each))
            if resource.gvk == _NAMESPACES:  # it was made, without its labels
                self.apply(each)
                continue
            body = self._served(resource, each)
            made = self._access.request("POST", resource.path(_namespace_of(body)), body=body)
            self._note(resource, each, made)
            self._write_status(resource, body, _MERGE, {})

    def apply(self, obj: KubeObject) -> None:
        """Apply an object, and a status that it has."""
        resource = self._access.resource(_kind_of(obj))
        body = self._served(resource, obj)
        path = resource.path(_namespace_of(body), str(value_at(body, "metadata", "name")))
        params = {"fieldManager": FIELD_MANAGER, "force": "true"}
        self._note(resource, obj, self._access.request("PATCH", path, body, _APPLY, params))
        self._write_status(resource, body, _APPLY, params)

    def patch(self, kind: GroupVersionKind, namespace: str, name: str, patch: dict[str, Json]) -> None:
        """Merge a patch into an object, and a part `status` of it into its status."""
        resource, here = self._access.resource(kind), self._namespace(namespace)
        patch = _renamed(patch, self._as_served)
        status = {"status": patch["status"]} if "status" in patch and _has_status(resource) else {}
        rest = {key: value for key, value in patch.items() if key not in status}
        if rest or not status:
            self._access.request("PATCH", resource.path(here, name), rest, _MERGE)
        if status:
            self._access.request("PATCH", resource.path(here, name, "status"), status, _MERGE)

    def delete(self, kind: GroupVersionKind, namespace: str, name: str) -> None:
        """Delete an object at once; its children go in the background."""
        path = self._access.resource(kind).path(self._namespace(namespace), name)
        self._access.request("DELETE", path, _AT_ONCE)

    def objects(self, kind: GroupVersionKind) -> Sequence[KubeObject]:
        """The objects of the namespaces, or all of a kind without namespaces."""
        resource = self._access.resource(kind)
        paths = {resource.path(namespace) for namespace in self._namespaces}
        lists = [self._access.request("GET", path).get("items") or () for path in sorted(paths)]
        return [_renamed(each, self._as_written) for found in lists for each in found]

    def version(self) -> int:
        """The revision of etcd, which a list has."""
        answer = self._access.request("GET", self._access.resource(_ANY).path(self._namespaces[0]))
        return int(answer["metadata"]["resourceVersion"])

    def is_namespaced(self, kind: GroupVersionKind) -> bool:
        """Whether objects of a kind are in namespaces."""
        return self._access.resource(kind).namespaced

    def fault(self, order: dict[str, Json]) -> None:
        """Never asked for: `refusal` says so before."""
        raise UsageError(f"a cluster has no fault {order.get('fault')}")

    def rest(self) -> None:
        """Return when nothing was called or written for a moment."""
        self._until = time.monotonic() + self._cluster.timeout
        self._settle()

    def _settle(self) -> None:
        latest = time.monotonic() + _MOST_QUIET_SECONDS
        before, since = self._figures(), time.monotonic()
        while time.monotonic() < min(since + _QUIET_SECONDS, latest):
            self.controller.rest()
            time.sleep(LOOK_SECONDS)
            if (now := self._figures()) != before:
                before, since = now, time.monotonic()

    def wait(self) -> bool:
        """Wait until something may be another; False after the timeout of the step."""
        if time.monotonic() >= self._until:
            return False
        self._settle()
        return True

    def __enter__(self) -> Self:
        self._access.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            try:
                self._remove_all()
            finally:
                self._access.__exit__(kind, error, trace)

    # -- objects

    def _write_status(
        self, resource: Resource, body: KubeObject, media_type: str, params: dict[str, str]
    ) -> None:
        if "status" not in body or not _has_status(resource):
            return
        name = str(value_at(body, "metadata", "name"))
        status = {name: body[name] for name in ("apiVersion", "kind", "status")}
        path = resource.path(_namespace_of(body), name, "status")
        self._access.request("PATCH", path, {**status, "metadata": {"name": name}}, media_type, params)

    def _served(self, resource: Resource, obj: KubeObject) -> KubeObject:
        """An object of the document as the server is to have it."""
        metadata = dict(obj.get("metadata") or {})
        for name in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
            metadata.pop(name, None)
        if resource.namespaced:
            metadata.setdefault("namespace", DEFAULT_NAMESPACE)
        return _renamed({**obj, "metadata": metadata}, self._as_served)

    def _namespace(self, written: str) -> str:
        return self._as_served.get(("namespace", written), written)

    def _note(self, resource: Resource, obj: KubeObject, made: KubeObject) -> None:
        self._touched.add(resource.gvk)
        if written := value_at(obj, "metadata", "uid"):
            uid = str(value_at(made, "metadata", "uid"))
            self._as_served["uid", str(written)], self._as_written["uid", uid] = uid, str(written)
        if not resource.namespaced:
            self._made.append((resource, str(value_at(made, "metadata", "name"))))

    def _remove_all(self) -> None:
        """Remove what was made, the newest first: objects, and the namespaces."""
        namespaces = [name for resource, name in self._made if resource.gvk == _NAMESPACES]
        if not namespaces:
            return
        for kind in {*self._touched, *self._watched(), *self._applied()}:
            with suppress(ApiError):
                resource = self._access.resource(kind)
                for namespace in namespaces if resource.namespaced else ():
                    self._remove_objects(resource, namespace)
        for resource, name in reversed(self._made):
            with suppress(NotFound):
                self._access.request("DELETE", resource.path(None, name))
        if not self._has_controllers():
            for namespace in namespaces:
                with suppress(NotFound):
                    self._finish_namespace(namespace)

    def _remove_objects(self, resource: Resource, namespace: str) -> None:
        for each in self._access.request("GET", resource.path(namespace)).get("items") or ():
            path = resource.path(namespace, str(value_at(each, "metadata", "name")))
            with suppress(NotFound):
                if value_at(each, "metadata", "finalizers"):
                    # The controller has ended: nothing else would remove them.
                    there: KubeObject = {"metadata": {"finalizers": None}}
                    self._access.request("PATCH", path, there, _MERGE)
                self._access.request("DELETE", path, _AT_ONCE)

    def _finish_namespace(self, name: str) -> None:
        """Where no controller of the cluster does it, as on an API server alone."""
        path = f"/api/v1/namespaces/{name}"
        namespace = self._access.request("GET", path)
        self._access.request("PUT", f"{path}/finalize", {**namespace, "spec": {"finalizers": []}})

    # -- what the cluster is like

    def _watched(self) -> set[GroupVersionKind]:
        resources = self.bundle.controller.resources
        return {GroupVersionKind.of(each.api_version, each.kind) for each in resources if each.kind}

    def _applied(self) -> set[GroupVersionKind]:
        return {kind for handler in self.bundle.controller.handlers for kind in handler.applies}

    def _is_served_in_namespaces(self, kind: GroupVersionKind) -> bool:
        for each in self.bundle.definitions:
            if kind in defined_kinds([each]):
                return value_at(each, "spec", "scope") == "Namespaced"
        try:
            return self._access.resource(kind).namespaced
        except NotFound:
            return True  # the test will say so

    def _has_controllers(self) -> bool:
        """Whether kube-controller-manager runs: it makes a service account in each namespace."""
        try:
            self._access.request("GET", "/api/v1/namespaces/default/serviceaccounts/default")
        except NotFound:
            return False
        return True

    def _figures(self) -> object:
        return len(self.controller.calls), self.controller.runtime.parts.writing.ledger.newest(1)

    # -- what the document is about

    def _objects(self) -> Iterator[KubeObject]:
        """The objects that the document creates or applies."""
        spec = self._test.spec
        for entry in (*spec.objects, *(step.apply for step in spec.steps if step.apply is not None)):
            yield from self._test.objects_of(entry)

    def _written_status(self) -> Iterator[GroupVersionKind]:
        """The kinds whose status the document writes."""
        yield from (_kind_of(each) for each in self._objects() if "status" in each)
        for step in self._test.spec.steps:
            if step.patch is not None and "status" in step.patch.patch:
                yield self._test.kind_of(step.patch.api_version, step.patch.kind)

    def _changed_namespaces(self) -> Iterator[str]:
        """The Namespaces that are objects of the document, or of its actions."""
        yield from (
            str(value_at(each, "metadata", "name"))
            for each in self._objects()
            if _kind_of(each) == _NAMESPACES
        )
        for step in self._test.spec.steps:
            yield from (each.name for each in (step.patch, step.delete) if each and each.kind == "Namespace")

    def _named_namespaces(self) -> Sequence[str]:
        """The namespaces that the document or the manifest names, without `default`."""
        names = {*self._changed_namespaces(), *self._namespaces_of_steps()}
        names.update(
            str(value_at(each, "metadata", "namespace")) for each in self._objects() if _namespace_of(each)
        )
        names.update(name for each in self.bundle.controller.resources for name in each.namespaces or ())
        return sorted(names - {DEFAULT_NAMESPACE})

    def _namespaces_of_steps(self) -> Iterator[str]:
        for step in self._test.spec.steps:
            yield from (each.namespace for each in (step.patch, step.delete) if each is not None)
            for each in step.expect:
                patterns = (value_at(each.match, "metadata"), value_at(each.absent, "metadata"))
                about = each.event and each.event.regarding
                yield from (
                    str(value_at(found, "namespace"))
                    for found in (*patterns, about)
                    if value_at(found, "namespace")
                )
                if each.condition is not None:
                    yield each.condition.namespace


def _kind_of(obj: KubeObject) -> GroupVersionKind:
    return GroupVersionKind.of(str(obj.get("apiVersion")), str(obj.get("kind")))


def _namespace_of(obj: KubeObject) -> str:
    return str(value_at(obj, "metadata", "namespace") or "")


def _renamed(value: T, names: Mapping[tuple[str, str], str]) -> T:
    """The same value with other values of some fields."""
    if isinstance(value, list):
        return cast("T", [_renamed(each, names) for each in cast("list[Json]", value)])
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Json]", value).items()
    return cast(
        "T",
        {
            name: names.get((name, each), each) if isinstance(each, str) else _renamed(each, names)
            for name, each in fields
        },
    )


def _has_status(resource: Resource) -> bool:
    return "status" in resource.subresources
