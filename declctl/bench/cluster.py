"""The cluster of a measurement: an API server in this process, with objects for a manifest.

The objects are made from samples, or have little more than metadata. During a measurement they change at a
steady rate, and each change is recorded.
"""

import hashlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import yaml

from declctl.manifest import Plan
from declctl.manifest.plan import ResourcePlan
from declctl.objects import FieldSelector, KubeObject, LabelSelector, key_of
from declctl.objects.resource import GroupVersionKind
from declctl.sandbox import LedgerEntry, SandboxThread
from declctl.sandbox.kinds import BUILT_IN

_DEFINITION: Final = "CustomResourceDefinition"
_OF_THE_SERVER: Final = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generateName")
_APPS, _NODES = 50, 20


def definitions(plan: Plan, samples: Sequence[KubeObject]) -> Iterator[KubeObject]:
    """The custom kinds of a manifest: those among the samples, and for each other one a plain definition.

    A kind without a definition among the samples is defined as namespaced.
    """
    given = [sample for sample in samples if sample.get("kind") == _DEFINITION]
    yield from given
    known = {(kind.api_version, kind.kind) for kind in BUILT_IN}
    for definition in given:
        spec = definition["spec"]
        versions = [version["name"] for version in spec["versions"]]
        known |= {(f"{spec['group']}/{version}", spec["names"]["kind"]) for version in versions}
    for resource in plan.resources:
        if (named := _kind(resource)) not in known:
            known.add(named)
            yield _definition(GroupVersionKind.of(*named))


def selected_namespaces(plan: Plan) -> Iterator[KubeObject]:
    """Two namespaces for each selector of namespaces, with labels that it matches."""
    for selector in dict.fromkeys(filter(None, (each.namespace_selector for each in plan.resources))):
        for name in _namespaces_with(selector):
            metadata = {"name": name, "labels": _selected(selector)}
            yield {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


class ObjectMaker:
    """Makes objects of one resource, each with a new name if the resource allows it.

    An object is a copy of a sample of its kind, or has little more than metadata. Its namespace and labels
    are those that the resource selects. The iteration ends if the resource names its objects, and all of them
    are made.
    """

    def __init__(self, resource: ResourcePlan, samples: Sequence[KubeObject]) -> None:
        self.resource = resource.name
        named = [
            sample for sample in samples if (sample.get("apiVersion"), sample.get("kind")) == _kind(resource)
        ]
        self._samples = named or [_made_up(*_kind(resource))]
        self._is_pod = not named and _kind(resource) == ("v1", "Pod")
        self._names = iter(_names(resource)) if _names(resource) else None
        self._namespaces = (None,) if _is_cluster_scoped(resource) else _namespaces_of(resource)
        self._labels = _selected(resource.watches[0].label_selector)
        self._numbers = itertools.count()

    def __iter__(self) -> Iterator[KubeObject]:
        return self

    def __next__(self) -> KubeObject:
        number = next(self._numbers)
        name = f"bench-{number:06}" if self._names is None else next(self._names)
        made: KubeObject = deepcopy(self._samples[number % len(self._samples)])
        metadata = {k: v for k, v in (made.get("metadata") or {}).items() if k not in _OF_THE_SERVER}
        made["metadata"] = metadata
        metadata["name"] = name
        # Spread over the namespaces that the resource watches, so that each watch has events.
        if namespace := self._namespaces[number % len(self._namespaces)]:
            metadata["namespace"] = namespace
        metadata["labels"] = {
            "app": f"app-{number % _APPS}",
            **(metadata.get("labels") or {}),
            **self._labels,
        }
        if self._is_pod:
            made["spec"]["nodeName"] = f"node-{number % _NODES}"
        return made


def _kind(resource: ResourcePlan) -> tuple[str, str]:
    key = resource.watches[0]
    return key.api_version, key.kind


def _is_cluster_scoped(resource: ResourcePlan) -> bool:
    return any((k.api_version, k.kind) == _kind(resource) and not k.namespaced for k in BUILT_IN)


def _namespaces_of(resource: ResourcePlan) -> Sequence[str | None]:
    if resource.namespace_selector:
        return _namespaces_with(resource.namespace_selector)
    return resource.namespaces or (None,)


def _namespaces_with(selector: str) -> Sequence[str]:
    """The names of the namespaces that are made for a selector."""
    digest = hashlib.sha256(selector.encode()).hexdigest()[:8]
    return tuple(f"bench-{digest}-{number}" for number in range(2))


def _names(resource: ResourcePlan) -> list[str]:
    """The names of the objects, if the resource watches single objects."""
    selectors = [FieldSelector.parse(key.field_selector) for key in resource.watches]
    found = [c for selector in selectors for c in selector.conditions]
    return list(
        dict.fromkeys(value for path, operator, value in found if (path, operator) == ("metadata.name", "="))
    )


def _selected(selector: str) -> dict[str, str]:
    """Labels that a selector matches, as far as it requires any."""
    labels: dict[str, str] = {}
    for one in LabelSelector.parse(selector).requirements:
        if one.operator == "In":
            labels[one.key] = one.values[0]
        elif one.operator == "Exists":
            labels.setdefault(one.key, "bench")
    return labels


def _made_up(api_version: str, kind: str) -> KubeObject:
    plain: KubeObject = {"apiVersion": api_version, "kind": kind, "metadata": {}}
    if (api_version, kind) != ("v1", "Pod"):
        return plain if kind in ("ConfigMap", "Secret", "Event") else {**plain, "spec": {}}
    resources: dict[str, Any] = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}
    container = {"name": "main", "image": "registry.example/app:1.4.2", "resources": resources}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    state = {"name": "main", "ready": True, "restartCount": 0, "image": "registry.example/app:1.4.2"}
    return {
        **plain,
        "spec": {"containers": [container], "restartPolicy": "Always", "serviceAccountName": "default"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.7",
            "conditions": [ready],
            "containerStatuses": [state],
        },
    }


def _definition(kind: GroupVersionKind) -> KubeObject:
    plural = f"{kind.kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": _DEFINITION,
        "metadata": {"name": f"{plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": plural, "singular": kind.kind.lower()},
            "versions": [version],
        },
    }


_LABEL: Final = "declctl.dev/bench-change"
_CYCLE: Final = ("Modified", "Modified", "Modified", "Added", "Deleted")
_YOUNG: Final = 10  # newly created objects; an older one is deleted when all handlers have received it


class RecordedChange(msgspec.Struct, frozen=True):
    """One change: its object, its time (monotonic seconds), and the new resource version."""

    type: str
    resource: str
    key: str
    version: int
    at: float


class LoadGenerator:
    """Makes `rate` changes each second: mostly updates, some new objects, and deletions of these.

    Changes are made inside a `with` block, of which there may be several in turn. `made` only grows. An
    exception of a change is raised at the end of the block.
    """

    def __init__(
        self,
        server: SandboxThread,
        objects: Sequence[tuple[str, KubeObject]],
        makers: Sequence[ObjectMaker],
        *,
        rate: float,
    ) -> None:
        self.made: list[RecordedChange] = []
        self._server = server
        self._objects = objects
        self._makers = makers
        self._pause = 1 / rate
        self._young: deque[tuple[str, KubeObject]] = deque()
        self._number = 0
        self._ended = threading.Event()
        self._fault: Exception | None = None
        self._thread: threading.Thread | None = None

    @property
    def version(self) -> int:
        """The version of the newest change; 0 before the first."""
        return self.made[-1].version if self.made else 0

    def __enter__(self) -> Self:
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, name="changes", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._fault is not None and (kind is None or issubclass(kind, Exception)):
            raise self._fault  # the reason for which the condition did not come true

    def wait(self, seconds: float) -> None:
        """Return after `seconds` of changes, or when a change has failed."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        due = time.monotonic()
        try:
            # A due time instead of a pause keeps the rate, however long a change takes.
            while not self._ended.wait(max(0.0, due - time.monotonic())):
                self.step()
                due += self._pause
        except Exception as fault:  # noqa: BLE001 - raised again at the end
            self._fault = fault

    def step(self) -> None:
        """Make the next change, and record it."""
        kind = _CYCLE[self._number % len(_CYCLE)]
        if kind == "Added":
            self._create()
        elif kind == "Deleted" and len(self._young) > _YOUNG:
            resource, obj = self._young.popleft()
            metadata = obj["metadata"]
            at = time.monotonic()
            gone = self._server.delete(_word(obj), metadata["name"], metadata.get("namespace"))
            self._note(kind, resource, gone, at)
        else:
            resource, obj = self._objects[self._number % len(self._objects)]
            at = time.monotonic()
            self._note("Modified", resource, label(self._server, obj, _LABEL, str(time.monotonic_ns())), at)
        self._number += 1

    def _create(self) -> None:
        maker = self._makers[self._number // len(_CYCLE) % len(self._makers)]
        obj = next(maker, None)
        if obj is None:
            return  # the resource names its objects, and all exist
        at = time.monotonic()
        made = self._server.create(obj)
        self._young.append((maker.resource, made))
        self._note("Added", maker.resource, made, at)

    def _note(self, kind: str, resource: str, obj: KubeObject, at: float) -> None:
        metadata = obj["metadata"]
        key = key_of(metadata.get("namespace"), metadata["name"])
        self.made.append(RecordedChange(kind, resource, key, int(metadata["resourceVersion"]), at))


def label(server: SandboxThread, obj: KubeObject, name: str, value: str | None) -> KubeObject:
    """Set a label of an object, or remove it with None; returns the changed object."""
    metadata = obj["metadata"]
    patch = {"metadata": {"labels": {name: value}}}
    return server.patch(_word(obj), metadata["name"], patch, namespace=metadata.get("namespace") or "default")


def _word(obj: KubeObject) -> str:
    """The name of the kind for the sandbox."""
    group, _, _ = obj["apiVersion"].rpartition("/")
    return f"{obj['kind']}.{group}" if group else obj["kind"]


CHANGES_PER_SECOND = 100.0
"""How often it changes, while it does."""

_APART = 20  # the most objects that `LoadGenerator` leaves alone, for the handlers to fail on


class BenchCluster:
    """A running API server with objects for each resource of a plan, in equal numbers.

    `kubeconfig` is the path of a file for it, and `objects` the number of objects.
    """

    def __init__(
        self, server: SandboxThread, plan: Plan, samples: Sequence[KubeObject], *, objects: int, folder: Path
    ) -> None:
        self._server = server
        self._makers = [ObjectMaker(resource, samples) for resource in plan.resources]
        server.load(definitions(plan, samples))
        server.load(selected_namespaces(plan))
        filled = list(_taken(self._makers, objects))
        server.load(obj for _, obj in filled)
        self.objects = len(filled)
        # They do not change: a change would replace the retry that is counted.
        apart = min(_APART, len(filled) // 2)
        self._apart, self._changing = filled[:apart], filled[apart:]
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()), "utf-8")

    def churn(self) -> LoadGenerator:
        """A load generator for this cluster, which has not begun."""
        return LoadGenerator(self._server, self._changing, self._makers, rate=CHANGES_PER_SECOND)

    @contextmanager
    def labelled(self, name: str) -> Generator[int]:
        """Label some objects inside a `with` block; returns their number."""
        for _, obj in self._apart:
            label(self._server, obj, name, "")
        try:
            yield len(self._apart)
        finally:
            for _, obj in self._apart:
                label(self._server, obj, name, None)

    def requests(self) -> tuple[LedgerEntry, ...]:
        """All requests to the server."""
        return self._server.ledger.requests()


def _taken(makers: Iterable[ObjectMaker], number: int) -> Iterator[tuple[str, KubeObject]]:
    """Objects with the names of their resources, from one resource after the other, until none is left."""
    left = list(makers)
    while left and number > 0:
        maker = left.pop(0)
        obj = next(maker, None)
        if obj is not None:
            left.append(maker)
            number -= 1
            yield maker.resource, obj
