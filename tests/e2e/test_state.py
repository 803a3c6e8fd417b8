"""Processes that follow one another, with one folder of `state`: killed, stopped, and away for a while."""

import os
import random
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bundles import telling
from clusters import Cluster
from processes import Declctl
from rest import pod
from waiting import until

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
"""


class Keeper:
    """The processes of one controller, and what the server has."""

    def __init__(self, cluster: Cluster, folder: Path, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.bundle = telling(folder, MANIFEST, namespace=namespace)
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

    def agrees(self, declctl: Declctl) -> None:
        """The cache has what the server has."""
        pods = {
            f"{self.namespace}/{each['metadata']['name']}": each["metadata"]["resourceVersion"]
            for each in self.cluster.rest.list("pods", self.namespace)
        }
        until("the cache is true", lambda: declctl.cache("pods") == pods)

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


@pytest.mark.scenario
def test_killed_processes_leave_true_caches_and_no_lists(
    cluster: Cluster, tmp_path: Path, namespace: str
) -> None:
    """Wherever the kill falls, the next process begins with what was kept, and is true; no Secret is kept."""
    keeper, chance = Keeper(cluster, tmp_path, namespace), random.Random(7)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": namespace}}
    cluster.rest.create({**secret, "stringData": {"password": "pass-of-nobody"}})
    keeper.change(chance, 20)
    with keeper.process(lists=1) as declctl:
        until("the caches are kept", keeper.state.exists)
        declctl.kill()
    for _ in range(_KILLS):
        keeper.change(chance, 5)
        with keeper.process(lists=0) as declctl:
            keeper.change(chance, chance.randrange(6))
            declctl.kill()
    with keeper.process(lists=0) as declctl:
        keeper.change(chance, 5)
        keeper.agrees(declctl)
        assert declctl.stop() == 0
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
