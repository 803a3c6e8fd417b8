"""An EphemeralVolumeClaim is a PersistentVolumeClaim that goes with it."""

from models import Claim, EphemeralVolumeClaim, VolumeStatus

import declctl


async def reconcile(request: declctl.Request[EphemeralVolumeClaim], ctx: declctl.Context) -> None:
    obj = request.obj
    if obj is None or obj.deletion_timestamp:
        return  # the garbage collector deletes the claim
    size = obj.spec.size
    child = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": obj.name, "labels": {"app.kubernetes.io/managed-by": "operator"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
    }
    try:
        await ctx.apply_set([child])
    except declctl.StatusError as refused:
        if refused.code not in (403, 422):
            raise
        # Such as a volume that can't be resized, or a quota: only an edit helps.
        await ctx.patch_status(VolumeStatus(conditions=[ready("Refused", refused.message)]))
        raise declctl.Terminal(f"the server refuses a claim of {size}") from refused
    found = ctx.lister(Claim).get(request.key)
    phase = "Pending" if found is None else found.status.phase
    condition = ready(phase, f"the claim of {size} is {phase.lower()}")
    if (await ctx.patch_status(VolumeStatus(conditions=[condition]))).changed:
        print(f"{request.key}: {condition.message}")


def ready(reason: str, message: str) -> declctl.Condition:
    """A condition of the EphemeralVolumeClaim, which is ready when its claim is bound."""
    return declctl.Condition(
        type="Ready", status="True" if reason == "Bound" else "False", reason=reason, message=message
    )
