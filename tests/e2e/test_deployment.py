"""A Deployment comes, grows and goes, and every change that it makes is told."""

from pathlib import Path

import pytest
from bundles import Bundle
from clusters import Cluster, drop_namespace, new_namespace
from processes import Declctl
from rest import Watching
from waiting import until

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


def _deployment(namespace: str) -> dict[str, object]:
    labels = {"app": "web"}
    container = {"name": "web", "image": "registry.invalid/web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "web", "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def _told(witness: Watching, resource: str, namespace: str) -> list[str]:
    return [
        f"{_TYPES[kind]} {resource} {namespace}/{name} {version}" for kind, name, version in witness.events
    ]


@pytest.mark.real
def test_every_change_of_replicasets_and_pods_is_told_once(real_cluster: Cluster, tmp_path: Path) -> None:
    """Created, scaled to 5, deleted: each line is one change, in the server's order, and none is missing."""
    cluster = real_cluster
    if not cluster.has_controllers:
        pytest.skip("no kube-controller-manager beside the API server: nothing makes ReplicaSets")
    namespace = new_namespace(cluster)
    bundle = Bundle(tmp_path, MANIFEST.format(namespace=namespace))
    with Declctl(bundle.manifest, kubeconfig=cluster.kubeconfig) as declctl:
        declctl.wait_until_synced()
        witnesses = {name: cluster.rest.watch(name, namespace) for name in ("pods", "replicasets")}

        def number_of_pods() -> int:
            return len(cluster.rest.list("pods", namespace))

        cluster.rest.create(_deployment(namespace))
        until("there is a pod", lambda: number_of_pods() == 1)
        cluster.rest.patch("deployments", "web", {"spec": {"replicas": 5}}, namespace)
        until("there are five pods", lambda: number_of_pods() == 5)
        cluster.rest.delete("deployments", "web", namespace)
        until("all pods are gone", lambda: number_of_pods() == 0)
        until("the ReplicaSet is gone", lambda: not cluster.rest.list("replicasets", namespace))

        def printed(resource: str) -> list[str]:
            return [line for line in declctl.out if f" {resource} " in line]

        for resource, witness in witnesses.items():
            expected = until(
                f"every change of {resource} is told",
                lambda r=resource, w=witness: len(printed(r)) >= len(w.events) and _told(w, r, namespace),
            )
            assert printed(resource) == expected
            kinds = {line.split()[0] for line in expected}
            assert kinds >= {"Added", "Deleted"}
        assert declctl.stop() == 0
    drop_namespace(cluster, namespace)
