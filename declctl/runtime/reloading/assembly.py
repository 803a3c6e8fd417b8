"""The wiring diagram: a checked manifest in, a generation out, everything connected to what lives longer.

    manifest ─ plan ──────────────┬─ resources → ResourceRequirement → informers
    handler files → LoadedCode ───┘  handlers  → Binding → slots (queue, workers), listening to the informers

Nothing is started here and nothing that runs is touched, except that informers are counted as used.
"""

import asyncio
import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from declctl.errors import ApiError, ManifestErrors, NotFound, ReloadRefused
from declctl.informer import field_index, function_index
from declctl.kit import Breath, Clock, LoopThread, breathe
from declctl.manifest import Plan, plan
from declctl.manifest.plan import HandlerPlan, ResourcePlan, WatchKey
from declctl.objects import GroupVersionKind
from declctl.runtime.caching.informer_pool import (
    Identity,
    Index,
    ManagedInformer,
    ResourceRequirement,
)
from declctl.runtime.checking.check import Checked, diagnose
from declctl.runtime.checking.declared import Declaration, Fault
from declctl.runtime.checking.inputs import Inputs
from declctl.runtime.checking.loaded_code import LoadedCode, load_code
from declctl.runtime.checking.registrations import RegistrationWatch
from declctl.runtime.handling.binding import Filter
from declctl.runtime.handling.context import Listers
from declctl.runtime.handling.handler import Binding
from declctl.runtime.handling.slots import Place
from declctl.runtime.reloading.generation import Generation, RuntimeServices
from declctl.runtime.reloading.outcome import Imports
from declctl.runtime.threads import in_thread


@dataclass(frozen=True, slots=True)
class Assembled:
    """A generation, and the informers that it is the first to use: they are not started yet."""

    generation: Generation
    fresh: Sequence[ManagedInformer]


class _Import:
    """An import that may be given up while it runs: what it makes after that is forgotten at once."""

    def __init__(self, declaration: Declaration, number: int) -> None:
        self._declaration = declaration
        self._number = number
        self._deciding = threading.Lock()
        self._given_up = False
        self._made: LoadedCode | None = None

    def __call__(self) -> tuple[LoadedCode | None, Sequence[Fault]]:
        watch = RegistrationWatch()
        foreign, faults = load_code(self._declaration, number=self._number, rest=Breath())
        if foreign is not None:
            foreign.registrations = watch.registrations()
            foreign.share()
        with self._deciding:
            self._made = foreign
            if self._given_up and foreign is not None:
                foreign.close()
        return foreign, faults

    def give_up(self) -> None:
        """Nobody waits for it any longer."""
        with self._deciding:
            self._given_up = True
            if self._made is not None:
                self._made.close()


async def assemble(checked: Checked, number: int, around: RuntimeServices, *, clock: Clock) -> Assembled:
    """Make generation `number`; raises ManifestErrors if its code can't be imported after all.

    `clock` times the import.
    """
    assert checked.inputs is not None
    assert checked.declaration is not None
    inputs = checked.inputs
    # Imports are user code, and user code never runs on this loop.
    build = _Import(checked.declaration, number)
    limit = inputs.loaded.controller.reload.warm_timeout
    await breathe()
    began = clock.monotonic()
    try:
        async with asyncio.timeout(limit):
            foreign, faults = await in_thread(build, name="declctl-import", what="the import of the handlers")
    except TimeoutError as error:
        build.give_up()
        raise ReloadRefused(
            "ImportTimeout", f"importing the handlers took longer than {limit:g} s"
        ) from error
    except asyncio.CancelledError:
        build.give_up()
        raise
    if foreign is None:
        raise ManifestErrors(diagnose(faults, inputs.loaded.document, inputs.bundle))
    is_foreign = checked.declaration.is_foreign
    imports = Imports(checked.import_seconds, clock.monotonic() - began if is_foreign else 0.0)
    try:
        await breathe()
        resolved = plan(inputs.loaded.controller)
        resources = [await _scoped(resource, around) for resource in resolved.resources]
        await breathe()
        code = _Code(inputs, foreign)
        wanted = tuple(_wanted(resource, foreign, code) for resource in resources)
        loop = await around.loops.responsive()
        return _assembled(number, inputs, resolved, foreign, wanted, around, imports=imports, loop=loop)
    except BaseException:
        foreign.close()
        raise


async def assemble_again(loaded: Generation, number: int, around: RuntimeServices) -> Assembled:
    """Make generation `number` of what another one has loaded already: the same code, plugins and plan."""
    loop = await around.loops.responsive()
    wanted = tuple(replace(resource) for resource in loaded.wanted)
    return _assembled(
        number, loaded.inputs, loaded.plan, loaded.foreign, wanted, around, imports=Imports(), loop=loop
    )


def _assembled(  # noqa: PLR0913 - all that it is made of
    number: int,
    inputs: Inputs,
    resolved: Plan,
    foreign: LoadedCode,
    wanted: tuple[ResourceRequirement, ...],
    around: RuntimeServices,
    *,
    imports: Imports,
    loop: LoopThread,
) -> Assembled:
    fresh = around.caches.prepare(wanted)
    try:
        generation = _generation(
            number, inputs, resolved, foreign, wanted, around, imports=imports, loop=loop
        )
        return Assembled(generation, fresh)
    except BaseException:
        around.caches.release(wanted, linger=0.0)
        raise


def _generation(  # noqa: PLR0913 - as above
    number: int,
    inputs: Inputs,
    resolved: Plan,
    foreign: LoadedCode,
    wanted: tuple[ResourceRequirement, ...],
    around: RuntimeServices,
    *,
    imports: Imports,
    loop: LoopThread,
) -> Generation:
    listers = Listers({resource.plan.name: around.caches.lister(resource) for resource in wanted})
    informers = {resource.plan.name: around.caches.of(resource) for resource in wanted}
    places = {
        handler.name: Place(
            _binding(number, handler, foreign, listers, around, loop), informers[handler.resource]
        )
        for handler in resolved.handlers
    }
    return Generation(number, inputs, resolved, foreign, wanted, listers, places, imports, loop)


def _binding(
    number: int,
    handler: HandlerPlan,
    foreign: LoadedCode,
    listers: Listers,
    around: RuntimeServices,
    loop: LoopThread,
) -> Binding:
    config = foreign.configs.get(handler.name)
    world = around.world(handler.name, number, listers=listers, config=config)
    found = handler.filter
    made = None if found is None else Filter(found, handler.events, foreign.filters.get(handler.name))
    return Binding(number, handler, foreign.targets[handler.name], world, loop, made)


async def _scoped(resource: ResourcePlan, around: RuntimeServices) -> ResourcePlan:
    """The plan of a resource, with the namespaces left out where its kind has none."""
    if resource.namespaces is None:
        return resource
    key = resource.watches[0]
    try:
        found = await around.discovery.discover(GroupVersionKind.of(key.api_version, key.kind))
    except NotFound:
        return resource  # the kind may appear later; its informer says so until then
    except ApiError as error:
        around.log.warning(f"{resource.name}: the scope of {key.kind} is not known: {error}")
        return resource
    if found.namespaced:
        return resource
    if not resource.namespaces_inherited:
        around.log.warning(
            f"{resource.name}: {key.kind} is cluster-scoped, so that its namespaces are ignored"
        )
    return resource.without_namespaces()


class _Code:
    """Stamps for what code has made: they change whenever that code does, or a plugin's version."""

    def __init__(self, inputs: Inputs, foreign: LoadedCode) -> None:
        self._inputs = inputs
        self._foreign = foreign

    def of(self, origin: str | None) -> str:
        """Of the module that an entry point names, with all that it imports; without one, of all code."""
        module = (origin or "").partition(":")[0]
        code = self._inputs.modules.get(module, self._inputs.code)
        return _stamp(code, self._foreign.versions, self._inputs.forced)

    def of_transform(self, resource: ResourcePlan, watch: WatchKey) -> str:
        """Of what transforms the objects of a watch; empty if nothing does. As `PlanSnapshot.identities`."""
        if resource.name not in self._foreign.transforms:
            return ""
        by_hooks = self._foreign.from_hooks.transforms.get(resource.name)
        entry = watch.transform.entry_point
        return self.of(None if by_hooks or entry is None else entry.module)


def _wanted(resource: ResourcePlan, foreign: LoadedCode, code: _Code) -> ResourceRequirement:
    transform = foreign.transforms.get(resource.name)
    return ResourceRequirement(
        plan=resource,
        identities=tuple(Identity(watch, code.of_transform(resource, watch)) for watch in resource.watches),
        indexes=tuple(_indexes(resource, foreign, code)),
        transform=transform,
    )


def _indexes(resource: ResourcePlan, foreign: LoadedCode, code: _Code) -> Iterator[Index]:
    for each in resource.indexers:
        if each.field_path is not None:
            yield Index(each.name, f"{each.name}@{each.field_path}", field_index(each.field_path))
    for each in foreign.indexers.get(resource.name, ()):
        yield Index(
            each.name, f"{each.name}@{each.origin}#{code.of(each.origin)}", function_index(each.function)
        )


def _stamp(code: str, versions: str, forced: int) -> str:
    """What changes whenever the user's code or a plugin's version does, or a reload is forced."""
    return hashlib.sha256(f"{code}\0{versions}\0{forced}".encode()).hexdigest()[:16]
