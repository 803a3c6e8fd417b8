"""`validate --cluster`: whether the server has the kinds, and lets us list and watch them.

The permissions are asked for with SelfSubjectAccessReviews, as `kubectl auth can-i` does: nothing is listed.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from declctl.errors import ApiError, NotFound
from declctl.manifest import Diagnostic, Loaded, plan
from declctl.manifest.codes import CLUSTER_UNREACHABLE, FORBIDDEN, UNKNOWN_KIND
from declctl.manifest.model import ResourceSpec
from declctl.manifest.plan import ResourcePlan
from declctl.objects import GroupVersionKind, KubeObject, Resource

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_VERBS = ("list", "watch")


class Server(Protocol):
    """What is needed of the transport."""

    async def discover(self, gvk: GroupVersionKind) -> Resource:
        """The resource of a kind; raises NotFound."""
        ...

    async def request_json(self, method: str, path: str, *, body: KubeObject | None = None) -> KubeObject:
        """One request; raises ApiError."""
        ...


async def check_against_cluster(loaded: Loaded, server: Server) -> Sequence[Diagnostic]:
    """What the server has against a manifest, each fault at the resource that it is about.

    When it doesn't answer that is one fault, and the only one.
    """
    specs = {spec.name: spec for spec in loaded.controller.resources}
    found: list[Diagnostic] = []
    try:
        for resource in plan(loaded.controller).resources:
            found += [fault async for fault in _faults(loaded, resource, specs[resource.name], server)]
    except ApiError as error:
        message = f"the cluster could not be asked: {error}"
        advice = "check --kubeconfig and --context, or leave --cluster out"
        return [loaded.fault(CLUSTER_UNREACHABLE, (), message, suggestion=advice)]
    return found


async def _faults(
    loaded: Loaded, resource: ResourcePlan, spec: ResourceSpec, server: Server
) -> AsyncIterator[Diagnostic]:
    gvk = GroupVersionKind.of(spec.api_version, spec.kind)
    try:
        kind = await server.discover(gvk)
    except NotFound:
        message = f"the cluster does not serve {spec.kind} in {spec.api_version}"
        advice = (
            "install its CustomResourceDefinition, or check kind and apiVersion with `kubectl api-resources`"
        )
        yield loaded.fault(UNKNOWN_KIND, (*spec.path, "kind"), message, suggestion=advice)
        return
    watches = resource.watches if kind.namespaced else resource.without_namespaces().watches
    for namespace in dict.fromkeys(watch.namespace for watch in watches):
        refused = [verb for verb in _VERBS if not await _may(server, kind, verb, namespace)]
        if refused:
            where = f"in the namespace {namespace}" if namespace else "in the whole cluster"
            message = f"you may not {' or '.join(refused)} {kind.plural} {where}"
            advice = f"a Role needs the verbs list and watch for {kind.plural}"
            yield loaded.fault(FORBIDDEN, spec.path, message, suggestion=advice)


async def _may(server: Server, kind: Resource, verb: str, namespace: str | None) -> bool:
    asked = {
        "group": kind.gvk.group,
        "version": kind.gvk.version,
        "resource": kind.plural,
        "verb": verb,
        "namespace": namespace or "",
    }
    body: KubeObject = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    review = await server.request_json("POST", _REVIEWS, body=body)
    return bool(review.get("status", {}).get("allowed"))
