"""Restart against reload: the same edit of the same handlers over the same cluster, made both ways."""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from declctl.bench.bundle import Bundle
from declctl.bench.calls import Calls
from declctl.bench.cluster import Cluster
from declctl.bench.figures import Figures, Hearing, Observed, figures
from declctl.bench.process import Controller, until
from declctl.errors import DeclctlError
from declctl.manifest.model import OnFailure
from declctl.objects import KubeObject
from declctl.sandbox import SandboxThread

_LEARN_SECONDS = 1.0  # of changes, before the edit, that tell which handlers hear of what
_WARM_SECONDS = 0.3  # of changes just before the edit
_QUIET_SECONDS = 0.3  # without a call: those that were on their way have arrived
_STUCK_SECONDS = 5.0  # without a call: whoever is not idle by now waits for a retry
_REFUSED_SECONDS = 2.0  # without an effect: perhaps the reload was refused
_LOOK_SECONDS = 0.1
_MANY = 0.25  # of the calls: whoever fails so often has not met the objects that it was written for


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both ways, over so many objects; `handlers` counts those that hear when an object changes."""

    objects: int
    handlers: int
    restart: Figures
    reload: Figures


def compare(
    bundle: Bundle, samples: Sequence[KubeObject], *, objects: int, tell: Callable[[str], object]
) -> Comparison:
    """Measure both ways; takes some seconds, and `tell` is told what is being done.

    Everything that is made is in a temporary folder and in an API server of its own. Raises DeclctlError if
    the controller ends, does not get done in time (TimedOut), or hears of no change, and SandboxError for
    a sample that can't be one.
    """
    with tempfile.TemporaryDirectory(prefix="declctl-bench-") as folder, SandboxThread() as server:
        home = Path(folder)
        tell(f"an API server with {objects:,} objects")
        cluster = Cluster(server, bundle.plan, samples, objects=objects, folder=home)
        tell("reload: `declctl run`, and a file is saved")
        reload = _Way(cluster, bundle, home / "reload", restart=False)
        reloaded = reload.go()
        if reload.failed > _MANY:
            tell(f"{reload.failed:.0%} of the calls failed: handlers may need objects like yours (--samples)")
        tell("restart: `declctl run`, a file is saved, SIGTERM, `declctl run`")
        restarted = _Way(cluster, bundle, home / "restart", restart=True).go()
        return Comparison(cluster.objects, len(reload.hearing.handlers), restarted, reloaded)


class _Way:
    """One way to make the edit: a controller from its start until the edited code has settled."""

    def __init__(self, cluster: Cluster, bundle: Bundle, folder: Path, *, restart: bool) -> None:
        folder.mkdir()
        self.hearing = Hearing({})
        self._cluster = cluster
        self._bundle = bundle
        self._folder = folder
        self._restart = restart
        self._manifest = bundle.write(folder / "bundle")
        self._calls = Calls(folder / "calls")
        self._churn = cluster.churn()

    def go(self) -> Figures:
        """Start it, make the edit while the cluster changes, wait until all is told, and end it."""
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
            handler.name: handler.retry.max_attempts
            for handler in self._bundle.plan.handlers
            if handler.on_failure is not OnFailure.RETRY
        }
        return figures(
            Observed(saved, old, self._calls.all, self._churn.made, requests, self.hearing, limits)
        )

    @property
    def failed(self) -> float:
        """The share of the calls that have failed."""
        return sum(call.failed for call in self._calls.all) / max(1, len(self._calls.all))

    def _start(self) -> Controller:
        return Controller(
            self._manifest,
            kubeconfig=self._cluster.kubeconfig,
            calls=self._calls.path,
            folder=self._folder,
            watch=not self._restart,
        )

    def _learn(self, controller: Controller) -> None:
        """Which handlers hear of what is found by changing things."""
        with self._churn:
            self._churn.wait(_LEARN_SECONDS)
        self._settle(controller)
        self.hearing = Hearing.of(self._calls.all, self._churn.made)
        if not self.hearing.handlers:
            raise DeclctlError(
                "no handler hears of it when objects come, go, or get another label: there is nothing to time"
            )

    def _until_failed(self, controller: Controller, objects: int) -> None:
        """Every handler has failed on every object on which it shall."""
        wanted = objects * len(self._bundle.plan.handlers)

        def failed() -> bool:
            controller.require_alive()
            self._calls.read()
            return sum(call.failed for call in self._calls.all) >= wanted

        until("the handlers fail where they shall", failed)

    def _until_effective(self, controller: Controller, version: int, old: tuple[int, int]) -> None:
        """Every handler's new code was told of a newer version, and of all that it is told at a start."""
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

        until("the edited code of every handler is told of a change", effective)

        def told() -> bool:
            effective()
            status = controller.status()
            synced = all(handler["synced"] for handler in status["handlers"])
            return synced or time.monotonic() - heard > _STUCK_SECONDS

        until("the edited code has been told of every object", told, pause=_LOOK_SECONDS)

    def _settle(self, controller: Controller) -> None:
        """Everything is told: nothing waits or runs, or whatever waits does so for its next attempt."""
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
