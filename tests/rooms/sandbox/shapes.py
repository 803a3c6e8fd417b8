"""Objects and stores that the tests of this room share."""

import random
from typing import Any

from declctl.kit import ManualClock
from declctl.sandbox.store import ObjectStore


def store() -> ObjectStore:
    """An empty cluster with a manual clock and repeatable names."""
    return ObjectStore(clock=ManualClock(), chance=random.Random(7))


def pod(name: str = "web", namespace: str = "default", **more: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "labels": more.get("labels", {"app": "web"}),
    }
    if "finalizers" in more:
        metadata["finalizers"] = more["finalizers"]
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "nginx"}]}
    if "node" in more:
        spec["nodeName"] = more["node"]
    obj: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return {**obj, "status": {"phase": more["phase"]}} if "phase" in more else obj


def config_map(name: str = "settings", namespace: str = "default", **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": data,
    }


def definition(scope: str = "Namespaced") -> dict[str, Any]:
    """The definition of widgets.example.com in two versions, with /status, /scale, columns and list types."""
    part = {"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}}
    by_id = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]}
    parts = {"type": "array", "items": part, **by_id}
    properties = {
        "spec": {"type": "object", "properties": {"size": {"type": "integer"}, "parts": parts}},
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    }
    schema = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    scale = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}
    stable = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": schema,
        "additionalPrinterColumns": columns,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": scope,
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [
                {"name": "v1beta1", "served": True, "storage": False, "schema": schema},
                {**stable, "subresources": {"status": {}, "scale": scale}},
            ],
        },
    }


def widget(name: str = "one", version: str = "v1", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"example.com/{version}",
        "kind": "Widget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }
