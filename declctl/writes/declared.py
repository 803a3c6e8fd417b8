"""What the manifest declares of the writes of a handler."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from declctl.errors import UndeclaredWrite
from declctl.objects import GroupVersionKind, ObjectView


class ChildReader(Protocol):
    """The part of a lister that is needed. From any thread."""

    @property
    def has_synced(self) -> bool:
        """Whether the first list is in the cache."""
        ...

    def get(self, key: str) -> ObjectView | None:
        """An object; None if there is none."""
        ...

    def list(self, *, namespace: str | None = ..., selector: str | None = ...) -> Sequence[ObjectView]:
        """The objects of a namespace, or all of them, whose labels match."""
        ...


class ChildCache(msgspec.Struct, frozen=True):
    """The objects of one kind in caches, where each change of a child leads to a call for its owner."""

    kind: GroupVersionKind
    reader: ChildReader
    caches: Callable[[str], bool] | None = None  # whether it has a namespace; None if it has all

    def has_all_of(self, namespace: str | None) -> bool:
        """Whether it has all objects of a namespace; None: of the cluster."""
        if not self.reader.has_synced:
            return False
        return self.caches is None or (namespace is not None and self.caches(namespace))


class DeclaredWrites(msgspec.Struct, frozen=True):
    """What the manifest says of the writes of a handler.

    `applies` are the kinds that it may write; empty if none are declared: then it may write every kind.
    `status` is None if nothing is declared, and True if the handler is the controller of the kind of its
    objects. With `lacks_status` or `lacks_annotations`, cached objects may be without the status or the
    annotations that the server has. With `force`, applies take fields from other managers; without
    `adopts`, `apply_set` refuses children that exist and that nothing owns. `children` are the caches of
    kinds whose objects it watches as children. `recreates` are the kinds whose objects are made again if
    they can't be changed.
    """

    applies: tuple[GroupVersionKind, ...] = ()
    status: bool | None = None
    lacks_status: bool = False
    lacks_annotations: bool = False
    adopt_fields_from: tuple[str, ...] = ()  # managers whose updates become part of the first apply
    force: bool = True
    adopts: bool = True
    children: tuple[ChildCache, ...] = ()
    recreates: tuple[GroupVersionKind, ...] = ()

    def recreates_kind(self, kind: GroupVersionKind) -> bool:
        """Whether objects of a kind, in whatever version, are made again."""
        return any((each.group, each.kind) == (kind.group, kind.kind) for each in self.recreates)

    def require(self, kind: GroupVersionKind, handler: str) -> None:
        """Raise UndeclaredWrite for a kind that is not declared, in whatever version."""
        if not self.applies or any((k.group, k.kind) == (kind.group, kind.kind) for k in self.applies):
            return
        declared = ", ".join(str(each) for each in self.applies)
        raise UndeclaredWrite(
            f"a write of {kind} was not sent: the handler {handler} applies {declared}; add "
            f"{{apiVersion: {kind.api_version}, kind: {kind.kind}}} to its `applies` in the manifest, which "
            "its rights come from"
        )
