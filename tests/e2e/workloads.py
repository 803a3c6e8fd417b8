"""A Deployment of examples/08, and what schedulers, kubelets and controllers do for its pods."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clusters import Cluster
from rest import Refused
from waiting import until

_GUARD, _GUARDED = "example.dev/guard", "example.dev/Guarded"
_HASH = "7d4b9c"  # of the pod template, in the sandbox


class Workload:
    """One Deployment. Its pods get their nodes from `run`: there is no scheduler that would choose them."""

    def __init__(self, cluster: Cluster, namespace: str, name: str = "web") -> None:
        self._cluster = cluster
        self._rest = cluster.rest
        self._namespace = namespace
        self.name = name

    def create(self, replicas: int, **labels: str) -> None:
        """Create the Deployment, with `guard="true"` as its label, or without."""
        template = self._template()
        selector = {"matchLabels": {"app": self.name}}
        self._rest.create(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {
                    "name": self.name,
                    "namespace": self._namespace,
                    "labels": {f"example.dev/{name}": value for name, value in labels.items()},
                },
                "spec": {"replicas": replicas, "selector": selector, "template": template},
            }
        )

    def get(self) -> Any:
        """The Deployment; None if it is gone."""
        return self._found("deployments")

    def change(self, **spec: Any) -> None:
        """Change fields of the spec."""
        self._rest.patch("deployments", self.name, {"spec": spec}, self._namespace)

    def label(self, value: str | None) -> None:
        """Set the label of the guard, or remove it."""
        patch = {"metadata": {"labels": {_GUARD: value}}}
        self._rest.patch("deployments", self.name, patch, self._namespace)

    def delete(self, policy: str = "Background") -> None:
        """Delete the Deployment, and what it owns as the policy says."""
        path = f"/apis/apps/v1/namespaces/{self._namespace}/deployments/{self.name}"
        self._rest.request("DELETE", path, {"propagationPolicy": policy})

    def run(self, *nodes: str) -> None:
        """Let one more pod on each of the nodes be ready."""
        if not self._cluster.has_controllers:
            self._make_pods(nodes)
        until(f"{len(nodes)} pods wait", lambda: len(self._waiting()) >= len(nodes))
        for pod, node in zip(self._waiting(), nodes, strict=False):
            self._run(pod, node)

    def run_waiting(self, *nodes: str) -> None:
        """Let all pods that wait be ready, on the nodes in turn."""
        for pod, node in zip(self._waiting(), itertools.cycle(nodes), strict=False):
            self._run(pod, node)

    def stop(self, node: str) -> None:
        """Let the pods on a node be ready no more."""
        for pod in self._pods():
            if pod["spec"].get("nodeName") == node:
                self._mark(pod, ready="False")

    def roll_out(self) -> None:
        """Change the pod template."""
        self.change(template={"spec": {"terminationGracePeriodSeconds": 5}})

    def condition(self, kind: str = _GUARDED) -> dict[str, Any]:
        """A condition of the Deployment; empty if it has none of that type."""
        conditions = (self.get().get("status") or {}).get("conditions") or ()
        return next((each for each in conditions if each["type"] == kind), {})

    def verdict(self) -> tuple[str, str] | None:
        """Status and reason of the condition of the guard."""
        found = self.condition()
        return (found["status"], found["reason"]) if found else None

    def budget(self) -> Any:
        """The PodDisruptionBudget; None if there is none."""
        return self._found("poddisruptionbudgets")

    def most(self) -> int | None:
        """The pods that may be evicted at a time; None without a budget."""
        found = self.budget()
        return found and found["spec"]["maxUnavailable"]

    def drop_budget(self) -> None:
        """Delete the budget."""
        self._rest.delete("poddisruptionbudgets", self.name, self._namespace)

    def events(self) -> list[tuple[str, str, str]]:
        """Type, reason and note of the Events of the guard about the Deployment, the oldest first."""
        path = f"/apis/events.k8s.io/v1/namespaces/{self._namespace}/events"
        found = [
            each
            for each in self._rest.request("GET", path)["items"]
            if each.get("reportingController") == "deployment-guard"
            and (each["regarding"]["kind"], each["regarding"]["name"]) == ("Deployment", self.name)
        ]
        found.sort(key=lambda each: each["eventTime"])
        return [(each["type"], each["reason"], each["note"]) for each in found]

    def _run(self, pod: Any, node: str) -> None:
        if "nodeName" not in pod["spec"]:
            name = pod["metadata"]["name"]
            path = f"/api/v1/namespaces/{self._namespace}/pods/{name}/binding"
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            self._rest.request("POST", path, binding)
        self._mark(pod, ready="True")

    def _mark(self, pod: Any, *, ready: str) -> None:
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}
        name = pod["metadata"]["name"]
        self._rest.patch("pods", name, {"status": status}, self._namespace, sub="status")

    def _waiting(self) -> list[Any]:
        return [
            pod
            for pod in self._pods()
            if not (pod.get("status") or {}).get("conditions") and "deletionTimestamp" not in pod["metadata"]
        ]

    def _pods(self) -> list[Any]:
        found = self._rest.list("pods", self._namespace)
        return [pod for pod in found if pod["metadata"]["labels"]["app"] == self.name]

    def _found(self, plural: str) -> Any:
        try:
            return self._rest.get(plural, self.name, self._namespace)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def _template(self, **labels: str) -> dict[str, Any]:
        # No scheduler of a given cluster places the pods.
        container = {"name": "main", "image": "registry.invalid/nothing"}
        spec = {"schedulerName": "nobody", "containers": [container]}
        return {"metadata": {"labels": {"app": self.name, **labels}}, "spec": spec}

    def _make_pods(self, nodes: tuple[str, ...]) -> None:
        """A ReplicaSet, if there is none, and a pod of it for each node: what controllers would make."""
        name, labels = f"{self.name}-{_HASH}", {"app": self.name, "pod-template-hash": _HASH}
        metadata: dict[str, Any] = {"name": name, "namespace": self._namespace, "labels": labels}
        if not self._rest.is_there("replicasets", name, self._namespace):
            spec = {
                "selector": {"matchLabels": labels},
                "template": self._template(**{"pod-template-hash": _HASH}),
            }
            owned = {**metadata, "ownerReferences": [_reference(self.get())]}
            self._rest.create(
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": owned, "spec": spec}
            )
        reference = _reference(self._rest.get("replicasets", name, self._namespace))
        for number, node in enumerate(nodes, len(self._pods())):
            owned = {**metadata, "name": f"{name}-{number}", "ownerReferences": [reference]}
            spec = {**self._template()["spec"], "nodeName": node}
            self._rest.create({"apiVersion": "v1", "kind": "Pod", "metadata": owned, "spec": spec})


def _reference(owner: Any) -> dict[str, Any]:
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


@contextmanager
def two_nodes(cluster: Cluster, prefix: str) -> Iterator[tuple[str, str]]:
    """The names of two nodes for the length of the context. No kubelet runs on them."""
    names = f"{prefix}-a", f"{prefix}-b"
    for name in names:
        cluster.rest.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    try:
        yield names
    finally:
        for name in names:
            cluster.rest.delete("nodes", name)
