"""The objects of a sandbox for programs and tests, without HTTP; and the demo pods that change by themselves.

Everything here follows the rules of the HTTP side, with one liberty: `create` and `update` may bring a
status, because there is no controller that would write it. Not safe for threads: call it on the loop of the
server (`SandboxThread` does).

The demo pods come, get a node, run, are relabelled, restart, finish, fail and go, without a controller. A
random.Random draws the next change, so that a seed repeats all of them.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from declctl.errors import SandboxError
from declctl.kit import Clock
from declctl.objects import KubeObject
from declctl.sandbox import validation
from declctl.sandbox.history import EtcdHistory, key_of
from declctl.sandbox.kinds import Registry, ServedKind
from declctl.sandbox.patches import APPLY_PATCH, MERGE_PATCH, Patch
from declctl.sandbox.remover import Deletion, Remover, Target, Write
from declctl.sandbox.status import Refusal
from declctl.sandbox.writer import Writer

_HERE: Final = Write(direct=True, manager="sandbox")
_LOADED: Final = Write(direct=True, keep_uid=True, manager="sandbox")
_FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_NODES: Final = ("node-1", "node-2", "node-3")
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_PODS: Final = ("", "pods")


class ObjectStore:
    """Objects by kind.

    Kinds are named as people name them: `Pod`, `pods`, `po`, or `Event.events.k8s.io`; or are those of
    `served`.
    """

    def __init__(self, *, clock: Clock, chance: random.Random) -> None:
        self.registry = Registry()
        self.history = EtcdHistory()
        self.remover = Remover(self.history, self.registry, clock)
        self.writer = Writer(self.history, self.registry, self.remover, clock=clock, chance=chance)
        for name in _FIRST_NAMESPACES:
            self.ensure_namespace(name)

    @property
    def version(self) -> int:
        """The newest resource version."""
        return self.history.version

    def create(self, obj: KubeObject) -> KubeObject:
        """Create an object as it is written; returns it as stored.

        Raises SandboxError with the server's words.
        """
        kind = self._kind_of(obj)
        return _raising(lambda: self.writer.create(kind, _namespace(kind, obj), obj, _HERE))

    def update(self, obj: KubeObject) -> KubeObject:
        """Replace an object, status included.

        Without metadata.resourceVersion any present state is replaced.
        """
        kind = self._kind_of(obj)
        target = Target(kind, _namespace(kind, obj), obj["metadata"]["name"])
        return _raising(lambda: self.writer.replace(target, obj, _HERE))

    def apply(self, obj: KubeObject, *, manager: str) -> KubeObject:
        """Apply an object (server-side), status included; fields of other managers become the manager's."""
        kind = self._kind_of(obj)
        target = Target(kind, _namespace(kind, obj), str((obj.get("metadata") or {}).get("name", "")))
        write = Write(direct=True, manager=manager)
        patch = Patch(APPLY_PATCH, obj, force=True)
        return _raising(lambda: self.writer.patch(target, patch, write)[0])

    def patch(
        self,
        kind: str | ServedKind,
        name: str,
        patch: Any,
        *,
        namespace: str = "default",
        media_type: str = MERGE_PATCH,
    ) -> KubeObject:
        """Patch an object, status included; by default with a JSON merge patch."""
        target = Target(self.kind(kind), namespace, name)
        return _raising(lambda: self.writer.patch(target, Patch(media_type, patch), _HERE)[0])

    def delete(self, kind: str | ServedKind, name: str, namespace: str | None = None) -> KubeObject:
        """Delete an object (or mark it, if it has finalizers); returns its last state."""
        target = Target(self.kind(kind), namespace or "default", name)
        return _raising(lambda: self.remover.delete(target, Deletion())[0])

    def get(self, kind: str | ServedKind, name: str, namespace: str | None = None) -> KubeObject:
        """One object; raises SandboxError if there is none."""
        target = Target(self.kind(kind), namespace or "default", name)
        return _raising(lambda: self.writer.existing(target).rendered(target.kind))

    def objects(self, kind: str | ServedKind, namespace: str | None = None) -> list[KubeObject]:
        """All objects of a kind, in the order of their namespaces and names."""
        served = self.kind(kind)
        snapshot = self.history.collection(served.resource).present(self.version)
        return [stored.rendered(served) for stored in snapshot.within(namespace or "")]

    def everything(self) -> list[KubeObject]:
        """All objects of all kinds, each once, in the order of discovery, namespaces and names."""
        kinds = {
            served.resource: served for served in reversed(self.registry.served()) if not served.is_review
        }
        return [
            stored.rendered(served)
            for served in reversed(kinds.values())
            for stored in self.history.collection(served.resource).present(self.version)
        ]

    def load(self, documents: Iterable[KubeObject]) -> list[str]:
        """Create objects, definitions and namespaces first; returns `kind/name` lines in that order.

        The items of lists are created on their own, and namespaces that are missing. An object that was
        there before the call is replaced, and keeps its uid. Other objects have the uids of their documents,
        so that owner references lead to their owners. Raises SandboxError, which counts documents from 0.
        """
        entries = sorted(_flat(documents), key=lambda entry: _rank(entry[1]))
        lines: list[str] = []
        done: set[tuple[str, str, str]] = set()
        for index, obj in entries:
            try:
                lines += self._load_one(obj, done)
            except SandboxError as error:
                raise SandboxError(f"document {index}: {_described(obj)}: {error}") from error
        return lines

    def ensure_namespace(self, name: str) -> bool:
        """Create a namespace if it isn't there; says whether it was created."""
        if self.history.get(("", "namespaces"), name) is not None:
            return False
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return True

    def served(self, api_version: str, kind: str) -> ServedKind:
        """The kind of objects that say so; raises SandboxError if there is none."""
        return self._kind_of({"apiVersion": api_version, "kind": kind})

    def kind(self, word: str | ServedKind) -> ServedKind:
        """The kind that a word names; raises SandboxError if there is none."""
        if isinstance(word, ServedKind):
            return word
        kind = self.registry.find(word)
        if kind is None:
            raise SandboxError(
                f"the sandbox serves no kind {word!r}: create its CustomResourceDefinition first"
            )
        return kind

    def _load_one(self, obj: KubeObject, done: set[tuple[str, str, str]]) -> list[str]:
        kind = self._kind_of(obj)
        lines: list[str] = []
        namespace = _namespace(kind, obj)
        if kind.namespaced and self.ensure_namespace(namespace):
            lines.append(f"namespace/{namespace}")
        name = (obj.get("metadata") or {}).get("name", "")
        target = Target(kind, namespace, name)
        identity = (*kind.resource, target.key)
        metadata = {**(obj.get("metadata") or {})}
        metadata.pop("resourceVersion", None)  # of the cluster from which the file was exported
        # Two documents of one name in one load are a fault, and `create` refuses the second.
        if name and identity not in done and self.history.get(kind.resource, target.key) is not None:
            metadata.pop("uid", None)
            stored = self.update({**obj, "metadata": metadata})
        else:
            created = {**obj, "metadata": metadata}
            stored = _raising(lambda: self.writer.create(kind, namespace, created, _LOADED))
        done.add(identity)
        return [*lines, f"{kind.singular}/{stored['metadata']['name']}"]

    def _kind_of(self, obj: KubeObject) -> ServedKind:
        kind = self.registry.of(obj)
        if kind is None:
            raise SandboxError(
                f"the sandbox serves no kind {obj.get('kind')!r} in {obj.get('apiVersion')!r}: check both, "
                "or create its CustomResourceDefinition first"
            )
        return kind


def _raising(call: Any) -> Any:
    """Turn a refusal of the call into a SandboxError with the server's words."""
    try:
        with validation.readable("the object"):
            return call()
    except Refusal as refusal:
        raise SandboxError(str(refusal)) from refusal


def _namespace(kind: ServedKind, obj: KubeObject) -> str:
    return str((obj.get("metadata") or {}).get("namespace") or "default") if kind.namespaced else ""


def _flat(documents: Iterable[Any]) -> Iterable[tuple[int, KubeObject]]:
    for index, document in enumerate(documents):
        if document is None:  # an empty YAML document
            continue
        if not isinstance(document, dict):
            raise SandboxError(f"document {index}: expected an object, found {type(document).__name__}")
        if str(document.get("kind", "")).endswith("List") and isinstance(document.get("items"), list):
            kind = document["kind"].removesuffix("List")
            for item in document["items"]:  # the items of a PodList may leave out what the list says
                yield index, {"apiVersion": document.get("apiVersion"), "kind": kind, **item}
        else:
            yield index, document


def _rank(obj: KubeObject) -> int:
    return {"CustomResourceDefinition": 0, "Namespace": 1}.get(str(obj.get("kind")), 2)


def _described(obj: KubeObject) -> str:
    name = (obj.get("metadata") or {}).get("name", "(no name)")
    return f"{obj.get('kind', '(no kind)')} {name}"


@dataclass(frozen=True, slots=True)
class Workload:
    """The owner of demo pods: `replicas` of them live at a time; those of a `job` finish."""

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
class DemoPod:
    """One pod; `stage` is pending, scheduled, starting, running or done."""

    workload: Workload
    name: str
    stage: str = "pending"


class Churn:
    """Makes the changes. A pod that a client deletes is replaced by another one."""

    def __init__(self, store: ObjectStore, *, clock: Clock, chance: random.Random) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance
        self._lives: list[DemoPod] = []  # the pods that it created and has not deleted

    def begin(self) -> None:
        """Create what the pods need: the namespace and the nodes. What is there already stays."""
        history = self._store.history
        self._store.ensure_namespace("demo")
        for name in _NODES:
            if history.get(("", "nodes"), name) is None:
                ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
                info = {"kubeletVersion": "v1.36.0"}
                node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
                self._store.create({**node, "status": {"conditions": [ready], "nodeInfo": info}})

    def step(self) -> None:
        """Make one change."""
        # A person may have deleted some with kubectl.
        self._lives = [life for life in self._lives if self._exists(life)]
        missing = [w for w in WORKLOADS if sum(life.workload is w for life in self._lives) < w.replicas]
        unsettled = [
            life for life in self._lives if life.stage in ("pending", "scheduled", "starting", "done")
        ]
        # A cluster that is not yet as it should be is busier than one that is.
        if not self._lives or (missing and self._chance.random() < (0.35 if unsettled else 0.8)):
            self._create(self._chance.choice(missing))
        else:
            self._advance(self._chance.choice(unsettled or self._lives))

    def _exists(self, life: DemoPod) -> bool:
        return self._store.history.get(_PODS, key_of(life.workload.namespace, life.name)) is not None

    def _create(self, workload: Workload) -> None:
        self._store.ensure_namespace(workload.namespace)  # a client may have deleted it
        name = f"{workload.name}-{workload.template_hash}-{''.join(self._chance.choices(_ALPHABET, k=5))}"
        life = DemoPod(workload, name)
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

    def _advance(self, life: DemoPod) -> None:
        match life.stage:
            case "pending":
                life.stage = "scheduled"
                self._patch(life, {"spec": {"nodeName": self._chance.choice(_NODES)}})
            case "scheduled":
                life.stage = "starting"
                self._patch(life, {"status": self._status(life, "Pending", waiting="ContainerCreating")})
            case "starting":
                life.stage = "running"
                ip = f"10.244.{self._chance.randint(1, 3)}.{self._chance.randint(2, 250)}"
                status = {**self._status(life, "Running"), "podIP": ip, "startTime": self._now()}
                self._patch(life, {"status": status})
            case "running":
                self._live_on(life)
            case _:
                self._delete(life)

    def _live_on(self, life: DemoPod) -> None:
        if life.workload.job:
            life.stage = "done"
            failed = self._chance.random() < 0.25
            status = self._status(life, "Failed" if failed else "Succeeded", code=int(failed))
            self._patch(life, {"status": status})
            return
        draw = self._chance.random()
        if draw < 0.4:
            self._delete(life)
        elif draw < 0.75:
            version = self._chance.choice(("v2", "v3", "v4"))
            self._patch(life, {"metadata": {"labels": {"version": version}}})
        else:
            restarts = self._chance.randint(1, 4)
            self._patch(life, {"status": self._status(life, "Running", restarts=restarts)})

    def _delete(self, life: DemoPod) -> None:
        self._store.delete("Pod", life.name, life.workload.namespace)
        self._lives.remove(life)

    def _patch(self, life: DemoPod, patch: KubeObject) -> None:
        self._store.patch("Pod", life.name, patch, namespace=life.workload.namespace)

    def _status(
        self, life: DemoPod, phase: str, *, waiting: str = "", code: int | None = None, restarts: int = 0
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
