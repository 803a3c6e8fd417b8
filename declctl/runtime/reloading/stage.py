"""The stage: makes a generation ready for its commit, beside the active one, which a failure does not change.

    manifest ─ plan ──────────────┬─ resources → ResourceRequirement → informers
    handler files → LoadedCode ───┘  handlers  → HandlerBinding → slots (queue, workers) on the informers

`assemble` imports the code, joins the parts of a generation, and counts informers as used. `Stage` then calls
`declctl_prepare`, fills new caches, builds new indexes, and prepares the changes of the commit. `Replays`
delivers the cache again to handlers with new code, if the manifest says so (`replay`).
"""

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import islice

import msgspec

from declctl import codes
from declctl.codes import CONTRADICTION
from declctl.errors import (
    ApiError,
    EntryPointError,
    Forbidden,
    GroupUnavailable,
    InvalidRequest,
    ManifestErrors,
    NotFound,
    ReloadRefused,
    Unauthorized,
)
from declctl.hooks.bundle import Bundle, reached
from declctl.hooks.plugins import find
from declctl.informer.stores.indices import field_index, function_index
from declctl.kit import Clock, LoopThread, set_within, to_its_end
from declctl.kit.backoff import Backoff
from declctl.manifest import Diagnostic, LoadedManifest, Plan, plan
from declctl.manifest.model import (
    ALL_EVENTS,
    CacheMode,
    FieldConflicts,
    FilterSpec,
    Mode,
    OnError,
    OnExisting,
    PluginSpec,
    ReplayPolicy,
    ScheduleSpec,
)
from declctl.manifest.plan import HandlerPlan, ResourcePlan, WatchKey, cut_apart, watches_of
from declctl.objects import ChangeType, FieldPath, GroupVersionKind, Record, Resource, with_views
from declctl.runtime.caching.identities import CacheIdentity
from declctl.runtime.caching.managed_informer import ManagedInformer, ResourceIndex, ResourceRequirement
from declctl.runtime.checking.check import CheckResult, diagnose, refused_request
from declctl.runtime.checking.declaration import Declaration, Fault
from declctl.runtime.checking.inputs import Inputs, digest_of
from declctl.runtime.checking.loaded_code import (
    READY,
    LoadedCode,
    LoadedPlugin,
    RegistrationWatch,
    load_code,
)
from declctl.runtime.handling.binding import Filter
from declctl.runtime.handling.circuit_breaker import BreakerPolicy, CircuitBreaker
from declctl.runtime.handling.context import Context, HandlerEnvironment, Listers, SnapshotSource
from declctl.runtime.handling.handler_slot import HandlerBinding
from declctl.runtime.handling.moves import CacheLags, FreshnessProof, follow, until_ready
from declctl.runtime.handling.slots import AnySlot, PreparedCommit, Slots
from declctl.runtime.isolation.parent.children import IsolatedHandlers, isolated_handlers
from declctl.runtime.log import Log
from declctl.runtime.reconciling.finalizers import HandlerFinalizer
from declctl.runtime.reconciling.mapping import KeySource, ReconciledKind, keys_of
from declctl.runtime.reconciling.reconcile_slot import ReconcileBinding
from declctl.runtime.reloading.changes import (
    ImportSeconds,
    PlanSnapshot,
    Step,
    StepKind,
    changes,
    finalizer_left,
    lost_finalizers,
)
from declctl.runtime.reloading.generation import Generation, PluginLifetimes, RuntimeServices
from declctl.runtime.scheduling.schedules import ScheduleBinding
from declctl.runtime.threads import in_thread
from declctl.writes import ChildCache, DeclaredWrites, drops_set_annotations

_REASONS = {
    codes.HANDLER_SYNTAX: "SyntaxError",
    codes.IMPORT_RAISED: "ImportFailed",
    codes.IMPORT_EXITED: "ImportFailed",
    codes.IMPORT_TOO_LONG: "ImportTimeout",
    codes.FORBIDDEN: "Forbidden",
    codes.SECRET_VALUE: "SecretUnavailable",
    codes.PLUGIN_NEEDS_RESTART: "RestartRequired",
}
# What leads from a watched object to keys of a reconciler. A resync of it does not: that of the reconciler's
# own objects has all keys.
_CHANGES = frozenset(ChangeType) - {ChangeType.RESYNC}
_SLICE = 100  # objects of a replay that are queued at once
_PAUSE_SECONDS = 0.01  # between two looks whether the queue of a handler is empty


def restart_steps(plugins: Iterable[LoadedPlugin]) -> tuple[Step, ...]:
    """A step `RestartRequired` for each plugin whose installed version is not the loaded one. Blocks."""
    return tuple(step for plugin in plugins if plugin.state == READY for step in _restart_step(plugin))


def state_steps(before: Iterable[LoadedPlugin], after: Iterable[LoadedPlugin]) -> Iterator[Step]:
    """A step `Swap` for each plugin that has become Ready or Disabled."""
    was = {plugin.name: plugin.state for plugin in before}
    for plugin in after:
        if plugin.name in was and was[plugin.name] != plugin.state:
            detail = "can be loaded now" if plugin.state == READY else f"disabled: {plugin.reason}"
            yield Step(StepKind.SWAP, f"plugin {plugin.name}", detail)


def _restart_step(plugin: LoadedPlugin) -> Iterable[Step]:
    try:
        installed = find(plugin.name, None).version
    except EntryPointError:
        yield Step(
            StepKind.RESTART, f"plugin {plugin.name}", f"{plugin.version} is loaded, none is installed"
        )
        return
    if installed != plugin.version:
        detail = f"{plugin.version} is loaded, {installed} is installed"
        yield Step(StepKind.RESTART, f"plugin {plugin.name}", detail)


def refusal(checked: CheckResult) -> ReloadRefused:
    """The errors as one refusal: the text of the first, and the number of the others."""
    errors = checked.errors
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    message = f"{first.file}:{first.line}: {first.message}{more}"
    return ReloadRefused(_REASONS.get(first.code, "Invalid"), message, checked.diagnostics)


def _refusal_with(error: ManifestErrors, checked: CheckResult) -> ReloadRefused:
    """The errors after those of the check as one refusal."""
    found = tuple(d for d in error.diagnostics if isinstance(d, Diagnostic))
    return refusal(CheckResult((*checked.diagnostics, *found)))


def config_steps(before: LoadedCode, after: LoadedCode) -> Iterator[Step]:
    """A step `Swap` for each plugin that goes on with another config, such as a value of `configFrom`."""
    for name in sorted(after.reconfigured(before)):
        yield Step(StepKind.SWAP, f"plugin {name}", "config changed")


def handlers_with_replay(plan: Plan) -> tuple[HandlerPlan, ...]:
    """The handlers with `replay: OnCodeChange`."""
    return tuple(handler for handler in plan.handlers if handler.replay is ReplayPolicy.ON_CODE_CHANGE)


def recoded_handlers(before: Mapping[str, str], plan: Plan, bundle: Bundle) -> tuple[str, ...]:
    """The handlers of a plan with `replay: OnCodeChange` whose code has changed; new handlers do not count.

    `before` is the result of `handler_digests`. The code of a handler is its function or module, with the
    modules beside the manifest that it imports, and the classes of its objects.
    """
    after = _digests_of([handler for handler in handlers_with_replay(plan) if handler.name in before], bundle)
    return tuple(name for name, code in after.items() if before[name] != code)


def handler_digests(plan: Plan, bundle: Bundle) -> Mapping[str, str]:
    """A digest of the code of each handler."""
    return _digests_of(plan.handlers, bundle)


def _digests_of(handlers: Iterable[HandlerPlan], bundle: Bundle) -> Mapping[str, str]:
    modules: dict[str, str] = {}  # digest by module: handlers may share one
    found: dict[str, str] = {}
    for handler in handlers:
        # New code of a plugin needs a new process.
        parts = [] if handler.entry_point is not None else [f"plugin {handler.plugin}"]
        for entry in (handler.entry_point, *handler.types):
            if entry is None:
                continue
            if entry.module not in modules:
                modules[entry.module] = digest_of(reached(bundle, entry.module).items())
            parts.append(f"{entry} {modules[entry.module]}")
        found[handler.name] = " ".join(parts)
    return found


def remapped_reconcilers(before: Plan, after: Plan, *, same_code: bool) -> tuple[str, ...]:
    """The reconcilers of both plans to whose keys other changes lead: all their keys are due once."""
    known = {handler.name: handler for handler in before.handlers}
    found: list[str] = []
    for handler in after.handlers:
        old = known.get(handler.name)
        if old is None or handler.mode is not Mode.RECONCILE:
            continue
        # The first entry point is that of the reconciler, which leads to no key.
        recoded = not same_code and any(handler.code[1:])
        # Every object of the handler gets the finalizer.
        anew = bool(handler.finalizer) and old.finalizer != handler.finalizer
        if recoded or anew or old.watches != handler.watches or old.filter != handler.filter:
            found.append(handler.name)
    return tuple(found)


class Replays:
    """Delivers caches again to handlers with new code. Used on the machinery loop.

    A handler has at most one replay. Objects are queued in slices, each when the queue of the handler is
    empty, and each object in its present state.
    """

    def __init__(self, slots: Slots, *, clock: Clock, log: Log) -> None:
        self._slots = slots
        self._clock = clock
        self._log = log
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by the name of the handler

    def begin(self, names: Sequence[str]) -> int:
        """Begin a replay for each of these handlers; returns the number of objects in all.

        A present replay of a handler is replaced.
        """
        objects = 0
        for name in names:
            slot = self._slots.get(name)
            if slot is None:
                continue
            self._slots.forget_write_loops(name)
            # The new replay has all objects of the cache, and so the rest of the earlier one.
            if (before := self._tasks.get(name)) is not None:
                before.cancel()
            task = asyncio.get_running_loop().create_task(self._replay(slot), name=f"replay {name}")
            self._tasks[name] = task
            task.add_done_callback(lambda done, name=name: self._over(name, done))
            objects += sum(len(cached.informer.indexer) for cached in slot.replayed_caches)
        return objects

    def close(self) -> None:
        """End all replays: the process ends."""
        for task in self._tasks.values():
            task.cancel()

    async def _replay(self, slot: AnySlot) -> None:
        before = slot.replayed
        for cached in slot.replayed_caches:
            for keys in _slices(list(cached.informer.indexer.known())):
                # Newer changes go first. The queue has no event for "empty", and a replay may be late.
                while cached in slot.registrations and slot.queue.statistics().waiting:
                    await self._clock.sleep(_PAUSE_SECONDS)
                if cached not in slot.registrations:
                    break  # the handler listens to another cache now, or is gone
                slot.replay(cached, _records(slot, cached, keys), self._clock.now().timestamp())
                await asyncio.sleep(0)
        count = slot.replayed - before
        self._log.info(
            f"{slot.name}: {count:,} object{'s' * (count != 1)} replayed to its new code", handler=slot.name
        )

    def _over(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]


def _slices(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    each = iter(keys)
    while part := tuple(islice(each, _SLICE)):
        yield part


def _records(slot: AnySlot, cached: ManagedInformer, keys: Sequence[str]) -> list[Record]:
    """The cached records of these keys, without those of which the handler's first delivery is pending."""
    knows = slot.registrations[cached].knows
    found = (cached.informer.indexer.known().get(key) for key in keys)
    return [record for record in found if record is not None and knows(record)]


def snapshot(generation: Generation) -> PlanSnapshot:
    """The side of a generation in a comparison. Cluster-scoped kinds have no namespaces in its plan."""
    resources = tuple(requirement.plan for requirement in generation.requirements)
    scoped = replace(generation.plan, resources=resources, watches=watches_of(resources))
    by_hooks = generation.loaded_code.from_hooks.transforms
    transformed = frozenset(name for name, hooks in by_hooks.items() if hooks)
    return PlanSnapshot(scoped, generation.inputs.code, transformed, generation.inputs.modules)


class AssembledGeneration(msgspec.Struct, frozen=True):
    """A generation whose parts are joined. Its new informers and its handlers have not started."""

    generation: Generation
    new_informers: Sequence[ManagedInformer]
    imports: ImportSeconds  # of its code; 0 if the code was loaded before


class _HandlerImport:
    """The import of the handlers in a thread. If it is given up, its code is closed when it returns."""

    def __init__(self, declaration: Declaration, number: int, known: Sequence[LoadedCode]) -> None:
        self._declaration = declaration
        self._number = number
        self._known = known
        self._deciding = threading.Lock()  # guards the two fields below
        self._given_up = False
        self._made: LoadedCode | None = None

    def __call__(self) -> tuple[LoadedCode | None, Sequence[Fault]]:
        # Before the import, so that its registrations differ from those that exist.
        watch = RegistrationWatch()
        loaded_code, faults = load_code(self._declaration, number=self._number, known=self._known)
        if loaded_code is not None:
            loaded_code.registrations = watch.registrations()
            loaded_code.share()
        with self._deciding:
            self._made = loaded_code
            # The caller has stopped waiting, so this thread closes the code.
            if self._given_up and loaded_code is not None:
                loaded_code.close()
        return loaded_code, faults

    def give_up(self) -> None:
        """Close the code, now or when the import returns. From any thread."""
        with self._deciding:
            self._given_up = True
            if self._made is not None:
                self._made.close()


async def assemble(
    checked: CheckResult,
    number: int,
    services: RuntimeServices,
    *,
    clock: Clock,
    known: Sequence[LoadedCode] = (),
) -> AssembledGeneration:
    """Import the code of a checked bundle, and make generation `number` of it. `known` is loaded code.

    Starts no informer and no handler. Raises ManifestErrors if the code can't be imported here, and
    ReloadRefused (ImportTimeout) if the import takes longer than `warmTimeout`. `clock` measures the import.
    """
    assert checked.inputs is not None
    assert checked.declaration is not None
    inputs = checked.inputs
    # An import runs user code, which must not run on this loop.
    build = _HandlerImport(checked.declaration, number, known)
    limit = inputs.loaded.controller.reload.warm_timeout
    await asyncio.sleep(0)
    began = clock.monotonic()
    try:
        async with asyncio.timeout(limit):
            loaded_code, faults = await in_thread(
                build, name="declctl-import", what="the import of the handlers"
            )
    except TimeoutError as error:
        build.give_up()
        raise ReloadRefused(
            "ImportTimeout", f"importing the handlers took longer than {limit:g} s"
        ) from error
    except asyncio.CancelledError:
        build.give_up()
        raise
    if loaded_code is None:
        raise ManifestErrors(diagnose(faults, inputs.loaded.document, inputs.bundle))
    has_user_code = checked.declaration.has_user_code
    imports = ImportSeconds(checked.import_seconds, clock.monotonic() - began if has_user_code else 0.0)
    try:
        await asyncio.sleep(0)
        resolved = plan(inputs.loaded.controller, is_sharded=services.is_sharded)
        resources = [await _scoped(resource, services) for resource in resolved.resources]
        if services.is_sharded:
            await _check_shared(resolved, inputs, services)
        await asyncio.sleep(0)
        code = _CodeDigests(inputs, loaded_code)
        requirements = tuple(_requirement(resource, loaded_code, code) for resource in resources)
        loop = await services.loops.responsive()
        await _discover_reconciled(resolved, services)
        isolated = await _isolated(resolved, loaded_code, checked.declaration, number, services)
        return _wire(
            number,
            inputs,
            resolved,
            loaded_code,
            requirements,
            services,
            imports=imports,
            loop=loop,
            isolated=isolated,
        )
    except BaseException:
        loaded_code.close()
        raise


async def assemble_again(loaded: Generation, number: int, services: RuntimeServices) -> AssembledGeneration:
    """Make generation `number` with the code, plugins and plan of one that is still loaded."""
    loop = await services.loops.responsive()
    requirements = tuple(replace(resource) for resource in loaded.requirements)
    await _discover_reconciled(loaded.plan, services)
    isolated = None
    if loaded.isolated is not None:  # its processes have ended, or end with its drain
        again = loaded.isolated.declaration
        isolated = await _isolated(loaded.plan, loaded.loaded_code, again, number, services)
    return _wire(
        number,
        loaded.inputs,
        loaded.plan,
        loaded.loaded_code,
        requirements,
        services,
        imports=ImportSeconds(),
        loop=loop,
        isolated=isolated,
    )


async def _isolated(
    plan: Plan, code: LoadedCode, declaration: Declaration, number: int, services: RuntimeServices
) -> IsolatedHandlers | None:
    """The processes of the isolated handlers of a generation; None without one. Raises ReloadRefused."""
    isolated = isolated_handlers(
        plan.handlers,
        code.targets,
        declaration,
        number=number,
        resources=[resource.name for resource in plan.resources],
        dry_run=services.dry_run,
        limit=plan.reload.warm_timeout,
        registry=services.processes,
        log=services.log,
    )
    if isolated is None:
        return None
    try:
        await in_thread(isolated.start, name="declctl-isolation")
    except BaseException:
        _close(isolated)
        raise
    return isolated


def _close(isolated: IsolatedHandlers) -> None:
    """End the processes of a generation that is not staged any further."""
    threading.Thread(target=isolated.close, args=("the reload has failed",), daemon=True).start()


def _wire(  # noqa: PLR0913 - the parts of a generation
    number: int,
    inputs: Inputs,
    resolved: Plan,
    loaded_code: LoadedCode,
    requirements: tuple[ResourceRequirement, ...],
    services: RuntimeServices,
    *,
    imports: ImportSeconds,
    loop: LoopThread,
    isolated: IsolatedHandlers | None,
) -> AssembledGeneration:
    with ExitStack() as undo:
        if isolated is not None:
            undo.callback(_close, isolated)
        new_informers = services.caches.prepare(requirements)
        # `prepare` has counted informers as used. They have not started, and are closed at once.
        undo.callback(services.caches.release, requirements, linger=0.0)
        listers = Listers(
            {
                resource.plan.name: services.caches.lister(resource, loaded_code.view_of(resource.plan.name))
                for resource in requirements
            }
        )
        informers = {resource.plan.name: services.caches.of(resource) for resource in requirements}
        plugins = {plugin.name: plugin for plugin in resolved.plugins}
        digests = _CodeDigests(inputs, loaded_code)
        make = _Bindings(number, loaded_code, listers, informers, services, loop, plugins, digests, isolated)
        bindings = {handler.name: make.of(handler) for handler in resolved.handlers}
        schedules = {
            schedule.name: _schedule(number, schedule, loaded_code, listers, services, loop)
            for schedule in resolved.schedules
        }
        generation = Generation(
            number, inputs, resolved, loaded_code, requirements, listers, bindings, loop, schedules, isolated
        )
        undo.pop_all()
        return AssembledGeneration(generation, new_informers, imports)


def _plural(services: RuntimeServices, gvk: GroupVersionKind) -> str:
    """The name of the resource of a kind, as it was discovered last; empty while it is not known."""
    known = services.known(gvk)
    return "" if known is None else known.plural


class _Bindings(msgspec.Struct, frozen=True):
    """Makes the bindings of a generation."""

    number: int
    loaded_code: LoadedCode
    listers: Listers
    informers: Mapping[str, Sequence[ManagedInformer]]  # by resource
    services: RuntimeServices
    loop: LoopThread
    plugins: Mapping[str, PluginSpec]  # of the manifest, by name
    digests: "_CodeDigests"
    isolated: IsolatedHandlers | None

    def of(self, handler: HandlerPlan) -> HandlerBinding:
        """The binding of a handler."""
        binding = self._of_events(handler)
        return binding if handler.mode is Mode.EVENT else self._with_sources(handler, binding)

    def _of_events(self, handler: HandlerPlan) -> HandlerBinding:
        environment = self._environment(handler)
        informers = self.informers[handler.resource]
        watch = informers[0].identity.watch
        gvk = GroupVersionKind.of(watch.api_version, watch.kind)
        target = self.loaded_code.targets[handler.name]
        children = None if self.isolated is None else self.isolated.of(handler.name)
        return HandlerBinding(
            self.number,
            handler,
            target if children is None else children.hooks(target),
            partial(Context, environment),
            self.loop,
            self._filter(handler.filter, handler.events, handler.name, handler.resource),
            _snapshots(handler.include_snapshots_from, self.listers),
            self._breaker(handler),
            self.digests.of_handler(handler),
            isolation=children,
            view=self.loaded_code.view_of(handler.resource),
            informers=informers,
            plural=partial(_plural, self.services, gvk),
        )

    def _breaker(self, handler: HandlerPlan) -> CircuitBreaker | None:
        """The breaker of the plugin of a handler; None without `onError: Disable`."""
        spec = self.plugins.get(handler.plugin or "")
        _, stamp = self.loaded_code.installed.get(handler.plugin or "", (None, None))
        if spec is None or stamp is None or spec.on_error is not OnError.DISABLE:
            return None
        policy = spec.circuit_breaker
        backoff = Backoff(policy.initial_backoff, policy.max_backoff)
        return self.services.breakers.of(spec.name, stamp, BreakerPolicy(policy.failures, backoff))

    def _with_sources(self, handler: HandlerPlan, binding: HandlerBinding) -> HandlerBinding:
        """The binding of a reconciler, which listens to several resources."""
        watch = binding.informers[0].identity.watch
        gvk = GroupVersionKind.of(watch.api_version, watch.kind)
        kind = ReconciledKind(gvk, partial(self.services.known, gvk), self.listers[handler.resource])
        caches = _caches_namespace(binding.informers)
        sources = [KeySource(handler.resource, binding.informers, binding.policy.types, binding.filter)]
        for position, watched in enumerate(handler.watches):
            name = f"{handler.name} {position}"
            mapping, view = self.loaded_code.mappings.get(name), self.loaded_code.view_of(watched.resource)
            sources.append(
                KeySource(
                    watched.resource,
                    self.informers[watched.resource],
                    _CHANGES,
                    self._filter(watched.filter, ALL_EVENTS, name, watched.resource),
                    keys_of(watched.map_to, kind, None if mapping is None else with_views(mapping, view)),
                    str(watched.map_to),
                    caches,
                )
            )
        listened = dict.fromkeys(managed for source in sources for managed in source.informers)
        # The filter judges changes before their keys are queued, and not the calls.
        return ReconcileBinding(
            binding.generation,
            handler,
            binding.target,
            binding.make_context,
            binding.loop,
            snapshots=binding.snapshots,
            breaker=binding.breaker,
            code=binding.code,
            isolation=binding.isolation,
            view=binding.view,
            informers=tuple(listened),
            plural=binding.plural,
            sources=tuple(sources),
            lister=self.listers[handler.resource],
            finalizer=self._finalizer(handler, gvk, binding.informers),
        )

    def _declared(self, handler: HandlerPlan) -> DeclaredWrites:
        """What the manifest says of the writes of a handler, and what its cached objects may be without."""
        identities = [managed.identity for managed in self.informers[handler.resource]]
        transforms = [identity.watch.transform for identity in identities]
        changed = any(each.transform for each in identities) or any(each.entry_point for each in transforms)
        dropped = {path for transform in transforms for path in transform.drop_fields}
        metadata_only = any(each.watch.cache is CacheMode.METADATA_ONLY for each in identities)
        return DeclaredWrites(
            handler.applies,
            handler.status,
            lacks_status=changed or metadata_only or any(path.split(".")[0] == "status" for path in dropped),
            lacks_annotations=changed or drops_set_annotations(FieldPath.parse(path) for path in dropped),
            adopt_fields_from=handler.adopt_fields_from,
            force=handler.field_conflicts is FieldConflicts.FORCE,
            adopts=handler.on_existing is OnExisting.ADOPT,
            children=tuple(self._child_caches(handler)),
            recreates=handler.on_immutable,
        )

    def _child_caches(self, handler: HandlerPlan) -> Iterator[ChildCache]:
        """The caches in which a reconciler sees its children as they are.

        What such a cache does not have yet comes as a change that leads to a call. So there is no filter, no
        selector, and no transform of the user, by which a change or an object may be missing.
        """
        for watched in handler.watches:
            informers = self.informers[watched.resource]
            watches = [managed.identity.watch for managed in informers]
            dropped = {path for watch in watches for path in watch.transform.drop_fields}
            if (
                watched.leads_to_owner
                and not any(managed.identity.transform for managed in informers)
                and not any(watch.label_selector or watch.field_selector for watch in watches)
                and not any(watch.cache is CacheMode.METADATA_ONLY for watch in watches)
                and not any(FieldPath.parse(path).steps[0] == "metadata" for path in dropped)
            ):
                kind = GroupVersionKind.of(watches[0].api_version, watches[0].kind)
                yield ChildCache(kind, self.listers[watched.resource], _caches_namespace(informers))

    def _finalizer(
        self, handler: HandlerPlan, kind: GroupVersionKind, informers: Sequence[ManagedInformer]
    ) -> HandlerFinalizer | None:
        if not handler.finalizer:
            return None
        environment = self._environment(handler)
        watches = [managed.identity.watch for managed in informers]
        return HandlerFinalizer(
            handler.finalizer,
            kind,
            partial(self.services.cluster.writes, environment),
            reads_first=handler.resource in self.loaded_code.transforms,
            dry_run=environment.dry_run,
            may_leave=any(
                each.namespace or each.namespace_selector or each.label_selector or each.field_selector
                for each in watches
            ),
        )

    def _environment(self, handler: HandlerPlan) -> HandlerEnvironment:
        return self.services.environment(
            handler.name,
            self.number,
            listers=self.listers,
            config=self.loaded_code.configs.get(handler.name),
            declared=self._declared(handler),
            field_manager=handler.field_manager,
        )

    def _filter(
        self, spec: FilterSpec | None, events: Iterable[str], name: str, resource: str
    ) -> Filter | None:
        if spec is None:
            return None
        accepts = self.loaded_code.filters.get(name)
        if accepts is None:
            return Filter(spec, events)
        return Filter(spec, events, with_views(accepts, self.loaded_code.view_of(resource)))


async def _discover_reconciled(plan: Plan, services: RuntimeServices) -> None:
    """Discover the kinds of reconcilers, so that no change waits for that; they may be unknown."""
    resources = {resource.name: resource for resource in plan.resources}
    for handler in plan.handlers:
        if handler.mode is Mode.RECONCILE:
            watch = resources[handler.resource].watches[0]
            with suppress(ApiError):  # its informer reports the fault, and discovers the kind later
                await services.discover(GroupVersionKind.of(watch.api_version, watch.kind))


def _schedule(
    number: int,
    spec: ScheduleSpec,
    loaded_code: LoadedCode,
    listers: Listers,
    services: RuntimeServices,
    loop: LoopThread,
) -> ScheduleBinding:
    environment = services.environment(spec.name, number, listers=listers, config=None)
    context = partial(Context, environment)
    snapshots = _snapshots(spec.include_snapshots_from, listers)
    return ScheduleBinding(number, spec, loaded_code.schedules[spec.name], context, loop, snapshots)


def _snapshots(names: Sequence[str], listers: Listers) -> SnapshotSource | None:
    return SnapshotSource(names, listers) if names else None


def _caches_namespace(informers: Sequence[ManagedInformer]) -> Callable[[str], bool] | None:
    """Whether the caches of a resource have all objects of a namespace; None if they have all namespaces.

    The namespaces of a selector come and go. One that has come in counts when its first list is complete.
    """
    watches = [managed.identity.watch for managed in informers]
    if any(watch.namespace_selector for watch in watches):
        return lambda namespace: any(each.informer.version_in(namespace) is not None for each in informers)
    found = frozenset(watch.namespace for watch in watches)
    return None if None in found else found.__contains__


async def _check_shared(resolved: Plan, inputs: Inputs, services: RuntimeServices) -> None:
    """Raises ManifestErrors if handlers need objects of other slots because kinds have no namespaces."""
    kinds: dict[GroupVersionKind, Resource] = {}
    for resource in resolved.resources:
        gvk = GroupVersionKind.of(resource.watches[0].api_version, resource.watches[0].kind)
        with suppress(ApiError):  # its informer reports the fault
            kinds[gvk] = await services.discover(gvk)
    if faults := [
        inputs.loaded.fault(CONTRADICTION, path, message, suggestion=advice)
        for path, message, advice in cut_apart(resolved, kinds)
    ]:
        raise ManifestErrors(faults)


async def _scoped(resource: ResourcePlan, services: RuntimeServices) -> ResourcePlan:
    """The plan of a resource; without its namespaces if the kind is cluster-scoped."""
    if not resource.names_namespaces:
        return resource
    key = resource.watches[0]
    try:
        found = await services.discover(GroupVersionKind.of(key.api_version, key.kind))
    except NotFound:
        return resource  # the kind may appear later; its informer reports the fault until then
    except ApiError as error:
        services.log.warning(f"{resource.name}: the scope of {key.kind} is not known: {error}")
        return resource
    if found.namespaced:
        return resource
    # No warning if the namespaces are the default of the manifest, which is meant for other resources.
    if not resource.namespaces_inherited:
        services.log.warning(
            f"{resource.name}: {key.kind} is cluster-scoped, so that its namespaces are ignored"
        )
    return resource.without_namespaces()


class _CodeDigests:
    """Digests of user code and of the versions of plugins, for handlers, indexes and transforms."""

    def __init__(self, inputs: Inputs, loaded_code: LoadedCode) -> None:
        self._inputs = inputs
        self._loaded_code = loaded_code

    def of(self, origin: str | None) -> str:
        """The digest of the module of an entry point, with its imports; for None, of all code."""
        module = (origin or "").partition(":")[0]
        code = self._inputs.modules.get(module, self._inputs.code)
        return _code_digest(code, self._loaded_code.versions, self._inputs.forced)

    def of_handler(self, handler: HandlerPlan) -> tuple[str, ...]:
        """The digests of the code of a handler, its filters and its mappings, and of its objects' classes."""
        entries = (self.of(entry.module) for entry in (*handler.code, *handler.types) if entry is not None)
        return self._loaded_code.versions, *entries

    def of_transform(self, resource: ResourcePlan, watch: WatchKey) -> str:
        """The digest of the transforms of a watch; empty without any. As in `PlanSnapshot.identities`."""
        if resource.name not in self._loaded_code.transforms:
            return ""
        # A hook may use all of the code; an entry point uses its module with its imports.
        by_hooks = self._loaded_code.from_hooks.transforms.get(resource.name)
        entry = watch.transform.entry_point
        return self.of(None if by_hooks or entry is None else entry.module)


def _requirement(resource: ResourcePlan, loaded_code: LoadedCode, code: _CodeDigests) -> ResourceRequirement:
    transform = loaded_code.transforms.get(resource.name)
    return ResourceRequirement(
        plan=resource,
        identities=tuple(
            CacheIdentity(watch, code.of_transform(resource, watch)) for watch in resource.watches
        ),
        indexes=tuple(_indexes(resource, loaded_code, code)),
        transform=transform,
    )


def _indexes(resource: ResourcePlan, loaded_code: LoadedCode, code: _CodeDigests) -> Iterator[ResourceIndex]:
    for each in resource.indexers:
        if each.field_path is not None:
            yield ResourceIndex(each.name, f"{each.name}@{each.field_path}", field_index(each.field_path))
    view = loaded_code.view_of(resource.name)
    # The values of an index may depend on the class of the objects.
    of_type = "" if resource.object_type is None else f"#{code.of(str(resource.object_type))}"
    for each in loaded_code.indexers.get(resource.name, ()):
        name = f"{each.name}@{each.origin}#{code.of(each.origin)}{of_type}"
        yield ResourceIndex(each.name, name, function_index(with_views(each.function, view)))


def _code_digest(code: str, versions: str, forced: int) -> str:
    """A digest of the user's code, the versions of plugins, and the last forced reload."""
    return hashlib.sha256(f"{code}\0{versions}\0{forced}".encode()).hexdigest()[:16]


class StagedGeneration(msgspec.Struct, frozen=True):
    """A generation that is ready: its commit can't fail."""

    generation: Generation
    prepared: PreparedCommit
    steps: Sequence[Step]
    replayed: Sequence[str]  # the handlers that receive the cache again because their code has changed
    imports: ImportSeconds  # of its code


class Stage:
    """Makes generations ready, one at a time. Used on the machinery loop.

    The result has to be committed in the same turn of the loop. `replaced` is the active generation. Each
    method raises ReloadRefused, or CancelledError, after everything that was made is undone. Between its
    steps, `sleep(0)` lets events pass and cancellations in.
    """

    def __init__(
        self,
        services: RuntimeServices,
        lifetimes: PluginLifetimes,
        slots: Slots,
        *,
        discard: Callable[[Generation], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._services = services
        self._lifetimes = lifetimes
        self._slots = slots
        self._discard = discard  # undoes what was made of a generation that is not committed
        self._clock = clock

    async def first(self, checked: CheckResult) -> StagedGeneration:
        """The first generation, number 1. Its caches fill after the commit."""
        return await self._ready(await self._assemble(checked, 1), replaced=None)

    async def next(self, checked: CheckResult, number: int, *, replaced: Generation) -> StagedGeneration:
        """The generation of a checked bundle."""
        return await self._ready(await self._assemble(checked, number), replaced=replaced)

    async def again(self, before: Generation, number: int, *, replaced: Generation) -> StagedGeneration:
        """A new generation with the code of `before`, which is still loaded."""
        return await self._ready(await assemble_again(before, number, self._services), replaced=replaced)

    async def with_secrets(self, checked: CheckResult) -> CheckResult:
        """A copy with the values of the Secrets that configs of plugins name, unless it has them.

        Raises ReloadRefused (Forbidden or SecretUnavailable), also after `warmTimeout`.
        """
        assert checked.inputs is not None
        limit = checked.inputs.loaded.controller.reload.warm_timeout
        try:
            async with asyncio.timeout(limit):
                return await self._services.secrets.read(checked)
        except ManifestErrors as error:
            raise _refusal_with(error, checked) from error
        except TimeoutError:
            message = f"the Secrets of the plugins' configs were not read within {limit:g} s"
            raise ReloadRefused("SecretUnavailable", message) from None

    async def _assemble(self, checked: CheckResult, number: int) -> AssembledGeneration:
        known = [generation.loaded_code for generation in self._lifetimes.all()]
        complete = await self.with_secrets(checked)
        try:
            return await assemble(complete, number, self._services, clock=self._clock, known=known)
        except ManifestErrors as error:
            raise _refusal_with(error, checked) from error

    async def _ready(
        self, assembled: AssembledGeneration, *, replaced: Generation | None
    ) -> StagedGeneration:
        new, caches = assembled.generation, self._services.caches
        timeout = new.plan.reload.warm_timeout
        proofs: Sequence[FreshnessProof] = ()
        self._lifetimes.enter(new)
        try:
            if replaced is not None:
                await self._require_released(new, replaced)
            await self._lifetimes.prepare(new, replaced=replaced)
            # Before new caches are listed: a proof needs the versions that handlers have received until then.
            proofs = self._slots.begin_proofs(new.bindings)
            caches.start(assembled.new_informers)
            if replaced is not None:
                await self._warm(new, replaced, timeout)
            await caches.build_indexes(new.requirements, timeout=timeout)
            # Another version of a plugin may be installed now, which only a new process loads.
            plugins = new.loaded_code.plugins
            restarts = await asyncio.to_thread(restart_steps, plugins) if plugins else ()
            replayed = await self._replayed(replaced, new)
            await asyncio.sleep(0)
            steps = () if replaced is None else (*_steps(replaced, new), *restarts)
            same_code = replaced is not None and _code(replaced) == _code(new)
            await asyncio.sleep(0)
            prepared = await self._slots.prepare(new.bindings, proofs, same_code=same_code)
            await self._follow(prepared, new, timeout)
        except BaseException:
            # Also when cancelled: a newer attempt begins only after this one is undone.
            for proof in proofs:
                proof.close()
            await to_its_end(self._undo(new))
            raise
        staying = {slot.name for slot in prepared.staying}  # the others receive the cache anyway
        return StagedGeneration(
            new, prepared, steps, [name for name in replayed if name in staying], assembled.imports
        )

    async def _replayed(self, replaced: Generation | None, new: Generation) -> Sequence[str]:
        if replaced is None:
            return ()
        same_code = _code(replaced) == _code(new)
        remapped = remapped_reconcilers(replaced.plan, new.plan, same_code=same_code)
        if not handlers_with_replay(new.plan):
            return remapped
        # A forced reload is for changes that digests do not show, so all code counts as new.
        if replaced.inputs.forced != new.inputs.forced:
            forced = [each.name for each in handlers_with_replay(new.plan) if each.entry_point is not None]
            return tuple(dict.fromkeys((*remapped, *forced)))
        # In threads: digests of large bundles would delay events.
        before = await asyncio.to_thread(handler_digests, replaced.plan, replaced.inputs.bundle)
        recoded = await asyncio.to_thread(recoded_handlers, before, new.plan, new.inputs.bundle)
        return tuple(dict.fromkeys((*remapped, *recoded)))

    async def _require_released(self, new: Generation, replaced: Generation) -> None:
        """Raise ReloadRefused if objects have a finalizer that no handler has any more.

        From here on the present code does not add it again to objects that are released from it. New objects
        get it, as they would be lost without `declctl_finalize` otherwise.
        """
        for handler in lost_finalizers(replaced.plan, new.plan):
            resource = next(each for each in replaced.plan.resources if each.name == handler.resource)
            watch = resource.watches[0]
            kind = GroupVersionKind.of(watch.api_version, watch.kind)
            self._slots.let_finalizer_go(handler.name, handler.finalizer)
            document = new.inputs.loaded.document
            spec = next((each for each in new.plan.handlers if each.name == handler.name), None)
            line = document.locate(("spec",) if spec is None else spec.path).line
            try:
                found = await self._services.cluster.carriers(kind, handler.finalizer, resource.namespaces)
            except ApiError as error:
                message = f"whether objects have the finalizer {handler.finalizer} is not known: {error}"
                raise ReloadRefused("FinalizersLeft", f"{document.path}:{line}: {message}") from error
            if found:
                message = finalizer_left(handler.name, handler.finalizer, [carrier.key for carrier in found])
                raise ReloadRefused("FinalizersLeft", f"{document.path}:{line}: {message}")

    async def _warm(self, new: Generation, replaced: Generation, timeout: float) -> None:
        """Wait until all new caches of a generation have synced; raises ReloadRefused if one does not.

        Does not wait while no cache is filled, because another process leads (`followers: Cold`).
        """
        if self._services.caches.defers_starts:
            return
        deadline = self._clock.monotonic() + timeout  # one for all caches together
        moved = _moved_to(new, replaced)
        for requirement in new.requirements:
            name = requirement.plan.name
            before = replaced.resource(name)
            # Caches of the active generation have synced; those to which a handler moves are waited for
            # anyway.
            known = self._services.caches.of(before) if before is not None and name not in moved else ()
            for cached in self._services.caches.of(requirement):
                if cached not in known:
                    may_be_missing = before is None and name not in moved
                    await self._until_synced(
                        cached, new.inputs.loaded, name, deadline, timeout, may_be_missing=may_be_missing
                    )

    async def _until_synced(
        self,
        cached: ManagedInformer,
        loaded: LoadedManifest,
        name: str,
        deadline: float,
        timeout: float,
        *,
        may_be_missing: bool,
    ) -> None:
        informer, changed = cached.informer, asyncio.Event()
        informer.synced.on_open(changed.set)  # a released informer never calls it
        self._services.caches.on_fault.append(changed.set)
        try:
            while not informer.has_synced:
                fault = informer.fault
                if may_be_missing and isinstance(fault, NotFound | GroupUnavailable):
                    return  # the kind may be served later: a reload accepts that, as a start does
                if isinstance(fault, InvalidRequest):
                    raise refusal(CheckResult((refused_request(loaded, name, fault),)))
                left = deadline - self._clock.monotonic()
                self._refuse_unsynced(cached, timeout, is_late=left <= 0)
                await set_within(changed, left, clock=self._clock)
                changed.clear()
        finally:
            self._services.caches.on_fault.remove(changed.set)

    def _refuse_unsynced(self, cached: ManagedInformer, timeout: float, *, is_late: bool) -> None:
        """Raise ReloadRefused if a cache can't sync, or has not synced in time."""
        fault = cached.informer.fault
        # A transform that does not return keeps the cache from its sync: the refusal names it.
        if is_late and cached.staged is not None and cached.staged.is_running:
            raise cached.staged.refusal(f"took longer than {timeout:g} s")
        if isinstance(fault, NotFound | GroupUnavailable):
            reason = "NotServed"
        elif isinstance(fault, Forbidden | Unauthorized):
            reason = "Forbidden"
        elif is_late:
            reason = "NotSynced"
        else:
            return
        why = cached.informer.statistics().error or f"it did not sync within {timeout:g} s"
        raise ReloadRefused(reason, f"{cached.identity.watch}: {why}")

    async def _follow(self, prepared: PreparedCommit, new: Generation, timeout: float) -> None:
        differences = prepared.differences
        try:
            await asyncio.sleep(0)
            await follow(differences, timeout=timeout)
            listening = {move.slot.name: move.slot.registrations.values() for move in prepared.moves}
            indexes, clock = self._services.caches.staged_indexes, self._clock
            await until_ready(differences, prepared.proofs, listening, indexes, clock=clock, timeout=timeout)
        except CacheLags as lag:
            self._slots.discard(prepared)
            raise ReloadRefused(lag.reason, f"{self._place_of(lag.target, new)}: {lag.message}") from lag
        except BaseException:
            self._slots.discard(prepared)
            raise

    def _place_of(self, cached: ManagedInformer, generation: Generation) -> str:
        """File, line and name of the resource of a cache."""
        document = generation.inputs.loaded.document
        resource = next(w.plan for w in generation.requirements if cached in self._services.caches.of(w))
        return f"{document.path}:{document.locate(resource.path).line}: {resource.name}"

    async def _undo(self, generation: Generation) -> None:
        await self._discard(generation)
        await asyncio.sleep(0)  # released informers close now, so that the next attempt does not use them


def _steps(replaced: Generation, new: Generation) -> Iterator[Step]:
    """The steps from one generation to the other, as far as both know them."""
    planned = _changes(replaced, new)
    yield from planned
    yield from state_steps(replaced.loaded_code.plugins, new.loaded_code.plugins)
    # Of a plugin whose entry of the manifest has changed, there is a step already.
    subjects = {step.subject for step in planned}
    for step in config_steps(replaced.loaded_code, new.loaded_code):
        if step.subject not in subjects:
            yield step


def _changes(replaced: Generation, new: Generation) -> Sequence[Step]:
    before, now = snapshot(replaced), snapshot(new)
    return changes(before.forced(replaced.inputs.forced), now.forced(new.inputs.forced))


def _code(generation: Generation) -> tuple[str, int]:
    return generation.inputs.code, generation.inputs.forced


def _moved_to(new: Generation, replaced: Generation) -> frozenset[str]:
    """The names of the resources to which a handler moves from another one (`resourceRef`).

    Their kinds have to be served: the handler would lose the objects that it has received.
    """
    before = {handler.name: handler.resource for handler in replaced.plan.handlers}
    return frozenset(h.resource for h in new.plan.handlers if before.get(h.name, h.resource) != h.resource)
