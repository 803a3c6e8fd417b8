"""The objects of a manifest's resources: made up, or made after samples."""

import itertools
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, Final

from declctl.manifest import Plan
from declctl.manifest.plan import ResourcePlan
from declctl.objects import FieldSelector, KubeObject, LabelSelector
from declctl.objects.resource import GroupVersionKind
from declctl.sandbox.kinds import BUILT_IN

_DEFINITION: Final = "CustomResourceDefinition"
_OF_THE_SERVER: Final = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generateName")
_APPS, _NODES = 50, 20


def definitions(plan: Plan, samples: Sequence[KubeObject]) -> Iterator[KubeObject]:
    """The custom kinds of a manifest: those among the samples, and for each other one a plain definition.

    A kind that nobody defines is taken for a namespaced one.
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


class Maker:
    """Makes objects of one resource, each under a name of its own, as far as names can be chosen.

    Each is one of the samples of its kind, or, where there is none, little more than metadata. Namespaces
    and labels are what the resource selects, where that can be told. Iterating ends where the resource
    names its objects, and all of them are made.
    """

    def __init__(self, resource: ResourcePlan, samples: Sequence[KubeObject]) -> None:
        self.resource = resource.name
        named = [
            sample for sample in samples if (sample.get("apiVersion"), sample.get("kind")) == _kind(resource)
        ]
        self._samples = named or [_made_up(*_kind(resource))]
        self._is_pod = not named and _kind(resource) == ("v1", "Pod")
        self._names = iter(_names(resource)) if _names(resource) else None
        self._namespaces = (None,) if _is_cluster_scoped(resource) else resource.namespaces or (None,)
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


def _names(resource: ResourcePlan) -> list[str]:
    """What the resource calls its objects, if it watches single ones."""
    selectors = [FieldSelector.parse(key.field_selector) for key in resource.watches]
    found = [c for selector in selectors for c in selector.conditions]
    return list(
        dict.fromkeys(value for path, operator, value in found if (path, operator) == ("metadata.name", "="))
    )


def _selected(selector: str) -> dict[str, str]:
    """Labels that a selector is content with, as far as it asks for any."""
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
