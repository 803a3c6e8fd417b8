"""How the lists and maps of a kind merge: which have one owner as a whole, and by which keys elements match.

The tables are those of kube-apiserver 1.36's OpenAPI documents. A field name alone decides nearly everywhere;
`ports` depends on the field that holds it. Strategic merge uses the first key. Server-side apply uses all
keys, with the default of a missing one, and the sets.

A `Shape` says how one value of an object merges, and leads to the shapes of its parts. The shapes of a custom
kind come from its schema; a value without a schema has one owner for each list, and one for each field of a
map.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from declctl.sandbox.kinds import ServedKind

Keys = tuple[str, ...]
Schema = Mapping[str, Any]
"""A structural OpenAPI v3 schema of a custom kind."""

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
_SETS: Final = frozenset({"finalizers", "podCIDRs"})  # lists of values that merge by value
_PORTS: Final[Mapping[str, Keys]] = {  # by the field that holds the list
    "containers": ("containerPort", "protocol"),
    "initContainers": ("containerPort", "protocol"),
    "ephemeralContainers": ("containerPort", "protocol"),
    "spec": ("port", "protocol"),
}
_KEY_DEFAULTS: Final[Mapping[str, Any]] = {"protocol": "TCP"}
_ATOMIC_MAPS: Final = frozenset(
    {
        "nodeSelector", "selector", "labelSelector", "namespaceSelector", "podSelector",
        "configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef",
    }
)  # fmt: skip
# Fields of built-in kinds that are there before they are set, because Go writes them even if they are empty:
# by the field that holds them.
_OBJECT: Final[Mapping[str, Any]] = {"metadata": {}, "spec": {}, "status": {}}
_NEVER_ABSENT: Final[Mapping[str, Mapping[str, Any]]] = {
    "": _OBJECT,
    "template": _OBJECT,
    "jobTemplate": _OBJECT,
    "spec": {"template": {}, "jobTemplate": {}, "strategy": {}, "updateStrategy": {}, "containers": None},
}
MISSING: Final = object()
"""What stands where an object has nothing: a null is a value."""


def strategic_key(field: str, parent: Mapping[str, Any]) -> str | None:
    """The key by which strategic merge matches the elements of this list; None: the list is replaced."""
    keys = (
        _strategic_ports(parent) if field == "ports" else _BY_FIELD.get(field) or _STRATEGIC_ONLY.get(field)
    )
    if field == "addresses" and "nodeInfo" not in parent:  # NodeStatus only; elsewhere it is a plain list
        return None
    return keys[0] if keys else None


def merges_as_set(field: str) -> bool:
    """Whether a list of plain values is merged by value."""
    return field in _SETS


def _strategic_ports(parent: Mapping[str, Any]) -> Keys | None:
    ports = parent.get("ports")
    first = ports[0] if isinstance(ports, list) and ports else {}
    if not isinstance(first, dict):
        return None
    if "containerPort" in first:
        return _PORTS["containers"]
    # Of the other lists called ports only that of a ServiceSpec merges; endpoints and network policies have
    # no such neighbours.
    return _PORTS["spec"] if "port" in first and {"selector", "type", "clusterIP"} & parent.keys() else None


class Shape(Protocol):
    """How one value merges."""

    @property
    def is_atomic(self) -> bool:
        """Whether a map has one owner as a whole."""
        ...

    @property
    def keys(self) -> Keys | None:
        """The keys of a list of maps; () for a set; None for a list that has one owner as a whole."""
        ...

    def default(self, key: str) -> Any:
        """The value of a key that an element of the list leaves out; MISSING without one."""
        ...

    def field(self, name: str) -> "Shape":
        """The shape of a field of a map."""
        ...

    def element(self) -> "Shape":
        """The shape of an element of a list."""
        ...

    def declares(self, name: str) -> bool:
        """Whether a map has this field by its type, and not as one of any keys."""
        ...

    def absent(self, name: str) -> Any:
        """What stands for a field that a map does not have."""
        ...


@dataclass(frozen=True, slots=True)
class _BuiltIn:
    """A value of a built-in kind, or of metadata: known by its field, and by the field that holds this."""

    name: str = ""
    parent: str = ""

    @property
    def is_atomic(self) -> bool:
        return self.name in _ATOMIC_MAPS

    @property
    def keys(self) -> Keys | None:
        if self.name in _SETS:
            return ()
        return _PORTS.get(self.parent) if self.name == "ports" else _BY_FIELD.get(self.name)

    def default(self, key: str) -> Any:
        return _KEY_DEFAULTS.get(key, MISSING)

    def field(self, name: str) -> Shape:
        return _BuiltIn(name, self.name)

    def element(self) -> Shape:
        return self

    def declares(self, name: str) -> bool:  # noqa: ARG002 - their maps of any keys hold plain values
        return True

    def absent(self, name: str) -> Any:
        return _NEVER_ABSENT.get(self.name, {}).get(name, MISSING)


def field_schema(schema: Schema, name: str) -> Schema | None:
    """The schema of a field of a map; None for an unknown one."""
    more = schema.get("additionalProperties")
    anything = {"x-kubernetes-preserve-unknown-fields": True} if more is True else None
    found = (schema.get("properties") or {}).get(name)
    return found if found is not None else more if isinstance(more, dict) else anything


@dataclass(frozen=True, slots=True)
class _Custom:
    """A value of a custom kind; `schema` is None for one that its definition does not describe."""

    schema: Schema | None
    is_resource: bool = False  # a whole object, with apiVersion, kind and metadata

    @property
    def is_atomic(self) -> bool:
        return (self.schema or {}).get("x-kubernetes-map-type") == "atomic"

    @property
    def keys(self) -> Keys | None:
        schema = self.schema or {}
        match schema.get("x-kubernetes-list-type"):
            case "map":
                return tuple(schema.get("x-kubernetes-list-map-keys") or ())
            case "set":
                return ()
            case _:
                return None

    def default(self, key: str) -> Any:
        items = (self.schema or {}).get("items") or {}
        return ((items.get("properties") or {}).get(key) or {}).get("default", MISSING)

    def field(self, name: str) -> Shape:
        if self.is_resource and name == "metadata":
            return _BuiltIn("metadata")
        return _shape_of_part(field_schema(self.schema or {}, name))

    def element(self) -> Shape:
        return _shape_of_part((self.schema or {}).get("items"))

    def declares(self, name: str) -> bool:
        ours = self.is_resource and name in ("apiVersion", "kind", "metadata")
        return ours or name in ((self.schema or {}).get("properties") or {})

    def absent(self, name: str) -> Any:  # noqa: ARG002 - no field of a custom kind is there before it is set
        return MISSING


def shape_of(kind: ServedKind) -> Shape:
    """The shape of the objects of a kind."""
    return _Custom(kind.schema, is_resource=True) if kind.custom else _BuiltIn()


def _shape_of_part(schema: Schema | None) -> Shape:
    """The shape of a part of a custom kind; None for one that its definition does not describe."""
    return _Custom(schema, bool(schema and schema.get("x-kubernetes-embedded-resource")))


def shape_of_schema(schema: Mapping[str, Any]) -> Shape:
    """The shape of the values that a schema of a custom kind describes."""
    return _Custom(schema)
