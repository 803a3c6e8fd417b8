"""Posts a Kubernetes Event when a container of a pod has restarted."""


def restarts(obj):
    return {c["name"]: c.get("restartCount", 0) for c in obj.get("status", {}).get("containerStatuses", [])}


def on_pod(obj, old, ctx):
    before = restarts(old)
    for container, count in restarts(obj).items():
        if count > before.get(container, 0):
            message = f"{container} has restarted {count} times"
            ctx.record_event(obj, "ContainerRestarted", message, type="Warning")
            ctx.log.info("a container restarted", container=container, count=count)
