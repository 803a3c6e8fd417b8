"""Two generations in, the steps between them out. Pure: nothing here touches anything that runs.

Each step has a class (`Kind`) that says what it costs; `summary` is the one line that a person
reads after a reload.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

from declctl.decoding.partial import at_hand
from declctl.manifest.model import EntryPoint
from declctl.manifest.plan import HandlerPlan, Plan, ResourcePlan, WatchKey
from declctl.objects import FieldPath
from declctl.runtime.caching.identities import Identity, matched


class Kind(StrEnum):
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


@dataclass(frozen=True, slots=True)
class Step:
    """One difference. `subject` is what it is about, such as `handler notify`."""

    kind: Kind
    subject: str
    detail: str = ""

    def __str__(self) -> str:
        mark = {Kind.ADD: "+", Kind.REMOVE: "-", Kind.REHOME: "-/+", Kind.RESTART: "!", Kind.KEEP: "="}.get(
            self.kind, "~"
        )
        return f"{mark}{self.subject}" + (f" ({self.detail})" if self.detail else "")


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
        modules = {name: f"{digest} {number}" for name, digest in self.modules.items()}
        return replace(self, code=f"{self.code} {number}", modules=modules)

    def handler_code(self, handler: HandlerPlan) -> tuple[str, ...]:
        """Of the code of a handler, and of its filter."""
        return self.code_of(handler.entry_point, handler.filter.entry_point if handler.filter else None)

    def identities(self, resource: ResourcePlan) -> tuple[Identity, ...]:
        """What its caches are; those that are transformed are others with other code."""
        return tuple(Identity(watch, self._transform_code(resource, watch)) for watch in resource.watches)

    def _transform_code(self, resource: ResourcePlan, watch: WatchKey) -> str:
        if resource.name in self.transformed:
            return self.code
        return "".join(self.code_of(watch.transform.entry_point))

    def all_identities(self) -> tuple[Identity, ...]:
        """What all caches are, each once."""
        found = [identity for each in self.plan.resources for identity in self.identities(each)]
        return tuple(dict.fromkeys(found))

    def paths(self, identity: Identity) -> frozenset[FieldPath]:
        """The indexed fields that a cache has at hand."""
        paths = [
            FieldPath.parse(indexer.field_path)
            for each in self.plan.resources
            if identity in self.identities(each)
            for indexer in each.indexers
            if indexer.field_path is not None
        ]
        return frozenset(at_hand(paths))


def changes(old: PlanSnapshot, new: PlanSnapshot) -> tuple[Step, ...]:
    """The steps from one side to the other: resources, handlers, then what needs a new process."""
    return (*_resources(old, new), *_handlers(old, new), *_others(old.plan, new.plan))


def kept(old: PlanSnapshot, new: PlanSnapshot, steps: Sequence[Step]) -> tuple[Step, ...]:
    """What goes on untouched: the resources and handlers of both sides that no step is about."""
    touched = {step.subject for step in steps}
    subjects = [f"resource {name}" for name in new.resources if name in old.resources]
    subjects += [f"handler {name}" for name in new.handlers if name in old.handlers]
    return tuple(Step(Kind.KEEP, subject) for subject in subjects if subject not in touched)


def summary(steps: Sequence[Step]) -> str:
    """The steps on one line: `~handler notify (code) +index pods.byTeam`."""
    return " ".join(str(step) for step in steps) or "nothing changed"


def needing_restart(old: Plan, new: Plan) -> Iterable[Step]:
    """What a process that was started with one plan does not do of another."""
    if old.admin.bind_address != new.admin.bind_address:
        yield Step(Kind.RESTART, "admin.bindAddress")
    if old.name != new.name:
        yield Step(Kind.RESTART, "metadata.name")


def _resources(old: PlanSnapshot, new: PlanSnapshot) -> Iterable[Step]:
    before, after = old.resources, new.resources
    served = matched(old.all_identities(), new.all_identities())
    yield from (Step(Kind.REMOVE, f"resource {name}") for name in before if name not in after)
    for name, resource in after.items():
        if name not in before:
            yield Step(Kind.ADD, f"resource {name}")
            continue
        previous = before[name]
        mine, theirs = old.identities(previous), new.identities(resource)
        turned = {served[identity] for identity in theirs if identity not in mine}
        if set(mine) != set(theirs):
            turns = bool(turned) and turned == set(mine) - set(theirs)
            kind = Kind.REPROJECT if turns else Kind.REHOME
            why = _why_rehomed(previous, resource) or "code of the transform"
            yield Step(kind, f"resource {name}", f"reproject: {why}" if turns else why)
        if previous.resync_period != resource.resync_period:
            yield Step(Kind.RETIME, f"resource {name}", "resync")
        if previous.idle_timeout != resource.idle_timeout:
            yield Step(Kind.SWAP, f"resource {name}", "idleTimeout")
        yield from _indexers(previous, resource, old, new)
        lacking = {path for each in theirs if each in mine for path in new.paths(each) - old.paths(each)}
        if lacking:
            fields = ", ".join(sorted(map(str, lacking)))
            yield Step(Kind.REPROJECT, f"resource {name}", f"reproject: {fields}")


def _indexers(
    before: ResourcePlan, after: ResourcePlan, side: PlanSnapshot, other: PlanSnapshot
) -> Iterable[Step]:
    old = {indexer.name: indexer for indexer in before.indexers}
    new = {indexer.name: indexer for indexer in after.indexers}
    yield from (Step(Kind.REMOVE, f"index {after.name}.{name}") for name in old if name not in new)
    for name, indexer in new.items():
        subject = f"index {after.name}.{name}"
        if name not in old:
            yield Step(Kind.ADD, subject)
        elif old[name] != indexer:
            yield Step(Kind.REINDEX, subject)
        elif side.code != other.code and side.code_of(indexer.entry_point) != other.code_of(
            indexer.entry_point
        ):
            yield Step(Kind.REINDEX, subject, "code")


def _handlers(old: PlanSnapshot, new: PlanSnapshot) -> Iterable[Step]:
    before, after = old.handlers, new.handlers
    yield from (Step(Kind.REMOVE, f"handler {name}") for name in before if name not in after)
    for name, handler in after.items():
        if name not in before:
            yield Step(Kind.ADD, f"handler {name}")
            continue
        previous = before[name]
        if previous.resource != handler.resource:
            yield Step(Kind.REHOME, f"handler {name}", "resourceRef")
        if previous.resync_period != handler.resync_period:
            yield Step(Kind.RETIME, f"handler {name}", "resync")
        same_code = old.code == new.code or old.handler_code(previous) == new.handler_code(handler)
        reasons = [] if same_code else ["code"]
        reasons += [field for field in _POLICY if getattr(previous, field) != getattr(handler, field)]
        if reasons:
            yield Step(Kind.SWAP, f"handler {name}", ", ".join(_camel(reason) for reason in reasons))
    if [name for name in before if name in after] != [name for name in after if name in before]:
        yield Step(Kind.SWAP, "handlers", "order")


def _others(old: Plan, new: Plan) -> Iterable[Step]:
    plugins = {plugin.name: plugin for plugin in old.plugins}
    for plugin in new.plugins:
        if plugin.name not in plugins:
            yield Step(Kind.ADD, f"plugin {plugin.name}")
        elif plugins[plugin.name] != plugin:
            yield Step(Kind.SWAP, f"plugin {plugin.name}")
    kept = {plugin.name for plugin in new.plugins}
    yield from (Step(Kind.REMOVE, f"plugin {name}") for name in plugins if name not in kept)
    for name in ("startup", "shutdown"):
        if getattr(old.lifecycle, name) != getattr(new.lifecycle, name):
            yield Step(Kind.SWAP, f"lifecycle {name}")
    if old.reload != new.reload:
        yield Step(Kind.SWAP, "reload")
    if old.admin.allowed_hosts != new.admin.allowed_hosts:
        yield Step(Kind.SWAP, "admin.allowedHosts")
    yield from needing_restart(old, new)


_STEPS_OF_THEIR_OWN = frozenset({"name", "resource", "resync_period"})
_POLICY = tuple(
    each.name for each in fields(HandlerPlan) if each.compare and each.name not in _STEPS_OF_THEIR_OWN
)


def _why_rehomed(before: ResourcePlan, after: ResourcePlan) -> str:
    names = (each.name for each in fields(WatchKey))
    return ", ".join(_camel(name) for name in names if _all(before, name) != _all(after, name))


def _all(resource: ResourcePlan, name: str) -> set[object]:
    return {getattr(key, name) for key in resource.watches}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
