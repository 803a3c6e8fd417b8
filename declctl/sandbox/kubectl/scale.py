"""The /scale subresource: one small document that reads and writes the replicas of any kind that has some."""

from typing import Any

from declctl.objects import KubeObject
from declctl.sandbox import status
from declctl.sandbox.kinds import ScalePaths, ServedKind


def scale_of(kind: ServedKind, obj: KubeObject) -> KubeObject:
    """The Scale of an object; refused with 404 if its kind has none."""
    paths = _paths(kind)
    metadata: KubeObject = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    observed: KubeObject = {"replicas": _get(obj, paths.status) or 0}
    selector = _selector(_get(obj, paths.selector)) if paths.selector else ""
    if selector:
        observed["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {"replicas": _get(obj, paths.spec) or 0},
        "status": observed,
    }


def scaled(kind: ServedKind, obj: KubeObject, scale: KubeObject) -> KubeObject:
    """The object with the replicas (and the resource version, for concurrency) of a Scale."""
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or replicas < 0:
        cause = status.Cause(
            "FieldValueInvalid",
            f"Invalid value: {replicas}: must be greater than or equal to 0",
            "spec.replicas",
        )
        raise status.invalid("Scale", obj["metadata"]["name"], [cause], group="autoscaling")
    metadata = {**obj["metadata"]}
    version = (scale.get("metadata") or {}).get("resourceVersion")
    if version:
        metadata["resourceVersion"] = version
    return _set({**obj, "metadata": metadata}, _paths(kind).spec.split("."), replicas)


def _paths(kind: ServedKind) -> ScalePaths:
    if kind.scale is None:
        raise status.no_such_resource()
    return kind.scale


def _get(obj: Any, path: str) -> Any:
    for step in path.split("."):
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj


def _set(obj: KubeObject, steps: list[str], value: Any) -> KubeObject:
    if len(steps) == 1:
        return {**obj, steps[0]: value}
    return {**obj, steps[0]: _set(obj.get(steps[0]) or {}, steps[1:], value)}


def _selector(selector: Any) -> str:
    if not isinstance(selector, dict):
        return str(selector or "")
    labels = selector.get("matchLabels", selector)
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()) if isinstance(value, str))
