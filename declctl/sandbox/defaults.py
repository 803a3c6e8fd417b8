"""What the server makes of an object of a built-in kind as it reads it: empty fields go, defaults come.

The defaults are those of workloads and Services, by kube-apiserver 1.36. What admission and controllers fill
in on a real cluster (tolerations, service accounts, cluster IPs) is not filled in here.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from declctl.objects import KubeObject
from declctl.sandbox.kinds import ServedKind, is_definition

# Maps of any keys, which are left out where they are empty. Other empty maps are structures, and stay.
_ANY_KEYS: Final = frozenset(
    {
        "labels", "annotations", "data", "binaryData", "stringData", "nodeSelector", "matchLabels", "limits",
        "requests", "capacity", "allocatable", "parameters",
    }
)  # fmt: skip


# Kinds whose conditions have no observedGeneration, and leave out an empty reason and message.
_SHORT_CONDITIONS: Final = frozenset(
    {
        "DaemonSet", "Deployment", "Job", "Namespace", "PersistentVolumeClaim", "ReplicaSet",
        "ReplicationController", "StatefulSet",
    }
)  # fmt: skip


def normalise(kind: ServedKind, obj: KubeObject) -> KubeObject:
    """An object of a built-in kind as it is after it was read; the given one is left alone."""
    if is_definition(kind):  # what is empty in a schema means something
        return {**obj, "metadata": normalise_metadata(obj["metadata"])}
    read = cast("KubeObject", _without_empty(obj))
    read.setdefault("metadata", {})
    if kind.kind in _SHORT_CONDITIONS and isinstance(read.get("status"), dict):
        _shorten(_objects(read["status"].get("conditions")))
    fill = _FILLERS.get(kind.kind)
    if fill is not None and isinstance(read.get("spec", {}), dict):
        fill(read)
    return read


def normalise_metadata(metadata: KubeObject) -> KubeObject:
    """The metadata of any object as they are after they were read."""
    return cast("KubeObject", _without_empty(metadata))


def initial_status(kind: ServedKind, obj: KubeObject) -> None:
    """Fill in the status that a new object of a built-in kind begins with, in place. Nobody owns it."""
    match kind.kind:
        case "Pod" | "PersistentVolumeClaim":
            obj.setdefault("status", {}).setdefault("phase", "Pending")
        case "Namespace":
            obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
            obj.setdefault("status", {}).setdefault("phase", "Active")
        case "Service":
            obj.setdefault("status", {"loadBalancer": {}})
        case "DaemonSet" | "Deployment" | "Job" | "ReplicaSet" | "ReplicationController" | "StatefulSet":
            obj.setdefault("status", {})
        case _:
            pass


def _without_empty(value: Any, name: str = "") -> Any:
    if isinstance(value, list):
        return [_without_empty(element) for element in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("KubeObject", value)
    # Ownership has its own rules of what is empty.
    kept = {
        key: child if key == "managedFields" else _without_empty(child, key) for key, child in fields.items()
    }
    if name in _ANY_KEYS:
        return kept
    return {key: child for key, child in kept.items() if not _is_empty(key, child)}


def _is_empty(name: str, value: Any) -> bool:
    if name == "managedFields":
        return value is None
    return value is None or value == [] or (value == {} and name in _ANY_KEYS)


def _shorten(conditions: list[KubeObject]) -> None:
    for condition in conditions:
        condition.pop("observedGeneration", None)
        for name in ("reason", "message"):
            if condition.get(name) == "":
                del condition[name]


def _template(spec: KubeObject) -> None:
    template = spec.get("template")
    if isinstance(template, dict):
        template.setdefault("metadata", {})
        _pod_spec(template.get("spec"))


def _pod_spec(spec: Any) -> None:
    if not isinstance(spec, dict):
        return
    for field, value in (
        ("restartPolicy", "Always"),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("terminationGracePeriodSeconds", 30),
    ):
        spec.setdefault(field, value)
    spec.setdefault("securityContext", {})
    for container in (*_objects(spec.get("containers")), *_objects(spec.get("initContainers"))):
        _container(container)
    for volume in _objects(spec.get("volumes")):
        if not volume.keys() - {"name"}:
            volume["emptyDir"] = {}
        for source in ("configMap", "secret", "projected", "downwardAPI"):
            if isinstance(volume.get(source), dict):
                volume[source].setdefault("defaultMode", 0o644)
        if isinstance(volume.get("hostPath"), dict):
            volume["hostPath"].setdefault("type", "")


def _container(container: KubeObject) -> None:
    image = str(container.get("image") or "")
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2] or ("" if digest else "latest")
    container.setdefault("imagePullPolicy", "Always" if tag == "latest" else "IfNotPresent")
    container.setdefault("resources", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    for port in _objects(container.get("ports")):
        port.setdefault("protocol", "TCP")
    for variable in _objects(container.get("env")):
        source = variable.get("valueFrom")
        if isinstance(source, dict) and isinstance(source.get("fieldRef"), dict):
            source["fieldRef"].setdefault("apiVersion", "v1")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if isinstance(container.get(probe), dict):
            for field, value in (
                ("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)
            ):  # fmt: skip
                container[probe].setdefault(field, value)
            if isinstance(container[probe].get("httpGet"), dict):
                container[probe]["httpGet"].setdefault("scheme", "HTTP")


def _pod(obj: KubeObject) -> None:
    _pod_spec(obj.get("spec"))
    if isinstance(obj.get("spec"), dict):
        obj["spec"].setdefault("enableServiceLinks", True)


def _workload(obj: KubeObject) -> None:
    _template(obj.setdefault("spec", {}))
    obj.setdefault("status", {})


def _replicated(obj: KubeObject) -> None:
    _workload(obj)
    obj["spec"].setdefault("replicas", 1)


def _deployment(obj: KubeObject) -> None:
    _replicated(obj)
    spec: KubeObject = obj["spec"]
    strategy = spec.setdefault("strategy", {})
    if isinstance(strategy, dict):
        strategy.setdefault("type", "RollingUpdate")
        if strategy["type"] == "RollingUpdate":
            rolling = strategy.setdefault("rollingUpdate", {})
            rolling.setdefault("maxUnavailable", "25%")
            rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)


def _service(obj: KubeObject) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in _objects(spec.get("ports")):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def _namespace(obj: KubeObject) -> None:
    name = obj["metadata"].get("name", "")
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name


def _objects(elements: Any) -> list[KubeObject]:
    return [each for each in elements if isinstance(each, dict)] if isinstance(elements, list) else []


_FILLERS: Final[Mapping[str, Callable[[KubeObject], Any]]] = {
    "DaemonSet": _workload,
    "Deployment": _deployment,
    "Job": _workload,
    "Namespace": _namespace,
    "Pod": _pod,
    "ReplicaSet": _replicated,
    "ReplicationController": _replicated,
    "Secret": lambda obj: obj.setdefault("type", "Opaque"),
    "Service": _service,
    "StatefulSet": _replicated,
}
