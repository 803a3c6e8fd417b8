"""An EphemeralVolumeClaim is a PersistentVolumeClaim that goes with it."""

from declctl import StatusError, Terminal


async def reconcile(request, ctx):
    obj = request.obj
    if obj is None or obj["metadata"].get("deletionTimestamp"):
        return  # the garbage collector deletes the claim
    size = obj["spec"]["size"]
    child = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": obj.name, "labels": {"app.kubernetes.io/managed-by": "operator"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
    }
    try:
        await ctx.apply_set([child])
    except StatusError as refused:
        if refused.code not in (403, 422):
            raise
        # Such as a volume that can't be resized, or a quota: only an edit helps.
        await ctx.patch_status(conditions=[ready(False, "Refused", refused.message)])
        raise Terminal(f"the server refuses a claim of {size}") from refused
    found = ctx.listers["claims"].get(request.key)
    phase = ((found and found.get("status")) or {}).get("phase", "Pending")
    condition = ready(phase == "Bound", phase, f"the claim of {size} is {phase.lower()}")
    if (await ctx.patch_status(conditions=[condition])).changed:
        print(f"{request.key}: {condition['message']}")


def ready(status, reason, message):
    """A condition of the EphemeralVolumeClaim."""
    return {"type": "Ready", "status": status, "reason": reason, "message": message}
