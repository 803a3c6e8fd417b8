"""A Service with a label has a NetworkPolicy: one network alone reaches its ports. Processes share them."""

SETTINGS, DEFAULT = "default/fence-settings", "10.0.0.0/8"


def settings_of(obj):
    """Each Service depends on the same settings: a change of them leads to all that a process holds."""
    return [SETTINGS]


def network_of(settings):
    """The network that the settings allow."""
    return settings["data"].get("network", DEFAULT) if settings is not None else DEFAULT


def policy(obj, network):
    ports = [
        {"port": each.get("targetPort", each["port"]), "protocol": each.get("protocol", "TCP")}
        for each in obj["spec"]["ports"]
    ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": obj.name, "labels": {"app.kubernetes.io/managed-by": "fence"}},
        "spec": {
            "podSelector": {"matchLabels": obj["spec"]["selector"]},
            "ingress": [{"from": [{"ipBlock": {"cidr": network}}], "ports": ports}],
        },
    }


async def fence(request, ctx):
    """The policy is in the namespace of its Service, and so in the same slot: one process has both."""
    obj = request.obj
    if obj is None or obj.deletion_timestamp:
        return  # the garbage collector deletes the policy
    network = network_of(ctx.snapshots["settings"].get(SETTINGS))
    (applied,) = (await ctx.apply_set([policy(obj, network)])).applied
    if applied.changed:
        print(f"{request.key}: open to {network}")


def check(change, obj):
    """Told by one process, whichever holds slot 0."""
    if change.type != "Deleted":
        print(f"all fences are open to {network_of(obj)}")
