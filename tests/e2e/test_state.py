"""Processes that follow one another, with one folder of `state`: killed, stopped, and away for a while."""

import os
import random
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from clusters import Cluster
from processes import Declctl
from rest import pod
from waiting import until

from declctl.testing import BundleDir

_KILLS = 200 if os.environ.get("DECLCTL_SOAK") else 4
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: keeper}}
spec:
  namespaces: [{namespace}]
  state: {{path: state}}
  resources:
    - name: pods
      apiVersion: v1
      kind: Pod
      indexers: [{{name: byApp, fieldPath: metadata.labels.app}}]
    - {{name: secrets, apiVersion: v1, kind: Secret}}
  handlers:
    - {{name: tell, resourceRef: {{name: pods}}, entryPoint: "handlers:tell"}}
    - {{name: put, mode: Reconcile, resourceRef: {{name: pods}}, entryPoint: "handlers:put"}}
"""
HANDLERS = """\
import os
import time
from pathlib import Path

JOURNAL = os.open(Path(__file__).with_name("journal"), os.O_CREAT | os.O_APPEND | os.O_WRONLY)


def note(*words):
    os.write(JOURNAL, (" ".join(map(str, (time.time(), *words))) + "\\n").encode())


def tell(change, ctx):
    old = change.old.resource_version if change.old else "-"
    new = "-" if change.type == "Deleted" else change.obj.resource_version
    note("tell", change.obj.name, change.type, old, new)
    time.sleep(0.002)
    note("told", change.obj.name, change.type, old, new)


def put(request, ctx):
    time.sleep(0.002)
    note("put", request.name, "-", "-", request.obj.resource_version if request.obj else "-")
"""
# What was kept longer than this ago is known to the next process, also on a machine that does other work.
_KEPT_SECONDS = 2.0


class Noted(NamedTuple):
    """One line of what the handlers have noted; `-` is the version of an object that is not there."""

    at: float
    what: str
    name: str
    type: str
    old: str
    new: str


class Keeper:
    """The processes of one controller, and what the server has."""

    def __init__(self, cluster: Cluster, folder: Path, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        files = {"manifest.yaml": MANIFEST.format(namespace=namespace), "handlers.py": HANDLERS}
        self.bundle = BundleDir(folder, files)
        self.journal = folder / "journal"
        self.state = folder / "state" / "caches"

    @contextmanager
    def process(self, *, lists: int) -> Generator[Declctl]:
        """A process whose cache is that of the server, after so many LISTs and streaming lists of all."""
        before = self._lists()
        with Declctl(self.bundle.path, kubeconfig=self.cluster.kubeconfig) as declctl:
            declctl.wait_until_synced()
            self.agrees(declctl)
            assert self._lists() - before == lists
            yield declctl

    def versions(self) -> dict[str, str]:
        """The pods of the server, by name."""
        pods = self.cluster.rest.list("pods", self.namespace)
        return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in pods}

    def agrees(self, declctl: Declctl) -> None:
        """The cache has what the server has."""
        pods = {f"{self.namespace}/{name}": version for name, version in self.versions().items()}
        until("the cache is true", lambda: declctl.cache("pods") == pods)

    def noted(self) -> list[Noted]:
        """What handlers have noted in all processes."""
        lines = [each.split() for each in self.journal.read_text("utf-8").splitlines()]
        return [Noted(float(at), *rest) for at, *rest in lines]

    def has_heard_all(self) -> bool:
        """Both handlers know what the server has."""
        known = {
            what: {each.name: each.new for each in self.noted() if each.what == what}
            for what in ("told", "put")
        }
        there = self.versions()
        return all(
            {name: new for name, new in each.items() if new != "-"} == there for each in known.values()
        )

    @contextmanager
    def load(self, chance: random.Random) -> Generator[None]:
        """Changes, one after the other."""
        ended = threading.Event()

        def run() -> None:
            while not ended.is_set():
                self.change(chance, 1)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def change(self, chance: random.Random, times: int) -> None:
        """Some changes to pods."""
        for _ in range(times):
            name = f"pod-{chance.randrange(12)}"
            if not self.cluster.rest.is_there("pods", name, self.namespace):
                self.cluster.rest.create(pod(name, self.namespace))
            elif chance.random() < 0.4:
                self.cluster.rest.delete("pods", name, self.namespace)
            else:
                label = {"metadata": {"labels": {"n": str(chance.randrange(10**6))}}}
                self.cluster.rest.patch("pods", name, label, self.namespace)

    def _lists(self) -> int:
        return self.cluster.asked("list", "pods") + self.cluster.streamed("pods")


def check_told(noted: list[Noted], kills: list[float]) -> None:
    """Each process tells what differs from what the handler knew: nothing twice, and nothing is left out.

    What was told within `_KEPT_SECONDS` before a kill may be known or not.
    """
    for begin, kill in zip([*kills], [*kills[1:], float("inf")], strict=True):
        known = dict[str, set[str]]()  # by pod, what the handler may know at the beginning of this process
        for each in noted:
            if each.what == "told" and each.at < begin:
                before = known.get(each.name, {"-"})
                known[each.name] = {each.new} if each.at < begin - _KEPT_SECONDS else before | {each.new}
        for each in noted:
            if each.what == "tell" and begin <= each.at < kill:
                knew = known.get(each.name, {"-"})
                assert knew != {each.new}, f"{each} is told twice"
                if each.type == "Deleted":
                    assert knew != {"-"}, f"{each} was not there"
                else:
                    assert each.old in knew, f"{each}: the handler knew {knew}"
                known[each.name] = {each.new}


@pytest.mark.scenario
@pytest.mark.timeout(60 * _KILLS)
def test_killed_processes_leave_true_caches_and_no_lists(
    cluster: Cluster, tmp_path: Path, namespace: str
) -> None:
    """Wherever the kill falls: the next process begins with what was kept, and its handlers hear the rest."""
    keeper, chance, kills = Keeper(cluster, tmp_path, namespace), random.Random(7), [0.0]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": namespace}}
    cluster.rest.create({**secret, "stringData": {"password": "pass-of-nobody"}})
    keeper.change(chance, 20)
    with keeper.process(lists=1) as declctl:
        until("the caches are kept", keeper.state.exists)
        declctl.kill()
        kills.append(time.time())
    for _ in range(_KILLS):
        keeper.change(chance, 5)
        with keeper.process(lists=0) as declctl, keeper.load(chance):
            time.sleep(chance.random() * 3)
            declctl.kill()
            kills.append(time.time())
    with keeper.process(lists=0) as declctl:
        keeper.change(chance, 5)
        keeper.agrees(declctl)
        until("the handlers have heard all", keeper.has_heard_all)
        assert declctl.stop() == 0
    check_told(keeper.noted(), kills)
    assert b"pass-of-nobody" not in keeper.state.read_bytes()


@pytest.mark.scenario
def test_a_server_that_has_lost_the_history_is_listed(
    cluster: Cluster, tmp_path: Path, namespace: str
) -> None:
    """Its storage was compacted, or put back to a backup, while no process was there."""
    keeper, chance = Keeper(cluster, tmp_path, namespace), random.Random(3)
    keeper.change(chance, 20)
    with keeper.process(lists=1) as declctl:
        assert declctl.stop() == 0
    keeper.change(chance, 5)
    cluster.forget()
    with keeper.process(lists=1) as declctl:
        cluster.save(tmp_path / "backup")
        keeper.change(chance, 5)
        keeper.agrees(declctl)
        assert declctl.stop() == 0
    cluster.restore(tmp_path / "backup")
    keeper.change(chance, 3)
    with keeper.process(lists=1) as declctl:
        assert declctl.stop() == 0
