"""The costs of a reload: the pause, the time to effect, requests to the server, delays of events, memory.

    python benchmarks/reloads.py [--objects 100000] [--handlers 200] [--reloads 1000] [--rate 1000]

The controller runs in this process, and the benchmark server (`server/`) in another one. All settings are the
defaults of `declctl run`: the switch interval, the frozen heap, and the pre-flight import in a child that is
forked from a warm process.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import delays
import yaml
from harness.building import BENCHMARKS, go
from harness.server import Server
from harness.text import Table, plain

from declctl.cli.run import SWITCH_SECONDS
from declctl.kit import SystemClock
from declctl.testing import BundleDir, ControllerUnderTest, until

_PATIENCE = 600.0  # seconds
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CODE = """
from delays import delivered

def on_change(change):
    if change.type == "Modified":
        delivered(change.obj)

def by_node(obj): return [obj["spec"]["nodeName"]]

VERSION = {version}
"""
_PATHS = ("spec.nodeName", "status.hostIP", "status.podIP", "spec.serviceAccountName", "spec.schedulerName")
_ASKED = 1.0  # seconds between two looks at the status after an edit
_FEW = 100  # objects, for figures that do not depend on their number


@dataclass(frozen=True)
class Figure:
    """One line of the table. `bar` is the required value; empty if there is none."""

    name: str
    value: str
    bar: str = ""


class Rig:
    """A controller that watches the benchmark server, and the bundle that is edited."""

    def __init__(self, server: Server, controller: ControllerUnderTest, bundle: BundleDir) -> None:
        self.server = server
        self.controller = controller
        self._bundle = bundle
        self._handlers = str(bundle.path / "handlers.py")
        self.edits = 0  # of the code

    def edit_code(self) -> None:
        """Edits the handlers and reloads them, without a wait for the files to settle."""
        self._write_code()
        outcome = self.controller.reload(_PATIENCE)
        if outcome.result != "Applied":
            raise SystemExit(f"a reload did not go through: {outcome.line}")

    def effect_of_code(self) -> float:
        """Edits the handlers; returns the seconds from the settled files to the new generation."""
        return self._effect(self._write_code)

    def effect_of_indexes(self, *indexers: dict[str, str]) -> float:
        """Replaces the indexes of the resource; returns the same seconds."""
        path = self._bundle.path / "manifest.yaml"
        manifest = json.loads(path.read_text())
        manifest["spec"]["resources"][0]["indexers"] = list(indexers)
        return self._effect(lambda: self._bundle.write("manifest.yaml", json.dumps(manifest)))

    def requests(self) -> dict[str, int]:
        """The counts of the requests to the server."""
        stats = self.server.stats()
        return {name: stats[name] for name in ("lists", "streams", "watches")}

    def retired(self) -> None:
        """Returns when the old generation has drained."""
        # Repeated reads of the status would delay the events.
        reloader = self.controller.runtime.parts.reloader
        self.controller.on_machinery(reloader.wait_until_retired(), _PATIENCE)

    def _effect(self, edit: Callable[[], Any]) -> float:
        before = dict(self.controller.status().reloads)
        edit()

        def tried() -> bool:
            return self.controller.status().reloads != before

        until("it is tried", tried, timeout=_PATIENCE, every=_ASKED)  # seldom, as a look takes CPU time
        status = self.controller.status()
        if status.reloads["Applied"] == before.get("Applied", 0):
            raise SystemExit(f"a reload did not go through: {status.reloads}")
        self.retired()
        return status.last_reload_seconds

    def _write_code(self) -> None:
        self.edits += 1
        # As little work as possible: a real editor is another process and takes no time from the events.
        file = os.open(self._handlers, os.O_WRONLY | os.O_TRUNC)
        os.write(file, _CODE.format(version=self.edits).encode())
        os.close(file)


@contextmanager
def running(*, objects: int, handlers: int, watch: bool = False) -> Iterator[Rig]:
    """A controller with `objects` pods in its cache. Only the first handler receives changes."""
    program = go(BENCHMARKS / "server", "server")
    with tempfile.TemporaryDirectory() as home:
        bundle = BundleDir(Path(home) / "bundle", {"handlers.py": _CODE.format(version=0)})
        manifest = bundle.write("manifest.yaml", json.dumps(_manifest(handlers)))
        # As in `declctl run`: what is imported is frozen, and the code of the first generation is not.
        import_module("kubernetes.config.kube_config")
        gc.freeze()
        with (
            Server(program, kind="pods", objects=objects, folder=Path(home)) as server,
            _controller(manifest, server, watch=watch) as controller,
        ):
            controller.wait_ready(_PATIENCE)
            yield Rig(server, controller, bundle)
        gc.unfreeze()


def _controller(manifest: Path, server: Server, *, watch: bool) -> ControllerUnderTest:
    return ControllerUnderTest(manifest, sandbox=_ServerAsSandbox(server), watch=watch)  # type: ignore[arg-type]


class _ServerAsSandbox:
    """The benchmark server with the methods that a controller under test calls on its sandbox."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.clock = SystemClock()

    def load(self, objects: Sequence[Any]) -> None:
        """Does nothing, as the server makes its own objects."""
        assert not objects

    def kubeconfig(self) -> Any:
        """The kubeconfig of the server."""
        return yaml.safe_load(self._server.kubeconfig.read_text())


def _manifest(handlers: int) -> dict[str, Any]:
    of = {"resourceRef": {"name": "pods"}, "entryPoint": "handlers:on_change", "initialSync": "Skip"}
    silent = {**of, "events": ["Deleted"]}
    return {
        "apiVersion": "declctl.dev/v1alpha1",
        "kind": "Controller",
        "metadata": {"name": "bench"},
        "spec": {
            "resources": [{"name": "pods", "apiVersion": "v1", "kind": "Pod"}],
            "handlers": [{"name": f"h{n}", **(silent if n else of)} for n in range(handlers)],
        },
    }


def pauses(handlers: int, reloads: int) -> Iterator[Figure]:
    """The time for which a commit blocks the machinery loop."""
    with running(objects=_FEW, handlers=handlers) as rig:
        taken = _timed_commits(rig, reloads)
        what = f"commit with {handlers} handlers"
        yield Figure(f"{what}, p50 of {reloads}", f"{statistics.median(taken) * 1e3:.2f} ms")
        yield Figure(f"{what}, p99 of {reloads}", f"{_percentile(taken, 0.99) * 1e3:.2f} ms", "< 1 ms")


def _timed_commits(rig: Rig, reloads: int) -> list[float]:
    # Only the reloader knows the time of a commit, so its method is wrapped.
    reloader: Any = rig.controller.runtime.parts.reloader
    commit: Callable[..., Any] = reloader.commit
    taken: list[float] = []

    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return commit(*arguments, **options)
        finally:
            taken.append(time.perf_counter() - began)

    reloader.commit = timed
    for _ in range(reloads):
        rig.edit_code()
        rig.retired()
    return taken


def effects(objects: int) -> Iterator[Figure]:
    """The time from the settled files to the new generation, and the requests to the server meanwhile.

    The files are watched, so that the child of the pre-flight starts while the files settle.
    """
    with running(objects=objects, handlers=1, watch=True) as rig:
        before = rig.requests()
        fresh = iter(_PATHS)
        edits: dict[str, tuple[Callable[[], float], str]] = {
            "code change": (rig.effect_of_code, "< 500 ms"),
            "new index, function": (
                lambda: rig.effect_of_indexes({"name": "byNode", "entryPoint": "handlers:by_node"}),
                "< 2,000 ms",
            ),
            "new index, field path": (
                lambda: rig.effect_of_indexes({"name": "byField", "fieldPath": next(fresh)}),
                "< 2,000 ms",
            ),
            "new index, field path that is decoded already": (
                lambda: rig.effect_of_indexes({"name": "byField", "fieldPath": _PATHS[-1]}),
                "< 2,000 ms",
            ),
        }
        for name, (edit, bar) in edits.items():
            taken: list[float] = []
            for _ in _PATHS:
                taken.append(edit())
                if edit != rig.effect_of_code:
                    rig.effect_of_indexes()  # removes the index, so that the next edit adds a new one
            what = f"{name}, {objects:,} objects, median of {len(_PATHS)}"
            times = " ".join(f"{each * 1e3:.0f}" for each in sorted(taken))
            yield Figure(what, f"{statistics.median(taken) * 1e3:.0f} ms ({times})", bar)
        after = rig.requests()
        yield Figure(
            "LISTs and WATCHes for all of these", str(sum(after.values()) - sum(before.values())), "0"
        )


def latencies(rate: int, seconds: int) -> Iterator[Figure]:
    """The delays of changes: without edits, with an edit every two seconds, and with continuous edits."""
    with running(objects=_FEW, handlers=8) as rig, ThreadPoolExecutor(1) as pool:
        changes = rate * seconds
        _flood(rig, pool, changes, rate, lambda: None)  # warms the caches of the processor
        quiet = _flood(rig, pool, changes, rate, lambda: None)
        seldom = _flood(rig, pool, changes, rate, lambda: (rig.edit_code(), time.sleep(2.0)))
        reloads = rig.edits
        stormy = _flood(rig, pool, changes, rate, lambda: (rig.edit_code(), rig.retired()))
        often = (rig.edits - reloads) / seconds
        usual = _percentile(quiet, 0.99)
        yield Figure(f"event latency p99, {rate:,} changes/s, quiet", f"{usual:.2f} ms")
        for which, delays, bar in (
            ("a reload every two seconds", seldom, "at most 3 times"),
            (f"one reload after the other, {often:.0f} each second", stormy, ""),
        ):
            late = _percentile(delays, 0.99)
            figure = f"{late:.2f} ms, {late / usual:.1f} times"
            yield Figure(f"the same, {which}", figure, bar)


def _flood(
    rig: Rig, pool: ThreadPoolExecutor, changes: int, rate: int, meanwhile: Callable[[], Any]
) -> list[float]:
    delays.take()
    done = pool.submit(rig.server.modify, changes, rate=rate, hot=False, timeout=_PATIENCE)
    while not done.done():
        meanwhile()
        time.sleep(0.05)
    done.result()
    until("all are delivered", lambda: delays.count() == changes, timeout=_PATIENCE)
    return delays.take()


def memory(reloads: int) -> Iterator[Figure]:
    """Resident memory before and after many reloads, and the slope of the second half."""
    with running(objects=_FEW, handlers=8) as rig:
        for _ in range(max(10, reloads // 20)):  # until Python's own caches are full
            rig.edit_code()
            rig.retired()
        resident = [_resident()]
        for _ in range(reloads):
            rig.edit_code()
            rig.retired()
            resident.append(_resident())
        last = resident[len(resident) // 2 :]
        slope = statistics.linear_regression(range(len(last)), last).slope
        grown = resident[-1] / resident[0] - 1
        now = f"{resident[0]:.1f} → {resident[-1]:.1f} MB, {grown:+.1%}"
        yield Figure(f"resident over {reloads:,} reloads", now, "within 5 %")
        yield Figure("slope of the second half", f"{slope * 1000:+.1f} kB a reload")


def _resident() -> float:
    """Megabytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 1e6


def _percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--handlers", type=int, default=200)
    parser.add_argument("--reloads", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_SECONDS)
    # The pre-flight's child imports the handlers, too.
    paths = [str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    figures = [
        *memory(options.reloads),  # first, as freed memory of a large cache would shrink during it
        *pauses(options.handlers, max(10, options.reloads // 5)),
        *latencies(options.rate, options.seconds),
        *effects(options.objects),
    ]
    rows = [(figure.name, figure.value, figure.bar) for figure in figures]
    sys.stdout.write(f"\n{plain(Table('Reloads', ('', 'measured', 'bar'), rows))}\n")


if __name__ == "__main__":
    main()
