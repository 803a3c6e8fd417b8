"""Which pods run where: a handler with a little state, and the indexes that it is asked through."""

from collections import Counter

from declctl import DeletedFinalStateUnknown, ObjectView, SharedIndexInformer, field_index

INDEXES = {
    "byNode": field_index("spec.nodeName"),
    "byApp": lambda obj: [obj.labels.get("app", "none")],
}


class Board:
    """A handler: it counts what it is told. Its methods are called one at a time."""

    def __init__(self) -> None:
        self.heard: Counter[str] = Counter()
        self.pods: set[str] = set()

    async def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> None:
        self.heard["initial" if is_in_initial_list else "added"] += 1
        self.pods.add(str(obj.key))

    async def on_update(self, old: ObjectView, new: ObjectView) -> None:
        # A resync tells the object as it is, without a change.
        same = old.resource_version == new.resource_version
        self.heard["resynced" if same else "updated"] += 1

    async def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> None:
        self.heard["deleted"] += 1
        self.pods.discard(str(obj.key))


def by_node(pods: SharedIndexInformer) -> list[str]:
    """One line for each node, from an index of the cache: no request, and nothing is decoded for it."""
    lister = pods.lister
    return [
        f"{node}: {', '.join(sorted(pod.name for pod in lister.by_index('byNode', node)))}"
        for node in sorted(lister.index_values("byNode"))
    ]
