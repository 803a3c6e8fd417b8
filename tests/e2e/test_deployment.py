"""A Deployment comes, grows and goes, and every change that it makes is told."""

from pathlib import Path

import pytest
from bundles import telling
from clusters import Cluster, drop_namespace, new_namespace
from processes import Declctl
from rest import Watching
from waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "06-third-party-plugin"
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: e2e}}
spec:
  namespaces: [{namespace}]
  resources:
    - {{name: pods, apiVersion: v1, kind: Pod}}
    - {{name: replicasets, apiVersion: apps/v1, kind: ReplicaSet}}
  handlers:
    - {{name: pods, resourceRef: {{name: pods}}, entryPoint: "handlers:tell"}}
    - {{name: replicasets, resourceRef: {{name: replicasets}}, entryPoint: "handlers:tell"}}
"""
_TYPES = {"ADDED": "Added", "MODIFIED": "Modified", "DELETED": "Deleted"}
pytestmark = pytest.mark.real


@pytest.fixture
def cluster(real_cluster: Cluster) -> Cluster:
    """A cluster in which a Deployment gets ReplicaSets and Pods."""
    if not real_cluster.has_controllers:
        pytest.skip("no kube-controller-manager beside the API server: nothing makes ReplicaSets")
    return real_cluster


def test_every_change_of_replicasets_and_pods_is_told_once(cluster: Cluster, tmp_path: Path) -> None:
    """Created, scaled to 5, deleted: each line is one change, in the server's order, and none is missing."""
    namespace = new_namespace(cluster)
    bundle = telling(tmp_path, MANIFEST, namespace=namespace)
    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        witnesses = _come_grow_and_go(cluster, namespace)
        for resource, witness in witnesses.items():
            expected = _events(witness, resource, namespace)
            assert _lines(declctl, resource, namespace, number=len(expected)) == expected
        assert declctl.stop() == 0
    drop_namespace(cluster, namespace)


def test_the_changelog_example_has_a_line_for_each_change(cluster: Cluster, plugins: dict[str, str]) -> None:
    """examples/06 prints what the README shows: a line for each change, and no other."""
    namespace = new_namespace(cluster)
    with Declctl(EXAMPLE, kubeconfig=cluster.kubeconfig, env=plugins) as declctl:
        declctl.wait_until_synced()
        witnesses = _come_grow_and_go(cluster, namespace)
        for resource, witness in witnesses.items():
            expected = [event.rpartition(" ")[0] for event in _events(witness, resource, namespace)]
            lines = _lines(declctl, resource, namespace, number=len(expected))
            assert [line.partition("  ")[0] for line in lines] == expected
        assert declctl.stop() == 0
    drop_namespace(cluster, namespace)


def _come_grow_and_go(cluster: Cluster, namespace: str) -> dict[str, Watching]:
    """The life of a Deployment, and plain watches that have seen it to its end."""
    witnesses = {name: cluster.rest.watch(name, namespace) for name in ("pods", "replicasets")}

    def pods() -> int:
        return len(cluster.rest.list("pods", namespace))

    cluster.rest.create(_deployment(namespace))
    until("there is a pod", lambda: pods() == 1)
    cluster.rest.patch("deployments", "web", {"spec": {"replicas": 5}}, namespace)
    until("there are five pods", lambda: pods() == 5)
    cluster.rest.delete("deployments", "web", namespace)
    for resource, witness in witnesses.items():
        until(f"all {resource} are gone", lambda w=witness: w.events and not w.living())
    return witnesses


def _deployment(namespace: str) -> dict[str, object]:
    labels = {"app": "web"}
    container = {"name": "web", "image": "registry.invalid/web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "web", "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def _events(witness: Watching, resource: str, namespace: str) -> list[str]:
    """What the witness saw, as lines."""
    return [
        f"{_TYPES[kind]} {resource} {namespace}/{name} {version}" for kind, name, version in witness.events
    ]


def _lines(declctl: Declctl, resource: str, namespace: str, *, number: int) -> list[str]:
    """The lines about a resource, once there are so many."""

    def found() -> list[str]:
        return [line for line in declctl.out if f" {resource} {namespace}/" in line]

    until(f"{number} changes of {resource} are told", lambda: len(found()) >= number)
    return found()
