"""ControllerTest documents on the API server of a cluster, each in a namespace of its own.

What a document says of the namespace `default` is in the namespace of the test, and the controller under test
watches that one alone. Afterwards all of it is removed, also what the test has failed to.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from uuid import uuid4

from declctl.errors import ApiError, NotFound, UsageError
from declctl.manifest.controller_test import DEFAULT_NAMESPACE, LoadedTest, defined_kinds
from declctl.manifest.values import Json, mapping_at, value_at
from declctl.objects import GroupVersionKind, KubeObject, Resource
from declctl.testing.blocking_client import DEFINITION, LOOK_SECONDS, BlockingClient, ClusterChoice
from declctl.testing.documents import BundleUnderTest
from declctl.testing.stages import FIELD_MANAGER, TestingStage

if TYPE_CHECKING:  # late: it has the whole runtime
    from declctl.testing.controller import HostedController

_NAMESPACES: Final = GroupVersionKind("", "v1", "Namespace")
_ANY: Final = GroupVersionKind("", "v1", "ConfigMap")  # what each server has, with the revision of its etcd
_MERGE: Final = "application/merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml"
_QUIET_SECONDS: Final = 0.3  # without a call or a write, after which the controller counts as at rest
_MOST_QUIET_SECONDS: Final = 5.0  # for which a controller that is never at rest is waited for
# Groups of kinds whose status controllers of a cluster write.
_WORKLOADS: Final = frozenset({"", "apps", "batch", "policy", "autoscaling"})


class ClusterStage(TestingStage):
    """A namespace of a cluster. Time is that of this machine, and `advance` moves the controller's clock."""

    def __init__(self, bundle: BundleUnderTest, cluster: ClusterChoice) -> None:
        super().__init__(bundle)
        self._cluster = cluster
        self._namespace = f"declctl-test-{uuid4().hex[:8]}"
        self._access = BlockingClient(cluster)
        self._made: list[tuple[Resource, str]] = []  # the namespace, and objects outside of it
        self._touched: set[GroupVersionKind] = set()  # kinds of which there may be objects
        self._until = 0.0  # monotonic seconds, until which the present step is waited for

    @property
    def namespace(self) -> str:
        """The namespace of the test."""
        return self._namespace

    def refusal(self, test: LoadedTest) -> str:
        """Why a document can't be played here; empty if it can. Raises ApiError."""
        spec = test.spec
        if any(step.fault is not None for step in spec.steps):
            return "faults need the API server in memory"
        if others := sorted(set(_namespaces_of(test)) - {DEFAULT_NAMESPACE}):
            return f"it names the namespace {others[0]}, and has one of its own here"
        for each in self._watched():
            if not self._is_served_in_namespaces(each):
                return f"its controller watches {each.kind}, which is in no namespace, and would act on all"
        foreign = [each.kind for each in _written_status(test) if each.group in _WORKLOADS]
        if foreign and self._has_controllers():
            return f"it writes the status of a {foreign[0]}, which controllers of this cluster write, too"
        if _gives_uids(test):
            return "it gives objects uids, which the server chooses here"
        return ""

    def make_controller(self, manifest: Path) -> "HostedController":
        """A controller that watches the namespace of the test."""
        from declctl.testing.cluster_controller import ControllerOnCluster

        return ControllerOnCluster(manifest, self._cluster, self._namespace)

    def load(self, objects: Sequence[KubeObject]) -> None:
        """Create definitions that are missing, then the other objects with their status."""
        for each in sorted(objects, key=lambda one: one.get("kind") != DEFINITION):
            if each.get("kind") == DEFINITION:
                self._access.define(each)
                continue
            resource = self._access.resource(_kind_of(each))
            body = self._placed(resource, each)
            self._access.request("POST", resource.path(self._namespace), body=body)
            self._note(resource, body)
            self._write_status(resource, body, _MERGE, {})

    def apply(self, obj: KubeObject) -> None:
        """Apply an object, and a status that it has."""
        resource = self._access.resource(_kind_of(obj))
        body = self._placed(resource, obj)
        name = str(value_at(body, "metadata", "name"))
        params = {"fieldManager": FIELD_MANAGER, "force": "true"}
        self._access.request("PATCH", resource.path(self._namespace, name), body, _APPLY, params)
        self._note(resource, body)
        self._write_status(resource, body, _APPLY, params)

    def patch(self, kind: GroupVersionKind, namespace: str, name: str, patch: dict[str, Json]) -> None:
        """Merge a patch into an object, and a part `status` of it into its status."""
        resource = self._access.resource(kind)
        status = {"status": patch["status"]} if "status" in patch and _has_status(resource) else {}
        rest = {key: value for key, value in patch.items() if key not in status}
        if rest or not status:
            self._access.request("PATCH", resource.path(namespace, name), rest, _MERGE)
        if status:
            self._access.request("PATCH", resource.path(namespace, name, "status"), status, _MERGE)

    def delete(self, kind: GroupVersionKind, namespace: str, name: str) -> None:
        """Delete an object; its children go in the background."""
        options: KubeObject = {"propagationPolicy": "Background"}
        self._access.request("DELETE", self._access.resource(kind).path(namespace, name), options)

    def objects(self, kind: GroupVersionKind) -> Sequence[KubeObject]:
        """The objects of the namespace, or all of a kind without namespaces."""
        answer = self._access.request("GET", self._access.resource(kind).path(self._namespace))
        return answer.get("items") or []

    def version(self) -> int:
        """The revision of etcd, which a list has."""
        answer = self._access.request("GET", self._access.resource(_ANY).path(self._namespace))
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
        latest = time.monotonic() + _MOST_QUIET_SECONDS
        before, since = self._figures(), time.monotonic()
        while time.monotonic() < min(since + _QUIET_SECONDS, latest):
            self.controller.rest()
            time.sleep(LOOK_SECONDS)
            if (now := self._figures()) != before:
                before, since = now, time.monotonic()

    def wait(self) -> bool:
        """Wait a moment; False after the timeout of the step."""
        time.sleep(LOOK_SECONDS)
        return time.monotonic() < self._until

    def __enter__(self) -> Self:
        self._access.__enter__()
        return self

    def make_namespace(self) -> None:
        """Create the namespace of the test."""
        metadata = {"name": self._namespace, "labels": {"app.kubernetes.io/managed-by": FIELD_MANAGER}}
        body: KubeObject = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        self._access.request("POST", "/api/v1/namespaces", body)
        self._made.append((self._access.resource(_NAMESPACES), self._namespace))

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
        path = resource.path(self._namespace, name, "status")
        self._access.request("PATCH", path, {**status, "metadata": {"name": name}}, media_type, params)

    def _placed(self, resource: Resource, obj: KubeObject) -> KubeObject:
        metadata = dict(obj.get("metadata") or {})
        for name in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
            metadata.pop(name, None)
        if resource.namespaced:
            metadata["namespace"] = self._namespace
        return {**obj, "metadata": metadata}

    def _note(self, resource: Resource, obj: KubeObject) -> None:
        self._touched.add(resource.gvk)
        if not resource.namespaced:
            self._made.append((resource, str(value_at(obj, "metadata", "name"))))

    def _remove_all(self) -> None:
        """Remove what was made, the newest first: objects, and the namespace."""
        if not self._made:
            return
        for kind in {*self._touched, *self._watched(), *self._applied()}:
            with suppress(ApiError):
                resource = self._access.resource(kind)
                if resource.namespaced:
                    self._remove_objects(resource)
        for resource, name in reversed(self._made):
            with suppress(NotFound):
                self._access.request("DELETE", resource.path(None, name))
        if not self._has_controllers():
            with suppress(NotFound):
                self._finish_namespace()

    def _remove_objects(self, resource: Resource) -> None:
        path = resource.path(self._namespace)
        for each in self._access.request("GET", path).get("items") or ():
            name = str(value_at(each, "metadata", "name"))
            with suppress(NotFound):
                if value_at(each, "metadata", "finalizers"):
                    # The controller has ended: nothing else would remove them.
                    there: KubeObject = {"metadata": {"finalizers": None}}
                    self._access.request("PATCH", resource.path(self._namespace, name), there, _MERGE)
                self._access.request("DELETE", resource.path(self._namespace, name))

    def _finish_namespace(self) -> None:
        """Where no controller of the cluster does it, as on an API server alone."""
        path = f"/api/v1/namespaces/{self._namespace}"
        namespace = self._access.request("GET", path)
        self._access.request("PUT", f"{path}/finalize", {**namespace, "spec": {"finalizers": []}})

    # -- what the cluster is like

    def _watched(self) -> set[GroupVersionKind]:
        resources = self._bundle.controller.resources
        return {GroupVersionKind.of(each.api_version, each.kind) for each in resources if each.kind}

    def _applied(self) -> set[GroupVersionKind]:
        return {kind for handler in self._bundle.controller.handlers for kind in handler.applies}

    def _is_served_in_namespaces(self, kind: GroupVersionKind) -> bool:
        for each in self._bundle.definitions:
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


def _kind_of(obj: KubeObject) -> GroupVersionKind:
    return GroupVersionKind.of(str(obj.get("apiVersion")), str(obj.get("kind")))


def _has_status(resource: Resource) -> bool:
    return "status" in resource.subresources


def _objects_of(test: LoadedTest) -> Iterator[KubeObject]:
    """The objects that a document creates or applies."""
    for entry in test.spec.objects:
        yield from test.objects_of(entry)
    for step in test.spec.steps:
        if step.apply is not None:
            yield from test.objects_of(step.apply)


def _gives_uids(test: LoadedTest) -> bool:
    return any(value_at(each, "metadata", "uid") for each in _objects_of(test))


def _written_status(test: LoadedTest) -> Iterator[GroupVersionKind]:
    """The kinds whose status a document writes."""
    yield from (_kind_of(each) for each in _objects_of(test) if "status" in each)
    for step in test.spec.steps:
        if step.patch is not None and "status" in step.patch.patch:
            yield test.kind_of(step.patch.api_version, step.patch.kind)


def _namespaces_of(test: LoadedTest) -> Iterator[str]:
    """The namespaces that a document names."""
    spec = test.spec
    for obj in _objects_of(test):
        if obj.get("kind") == "Namespace":
            yield str(value_at(obj, "metadata", "name"))
        yield str(value_at(obj, "metadata", "namespace") or DEFAULT_NAMESPACE)
    for step in spec.steps:
        yield from (each.namespace for each in (step.patch, step.delete) if each is not None)
        for each in step.expect:
            for pattern in (each.match, each.absent):
                yield str(value_at(pattern, "metadata", "namespace") or DEFAULT_NAMESPACE)
            if each.condition is not None:
                yield each.condition.namespace
            if each.event is not None:
                about = mapping_at(each.event.regarding)
                yield str(about.get("namespace") or DEFAULT_NAMESPACE)
