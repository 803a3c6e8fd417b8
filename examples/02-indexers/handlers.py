"""Reads the cache through its indexes: no request to the API server, whatever the handler asks."""


def on_pod(obj, ctx):
    node = obj["spec"].get("nodeName")
    if node is None:
        return
    pods = ctx.listers["pods"]
    neighbours = sorted(pod.name for pod in pods.by_index("byNode", node) if pod.key != obj.key)
    teams = {team: len(pods.by_index("byTeam", team)) for team in sorted(pods.index_values("byTeam"))}
    beside = ", ".join(neighbours) or "nobody"
    print(f"{obj.key} runs on {node} beside {beside}; pods by team: {teams}")
