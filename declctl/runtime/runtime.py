"""The process of a controller: its start and its end.

The machinery runs on one loop in a thread of its own, asynchronous hooks on a second loop, synchronous hooks
in threads. The main thread waits for signals. The parts of the process outlive generations (`parts`):
`Runtime` starts them, and ends them in order (`ending`).
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from msgspec.structs import replace

from declctl.errors import ApiError, ManifestErrors, NotFound, UsageError
from declctl.informer.stores.lister import Lister
from declctl.kit import Clock, LoopThread, SystemClock
from declctl.kit.files import folder_of
from declctl.manifest import Plan, plan
from declctl.manifest.model import Followers, LifecycleSpec, ResourceSpec
from declctl.objects import GroupVersionKind, KubeObject
from declctl.objects.differences import Mutation
from declctl.runtime.caching.informer_pool import InformerPool
from declctl.runtime.checking.allowed_digests import require_reviewed, require_search_path
from declctl.runtime.checking.check import CheckResult, import_in_child, read_files
from declctl.runtime.checking.inputs import InputFiles
from declctl.runtime.checking.preflight_pool import PreflightPool
from declctl.runtime.ending import GracePeriod, SignalHandlers, call_last_hooks, end_calls
from declctl.runtime.handling.dead_letters import DeadLetter, RequeueResult
from declctl.runtime.handling.handler_loops import HandlerLoops
from declctl.runtime.handling.plugin_metrics import PluginMetrics
from declctl.runtime.handling.queue_listing import QueueListing
from declctl.runtime.handling.tap import HandlerTap
from declctl.runtime.log import Log, LogLevelControl
from declctl.runtime.own_namespace import namespace_of_lease
from declctl.runtime.parts import RuntimeParts, make_parts
from declctl.runtime.planning.running_plan import RunningSnapshot, running_snapshot
from declctl.runtime.process import Process, RunOptions
from declctl.runtime.recorder import MakeRecorder
from declctl.runtime.reloading.attempts import Triggers
from declctl.runtime.reloading.changes import NOT_KEPT, Outcome, Result
from declctl.runtime.reloading.generation import Generation
from declctl.runtime.reloading.reload import Reloader
from declctl.runtime.reporting.reporter import ReloadHistory, StatusReporter
from declctl.runtime.reporting.status import ControllerStatus
from declctl.runtime.reporting.why import WriteExplanation, explain_object
from declctl.runtime.scheduling.schedules import TriggerResult
from declctl.runtime.threads import in_thread
from declctl.runtime.watchdog import LOOK_SECONDS, Watchdog
from declctl.transport import Client
from declctl.writes import OnWritten, field_manager

if TYPE_CHECKING:  # imported only for a manifest that needs them
    from declctl.runtime.keeping.keeper import StateKeeper
    from declctl.runtime.leading import Candidate
    from declctl.runtime.sharding import Replica

__all__ = ["Front", "RunOptions", "Runtime"]
T = TypeVar("T")
BLOCKED_SECONDS = 25.0  # for which the machinery may be blocked at the end of the process
_RELEASE_SECONDS = 2.0  # for giving up the lease, at most
_FLUSH_SECONDS = 2.0  # for posting the recorded events that are left, at most
_LOOPS_SECONDS = 5.0  # for the end of the loops, at most
Front = Callable[["Runtime"], AbstractAsyncContextManager[None]]
"""A server that is entered and left with the runtime, such as the admin server."""
WhyNotStart = Callable[[Plan, Plan], Awaitable[str | None]]
"""Why a new process could not start with the second plan; None if not known. The first is this one's."""


async def unless_stopped(work: Awaitable[T], stopping: asyncio.Event) -> T | None:
    """Return the result of `work`, or None if `stopping` is set first. Raises the exception of `work`.

    When it is set, the work is cancelled, and this function returns after the work has ended.
    """
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait([task])
        # An error that the work raises now is an effect of its cancellation: it is not reported.
        is_done = not task.cancelled() and task.exception() is None
        return task.result() if is_done else None
    finally:
        task.cancel()
        stop.cancel()


async def until_done(observer: StatusReporter, stopping: asyncio.Event, *, timeout: float, log: Log) -> int:
    """Wait until every object has been handled, until `stopping` is set, or for `timeout` seconds at most.

    Returns the exit status: 1 if it was not done, or handlers have given up on changes.
    """
    try:
        async with asyncio.timeout(timeout):
            await _first(observer.at_rest(), stopping.wait())
    except TimeoutError:
        log.error(f"not done after {timeout:g} s: {observer.missing()}")
        return 1
    failed = observer.failed_handlers()
    if failed:
        log.error(f"changes were given up on: {failed}")
    return 1 if failed else 0


async def _first(*waits: Awaitable[Any]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # raises the exception of the wait
    finally:
        for task in tasks:
            task.cancel()


def _hold_back(parts: RuntimeParts) -> None:
    """Let what is one process's alone not begin before this process is elected."""
    candidate = parts.writing.candidate
    if candidate is not None:
        parts.slots.stand_by()
        if candidate.spec.followers is Followers.COLD:
            parts.caches.defer_starts()
    if candidate is not None or parts.writing.replica is not None:
        parts.schedules.pause()


def _begin_end(process: Process, candidate: "Candidate | None") -> None:
    """Let nothing new begin, and keep what waits, before the end drops it."""
    if candidate is not None:
        candidate.stop_taking()
    if process.state is not None:
        process.state.begin_end()


async def _discover(client: Client, plan: Plan) -> None:
    """Ask for the kinds of a manifest, of which the client keeps the answers."""
    for kind in dict.fromkeys(
        GroupVersionKind.of(watch.key.api_version, watch.key.kind) for watch in plan.watches
    ):
        with suppress(ApiError):
            await client.discover(kind)


class Runtime:
    """One controller from start to stop.

    `run` blocks the main thread and returns the exit status. `stop` and `status` may be called from any
    thread, all other methods on the machinery loop.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each thing that a caller may replace
        self,
        options: RunOptions,
        *,
        connect: Callable[[], Awaitable[Client]],
        fronts: Sequence[Front] = (),
        children: PreflightPool | None = None,
        clock: Clock | None = None,
        log: Log | None = None,
        user_log: Any = None,
        on_dry_run: OnWritten | None = None,
        why_not_start: WhyNotStart | None = None,
        recorder: MakeRecorder | None = None,
    ) -> None:
        self.options = options
        self._why_not_start = why_not_start
        self._starting_again: asyncio.Task[None] | None = None  # checks the next start
        self._on_dry_run = on_dry_run
        self._make_recorder = recorder
        self._connect = connect
        self._fronts = fronts
        self._clock: Clock = clock or SystemClock()
        self._log: Log = log or structlog.get_logger("declctl")
        self._user_log = user_log
        self.machinery = LoopThread("declctl-machinery")  # informers, reloads, status
        # Asynchronous hooks. A replay makes one call at a time: a thread of their own would only cost time.
        self.handler_loops = HandlerLoops(log=self._log, given=self.machinery if options.is_replay else None)
        self._watchdog = Watchdog(self.machinery, self._log)
        self._stop_asked = False  # set in any thread, as the machinery may be blocked
        self._grace: GracePeriod | None = None  # from the first request to stop on; set in any thread
        self._stop_logged = False
        self._stopping = asyncio.Event()  # the same, on the machinery loop
        self._hangup = asyncio.Event()  # set by SIGHUP
        self._children = children or PreflightPool()
        self._history = ReloadHistory(self._clock)
        self._first_plan: Plan | None = None  # the plan at the start of the process
        self._parts: RuntimeParts | None = None  # None until the client has connected
        self.restarts = False  # the process ended because a new one is needed
        self.client: Client | None = None

    def run(self) -> int:
        """Run until stopped, and return the exit status: 0 after a stop, or if `once` succeeded, else 1.

        Raises ManifestErrors or UsageError before any handler is called.
        """
        is_reviewed = self.options.allowed_digests is not None
        files = self.options.files or InputFiles(
            self.options.manifest, at=self.options.at, is_reviewed=is_reviewed
        )
        self._children.warm()  # the fork server loads its modules while this process does
        self.machinery.start()
        self.handler_loops.start()
        future = self.machinery.submit(self._serve(files))
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        with self._signals():
            # Python handles signals between two waits, so no wait is long.
            while not done.wait(LOOK_SECONDS):
                self._watchdog.look()
                if self._stop_asked and self._watchdog.seconds:
                    self._log_stop()  # the blocked loop can't
                # User code blocks the machinery, so only this thread can end the process in order.
                if self._stop_asked and self._watchdog.seconds >= BLOCKED_SECONDS:
                    return self._left_blocked()
                if self._grace is not None and self._grace.is_missed:
                    return self._left_late(self._grace)
        self._children.close()
        seconds = _LOOPS_SECONDS if self._grace is None else min(_LOOPS_SECONDS, self._grace.left())
        self.handler_loops.stop(seconds)
        self.machinery.stop(seconds)
        try:
            # Raises the fault that ended the machinery, after the parts around it were closed.
            status = future.result()
        except BaseExceptionGroup as several:
            raise _first_of(several) from several
        self._log.info("stopped")
        return status

    def stop(self) -> None:
        """Drain and end the process. From any thread; returns at once. No effect once it has ended."""
        self._stop_asked = True
        self._grace = self._grace or GracePeriod(self._grace_seconds, clock=self._clock)
        self.machinery.call_soon(self._stopping.set)

    @property
    def seconds_left(self) -> float:
        """What is left of the grace period, in seconds: all of it before the process is asked to stop."""
        return self._grace_seconds if self._grace is None else self._grace.left()

    async def reload(self, *, asked: bool = True, force: bool = False) -> Outcome:
        """Load the files as the next generation; the outcome says why if that is refused.

        An attempt on older files that is not committed yet is cancelled. With `force` all code is made
        anew, although the files that are read have not changed.
        """
        return await self.parts.attempts.reload(asked=asked, force=force)

    async def rollback(self, number: int | None = None) -> Outcome:
        """Commit the generation that was live before, or generation `number`, if it is kept."""
        if self._stopping.is_set():  # handlers drain, so nothing may be committed
            return self.parts.attempts.stopping().as_rollback()
        return (await self.parts.attempts.until_closed(self._roll_back(number))).as_rollback()

    async def _roll_back(self, number: int | None) -> Outcome:
        done = await self.parts.reloader.rollback(number, why="somebody asked for it")
        outcome = done.as_rollback()
        if outcome.reason == NOT_KEPT:
            self.parts.announcer.not_attempted(outcome)
        else:
            await self.parts.announcer.attempted(outcome, asked=True)
        return outcome

    def trigger(self, schedule: str) -> TriggerResult:
        """Call the function of a schedule now, apart from its times; returns at once."""
        return self.parts.schedules.trigger(schedule)

    def dead_letters(self) -> Sequence[DeadLetter]:
        """What handlers have given up with `onFailure: DeadLetter`."""
        return self.parts.slots.dead_letters()

    def requeue(
        self, handler: str | None = None, key: str | None = None
    ) -> Mapping[RequeueResult, int] | None:
        """Queue dead letters again: of all handlers, of one, or of one key.

        Returns the number of letters by result; None if the process ends. Raises KeyError for an unknown
        handler.
        """
        return None if self._stopping.is_set() else self.parts.slots.requeue(handler, key)

    @property
    def log_level(self) -> LogLevelControl | None:
        """The level of the process's log; None if the log is that of a caller."""
        return self.options.log_level

    async def queue(self, handler: str, most: int) -> QueueListing | None:
        """What waits for a handler: the next `most` items; None if there is no such handler."""
        slot = self.parts.slots.get(handler)
        # In a thread: the lock of a queue may be held, and items become texts.
        loops = self.parts.slots.write_loops()
        return None if slot is None else await asyncio.to_thread(slot.listing, most, loops)

    async def why(self, resource: str, key: str, field: str = "") -> WriteExplanation:
        """Who wrote the fields of an object, and why.

        `resource` is the name of a resource of the manifest, or one that kubectl takes. `field` limits the
        answer to a field. Raises ApiError, UsageError for a name that is none, and FieldPathError.
        """
        assert self.client is not None
        active = self._active().plan
        declared = next((each.watches[0] for each in active.resources if each.name == resource), None)
        if declared is None:
            found = await self.client.find_resource(resource)
        else:
            kind = GroupVersionKind.of(declared.api_version, declared.kind)
            found = await self.client.discover(kind)
        namespace, slash, name = key.rpartition("/")
        if "/" in namespace or name in ("", ".", "..") or bool(slash) != found.namespaced:
            form = "namespace/name" if found.namespaced else "name"
            raise UsageError(f"{key!r} is no key of {found}: it is {form}")
        obj: KubeObject | None
        try:
            obj = await self.client.request_json("GET", found.path(namespace or None, name))
        except NotFound:
            obj = None
        records = [
            record
            for record in self.parts.writing.ledger.of_object(key)
            # The kind of a write by an official client may be unknown.
            if record.resource == str(found)
        ]
        managers = {
            handler.field_manager or field_manager(active.name, handler.name): handler.name
            for handler in active.handlers
        }
        explained = explain_object(
            obj,
            records,
            kind=str(found.gvk),
            resource=str(found),
            key=key,
            managers=managers,
            field=field,
        )
        written = f"{found.gvk} {key}"
        loops = [str(each) for each in self.parts.slots.write_loops() if each.object == written]
        return replace(explained, write_loops=tuple(loops))

    @property
    def tap(self) -> HandlerTap:
        """The calls of all handlers, and the marks of reloads, for those who listen."""
        return self.parts.slots.tap

    def history(self) -> dict[str, Any]:
        """The outcomes of the newest attempts, the oldest first; what runs, and what can come back."""
        reloader = self._reloader
        number, kept = (0, ()) if reloader is None else (reloader.running[0], reloader.kept)
        return {"attempts": self._history.document(), "generation": number, "kept": list(kept)}

    def status(self) -> ControllerStatus:
        """The status of the whole controller at this moment. From any thread."""
        return replace(self.parts.observer.status(), machinery=self._watchdog.status)

    def unfinished(self) -> str:
        """What is unfinished, in words; empty if the controller is at rest."""
        return self.parts.observer.unfinished()

    @property
    def mutations(self) -> Sequence[Mutation]:
        """The newest changes that readers made to shared objects; they were undone."""
        return self._parts.mutations.found if self._parts is not None else ()

    @property
    def generation(self) -> int:
        """The number of the active generation; 0 before the first. From any thread."""
        generation = self._reloader.active if self._reloader is not None else None
        return 0 if generation is None else generation.number

    @property
    def plan(self) -> Plan:
        """The plan of the active generation; before the first one, the plan that was read."""
        generation = self._reloader.active if self._reloader is not None else None
        if generation is not None:
            return generation.plan
        assert self._first_plan is not None
        return self._first_plan

    def running(self) -> RunningSnapshot | None:
        """The active generation, for the comparison with another manifest; None before the first."""
        generation = self._reloader.active if self._reloader is not None else None
        if generation is None or self._caches is None:
            return None
        handlers = [slot.statistics() for slot in self.parts.slots.all()]
        waiting = {handler.name: handler.queued + handler.running for handler in handlers}
        assert self._first_plan is not None
        written = self.parts.writing.ledger.applied_by()
        return running_snapshot(
            generation, self._caches.all(), waiting, written=written, first=self._first_plan
        )

    def lister(self, resource: str) -> Lister | None:
        """A view of the live cache; None if the manifest names no such resource."""
        generation = self._reloader.active if self._reloader is not None else None
        return generation.listers.get(resource) if generation is not None else None

    @property
    def plugin_metrics(self) -> PluginMetrics:
        """The metrics that plugins and handler files add. On the machinery loop, once it has connected."""
        return self.parts.services.metrics

    @property
    def parts(self) -> RuntimeParts:
        """The parts, once the client has connected. On the machinery loop, and for tests."""
        assert self._parts is not None
        return self._parts

    @property
    def _reloader(self) -> Reloader | None:
        return self._parts.reloader if self._parts is not None else None

    @property
    def _caches(self) -> InformerPool | None:
        return self._parts.caches if self._parts is not None else None

    def _active(self) -> Generation:
        active = self.parts.reloader.active
        assert active is not None
        return active

    async def _serve(self, files: InputFiles) -> int:
        failed = 0
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            # Imports, logins and `declctl_prepare` may take a minute, for which SIGTERM does not wait.
            checked = await unless_stopped(self._checked(files), self._stopping)
            if checked is None:
                return 0
            self.client = client = await unless_stopped(self._connect(), self._stopping)
            if client is None:
                return 0
            stack.push_async_callback(client.close)
            self._introduce(client, checked)
            process = self._process_of(files, checked, client, tasks, stack)
            parts = self._parts = make_parts(process, history=self._history, restart=self._start_again)
            candidate, replica = parts.writing.candidate, parts.writing.replica
            # The servers first: an address that is in use ends the process before any handler is called.
            # Their code is loaded while the API server answers the first requests.
            discovering = asyncio.create_task(_discover(client, self.plan), name="first discovery")
            try:
                for front in self._fronts:
                    await stack.enter_async_context(front(self))
            finally:
                discovering.cancel()  # what is not known by now, each informer asks for itself
            _hold_back(parts)
            first = await unless_stopped(parts.reloader.start(checked), self._stopping)
            recording = tasks.create_task(parts.writing.recorder.run(), name="events")
            watched = self.handler_loops.watch(parts.slots.time_out_blocked)
            watching = tasks.create_task(watched, name="handler loops")
            if first is not None:
                self._history.add(first)
                background = self._background(files, parts, tasks)
                if candidate is not None:
                    tasks.create_task(self._stand_for_election(parts, candidate), name="election")
                failed = await self._until_stopped(parts.observer)
                for task in background:
                    task.cancel()
            _begin_end(process, candidate)
            grace = self._grace = self._grace or GracePeriod(self._grace_seconds, clock=self._clock)
            # No new generation, then no new call, then the hooks, which may read caches.
            await parts.attempts.close()
            if replica is not None:
                await replica.end(grace.left_for_calls())
            await end_calls(
                parts.slots, parts.schedules, grace, has_election=bool(candidate or replica), log=self._log
            )
            if candidate is not None:
                await parts.writing.recorder.flush(min(_FLUSH_SECONDS, grace.left() / 3))
                await candidate.release(min(_RELEASE_SECONDS, grace.left() / 2))
                failed = failed or int(candidate.is_lost)
            await call_last_hooks(parts.reloader, parts.services, grace)
            await parts.mutations.look()
            await parts.writing.recorder.flush(min(_FLUSH_SECONDS, grace.left()))
            recording.cancel()
            parts.leftovers.close()
            await parts.caches.close()
            watching.cancel()
        return failed

    def _process_of(
        self,
        files: InputFiles,
        checked: CheckResult,
        client: Client,
        tasks: asyncio.TaskGroup,
        stack: AsyncExitStack,
    ) -> Process:
        assert checked.inputs is not None
        self._first_plan = plan(checked.inputs.loaded.controller)
        recorder = None
        if self._make_recorder is not None:
            recorder = self._make_recorder(client, self._first_plan)
            stack.callback(recorder.close)
        state = self._state_keeper(client, checked.inputs.digest)
        if state is not None:
            stack.callback(state.close)
        return Process(
            options=self.options,
            files=files,
            plan=self._first_plan,
            client=client,
            tasks=tasks,
            loops=self.handler_loops,
            children=self._children,
            clock=self._clock,
            log=self._log,
            user_log=structlog.get_logger("declctl.handler") if self._user_log is None else self._user_log,
            recorder=recorder,
            state=state,
            on_dry_run=self._on_dry_run,
        )

    def _state_keeper(self, client: Client, digest: str) -> "StateKeeper | None":
        """What keeps the caches of this process, if the manifest asks for it."""
        name, path = self.plan.name, self.plan.state.folder
        if path is None or not self.options.keeps_state:
            return None
        from declctl import __version__
        from declctl.recording.state_entries import StateHeader
        from declctl.runtime.keeping.keeper import StateKeeper

        began = self._clock.now().isoformat()
        folder = folder_of(self.options.at or Path(self.options.manifest))
        return StateKeeper(
            folder / path,
            StateHeader(name, __version__, began, client.identity.server, client.authority()),
            digest=digest,
            clock=self._clock,
            log=self._log,
        )

    def _background(
        self, files: InputFiles, parts: RuntimeParts, tasks: asyncio.TaskGroup
    ) -> list[asyncio.Task[None]]:
        # `--once` ends when the controller is at rest. Reloads could keep it from that.
        watch = False if self.options.once else self.options.watch
        triggers = Triggers(
            files,
            parts.attempts,
            policy=lambda: self._active().plan.reload,
            children=self._children,
            health=parts.file_watch,
            clock=self._clock,
            log=self._log,
            watch=watch,
        )

        async def roll_back(why: str) -> None:
            outcome = (await parts.reloader.rollback(why=why, asked=False)).as_rollback()
            if outcome.result is not Result.UNCHANGED:
                await parts.announcer.attempted(outcome, asked=False)

        observing = tasks.create_task(parts.observer.run(), name="observer")
        if self.options.is_replay:
            return [observing]  # the player calls handlers, and reloads
        # With `--once`, handlers handle what is there: no schedule is called.
        scheduled = [] if self.options.once else [tasks.create_task(parts.schedules.run(), name="schedules")]
        if parts.writing.replica is not None:
            tasks.create_task(self._share(parts, parts.writing.replica), name="sharding")
        elif parts.writing.candidate is None:
            begun = tasks.create_task(parts.reloader.start_handlers(), name="start of the handlers")
            scheduled.append(begun)
        return [
            *scheduled,
            observing,
            tasks.create_task(parts.mutations.run(), name="mutation detector"),
            tasks.create_task(parts.stray_finalizers.run(lambda: self.plan), name="stray finalizers"),
            tasks.create_task(triggers.files(), name="files"),
            tasks.create_task(triggers.hangups(self._hangup), name="hangup"),
            tasks.create_task(parts.reloader.probation.run(self._active, roll_back), name="probation"),
            tasks.create_task(parts.retries.run(parts.attempts), name="reload retries"),
            tasks.create_task(self._children.linger(self._clock), name="children"),
        ]

    async def _share(self, parts: RuntimeParts, replica: "Replica") -> None:
        from declctl.runtime.sharding import ReplicaParts

        # A process that can't fill its caches must not keep others from handling what it would hold.
        await unless_stopped(parts.reloader.start_handlers(), self._stopping)
        if self._stopping.is_set():
            return
        await replica.run(
            ReplicaParts(
                caches=parts.caches,
                slots=parts.slots,
                schedules=parts.schedules,
                look_for_leftovers=parts.leftovers.shards_opened,
                forget_sets=parts.writing.writers.forget_sets,
                until_posted=parts.writing.recorder.until_posted,
                drain_timeout=lambda: self._active().plan.reload.drain_timeout,
            )
        )

    async def _stand_for_election(self, parts: RuntimeParts, candidate: "Candidate") -> None:
        from declctl.runtime.leading import TakeoverSteps

        def begin() -> None:
            # The leader before has written members that are not known here.
            parts.writing.writers.forget_sets()
            parts.reloader.begin()
            parts.schedules.resume()
            parts.leftovers.commit(parts.slots.all())

        def end() -> int:
            return parts.slots.cancel() + parts.schedules.cancel()

        def lost(_: str) -> None:
            # Also of a process that ends already: its calls must not go on beside those of a new leader.
            seconds = min(self.seconds_left, candidate.seconds_to_end)
            self._grace = GracePeriod(seconds, clock=self._clock)
            self._stopping.set()

        await candidate.run(
            TakeoverSteps(
                fill_caches=parts.caches.start_deferred,
                wait_for_caches=parts.reloader.wait_for_caches,
                make_room=parts.reloader.make_room,
                namespace_sets=parts.caches.namespace_sets,
                synced_caches=parts.reloader.synced_caches,
                begin=begin,
                end=end,
                lost=lost,
            )
        )

    @property
    def _grace_seconds(self) -> float:
        active = self._parts.reloader.active if self._parts is not None else None
        found = active.plan if active is not None else self._first_plan
        return found.lifecycle.grace_period if found is not None else LifecycleSpec().grace_period

    async def _until_stopped(self, observer: StatusReporter) -> int:
        if self.options.once:
            return await until_done(observer, self._stopping, timeout=self.options.timeout, log=self._log)
        await self._stopping.wait()
        return 0

    def _left_blocked(self) -> int:
        """End the process without the machinery, whose daemon thread ends with the process."""
        return self._left(f"the machinery is still blocked at {self._watchdog.status.last_place}")

    def _left_late(self, grace: GracePeriod) -> int:
        """End the process although its end has not come to its end."""
        if self._watchdog.seconds:
            return self._left_blocked()
        time = f"{grace.seconds:g} s (lifecycle.gracePeriod, or what a lost lease leaves)"
        return self._left(f"what runs has not ended within {time}")

    def _left(self, why: str) -> int:
        self._log.error(f"{why}: ending without it")
        self._children.close()
        self.handler_loops.stop(0.0)
        return 1

    def _start_again(self, why: str) -> None:
        """End in order, if `exec_on_restart` is set, as a new process is needed."""
        if self.options.exec_on_restart and not self._stopping.is_set():
            self._starting_again = asyncio.create_task(self._end_for_a_start(why), name="start again")

    async def _end_for_a_start(self, why: str) -> None:
        """End in order, unless it is known that the next start would fail: this process works."""
        assert self._first_plan is not None
        plan = self._active().plan
        by_leases = plan.leader_election if plan.leader_election.enabled else plan.sharding
        if by_leases is not None and not self.options.dry_run:
            try:
                namespace_of_lease(by_leases, self.parts.process.namespace)
            except UsageError as fault:
                self._log.error(f"not starting again, as the next start would fail: {fault}; it is for {why}")
                return
        if self._why_not_start is not None:
            fault = await self._why_not_start(self._first_plan, self._active().plan)
            if fault is not None:
                self._log.error(f"not starting again, as the next start would fail: {fault}; it is for {why}")
                return
        self._log.warning(f"starting again, after running calls have finished: {why}")
        self.restarts = True
        self._stopping.set()

    async def _checked(self, files: InputFiles) -> CheckResult:
        def read() -> CheckResult:
            checked = read_files(files)
            if checked.inputs is not None:
                named = checked.inputs.loaded.controller.reload.allowed_digests
                require_reviewed(checked.inputs, [self.options.allowed_digests, named])
                if checked.inputs.bundle.is_reviewed:
                    require_search_path(checked.inputs.bundle.place)
            return checked

        checked = await import_in_child(await in_thread(read, name="declctl-read"), self._children)
        if checked.errors:
            raise ManifestErrors(checked.diagnostics)
        for warning in checked.diagnostics:
            self._log.warning(warning.log_line, suggestion=warning.suggestion)
        return checked

    def _introduce(self, client: Client, checked: CheckResult) -> None:
        """Log the first line: the controller, its cluster and its namespaces."""
        assert checked.inputs is not None
        controller, who = checked.inputs.loaded.controller, client.identity
        spaces = sorted({n for resource in controller.resources for n in _namespaces_of(resource)})
        self._log.info(
            f"{controller.name}: context {who.context or '-'}, server {who.server}, user {who.user or '-'}, "
            f"namespaces {', '.join(spaces) or 'none'}"
        )

    def _log_stop(self) -> None:
        """Log once that the process stops. A second signal ends it at once (`SignalHandlers`)."""
        if not self._stop_logged:
            self._stop_logged = True
            self._log.info("stopping: running calls may finish; once more to end at once")

    def _signals(self) -> SignalHandlers:
        loop = self.machinery.loop

        def on_stop() -> None:
            # Python calls this in the main thread, maybe in the middle of a log line, whose lock it holds.
            # So the line about the stop is written elsewhere.
            self.restarts = False
            self.stop()
            loop.call_soon_threadsafe(self._log_stop)

        return SignalHandlers(stop=on_stop, hangup=lambda: loop.call_soon_threadsafe(self._hangup.set))


def _namespaces_of(resource: ResourceSpec) -> Sequence[str]:
    """The namespaces of a resource, in words."""
    if resource.namespace_selector:
        return (f"with {resource.namespace_selector}",)
    return resource.namespaces or ("all",)


def _first_of(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception in nested groups."""
    error: BaseException = several
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
