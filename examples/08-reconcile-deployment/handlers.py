"""A Deployment with a label has a PodDisruptionBudget, and a condition that says whether the budget helps."""

from models import Deployment, Pod

import declctl

LABEL, CONDITION = "example.dev/guard", "example.dev/Guarded"


def deployment_of(pod: Pod) -> list[str]:
    """The name of a pod's Deployment: the name of its ReplicaSet without the hash of the pod template."""
    ending = f"-{pod.labels.get('pod-template-hash')}"
    owners = pod["metadata"].get("ownerReferences") or ()
    return [owner["name"].removesuffix(ending) for owner in owners if owner["kind"] == "ReplicaSet"]


def is_ready(pod: Pod) -> bool:
    ready = pod.condition("Ready")
    return ready is not None and ready.status == "True"


def nodes_of(obj: Deployment, ctx: declctl.Context) -> set[str]:
    """The nodes on which ready pods of a Deployment run."""
    sets = ctx.listers["replicasets"].by_index("byOwner", obj.uid)
    pods = [pod for each in sets for pod in ctx.lister(Pod).by_index("byOwner", each.uid)]
    return {pod.spec.node_name for pod in pods if is_ready(pod)}


def budget(obj: Deployment, most: int) -> dict[str, object]:
    """The PodDisruptionBudget of a Deployment: `most` of its pods may be evicted at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": obj.name, "labels": {"app.kubernetes.io/managed-by": "deployment-guard"}},
        "spec": {"selector": obj.spec.selector, "maxUnavailable": most},
    }


async def guard(request: declctl.Request[Deployment], ctx: declctl.Context) -> None:
    obj = request.obj
    if obj is None or obj.deletion_timestamp:
        return  # the garbage collector deletes the budget
    guarded, replicas = obj.labels.get(LABEL) == "true", obj.spec.replicas
    if not guarded and obj.condition(CONDITION) is None:
        return  # it has never had a budget
    most, nodes = max(1, replicas // 4), nodes_of(obj, ctx)
    await ctx.apply_set([budget(obj, most)] if guarded and replicas > 1 else [])

    if not guarded:
        status, reason, message = "False", "NoLabel", f"the label {LABEL} is not true"
    elif replicas < 2:
        status, reason, message = "False", "OneReplica", "fewer than two replicas: each drain is an outage"
    elif not nodes:
        status, reason, message = "Unknown", "NotReady", "no pod is ready"
    elif len(nodes) == 1:
        status, reason, message = "False", "OneNode", "all ready pods run on one node"
    else:
        status, reason, message = "True", "Spread", f"{most} of {replicas} pods may be evicted at a time"
    condition = {"type": CONDITION, "status": status, "reason": reason, "message": message}
    if (await ctx.patch_status(conditions=[condition])).changed:
        ctx.record_event(obj, reason, message, type="Warning" if status == "False" else "Normal")
        print(f"{request.key}: {message}")
