"""The parts of a process that outlive its generations, made and connected; nothing is started here."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from declctl.kit import Clock
from declctl.kit.logs import structlog
from declctl.runtime.caching.informer_pool import InformerPool
from declctl.runtime.caching.mutations import MutationChecks
from declctl.runtime.checking.inputs import InputFiles
from declctl.runtime.checking.preflight_pool import PreflightPool
from declctl.runtime.handling.context import ClusterDoor, EventRecorder
from declctl.runtime.handling.handler_loops import HandlerLoops
from declctl.runtime.handling.slots import Slots
from declctl.runtime.log import Log
from declctl.runtime.options import RunOptions
from declctl.runtime.reloading.attempts import Attempts
from declctl.runtime.reloading.files import FileWatchHealth
from declctl.runtime.reloading.generation import RuntimeServices
from declctl.runtime.reloading.lifecycle import Lifecycle
from declctl.runtime.reloading.outcome import Outcome
from declctl.runtime.reloading.reload import Reloader
from declctl.runtime.reloading.retries import ReloadRetries
from declctl.runtime.reporting.announcing import Announcer
from declctl.runtime.reporting.history import History
from declctl.runtime.reporting.observer import Observer
from declctl.transport import Client


@dataclass(frozen=True, slots=True)
class Parts:
    """What a process consists of besides its generations: each knows those above it."""

    recorder: EventRecorder
    caches: InformerPool
    mutations: MutationChecks
    slots: Slots
    around: RuntimeServices
    lifecycle: Lifecycle
    reloader: Reloader
    observer: Observer
    announcer: Announcer
    attempts: Attempts
    retries: ReloadRetries
    file_watch: FileWatchHealth
    finished: Callable[[Outcome, bool], Awaitable[None]]  # hears each outcome, and whether somebody asked


def wire(  # noqa: PLR0913 - all that they are made of, keyword by keyword
    name: str,
    files: InputFiles,
    client: Client,
    *,
    options: RunOptions,
    tasks: asyncio.TaskGroup,
    loops: HandlerLoops,
    children: PreflightPool,
    history: History,
    restart: Callable[[str], None],
    clock: Clock,
    log: Log,
    user_log: Any = None,
) -> Parts:
    """The parts of the controller of that name. Called on the machinery loop.

    `user_log` is the structlog logger that `ctx.log` is bound from. Asynchronous hooks run on `loops`;
    `restart` is the announcer's. Informers run in `tasks`.
    """
    recorder = EventRecorder(client, component=name, clock=clock, log=log)
    caches = InformerPool(client, tasks=tasks, clock=clock, log=log)
    mutations = MutationChecks(caches, clock=clock, thorough=options.mutation_detector)
    slots = Slots(loop=asyncio.get_running_loop(), clock=clock, log=log)
    around = RuntimeServices(
        discovery=client,
        caches=caches,
        cluster=ClusterDoor(client, recorder),
        loops=loops,
        log=log,
        user_log=structlog.get_logger("declctl.handler") if user_log is None else user_log,
        dry_run=options.dry_run,
    )
    lifecycle = Lifecycle(log)
    reloader = Reloader(
        files, around=around, slots=slots, lifecycle=lifecycle, children=children, clock=clock, log=log
    )
    server = client.health.status
    retries = ReloadRetries(clock)
    file_watch = FileWatchHealth(clock=clock, log=log)
    observer = Observer(
        name,
        reloader,
        caches=caches,
        slots=slots,
        loops=loops,
        recorder=recorder,
        server=server,
        retries=retries,
        file_watch=file_watch.status,
        clock=clock,
        log=log,
    )
    announcer = Announcer(reloader, observer, history=history, log=log, restart=restart)

    async def finished(outcome: Outcome, asked: bool) -> None:
        if retries.heard(outcome) or asked:
            await announcer.attempted(outcome, asked)

    attempts = Attempts(reloader, digest=files.digest, finished=finished, health=file_watch, clock=clock)
    return Parts(
        recorder,
        caches,
        mutations,
        slots,
        around,
        lifecycle,
        reloader,
        observer,
        announcer,
        attempts,
        retries,
        file_watch,
        finished,
    )
