"""Restart against reload: the same edit of the same handlers over the same cluster, in both ways.

The figures are pure functions of recorded calls, changes and requests.
"""

import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from declctl.bench.cluster import BenchCluster, RecordedChange
from declctl.bench.controller import BenchFiles, ControllerProcess, until
from declctl.bench.recorder import CallLog, RecordedCall
from declctl.errors import DeclctlError
from declctl.objects import KubeObject
from declctl.sandbox import LedgerEntry, SandboxThread

_OURS = "declctl/"  # the user agent of declctl; requests of handlers are not counted
_LEARN_SECONDS = 1.0  # of changes before the edit, which show the types that each handler receives
_WARM_SECONDS = 0.3  # of changes just before the edit
_QUIET_SECONDS = 0.3  # without a call, so that calls under way have ended
_STUCK_SECONDS = 5.0  # without a call, after which a handler that is not idle waits for a retry
_REFUSED_SECONDS = 2.0  # without an effect, after which a refusal is looked for
_LOOK_SECONDS = 0.1
_MANY = 0.25  # share of calls; a handler that fails more often was not written for these objects


@dataclass(frozen=True, slots=True)
class ReloadCost:
    """The cost of one code change. Times are in seconds.

    - `lists`, `watches`: requests to the API server after the edit; a list that is streamed through a watch
      is both.
    - `added_again`: calls for objects that the handlers knew (`Added`, part of a first sync).
    - `retries`: retries that were waiting at the edit; `retries_lost` of these were never made.
    - `memos`: memos that the new code looked for; `memos_lost` of these were missing.
    - `effect`: the time from the edit until the new code of the last handler received a later change.
    - `changes`: the deliveries that the changes after the edit require; `undelivered` of these were never
      made, neither by themselves nor with a later state.
    - `longest_wait`: the longest time from a change to the call.
    """

    lists: int
    watches: int
    added_again: int
    retries: int
    retries_lost: int
    memos: int
    memos_lost: int
    effect: float
    changes: int
    undelivered: int
    longest_wait: float


@dataclass(frozen=True, slots=True)
class ReloadRecording:
    """The record of one code change.

    `saved` is the time of the edit in monotonic seconds; `old` is the process and the generation before it.
    `calls` begin with the start of the old process. `attempts` has, for handlers that give up, the number of
    their attempts.
    """

    saved: float
    old: tuple[int, int]
    calls: Sequence[RecordedCall]
    changes: Sequence[RecordedChange]
    requests: Sequence[LedgerEntry]
    hearing: "Subscriptions"
    attempts: Mapping[str, int] = field(default_factory=dict[str, int])

    def before(self) -> Iterator[RecordedCall]:
        """The calls of the old code that began before the edit."""
        return (call for call in self.calls if call.began < self.saved and not self.is_new(call))

    def after(self) -> Iterator[RecordedCall]:
        """The calls of the new code."""
        return (call for call in self.calls if self.is_new(call))

    def is_new(self, call: RecordedCall) -> bool:
        """Whether the new code was called."""
        return (call.process, call.generation) != self.old


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """The types of changes that each handler receives, by resource; learnt from its calls."""

    types: Mapping[str, frozenset[str]]
    resources: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, calls: Iterable[RecordedCall], changes: Iterable[RecordedChange]) -> "Subscriptions":
        """Learn from calls for deliberate changes. Calls of a first sync are left out."""
        made = {(change.type, change.resource, change.key) for change in changes}
        types: dict[str, set[str]] = defaultdict(set)
        resources: dict[str, str] = {}
        for call in calls:
            if not call.initial and (call.type, call.resource, call.key) in made:
                types[call.handler].add(call.type)
                resources[call.handler] = call.resource
        return cls({name: frozenset(found) for name, found in types.items()}, resources)

    @property
    def handlers(self) -> frozenset[str]:
        """The handlers that receive any changes."""
        return frozenset(self.types)


def figures(observed: ReloadRecording) -> ReloadCost:
    """Compute the figures. Raises ValueError if the new code of a handler never received a change."""
    asked = [r for r in observed.requests if r.time >= observed.saved and r.user_agent.startswith(_OURS)]
    retries, lost = _retries(observed)
    memos, missed = _memos(observed)
    waits, undelivered, effects = _waits(observed)
    missing = ", ".join(sorted(observed.hearing.handlers - effects.keys()))
    if missing:
        raise ValueError(f"the new code of {missing} received no change")
    return ReloadCost(
        lists=sum(_is_list(request) for request in asked),
        watches=sum(request.verb == "watch" for request in asked),
        added_again=_added_again(observed),
        retries=retries,
        retries_lost=lost,
        memos=memos,
        memos_lost=missed,
        effect=max(effects.values()) - observed.saved,
        changes=len(waits) + undelivered,
        undelivered=undelivered,
        longest_wait=max(waits, default=0.0),
    )


def _is_list(request: LedgerEntry) -> bool:
    """Whether a request begins a list: a first page, or a watch that streams the list."""
    if request.verb == "watch":
        return request.params.get("sendInitialEvents") == "true"
    return request.verb == "list" and not request.params.get("continue")


def _added_again(observed: ReloadRecording) -> int:
    known = {(call.handler, call.key) for call in observed.before()}
    added = {(c.handler, c.key) for c in observed.after() if c.initial and c.type == "Added"}
    return len(known & added)


def _retries(observed: ReloadRecording) -> tuple[int, int]:
    """The number of retries that waited at the edit, and the number of these that were lost.

    A change that was not retried yet is lost with its process, or when its object was delivered anew.
    """
    waiting = _waiting(observed)
    later = [call for call in observed.calls if call.began >= observed.saved]
    left = waiting - {(call.handler, call.key, call.received) for call in later}
    # A new process has none of the retries of the old one.
    if any(call.process != observed.old[0] for call in later):
        return len(waiting), len(left)
    anew = {(call.handler, call.key) for call in later}
    return len(waiting), sum((handler, key) in anew for handler, key, _ in left)


def _waiting(observed: ReloadRecording) -> set[tuple[str, str, float]]:
    """The changes that had failed at the edit, and were not given up."""
    attempts: dict[tuple[str, str, float], int] = defaultdict(int)
    for call in observed.before():
        change = call.handler, call.key, call.received
        if call.failed:
            attempts[change] += 1
        else:
            attempts.pop(change, None)
    limits = observed.attempts
    return {change for change, made in attempts.items() if made < limits.get(change[0], math.inf)}


def _memos(observed: ReloadRecording) -> tuple[int, int]:
    known = {(call.handler, call.uid): bool(call.memo_after) for call in observed.before()}
    first: dict[tuple[str, str], RecordedCall] = {}
    for call in observed.after():
        if known.get((call.handler, call.uid)):
            first.setdefault((call.handler, call.uid), call)
    return len(first), sum(not call.memo for call in first.values())


def _waits(observed: ReloadRecording) -> tuple[list[float], int, dict[str, float]]:
    """The waits of all deliveries, the number of missing ones, and the first calls of new code."""
    calls: dict[tuple[str, str], list[RecordedCall]] = defaultdict(list)
    for call in sorted(observed.calls, key=lambda call: call.began):
        calls[call.handler, call.key].append(call)
    # A restarted process has nothing of the old one.
    latest = max(observed.calls, key=lambda call: call.began).process
    waits: list[float] = []
    effects: dict[str, float] = {}
    undelivered = 0
    for change, handler in _expected(observed):
        call = next((c for c in calls[handler, change.key] if _tells(c, change)), None)
        if call is None:
            undelivered += not _is_held(calls[handler, change.key], latest)
            continue
        waits.append(call.began - change.at)
        if observed.is_new(call):
            effects[handler] = min(effects.get(handler, call.began), call.began)
    return waits, undelivered, effects


def _is_held(calls: Sequence[RecordedCall], process: int) -> bool:
    """Whether changes of this object wait in the running process behind a retry."""
    return bool(calls) and calls[-1].failed and calls[-1].process == process


def _expected(observed: ReloadRecording) -> Iterator[tuple[RecordedChange, str]]:
    hearing = observed.hearing
    for change in observed.changes:
        if change.at >= observed.saved:
            for handler, types in hearing.types.items():
                if change.type in types and hearing.resources[handler] == change.resource:
                    yield change, handler


# A call with a later state also covers an earlier change. Only a Deleted covers a deletion.
def _tells(call: RecordedCall, change: RecordedChange) -> bool:
    if call.type == "Deleted" or change.type == "Deleted":
        return call.type == change.type
    return call.version >= change.version


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both costs, with the numbers of objects and of handlers that receive changes."""

    objects: int
    handlers: int
    restart: ReloadCost
    reload: ReloadCost


def compare(
    bundle: BenchFiles, samples: Sequence[KubeObject], *, objects: int, tell: Callable[[str], object]
) -> Comparison:
    """Measure both ways. Takes some seconds; `tell` is called with the name of each step.

    All files are in a temporary folder, and all objects in a new API server. Raises DeclctlError if the
    controller ends, is too slow (TimedOut) or receives no change, and SandboxError for an invalid sample.
    """
    with tempfile.TemporaryDirectory(prefix="declctl-bench-") as folder, SandboxThread() as server:
        home = Path(folder)
        tell(f"an API server with {objects:,} objects")
        cluster = BenchCluster(server, bundle.plan, samples, objects=objects, folder=home)
        tell("reload: `declctl run`, and a file is saved")
        # The reload goes first: its warm page cache and bytecode help the restart.
        reload = _Measurement(cluster, bundle, home / "reload", restart=False)
        reloaded = reload.go()
        if reload.failed > _MANY:
            tell(f"{reload.failed:.0%} of the calls failed: handlers may need objects like yours (--samples)")
        tell("restart: `declctl run`, a file is saved, SIGTERM, `declctl run`")
        restarted = _Measurement(cluster, bundle, home / "restart", restart=True).go()
        return Comparison(cluster.objects, len(reload.hearing.handlers), restarted, reloaded)


class _Measurement:
    """The measurement of one way, from the start of a controller until the edited code is idle."""

    def __init__(self, cluster: BenchCluster, bundle: BenchFiles, folder: Path, *, restart: bool) -> None:
        folder.mkdir()
        self.hearing = Subscriptions({})
        self._cluster = cluster
        self._bundle = bundle
        self._folder = folder
        self._restart = restart
        self._manifest = bundle.write(folder / "bundle")
        self._calls = CallLog(folder / "calls")
        self._churn = cluster.churn()

    def go(self) -> ReloadCost:
        """Start a controller, edit while objects change, wait until all is delivered, and stop it."""
        with ExitStack() as stack:
            controller = stack.enter_context(self._start())
            old = controller.process, 1
            self._settle(controller)
            self._learn(controller)
            if self._bundle.fails:
                failing = stack.enter_context(self._cluster.labelled(self._bundle.fails))
                self._until_failed(controller, failing)
            with self._churn:
                self._churn.wait(_WARM_SECONDS)
                version, saved = self._churn.version, time.monotonic()
                self._bundle.edit(self._manifest.parent)
                if self._restart:
                    controller.stop()
                    controller = stack.enter_context(self._start())
                self._until_effective(controller, version, old)
            self._settle(controller)
            requests = self._cluster.requests()
            controller.stop()
        limits = {
            handler.name: handler.most_attempts
            for handler in self._bundle.plan.handlers
            if handler.most_attempts is not None
        }
        return figures(
            ReloadRecording(saved, old, self._calls.all, self._churn.made, requests, self.hearing, limits)
        )

    @property
    def failed(self) -> float:
        """The share of failed calls."""
        return sum(call.failed for call in self._calls.all) / max(1, len(self._calls.all))

    def _start(self) -> ControllerProcess:
        return ControllerProcess(
            self._manifest,
            kubeconfig=self._cluster.kubeconfig,
            calls=self._calls.path,
            folder=self._folder,
            watch=not self._restart,
        )

    def _learn(self, controller: ControllerProcess) -> None:
        """Learn from changes of objects which handlers receive them."""
        with self._churn:
            self._churn.wait(_LEARN_SECONDS)
        self._settle(controller)
        self.hearing = Subscriptions.of(self._calls.all, self._churn.made)
        if not self.hearing.handlers:
            raise DeclctlError(
                "no handler hears of it when objects come, go, or get another label: there is nothing to time"
            )

    def _until_failed(self, controller: ControllerProcess, objects: int) -> None:
        """Wait until every handler has failed on each labelled object."""
        wanted = objects * len(self._bundle.plan.handlers)

        def failed() -> bool:
            controller.require_alive()
            self._calls.read()
            return sum(call.failed for call in self._calls.all) >= wanted

        until("the handlers fail where they shall", failed)

    def _until_effective(self, controller: ControllerProcess, version: int, old: tuple[int, int]) -> None:
        """Wait until the new code of all handlers has received a newer version, and all of a first sync."""
        left = set(self.hearing.handlers)
        last_call = asked = time.monotonic()

        def effective() -> bool:
            nonlocal last_call, asked
            controller.require_alive()
            if time.monotonic() - asked > _REFUSED_SECONDS:
                controller.require_reloaded()
                asked = time.monotonic()
            for call in self._calls.read():
                if (call.process, call.generation) != old:
                    if call.version > version:
                        left.discard(call.handler)
                    if call.initial:
                        last_call = time.monotonic()
            return not left

        until("the edited code of every handler receives a change", effective)

        def complete() -> bool:
            effective()
            status = controller.status()
            synced = all(handler["synced"] for handler in status["handlers"])
            return synced or time.monotonic() - last_call > _STUCK_SECONDS

        until("the edited code has received every object", complete, pause=_LOOK_SECONDS)

    def _settle(self, controller: ControllerProcess) -> None:
        """Wait until no call runs, and changes wait only for their next attempts."""
        last_call = time.monotonic()

        def settled() -> bool:
            nonlocal last_call
            now = time.monotonic()
            if self._calls.read():
                last_call = now
            status = controller.status()
            idle = status["ready"] and not any(h["queued"] or h["running"] for h in status["handlers"])
            return now - last_call > (_QUIET_SECONDS if idle else _STUCK_SECONDS) and status["ready"]

        until("all handlers are done", settled, pause=_LOOK_SECONDS)
