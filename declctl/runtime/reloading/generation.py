"""One generation: an immutable set of handlers, indexers and plugins, made from one bundle.

It is made aside, prepared, committed, drained and retired; nothing in it changes meanwhile.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from declctl.kit import LoopThread
from declctl.manifest import Plan
from declctl.manifest.plan import watches_of
from declctl.objects import GroupVersionKind, Resource
from declctl.runtime.caching.informer_pool import (
    InformerPool,
    ResourceRequirement,
)
from declctl.runtime.checking.inputs import Inputs
from declctl.runtime.checking.loaded_code import LoadedCode
from declctl.runtime.handling.context import Cluster, HandlerContext, HandlerEnvironment, Listers, Memo
from declctl.runtime.handling.handler_loops import HandlerLoops
from declctl.runtime.handling.slots import Place
from declctl.runtime.log import Log
from declctl.runtime.reloading.changes import PlanSnapshot
from declctl.runtime.reloading.outcome import Imports


class Discovery(Protocol):
    """What is needed of the transport: which scope a kind has."""

    async def discover(self, gvk: GroupVersionKind) -> Resource:
        """The resource of a kind; raises NotFound while there is none."""
        ...


@dataclass(frozen=True, slots=True)
class RuntimeServices:
    """What every generation is wired to."""

    discovery: Discovery
    caches: InformerPool
    cluster: Cluster
    loops: HandlerLoops
    log: Log
    user_log: Any
    dry_run: bool = False

    def world(
        self, handler: str, generation: int, *, listers: Listers, config: Mapping[str, Any] | None
    ) -> HandlerEnvironment:
        """What the contexts of one handler of one generation share."""
        return HandlerEnvironment(
            handler, generation, listers, config or {}, self.cluster, self.user_log, self.dry_run
        )


class Generation(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """What runs, or is about to.

    `wanted` is what it wants of the caches, `places` where its handlers go. `imports` is how long the
    import of its code took: no time where that was loaded already. `loop` runs its asynchronous hooks.
    """

    number: int
    inputs: Inputs
    plan: Plan
    foreign: LoadedCode
    wanted: tuple[ResourceRequirement, ...]
    listers: Listers
    places: Mapping[str, Place]
    imports: Imports
    loop: LoopThread

    @property
    def side(self) -> PlanSnapshot:
        """What is compared with another generation."""
        resources = tuple(wanted.plan for wanted in self.wanted)
        scoped = replace(self.plan, resources=resources, watches=watches_of(resources))
        by_hooks = self.foreign.from_hooks.transforms
        transformed = frozenset(name for name, hooks in by_hooks.items() if hooks)
        return PlanSnapshot(scoped, self.inputs.code, transformed, self.inputs.modules)

    def resource(self, name: str) -> ResourceRequirement | None:
        """What it wants of a resource."""
        return next((wanted for wanted in self.wanted if wanted.plan.name == name), None)


def lifecycle_context(
    name: str, generation: Generation, memo: Memo, around: RuntimeServices
) -> HandlerContext:
    """The context of a life-cycle hook: `name` is the plugin's, or the entry point's."""
    config = generation.foreign.plugin_configs.get(name)
    world = around.world(name, generation.number, listers=generation.listers, config=config)
    return HandlerContext(world, lambda: memo)
