"""The plan of a running process, with which a manifest can be compared: the document of `GET /plan`.

It has the plan of the active generation, the caches, and the plugins that need a new process. For configs of
plugins it has digests, as they may contain secrets.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from declctl.errors import DeclctlError, UsageError
from declctl.hooks.bundle import Bundle
from declctl.manifest import Plan
from declctl.manifest.model import AdminSpec, LeaderElectionSpec, MetricsSpec, ShardingSpec, StateSpec
from declctl.manifest.plan import ResourcePlan, watches_of
from declctl.manifest.values import FrozenJson
from declctl.runtime.caching.identities import CacheIdentity
from declctl.runtime.caching.informer_pool import ManagedInformer
from declctl.runtime.checking.loaded_code import LoadedPlugin
from declctl.runtime.reconciling.reconcile_slot import ReconcileBinding
from declctl.runtime.reloading.changes import PlanSnapshot, Step
from declctl.runtime.reloading.generation import Generation
from declctl.runtime.reloading.stage import handler_digests, restart_steps, snapshot
from declctl.writes import finalizers_of


class RunningCache(msgspec.Struct, frozen=True):
    """One cache, which may linger, and the number of its objects."""

    identity: CacheIdentity
    objects: int


class StartFields(msgspec.Struct, frozen=True):
    """The fields of a plan that a process has by the manifest of its start: no reload changes them."""

    name: str
    admin: AdminSpec
    metrics: MetricsSpec
    leader_election: LeaderElectionSpec
    state: StateSpec
    sharding: ShardingSpec | None

    @classmethod
    def of(cls, plan: Plan) -> "StartFields":
        """Those of a plan."""
        return cls(**{name: getattr(plan, name) for name in cls.__struct_fields__})

    def within(self, plan: Plan) -> Plan:
        """A plan with these fields in the place of its own."""
        # Of the address, the names of hosts alone follow a reload.
        admin = replace(self.admin, allowed_hosts=plan.admin.allowed_hosts)
        return replace(plan, **{**msgspec.structs.asdict(self), "admin": admin})


class RunningPlan(msgspec.Struct, frozen=True):
    """The parts of a generation that are compared with another manifest."""

    generation: int
    code: str  # a digest of the handler files
    plan: Plan  # with digests in place of the configs of plugins
    transformed: tuple[str, ...]  # the resources whose objects a hook transforms
    cluster_scoped: tuple[tuple[str, str], ...]  # API version and kind of kinds without namespaces
    caches: tuple[RunningCache, ...]
    objects: Mapping[str, int]  # cached objects by the name of the resource
    handler_code: Mapping[str, str] = {}  # by handler, a digest of its code
    modules: Mapping[str, str] = {}  # by module of an entry point, a digest of its files
    restarts: tuple[Step, ...] = ()  # plugins whose installed version is not the loaded one
    waiting: Mapping[str, int] = {}  # by handler, the number of changes that wait for it
    written: tuple[str, ...] = ()  # the handlers that have applied something
    namespaces: Mapping[str, tuple[str, ...]] = {}  # by selector of namespaces, those that it matches now
    finalized: Mapping[str, tuple[str, ...]] = {}  # by handler, keys of the cached objects with its finalizer
    at_start: StartFields | None = None  # None: as the plan has them

    @property
    def side(self) -> PlanSnapshot:
        """The snapshot for the comparison."""
        return PlanSnapshot(self.plan, self.code, frozenset(self.transformed), self.modules)

    @property
    def first_plan(self) -> Plan:
        """The plan, with the fields of the start, which reloads do not change."""
        return self.plan if self.at_start is None else self.at_start.within(self.plan)

    def scoped(self, plan: Plan) -> Plan:
        """Another plan, in which cluster-scoped kinds have no namespaces."""
        resources = tuple(
            resource.without_namespaces() if _kind(resource) in self.cluster_scoped else resource
            for resource in plan.resources
        )
        return replace(plan, resources=resources, watches=watches_of(resources))

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return msgspec.to_builtins(self)


class RunningSnapshot(msgspec.Struct, frozen=True):
    """A generation at one moment. Taken on the machinery loop; its methods may be called by any thread."""

    known: RunningPlan
    bundle: Bundle
    plugins: Sequence[LoadedPlugin]
    reconcilers: Sequence[ReconcileBinding] = ()  # those with a finalizer

    def plan(self) -> RunningPlan:
        """The complete plan. Blocks: parses the handler files, and looks for installed plugins."""
        return msgspec.structs.replace(
            self.known,
            handler_code=handler_digests(self.known.plan, self.bundle),
            restarts=restart_steps(self.plugins),
            finalized={each.plan.name: _finalized(each) for each in self.reconcilers},
        )

    def document(self) -> dict[str, Any]:
        """The complete plan as JSON has it. Blocks as `plan`."""
        return self.plan().document()


def running_snapshot(
    generation: Generation,
    caches: Iterable[ManagedInformer],
    waiting: Mapping[str, int],
    *,
    written: Iterable[str] = (),
    first: Plan,
) -> RunningSnapshot:
    """Take a snapshot of a generation, of all `caches`, and of the changes that wait for its handlers.

    `written` are the handlers that have applied something. `first` is the plan at the start of the process.
    Called on the machinery loop.
    """
    known = msgspec.structs.replace(
        _known(generation, tuple(caches)),
        waiting=waiting,
        written=tuple(sorted(written)),
        at_start=StartFields.of(first),
    )
    reconcilers = [
        binding
        for binding in generation.bindings.values()
        if isinstance(binding, ReconcileBinding) and binding.finalizer is not None
    ]
    return RunningSnapshot(
        known, generation.inputs.bundle, tuple(generation.loaded_code.plugins), reconcilers
    )


def read_running_plan(document: object) -> RunningPlan:
    """Read the document of a running process; raises UsageError if the process has another version."""
    try:
        return msgspec.convert(document, RunningPlan)
    except msgspec.ValidationError as fault:
        raise UsageError(
            f"The running process is of another version: what it says of its plan can't be read ({fault})."
        ) from fault


def _known(generation: Generation, caches: Sequence[ManagedInformer]) -> RunningPlan:
    side, used = snapshot(generation), dict[CacheIdentity, CacheIdentity]()
    for requirement in generation.requirements:
        used |= zip(requirement.identities, side.identities(requirement.plan), strict=True)
    # A cache identity has a digest of the transform's code; a manifest is compared by the digest of its
    # files.
    found = [
        RunningCache(used.get(cached.identity, cached.identity), len(cached.informer.indexer))
        for cached in caches
    ]
    selected = [c.informer.statistics().namespaces for c in caches if c.identity.watch.namespace_selector]
    # Resources may share caches: one cache counts for several of them.
    objects = {each.identity: each.objects for each in found}
    return RunningPlan(
        generation=generation.number,
        code=side.code,
        plan=masked(side.plan),
        transformed=tuple(sorted(side.transformed)),
        modules=side.modules,
        cluster_scoped=tuple(
            sorted(
                {
                    _kind(requirement.plan)
                    for requirement in generation.requirements
                    if not requirement.plan.names_namespaces
                    and any(
                        each.name == requirement.plan.name and each.names_namespaces
                        for each in generation.plan.resources
                    )
                }
            )
        ),
        caches=tuple(found),
        namespaces={each.selector: tuple(each.names) for each in selected if each is not None},
        objects={
            requirement.plan.name: sum(
                objects.get(identity, 0) for identity in side.identities(requirement.plan)
            )
            for requirement in generation.requirements
        },
    )


def _finalized(binding: ReconcileBinding) -> tuple[str, ...]:
    """The keys of the cached objects that have the finalizer of a reconciler; none of an unsynced cache."""
    assert binding.lister is not None
    assert binding.finalizer is not None
    name = binding.finalizer.name
    try:
        return tuple(sorted(str(obj.key) for obj in binding.lister.list() if name in finalizers_of(obj)))
    except DeclctlError:
        return ()


def masked(plan: Plan) -> Plan:
    """The plan with a digest in place of each plugin's config."""
    plugins = tuple(replace(plugin, config=_digest(plugin.config)) for plugin in plan.plugins)
    return replace(plan, plugins=plugins)


def _digest(config: FrozenJson) -> FrozenJson:
    return FrozenJson.of(hashlib.sha256(config.canonical.encode()).hexdigest())


def _kind(resource: ResourcePlan) -> tuple[str, str]:
    return resource.watches[0].api_version, resource.watches[0].kind
