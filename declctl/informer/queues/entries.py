"""What stands in a queue: single deltas, whole replacements, and requests to replay the store."""

from collections.abc import Sequence
from typing import NamedTuple

from declctl.objects import Delta, Record


class Replacement(NamedTuple):
    """All the objects that there are. `initial` for the first one."""

    records: Sequence[Record]
    resource_version: str
    initial: bool


class SyncAll(NamedTuple):
    """The store is to be replayed to these listeners."""

    listeners: tuple[object, ...]


Entry = Delta | Replacement | SyncAll
