"""An index by function: for what a field path can't say."""


def by_team(obj):
    """The team that the pod belongs to: its label, or else the first part of its namespace."""
    yield obj.labels.get("team") or obj.namespace.split("-")[0]
