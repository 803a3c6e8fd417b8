"""The reporter reads the figures of all parts, keeps the outcome of each reload, and reports both.

`ReloadHistory` keeps the newest outcomes for `declctl history`. `StatusReporter` writes one line when a
resource syncs, derives conditions, and makes the status document. `Announcer` hands each outcome to status,
log and hooks.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from declctl.informer.applier import RelistDifferences
from declctl.informer.informer import InformerStatistics
from declctl.kit import Clock, set_within
from declctl.kit.text import excerpt
from declctl.manifest import Plan
from declctl.runtime.caching.informer_pool import InformerPool
from declctl.runtime.caching.managed_informer import ResourceRequirement
from declctl.runtime.handling.handler_counts import HandlerProblem
from declctl.runtime.handling.slots import Slots
from declctl.runtime.handling.tap import HandlerTap, TapMark
from declctl.runtime.process import Process
from declctl.runtime.reasons import (
    DEGRADED,
    FILES_FOLLOWED,
    HANDLERS_HEALTHY,
    READY,
    RELOADED,
    fault_reasons,
    reason_of,
)
from declctl.runtime.reconciling.stray_finalizers import StrayFinalizers
from declctl.runtime.reloading.attempts import ReloadRetries
from declctl.runtime.reloading.changes import (
    STOPPING,
    Outcome,
    Result,
    StepKind,
    needing_restart,
    takes_effect,
)
from declctl.runtime.reloading.files import FileWatchHealth
from declctl.runtime.reporting.status import (
    SUSPENDED,
    Conditions,
    ControllerStatus,
    LastReload,
    PluginStatus,
    ResourceStatus,
    decoding_status,
)
from declctl.runtime.scheduling.schedules import Schedules
from declctl.runtime.threads import abandoned_calls
from declctl.runtime.writing import WritingParts

if TYPE_CHECKING:  # for annotations alone
    from declctl.runtime.reloading.reload import Reloader

_KEPT = 100  # outcomes in the history
_LOOK_SECONDS = 0.05  # between two looks while a resource has not synced
_LONGEST_LOOK_SECONDS = 1.0  # between two looks when all have synced
_SILENCE = 60.0  # seconds between two log lines about one resource that has not synced
_HOOK_SECONDS = 60.0  # time limit of a `declctl_reload` hook
_LONGEST_ERROR = 400  # characters about one handler in a condition: an error may contain a whole object
_NAMED = 5  # namespaces, or handlers, that a log line or a condition names


class ReloadHistory:
    """The newest 100 attempts, without those that found nothing changed, as JSON has them.

    Those of an earlier process come first, if there is a state.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: deque[dict[str, Any]] = deque(maxlen=_KEPT)

    def begin_with(self, entries: Iterable[dict[str, Any]]) -> None:
        """Begin with the attempts of an earlier process."""
        self._entries.extendleft(reversed(list(entries)))

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of an attempt."""
        if outcome.result is not Result.UNCHANGED:
            self._entries.append(_history_document(self._clock.now(), outcome))

    def document(self) -> list[dict[str, Any]]:
        """The attempts, the oldest first."""
        return list(self._entries)


def _history_document(at: datetime, outcome: Outcome) -> dict[str, Any]:
    """The outcome of one attempt, and the time of its end."""
    document = outcome.document()
    del document["diagnostics"]  # there may be many; the condition has the newest
    errors = (each for each in outcome.diagnostics if each.severity == "error")
    suggestion = outcome.advice or next((each.suggestion for each in errors if each.suggestion), None)
    return {"time": at.strftime("%Y-%m-%dT%H:%M:%SZ"), **document, "suggestion": suggestion}


class ResourceWarnings:
    """Decides which faults of resources are logged: the first, and each doubling of their count."""

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str, str], int] = {}  # resource, informer, subject → count at that time

    def of(self, resource: ResourceStatus) -> Iterator[str]:
        """A line for each kind of fault that is to be logged: resource, fault, count and the last reason."""
        if self._is_due((resource.name, "", "mutations"), resource.mutations):
            yield f"{resource.name}: {_mutated(resource)}"
        decoding = resource.decoding
        if self._is_due((resource.name, "", "transform"), decoding.failed):
            left_out = f"{_objects(decoding.failed)} left out of the cache"
            yield f"{resource.name}: {left_out}; the last: {decoding.last_fault}"
        for part in resource.informers:
            for subject, times, text in _notable(part):
                if self._is_due((resource.name, part.name, subject), times):
                    yield f"{resource.name}: {text}"

    def _is_due(self, key: tuple[str, str, str], times: int) -> bool:
        if not times or times < 2 * self._logged.get(key, 0):
            return False
        self._logged[key] = times
        return True


_MISSING, _UNAVAILABLE, _REFUSED = "Missing", "Unavailable", "Refused"
_NOT_SERVED = (_MISSING, _UNAVAILABLE)  # states of resources that are not waited for


def _state_of(parts: Sequence[InformerStatistics]) -> str:
    """The state of a resource: that of its first watch, unless requests can't succeed as things are."""
    if all(part.missing for part in parts):
        return _MISSING
    if any(part.reflector.unavailable for part in parts):
        return _UNAVAILABLE
    if any(part.reflector.refused for part in parts):
        return _REFUSED
    return str(parts[0].state)


def not_synced(resource: ResourceStatus) -> str:
    """The sentence about a resource that has not synced: the reason, and what to do."""
    why = resource.error or f"{resource.items_listed:,} objects so far"
    return f"has not synced, and reads of it raise NotSynced: {why}; {resource.advice}"


def _mutated(resource: ResourceStatus) -> str:
    return (
        f"{_objects(resource.mutations)} changed in the cache by a reader, and put right; the last: "
        f"{resource.last_mutation}. With cache.mode Objects all readers share an object: change what "
        "obj.to_dict() gives"
    )


def _notable(part: InformerStatistics) -> Iterator[tuple[str, int, str]]:
    """For each kind of fault of one informer: its name, its count, and its sentence."""
    reflector, slow = part.reflector, part.controller.slow
    last = f"the last: {reflector.last_decode_warning}"
    yield "skipped", reflector.skipped, f"{_objects(reflector.skipped)} skipped; {last}"
    yield "raw", reflector.kept_raw, f"{_objects(reflector.kept_raw)} kept unread; {last}"
    longest = f"for {part.controller.longest:.2f} s at most"
    why = "an index function or a transform is slow"
    yield "slow", slow, f"processing held up other changes {_times(slow)}, {longest}: {why}"
    for index, (times, fault) in part.index_faults.items():
        name = index.partition("@")[0]
        yield f"index {index}", times, f"index {name} failed {_times(times)}; the last: {fault}"


def _listed(names: Collection[str]) -> str:
    """Names in order, of which only some are given: `a, b and 7 more`."""
    found = sorted(names)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"{', '.join(found[:_NAMED])}{more}"


def _objects(number: int) -> str:
    return "1 object was" if number == 1 else f"{number:,} objects were"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


class StatusReporter:
    """Reads the figures of all parts, states the conditions, and logs changes. Changes no other part.

    Used on the machinery loop.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part that it reads
        self,
        process: Process,
        *,
        caches: InformerPool,
        slots: Slots,
        schedules: Schedules,
        writing: WritingParts,
        stray_finalizers: StrayFinalizers,
        reloader: "Reloader",
        retries: ReloadRetries,
        file_watch: FileWatchHealth,
    ) -> None:
        self._name = process.name
        self._instance = process.instance
        self._options = process.options
        self._client = process.client
        self._loops = process.loops
        self._clock = process.clock
        self._log = process.log
        self._state = process.state
        self._caches = caches
        self._slots = slots
        self._schedules = schedules
        self._writing = writing
        self._candidate, self._replica = writing.candidate, writing.replica
        self._stray_finalizers = stray_finalizers
        self._reloader = reloader
        self._retries = retries
        self._file_watch = file_watch
        self._conditions = Conditions(self._clock)
        self._conditions.set(READY, holds=False, reason="Starting", message="caches are being filled")
        self._conditions.set(RELOADED, holds=True, reason="Started")
        self._conditions.set(DEGRADED, holds=False, reason="AsExpected")
        self._conditions.set(HANDLERS_HEALTHY, holds=True, reason="AsExpected")
        self._logged: dict[str, tuple[object, str | None]] = {}  # resource → synced, error at the last look
        # Resource → the selector of its namespaces, and those that matched at the last look.
        self._logged_namespaces: dict[str, tuple[str, frozenset[str]]] = {}
        self._logged_disabled: dict[str, str | None] = {}  # disabled plugin → reason at the last look
        self._logged_hanging: frozenset[str] = frozenset()  # handlers with calls that hung at the last look
        self._silent_until: dict[str, float] = {}  # unsynced resource → monotonic time of its next log line
        self._notes = ResourceWarnings()
        self._reloads: dict[str, int] = {}  # result → attempts since the start
        self._last_reload_seconds = 0.0  # of the last attempt that was applied
        self._last_reload: LastReload | None = None  # no refused rollback; None before the first
        self._plan_mismatches = 0  # LISTs and WATCHes that reloads had not planned, since the start
        self._started_with: Plan | None = None  # the first plan; restarts are due for differences from it

    async def run(self) -> None:
        """Look at intervals until cancelled; the intervals are short while a resource has not synced."""
        pause = _LOOK_SECONDS
        while True:
            self.look()
            ready = self._conditions.get(READY)
            settled = ready is not None and ready.status == "True"
            pause = min(pause * 1.5, _LONGEST_LOOK_SECONDS) if settled else _LOOK_SECONDS
            # A cache that syncs wakes this task. Figures and faults of the parts change without an event.
            await set_within(self._reloader.synced, pause, clock=self._clock, looks=True)
            self._reloader.synced.clear()

    def look(self) -> None:
        """Log the resources that have synced or stopped working, and set the conditions."""
        active = self._reloader.active
        if self._started_with is None and active is not None:
            self._started_with = active.plan
        self._look_at_handlers()
        resources = self.resources()
        if not self._caches.defers_starts:
            for resource in resources:
                self._log_changes(resource)
        # A kind that the server does not serve is not waited for: it may come years later. Nor is a group
        # whose API service is away: it holds up no rolling update.
        # A cold follower fills no cache. It is ready: a rolling update waits for that.
        is_cold = self._candidate is not None and self._candidate.is_cold
        waiting = [r.name for r in resources if not r.synced and r.state not in _NOT_SERVED and not is_cold]
        broken = [f"{r.name}: {r.error}" for r in resources if r.error]
        if waiting:
            self._conditions.set(
                READY, holds=False, reason="NotSynced", message=f"not synced: {', '.join(waiting)}"
            )
        elif is_cold:
            self._conditions.set(READY, holds=True, reason="Following", message="no cache is filled")
        else:
            self._conditions.set(READY, holds=True, reason="Synced")
        if self._options.followed is not None:
            followed = self._options.followed()
            self._conditions.set(
                FILES_FOLLOWED, holds=followed.is_followed, reason=followed.reason, message=followed.message
            )
        # All three are read even if only one of them is shown: plugins are logged in any case.
        disabled, server, blocked = self._log_disabled(), self._client.health.status(), self._loops.blocked()
        # While the server is away, every watch fails. The condition has this one fault instead.
        if server.unreachable_since is not None:
            message = f"{server.url} is away: {server.error}"
            self._conditions.set(DEGRADED, holds=True, reason="ServerUnreachable", message=message)
            return
        unwatched = self._file_watch.status().error
        faults: dict[str, list[str]] = {  # by reason; the first reason with a fault is the condition's
            "LoopBlocked": [*map(str, blocked)],
            "ResourceError": broken,
            "PluginDisabled": disabled,
            "PluginSuspended": [
                f"plugin {plugin.name} is suspended: {plugin.reason}"
                for plugin in self._plugins()
                if plugin.state == SUSPENDED
            ],
            "KeysUnknown": [*self._slots.unmapped()],
            "FinalizersLeft": [*map(str, self._stray_finalizers.found)],
            "WriteLoop": [*map(str, self._slots.write_loops())],
            "SlotsNotShared": [] if self._replica is None else self._replica.faults(),
            "StateNotKept": [] if self._state is None or not self._state.fault else [self._state.fault],
            "FileWatchFailed": [f"files can't be looked at: {unwatched}"] if unwatched is not None else [],
        }
        self._conditions.set_faults(DEGRADED, faults, holds=False)

    def _look_at_handlers(self) -> None:
        """State whether handlers are called, and their calls return and succeed: `HandlersHealthy`."""
        problems = self._slots.problems()
        faults = {
            reason: [*named_handlers(found), reason_of(HANDLERS_HEALTHY, reason).advice]
            for reason in fault_reasons(HANDLERS_HEALTHY)
            if (found := [each for each in problems if each[1].reason == reason])
        }
        self._conditions.set_faults(HANDLERS_HEALTHY, faults, holds=True)
        # Failures have lines of their own; a call that hangs says nothing.
        hanging = {name: str(each) for name, each in problems if each.reason == "CallHangs"}
        for name in hanging.keys() - self._logged_hanging:
            self._log.warning(f"{name}: {hanging[name]}", handler=name)
        self._logged_hanging = frozenset(hanging)

    def reloaded(self, outcome: Outcome) -> None:
        """Count the outcome of a reload, and state it as the condition `Reloaded`."""
        self._reloads[str(outcome.result)] = self._reloads.get(str(outcome.result), 0) + 1
        if outcome.reason in ("AttemptedBefore", STOPPING) or outcome.result is Result.SUPERSEDED:
            return  # the attempt has found out nothing about the files
        self._plan_mismatches += len(outcome.unplanned)
        # The condition is about the files, of which a refused rollback says nothing.
        if outcome.back and outcome.result is Result.REFUSED:
            self._not_rolled_back(outcome)
            return
        # The condition is True if the active generation was made of the present files.
        holds = outcome.result in (Result.APPLIED, Result.UNCHANGED)
        subjects = self._restarts(outcome) if holds else []
        # A needed restart comes first: the user has to act.
        restarts = [takes_effect(subjects)] if subjects else []
        reason = "RestartRequired" if restarts else outcome.reason or str(outcome.result)
        message = "; ".join([*restarts, *_message_parts(outcome)])
        self._conditions.set(RELOADED, holds=holds, reason=reason, message=message)
        if outcome.result is not Result.UNCHANGED:
            result = str(outcome.result)
            self._last_reload = LastReload(self._clock.now(), result, outcome.reason or result)
        if outcome.result is Result.APPLIED:
            self._last_reload_seconds = outcome.seconds

    @property
    def is_stale(self) -> bool:
        """Whether the active generation differs from the files as they were read last."""
        reloaded = self._conditions.get(RELOADED)
        return reloaded is not None and reloaded.status == "False"

    def _restarts(self, outcome: Outcome) -> list[str]:
        """The changes since the start of this process that only a new process takes up."""
        first, active = self._started_with, self._reloader.active
        assert first is not None
        assert active is not None
        plugins = [s for s in outcome.steps if s.kind is StepKind.RESTART and s.subject.startswith("plugin ")]
        return [
            f"{step.subject} ({step.detail})" if step.detail else step.subject
            for step in (*needing_restart(first, active.plan), *plugins)
        ]

    def _not_rolled_back(self, outcome: Outcome) -> None:
        """Report a refused rollback in `Reloaded`, unless that already says that the code is stale."""
        before = self._conditions.get(RELOADED)
        if before is not None and before.status == "True":
            message = f"{outcome.reason}: {outcome.message}"
            self._conditions.set(RELOADED, holds=True, reason="RollbackRefused", message=message)

    def status(self) -> ControllerStatus:
        """The status of the whole controller at this moment."""
        generation, old = self._reloader.active, self._reloader.old
        writing, log_level = self._writing, self._options.log_level
        ready = self._conditions.get(READY)
        return ControllerStatus(
            name=generation.plan.name if generation is not None else self._name,
            generation=generation.number if generation is not None else 0,
            bundle_hash=generation.inputs.digest if generation is not None else "",
            ready=ready is not None and ready.status == "True",
            leader=self._candidate is None or self._candidate.may_write(),
            leader_election=None if self._candidate is None else self._candidate.status(),
            sharding=None if self._replica is None else self._replica.status(),
            generations_alive=sum(not each.refused for each in old) + (generation is not None),
            old_generations=old,
            conditions=self._conditions.all(),
            condition_changes=self._conditions.changes(),
            resources=self.resources(),
            handlers=[handler.statistics() for handler in self._slots.all()],
            schedules=self._schedules.statistics(),
            plugins=self._plugins(),
            reloads=dict(self._reloads),
            last_reload_seconds=self._last_reload_seconds,
            last_reload=self._last_reload,
            reload_plan_mismatches=self._plan_mismatches,
            removed=dict(self._slots.dropped),
            server=self._client.health.status(),
            client_requests=self._client.statistics().totals,
            file_watch=self._file_watch.status(),
            log_level=None if log_level is None else log_level.changed,
            recorded_events=writing.recorder.statistics(),
            writes=writing.ledger.totals(),
            kind_writes=[*writing.ledger.kinds(), *writing.events.kinds()],
            write_retries=writing.ledger.retries(),
            waiting_writes=writing.writers.budget.waiting(),
            warnings=writing.warnings.newest(),
            warning_totals=writing.warnings.totals(),
            reload_retries=self._retries.made,
            reload_retry=self._retries.status(),
            abandoned_calls=abandoned_calls(),
            process=self._instance,
        )

    def _plugins(self) -> list[PluginStatus]:
        generation = self._reloader.active
        if generation is None:
            return []
        breakers = {b.breaker.plugin: b.breaker for b in generation.bindings.values() if b.breaker}
        return [
            PluginStatus.of(plugin, breakers[plugin.name].status() if plugin.name in breakers else None)
            for plugin in generation.loaded_code.plugins
        ]

    def resources(self) -> list[ResourceStatus]:
        """The figures of each resource of the active generation."""
        generation = self._reloader.active
        return [] if generation is None else [self._resource(each) for each in generation.requirements]

    def seen_versions(self) -> Mapping[str, str]:
        """The newest version that each resource of the active generation has seen, in its oldest cache."""
        generation = self._reloader.active
        if generation is None:
            return {}
        return {
            each.plan.name: min(
                (one.informer.seen_version for one in self._caches.of(each)),
                key=lambda version: (len(version), version),
                default="",
            )
            for each in generation.requirements
        }

    async def at_rest(self) -> None:
        """Return when every resource has synced, and every handler has handled all its changes."""
        while self.missing():
            await self._clock.sleep(_LOOK_SECONDS)

    def missing(self) -> str:
        """Look, and return what is unfinished, in words; empty if the controller is at rest."""
        self.look()
        return self.unfinished()

    def unfinished(self) -> str:
        """The same, without a look: nothing is logged, and no condition is set."""
        election = "" if self._candidate is None else self._candidate.unfinished()
        sharing = "" if self._replica is None else self._replica.unfinished()
        reasons = [each for each in (election, sharing) if each]
        reasons += [
            f"{r.name} has not synced ({r.error or f'{r.items_listed} objects so far'})"
            for r in self.resources()
            if not r.synced
        ]
        reasons += [f"{name} has not received all objects yet" for name in self._slots.incomplete()]
        for handler in self._slots.all():
            if not handler.is_idle:
                figures = handler.statistics()
                left = figures.queued + figures.running
                changes = "1 change" if left == 1 else f"{left:,} changes"
                reasons.append(f"{handler.name} has {changes} left ({figures.last_error or 'no failure'})")
        return "; ".join(reasons)

    def failed_handlers(self) -> str:
        """The handlers that have given up on changes, with their counts; empty if there are none."""
        figures = [handler.statistics() for handler in self._slots.all()]
        return ", ".join(f"{f.name} {f.failed} times (last: {f.last_error})" for f in figures if f.failed)

    def _resource(self, requirement: ResourceRequirement) -> ResourceStatus:
        cached = self._caches.of(requirement)
        parts = [one.informer.statistics() for one in cached]
        found = resource_status(requirement.plan.name, parts)
        if found.namespaces is not None and found.namespaces.error is not None:
            found = replace(found, error=f"{self._place_of_selector(requirement)}: {found.error}")
        detectors = [one.mutations for one in cached if one.mutations is not None]
        return replace(
            found,
            mutations=sum(detector.count for detector in detectors),
            last_mutation=next((d.last for d in detectors if d.last is not None), None),
            decoding=decoding_status(parts, transformed=requirement.transform is not None),
        )

    def _place_of_selector(self, requirement: ResourceRequirement) -> str:
        """File and line of the selector by which a resource gets its namespaces."""
        generation, plan = self._reloader.active, requirement.plan
        assert generation is not None
        document = generation.inputs.loaded.document
        path = ("spec",) if plan.namespaces_inherited else plan.path
        return f"{document.path}:{document.locate((*path, 'namespaces')).line}"

    def _log_disabled(self) -> list[str]:
        """The plugins that could not be loaded; each beginning and each end of that is logged."""
        generation = self._reloader.active
        found = {} if generation is None else {p.name: p for p in generation.loaded_code.disabled}
        # The usual case: no plugin is or was disabled, and the plan need not be searched.
        if generation is None or not (found or self._logged_disabled):
            return []
        handlers = _handlers_of_plugins(generation.plan)
        # Compared with the last look: each reason is logged once when it begins and once when it ends.
        logged, self._logged_disabled = self._logged_disabled, {name: p.reason for name, p in found.items()}
        for name in logged.keys() - found.keys():
            if name in handlers:
                self._log.info(
                    f"plugin {name} is loaded: its handlers {handlers[name]} receive all cached objects",
                    plugin=name,
                )
        for name, plugin in found.items():
            if logged.get(name) != plugin.reason:
                left_out = f"; its handlers {handlers[name]} are not called" if name in handlers else ""
                self._log.warning(
                    f"plugin {name} is disabled: {plugin.reason}{left_out}. "
                    f"{plugin.suggestion or 'Mend it'}; `declctl reload` tries it again",
                    plugin=name,
                    handlers=handlers.get(name),
                    **({} if plugin.traceback is None else {"traceback": plugin.traceback}),
                )
        return [f"plugin {name} is disabled: {plugin.reason}" for name, plugin in found.items()]

    def _log_namespaces(self, resource: ResourceStatus) -> None:
        """Log which namespaces have come in and left since the last look, in one line."""
        selected = resource.namespaces
        # The first set, and that of another selector, are no news: the line of the sync has their objects.
        if selected is None or not resource.synced:
            self._logged_namespaces.pop(resource.name, None)
            return
        names = frozenset(selected.names)
        before = self._logged_namespaces.get(resource.name)
        self._logged_namespaces[resource.name] = (selected.selector, names)
        if before is None or before[0] != selected.selector or before[1] == names:
            return
        parts = [
            f"{_listed(found)} {verb}"
            for found, verb in ((names - before[1], "came in"), (before[1] - names, "left"))
            if found
        ]
        count = f"{len(names):,} namespace{'' if len(names) == 1 else 's'} with {selected.selector}"
        self._log.info(f"{resource.name}: {', '.join(parts)}; {count} now", resource=resource.name)

    def _log_changes(self, resource: ResourceStatus) -> None:
        self._log_namespaces(resource)
        for note in self._notes.of(resource):
            self._log.warning(note, resource=resource.name)
        before = self._logged.get(resource.name)
        now = (resource.synced, resource.error)
        self._logged[resource.name] = now
        if not resource.synced:
            self._log_not_synced(resource, news=before != now and resource.error is not None)
        elif before == now:
            return
        elif resource.error:
            self._log.warning(f"{resource.name}: {resource.error}", resource=resource.name)
        elif resource.synced and (before is None or not before[0] or before[1]):
            count = f"{resource.objects:,} object{'' if resource.objects == 1 else 's'}"
            resumed = any(each.reflector.resumes for each in resource.informers)
            kept = ", without a list: the process before has kept them" if resumed else ""
            self._log.info(f"{resource.name} synced: {count}{kept}", resource=resource.name)

    def _log_not_synced(self, resource: ResourceStatus, *, news: bool) -> None:
        """Log that a resource has not synced: when the reason changes, and once a minute."""
        moment = self._clock.monotonic()
        # A new reason is logged at once, the same reason once a minute, so that the log does not fill.
        if news or moment >= self._silent_until.setdefault(resource.name, moment + _SILENCE):
            self._silent_until[resource.name] = moment + _SILENCE
            self._log.warning(f"{resource.name} {not_synced(resource)}", resource=resource.name)


def named_handlers(found: Sequence[tuple[str, HandlerProblem]]) -> Iterator[str]:
    """A sentence for each handler with the same problem, the oldest first; some are only counted."""
    ordered = sorted(found, key=lambda each: each[1].since)
    for name, problem in ordered[:_NAMED]:
        yield f"{name}: {excerpt(str(problem), most=_LONGEST_ERROR)}"
    if (more := len(ordered) - _NAMED) > 0:
        yield f"and {more} more {'handler' if more == 1 else 'handlers'}"


def _handlers_of_plugins(plan: Plan) -> Mapping[str, str]:
    """The names of each plugin's handlers, joined by commas."""
    found: dict[str, str] = {}
    for handler in plan.handlers:
        if handler.plugin is not None:
            found[handler.plugin] = ", ".join(filter(None, (found.get(handler.plugin), handler.name)))
    return found


def _message_parts(outcome: Outcome) -> list[str]:
    """The parts of the condition's message about an attempt. A refusal names the files by their digest."""
    parts: list[str] = []
    if outcome.result is Result.REFUSED:
        parts.append(f"{outcome.bundle[:12]}: {outcome.message}" if outcome.bundle else outcome.message)
    elif outcome.result is Result.ROLLED_BACK:
        parts.append(outcome.message)
    if outcome.unplanned:
        parts.append(f"not as planned: {'; '.join(outcome.unplanned)}")
    return parts


def resource_status(name: str, parts: Sequence[InformerStatistics]) -> ResourceStatus:
    """One resource over its watches: counts are summed.

    For ages and versions the minimum is taken, for errors and states the first value.
    """
    # The youngest event of all watches says when the resource last had an event.
    ages = [part.last_event_age for part in parts if part.last_event_age is not None]
    events: dict[str, int] = {}
    for part in parts:
        for kind, count in part.events.items():
            events[str(kind)] = events.get(str(kind), 0) + count
    return ResourceStatus(
        name=name,
        synced=all(part.synced for part in parts),
        objects=sum(part.objects for part in parts),
        bytes=sum(part.bytes for part in parts),
        lists=sum(part.lists for part in parts),
        watches=sum(part.watches for part in parts),
        relists=sum(part.relists for part in parts),
        relist_differences=sum((part.relist_differences for part in parts), RelistDifferences()),
        resource_version=min((p.resource_version for p in parts), key=lambda v: (len(v), v), default=""),
        last_event_age=round(min(ages), 3) if ages else None,
        error=next((part.error for part in parts if part.error), None),
        error_type=next((part.reflector.error_type for part in parts if part.error), None),
        state=_state_of(parts),
        items_listed=sum(part.items_listed for part in parts),
        events=events,
        queued=sum(part.controller.queued for part in parts),
        skipped=sum(part.reflector.skipped for part in parts),
        slow=sum(part.controller.slow for part in parts),
        informers=parts,
        # All watches of a resource have the same selector.
        namespaces=next((part.namespaces for part in parts if part.namespaces is not None), None),
    )


class Announcer:
    """Announces the outcome of each attempt: in tap, status, history, log and hooks. On the machinery loop.

    `restart` is called with the reasons after an attempt that needs a new process.
    """

    def __init__(
        self,
        process: Process,
        observer: StatusReporter,
        *,
        history: ReloadHistory,
        reloader: "Reloader",
        retries: ReloadRetries,
        tap: HandlerTap,
        restart: Callable[[str], None],
    ) -> None:
        self._clock = process.clock
        self._log = process.log
        self._observer = observer
        self._history = history
        self._reloader = reloader
        self._retries = retries
        self._tap = tap
        self._restart = restart

    async def attempted(self, outcome: Outcome, asked: bool) -> None:
        """Announce the outcome of an attempt. `asked`: a user waits for a line about it.

        Without that, a retry that is refused for the same reason as before is only marked for listeners.
        """
        if self._tap.listeners and outcome.result is not Result.UNCHANGED:
            result = str(outcome.result)
            mark = TapMark(self._clock.now(), result, outcome.generation, outcome.reason, outcome.line)
            self._tap.add(mark)
        if self._tap.recorder is not None and outcome.result is not Result.UNCHANGED:
            self._tap.recorder.reloaded(str(outcome.result), outcome.generation, outcome.line)
        if not (self._retries.record(outcome) or asked):
            return
        was_stale = self._observer.is_stale
        # All before the first await: no status shows the new generation without its condition, and what its
        # code logs of replayed objects comes after its own line.
        self._observer.reloaded(outcome)
        self._history.add(outcome)
        self._say(outcome, asked=asked)
        if was_stale and outcome.result is Result.UNCHANGED and not self._observer.is_stale:
            number = outcome.generation
            self._log.info(f"generation {number} is what the files say again", generation=number)
        # Hooks are not called for attempts that changed and refused nothing.
        if outcome.result in (Result.APPLIED, Result.REFUSED, Result.ROLLED_BACK):
            await self._reloader.call_reload_hooks(outcome, _HOOK_SECONDS)
        steps = [str(step) for step in outcome.steps if step.kind is StepKind.RESTART]
        if outcome.reason == "RestartRequired":
            steps.append(outcome.message)
        if steps:
            self._restart("; ".join(steps))

    def not_attempted(self, outcome: Outcome) -> None:
        """Log an outcome without an attempt, and add it to the history. Status and hooks do not get it."""
        self._history.add(outcome)
        self._log.warning(outcome.line, reason=outcome.reason, suggestion=outcome.advice)

    def _say(self, outcome: Outcome, *, asked: bool) -> None:
        if outcome.result is Result.APPLIED:
            log = self._log.warning if outcome.unplanned else self._log.info
            log(outcome.line, generation=outcome.generation)
            for warning in outcome.diagnostics:
                self._log.warning(warning.log_line, suggestion=warning.suggestion)
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
