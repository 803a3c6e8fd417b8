"""The shards of this process: those that its caches have, and those of which its handlers are told.

Each cache of a sharded resource has a scope of its own (`informer.scope`), which lags behind these sets until
its list is there. So a shard is open in the process only after it was listed in all caches.
"""

from collections.abc import Callable

from declctl.informer.scope import ShardScope
from declctl.objects.resource import namespace_of
from declctl.objects.shards import Sharding, ShardKey


class HeldShards:
    """Which shards this process holds. Changed on the machinery loop; any thread may ask.

    - `sharding`: how objects are cut.
    - `held`: shards whose Leases this process has; caches have their objects, or list them.
    - `open`: those of them that are handled here.
    """

    def __init__(self, sharding: Sharding) -> None:
        self.sharding = sharding
        self.held: frozenset[int] = frozenset()  # each is replaced as a whole, because other threads read it
        self.open: frozenset[int] = frozenset()

    def new_scope(self, *, is_namespaced: bool) -> ShardScope:
        """A scope for a new cache; nothing is held in it."""
        return ShardScope(self.sharding, is_namespaced=is_namespaced)

    def shard_of(self, key: str, uid: Callable[[], str | None]) -> int | None:
        """The shard of an object. `uid` is called only if the key does not say it; None: it is not known."""
        namespace = namespace_of(key)
        if namespace and self.sharding.by is ShardKey.NAMESPACE:
            return self.sharding.shard_of(namespace, "")
        found = uid()
        return self.sharding.shard_of(namespace, found) if found else None
