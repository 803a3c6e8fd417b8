"""What handlers have applied and no handler goes on with, after an edit of the manifest: it stays.

The API server has it in the fields of a manager. Children go with their owner only.
"""

from collections.abc import Collection, Iterator, Sequence

import msgspec

from declctl.manifest.plan import HandlerPlan, Plan
from declctl.objects import GroupVersionKind
from declctl.writes import field_manager

_PART_OF = "applyset.kubernetes.io/part-of"  # the label of all children


class PlannedOrphan(msgspec.Struct, frozen=True):
    """Objects that stay, as no handler has their field manager or their kind any more."""

    handler: str  # which had the manager
    manager: str
    kinds: Sequence[str]  # that it has applied, as declared; empty if they are not known
    narrowed: bool = False  # a handler has the manager, and its `applies` has lost these kinds
    find: str = ""  # the command that shows the children; empty if their kinds are not known, or `narrowed`

    def __str__(self) -> str:
        if self.narrowed:
            return (
                f"children of {', '.join(self.kinds)} that {self.handler} has applied stay, and are deleted "
                "with their owners only: `applies` names the kinds in which apply_set deletes"
            )
        what = f" in {', '.join(self.kinds)}" if self.kinds else ""
        return (
            f"fields{what} that {self.handler} has applied stay with the field manager {self.manager}: a "
            f"handler that goes on with them needs fieldManager: {self.manager}"
        )

    @property
    def hint(self) -> str:
        """How to find the children, and how to delete them; empty if their kinds are not known."""
        if not self.find:
            return ""
        return (
            f"its children stay until their owners are deleted; `{self.find}` shows those of all handlers: "
            f"delete the ones with this manager by kubectl, if they shall go"
        )


def orphans_of(old: Plan, new: Plan, written: Collection[str]) -> Iterator[PlannedOrphan]:
    """The field managers of the old manifest that the new one has not, and the kinds that `applies` loses.

    `written` are the handlers that have applied something in the running process.
    """
    managers = {_manager(new, handler): handler for handler in new.handlers}
    for handler in old.handlers:
        manager = _manager(old, handler)
        if manager not in managers:
            if handler.applies or handler.name in written:
                kinds = [str(kind) for kind in handler.applies]
                yield PlannedOrphan(handler.name, manager, kinds, find=_find(handler.applies))
            continue
        # Without `applies`, a handler may delete every kind.
        stay = {(kind.group, kind.kind) for kind in managers[manager].applies}
        lost = [kind for kind in handler.applies if (kind.group, kind.kind) not in stay]
        if stay and lost:
            yield PlannedOrphan(handler.name, manager, [str(kind) for kind in lost], narrowed=True)


def _find(kinds: Sequence[GroupVersionKind]) -> str:
    if not kinds:
        return ""
    names = ",".join(f"{kind.kind}.{kind.group}" if kind.group else kind.kind for kind in kinds)
    return f"kubectl get {names} --all-namespaces -l {_PART_OF} --show-managed-fields -o yaml"


def _manager(plan: Plan, handler: HandlerPlan) -> str:
    return handler.field_manager or field_manager(plan.name, handler.name)
