"""What a running process says of itself so that a manifest can be compared with it: `GET /plan`.

It is the plan that runs, which caches there are, and what needs a new process; of the configs of plugins it
has a digest, as there may be secrets in them.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from declctl.errors import UsageError
from declctl.hooks.bundle import Bundle
from declctl.manifest import Plan
from declctl.manifest.plan import ResourcePlan, watches_of
from declctl.manifest.values import Address, FrozenJson
from declctl.runtime.caching.identities import CacheIdentity
from declctl.runtime.caching.informer_pool import ManagedInformer
from declctl.runtime.checking.loaded_code import LoadedPlugin
from declctl.runtime.reloading.changes import PlanSnapshot, Step
from declctl.runtime.reloading.generation import Generation
from declctl.runtime.reloading.stage import code_of, outdated, snapshot


class RunningCache(msgspec.Struct, frozen=True):
    """One cache that is filled, or lingers, and how many objects it holds."""

    identity: CacheIdentity
    objects: int


class RunningPlan(msgspec.Struct, frozen=True):
    """A generation, as far as another manifest is compared with it."""

    generation: int
    code: str  # a digest of the handler files
    plan: Plan  # with digests in the place of the configs of plugins
    transformed: tuple[str, ...]  # the resources whose objects a hook transforms
    cluster_scoped: tuple[tuple[str, str], ...]  # API version and kind of what has no namespaces
    caches: tuple[RunningCache, ...]
    objects: Mapping[str, int]  # cached objects by the name of the resource
    handler_code: Mapping[str, str] = {}  # by handler, a digest of its code
    modules: Mapping[str, str] = {}  # by module that an entry point names, a digest of its files
    restarts: tuple[Step, ...] = ()  # plugins of which another version is installed than is loaded
    waiting: Mapping[str, int] = {}  # by handler, the changes that wait for it
    # The name and the admin address with which the process was started; a reload does not change them.
    began_as: str | None = None
    listens_at: Address | None = None

    @property
    def side(self) -> PlanSnapshot:
        """What is compared."""
        return PlanSnapshot(self.plan, self.code, frozenset(self.transformed), self.modules)

    @property
    def first_plan(self) -> Plan:
        """The plan, with what the process was started with where a reload doesn't change that."""
        address = self.listens_at or self.plan.admin.bind_address
        return replace(
            self.plan,
            name=self.began_as or self.plan.name,
            admin=replace(self.plan.admin, bind_address=address),
        )

    def scoped(self, plan: Plan) -> Plan:
        """Another plan, without the namespaces of kinds that have none."""
        resources = tuple(
            resource.without_namespaces() if _kind(resource) in self.cluster_scoped else resource
            for resource in plan.resources
        )
        return replace(plan, resources=resources, watches=watches_of(resources))

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return msgspec.to_builtins(self)


@dataclass(frozen=True, slots=True)
class RunningSnapshot:
    """A generation at one moment. It is taken on the machinery loop; `plan` may be called in any thread."""

    known: RunningPlan
    bundle: Bundle
    plugins: Sequence[LoadedPlugin]

    def plan(self) -> RunningPlan:
        """All of it. Parses the handler files, and looks at which plugins are installed."""
        return msgspec.structs.replace(
            self.known,
            handler_code=code_of(self.known.plan, self.bundle),
            restarts=outdated(self.plugins),
        )

    def document(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return self.plan().document()


def running_snapshot(
    generation: Generation, caches: Iterable[ManagedInformer], waiting: Mapping[str, int], *, first: Plan
) -> RunningSnapshot:
    """What is told of a generation, of every cache of its process, and of what waits for its handlers.

    `first` is the plan that the process was started with. On the machinery loop.
    """
    known = msgspec.structs.replace(
        _known(generation, caches),
        waiting=waiting,
        began_as=first.name,
        listens_at=first.admin.bind_address,
    )
    return RunningSnapshot(known, generation.inputs.bundle, tuple(generation.loaded_code.plugins))


def read_running_plan(document: object) -> RunningPlan:
    """What a process has said; raises UsageError if it is of another version."""
    try:
        return msgspec.convert(document, RunningPlan)
    except msgspec.ValidationError as fault:
        raise UsageError(
            f"The running process is of another version: what it says of its plan can't be read ({fault})."
        ) from fault


def _known(generation: Generation, caches: Iterable[ManagedInformer]) -> RunningPlan:
    side, used = snapshot(generation), dict[CacheIdentity, CacheIdentity]()
    for requirement in generation.requirements:
        used |= zip(requirement.identities, side.identities(requirement.plan), strict=True)
    # A cache knows the digest of its transform's code; a manifest is compared by its files' digest.
    found = [
        RunningCache(used.get(cached.identity, cached.identity), len(cached.informer.indexer))
        for cached in caches
    ]
    # Resources may share caches, so that one cache counts for several of them.
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
                    if requirement.plan.namespaces is None
                    and any(
                        each.name == requirement.plan.name and each.namespaces
                        for each in generation.plan.resources
                    )
                }
            )
        ),
        caches=tuple(found),
        objects={
            requirement.plan.name: sum(
                objects.get(identity, 0) for identity in side.identities(requirement.plan)
            )
            for requirement in generation.requirements
        },
    )


def masked(plan: Plan) -> Plan:
    """The plan with a digest in the place of each plugin's config."""
    plugins = tuple(replace(plugin, config=_digest(plugin.config)) for plugin in plan.plugins)
    return replace(plan, plugins=plugins)


def _digest(config: FrozenJson) -> FrozenJson:
    return FrozenJson.of(hashlib.sha256(config.canonical.encode()).hexdigest())


def _kind(resource: ResourcePlan) -> tuple[str, str]:
    return resource.watches[0].api_version, resource.watches[0].kind
