"""What a reload changes, and what came of it. Pure: nothing here touches what runs.

`changes` compares two plans, with digests of their code, and returns steps. The kind of a step says what it
costs. `summary` is the one line that a person reads after a reload. `Outcome` is one attempt, with its steps.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from declctl.decoding.decoders import projectable_paths
from declctl.manifest import Diagnostic, render_json
from declctl.manifest.plan import HandlerPlan, Plan, ResourcePlan, WatchKey
from declctl.manifest.values import EntryPoint
from declctl.objects import FieldPath
from declctl.runtime.caching.identities import CacheIdentity, match_caches

_STEPS_OF_THEIR_OWN = frozenset({"name", "resource", "resync_period"})
# Every other field of a handler's plan: a difference in it swaps what is behind the slot.
_POLICY = tuple(
    each.name for each in fields(HandlerPlan) if each.compare and each.name not in _STEPS_OF_THEIR_OWN
)
NOT_IN_MEMORY = "NotInMemory"  # the reason of a rollback that nothing was done for
EXHAUSTED = "ResourcesExhausted"  # the reason of a refusal that says nothing of the files
STOPPING = "Stopping"  # the reason of an attempt that nothing was done for, as the process ends
# refusals for which no file is at fault
RETRIED = frozenset({"Forbidden", "NotServed", "NotSynced", "CacheLags", "NoThreads", EXHAUSTED})
_SLOW_IMPORTS = 1.0  # seconds of both imports together; a reload line tells of what takes longer
_NO_TENTHS = 9.95  # seconds from which on tenths are not shown
_AGAIN = "`declctl reload` tries the same files again"
_BY_ITSELF = "it is tried again by itself, and by `declctl reload` at once"
_BACK_AGAIN = "`declctl rollback` tries it again"
_ADVICE: Mapping[str, str] = MappingProxyType(
    {
        "ImportFailed": f"mend the file; if the cause is elsewhere, {_AGAIN}",
        "ImportTimeout": f"an import should only define things; if it needs longer, raise "
        f"spec.reload.preflightTimeout; {_AGAIN}",
        "PrepareFailed": f"mend declctl_prepare; if the cause is elsewhere, {_AGAIN}",
        "StateNotImported": "mend declctl_export_state and declctl_import_state, or leave them out: ctx.memo "
        "needs neither",
        "FilterFailed": "let the filter take objects that lack what it looks for",
        "FilterTimeout": "make the filter cheaper, or raise spec.reload.warmTimeout",
        "IndexTimeout": "make the index function cheaper, or raise spec.reload.warmTimeout",
        "TransformTimeout": "make the transform cheaper, or raise spec.reload.warmTimeout",
        "NoThreads": "lower queue.concurrency, or raise the limit of processes and threads "
        f"(`ulimit -u`, the limit of the pod); {_BY_ITSELF}",
        EXHAUSTED: "raise the limits of the process on open files, processes and memory, or see what uses "
        f"them up; {_BY_ITSELF}",
        "Forbidden": "grant list and watch (`declctl validate --cluster` says what is missing); "
        f"{_BY_ITSELF}",
        "NotServed": "mend apiVersion and kind, or install the definition of the kind (only a resource "
        f"of a new name waits for its kind); {_BY_ITSELF}",
        "NotSynced": f"if the API server is slow, raise spec.reload.warmTimeout; {_BY_ITSELF}",
        "CacheLags": f"look what its watch says (`declctl status`); {_BY_ITSELF}",
        "ReprojectFailed": "keep the cache as it was, or let the process start again, which lists it anew",
        "InternalError": f"the log has a traceback for the report; {_AGAIN}",
        "RestartRequired": "start the process again, or let it do that with --exec-on-restart",
        NOT_IN_MEMORY: "write the earlier files again: that is a reload",
        "RolledBack": f"mend the files: they are tried again when they change; {_AGAIN}",
    }
)


class StepKind(StrEnum):
    """What a step does to what runs."""

    KEEP = "Keep"  # goes on untouched; no difference, and told only where everything is
    SWAP = "Swap"  # the code or policy behind a slot changes
    ADD = "Add"
    REMOVE = "Remove"
    REHOME = "Rehome"  # a living handler's resource is watched anew
    REPROJECT = "Reproject"  # a cache is decoded anew, out of what it holds
    REINDEX = "Reindex"  # an index is built from the cache
    RETIME = "Retime"  # a resync period changes, its phase is kept
    RESTART = "RestartRequired"  # only a new process does this


_MARKS = {
    StepKind.ADD: "+",
    StepKind.REMOVE: "-",
    StepKind.REHOME: "-/+",
    StepKind.RESTART: "!",
    StepKind.KEEP: "=",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One difference. `subject` is what it is about, such as `handler notify`."""

    kind: StepKind
    subject: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{_MARKS.get(self.kind, '~')}{self.subject}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class PlanSnapshot:
    """One of the two to be compared: a plan, and a digest of the handler files behind it.

    `transformed` names the resources whose objects a hook transforms; those whose manifest names a
    transform need not be among them. `modules` has a digest for each module that an entry point names, of all
    that it is made of; of one that is not among them the code is that of all files.
    """

    plan: Plan
    code: str
    transformed: frozenset[str] = frozenset()
    modules: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def resources(self) -> Mapping[str, ResourcePlan]:
        """By name."""
        return {resource.name: resource for resource in self.plan.resources}

    @property
    def handlers(self) -> Mapping[str, HandlerPlan]:
        """By name."""
        return {handler.name: handler for handler in self.plan.handlers}

    def code_of(self, *entries: EntryPoint | None) -> tuple[str, ...]:
        """Digests of the code that entry points name; a plugin, which has none, is not of the files."""
        return tuple(self.modules.get(entry.module, self.code) for entry in entries if entry is not None)

    def forced(self, number: int) -> "PlanSnapshot":
        """The same, whose code is another one than before the forced reload of that number; 0 is none."""
        if not number:
            return self
        # The number makes all digests other ones: code that no file shows may have changed.
        modules = {name: f"{digest} {number}" for name, digest in self.modules.items()}
        return replace(self, code=f"{self.code} {number}", modules=modules)

    def handler_code(self, handler: HandlerPlan) -> tuple[str, ...]:
        """Of the code of a handler, and of its filter."""
        return self.code_of(handler.entry_point, handler.filter.entry_point if handler.filter else None)

    def identities(self, resource: ResourcePlan) -> tuple[CacheIdentity, ...]:
        """What its caches are; those that are transformed are others with other code."""
        return tuple(
            CacheIdentity(watch, self._transform_code(resource, watch)) for watch in resource.watches
        )

    def _transform_code(self, resource: ResourcePlan, watch: WatchKey) -> str:
        if resource.name in self.transformed:
            return self.code
        return "".join(self.code_of(watch.transform.entry_point))

    def all_identities(self) -> tuple[CacheIdentity, ...]:
        """What all caches are, each once."""
        found = [identity for each in self.plan.resources for identity in self.identities(each)]
        return tuple(dict.fromkeys(found))

    def paths(self, identity: CacheIdentity) -> frozenset[FieldPath]:
        """The indexed fields that a cache has at hand."""
        paths = [
            FieldPath.parse(indexer.field_path)
            for each in self.plan.resources
            if identity in self.identities(each)
            for indexer in each.indexers
            if indexer.field_path is not None
        ]
        return frozenset(projectable_paths(paths))


def changes(old: PlanSnapshot, new: PlanSnapshot) -> tuple[Step, ...]:
    """The steps from one side to the other: resources, handlers, then what needs a new process."""
    return (*_resources(old, new), *_handlers(old, new), *_others(old.plan, new.plan))


def kept(old: PlanSnapshot, new: PlanSnapshot, steps: Sequence[Step]) -> tuple[Step, ...]:
    """What goes on untouched: the resources and handlers of both sides that no step is about."""
    touched = {step.subject for step in steps}
    subjects = [f"resource {name}" for name in new.resources if name in old.resources]
    subjects += [f"handler {name}" for name in new.handlers if name in old.handlers]
    return tuple(Step(StepKind.KEEP, subject) for subject in subjects if subject not in touched)


def summary(steps: Sequence[Step]) -> str:
    """The steps on one line: `~handler notify (code) +index pods.byTeam`."""
    return " ".join(str(step) for step in steps) or "nothing changed"


def needing_restart(old: Plan, new: Plan) -> Iterable[Step]:
    """What a process that was started with one plan does not do of another."""
    if old.admin.bind_address != new.admin.bind_address:
        yield Step(StepKind.RESTART, "admin.bindAddress")
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
        mine, theirs = old.identities(previous), new.identities(resource)
        # Caches that become others without a new LIST: their records are only decoded in another way.
        to_convert = {served[identity] for identity in theirs if identity not in mine}
        if set(mine) != set(theirs):
            is_conversion = bool(to_convert) and to_convert == set(mine) - set(theirs)
            kind = StepKind.REPROJECT if is_conversion else StepKind.REHOME
            why = _why_rehomed(previous, resource) or "code of the transform"
            yield Step(kind, f"resource {name}", f"reproject: {why}" if is_conversion else why)
        if previous.resync_period != resource.resync_period:
            yield Step(StepKind.RETIME, f"resource {name}", "resync")
        if previous.idle_timeout != resource.idle_timeout:
            yield Step(StepKind.SWAP, f"resource {name}", "idleTimeout")
        yield from _indexers(previous, resource, old, new)
        # A cache that stays may have to hold more fields at hand, for an index that is new.
        lacking = {path for each in theirs if each in mine for path in new.paths(each) - old.paths(each)}
        if lacking:
            fields = ", ".join(sorted(map(str, lacking)))
            yield Step(StepKind.REPROJECT, f"resource {name}", f"reproject: {fields}")


def _indexers(
    before: ResourcePlan, after: ResourcePlan, side: PlanSnapshot, other: PlanSnapshot
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
        elif side.code != other.code and side.code_of(indexer.entry_point) != other.code_of(
            indexer.entry_point
        ):
            yield Step(StepKind.REINDEX, subject, "code")


def _handlers(old: PlanSnapshot, new: PlanSnapshot) -> Iterable[Step]:
    before, after = old.handlers, new.handlers
    yield from (Step(StepKind.REMOVE, f"handler {name}") for name in before if name not in after)
    for name, handler in after.items():
        if name not in before:
            yield Step(StepKind.ADD, f"handler {name}")
            continue
        previous = before[name]
        if previous.resource != handler.resource:
            yield Step(StepKind.REHOME, f"handler {name}", "resourceRef")
        if previous.resync_period != handler.resync_period:
            yield Step(StepKind.RETIME, f"handler {name}", "resync")
        # Two equal digests of everything make a look at each module needless.
        same_code = old.code == new.code or old.handler_code(previous) == new.handler_code(handler)
        reasons = [] if same_code else ["code"]
        reasons += [field for field in _POLICY if getattr(previous, field) != getattr(handler, field)]
        if reasons:
            yield Step(StepKind.SWAP, f"handler {name}", ", ".join(_camel(reason) for reason in reasons))
    # Another order is one step, whatever number of handlers has moved.
    if [name for name in before if name in after] != [name for name in after if name in before]:
        yield Step(StepKind.SWAP, "handlers", "order")


def _others(old: Plan, new: Plan) -> Iterable[Step]:
    plugins = {plugin.name: plugin for plugin in old.plugins}
    for plugin in new.plugins:
        if plugin.name not in plugins:
            yield Step(StepKind.ADD, f"plugin {plugin.name}")
        elif plugins[plugin.name] != plugin:
            yield Step(StepKind.SWAP, f"plugin {plugin.name}")
    kept = {plugin.name for plugin in new.plugins}
    yield from (Step(StepKind.REMOVE, f"plugin {name}") for name in plugins if name not in kept)
    for name in ("startup", "shutdown"):
        if getattr(old.lifecycle, name) != getattr(new.lifecycle, name):
            yield Step(StepKind.SWAP, f"lifecycle {name}")
    if old.reload != new.reload:
        yield Step(StepKind.SWAP, "reload")
    if old.admin.allowed_hosts != new.admin.allowed_hosts:
        yield Step(StepKind.SWAP, "admin.allowedHosts")
    yield from needing_restart(old, new)


def _why_rehomed(before: ResourcePlan, after: ResourcePlan) -> str:
    names = (each.name for each in fields(WatchKey))
    return ", ".join(_camel(name) for name in names if _all(before, name) != _all(after, name))


def _all(resource: ResourcePlan, name: str) -> set[object]:
    return {getattr(key, name) for key in resource.watches}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class Result(StrEnum):
    """How an attempt ended."""

    APPLIED = "Applied"
    UNCHANGED = "Unchanged"
    REFUSED = "Refused"
    ROLLED_BACK = "RolledBack"  # the generation before runs again, under a new number
    SUPERSEDED = "Superseded"  # given up before its commit: the files had changed again


def takes_effect(subjects: Sequence[str]) -> str:
    """`metadata.name takes effect when the process starts again`."""
    verb = "takes" if len(subjects) == 1 else "take"
    return f"{' and '.join(subjects)} {verb} effect when the process starts again"


class ImportSeconds(NamedTuple):
    """How long importing the handlers took, in seconds, in both places; 0 where nothing was imported."""

    in_preflight: float = 0.0
    here: float = 0.0

    @property
    def are_slow(self) -> bool:
        """Whether a user should know why the reload took so long."""
        return self.in_preflight + self.here > _SLOW_IMPORTS

    def __str__(self) -> str:
        """`imports took 20 s in the pre-flight and 20 s here`."""
        places = (self.in_preflight, "in the pre-flight"), (self.here, "here")
        return "imports took " + " and ".join(f"{shown_seconds(s)} {place}" for s, place in places if s)


def shown_seconds(seconds: float) -> str:
    """`20 s`, `1.5 s`: the tenths only where they matter."""
    return f"{seconds:.0f} s" if seconds >= _NO_TENTHS else f"{seconds:.1f} s"


class Outcome(msgspec.Struct, frozen=True):
    """One attempt. `generation` is the one that runs after it; `seconds` is from the read to the commit.

    `lists` and `watches` are the LISTs and WATCHes that were made until the commit, and `unplanned` says in
    words where these are others than the plan had; `reason` is a CamelCase word. `back` says that it was an
    attempt to go back, which has nothing to do with what the files say. `imports` are those of a
    generation that was committed.
    """

    result: Result
    generation: int
    bundle_hash: str
    reason: str = ""
    message: str = ""
    seconds: float = 0.0
    steps: Sequence[Step] = ()
    lists: int = 0
    diagnostics: Sequence[Diagnostic] = ()
    watches: int = 0
    unplanned: Sequence[str] = ()
    back: bool = False
    imports: ImportSeconds = ImportSeconds()

    @property
    def bundle(self) -> str:
        """The digest of the files, also of faulty ones; empty where they could not be read."""
        digest = self.bundle_hash.removeprefix("faulty ")
        return digest if digest.isalnum() else ""

    @property
    def line(self) -> str:
        """The attempt on one line: `generation 7: ~handler notify (code), 0 LIST, 3 ms`."""
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
        if self.result is Result.ROLLED_BACK:
            return f"generation {self.generation}: {self.message}, {self.lists} LIST, {took}"
        if self.imports.are_slow:
            took = f"{took} ({self.imports})"
        line = (
            f"generation {self.generation}: {summary(self.steps)}, {self.lists} LIST, {took}{self._restarts}"
        )
        return f"{line}; not as planned: {'; '.join(self.unplanned)}" if self.unplanned else line

    @property
    def _restarts(self) -> str:
        """What has changed in the files and not in the process, as the end of a sentence; maybe nothing."""
        subjects = [step.subject for step in self.steps if step.kind is StepKind.RESTART]
        return f"; {takes_effect(subjects)}" if subjects else ""

    @property
    def advice(self) -> str | None:
        """What to do about it; None where nothing has to be done, or its diagnostics say it."""
        if self.result not in (Result.REFUSED, Result.ROLLED_BACK):
            return None
        if any(fault.severity == "error" and fault.suggestion for fault in self.diagnostics):
            return None
        advice = _ADVICE.get(self.reason)
        if advice and self.back:
            return advice.replace(_AGAIN, _BACK_AGAIN).replace(_BY_ITSELF, _BACK_AGAIN)
        return advice

    def as_rollback(self) -> "Outcome":
        """The same, as an attempt to go back."""
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
            "lists": self.lists,
            "watches": self.watches,
            "unplanned": list(self.unplanned),
            "rollback": self.back,
            "suggestion": self.advice,
            "diagnostics": render_json(self.diagnostics),
        }
