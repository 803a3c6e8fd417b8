"""Processes that follow one another, with one folder of `state`: killed, stopped, and away for a while."""

import os
import random
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from accounts import User
from clusters import Cluster, definition_of, new_namespace
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

    What was told within `_KEPT_SECONDS` before a kill may be known or not: so long after its start, a process
    has a file, and its marks are more frequent.
    """
    kept = 0.0  # what was told before this time is known
    for begin, kill in zip(kills, [*kills[1:], float("inf")], strict=True):
        known = dict[str, set[str]]()  # by pod, what the handler may know at the beginning of this process
        for each in noted:
            if each.what == "told" and each.at < begin:
                before = known.get(each.name, {"-"})
                known[each.name] = {each.new} if each.at < kept else before | {each.new}
        for each in noted:
            if each.what == "tell" and begin <= each.at < kill:
                knew = known.get(each.name, {"-"})
                # A Deleted may be of an object that came and went unheard.
                if each.type != "Deleted":
                    assert knew != {each.new}, f"{each} is told twice"
                    assert each.old in knew, f"{each}: the handler knew {knew}"
                known[each.name] = {each.new}
        first = min((each.at for each in noted if begin <= each.at < kill), default=kill)
        if first < kill - _KEPT_SECONDS:
            kept = kill - _KEPT_SECONDS


@pytest.mark.scenario
@pytest.mark.thorough
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


def state_of(declctl: Declctl, resource: str) -> str:
    """The state of a resource; empty while there is no status."""
    with suppress(StopIteration):
        return declctl.resource(resource)["state"]
    return ""


WIDGETS = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: keeper}}
spec:
  namespaces: [{namespace}]
  state: {{path: state}}
  resources: [{{name: widgets, apiVersion: state.test/v1, kind: Widget}}]
  handlers: [{{name: tell, resourceRef: {{name: widgets}}, entryPoint: "handlers:tell"}}]
"""


class Widgets:
    """Objects of a definition, and the processes of their controller."""

    def __init__(self, cluster: Cluster, folder: Path, namespace: str) -> None:
        self.rest, self.kubeconfig = cluster.rest, cluster.kubeconfig
        files = {"manifest.yaml": WIDGETS.format(namespace=namespace), "handlers.py": HANDLERS}
        self.bundle, self.journal = BundleDir(folder, files), folder / "journal"
        self.definition = definition_of("state.test", "widgets", "Widget")
        self.path = f"/apis/state.test/v1/namespaces/{namespace}/widgets"

    def define(self) -> None:
        """Create the definition."""
        self.rest.create(self.definition)
        until("the kind is served", lambda: self.rest.serves(self.path))

    def forget(self) -> None:
        """Delete the definition, and so all objects."""
        self.rest.delete("customresourcedefinitions", "widgets.state.test")
        until("the kind is gone", lambda: not self.rest.serves(self.path))

    def serve(self, *versions: str) -> None:
        """Serve these versions alone."""
        (kept,) = self.definition["spec"]["versions"]
        each = [
            {**kept, "name": name, "served": name in versions, "storage": name == "v1"}
            for name in ("v1", "v2")
        ]
        where = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.state.test"
        self.rest.request("PATCH", where, {"spec": {"versions": each}}, media="application/merge-patch+json")
        until("it is so", lambda: self.rest.serves(self.path) == ("v1" in versions))

    def make(self, *names: str) -> None:
        """Create objects."""
        for name in names:
            obj = {"apiVersion": "state.test/v1", "kind": "Widget", "metadata": {"name": name}}
            self.rest.request("POST", self.path, obj)

    @contextmanager
    def process(self, kubeconfig: Path | None = None) -> Generator[Declctl]:
        """A process; what its handler is told is forgotten before."""
        self.journal.write_text("", "utf-8")
        with Declctl(self.bundle.path, kubeconfig=kubeconfig or self.kubeconfig) as declctl:
            yield declctl
            assert declctl.stop() == 0

    def hears(self, *words: str) -> None:
        """The handler is told this, and nothing else."""

        def told() -> list[str]:
            lines = [each.split() for each in self.journal.read_text("utf-8").splitlines()]
            return sorted(f"{kind} {name}" for _, what, name, kind, *_ in lines if what == "told")

        until(f"it is told {words}", lambda: told() == sorted(words))


@pytest.fixture(name="widgets")
def _widgets(cluster: Cluster, tmp_path: Path, namespace: str) -> Generator[Widgets]:
    widgets = Widgets(cluster, tmp_path, namespace)
    widgets.define()
    yield widgets
    widgets.forget()


@pytest.mark.scenario
def test_a_kind_that_changes_while_no_process_is_there(widgets: Widgets) -> None:
    """It is defined anew, or a version is not served for a time: what is told is what has happened."""
    widgets.make("a", "b")
    with widgets.process() as declctl:
        declctl.wait_until_synced()
        widgets.hears("Added a", "Added b")
    widgets.forget()
    widgets.define()
    widgets.make("b", "c")
    with widgets.process() as declctl:
        declctl.wait_until_synced()
        widgets.hears("Deleted a", "Deleted b", "Added b", "Added c")
    widgets.serve("v2")
    widgets.rest.request("DELETE", f"{widgets.path.replace('v1', 'v2')}/b")
    with widgets.process() as declctl:
        until("it is missing", lambda: state_of(declctl, "widgets") == "Missing")
        widgets.hears()
        widgets.serve("v1", "v2")
        declctl.wait_until_synced()
        widgets.hears("Deleted b")


@pytest.mark.scenario
def test_a_token_without_rights_waits_for_them(real_cluster: Cluster, tmp_path: Path) -> None:
    """What was kept stays: with the rights, the process goes on without a list."""
    namespace = new_namespace(real_cluster)
    keeper = Keeper(real_cluster, tmp_path, namespace)
    for name in "ab":
        real_cluster.rest.create(pod(name, namespace))
    with keeper.process(lists=1) as declctl:
        assert declctl.stop() == 0
    real_cluster.rest.delete("pods", "a", namespace)
    user = User.create(real_cluster, "keeper", namespace)
    with Declctl(keeper.bundle.path, kubeconfig=user.kubeconfig(tmp_path / "kubeconfig")) as declctl:
        until("it is refused", lambda: any("forbidden" in each for each in declctl.err))
        rule = {"apiGroups": [""], "resources": ["pods", "secrets"], "verbs": ["list", "watch"]}
        user.grant(rule, namespace=namespace)
        declctl.wait_until_synced()
        keeper.agrees(declctl)
        until(
            "it is told",
            lambda: [each.type for each in keeper.noted() if each.what == "told"][2:] == ["Deleted"],
        )
        assert "without a list" in "\n".join(declctl.err)
        assert declctl.stop() == 0
