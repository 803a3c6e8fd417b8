"""A Memcached is a Deployment of `size` replicas, and an entry in a directory of addresses.

The garbage collector deletes the Deployment after its owner. The entry is in another namespace, so no
owner reference can hold it: the finalizer deletes it.
"""

from models import Deployment, Memcached, MemcachedStatus

import declctl

DIRECTORY = "directory"


def deployment(obj: Memcached) -> dict[str, object]:
    """The Deployment of a Memcached."""
    labels = {"app.kubernetes.io/name": "memcached", "app.kubernetes.io/instance": obj.name}
    container = {
        "name": "memcached",
        "image": "memcached:1.6-alpine",
        "command": ["memcached", f"--port={obj.spec.port}", "-o", "modern"],
        "ports": [{"name": "memcached", "containerPort": obj.spec.port}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": obj.name, "labels": {**labels, "app.kubernetes.io/managed-by": "operator"}},
        "spec": {
            "replicas": obj.spec.size,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def entry_name(request: declctl.Request[Memcached]) -> str:
    """The name of the entry of a Memcached in the directory."""
    return f"{request.namespace}.{request.name}"


@declctl.hookimpl
async def declctl_reconcile(request: declctl.Request[Memcached], ctx: declctl.Context) -> None:
    obj = request.obj
    if obj is None:
        return  # it is gone, and so are its Deployment and its entry
    await ctx.apply_set([deployment(obj)])
    entry = {"name": entry_name(request), "namespace": DIRECTORY}
    address = {"address": f"{obj.name}.{obj.namespace}:{obj.spec.port}"}
    await ctx.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": entry, "data": address})

    found = ctx.lister(Deployment).get(request.key)
    available = 0 if found is None else found.status.available_replicas
    condition = declctl.Condition(
        type="Available",
        status="True" if available >= obj.spec.size else "False",
        reason="Replicas",
        message=f"{available} of {obj.spec.size} replicas are available",
    )
    if (await ctx.patch_status(MemcachedStatus(replicas=available, conditions=[condition]))).changed:
        print(f"{request.key}: {condition.message}")


@declctl.hookimpl
async def declctl_finalize(request: declctl.Request[Memcached], ctx: declctl.Context) -> None:
    await ctx.delete("v1/ConfigMap", entry_name(request), namespace=DIRECTORY)
    print(f"{request.key}: out of the directory")
