"""The process: start, serve, reload, stop.

The machinery runs on one loop in a thread of its own, asynchronous hooks on a second one,
synchronous hooks in threads; the main thread only waits for signals.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import msgspec

from declctl.errors import ManifestErrors
from declctl.informer import Lister
from declctl.kit import Clock, LoopThread, SystemClock
from declctl.kit.logs import structlog
from declctl.manifest import Plan, plan
from declctl.manifest.model import ReloadSpec, WatchFiles
from declctl.objects import Mutation
from declctl.runtime.assembly import Surroundings, lifecycle_context
from declctl.runtime.attempts import Attempts
from declctl.runtime.caches import Caches
from declctl.runtime.changes import Kind
from declctl.runtime.check import Checked, read_files
from declctl.runtime.children import Children
from declctl.runtime.door import ClusterDoor
from declctl.runtime.files import FileChanges
from declctl.runtime.generation import Generation
from declctl.runtime.history import History
from declctl.runtime.inputs import InputFiles
from declctl.runtime.lifecycle import Lifecycle
from declctl.runtime.log import Log
from declctl.runtime.mutations import MutationChecks
from declctl.runtime.observer import Observer
from declctl.runtime.outcome import Outcome, Result
from declctl.runtime.probation import Probation
from declctl.runtime.recorder import EventRecorder
from declctl.runtime.reload import NOT_IN_MEMORY, Reloader
from declctl.runtime.running import Running, running
from declctl.runtime.signals import SignalHandlers
from declctl.runtime.slots import Slots
from declctl.runtime.status import Status
from declctl.transport import Client

Front = Callable[["Runtime"], AbstractAsyncContextManager[None]]

_DRAIN_SECONDS = 25.0  # how long running calls may take after SIGTERM; a kubelet waits 30
_HOOK_SECONDS = 60.0
_FLUSH_SECONDS = 2.0


class RunOptions(msgspec.Struct, frozen=True):
    """What `declctl run` was asked for.

    `watch` None leaves it to the manifest; `timeout` (seconds) is for `once`. `mutation_detector`
    compares every object of caches with `mode: Objects` each second, instead of a part of them.
    `exec_on_restart` ends it in order when a reload finds something that needs a new process.
    """

    manifest: str
    watch: bool | None = None
    exec_on_restart: bool = False
    once: bool = False
    timeout: float = 60.0
    dry_run: bool = False
    mutation_detector: bool = False


class Runtime:
    """One controller from start to stop.

    `run` blocks the main thread and returns the exit status. Everything else belongs to the
    machinery loop, except `stop` and `status`, which may be called from any thread.
    """

    def __init__(
        self,
        options: RunOptions,
        *,
        connect: Callable[[], Awaitable[Client]],
        fronts: Sequence[Front] = (),
        children: Children | None = None,
        clock: Clock | None = None,
        log: Log | None = None,
    ) -> None:
        self.options = options
        self._connect = connect
        self._fronts = fronts
        self._clock: Clock = clock or SystemClock()
        self._log: Log = log or structlog.get_logger("declctl")
        self._machinery = LoopThread("declctl-machinery")
        self._handlers = LoopThread("declctl-handlers")
        self._stopping = asyncio.Event()
        self._hangup = asyncio.Event()
        self._children = children or Children()
        self._reloader: Reloader | None = None
        self._attempts: Attempts | None = None
        self._history = History(self._clock)
        self._slots: Slots | None = None
        self._observer: Observer | None = None
        self._first_plan: Plan | None = None
        self._caches: Caches | None = None
        self._mutations: MutationChecks | None = None
        self.restarts = False  # it has ended to be started again
        self.client: Client | None = None

    def run(self) -> int:
        """Run until stopped; 0 if it was asked to stop, or `once` succeeded, else 1.

        Raises ManifestErrors or UsageError before anything has started.
        """
        files = InputFiles(self.options.manifest)
        self._children.warm()  # it loads what it needs while this process does
        self._machinery.start()
        self._handlers.start()
        future = self._machinery.submit(self._serve(files))
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        with self._signals():
            while not done.wait(1.0):  # a wait without a limit would keep Python from seeing signals
                pass
        self._children.close()
        self._handlers.stop()
        self._machinery.stop()
        try:
            return future.result()
        except BaseExceptionGroup as several:
            raise _first_of(several) from several

    def stop(self) -> None:
        """Ask the process to drain and end; from any thread."""
        self._machinery.loop.call_soon_threadsafe(self._stopping.set)

    async def reload(self, *, asked: bool = True) -> Outcome:
        """Make what the files say now the next generation, or say why not.

        An attempt on older files that is not committed yet is given up for it.
        """
        assert self._attempts is not None
        return await self._attempts.reload(asked=asked)

    async def rollback(self, number: int | None = None) -> Outcome:
        """Let the generation before run again, or the one of that number, if it is still in memory."""
        assert self._reloader is not None
        outcome = await self._reloader.rollback(number, why="somebody asked for it")
        if outcome.reason == NOT_IN_MEMORY:  # nothing was tried: who asked for it is told, and nobody else
            self._history.add(outcome)
            self._log.warning(outcome.line, reason=outcome.reason, suggestion=outcome.advice)
        else:
            await self._attempted(outcome, True)
        return outcome

    def history(self) -> dict[str, Any]:
        """What became of the newest attempts, the oldest first, and which generations can come back."""
        loaded = self._reloader.loaded if self._reloader is not None else ()
        return {"attempts": self._history.document(), "inMemory": list(loaded)}

    async def _attempted(self, outcome: Outcome, asked: bool) -> None:
        assert self._observer is not None
        self._history.add(outcome)
        self._children.close()  # a change was seen and came to nothing: none is kept
        self._observer.reloaded(outcome)
        if outcome.result is Result.APPLIED:
            log = self._log.warning if outcome.unplanned else self._log.info
            log(outcome.line, generation=outcome.generation)
        elif outcome.result is Result.ROLLED_BACK:
            log = self._log.info if asked else self._log.error
            log(outcome.line, generation=outcome.generation, reason=outcome.reason, suggestion=outcome.advice)
        elif outcome.result is Result.REFUSED:
            self._log.error(
                outcome.line,
                reason=outcome.reason,
                suggestion=outcome.advice,
                diagnostics=outcome.diagnostics,
            )
        elif asked or outcome.result is Result.SUPERSEDED:
            self._log.info(outcome.line)
        await self._tell_hooks(outcome)
        self._end_for_restart(outcome)

    def status(self) -> Status:
        """What the controller says of itself."""
        assert self._observer is not None
        return self._observer.status()

    @property
    def mutations(self) -> Sequence[Mutation]:
        """What readers have changed in objects that they share, the newest; it was put right."""
        return self._mutations.found if self._mutations is not None else ()

    @property
    def plan(self) -> Plan:
        """The plan that runs, or is about to."""
        generation = self._reloader.active if self._reloader is not None else None
        if generation is not None:
            return generation.plan
        assert self._first_plan is not None
        return self._first_plan

    def running(self) -> Running | None:
        """What another manifest is compared with; None before the first generation."""
        generation = self._reloader.active if self._reloader is not None else None
        if generation is None or self._caches is None:
            return None
        return running(generation, self._caches.all())

    def lister(self, resource: str) -> Lister | None:
        """A view of the live cache; None if the manifest names no such resource."""
        generation = self._reloader.active if self._reloader is not None else None
        return generation.listers.get(resource) if generation is not None else None

    async def _serve(self, files: InputFiles) -> int:
        checked = await self._checked(files)
        assert checked.inputs is not None
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            self.client = client = await self._connect()
            stack.push_async_callback(client.close)
            self._introduce(client, checked)
            recorder = EventRecorder(
                client, component=checked.inputs.loaded.controller.name, clock=self._clock, log=self._log
            )
            caches = self._caches = Caches(client, tasks=tasks, clock=self._clock, log=self._log)
            mutations = self._mutations = MutationChecks(
                caches, clock=self._clock, thorough=self.options.mutation_detector
            )
            slots = self._slots = Slots(loop=self._handlers.loop, clock=self._clock, log=self._log)
            around = Surroundings(
                discovery=client,
                caches=caches,
                cluster=ClusterDoor(client, recorder),
                log=self._log,
                user_log=structlog.get_logger("declctl.handler"),
                dry_run=self.options.dry_run,
            )
            lifecycle = Lifecycle(self._handlers.loop, self._log)
            reloader = self._reloader = Reloader(
                files,
                around=around,
                slots=slots,
                lifecycle=lifecycle,
                children=self._children,
                clock=self._clock,
                log=self._log,
            )
            attempts = self._attempts = Attempts(
                reloader, digest=files.digest, finished=self._attempted, clock=self._clock
            )
            self._first_plan = plan(checked.inputs.loaded.controller)
            observer = self._observer = Observer(
                self._first_plan.name, reloader, caches=caches, slots=slots, clock=self._clock, log=self._log
            )
            # The doors open first: an address that is taken ends the process before any handler has run.
            for front in self._fronts:
                await stack.enter_async_context(front(self))
            first = await reloader.start(checked)
            self._history.add(Outcome(Result.APPLIED, first.number, first.inputs.digest, reason="Started"))
            del first  # it is not to be kept alive by this frame
            probation = Probation(reloader, finished=self._attempted, clock=self._clock)
            background = [
                tasks.create_task(recorder.run(), name="events"),
                tasks.create_task(observer.run(), name="observer"),
                tasks.create_task(mutations.run(), name="mutation detector"),
                tasks.create_task(self._reload_on_change(files, attempts), name="files"),
                tasks.create_task(self._reload_on_hangup(), name="hangup"),
                tasks.create_task(probation.run(), name="probation"),
            ]
            failed = await self._until_stopped(observer)
            for task in background[1:]:
                task.cancel()
            await attempts.close()
            await self._shut_down(reloader, slots, lifecycle, around)
            await mutations.look()
            await recorder.flush(_FLUSH_SECONDS)
            background[0].cancel()
            await caches.close()
        return failed

    def _end_for_restart(self, outcome: Outcome) -> None:
        """End in order, if that is wanted, where an attempt has found what only a new process does."""
        steps = [str(step) for step in outcome.steps if step.kind is Kind.RESTART]
        if outcome.reason == "RestartRequired":
            steps.append(outcome.message)
        if steps and self.options.exec_on_restart and not self._stopping.is_set():
            self._log.warning(f"starting again, after running calls have finished: {'; '.join(steps)}")
            self.restarts = True
            self._stopping.set()

    async def _checked(self, files: InputFiles) -> Checked:
        checked = await self._children.import_aside(await asyncio.to_thread(read_files, files))
        if checked.errors:
            raise ManifestErrors(checked.diagnostics)
        for warning in checked.diagnostics:
            self._log.warning(str(warning))
        return checked

    def _introduce(self, client: Client, checked: Checked) -> None:
        assert checked.inputs is not None
        controller, who = checked.inputs.loaded.controller, client.identity
        spaces = sorted({n for resource in controller.resources for n in resource.namespaces or ("all",)})
        self._log.info(
            f"{controller.name}: context {who.context or '-'}, server {who.server}, user {who.user or '-'}, "
            f"namespaces {', '.join(spaces) or 'none'}"
        )

    async def _reload_on_change(self, files: InputFiles, attempts: Attempts) -> None:
        def active() -> Generation:  # asked each time: holding one would keep its code alive
            assert self._reloader is not None
            assert self._reloader.active is not None
            return self._reloader.active

        if self.options.once or self.options.watch is False:
            return
        changes = FileChanges(
            digest=files.digest,
            folders=lambda: active().inputs.folders,
            settle=lambda: active().plan.reload.settle,
            clock=self._clock,
            watch=lambda: self._watch(active().plan.reload),
            last=lambda: attempts.latest,
            seen=lambda change: self._expect(active().plan.reload, change=change),
        )
        # Files are looked at while an attempt is made, which is given up if they change again.
        async with asyncio.TaskGroup() as group:
            async for digest in changes:
                group.create_task(attempts.reload(asked=False, digest=digest))

    def _expect(self, policy: ReloadSpec, *, change: bool) -> None:
        """A child for the pre-flight loads what it needs while the files settle."""
        if not change:
            self._children.close()
        elif policy.preflight:
            self._children.warm()

    def _watch(self, policy: ReloadSpec) -> WatchFiles:
        """How files are watched; `--watch` does so even where the manifest says Off."""
        if self.options.watch and policy.watch is WatchFiles.OFF:
            return WatchFiles.AUTO
        return policy.watch

    async def _reload_on_hangup(self) -> None:
        while True:
            await self._hangup.wait()
            self._hangup.clear()
            await self.reload(asked=True)

    async def _tell_hooks(self, outcome: Outcome) -> None:
        assert self._reloader is not None
        generation = self._reloader.active
        told = (Result.APPLIED, Result.REFUSED, Result.ROLLED_BACK)
        if generation is not None and outcome.result in told:
            await self._reloader.tell(outcome, timeout=_HOOK_SECONDS)

    async def _until_stopped(self, observer: Observer) -> int:
        if not self.options.once:
            await self._stopping.wait()
            return 0
        try:
            async with asyncio.timeout(self.options.timeout):
                await _first(observer.at_rest(), self._stopping.wait())
        except TimeoutError:
            self._log.error(f"not done after {self.options.timeout:g} s: {observer.missing()}")
            return 1
        failed = observer.failed_handlers()
        if failed:
            self._log.error(f"changes were given up on: {failed}")
        return 1 if failed else 0

    async def _shut_down(
        self, reloader: Reloader, slots: Slots, lifecycle: Lifecycle, around: Surroundings
    ) -> None:
        generation = reloader.active
        left = await slots.stop(_DRAIN_SECONDS)
        if left:
            self._log.warning(f"not waited for any longer: {', '.join(left)}")
        if generation is None:
            return
        shutdown = generation.foreign.lifecycle("declctl_shutdown")
        await lifecycle.call_each(
            shutdown,
            lambda i: {"ctx": lifecycle_context(i.plugin, generation, reloader.memo(i.plugin), around)},
            timeout=_HOOK_SECONDS,
        )
        await reloader.close(timeout=_HOOK_SECONDS)
        self._log.info("stopped")

    def _signals(self) -> SignalHandlers:
        loop = self._machinery.loop

        def on_stop() -> None:
            self._log.info("stopping: running calls may finish; once more to end at once")
            self.restarts = False
            self.stop()

        return SignalHandlers(stop=on_stop, hangup=lambda: loop.call_soon_threadsafe(self._hangup.set))


def _first_of(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a task group wraps: the first fault that is not itself a group."""
    error: BaseException = several
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _first(*waits: Awaitable[Any]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
