"""What `declctl plan` says: the steps to a manifest, what they ask of the server, and what decodes objects.

Pure: nothing is started, and no server is asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from declctl.manifest import Plan, plan
from declctl.manifest.plan import ResourcePlan, WatchKey, WatchPlan
from declctl.runtime.changes import Side, Step, changes
from declctl.runtime.check import Checked
from declctl.runtime.costs import Cost, costs, filter_costs
from declctl.runtime.declared import FromHooks


@dataclass(frozen=True, slots=True)
class PlannedResource:
    """One resource: what its objects cost, and how many there are, if that is known."""

    plan: ResourcePlan
    costs: Sequence[Cost]
    objects: int | None = None

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "name": self.plan.name,
            "cacheMode": str(self.plan.watches[0].cache),
            "watches": [str(watch) for watch in self.plan.watches],
            "objects": self.objects,
            "costs": [cost.document() for cost in self.costs],
        }


@dataclass(frozen=True, slots=True)
class Planned:
    """The whole of it. `listed` are the watches that are begun: one LIST and one WATCH each.

    `hooks_known` is False where handlers were not imported, so that their hooks may cost more than is
    told.
    """

    name: str
    steps: Sequence[Step]
    listed: Sequence[WatchKey]
    resources: Sequence[PlannedResource]
    hooks_known: bool

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "name": self.name,
            "changes": [
                {"class": str(step.kind), "subject": step.subject, "detail": step.detail, "text": str(step)}
                for step in self.steps
            ],
            "lists": len(self.listed),
            "watches": len(self.listed),
            "resources": [resource.document() for resource in self.resources],
            "hooksKnown": self.hooks_known,
        }


def planned(
    checked: Checked, *, against: Checked | None = None, objects: Mapping[str, int] | None = None
) -> Planned:
    """The steps from one manifest without errors, or from nothing, to another.

    `objects` has how many there are of a resource.
    """
    new = _side(checked)
    old = _side(against) if against is not None else Side(_nothing_of(new.plan), "")
    return Planned(
        name=new.plan.name,
        steps=changes(old, new),
        listed=_listed(old, new, checked.hooks or FromHooks()),
        resources=[
            PlannedResource(each, _costs(each, new.plan, checked.hooks), (objects or {}).get(each.name))
            for each in new.plan.resources
        ],
        hooks_known=checked.hooks is not None or not _has_handlers(checked),
    )


def notable_costs(checked: Checked) -> Sequence[str]:
    """What decodes every object, a line each: `pods: index byTeam decodes every object, …`."""
    return [
        f"{resource.name}: {cost.subject} {cost.told()}"
        for resource in _side(checked).plan.resources
        for cost in costs(resource, checked.hooks)
        if cost.is_notable
    ]


def _costs(resource: ResourcePlan, of: Plan, hooks: FromHooks | None) -> Sequence[Cost]:
    """Of what is done with each object that comes in, and of the filters of those who listen."""
    listening = [handler for handler in of.handlers if handler.resource == resource.name]
    filters = [cost for handler in listening for cost in filter_costs(handler, resource)]
    return (*costs(resource, hooks), *filters)


def _side(checked: Checked) -> Side:
    assert checked.inputs is not None
    return Side(plan(checked.inputs.loaded.controller), checked.inputs.code)


def _nothing_of(new: Plan) -> Plan:
    """The same manifest before anything was written into it."""
    return replace(new, watches=(), resources=(), handlers=(), plugins=())


def _listed(old: Side, new: Side, hooks: FromHooks) -> Sequence[WatchKey]:
    """The watches that are not there, or whose objects are transformed by other code."""
    before = {watch.key for watch in old.plan.watches}
    recoded = old.code != new.code
    return [
        watch.key
        for watch in new.plan.watches
        if watch.key not in before or (recoded and _is_transformed(watch, hooks))
    ]


def _is_transformed(watch: WatchPlan, hooks: FromHooks) -> bool:
    by_hook = any(hooks.transforms.get(name) for name in watch.resources)
    return watch.key.transform.entry_point is not None or by_hook


def _has_handlers(checked: Checked) -> bool:
    return checked.declaration is not None and checked.declaration.is_foreign
