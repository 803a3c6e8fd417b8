"""One generation: an immutable set of handlers, indexes and plugins, with its life-cycle hooks.

A generation is staged, prepared, committed, drained and retired. Its life-cycle hooks are called one after
the other, each with a time limit, and never on the machinery loop.

The code of handler files belongs to one generation, and to those that a rollback makes of it. An installed
plugin is one object for all generations that have it with the same version and config. `PluginLifetimes`
prepares it once, and tears it down with the last of these generations.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from declctl.errors import ReloadRefused
from declctl.hooks.calls import Implementation, call, call_async, describe_with_place
from declctl.kit import Clock, LoopThread
from declctl.manifest import Plan
from declctl.objects import GroupVersionKind, Resource
from declctl.runtime.caching.informer_pool import InformerPool
from declctl.runtime.caching.managed_informer import ResourceRequirement
from declctl.runtime.checking.config_secrets import ConfigSecrets
from declctl.runtime.checking.inputs import Inputs
from declctl.runtime.checking.loaded_code import LoadedCode
from declctl.runtime.handling.circuit_breaker import CircuitBreakers
from declctl.runtime.handling.context import ClusterAccess, Context, HandlerEnvironment, Listers, Memo
from declctl.runtime.handling.handler_loops import HandlerLoops
from declctl.runtime.handling.handler_slot import HandlerBinding
from declctl.runtime.handling.plugin_metrics import PluginMetrics
from declctl.runtime.isolation.parent.children import IsolatedHandlers, ProcessRegistry
from declctl.runtime.log import Log
from declctl.runtime.scheduling.schedules import ScheduleBinding
from declctl.runtime.threads import in_thread
from declctl.runtime.tracing import look_for_provider
from declctl.writes import DeclaredWrites

_NO_TIME = 0.001  # seconds; the timer of the hook before may be as much too early
_CANCELLED_SECONDS = 5.0
_NOTHING_DECLARED = DeclaredWrites()


class RuntimeServices(msgspec.Struct, frozen=True):
    """The services of the process that every generation uses."""

    discover: Callable[[GroupVersionKind], Awaitable[Resource]]  # raises NotFound for an unknown kind
    known: Callable[[GroupVersionKind], Resource | None]  # as it was discovered last; sends no request
    caches: InformerPool
    cluster: ClusterAccess
    secrets: ConfigSecrets
    loops: HandlerLoops
    log: Log
    user_log: Any
    breakers: CircuitBreakers
    metrics: PluginMetrics
    clock: Clock
    now: Callable[[], datetime]  # of `ctx.now`
    dry_run: bool = False
    is_sharded: bool = False  # whether the process shares objects with others, whatever a reload says
    processes: ProcessRegistry = msgspec.field(default_factory=ProcessRegistry)  # of isolated handlers

    def environment(
        self,
        handler: str,
        generation: int,
        *,
        listers: Listers,
        config: Mapping[str, Any] | None,
        declared: DeclaredWrites = _NOTHING_DECLARED,
        field_manager: str = "",
    ) -> HandlerEnvironment:
        """The environment that all contexts of one handler of one generation share."""
        return HandlerEnvironment(
            handler,
            generation,
            listers,
            config or {},
            self.cluster,
            self.user_log,
            self.now,
            self.dry_run,
            declared,
            field_manager,
        )


class Generation(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """A generation that is active, or is being staged."""

    number: int
    inputs: Inputs
    plan: Plan
    loaded_code: LoadedCode
    requirements: tuple[ResourceRequirement, ...]  # on the caches
    listers: Listers
    bindings: Mapping[str, HandlerBinding]  # for the slots of its handlers, by their names
    loop: LoopThread  # for asynchronous hooks
    schedules: Mapping[str, ScheduleBinding] = {}  # by their names
    isolated: IsolatedHandlers | None = None  # the processes of its isolated handlers

    def resource(self, name: str) -> ResourceRequirement | None:
        """Its requirement of a resource."""
        return next((each for each in self.requirements if each.plan.name == name), None)


class OldGeneration(msgspec.Struct, frozen=True):
    """A generation that was replaced or refused, and whose code is still alive."""

    generation: int
    held_by: tuple[str, ...]  # what refers to its code, in words
    refused: bool = False


def lifecycle_context(name: str, generation: Generation, memo: Memo, services: RuntimeServices) -> Context:
    """The context of a life-cycle hook. `name` is that of the plugin, or the entry point."""
    config = generation.loaded_code.plugin_configs.get(name)
    environment = services.environment(name, generation.number, listers=generation.listers, config=config)
    return Context(environment, lambda: memo)


Seconds = Callable[[], float]
"""The time limit of the next hook."""


class HookFailure(msgspec.Struct, frozen=True):
    """A life-cycle hook that raised or took too long."""

    hook: str
    plugin: str
    error: BaseException

    def __str__(self) -> str:
        if self.error.__cause__ is None:
            return str(self.error)
        return f"{self.hook} of {self.plugin} raised {describe_with_place(self.error.__cause__)}"


class Lifecycle:
    """Calls life-cycle hooks: `def` in a thread, `async def` on the `loop` of their generation.

    Used on the machinery loop.
    """

    def __init__(self, log: Log) -> None:
        self._log = log

    async def call_each(
        self,
        implementations: Iterable[Implementation],
        arguments: Callable[[Implementation], Mapping[str, object]],
        *,
        loop: LoopThread,
        timeout: Seconds,
    ) -> list[HookFailure]:
        """Call all implementations in order, each with `timeout()` seconds; return and log the failures.

        After a failure, the next one is called all the same.
        """
        failed: list[HookFailure] = []
        for implementation in implementations:
            try:
                await self.call(implementation, arguments(implementation), loop=loop, timeout=timeout())
            except Exception as error:  # noqa: BLE001 - user code: logged, and the caller decides
                failed.append(HookFailure(implementation.hook, implementation.plugin, error))
        for failure in failed:
            self._log.error(str(failure), hook=failure.hook, plugin=failure.plugin)
        return failed

    async def call(
        self,
        implementation: Implementation,
        arguments: Mapping[str, object],
        *,
        loop: LoopThread,
        timeout: float,
    ) -> object:
        """Call one implementation. Raises HandlerFailed, or TimeoutError after `timeout` seconds.

        An `async def` hook is not called while its loop is blocked: that is a TimeoutError at once. A `def`
        hook that takes too long can't be stopped: its thread is abandoned. After a cancellation, the hook is
        waited for, for 5 seconds at most: the hook that undoes it should not run beside it.
        """
        what = f"{implementation.hook} of {implementation.plugin}"
        if implementation.is_async and loop.is_blocked:
            raise TimeoutError(f"{what} was not called: another `async def` blocks the loop that it runs on")
        if timeout < _NO_TIME:
            raise TimeoutError(f"{what} was not called: no time was left for it")
        work = asyncio.ensure_future(self._work(implementation, arguments, loop))
        try:
            done, _ = await asyncio.wait([work], timeout=timeout)
        except asyncio.CancelledError:
            # A `def` hook can't be cancelled: its end is waited for, so that its undoing comes after it.
            if implementation.is_async:
                work.cancel()
            await asyncio.wait([work], timeout=_CANCELLED_SECONDS)
            raise
        finally:
            work.cancel()
            work.add_done_callback(_retrieve_exception)
        if not done:
            raise TimeoutError(f"{what} took longer than {timeout:g} s")
        return work.result()

    async def _work(
        self, implementation: Implementation, arguments: Mapping[str, object], loop: LoopThread
    ) -> object:
        if implementation.is_async:
            return await asyncio.wrap_future(loop.submit(call_async(implementation, arguments)))
        name = f"declctl-{implementation.hook}"
        return await in_thread(
            lambda: call(implementation, arguments),
            name=name,
            what=f"{implementation.hook} of {implementation.plugin}",
        )


def _retrieve_exception(work: asyncio.Future[object]) -> None:
    """Retrieve the exception that a hook raises after its timeout: otherwise asyncio logs it."""
    if not work.cancelled():
        work.exception()


class PluginLifetimes:
    """Prepares generations, and tears them down. Used on the machinery loop.

    A plugin or code that several generations share is prepared and torn down once.
    """

    def __init__(self, services: RuntimeServices, lifecycle: Lifecycle) -> None:
        self._services = services
        self._lifecycle = lifecycle
        self._generations: list[Generation] = []  # staged or committed, and not torn down; oldest first
        self.memos: dict[str, Memo] = {}  # by plugin or entry point

    def all(self) -> Sequence[Generation]:
        """The generations that are staged or committed and not torn down, the oldest first."""
        return tuple(self._generations)

    def memo(self, name: str) -> Memo:
        """The memo of a plugin or an entry point in its life-cycle hooks."""
        return self.memos.setdefault(name, Memo())

    def enter(self, generation: Generation) -> None:
        """Begin to stage a generation: its plugins are not torn down from now on."""
        self._generations.append(generation)

    async def leave(self, generation: Generation, *, timeout: Seconds) -> bool:
        """End a generation: tear down plugins and code that no other one uses, `timeout()` seconds a hook.

        Returns whether it was the last generation that used its code.
        """
        self._generations.remove(generation)
        # A rollback has made another generation of the same code: that one tears the code down.
        if self._is_loaded(generation):
            return False
        kept = self._shared_plugins(generation)
        await self._lifecycle.call_each(
            [i for i in generation.loaded_code.lifecycle("declctl_teardown") if i.plugin not in kept],
            lambda i: self._arguments(i, generation),
            loop=generation.loop,
            timeout=timeout,
        )
        return True

    async def prepare(self, generation: Generation, *, replaced: Generation | None) -> None:
        """Call the hooks of a generation before its commit; raises ReloadRefused if one fails.

        `replaced` is the active generation. Without one, `declctl_startup` is called first. Code that is
        loaded already was prepared before, and has its state.
        """
        if replaced is None:
            await self._call_all(generation, "declctl_startup", "StartupFailed")
            look_for_provider()  # a hook may have configured one
        await self._call_all(
            generation, "declctl_prepare", "PrepareFailed", but=self._prepared(generation, replaced)
        )
        if replaced is not None and not self._is_loaded(generation):
            await self._hand_over_state(replaced, generation)

    async def _call_all(
        self, generation: Generation, hook: str, reason: str, *, but: frozenset[str] = frozenset()
    ) -> None:
        failed = await self._lifecycle.call_each(
            [i for i in generation.loaded_code.lifecycle(hook) if i.plugin not in but],
            lambda i: self._arguments(i, generation),
            loop=generation.loop,
            timeout=lambda: generation.plan.reload.warm_timeout,
        )
        if failed:
            raise ReloadRefused(reason, "; ".join(str(failure) for failure in failed))

    async def _hand_over_state(self, old: Generation, new: Generation) -> None:
        exporters = {i.plugin: i for i in old.loaded_code.lifecycle("declctl_export_state")}
        timeout, kept = new.plan.reload.warm_timeout, new.loaded_code.same_plugins(old.loaded_code)
        for importer in new.loaded_code.lifecycle("declctl_import_state"):
            exporter = exporters.get(importer.plugin)
            # An installed plugin that stays is the same object, and has its state.
            if exporter is None or importer.plugin in kept:
                continue
            try:
                state = await self._lifecycle.call(exporter, {}, loop=old.loop, timeout=timeout)
                arguments = {"state": state, "from_generation": old.number}
                await self._lifecycle.call(importer, arguments, loop=new.loop, timeout=timeout)
            except Exception as error:
                why = str(error) if error.__cause__ is None else describe_with_place(error.__cause__)
                message = f"the state of {importer.plugin} was not handed over: {why}"
                raise ReloadRefused("StateNotImported", message) from error

    def _prepared(self, generation: Generation, replaced: Generation | None) -> frozenset[str]:
        """The plugins that were prepared with the config of this generation.

        A plugin that the active generation has with another config is not among them.
        """
        other = (
            generation.loaded_code.reconfigured(replaced.loaded_code)
            if replaced is not None
            else frozenset[str]()
        )
        if self._is_loaded(generation):
            everybody = {i.plugin for i in generation.loaded_code.lifecycle("declctl_prepare")}
            return frozenset(everybody - other)
        return self._shared_plugins(generation) - other

    def _is_loaded(self, generation: Generation) -> bool:
        """Whether another generation has the same code object."""
        return any(other.loaded_code is generation.loaded_code for other in self._others(generation))

    def _shared_plugins(self, generation: Generation) -> frozenset[str]:
        """The installed plugins that another generation has with the same version and config."""
        return frozenset[str]().union(
            *(generation.loaded_code.same_plugins(other.loaded_code) for other in self._others(generation))
        )

    def _others(self, generation: Generation) -> Sequence[Generation]:
        return [other for other in self._generations if other is not generation]

    def _arguments(self, implementation: Implementation, generation: Generation) -> dict[str, object]:
        name = implementation.plugin
        return {"ctx": lifecycle_context(name, generation, self.memo(name), self._services)}
