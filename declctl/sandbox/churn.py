"""A lively cluster for demos.

Pods that come, get a node, run, are relabelled, restart, finish, fail and go. No controller behind it.

One `step` is one change. Which one is drawn from a random.Random, so that a seed repeats a life.
"""

import random
from dataclasses import dataclass
from typing import Final

from declctl.kit import Clock
from declctl.objects import KubeObject
from declctl.sandbox.history import key_of
from declctl.sandbox.store import ObjectStore

_NODES: Final = ("node-1", "node-2", "node-3")
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_PODS: Final = ("", "pods")


@dataclass(frozen=True, slots=True)
class Workload:
    """What pods belong to; `replicas` live at a time, and those of a `job` finish."""

    name: str
    namespace: str
    template_hash: str
    image: str
    replicas: int
    job: bool = False


WORKLOADS: Final = (
    Workload("web", "demo", "7d4b9c", "nginx:1.29", 4),
    Workload("api", "demo", "5f6d8b", "ghcr.io/example/api:2.4.1", 3),
    Workload("cache", "default", "6c8f5d", "redis:8", 2),
    Workload("backup", "default", "29384", "ghcr.io/example/backup:1.0", 2, job=True),
)


@dataclass(slots=True)
class Life:
    """One pod and what has happened to it so far."""

    workload: Workload
    name: str
    stage: str = "pending"


class Churn:
    """Makes the changes. Pods that somebody else deletes are forgotten and replaced."""

    def __init__(self, store: ObjectStore, *, clock: Clock, chance: random.Random) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance
        self._lives: list[Life] = []

    def begin(self) -> None:
        """Create what the pods need: the namespace and the nodes. What is there already stays."""
        history = self._store.history
        if history.get(("", "namespaces"), "demo") is None:
            self._store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}})
        for name in _NODES:
            if history.get(("", "nodes"), name) is None:
                ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
                info = {"kubeletVersion": "v1.36.0"}
                node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
                self._store.create({**node, "status": {"conditions": [ready], "nodeInfo": info}})

    def step(self) -> str:
        """One change; returns what it was, such as `demo/web-7d4b9c-x2k4v: running`."""
        self._lives = [life for life in self._lives if self._exists(life)]
        missing = [w for w in WORKLOADS if sum(life.workload is w for life in self._lives) < w.replicas]
        unsettled = [
            life for life in self._lives if life.stage in ("pending", "scheduled", "starting", "done")
        ]
        # A cluster that is not yet as it should be is busier than one that is.
        if not self._lives or (missing and self._chance.random() < (0.35 if unsettled else 0.8)):
            return self._create(self._chance.choice(missing))
        return self._advance(self._chance.choice(unsettled or self._lives))

    def _exists(self, life: Life) -> bool:
        return self._store.history.get(_PODS, key_of(life.workload.namespace, life.name)) is not None

    def _create(self, workload: Workload) -> str:
        if self._store.history.get(("", "namespaces"), workload.namespace) is None:
            self.begin()
        name = f"{workload.name}-{workload.template_hash}-{''.join(self._chance.choices(_ALPHABET, k=5))}"
        life = Life(workload, name)
        labels = {"app": workload.name, "pod-template-hash": workload.template_hash, "version": "v1"}
        container = {"name": workload.name, "image": workload.image}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": workload.namespace, "labels": labels},
            "spec": {"containers": [container], "restartPolicy": "Never" if workload.job else "Always"},
            "status": {"phase": "Pending"},
        }
        self._store.create(pod)
        self._lives.append(life)
        return self._told(life, "created")

    def _advance(self, life: Life) -> str:
        match life.stage:
            case "pending":
                life.stage = "scheduled"
                return self._patch(life, {"spec": {"nodeName": self._chance.choice(_NODES)}})
            case "scheduled":
                life.stage = "starting"
                return self._patch(
                    life, {"status": self._status(life, "Pending", waiting="ContainerCreating")}
                )
            case "starting":
                life.stage = "running"
                ip = f"10.244.{self._chance.randint(1, 3)}.{self._chance.randint(2, 250)}"
                status = {**self._status(life, "Running"), "podIP": ip, "startTime": self._now()}
                return self._patch(life, {"status": status})
            case "running":
                return self._live_on(life)
            case _:
                return self._delete(life)

    def _live_on(self, life: Life) -> str:
        if life.workload.job:
            life.stage = "done"
            failed = self._chance.random() < 0.25
            status = self._status(life, "Failed" if failed else "Succeeded", code=int(failed))
            return self._patch(life, {"status": status})
        draw = self._chance.random()
        if draw < 0.4:
            return self._delete(life)
        if draw < 0.75:
            return self._patch(
                life, {"metadata": {"labels": {"version": self._chance.choice(("v2", "v3", "v4"))}}}
            )
        restarts = self._chance.randint(1, 4)
        return self._patch(life, {"status": self._status(life, "Running", restarts=restarts)})

    def _delete(self, life: Life) -> str:
        self._store.delete("Pod", life.name, life.workload.namespace)
        self._lives.remove(life)
        return f"{life.workload.namespace}/{life.name}: deleted"

    def _patch(self, life: Life, patch: KubeObject) -> str:
        self._store.patch("Pod", life.name, patch, namespace=life.workload.namespace)
        return self._told(life, life.stage)

    def _status(
        self, life: Life, phase: str, *, waiting: str = "", code: int | None = None, restarts: int = 0
    ) -> KubeObject:
        if waiting:
            state: KubeObject = {"waiting": {"reason": waiting}}
        elif code is not None:
            reason = "Error" if code else "Completed"
            state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": self._now()}}
        else:
            state = {"running": {"startedAt": self._now()}}
        ready = "running" in state
        container = {
            "name": life.workload.name,
            "image": life.workload.image,
            "ready": ready,
            "restartCount": restarts,
            "state": state,
        }
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": self._now()}
        return {"phase": phase, "conditions": [condition], "containerStatuses": [container]}

    def _now(self) -> str:
        return self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _told(self, life: Life, what: str) -> str:
        return f"{life.workload.namespace}/{life.name}: {what}"
