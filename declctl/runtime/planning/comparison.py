"""The comparison of `declctl plan`: the steps from one manifest to another, and their costs.

Pure: starts nothing, and sends no request to a server. Objects that leave the scope of a handler (Deleted,
OutOfScope) are counted in the caches of the running process, by the selectors of both manifests. If only the
API server or user code knows a number, the comparison says why there is none.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from declctl.kit.documents import document_of
from declctl.manifest import Plan
from declctl.manifest.model import CacheMode, FilterSpec, InitialSync, ShardingSpec, filters_differ
from declctl.manifest.plan import HandlerPlan, ResourcePlan, WatchKey
from declctl.objects import ChangeType, FieldPath, FieldSelector
from declctl.runtime.caching.identities import CacheIdentity, match_caches
from declctl.runtime.checking.check import CheckResult
from declctl.runtime.checking.declaration import FromHooks
from declctl.runtime.planning.costs import Cost, costs, filter_costs, plan_of
from declctl.runtime.planning.running_plan import RunningPlan, masked
from declctl.runtime.reloading.changes import (
    PlanSnapshot,
    Step,
    StepKind,
    changes,
    kept,
    lost_finalizers,
    needing_restart,
)
from declctl.runtime.reloading.orphans import PlannedOrphan, orphans_of
from declctl.runtime.reloading.stage import handler_digests, recoded_handlers


class ObjectSelection(NamedTuple):
    """A selection of the cached objects of a resource."""

    resource: str
    namespace: str | None = None  # None: of all namespaces
    labels: str = ""  # label selector
    fields: str = ""  # field selector


MatchCounter = Callable[[ObjectSelection], int | None]
"""Returns the number of selected objects in the caches; None if it is not known."""


class OutOfScope(msgspec.Struct, frozen=True):
    """The objects that leave the scope of a handler."""

    objects: int | None  # the number; None if it is not known
    unknown: str = ""  # why it is not known; empty if there is no running process to count in


def out_of_scope(
    old: PlanSnapshot,
    new: PlanSnapshot,
    handler: str,
    *,
    known: int | None,
    matching: MatchCounter | None,
    namespaces: Mapping[str, Sequence[str]] | None = None,
) -> OutOfScope:
    """Count the objects that a handler of both manifests will receive as Deleted (OutOfScope).

    The reason is a narrower namespace, selector or filter. `known` is the number of objects in its caches.
    `namespaces` has those that selectors match now, as far as the running process follows them.
    """
    was, now = old.handlers[handler], new.handlers[handler]
    if matching is None or known is None:
        return OutOfScope(None)
    # The handler does not receive Deleted.
    if ChangeType.DELETED not in now.events:
        return OutOfScope(0)
    before, after = old.resources[was.resource], new.resources[now.resource]
    # A narrower field selector is applied here to the cached objects, as the API server will apply it.
    narrower = {watch.field_selector for watch in before.watches} != {
        watch.field_selector for watch in after.watches
    }
    if narrower and (path := _not_cached(before, after, transformed=before.name in old.transformed)):
        return OutOfScope(None, f"{path} is not in the cache as the API server has it")
    unknown = {watch.namespace_selector for watch in after.watches} - {"", *(namespaces or {})}
    if unknown:
        return OutOfScope(None, f"only the cluster knows which namespaces have {', '.join(sorted(unknown))}")
    # The objects that the handler has received passed the old filter; those that stay pass both filters.
    received, stays = _labels(was.filter), _labels(was.filter, now.filter)
    counts = [
        matching(ObjectSelection(before.name, namespace, _joined(labels, stays), fields))
        for namespace, labels, fields in dict.fromkeys(
            (namespace, w.label_selector, w.field_selector if narrower else "")
            for w in after.watches
            for namespace in _namespaces_of(w, namespaces or {})
        )
    ]
    counts.append(matching(ObjectSelection(before.name, labels=received)) if received else known)
    # One count without an answer makes the difference unknown.
    found = [count for count in counts if count is not None]
    if len(found) < len(counts):
        return OutOfScope(None, "the running process does not tell how many of its cached objects match")
    *staying, all_received = found
    # Watches of a resource may overlap: then the sum counts objects twice.
    gone = max(0, all_received - sum(staying))
    functions = _functions(was, now)
    if functions and (gone or judges_otherwise(old, new, handler)):
        return OutOfScope(None, f"only a reload calls {' and '.join(functions)}, with each object")
    return OutOfScope(gone)


def _namespaces_of(watch: WatchKey, selected: Mapping[str, Sequence[str]]) -> Sequence[str | None]:
    """The namespaces of a watch; None stands for all."""
    return selected[watch.namespace_selector] if watch.namespace_selector else (watch.namespace,)


def judges_otherwise(old: PlanSnapshot, new: PlanSnapshot, handler: str) -> bool:
    """Whether the filters of a handler in both manifests may judge one object differently.

    A function counts as changed if any handler file has changed, as at a reload.
    """
    same_code = old.code == new.code
    return filters_differ(old.handlers[handler].filter, new.handlers[handler].filter, same_code=same_code)


def _functions(*handlers: HandlerPlan) -> tuple[str, ...]:
    """The entry points and expressions by which the handlers' filters judge objects, each once."""
    parts = [each.filter.object_part for each in handlers if each.filter is not None]
    found = [str(part.entry_point) for part in parts if part.entry_point is not None]
    found += ["filter.expression" for part in parts if part.expression]
    return tuple(dict.fromkeys(found))


def _labels(*filters: FilterSpec | None) -> str:
    return _joined(*(each.label_selector for each in filters if each is not None))


def _joined(*selectors: str) -> str:
    """A label selector for the objects that all of these select."""
    return ",".join(dict.fromkeys(filter(None, selectors)))


def _not_cached(before: ResourcePlan, after: ResourcePlan, *, transformed: bool) -> str:
    """The first field of a new field selector that cached objects may lack; empty if they lack none."""
    watch = before.watches[0]
    dropped = [FieldPath.parse(path).steps for path in watch.transform.drop_fields]
    changed = transformed or watch.transform.entry_point is not None
    selectors = (FieldSelector.parse(each.field_selector) for each in after.watches)
    for path in (path for selector in selectors for path, _, _ in selector.conditions):
        steps = FieldPath.parse(path).steps
        # Every record has these fields, also if they are dropped from the object.
        if steps in (("metadata", "name"), ("metadata", "namespace")):
            continue
        cut = any(steps[: len(each)] == each for each in dropped)
        if changed or cut or (watch.cache is CacheMode.METADATA_ONLY and steps[0] != "metadata"):
            return path
    return ""


class PlannedResource(msgspec.Struct, frozen=True):
    """One resource of the new manifest."""

    plan: ResourcePlan
    costs: Sequence[Cost]  # for each object
    objects: int | None = None  # the number of objects, if it is known
    namespaces: Sequence[str] | None = None  # those that its selector matches now, if they are known

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "name": self.plan.name,
            "cacheMode": str(self.plan.watches[0].cache),
            "watches": [str(watch) for watch in self.plan.watches],
            "objects": self.objects,
            "namespaceSelector": self.plan.namespace_selector or None,
            "namespaces": None if self.namespaces is None else list(self.namespaces),
            "sharded": self.plan.sharded,
            "costs": document_of(self.costs),
        }


class PlannedReplay(msgspec.Struct, frozen=True):
    """A handler that receives objects that are already cached."""

    handler: str
    objects: int | None  # the number of objects in its caches; None if it is not known
    only_differences: bool = False  # it receives only objects that differ from those it has received before
    out_of_scope: int | None = None  # of these, the number that it receives as Deleted; None if not known
    not_counted: str | None = None  # why `out_of_scope` is not known, if there is a running process

    def __str__(self) -> str:
        known = "the cache" if self.objects is None else f"~{self.objects:,} objects"
        what = f"what differs in {known}" if self.only_differences else known
        gone = f": ~{self.out_of_scope:,} as Deleted (OutOfScope)" if self.out_of_scope else ""
        if self.not_counted:
            gone = f"; how many as Deleted (OutOfScope) is not counted: {self.not_counted}"
        return f"{self.handler} hears {what}{gone}"


class PlannedRemoval(msgspec.Struct, frozen=True):
    """A handler that is removed while changes wait for it."""

    handler: str
    waiting: int  # changes
    drain_timeout: float  # seconds to process them; the rest is dropped

    def __str__(self) -> str:
        changes = "1 change waits" if self.waiting == 1 else f"{self.waiting:,} changes wait"
        within = f"what is not done within drainTimeout ({self.drain_timeout:g} s) is dropped"
        return f"{changes} for {self.handler}: {within}"


class LostFinalizer(msgspec.Struct, frozen=True):
    """A finalizer of the other plan that no handler has any more."""

    handler: str
    finalizer: str
    objects: tuple[str, ...] | None  # keys of the cached objects that have it; None without a running process


class PlanComparison(msgspec.Struct, frozen=True):
    """The result of `declctl plan`."""

    name: str  # of the Controller
    steps: Sequence[Step]
    listed: Sequence[WatchKey]  # the new watches: one LIST and one WATCH each
    resources: Sequence[PlannedResource]
    hooks_known: bool  # False: handlers were not imported, so that costs of their hooks may be missing
    replays: Sequence[PlannedReplay] = ()
    kept: Sequence[Step] = ()  # the parts that go on unchanged
    handlers: Sequence[HandlerPlan] = ()  # those of the new manifest
    removals: Sequence[PlannedRemoval] = ()
    orphans: Sequence[PlannedOrphan] = ()
    lost_finalizers: Sequence[LostFinalizer] = ()
    import_seconds: float = 0.0  # duration of the import in a child process; a reload imports twice
    sharding: ShardingSpec | None = None  # of the new manifest

    @property
    def restart_required(self) -> tuple[str, ...]:
        """The steps that only a new process takes, as texts."""
        return tuple(
            f"{step.subject} ({step.detail})" if step.detail else step.subject
            for step in self.steps
            if step.kind is StepKind.RESTART
        )

    @property
    def requests(self) -> int:
        """The number of LISTs, and of WATCHes; each selector of namespaces that are not known counts once."""
        known = {
            resource.plan.namespace_selector: len(resource.namespaces)
            for resource in self.resources
            if resource.namespaces is not None
        }
        return sum(known.get(w.namespace_selector, 1) if w.namespace_selector else 1 for w in self.listed)

    @property
    def objects_listed(self) -> int | None:
        """The approximate number of objects that are listed; None if it is not known of any resource."""
        listed = set(self.listed)
        known = [
            resource.objects
            for resource in self.resources
            if resource.objects is not None and listed & set(resource.plan.watches)
        ]
        return sum(known) if known else None

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "name": self.name,
            "sharding": self.sharding and {"slots": self.sharding.slots, "by": str(self.sharding.by)},
            "changes": [_step(step) for step in self.steps],
            "restartRequired": list(self.restart_required),
            "kept": [_step(step) for step in self.kept],
            "lists": self.requests,
            "watches": self.requests,
            "listed": [str(watch) for watch in self.listed],
            "objectsListed": self.objects_listed,
            "replayed": document_of(self.replays),
            "removals": document_of(self.removals),
            "lostFinalizers": document_of(self.lost_finalizers),
            "orphans": document_of(self.orphans),
            "resources": document_of(self.resources),
            "handlers": [_handler(handler) for handler in self.handlers],
            "hooksKnown": self.hooks_known,
            "preflightImportSeconds": round(self.import_seconds, 6),
        }


def compare_plans(
    checked: CheckResult,
    *,
    against: CheckResult | RunningPlan | None = None,
    objects: Mapping[str, int] | None = None,
    matching: MatchCounter | None = None,
) -> PlanComparison:
    """Compare a manifest without errors with another one, with a running process, or with nothing.

    `objects` has the number of objects by resource; a running process knows it itself. `matching` counts
    cached objects of the running process.
    """
    # A reload does not change whether caches have slots alone: that takes a new process.
    new = _side(checked, is_sharded=_is_sharded(against))
    living: Sequence[CacheIdentity]
    written: Collection[str] = ()
    if isinstance(against, RunningPlan):
        plan_of_new = masked(against.scoped(new.plan))
        # The running process knows which kinds have no namespaces, and has digests for configs of plugins.
        new, old, objects = replace(new, plan=plan_of_new), against.side, against.objects
        written = against.written
        living = [cache.identity for cache in against.caches]
    else:
        # Nothing to compare with: an empty manifest of the same name and settings.
        nothing = replace(new.plan, watches=(), resources=(), handlers=(), plugins=(), schedules=())
        old = _side(against) if against is not None else PlanSnapshot(nothing, "")
        living = old.all_identities()
    # Without an import it is not known which resources hooks transform: that counts as unchanged.
    if checked.hooks is None:
        new = replace(new, transformed=old.transformed)
    steps = (*_changes(against, old, new), *_restarts(against, new))
    # Only a process that runs knows which namespaces a selector matches.
    selected = against.namespaces if isinstance(against, RunningPlan) else {}
    # If a name stands for another kind now, the number of its objects is not known.
    counts = {name: count for name, count in (objects or {}).items() if not _is_other_kind(old, new, name)}
    return PlanComparison(
        name=new.plan.name,
        steps=steps,
        listed=[
            each.watch
            for each, serving in match_caches(living, new.all_identities()).items()
            if serving is None
        ],
        resources=[
            PlannedResource(
                each,
                _costs(each, new.plan, checked.hooks),
                counts.get(each.name),
                selected.get(each.namespace_selector),
            )
            for each in new.plan.resources
        ],
        hooks_known=checked.hooks is not None
        or checked.declaration is None
        or not checked.declaration.has_user_code,
        replays=()
        if against is None
        else tuple(_replays(steps, old, new, counts, _recoded(against, checked), matching, selected)),
        kept=kept(old, new, steps),
        handlers=new.plan.handlers,
        removals=tuple(_removals(against, new)),
        lost_finalizers=tuple(_lost(against, old, new)),
        orphans=tuple(orphans_of(old.plan, new.plan, written)),
        import_seconds=checked.import_seconds,
        sharding=new.plan.sharding,
    )


def _step(step: Step) -> dict[str, str]:
    return {"class": str(step.kind), "subject": step.subject, "detail": step.detail, "text": str(step)}


def _handler(handler: HandlerPlan) -> dict[str, Any]:
    return {
        "name": handler.name,
        "mode": str(handler.mode),
        "resource": handler.resource,
        "watches": [
            {"resource": watch.resource, "mapTo": str(watch.map_to), "filtered": watch.filter is not None}
            for watch in handler.watches
        ],
    }


def _changes(
    against: CheckResult | RunningPlan | None, old: PlanSnapshot, new: PlanSnapshot
) -> Iterator[Step]:
    """The steps. A running process needs a restart for settings that differ from those at its start."""
    if not isinstance(against, RunningPlan):
        yield from changes(old, new)
        return
    yield from (step for step in changes(old, new) if step.kind is not StepKind.RESTART)
    yield from needing_restart(against.first_plan, new.plan)


def _restarts(against: CheckResult | RunningPlan | None, new: PlanSnapshot) -> tuple[Step, ...]:
    """The plugins of the manifest of which the process has loaded another version than is installed."""
    if not isinstance(against, RunningPlan):
        return ()
    plugins = {f"plugin {plugin.name}" for plugin in new.plan.plugins}
    return tuple(step for step in against.restarts if step.subject in plugins)


def _removals(against: CheckResult | RunningPlan | None, new: PlanSnapshot) -> Iterator[PlannedRemoval]:
    """The handlers that are removed while changes wait for them in the running process."""
    if isinstance(against, RunningPlan):
        for name in against.side.handlers:
            # With another kind it is a new handler under the old name: the old queue is removed.
            goes = name not in new.handlers or _hears_other_kind(against.side, new, name)
            if goes and against.waiting.get(name):
                yield PlannedRemoval(name, against.waiting[name], new.plan.reload.drain_timeout)


def _lost(
    against: CheckResult | RunningPlan | None, old: PlanSnapshot, new: PlanSnapshot
) -> Iterator[LostFinalizer]:
    """The finalizers that disappear; with a running process, those that objects in its caches have."""
    for handler in lost_finalizers(old.plan, new.plan):
        if not isinstance(against, RunningPlan):
            yield LostFinalizer(handler.name, handler.finalizer, None)
        elif keys := against.finalized.get(handler.name):
            yield LostFinalizer(handler.name, handler.finalizer, tuple(keys))


def _recoded(against: CheckResult | RunningPlan, checked: CheckResult) -> Sequence[str]:
    """The handlers that receive the cache again because their code has changed."""
    assert checked.inputs is not None
    if isinstance(against, RunningPlan):
        before = against.handler_code
    else:
        assert against.inputs is not None
        before = handler_digests(plan_of(against), against.inputs.bundle)
    return recoded_handlers(before, plan_of(checked), checked.inputs.bundle)


def _replays(
    steps: Sequence[Step],
    old: PlanSnapshot,
    new: PlanSnapshot,
    objects: Mapping[str, int],
    recoded: Sequence[str],
    matching: MatchCounter | None,
    selected: Mapping[str, Sequence[str]],
) -> Iterator[PlannedReplay]:
    """The handlers that receive cached objects.

    A new handler receives all objects; so does one on another kind, and a `recoded` one (`replay:
    OnCodeChange`). A handler with other caches or another filter receives the differences.
    """
    added = {step.subject for step in steps if step.kind is StepKind.ADD}
    moved = {step.subject for step in steps if step.kind is StepKind.REHOME}
    for name, handler in new.handlers.items():
        subject, count = f"handler {name}", objects.get(handler.resource)
        if subject in added or _hears_other_kind(old, new, name):
            if handler.initial_sync is InitialSync.DELIVER:
                yield PlannedReplay(name, count)
        elif name in recoded:
            # It receives everything, so differences are part of that.
            yield PlannedReplay(name, count)
        elif subject in moved or f"resource {handler.resource}" in moved or judges_otherwise(old, new, name):
            known = objects.get(old.handlers[name].resource)
            gone = out_of_scope(old, new, name, known=known, matching=matching, namespaces=selected)
            yield PlannedReplay(
                name, count, only_differences=True, out_of_scope=gone.objects, not_counted=gone.unknown
            )


def _is_other_kind(old: PlanSnapshot, new: PlanSnapshot, resource: str) -> bool:
    """Whether a name of a resource stands for another kind in the new manifest."""
    before, after = old.resources.get(resource), new.resources.get(resource)
    return before is not None and after is not None and _group_kind(before) != _group_kind(after)


def _hears_other_kind(old: PlanSnapshot, new: PlanSnapshot, handler: str) -> bool:
    """Whether a handler of both manifests receives objects of another kind in the new one."""
    before, after = old.handlers.get(handler), new.handlers.get(handler)
    if before is None or after is None:
        return False
    return _group_kind(old.resources[before.resource]) != _group_kind(new.resources[after.resource])


def _group_kind(resource: ResourcePlan) -> tuple[str, str]:
    return CacheIdentity(resource.watches[0]).group_kind


def _costs(resource: ResourcePlan, of: Plan, hooks: FromHooks | None) -> Sequence[Cost]:
    """The costs of each object of a resource, and of the filters of its handlers."""
    listening = [handler for handler in of.handlers if handler.resource == resource.name]
    filters = [cost for handler in listening for cost in filter_costs(handler, resource)]
    return (*costs(resource, hooks), *filters)


def _is_sharded(against: CheckResult | RunningPlan | None) -> bool | None:
    if isinstance(against, RunningPlan):
        return against.first_plan.sharding is not None
    return None if against is None else plan_of(against).sharding is not None


def _side(checked: CheckResult, *, is_sharded: bool | None = None) -> PlanSnapshot:
    assert checked.inputs is not None
    by_hooks = checked.hooks.transforms if checked.hooks is not None else {}
    transformed = frozenset(name for name, hooks in by_hooks.items() if hooks)
    planned = plan_of(checked, is_sharded=is_sharded)
    return PlanSnapshot(planned, checked.inputs.code, transformed, checked.inputs.modules)
