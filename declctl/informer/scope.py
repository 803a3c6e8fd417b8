"""The scope of a cache: the shards that it has, which change while it runs.

The walk of one shard: it is *held* from `widen` on, which requests a list of the most recent state; *listed*
when a list that began afterwards is in the store; *open* from `open_shards` on, when listeners are notified
of it. `close_shards` ends the notifications, and `narrow` lets its objects leave the store.

`ShardScope` keeps which shard is where. The informer changes it; projection and reflector filter by it.
"""

import asyncio
from collections.abc import Collection, Iterable

from declctl.errors import CacheError
from declctl.kit import Latch
from declctl.objects import Record
from declctl.objects.resource import namespace_of
from declctl.objects.shards import Sharding


class ShardScope:
    """The shards of one cache. Changed on the loop; `holds` may be called by the thread that decodes.

    - `sharding`: how objects are cut.
    - `is_namespaced`: whether the objects have namespaces. The server can filter cluster-scoped objects also
      where the others are cut by namespace.
    """

    def __init__(self, sharding: Sharding, *, is_namespaced: bool = True) -> None:
        self.sharding = sharding
        self.held: frozenset[int] = frozenset()  # replaced as a whole, because another thread reads it
        self.open: frozenset[int] = frozenset()  # those of which listeners are told; all of them are listed
        self.widenings = 0  # so far: they number the moments at which shards were added
        self.changes = 0  # widenings and narrowings so far
        self.list_began = 0  # the widenings before the newest complete list began; the reflector writes it
        self._is_namespaced = is_namespaced
        self._widened: dict[int, int] = {}  # held shards → the number of the widening that added them
        self._listed: set[int] = set()  # held shards of which a list is in the store
        self._waiting: dict[Latch, set[int]] = {}  # latches of `widen` that are closed → their shards
        self._departures = 0  # that are queued, and not in the store yet
        self._gained = asyncio.Event()  # set while a shard is held

    def shard_of(self, record: Record) -> int:
        """The shard of an object."""
        return self.sharding.shard_of(namespace_of(record.key), record.uid)

    def holds(self, namespace: str | None, uid: str) -> bool:
        """Whether an object with this identity is of a held shard. From any thread."""
        held = self.held
        return len(held) == self.sharding.shards or self.sharding.shard_of(namespace, uid) in held

    def holds_record(self, record: Record) -> bool:
        """Whether an object is of a held shard."""
        return self.holds(namespace_of(record.key), record.uid)

    def is_open(self, record: Record) -> bool:
        """Whether listeners are told of an object."""
        return self.shard_of(record) in self.open

    @property
    def tells_all(self) -> bool:
        """Whether listeners are told of all that the queue and the store have."""
        return self.open == self.held and not self._departures

    @property
    def lacks_list(self) -> bool:
        """Whether no list has begun since the last widening, and become complete."""
        return self.list_began < self.widenings

    @property
    def selector(self) -> str:
        """The `shardSelector` of a request; empty if the server can leave nothing out.

        Raises ValueError if no shard is held.
        """
        return self.sharding.selector(self.held, is_namespaced=self._is_namespaced)

    def widen(self, shards: Iterable[int]) -> tuple[Collection[int], Latch]:
        """Hold these shards; returns those that are new, and a latch that opens when all are listed.

        The latch does not open if one of them leaves before. Raises CacheError for a number that is no shard.
        """
        wanted = set(shards)
        if unknown := wanted - set(range(self.sharding.shards)):
            raise CacheError(
                f"there is no shard {min(unknown)}: the shards are 0 to {self.sharding.shards - 1}"
            )
        latch = Latch(f"lists of the shards {sorted(wanted)}")
        new = wanted - self.held
        if new:
            self.widenings += 1
            self._widened |= dict.fromkeys(new, self.widenings)
            self._hold(self.held | new)
        if not wanted <= self._listed:
            self._waiting[latch] = wanted
        else:
            latch.open()
        return new, latch

    def narrow(self, shards: Iterable[int]) -> frozenset[int]:
        """Close these shards, and hold them no longer; returns those that were held.

        `departed` has to be called when their objects have left the store.
        """
        gone = self.held & set(shards)
        self.close_shards(gone)
        if gone:
            self._departures += 1
            self._listed -= gone
            for shard in gone:
                del self._widened[shard]
            self._waiting = {latch: each for latch, each in self._waiting.items() if not each & gone}
            self._hold(self.held - gone)
        return gone

    def open_shards(self, shards: Iterable[int]) -> frozenset[int]:
        """Let listeners be told of these shards; returns those that were closed.

        Raises CacheError for a shard that is not listed: it could be handled by an old state.
        """
        wanted = frozenset(shards)
        if early := wanted - self._listed:
            raise CacheError(f"the shard {min(early)} is not listed yet: it can't be opened")
        new, self.open = wanted - self.open, self.open | wanted
        return new

    def close_shards(self, shards: Iterable[int]) -> None:
        """Let listeners be told of these shards no longer."""
        self.open -= set(shards)

    def listed(self, widenings: int) -> None:
        """Note that a list is in the store that began after so many widenings."""
        self._listed |= {shard for shard, number in self._widened.items() if number <= widenings}
        for latch, shards in tuple(self._waiting.items()):
            if shards <= self._listed:
                del self._waiting[latch]
                latch.open()

    def is_listed(self, record: Record) -> bool:
        """Whether a list of an object's shard is in the store."""
        return self.shard_of(record) in self._listed

    @property
    def listed_shards(self) -> frozenset[int]:
        """The held shards of which a list is in the store."""
        return frozenset(self._listed)

    @property
    def all_listed(self) -> bool:
        """Whether a list of each held shard is in the store."""
        return len(self._listed) == len(self.held)

    def departed(self) -> None:
        """Note that the objects of one narrowing have left the store."""
        self._departures -= 1

    def of_list(self, records: Iterable[Record], widenings: int) -> list[Record]:
        """The objects of a list that began after so many widenings: those of shards that it was to have."""
        wanted = {shard for shard, number in self._widened.items() if number <= widenings}
        return [record for record in records if self.shard_of(record) in wanted]

    async def until_held(self) -> None:
        """Return when a shard is held."""
        await self._gained.wait()

    def _hold(self, shards: frozenset[int]) -> None:
        self.held = shards
        self.changes += 1
        if shards:
            self._gained.set()
        else:
            self._gained.clear()
