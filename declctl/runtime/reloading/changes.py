"""The steps of a reload, and its outcome. Pure.

`changes` compares two plans, with digests of their code, and returns steps. The kind of a step says what it
does to the running process. `Outcome` is the result of one attempt, with its steps.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from declctl.decoding.decoders import projectable_paths
from declctl.manifest import Diagnostic, render_json
from declctl.manifest.fields import LocatedSpec
from declctl.manifest.model import ADMIN_AT_START, ScheduleSpec
from declctl.manifest.plan import HandlerPlan, Plan, ResourcePlan, WatchKey
from declctl.manifest.values import EntryPoint
from declctl.objects import FieldPath
from declctl.runtime.caching.identities import CacheIdentity, match_caches
from declctl.runtime.reasons import AGAIN, BACK_AGAIN, BY_ITSELF, reload_advice

_STEPS_OF_THEIR_OWN = frozenset({"name", "resource", "resync_period", "types"})
# Every other field of a handler's plan: a difference in it gives the slot a new binding.
_POLICY = tuple(
    each.name for each in fields(HandlerPlan) if each.compare and each.name not in _STEPS_OF_THEIR_OWN
)
_SCHEDULE_FIELDS = tuple(each.name for each in fields(ScheduleSpec) if each.compare)
# Reasons of outcomes, which `reasons` explains:
NOT_KEPT = "NotKept"  # of a rollback to a generation that is not kept
EXHAUSTED = "ResourcesExhausted"  # of a refusal because the process lacks memory, threads or descriptors
STOPPING = "Stopping"  # of an attempt that was not made because the process ends
SLOW_IMPORTS = 1.0  # seconds of both imports together; the line of a reload has longer ones
_NO_TENTHS = 9.95  # from these seconds on, tenths are not shown


class StepKind(StrEnum):
    """The effect of a step on the running process."""

    KEEP = "Keep"  # the part goes on unchanged; only `kept` makes such steps
    SWAP = "Swap"  # code, a policy or another setting is exchanged; caches go on
    ADD = "Add"
    REMOVE = "Remove"
    REHOME = "Rehome"  # a resource gets other caches, or a handler moves to another resource
    REPROJECT = "Reproject"  # the records of a cache are made anew, without a LIST
    REINDEX = "Reindex"  # an index is built from the cache
    RETIME = "Retime"  # a resync period changes; its phase is kept
    RESTART = "RestartRequired"  # only a new process takes this step


_MARKS = {
    StepKind.ADD: "+",
    StepKind.REMOVE: "-",
    StepKind.REHOME: "-/+",
    StepKind.RESTART: "!",
    StepKind.KEEP: "=",
}


class Step(msgspec.Struct, frozen=True):
    """One difference between two plans. An example of `subject` is `handler notify`."""

    kind: StepKind
    subject: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{_MARKS.get(self.kind, '~')}{self.subject}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class PlanSnapshot:
    """One side of a comparison: a plan, with digests of its code."""

    plan: Plan
    code: str  # a digest of all handler files
    transformed: frozenset[str] = frozenset()  # names of the resources whose objects a hook transforms
    # By module of an entry point, a digest of the files that it imports. For other modules `code` counts.
    modules: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def resources(self) -> Mapping[str, ResourcePlan]:
        """The resources by name."""
        return {resource.name: resource for resource in self.plan.resources}

    @property
    def handlers(self) -> Mapping[str, HandlerPlan]:
        """The handlers by name."""
        return {handler.name: handler for handler in self.plan.handlers}

    def code_of(self, *entries: EntryPoint | None) -> tuple[str, ...]:
        """Digests of the code of entry points. None stands for a plugin, whose code is not in the files."""
        return tuple(self.modules.get(entry.module, self.code) for entry in entries if entry is not None)

    def forced(self, number: int) -> "PlanSnapshot":
        """A copy with other digests if a forced reload made generation `number`; 0: none did."""
        if not number:
            return self
        # Code outside of the files may have changed, so all digests change.
        modules = {name: f"{digest} {number}" for name, digest in self.modules.items()}
        return replace(self, code=f"{self.code} {number}", modules=modules)

    def handler_code(self, handler: HandlerPlan) -> tuple[str, ...]:
        """Digests of the code of a handler, its filters, its mappings, and the classes of its objects."""
        return self.code_of(*handler.code, *handler.types)

    def identities(self, resource: ResourcePlan) -> tuple[CacheIdentity, ...]:
        """The identities of its caches. With a transform, they depend on its code."""
        return tuple(
            CacheIdentity(watch, self._transform_code(resource, watch)) for watch in resource.watches
        )

    def _transform_code(self, resource: ResourcePlan, watch: WatchKey) -> str:
        if resource.name in self.transformed:
            return self.code
        return "".join(self.code_of(watch.transform.entry_point))

    def all_identities(self) -> tuple[CacheIdentity, ...]:
        """The identities of all caches, each once."""
        found = [identity for each in self.plan.resources for identity in self.identities(each)]
        return tuple(dict.fromkeys(found))

    def paths(self, identity: CacheIdentity) -> frozenset[FieldPath]:
        """The indexed fields that the records of a cache contain."""
        paths = [
            FieldPath.parse(indexer.field_path)
            for each in self.plan.resources
            if identity in self.identities(each)
            for indexer in each.indexers
            if indexer.field_path is not None
        ]
        return frozenset(projectable_paths(paths))


def changes(old: PlanSnapshot, new: PlanSnapshot) -> tuple[Step, ...]:
    """The steps from one plan to the other: resources, handlers, schedules, then the rest."""
    return (
        *_resources(old, new),
        *_handlers(old, new),
        *_schedules(old, new),
        *_others(old.plan, new.plan),
    )


def lost_finalizers(old: Plan, new: Plan) -> tuple[HandlerPlan, ...]:
    """The handlers of `old` whose finalizer no handler of the same kind has in `new`."""
    kept_names = {(_group_kind(new, handler), handler.finalizer) for handler in new.handlers}
    return tuple(
        handler
        for handler in old.handlers
        if handler.finalizer and (_group_kind(old, handler), handler.finalizer) not in kept_names
    )


def _group_kind(plan: Plan, handler: HandlerPlan) -> tuple[str, str]:
    resource = next(each for each in plan.resources if each.name == handler.resource)
    return CacheIdentity(resource.watches[0]).group_kind


def finalizer_left(handler: str, finalizer: str, keys: Sequence[str]) -> str:
    """The message about a finalizer that has disappeared while objects have it; `keys` are theirs."""
    some = ", ".join(keys[:3]) + (", …" if len(keys) > 3 else "")
    have = "object has" if len(keys) == 1 else "objects have"
    return (
        f"the finalizer {finalizer} of the handler {handler} is not in the manifest any more, "
        f"and {len(keys):,} {have} it ({some}): without a handler for it, they could not be deleted"
    )


def kept(old: PlanSnapshot, new: PlanSnapshot, steps: Sequence[Step]) -> tuple[Step, ...]:
    """A step KEEP for each resource, handler and schedule of both plans that no other step changes."""
    touched = {step.subject for step in steps}
    subjects = [f"resource {name}" for name in new.resources if name in old.resources]
    subjects += [f"handler {name}" for name in new.handlers if name in old.handlers]
    before = {schedule.name for schedule in old.plan.schedules}
    subjects += [f"schedule {each.name}" for each in new.plan.schedules if each.name in before]
    return tuple(Step(StepKind.KEEP, subject) for subject in subjects if subject not in touched)


def summary(steps: Sequence[Step]) -> str:
    """The steps on one line: `~handler notify (code) +index pods.byTeam`."""
    return " ".join(str(step) for step in steps) or "nothing changed"


def needing_restart(old: Plan, new: Plan) -> Iterable[Step]:
    """The steps to `new` that a process that was started with `old` can't take."""
    for name in ("bind_address", *ADMIN_AT_START):
        if getattr(old.admin, name) != getattr(new.admin, name):
            yield Step(StepKind.RESTART, f"admin.{_camel(name)}")
    if old.metrics != new.metrics:
        yield Step(StepKind.RESTART, "metrics.bindAddress")
    if old.leader_election != new.leader_election:
        yield Step(StepKind.RESTART, "leaderElection", _why_elected(old, new))
    if old.sharding != new.sharding:
        yield Step(StepKind.RESTART, "sharding", _why_shared(old, new))
    if old.state != new.state:
        yield Step(StepKind.RESTART, "state")
    if old.name != new.name:
        yield Step(StepKind.RESTART, "metadata.name")


def _resources(old: PlanSnapshot, new: PlanSnapshot) -> Iterable[Step]:
    before, after = old.resources, new.resources
    served = match_caches(old.all_identities(), new.all_identities())
    yield from (Step(StepKind.REMOVE, f"resource {name}") for name in before if name not in after)
    for name, resource in after.items():
        if name not in before:
            yield Step(StepKind.ADD, f"resource {name}")
            continue
        previous = before[name]
        old_caches, new_caches = old.identities(previous), new.identities(resource)
        # Caches that are reprojected, without a LIST: only the form of their records changes.
        to_reproject = {served[identity] for identity in new_caches if identity not in old_caches}
        if set(old_caches) != set(new_caches):
            is_reprojection = bool(to_reproject) and to_reproject == set(old_caches) - set(new_caches)
            kind = StepKind.REPROJECT if is_reprojection else StepKind.REHOME
            why = _why_moved(previous, resource) or "code of the transform"
            yield Step(kind, f"resource {name}", f"reproject: {why}" if is_reprojection else why)
        if previous.resync_period != resource.resync_period:
            yield Step(StepKind.RETIME, f"resource {name}", "resync")
        if previous.idle_timeout != resource.idle_timeout:
            yield Step(StepKind.SWAP, f"resource {name}", "idleTimeout")
        if previous.object_type != resource.object_type:
            yield Step(StepKind.SWAP, f"resource {name}", "type")
        yield from _indexers(previous, resource, old, new)
        # The records of a cache that stays may need more fields, for a new index.
        lacking = {
            path for each in new_caches if each in old_caches for path in new.paths(each) - old.paths(each)
        }
        if lacking:
            fields = ", ".join(sorted(map(str, lacking)))
            yield Step(StepKind.REPROJECT, f"resource {name}", f"reproject: {fields}")


def _indexers(
    before: ResourcePlan, after: ResourcePlan, old_snapshot: PlanSnapshot, new_snapshot: PlanSnapshot
) -> Iterable[Step]:
    old = {indexer.name: indexer for indexer in before.indexers}
    new = {indexer.name: indexer for indexer in after.indexers}
    yield from (Step(StepKind.REMOVE, f"index {after.name}.{name}") for name in old if name not in new)
    for name, indexer in new.items():
        subject = f"index {after.name}.{name}"
        if name not in old:
            yield Step(StepKind.ADD, subject)
        elif old[name] != indexer:
            yield Step(StepKind.REINDEX, subject)
        elif old_snapshot.code != new_snapshot.code and old_snapshot.code_of(
            indexer.entry_point
        ) != new_snapshot.code_of(indexer.entry_point):
            yield Step(StepKind.REINDEX, subject, "code")


def _handlers(old: PlanSnapshot, new: PlanSnapshot) -> Iterable[Step]:
    before, after = old.handlers, new.handlers
    yield from (Step(StepKind.REMOVE, f"handler {name}") for name in before if name not in after)
    for name, handler in after.items():
        if name not in before:
            yield Step(StepKind.ADD, f"handler {name}")
            yield from (Step(StepKind.ADD, f"watch {name}: {watch}") for watch in handler.watches)
            continue
        previous = before[name]
        if previous.resource != handler.resource:
            yield Step(StepKind.REHOME, f"handler {name}", "resourceRef")
        if previous.resync_period != handler.resync_period:
            yield Step(StepKind.RETIME, f"handler {name}", "resync")
        # If the digests of all files are equal, those of the modules are equal too.
        same_code = old.code == new.code or old.handler_code(previous) == new.handler_code(handler)
        reasons = [] if same_code else ["code"]
        reasons += [field for field in _POLICY if getattr(previous, field) != getattr(handler, field)]
        if reasons:
            yield Step(StepKind.SWAP, f"handler {name}", ", ".join(_camel(reason) for reason in reasons))
        yield from _watches(previous, handler)
    # Another order is one step, also if several handlers have moved.
    if [name for name in before if name in after] != [name for name in after if name in before]:
        yield Step(StepKind.SWAP, "handlers", "order")


def _watches(before: HandlerPlan, after: HandlerPlan) -> Iterable[Step]:
    """The watches of a reconciler that differ. Another mapping is another watch."""
    old = {str(watch): watch for watch in before.watches}
    new = {str(watch): watch for watch in after.watches}
    yield from (Step(StepKind.REMOVE, f"watch {after.name}: {text}") for text in old if text not in new)
    for text, watch in new.items():
        if text not in old:
            yield Step(StepKind.ADD, f"watch {after.name}: {text}")
        elif old[text] != watch:
            yield Step(StepKind.SWAP, f"watch {after.name}: {text}", "filter")


def _schedules(old: PlanSnapshot, new: PlanSnapshot) -> Iterable[Step]:
    before = {schedule.name: schedule for schedule in old.plan.schedules}
    after = {schedule.name: schedule for schedule in new.plan.schedules}
    yield from (Step(StepKind.REMOVE, f"schedule {name}") for name in before if name not in after)
    for name, schedule in after.items():
        if name not in before:
            yield Step(StepKind.ADD, f"schedule {name}")
            continue
        previous = before[name]
        same_code = old.code == new.code or old.code_of(previous.entry_point) == new.code_of(
            schedule.entry_point
        )
        reasons = [] if same_code else ["code"]
        reasons += [f for f in _SCHEDULE_FIELDS if getattr(previous, f) != getattr(schedule, f)]
        if reasons:
            yield Step(StepKind.SWAP, f"schedule {name}", ", ".join(_camel(reason) for reason in reasons))


def _others(old: Plan, new: Plan) -> Iterable[Step]:
    plugins = {plugin.name: plugin for plugin in old.plugins}
    for plugin in new.plugins:
        if plugin.name not in plugins:
            yield Step(StepKind.ADD, f"plugin {plugin.name}")
        elif plugins[plugin.name] != plugin:
            yield Step(StepKind.SWAP, f"plugin {plugin.name}")
    kept = {plugin.name for plugin in new.plugins}
    yield from (Step(StepKind.REMOVE, f"plugin {name}") for name in plugins if name not in kept)
    for name in ("startup", "shutdown", "grace_period"):
        if getattr(old.lifecycle, name) != getattr(new.lifecycle, name):
            yield Step(StepKind.SWAP, f"lifecycle {_camel(name)}")
    for name in ("reload", "writes"):
        if getattr(old, name) != getattr(new, name):
            yield Step(StepKind.SWAP, name)
    if old.admin.allowed_hosts != new.admin.allowed_hosts:
        yield Step(StepKind.SWAP, "admin.allowedHosts")
    yield from needing_restart(old, new)


def _why_elected(old: Plan, new: Plan) -> str:
    """The fields of the election that differ."""
    return _differing(old.leader_election, new.leader_election)


def _why_shared(old: Plan, new: Plan) -> str:
    """The fields of the sharding that differ; empty if one plan has none."""
    before, after = old.sharding, new.sharding
    return "" if before is None or after is None else _differing(before, after)


def _differing(before: LocatedSpec, after: LocatedSpec) -> str:
    names = (each.name for each in fields(before) if each.compare)
    return ", ".join(_camel(name) for name in names if getattr(before, name) != getattr(after, name))


def _why_moved(before: ResourcePlan, after: ResourcePlan) -> str:
    names = (each.name for each in fields(WatchKey))
    return ", ".join(_camel(name) for name in names if _all(before, name) != _all(after, name))


def _all(resource: ResourcePlan, name: str) -> set[object]:
    return {getattr(key, name) for key in resource.watches}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class Result(StrEnum):
    """The result of an attempt."""

    APPLIED = "Applied"
    UNCHANGED = "Unchanged"
    REFUSED = "Refused"
    ROLLED_BACK = "RolledBack"  # the generation before runs again, under a new number
    SUPERSEDED = "Superseded"  # given up before its commit because the files have changed again


def takes_effect(subjects: Sequence[str]) -> str:
    """`metadata.name takes effect when the process starts again`."""
    verb = "takes" if len(subjects) == 1 else "take"
    return f"{' and '.join(subjects)} {verb} effect when the process starts again"


class ImportSeconds(NamedTuple):
    """The duration of both imports of the handlers, in seconds; 0 if nothing was imported."""

    in_preflight: float = 0.0
    here: float = 0.0

    @property
    def are_slow(self) -> bool:
        """Whether the imports explain a slow reload."""
        return self.in_preflight + self.here > SLOW_IMPORTS

    def __str__(self) -> str:
        """`imports took 20 s in the pre-flight and 20 s here`."""
        places = (self.in_preflight, "in the pre-flight"), (self.here, "here")
        return "imports took " + " and ".join(f"{shown_seconds(s)} {place}" for s, place in places if s)


def shown_seconds(seconds: float) -> str:
    """Seconds as text, such as `20 s` or `1.5 s`; tenths are left out above 10 s."""
    return f"{seconds:.0f} s" if seconds >= _NO_TENTHS else f"{seconds:.1f} s"


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one attempt; plugins receive it in `declctl_reload`."""

    result: Result
    generation: int  # that is active after the attempt
    bundle_hash: str  # the digest of the files, or a text if they can't be read
    reason: str = ""  # a CamelCase word
    message: str = ""
    seconds: float = 0.0  # from the read to the commit
    steps: Sequence[Step] = ()
    lists: int = 0  # LISTs until the commit
    diagnostics: Sequence[Diagnostic] = ()
    watches: int = 0  # WATCHes until the commit
    unplanned: Sequence[str] = ()  # requests that the plan had not, in words
    back: bool = False  # the attempt was a rollback, and says nothing of the files
    imports: ImportSeconds = ImportSeconds()  # of a committed generation
    replayed: int = 0  # cached objects that come again, behind live changes, to code that has changed

    @property
    def bundle(self) -> str:
        """The digest of the files, also if they have errors; empty if they could not be read."""
        digest = self.bundle_hash.removeprefix("faulty ")
        return digest if digest.isalnum() else ""

    @property
    def line(self) -> str:
        """The outcome on one line, such as `generation 7: ~handler notify (code), 0 LIST, 3 ms`."""
        if self.result is Result.REFUSED:
            what = "rollback" if self.back else "reload"
            return f"{what} refused, generation {self.generation} goes on: {self.message}"
        if self.result is Result.SUPERSEDED:
            took = f"{self.seconds * 1000:.0f} ms"
            return f"reload of {self.bundle[:12]} given up after {took}: files have changed again"
        if self.reason == STOPPING:
            return f"generation {self.generation}: the process is stopping, and reads its files no more"
        if self.result is Result.UNCHANGED:
            return f"generation {self.generation}: {summary(self.steps)}{self._restarts}"
        took = f"{self.seconds * 1000:.0f} ms"
        objects = "object" if self.replayed == 1 else "objects"
        again = f", {self.replayed:,} {objects} again" if self.replayed else ""
        if self.result is Result.ROLLED_BACK:
            return f"generation {self.generation}: {self.message}{again}, {self.lists} LIST, {took}"
        if self.imports.are_slow:
            took = f"{took} ({self.imports})"
        what = f"{summary(self.steps)}{again}"
        line = f"generation {self.generation}: {what}, {self.lists} LIST, {took}{self._restarts}"
        return f"{line}; not as planned: {'; '.join(self.unplanned)}" if self.unplanned else line

    @property
    def _restarts(self) -> str:
        """The changes that need a new process, as the end of a sentence; empty if there are none."""
        subjects = [step.subject for step in self.steps if step.kind is StepKind.RESTART]
        return f"; {takes_effect(subjects)}" if subjects else ""

    @property
    def advice(self) -> str | None:
        """Advice for a user; None if no action is needed, or the diagnostics have suggestions."""
        if self.result not in (Result.REFUSED, Result.ROLLED_BACK):
            return None
        if any(fault.severity == "error" and fault.suggestion for fault in self.diagnostics):
            return None
        advice = reload_advice(self.reason)
        if advice and self.back:
            return advice.replace(AGAIN, BACK_AGAIN).replace(BY_ITSELF, BACK_AGAIN)
        return advice

    def as_rollback(self) -> "Outcome":
        """A copy that is marked as a rollback."""
        return msgspec.structs.replace(self, back=True)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "result": str(self.result),
            "generation": self.generation,
            "bundleHash": self.bundle,
            "reason": self.reason,
            "message": self.message,
            "seconds": round(self.seconds, 6),
            "preflightImportSeconds": round(self.imports.in_preflight, 6),
            "importSeconds": round(self.imports.here, 6),
            "changes": [str(step) for step in self.steps],
            "replayed": self.replayed,
            "lists": self.lists,
            "watches": self.watches,
            "unplanned": list(self.unplanned),
            "rollback": self.back,
            "suggestion": self.advice,
            "diagnostics": render_json(self.diagnostics),
        }
