"""One handler for the pods of all namespaces with a label, whichever these are at the moment."""


def guard(change, obj, ctx):
    """The limit is that of a ConfigMap in another namespace, which is read from the cache."""
    if change.type == "Deleted":
        print(f"{obj.key} " + ("left with its namespace" if change.reason == "OutOfScope" else "is gone"))
        return
    settings = ctx.listers["limits"].get("default/pod-limits")
    limits = settings["data"] if settings is not None else {}
    allowed = int(limits.get(obj.namespace) or limits.get("each", 3))
    pods = len(ctx.listers["pods"].list(namespace=obj.namespace))
    print(f"{obj.key}: {pods} of {allowed} pods" + (", too many" if pods > allowed else ""))
