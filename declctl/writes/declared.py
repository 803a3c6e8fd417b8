"""What the manifest declares of the writes of a handler."""

import msgspec

from declctl.errors import UndeclaredWrite
from declctl.objects import GroupVersionKind


class DeclaredWrites(msgspec.Struct, frozen=True):
    """What the manifest says of the writes of a handler.

    `applies` are the kinds that it may write; empty if none are declared: then it may write every kind.
    `status` is None if nothing is declared, and True if the handler is the controller of the kind of its
    objects. With `lacks_status` or `lacks_annotations`, cached objects may be without the status or the
    annotations that the server has. With `force`, applies take fields from other managers; without
    `adopts`, `apply_set` refuses children that exist and that nothing owns.
    """

    applies: tuple[GroupVersionKind, ...] = ()
    status: bool | None = None
    lacks_status: bool = False
    lacks_annotations: bool = False
    adopt_fields_from: tuple[str, ...] = ()  # managers whose updates become part of the first apply
    force: bool = True
    adopts: bool = True

    def require(self, kind: GroupVersionKind, handler: str) -> None:
        """Raise UndeclaredWrite for a kind that is not declared, in whatever version."""
        if not self.applies or any((k.group, k.kind) == (kind.group, kind.kind) for k in self.applies):
            return
        declared = ", ".join(str(each) for each in self.applies)
        raise UndeclaredWrite(
            f"a write of {kind} was not sent: the handler {handler} applies {declared}; add "
            f"{{apiVersion: {kind.api_version}, kind: {kind.kind}}} to its `applies` in the manifest"
        )
