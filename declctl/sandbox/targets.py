"""What a write is about and how it is to be done.

The values that the HTTP layer, the store and the rules of writing hand around.
"""

from dataclasses import dataclass

from declctl.sandbox.history import key_of
from declctl.sandbox.kinds import ServedKind


@dataclass(frozen=True, slots=True)
class Target:
    """Which object: its kind, namespace (empty if cluster-scoped) and name."""

    kind: ServedKind
    namespace: str
    name: str

    @property
    def key(self) -> str:
        """Its key in the collection."""
        return key_of(self.namespace if self.kind.namespaced else "", self.name)


@dataclass(frozen=True, slots=True)
class Write:
    """How to write. `dry_run` changes nothing; `manager` is the field manager.

    `keep_status` lets a create bring its status.
    """

    dry_run: bool = False
    manager: str = "unknown"
    subresource: str = ""
    keep_status: bool = False


@dataclass(frozen=True, slots=True)
class Deletion:
    """How to delete. `grace` is in seconds, None leaves it to the object.

    Preconditions are checked if they are not empty.
    """

    dry_run: bool = False
    grace: int | None = None
    uid: str = ""
    version: str = ""
