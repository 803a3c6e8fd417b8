"""A Memcached is a Deployment of `size` replicas, and an entry in a directory of addresses.

The garbage collector deletes the Deployment after its owner. The entry is in another namespace, so no
owner reference can hold it: the finalizer deletes it.
"""

import declctl

LABELS = {"app.kubernetes.io/managed-by": "operator"}


def deployment(obj):
    """The Deployment of a Memcached."""
    labels = {"app.kubernetes.io/name": "memcached", "app.kubernetes.io/instance": obj.name}
    port = obj["spec"].get("port", 11211)
    container = {
        "name": "memcached",
        "image": "memcached:1.6-alpine",
        "command": ["memcached", f"--port={port}", "-o", "modern"],
        "ports": [{"name": "memcached", "containerPort": port}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": obj.name, "labels": LABELS | labels},
        "spec": {
            "replicas": obj["spec"]["size"],
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def entry(obj):
    """The entry of a Memcached in the directory."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{obj.namespace}.{obj.name}", "namespace": "directory"},
        "data": {"address": f"{obj.name}.{obj.namespace}:{obj['spec'].get('port', 11211)}"},
    }


@declctl.hookimpl
async def declctl_reconcile(request, ctx):
    obj = request.obj
    if obj is None:
        return  # it is gone, and so are its Deployment and its entry
    await ctx.apply_set([deployment(obj)])
    await ctx.apply(entry(obj))

    found = ctx.listers["deployments"].get(request.key)
    available = 0 if found is None else (found.get("status") or {}).get("availableReplicas", 0)
    size = obj["spec"]["size"]
    condition = {
        "type": "Available",
        "status": available >= size,
        "reason": "Replicas",
        "message": f"{available} of {size} replicas are available",
    }
    if (await ctx.patch_status(conditions=[condition], replicas=available)).changed:
        print(f"{request.key}: {condition['message']}")


@declctl.hookimpl
async def declctl_finalize(request, ctx):
    from kubernetes.aio.client import ApiException, CoreV1Api

    try:
        await CoreV1Api(ctx.client).delete_namespaced_config_map(
            f"{request.namespace}.{request.name}", "directory"
        )
    except ApiException as error:
        if error.status != 404:  # the call before this one has deleted it
            raise
    print(f"{request.key}: out of the directory")


@declctl.hookimpl
def declctl_rbac():
    """What `declctl generate rbac` can't read in the manifest: a request of `ctx.client`."""
    entries = {"apiGroups": [""], "resources": ["configmaps"], "namespaces": ["directory"]}
    return [{**entries, "verbs": ["delete"], "reason": "the finalizer deletes the entry"}]
