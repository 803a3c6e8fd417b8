"""The parts of a process that outlive generations, made in order: each one knows those that it needs."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from declctl.runtime.caching.informer_pool import InformerPool, MutationChecks
from declctl.runtime.checking.config_secrets import ConfigSecrets
from declctl.runtime.handling.circuit_breaker import CircuitBreakers
from declctl.runtime.handling.context import ClusterAccess, Memo
from declctl.runtime.handling.plugin_metrics import PluginMetrics
from declctl.runtime.handling.slots import Slots
from declctl.runtime.process import Process
from declctl.runtime.reconciling.leftovers import Leftovers
from declctl.runtime.reconciling.stray_finalizers import StrayFinalizers
from declctl.runtime.reloading.attempts import Attempts, ReloadRetries
from declctl.runtime.reloading.files import FileWatchHealth
from declctl.runtime.reloading.generation import RuntimeServices
from declctl.runtime.reloading.reload import Reloader
from declctl.runtime.reporting.reporter import Announcer, ReloadHistory, StatusReporter
from declctl.runtime.scheduling.schedules import Schedules
from declctl.runtime.writing import WritingParts, make_held_shards, make_writing_parts

if TYPE_CHECKING:  # imported only for a manifest with a state
    from declctl.runtime.keeping.keeper import StateKeeper


class RuntimeParts(msgspec.Struct, frozen=True):
    """The parts of a process that outlive generations. Each part refers only to parts above it."""

    process: Process
    caches: InformerPool
    mutations: MutationChecks
    slots: Slots
    schedules: Schedules
    writing: WritingParts
    leftovers: Leftovers
    stray_finalizers: StrayFinalizers
    services: RuntimeServices
    reloader: Reloader
    retries: ReloadRetries
    file_watch: FileWatchHealth
    observer: StatusReporter
    announcer: Announcer
    attempts: Attempts


def make_services(process: Process, caches: InformerPool, writing: WritingParts) -> RuntimeServices:
    """Make what every generation uses. On the machinery loop."""
    client, clock, log, own = process.client, process.clock, process.log, process.namespace
    secrets_in = client.identity.namespace or "default" if own is None else own.name
    return RuntimeServices(
        discover=client.discover,
        known=client.known,
        caches=caches,
        cluster=ClusterAccess(client, writing.recorder, writing.writers, asyncio.get_running_loop()),
        secrets=ConfigSecrets(None if process.options.is_replay else client.request_json, secrets_in),
        loops=process.loops,
        log=log,
        user_log=process.user_log,
        breakers=CircuitBreakers(clock=clock, log=log),
        metrics=PluginMetrics(log=log),
        clock=clock,
        now=clock.now if process.recorder is None else partial(process.recorder.now, clock.now),
        dry_run=process.options.dry_run,
        is_sharded=process.plan.sharding is not None,
    )


def _keep_state(
    state: "StateKeeper", slots: Slots, schedules: Schedules, reloader: Reloader, history: ReloadHistory
) -> None:
    """Begin with the memos and the history of the process before, and keep those of this one."""
    earlier = state.earlier
    history.begin_with(earlier.history)
    schedules.begin_with(earlier.memos("schedule"))
    reloader.memos.update({name: Memo(memo) for name, memo in earlier.memos("plugin").items()})

    state.follow(
        slots.all,
        digest=lambda: reloader.running[1],
        history=history.document,
        memos=lambda: {"schedule": schedules.memos(), "plugin": reloader.memos},
    )


def make_parts(process: Process, *, history: ReloadHistory, restart: Callable[[str], None]) -> RuntimeParts:
    """Make the parts of a process. On the machinery loop.

    `history` receives the outcome of each reload. `restart` is called with the reasons when a reload needs a
    new process. Raises UsageError if an election has no namespace.
    """
    client, clock, log = process.client, process.clock, process.log
    shards = make_held_shards(process)
    caches = InformerPool(
        client,
        tasks=process.tasks,
        clock=clock,
        recorder=process.recorder,
        state=process.state,
        shards=shards,
        known=client.known,
    )
    mutations = MutationChecks(caches, clock=clock, thorough=process.options.mutation_detector)
    slots = Slots(loop=asyncio.get_running_loop(), clock=clock, log=log, shards=shards)
    slots.tap.recorder = process.recorder
    schedules = Schedules(clock=clock, log=log, recorder=process.recorder)
    writing = make_writing_parts(process, caches, slots, shards)
    leftovers = Leftovers(client, process.tasks, clock, log)
    stray = StrayFinalizers(client, process.name, caches, slots, clock, log)
    services = make_services(process, caches, writing)
    reloader = Reloader(
        process.files,
        services,
        slots=slots,
        schedules=schedules,
        writing=writing,
        leftovers=leftovers,
        children=process.children,
        allowed_digests=process.options.allowed_digests,
        recorder=process.recorder,
    )
    retries, file_watch = ReloadRetries(clock), FileWatchHealth(clock=clock, log=log)
    observer = StatusReporter(
        process,
        caches=caches,
        slots=slots,
        schedules=schedules,
        writing=writing,
        stray_finalizers=stray,
        reloader=reloader,
        retries=retries,
        file_watch=file_watch,
    )
    announcer = Announcer(
        process, observer, history=history, reloader=reloader, retries=retries, tap=slots.tap, restart=restart
    )
    if process.state is not None:
        _keep_state(process.state, slots, schedules, reloader, history)
    digest = process.files.digest
    attempts = Attempts(reloader, digest=digest, finished=announcer.attempted, health=file_watch, clock=clock)
    return RuntimeParts(
        process=process,
        caches=caches,
        mutations=mutations,
        slots=slots,
        schedules=schedules,
        writing=writing,
        leftovers=leftovers,
        stray_finalizers=stray,
        services=services,
        reloader=reloader,
        retries=retries,
        file_watch=file_watch,
        observer=observer,
        announcer=announcer,
        attempts=attempts,
    )
