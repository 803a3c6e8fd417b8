"""What the server fills in: the defaults without which kubectl, merge keys or /scale would stumble.

A real API server fills in far more (pull policies, probes, tolerations); a controller must not count on
what it finds here.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from declctl.objects import KubeObject
from declctl.sandbox.kinds import ServedKind


def apply_defaults(kind: ServedKind, obj: KubeObject) -> None:
    """Fill in what is missing, in place."""
    fill = None if kind.custom else _FILLERS.get(kind.kind)
    if fill is not None and isinstance(obj.get("spec", {}), dict):
        fill(obj)


def _pod_spec(spec: Any) -> None:
    if not isinstance(spec, dict):
        return
    spec.setdefault("restartPolicy", "Always")
    for field in ("containers", "initContainers"):
        for container in spec.get(field) or ():
            _ports(container)


def _ports(owner: Any) -> None:
    ports = owner.get("ports") if isinstance(owner, dict) else None
    for port in ports if isinstance(ports, list) else ():
        if isinstance(port, dict):
            port.setdefault("protocol", "TCP")


def _pod(obj: KubeObject) -> None:
    _pod_spec(obj.get("spec"))
    obj.setdefault("status", {}).setdefault("phase", "Pending")


def _replicated(obj: KubeObject) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    _template(obj)


def _template(obj: KubeObject) -> None:
    template = (obj.get("spec") or {}).get("template")
    if isinstance(template, dict):
        _pod_spec(template.get("spec"))
    obj.setdefault("status", {})


def _service(obj: KubeObject) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    _ports(spec)
    for port in spec.get("ports") or ():
        port.setdefault("targetPort", port.get("port"))
    obj.setdefault("status", {"loadBalancer": {}})


def _namespace(obj: KubeObject) -> None:
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
    obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    obj.setdefault("status", {}).setdefault("phase", "Active")


def _secret(obj: KubeObject) -> None:
    obj.setdefault("type", "Opaque")


def _claim(obj: KubeObject) -> None:
    obj.setdefault("status", {}).setdefault("phase", "Pending")


_FILLERS: Final[Mapping[str, Callable[[KubeObject], None]]] = {
    "DaemonSet": _template,
    "Deployment": _replicated,
    "Job": _template,
    "Namespace": _namespace,
    "PersistentVolumeClaim": _claim,
    "Pod": _pod,
    "ReplicaSet": _replicated,
    "ReplicationController": _replicated,
    "Secret": _secret,
    "Service": _service,
    "StatefulSet": _replicated,
}
