"""How lists merge: the merge keys that kube-apiserver 1.36 publishes in its OpenAPI documents, by field.

A field name alone decides nearly everywhere; `ports` depends on what the list stands in, so that the parent
is asked too. Strategic merge uses the first key; server-side apply uses all of them (with the default of a
missing one) and the sets.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from declctl.objects import KubeObject
from declctl.sandbox.kinds import ServedKind

Keys = tuple[str, ...]

_BY_FIELD: Final[Mapping[str, Keys]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "schedulingGates": ("name",),
    "resourceClaims": ("name",),
    "conditions": ("type",),
    "ownerReferences": ("uid",),
    "podIPs": ("ip",),
    "secrets": ("name",),
}
_STRATEGIC_ONLY: Final[Mapping[str, Keys]] = {"hostIPs": ("ip",), "addresses": ("type",), "taints": ("key",)}
_PRIMITIVE: Final = frozenset({"finalizers", "podCIDRs"})  # lists of values that merge as sets
_DEFAULTS: Final[Mapping[str, Any]] = {"protocol": "TCP"}
_ATOMIC_MAPS: Final = frozenset(
    {
        "nodeSelector", "selector", "labelSelector", "namespaceSelector", "podSelector",
        "configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef",
    }
)  # fmt: skip


def strategic_key(field: str, parent: Mapping[str, Any]) -> str | None:
    """The key by which strategic merge matches the elements of this list; None: the list is replaced."""
    keys = _ports(parent) if field == "ports" else _BY_FIELD.get(field) or _STRATEGIC_ONLY.get(field)
    if field == "addresses" and "nodeInfo" not in parent:  # NodeStatus only; elsewhere it is a plain list
        return None
    return keys[0] if keys else None


def merges_as_set(field: str) -> bool:
    """Whether a list of plain values is merged by value."""
    return field in _PRIMITIVE


class Structure:
    """How server-side apply sees the lists and maps of one kind."""

    def __init__(self, kind: ServedKind) -> None:
        self._schema = kind.schema if kind.custom else None
        self._custom = kind.custom

    def at(self, path: Sequence[str]) -> KubeObject | None:
        """The schema of a custom kind at a path of field names ('*' for elements); None without one."""
        schema = self._schema
        for step in path:
            if schema is None:
                return None
            if step == "*":
                schema = schema.get("items")
            else:
                more = schema.get("additionalProperties")
                schema = (schema.get("properties") or {}).get(step) or (
                    more if isinstance(more, dict) else None
                )
        return schema

    def list_keys(self, path: Sequence[str], parent: Mapping[str, Any]) -> Keys | None:
        """The keys of a list of maps; () for a set of plain values.

        None for a list that has one owner as a whole.
        """
        field = path[-1]
        if path[0] == "metadata" or not self._custom:
            if merges_as_set(field):
                return ()
            return _ports(parent) if field == "ports" else _BY_FIELD.get(field)
        schema = self.at(path) or {}
        if schema.get("x-kubernetes-list-type") == "map":
            return tuple(schema.get("x-kubernetes-list-map-keys") or ())
        return () if schema.get("x-kubernetes-list-type") == "set" else None

    def is_atomic(self, path: Sequence[str]) -> bool:
        """Whether a map has one owner as a whole."""
        if path[0] == "metadata":
            return False
        if not self._custom:
            return path[-1] in _ATOMIC_MAPS
        return (self.at(path) or {}).get("x-kubernetes-map-type") == "atomic"


def key_of(element: Mapping[str, Any], keys: Keys) -> tuple[Any, ...] | None:
    """The values of the keys, with defaults; None if one of them is missing."""
    values = tuple(element.get(key, _DEFAULTS.get(key)) for key in keys)
    return None if None in values else values


def _ports(parent: Mapping[str, Any]) -> Keys | None:
    ports = parent.get("ports")
    first = ports[0] if isinstance(ports, list) and ports else {}
    if not isinstance(first, dict):
        return None
    if "containerPort" in first:
        return ("containerPort", "protocol")
    # Of the other lists called ports only that of a ServiceSpec merges; endpoints and network policies have
    # no such neighbours.
    return (
        ("port", "protocol")
        if "port" in first and {"selector", "type", "clusterIP"} & parent.keys()
        else None
    )
