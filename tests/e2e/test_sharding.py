"""Several processes that share the objects of one controller: they join, end, are killed and are stopped.

Handlers write down when each of their calls begins and ends, by the clock of the machine.
"""

import itertools
import random
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from clusters import Cluster, new_namespace
from processes import Declctl
from waiting import until

from declctl.testing import BundleDir

SLOTS, NAMESPACES, OWNERS = 8, 20, 3  # the last: in each namespace
LEASE, RENEWAL, RETRY = 8.0, 6.0, 0.5  # seconds; a busy machine may be silent for some of them
LATE = 5.0  # seconds beside the lease, for which a key may be left out
BUSY = 10.0  # seconds that this machine may add
MANIFEST = f"""\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: shared}}
spec:
  resources:
    - {{name: owners, apiVersion: v1, kind: ConfigMap, labelSelector: "owner=PLACE"}}
    - {{name: children, apiVersion: v1, kind: Secret, labelSelector: "child=PLACE"}}
  handlers:
    - name: keep
      mode: Reconcile
      resourceRef: {{name: owners}}
      entryPoint: "code:keep"
      watches: [{{resourceRef: {{name: children}}, mapTo: {{owner: Controller}}}}]
      applies: [{{apiVersion: v1, kind: Secret}}]
      queue: {{concurrency: 8}}
  writes: {{qps: 0}}
  sharding:
    slots: {SLOTS}
    leaseDuration: {LEASE:g}s
    renewDeadline: {RENEWAL:g}s
    retryPeriod: {RETRY * 1000:g}ms
    namespace: PLACE
"""
CODE = """\
import asyncio
import os
import time

from declctl.errors import NotLeader

NAME = os.environ["NAME"]

def note(what, key, version):
    print(what, key, version, time.monotonic(), flush=True)

async def keep(request, ctx):
    if request.obj is None:
        note("gone", request.key, 0)
        return
    version = request.obj.labels["version"]
    note("begin", request.key, version)
    try:
        await asyncio.sleep(0.05)
        metadata = {"name": f"of-{request.name}", "labels": {"child": "PLACE"}}
        child = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
        await ctx.apply_set([{**child, "stringData": {"by": NAME, "version": version}}])
        note("wrote", request.key, version)
    except NotLeader:
        note("refused", request.key, version)
        raise
    finally:
        note("end", request.key, version)
"""


class Call(NamedTuple):
    """A call of the handler, in seconds of the machine's clock."""

    key: str
    begin: float
    end: float
    process: str


class Fleet:
    """Processes of one controller, and owners that change all the time."""

    def __init__(self, cluster: Cluster, folder: Path, stack: ExitStack) -> None:
        self.cluster = cluster
        self.place = new_namespace(cluster)  # of the Leases
        self.namespaces = [new_namespace(cluster) for _ in range(NAMESPACES)]
        self._stack = stack
        texts = {"manifest.yaml": MANIFEST, "code.py": CODE}
        self._bundle = BundleDir(
            folder / "bundle", {n: t.replace("PLACE", self.place) for n, t in texts.items()}
        )
        self.ended_at: dict[str, float] = {}  # when a process was killed
        self.processes: dict[str, Declctl] = {}
        self.changes: list[tuple[str, int, float]] = []  # key, version, time
        self._versions = itertools.count(2)
        for namespace in self.namespaces:
            for number in range(OWNERS):
                labels = {"owner": self.place, "version": "1"}
                metadata = {"name": f"o{number}", "namespace": namespace, "labels": labels}
                cluster.rest.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})

    @property
    def keys(self) -> list[str]:
        """Those of all owners."""
        return [f"{namespace}/o{number}" for namespace in self.namespaces for number in range(OWNERS)]

    def start(self, name: str) -> Declctl:
        """Another process."""
        process = Declctl(self._bundle.path, kubeconfig=self.cluster.kubeconfig, env={"NAME": name})
        self.processes[name] = self._stack.enter_context(process)
        return process

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.processes[name].kill()
        self.ended_at[name] = time.monotonic()

    def holders(self) -> list[str]:
        """Who holds each slot, as the Leases say; none of a slot that is free."""
        found = self.cluster.rest.list("leases", self.place)
        slots = [each for each in found if "-shard-" in each["metadata"]["name"]]
        return [each["spec"].get("holderIdentity") or "" for each in slots]

    def until_balanced(self, processes: int, *, seconds: float = 90.0) -> None:
        """Each of so many processes holds its quota."""

        def is_balanced() -> bool:
            holders = self.holders()
            sizes = [holders.count(each) for each in set(holders)]
            return len(holders) == SLOTS and len(sizes) == processes and max(sizes) - min(sizes) <= 1

        until(f"{processes} processes share the slots", is_balanced, seconds=seconds)

    @contextmanager
    def changing(self) -> Generator[None]:
        """Owners change in the block; at its end, all their changes were handled in time."""
        stop = threading.Event()

        def change() -> None:
            choose = random.Random(7)
            while not stop.wait(0.03):
                key, version = choose.choice(self.keys), next(self._versions)
                namespace, _, name = key.partition("/")
                labels = {"metadata": {"labels": {"version": str(version)}}}
                self.cluster.rest.patch("configmaps", name, labels, namespace)
                self.changes.append((key, version, time.monotonic()))

        thread = threading.Thread(target=change)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def lines(self, what: str) -> Iterator[tuple[str, int, float, str]]:
        """The lines of one kind: key, version, time, and process."""
        for name, process in self.processes.items():
            for line in process.out:
                word, *rest = line.split()
                if word == what:
                    yield rest[0], int(rest[1]), float(rest[2]), name

    def calls(self) -> Sequence[Call]:
        """All calls that have begun."""
        found: list[Call] = []
        for name in self.processes:
            begun: dict[str, float] = {}
            words = [line.split() for line in self.processes[name].out]
            for what, key, _, at in (each for each in words if each[0] in ("begin", "end")):
                if what == "begin":
                    begun[key] = float(at)
                else:
                    found.append(Call(key, begun.pop(key), float(at), name))
            found += [
                Call(key, at, self.ended_at.get(name, time.monotonic()), name) for key, at in begun.items()
            ]
        return found

    def require_alone(self, *, but: str = "") -> None:
        """No key was handled by two processes at a time, `but` by one that was stopped amid its calls."""
        by_key: dict[str, list[Call]] = {}
        for call in self.calls():
            if call.process != but:
                by_key.setdefault(call.key, []).append(call)
        for calls in by_key.values():
            for one, next_one in itertools.pairwise(sorted(calls, key=lambda call: call.begin)):
                assert one.end <= next_one.begin, (one, next_one)

    def require_in_time(self) -> float:
        """Each change was written down by a process in time; returns the longest that one has waited."""
        newest = {key: version for key, version, _ in self.changes}

        def is_written() -> bool:
            there = {}
            for key, version, _, _ in self.lines("wrote"):
                there[key] = max(version, there.get(key, 0))
            return all(there.get(key, 0) >= version for key, version in newest.items())

        until("all changes are handled", is_written, seconds=LEASE + LATE + BUSY)
        wrote: dict[str, list[tuple[float, int]]] = {}
        for key, version, at, _ in self.lines("wrote"):
            wrote.setdefault(key, []).append((at, version))
        longest = 0.0
        for key, version, at in self.changes:
            longest = max(longest, min(each for each, which in wrote[key] if which >= version) - at)
        assert longest < LEASE + LATE + BUSY, longest
        return longest


@pytest.fixture
def fleet(gated_cluster: Cluster, tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(gated_cluster, tmp_path, stack)


@pytest.mark.thorough
def test_processes_join_end_and_are_killed(fleet: Fleet) -> None:
    """No key is handled by two at a time, and none is left out for longer than the lease and five seconds."""
    fleet.start("one")
    fleet.until_balanced(1)
    until("all are handled", lambda: {each[0] for each in fleet.lines("wrote")} == set(fleet.keys))
    with fleet.changing():
        fleet.start("two")
        fleet.start("three")
        fleet.until_balanced(3)
        assert fleet.processes["two"].stop() == 0
        fleet.until_balanced(2)
        fleet.start("four")
        fleet.until_balanced(3)
        fleet.kill("three")
        fleet.until_balanced(2)
    longest = fleet.require_in_time()
    fleet.require_alone()
    print(f"{fleet.cluster.name}: the longest wait was {longest:.2f} s for {len(fleet.changes)} changes")
    assert list(fleet.lines("gone")) == []
    assert list(fleet.lines("refused")) == []
    for name in ("one", "four"):
        assert fleet.processes[name].stop() == 0
    assert set(fleet.holders()) == {""}


@pytest.mark.thorough
def test_a_process_that_was_stopped_for_a_while_writes_nothing_late(fleet: Fleet) -> None:
    """SIGSTOP amid calls for longer than the lease: others handle what it held; then it takes its share."""
    fleet.start("one")
    fleet.start("two")
    fleet.until_balanced(2)
    until("all are handled", lambda: {each[0] for each in fleet.lines("wrote")} == set(fleet.keys))
    one = fleet.processes["one"]
    with fleet.changing():
        until("it has calls", lambda: len(list(fleet.lines("begin"))) > 2 * len(fleet.keys))
        one.pause()
        stopped = time.monotonic()
        fleet.until_balanced(1)
        time.sleep(2 * RETRY)
        one.resume()
        resumed = time.monotonic()
        fleet.until_balanced(2)
    fleet.require_in_time()
    fleet.require_alone(but="one")
    late = [
        each for each in fleet.lines("wrote") if each[3] == "one" and stopped < each[2] < resumed + RETRY / 10
    ]
    assert late == []
    assert one.alive
    for process in fleet.processes.values():
        assert process.stop() == 0
