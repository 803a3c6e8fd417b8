"""A right that is missing: what can't be read is not taken for empty, and `doctor` names the right."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from accounts import User
from clusters import Cluster, SandboxCluster
from processes import Declctl, run
from rest import pod
from waiting import until

from declctl.errors import NotSynced
from declctl.informer import ResourceEventHandlerFuncs
from declctl.runtime.library import SharedInformerFactory
from declctl.sandbox.faults import Match
from declctl.testing import BundleDir
from declctl.transport import Client

NAMES = ("a", "b", "c")
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: sweeper}}
spec:
  namespaces: [{namespace}]
  resources:
    - {{name: pods, apiVersion: v1, kind: Pod}}
    - {{name: deployments, apiVersion: apps/v1, kind: Deployment}}
  handlers:
    - name: sweep
      resourceRef: {{name: pods}}
      entryPoint: handlers:sweep
      retry: {{maxAttempts: 2, initialBackoff: 50ms, maxBackoff: 200ms}}
  reload: {{settle: 50ms, warmTimeout: 3s, preflight: "Off"}}
  admin: {{bindAddress: "127.0.0.1:0"}}
"""
# As a handler that deletes every pod whose deployment is not there.
HANDLERS = """\
def sweep(obj, ctx):
    print("called", obj.name)
    there = ctx.listers["deployments"].get(f"{obj.namespace}/{obj.name}") is not None
    print("keep" if there else "delete", obj.name)
"""


class Rights:
    """A user who may read pods of a namespace and, once that is granted, deployments."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self.kubeconfig: dict[str, Any] = yaml.safe_load(cluster.kubeconfig.read_text("utf-8"))
        if isinstance(cluster, SandboxCluster):
            cluster.server.faults.refuse(
                403, Match(resource="deployments"), message="deployments is forbidden"
            )
            return
        self._user = User.create(cluster, "sweeper", namespace)
        self.kubeconfig["users"][0]["user"] = {"token": self._user.token}
        self._allow("pods", "")

    def grant(self) -> None:
        """Let it read deployments as well."""
        if isinstance(self._cluster, SandboxCluster):
            self._cluster.server.faults.clear()
        else:
            self._allow("deployments", "apps")

    def _allow(self, resource: str, group: str) -> None:
        rule = {"apiGroups": [group], "resources": [resource], "verbs": ["get", "list", "watch"]}
        self._user.grant(rule, namespace=self._user.namespace)


def _deployment(name: str, namespace: str) -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": "main", "image": "registry.invalid/nothing"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }


@pytest.fixture
def rights(cluster: Cluster, namespace: str) -> Rights:
    """There are pods, and a deployment for each; the user may read the pods alone."""
    for name in NAMES:
        cluster.rest.create(_deployment(name, namespace))
        cluster.rest.create(pod(name, namespace))
    return Rights(cluster, namespace)


def test_a_handler_deletes_nothing_for_want_of_a_right_to_read(
    rights: Rights, namespace: str, tmp_path: Path
) -> None:
    """It is called again and again, and acts when it can read; nobody has to start it again.

    `doctor` names the right that is missing, and not the one that is there.
    """
    files = {"manifest.yaml": MANIFEST.format(namespace=namespace), "handlers.py": HANDLERS}
    folder = BundleDir(tmp_path / "bundle", files)
    kubeconfig = tmp_path / "kubeconfig-of-the-user"
    kubeconfig.write_text(yaml.safe_dump(rights.kubeconfig), "utf-8")
    with Declctl(folder.path / "manifest.yaml", kubeconfig=kubeconfig) as declctl:
        until("each was called more often than attempts are", lambda: len(declctl.out) > 3 * len(NAMES))
        assert {line.split()[0] for line in tuple(declctl.out)} == {"called"}
        [handler] = declctl.status()["handlers"]
        assert (handler["failed"], handler["succeeded"], handler["retried"] > 0) == (0, 0, True)
        degraded = declctl.condition("Degraded")
        assert degraded["status"] == "True"
        assert "deployments" in degraded["message"]
        assert "forbidden" in degraded["message"]
        said = [line for line in tuple(declctl.err) if "grant list and watch" in line]
        assert len(said) == 1
        status, (refused,) = _doctor(folder.path, kubeconfig)
        assert (status, refused["state"]) == (1, "failed")
        assert f"you may not list or watch deployments in the namespace {namespace}" in refused["found"]

        rights.grant()
        kept = {f"keep {name}" for name in NAMES}
        until("each pod is kept", lambda: kept <= set(declctl.out), seconds=120)
        declctl.wait_until_synced()
        assert [line for line in declctl.out if line.startswith("delete")] == []
        assert _doctor(folder.path, kubeconfig)[0] == 0
        assert declctl.stop() == 0


def _doctor(folder: Path, kubeconfig: Path) -> tuple[int, list[dict[str, str]]]:
    """The exit status, and what is found about rights."""
    done = run("doctor", ".", "--kubeconfig", str(kubeconfig), "-o", "json", cwd=folder)
    assert done.stderr == ""
    return done.returncode, [each for each in json.loads(done.stdout)["checks"] if each["name"] == "rights"]


async def test_a_program_that_uses_the_library_takes_nothing_for_absent(
    rights: Rights, namespace: str
) -> None:
    """The lister of another informer raises in a handler, and gives what there is once it may be read."""
    seen: list[str] = []
    client = await Client.from_kubeconfig_dict(rights.kubeconfig)
    try:
        async with SharedInformerFactory(client, namespace=namespace) as factory:
            pods, deployments = factory.informer("v1", "Pod"), factory.informer("apps/v1", "Deployment")

            async def add(obj: Any, initial: bool) -> None:
                try:
                    there = str(obj.key) in deployments.lister
                except NotSynced:
                    seen.append("not synced")
                else:
                    seen.append("keep" if there else "delete")

            registration = pods.add_event_handler(ResourceEventHandlerFuncs(add=add))
            await registration.synced.wait()
            assert seen == ["not synced"] * len(NAMES)
            while not deployments.statistics().forbidden:
                await asyncio.sleep(0.01)
            with pytest.raises(NotSynced, match="forbidden"):
                deployments.lister.list()
            assert not deployments.lister.has_synced
            await asyncio.to_thread(rights.grant)
            await factory.wait_for_cache_sync(timeout=90)
            again = pods.add_event_handler(ResourceEventHandlerFuncs(add=add))
            await again.synced.wait()
    finally:
        await client.close()
    assert seen == ["not synced"] * len(NAMES) + ["keep"] * len(NAMES)
