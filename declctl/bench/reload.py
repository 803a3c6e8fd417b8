"""Restart against reload: the same edit of the same handlers over the same cluster, made both ways.

The figures are pure functions over recorded calls, changes and requests.
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

_OURS = "declctl/"  # what handlers ask by themselves is not counted
_LEARN_SECONDS = 1.0  # of changes, before the edit, that tell which handlers hear of what
_WARM_SECONDS = 0.3  # of changes just before the edit
_QUIET_SECONDS = 0.3  # without a call: those that were on their way have arrived
_STUCK_SECONDS = 5.0  # without a call: a handler that is not idle by now waits for a retry
_REFUSED_SECONDS = 2.0  # without an effect: perhaps the reload was refused
_LOOK_SECONDS = 0.1
_MANY = 0.25  # of the calls: a handler that fails so often was not written for these objects


@dataclass(frozen=True, slots=True)
class ReloadCost:
    """What one change of the code cost. Times are in seconds.

    `lists` and `watches` are those asked of the API server after the edit was saved; a list that is
    streamed through a watch is both. `told_again` counts handlers' calls for objects that they knew
    (`Added`, part of a first sync). `retries` were waiting at that moment, and `retries_lost` of these were
    never made; `memos` are those that new code looked for, and `memos_lost` those that it missed.

    `effect` is the time from the save until the last handler's new code received a change that was made
    after it. `changes` counts the deliveries that changes after the save require, `unheard` those that
    were never made, neither by themselves nor with a later state. `longest_wait` is the longest time
    from a change to the call.
    """

    lists: int
    watches: int
    told_again: int
    retries: int
    retries_lost: int
    memos: int
    memos_lost: int
    effect: float
    changes: int
    unheard: int
    longest_wait: float


@dataclass(frozen=True, slots=True)
class Recording:
    """Everything that was written down about one change of the code.

    `saved` is when the edit was saved, in monotonic seconds; `old` is the process and the generation that
    ran until then. `calls` begin with the start of the old process; `changes` and `requests` may. `attempts`
    has the handlers that give up, and after how many calls.
    """

    saved: float
    old: tuple[int, int]
    calls: Sequence[RecordedCall]
    changes: Sequence[RecordedChange]
    requests: Sequence[LedgerEntry]
    hearing: "Subscriptions"
    attempts: Mapping[str, int] = field(default_factory=dict[str, int])

    def before(self) -> Iterator[RecordedCall]:
        """The calls of the old code that began before the edit was saved."""
        return (call for call in self.calls if call.began < self.saved and not self.is_new(call))

    def after(self) -> Iterator[RecordedCall]:
        """The calls of the new code."""
        return (call for call in self.calls if self.is_new(call))

    def is_new(self, call: RecordedCall) -> bool:
        """Whether it was the new code that was called."""
        return (call.process, call.generation) != self.old


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """Which handlers hear of which types of changes, of which resource: learnt from their calls."""

    types: Mapping[str, frozenset[str]]
    resources: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, calls: Iterable[RecordedCall], changes: Iterable[RecordedChange]) -> "Subscriptions":
        """From calls for changes that were made on purpose: the calls at a start are for none."""
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
        """Those that hear of anything."""
        return frozenset(self.types)


def figures(observed: Recording) -> ReloadCost:
    """What it cost; raises ValueError if a handler's new code never received a change."""
    asked = [r for r in observed.requests if r.time >= observed.saved and r.user_agent.startswith(_OURS)]
    retries, lost = _retries(observed)
    memos, missed = _memos(observed)
    waits, unheard, effects = _waits(observed)
    missing = ", ".join(sorted(observed.hearing.handlers - effects.keys()))
    if missing:
        raise ValueError(f"the new code of {missing} received no change")
    return ReloadCost(
        lists=sum(_is_list(request) for request in asked),
        watches=sum(request.verb == "watch" for request in asked),
        told_again=_told_again(observed),
        retries=retries,
        retries_lost=lost,
        memos=memos,
        memos_lost=missed,
        effect=max(effects.values()) - observed.saved,
        changes=len(waits) + unheard,
        unheard=unheard,
        longest_wait=max(waits, default=0.0),
    )


def _is_list(request: LedgerEntry) -> bool:
    """Whether a request begins a list: the first page of one, or a watch that brings everything first."""
    if request.verb == "watch":
        return request.params.get("sendInitialEvents") == "true"
    return request.verb == "list" and not request.params.get("continue")


def _told_again(observed: Recording) -> int:
    known = {(call.handler, call.key) for call in observed.before()}
    added = {(c.handler, c.key) for c in observed.after() if c.initial and c.type == "Added"}
    return len(known & added)


def _retries(observed: Recording) -> tuple[int, int]:
    """How many waited when the edit was saved, and how many of these were lost.

    A change that is tried again was received when it was received the first time. One that has not been
    tried again yet is lost with its process, or when its object was delivered anew in its place.
    """
    waiting = _waiting(observed)
    later = [call for call in observed.calls if call.began >= observed.saved]
    left = waiting - {(call.handler, call.key, call.received) for call in later}
    # A new process knows nothing of the retries of the old one.
    if any(call.process != observed.old[0] for call in later):
        return len(waiting), len(left)
    anew = {(call.handler, call.key) for call in later}
    return len(waiting), sum((handler, key) in anew for handler, key, _ in left)


def _waiting(observed: Recording) -> set[tuple[str, str, float]]:
    """The changes that had failed when the edit was saved, and were not given up."""
    attempts: dict[tuple[str, str, float], int] = defaultdict(int)
    for call in observed.before():
        change = call.handler, call.key, call.received
        if call.failed:
            attempts[change] += 1
        else:
            attempts.pop(change, None)
    limits = observed.attempts
    return {change for change, made in attempts.items() if made < limits.get(change[0], math.inf)}


def _memos(observed: Recording) -> tuple[int, int]:
    known = {(call.handler, call.uid): bool(call.memo_after) for call in observed.before()}
    first: dict[tuple[str, str], RecordedCall] = {}
    for call in observed.after():
        if known.get((call.handler, call.uid)):
            first.setdefault((call.handler, call.uid), call)
    return len(first), sum(not call.memo for call in first.values())


def _waits(observed: Recording) -> tuple[list[float], int, dict[str, float]]:
    """How long each change waited for each handler, how many were never heard, and the first of new code."""
    calls: dict[tuple[str, str], list[RecordedCall]] = defaultdict(list)
    for call in sorted(observed.calls, key=lambda call: call.began):
        calls[call.handler, call.key].append(call)
    # After a restart the old process holds nothing any more.
    latest = max(observed.calls, key=lambda call: call.began).process
    waits: list[float] = []
    effects: dict[str, float] = {}
    unheard = 0
    for change, handler in _expected(observed):
        call = next((c for c in calls[handler, change.key] if _tells(c, change)), None)
        if call is None:
            unheard += not _is_held(calls[handler, change.key], latest)
            continue
        waits.append(call.began - change.at)
        if observed.is_new(call):
            effects[handler] = min(effects.get(handler, call.began), call.began)
    return waits, unheard, effects


def _is_held(calls: Sequence[RecordedCall], process: int) -> bool:
    """Whether changes of this object wait in the process that runs, behind one that is tried again."""
    return bool(calls) and calls[-1].failed and calls[-1].process == process


def _expected(observed: Recording) -> Iterator[tuple[RecordedChange, str]]:
    hearing = observed.hearing
    for change in observed.changes:
        if change.at >= observed.saved:
            for handler, types in hearing.types.items():
                if change.type in types and hearing.resources[handler] == change.resource:
                    yield change, handler


# A call with a later state also covers an earlier change; only a Deleted covers a deletion.
def _tells(call: RecordedCall, change: RecordedChange) -> bool:
    if call.type == "Deleted" or change.type == "Deleted":
        return call.type == change.type
    return call.version >= change.version


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both ways, over so many objects; `handlers` counts those that hear when an object changes."""

    objects: int
    handlers: int
    restart: ReloadCost
    reload: ReloadCost


def compare(
    bundle: BenchFiles, samples: Sequence[KubeObject], *, objects: int, tell: Callable[[str], object]
) -> Comparison:
    """Measure both ways; takes some seconds, and `tell` is called with each step, in words.

    Everything that is made is in a temporary folder and in an API server of its own. Raises DeclctlError if
    the controller ends, does not get done in time (TimedOut), or hears of no change, and SandboxError for
    a sample that can't be one.
    """
    with tempfile.TemporaryDirectory(prefix="declctl-bench-") as folder, SandboxThread() as server:
        home = Path(folder)
        tell(f"an API server with {objects:,} objects")
        cluster = BenchCluster(server, bundle.plan, samples, objects=objects, folder=home)
        tell("reload: `declctl run`, and a file is saved")
        # The reload goes first: what it leaves warm (page cache, bytecode) helps the restart, not itself.
        reload = _Measurement(cluster, bundle, home / "reload", restart=False)
        reloaded = reload.go()
        if reload.failed > _MANY:
            tell(f"{reload.failed:.0%} of the calls failed: handlers may need objects like yours (--samples)")
        tell("restart: `declctl run`, a file is saved, SIGTERM, `declctl run`")
        restarted = _Measurement(cluster, bundle, home / "restart", restart=True).go()
        return Comparison(cluster.objects, len(reload.hearing.handlers), restarted, reloaded)


class _Measurement:
    """One way to make the edit: a controller from its start until the edited code has settled."""

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
        """Start it, make the edit while the cluster changes, wait until all is delivered, and end it."""
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
            Recording(saved, old, self._calls.all, self._churn.made, requests, self.hearing, limits)
        )

    @property
    def failed(self) -> float:
        """The share of the calls that have failed."""
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
        """Which handlers hear of what is found by changing things."""
        with self._churn:
            self._churn.wait(_LEARN_SECONDS)
        self._settle(controller)
        self.hearing = Subscriptions.of(self._calls.all, self._churn.made)
        if not self.hearing.handlers:
            raise DeclctlError(
                "no handler hears of it when objects come, go, or get another label: there is nothing to time"
            )

    def _until_failed(self, controller: ControllerProcess, objects: int) -> None:
        """Every handler has failed on every object on which it shall."""
        wanted = objects * len(self._bundle.plan.handlers)

        def failed() -> bool:
            controller.require_alive()
            self._calls.read()
            return sum(call.failed for call in self._calls.all) >= wanted

        until("the handlers fail where they shall", failed)

    def _until_effective(self, controller: ControllerProcess, version: int, old: tuple[int, int]) -> None:
        """Wait until every handler's new code has received a newer version, and all calls of a start."""
        left = set(self.hearing.handlers)
        heard = asked = time.monotonic()

        def effective() -> bool:
            nonlocal heard, asked
            controller.require_alive()
            if time.monotonic() - asked > _REFUSED_SECONDS:
                controller.require_reloaded()
                asked = time.monotonic()
            for call in self._calls.read():
                if (call.process, call.generation) != old:
                    if call.version > version:
                        left.discard(call.handler)
                    if call.initial:
                        heard = time.monotonic()
            return not left

        until("the edited code of every handler receives a change", effective)

        def complete() -> bool:
            effective()
            status = controller.status()
            synced = all(handler["synced"] for handler in status["handlers"])
            return synced or time.monotonic() - heard > _STUCK_SECONDS

        until("the edited code has received every object", complete, pause=_LOOK_SECONDS)

    def _settle(self, controller: ControllerProcess) -> None:
        """Wait until nothing runs, and nothing waits except for its next attempt."""
        heard = time.monotonic()

        def settled() -> bool:
            nonlocal heard
            now = time.monotonic()
            if self._calls.read():
                heard = now
            status = controller.status()
            idle = status["ready"] and not any(h["queued"] or h["running"] for h in status["handlers"])
            return now - heard > (_QUIET_SECONDS if idle else _STUCK_SECONDS) and status["ready"]

        until("all handlers are done", settled, pause=_LOOK_SECONDS)
