"""Shards: the parts into which the objects of a controller are cut by a hash, for processes that share them.

A uid has the hash and the ranges of the API server's sharded lists and watches (KEP-5866): FNV-1a with 64
bits. So the server can leave out what a process does not hold. A namespace has another hash: the last
characters of a text hardly change the upper bits of FNV-1a, so that 120 namespaces `ns-000` to `ns-119` are
in 2 of 16 ranges. What is cut by namespace is filtered by the process alone.
"""

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b

import msgspec

_OFFSET, _PRIME, _BITS = 0xCBF29CE484222325, 0x100000001B3, 64
_MASK = (1 << _BITS) - 1


class ShardKey(StrEnum):
    """What of an object is hashed."""

    NAMESPACE = "Namespace"  # of a cluster-scoped object, its uid
    UID = "UID"


def fnv1a(text: str) -> int:
    """The hash of a text, 0 to 2**64 - 1."""
    found = _OFFSET
    for byte in text.encode():
        found = ((found ^ byte) * _PRIME) & _MASK
    return found


class Sharding(msgspec.Struct, frozen=True):
    """Into how many shards objects are cut, and by what. Shards are numbered from 0; each is one range."""

    shards: int
    by: ShardKey = ShardKey.NAMESPACE

    def shard_of(self, namespace: str | None, uid: str) -> int:
        """The shard of an object."""
        if namespace and self.by is ShardKey.NAMESPACE:
            return _shard_of_namespace(namespace, self.shards)
        return fnv1a(uid) * self.shards >> _BITS

    def selector(self, shards: Iterable[int], *, is_namespaced: bool) -> str:
        """The `shardSelector` of a LIST or WATCH for these shards of one kind; adjacent ranges are joined.

        Empty where the server can leave nothing out: of all shards, and of what is cut by namespace. Raises
        ValueError for no shard: such a request can't be made.
        """
        held = sorted(set(shards))
        if not held:
            raise ValueError("there is no selector for no shard")
        if len(held) == self.shards or (is_namespaced and self.by is ShardKey.NAMESPACE):
            return ""
        ranges: list[tuple[int, int]] = []
        for shard in held:
            begins = ranges.pop()[0] if ranges and ranges[-1][1] == shard else shard
            ranges.append((begins, shard + 1))
        shown = (
            f"shardRange(object.metadata.uid, '{self._start_of(begins)}', '{self._start_of(ends)}')"
            for begins, ends in ranges
        )
        return " || ".join(shown)

    def _start_of(self, shard: int) -> str:
        # Rounded up, as `hash * shards >> 64` is `shard` from there on.
        return f"{-(-(shard << _BITS) // self.shards):#018x}"


def shard_lease(name: str, shard: int) -> str:
    """The name of the Lease of a shard. `name` is what those of one controller begin with."""
    return f"{name}-shard-{shard}"


def member_lease(name: str, number: int) -> str:
    """The name of the Lease of the process with a number; there are as many as shards."""
    return f"{name}-member-{number}"


@lru_cache(maxsize=10_000)
def _shard_of_namespace(namespace: str, shards: int) -> int:
    return int.from_bytes(blake2b(namespace.encode(), digest_size=_BITS // 8).digest()) * shards >> _BITS
