"""A custom kind is like any other; objects have the shape that the CustomResourceDefinition gave them."""


def on_backup(change, obj, ctx):
    spec = obj["spec"]
    same = len(ctx.listers["backups"].by_index("byTarget", spec["target"]))
    what = f"{spec['target']} every {spec['every']}"
    print(f"{change.type} {change.key}: {what} ({same} of this target)")
