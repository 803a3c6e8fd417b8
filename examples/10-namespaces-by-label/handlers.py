"""One handler for the pods of all namespaces with a label, whichever these are at the moment."""


def guard(change, obj, ctx):
    """Both snapshots are of the moment at which the call began: the limit and the count belong together."""
    if change.type == "Deleted":
        print(f"{obj.key} " + ("left with its namespace" if change.reason == "OutOfScope" else "is gone"))
        return
    settings = ctx.snapshots["limits"].get("default/pod-limits")
    limits = settings["data"] if settings is not None else {}
    allowed = int(limits.get(obj.namespace) or limits.get("each", 3))
    pods = len(ctx.snapshots["pods"].list(namespace=obj.namespace))
    print(f"{obj.key}: {pods} of {allowed} pods" + (", too many" if pods > allowed else ""))
