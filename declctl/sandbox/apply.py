"""Server-side apply: who owns which field, what a new configuration changes, and when it is in conflict.

A set of fields is what metadata.managedFields has (FieldsV1). A path is a tuple of its steps: `f:spec` for a
field, `k:{"name":"web"}` for an element with keys, `v:"a"` for an element of a set.

The merge keys are those of kube-apiserver 1.36's OpenAPI documents. A field name alone decides nearly
everywhere; `ports` depends on the object that holds the list. Strategic merge uses the first key. Server-side
apply uses all keys, with the default of a missing one, and the sets.

Source: structured-merge-diff, simplified: no defaulting, no conversion between versions. Ownership by
updates is recorded from the first apply on (as Kubernetes 1.16 did), so that objects that are never applied
stay small. Pure: the given objects are left alone.
"""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from declctl.objects import KubeObject
from declctl.sandbox.kinds import ServedKind
from declctl.sandbox.status import Refusal, StatusCause

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
Path = tuple[str, ...]
FieldSet = frozenset[Path]
MISSING: Final = object()
_SERVER_SIDE: Final = frozenset(
    {
        "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
        "deletionGracePeriodSeconds", "managedFields", "selfLink",
    }
)  # fmt: skip
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


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


@dataclass(frozen=True, slots=True)
class PathCursor:
    """Where a walk stands: the FieldsV1 steps, and the plain field names that structure is looked up by."""

    steps: Path = ()
    names: tuple[str, ...] = ()

    def field(self, name: str) -> "PathCursor":
        """One field further down."""
        return PathCursor((*self.steps, f"f:{name}"), (*self.names, name))

    def element(self, step: str) -> "PathCursor":
        """One element further down."""
        return PathCursor((*self.steps, step), (*self.names, "*"))


def fields_of(obj: Mapping[str, Any], structure: Structure) -> FieldSet:
    """Every field that `obj` sets, but for those that the server sets itself."""
    found: set[Path] = set()
    for name, value in obj.items():
        if name == "metadata":
            for key, entry in value.items():
                if key not in _SERVER_SIDE:
                    found.update(_walk(entry, PathCursor().field("metadata").field(key), structure, value))
        elif name not in ("apiVersion", "kind"):
            found.update(_walk(value, PathCursor().field(name), structure, obj))
    return frozenset(found)


def _walk(value: Any, place: PathCursor, structure: Structure, parent: Mapping[str, Any]) -> Iterator[Path]:
    if isinstance(value, dict) and value and not structure.is_atomic(place.names):
        fields = cast("KubeObject", value)
        for name, child in fields.items():
            yield from _walk(child, place.field(name), structure, fields)
        return
    keys = structure.list_keys(place.names, parent) if isinstance(value, list) and value else None
    if keys is None:
        yield place.steps
        return
    for element in cast("list[Any]", value):
        inner = place.element(step_of(element, keys))
        yield inner.steps
        if isinstance(element, dict):
            fields = cast("KubeObject", element)
            for name, child in fields.items():
                yield from _walk(child, inner.field(name), structure, fields)


def step_of(element: Any, keys: Keys) -> str:
    """The step that names an element of a list: by its keys, or by its value."""
    values = key_of(cast("KubeObject", element), keys) if keys and isinstance(element, dict) else None
    if values is None:
        return f"v:{_json(element)}"
    return f"k:{_json(dict(zip(keys, values, strict=True)))}"


def find(obj: Any, path: Path) -> Any:
    """What stands at a path; MISSING if nothing does."""
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f":
            obj = cast("KubeObject", obj).get(rest, MISSING) if isinstance(obj, dict) else MISSING
        else:
            obj = (
                next((e for e in cast("list[Any]", obj) if _is(e, step)), MISSING)
                if isinstance(obj, list)
                else MISSING
            )
        if obj is MISSING:
            return MISSING
    return obj


def remove(obj: Any, path: Path) -> None:
    """Delete what stands at a path, in place, and the maps and lists that become empty by it.

    Nothing happens where there is nothing.
    """
    if not path or find(obj, path) is MISSING:
        return
    parent, step = find(obj, path[:-1]), path[-1]
    if isinstance(parent, dict):
        cast("KubeObject", parent).pop(step.removeprefix("f:"))
    else:
        parent[:] = [element for element in parent if not _is(element, step)]
    if not parent and len(path) > 2:
        remove(obj, path[:-1])


def merge(live: Any, applied: Any, structure: Structure, place: PathCursor = PathCursor()) -> Any:
    """`live` with what `applied` sets; lists with keys are merged by element."""
    if isinstance(live, dict) and isinstance(applied, dict):
        if place.names and structure.is_atomic(place.names):
            return applied
        merged: KubeObject = dict(cast("KubeObject", live))
        for name, value in cast("KubeObject", applied).items():
            inner = place.field(name)
            if isinstance(value, list) and isinstance(merged.get(name), list):
                keys = structure.list_keys(inner.names, cast("KubeObject", applied))
                merged[name] = _merge_list(merged[name], cast("list[Any]", value), keys, (structure, inner))
            else:
                merged[name] = merge(merged.get(name), value, structure, inner)
        return merged
    return applied


def _merge_list(
    live: list[Any], applied: list[Any], keys: Keys | None, at: tuple[Structure, PathCursor]
) -> list[Any]:
    if keys is None:
        return applied
    structure, place = at
    merged = list(live)
    for element in applied:
        step = step_of(element, keys)
        index = next((i for i, other in enumerate(merged) if step_of(other, keys) == step), None)
        if index is None:
            merged.append(element)
        else:
            merged[index] = merge(merged[index], element, structure, place.element(step))
    return merged


def to_document(fields: Iterable[Path]) -> KubeObject:
    """As FieldsV1; an element or map that is itself in the set is marked with '.'."""
    document: KubeObject = {}
    ordered = sorted(fields)
    for path in ordered:
        node = document
        for step in path:
            node = node.setdefault(step, {})
    for path in ordered:
        node = document
        for step in path:
            node = node[step]
        if node:
            node["."] = {}
    return document


def from_document(document: Mapping[str, Any], at: Path = ()) -> FieldSet:
    """The set that a FieldsV1 document writes."""
    found: set[Path] = set()
    for step, inner in document.items():
        if step == ".":
            found.add(at)
            continue
        path = (*at, step)
        if inner:
            found |= from_document(inner, path)
        else:
            found.add(path)
    return frozenset(found)


def dotted(path: Path) -> str:
    """As conflicts name it: `.spec.template.spec.containers[name="web"].image`."""
    text = ""
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            text += "[" + ",".join(f"{key}={_json(value)}" for key, value in json.loads(rest).items()) + "]"
        else:
            text += f"[={rest}]"
    return text


def _is(element: Any, step: str) -> bool:
    if step.startswith("k:"):
        wanted: KubeObject = json.loads(step[2:])
        keys = tuple(wanted)
        return isinstance(element, dict) and key_of(cast("KubeObject", element), keys) == tuple(
            wanted.values()
        )
    return f"v:{_json(element)}" == step


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Author:
    """Who writes: the field manager, through which subresource, at what time (RFC 3339)."""

    manager: str
    time: str
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Owner:
    """One entry of metadata.managedFields."""

    manager: str
    operation: str
    api_version: str
    time: str
    subresource: str
    fields: FieldSet

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "Owner":
        """Read an entry."""
        return cls(
            entry.get("manager", ""),
            entry.get("operation", "Update"),
            entry.get("apiVersion", ""),
            entry.get("time", ""),
            entry.get("subresource", ""),
            from_document(entry.get("fieldsV1") or {}),
        )

    @property
    def identity(self) -> tuple[str, str, str]:
        """What makes two entries the same owner."""
        return (self.manager, self.operation, self.subresource)

    def document(self) -> KubeObject:
        """Write the entry."""
        entry: KubeObject = {
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": to_document(self.fields),
        }
        return {**entry, "subresource": self.subresource} if self.subresource else entry


def server_side_apply(
    live: KubeObject | None, config: KubeObject, *, kind: ServedKind, author: Author, force: bool
) -> KubeObject:
    """The object after `author` applied `config`.

    Refused with 409 if others own what it changes and `force` is not given.
    """
    structure = Structure(kind)
    config = copy.deepcopy(config)
    config["metadata"].pop("managedFields", None)
    wanted = fields_of(config, structure)
    mine = Owner(author.manager, "Apply", kind.api_version, author.time, author.subresource, wanted)
    if live is None:
        return _with_owners(config, [mine])
    owners = _owners(live, kind, structure)
    before = next((owner for owner in owners if owner.identity == mine.identity), None)
    others = [owner for owner in owners if owner is not before]
    merged = merge(copy.deepcopy(live), config, structure)
    contested = {owner: _contested(live, merged, wanted & owner.fields) for owner in others}
    if not force and any(_unexplained(live, found, author, structure) for found in contested.values()):
        raise _conflict(contested)
    others = [replace(owner, fields=owner.fields - contested[owner]) for owner in others]
    if before is not None:
        _remove_abandoned(merged, before.fields - wanted, others)
        if before.fields == wanted and _content(merged) == _content(live):
            mine = before
    return _with_owners(merged, [mine, *others])


def track_update(old: KubeObject, new: KubeObject, *, kind: ServedKind, author: Author) -> KubeObject:
    """`new` with ownership moved to `author` for what changed.

    Unchanged if the object was never applied.
    """
    if new["metadata"].get("managedFields") in ([], [{}]):  # how a client resets ownership
        return _with_owners(new, [])
    entries = old["metadata"].get("managedFields") or []
    if not entries:
        return new
    structure = Structure(kind)
    present = fields_of(new, structure)
    changed = frozenset(path for path in present if _differs(old, new, path))
    mine = Owner(author.manager, "Update", kind.api_version, author.time, author.subresource, changed)
    before = [Owner.of(entry) for entry in entries]
    after = {
        owner: frozenset(path for path in owner.fields - changed if find(new, path) is not MISSING)
        for owner in before
    }
    if not changed and all(kept == owner.fields for owner, kept in after.items()):
        return new
    owners: list[Owner] = []
    for owner, kept in after.items():
        if owner.identity == mine.identity:
            mine = replace(mine, fields=kept | changed, time=author.time if changed else owner.time)
        else:
            owners.append(replace(owner, fields=kept))
    return _with_owners(new, [*owners, mine])


def _owners(live: KubeObject, kind: ServedKind, structure: Structure) -> list[Owner]:
    entries = live["metadata"].get("managedFields") or []
    if entries:
        return [Owner.of(entry) for entry in entries]
    everything = fields_of(live, structure)
    time = live["metadata"].get("creationTimestamp", "")
    return [Owner("before-first-apply", "Update", kind.api_version, time, "", everything)]


def _contested(live: KubeObject, merged: KubeObject, shared: FieldSet) -> FieldSet:
    return frozenset(path for path in shared if not _is_element(path) and _differs(live, merged, path))


def _differs(old: KubeObject, new: KubeObject, path: Path) -> bool:
    before = find(old, path)
    # An element with keys is there or not; its fields are compared on their own.
    return before is MISSING if _is_element(path) else before != find(new, path)


def _is_element(path: Path) -> bool:
    return not path[-1].startswith("f:")


def _unexplained(live: KubeObject, found: FieldSet, author: Author, structure: Structure) -> FieldSet:
    """Those conflicts that are not kubectl's own doing.

    What client-side apply wrote last may be taken over by server-side apply.
    """
    annotation = (live["metadata"].get("annotations") or {}).get(_LAST_APPLIED)
    if author.manager != "kubectl" or not annotation:
        return found
    return found - fields_of(json.loads(annotation), structure)


def _conflict(contested: Mapping[Owner, FieldSet]) -> Refusal:
    causes = [
        StatusCause("FieldManagerConflict", f"conflict with {_describe(owner)}", dotted(path))
        for owner, found in contested.items()
        for path in sorted(found)
    ]
    plural = "s" if len(causes) > 1 else ""
    where = _sentence(contested) if plural else f"{causes[0].message}: {causes[0].field}"
    message = f"Apply failed with {len(causes)} conflict{plural}: {where}"
    return Refusal(409, "Conflict", message, {"causes": [cause.document() for cause in causes]})


def _sentence(contested: Mapping[Owner, FieldSet]) -> str:
    text = ""
    for owner, found in contested.items():
        if found:
            paths = "".join(f"\n- {dotted(path)}" for path in sorted(found))
            text += f"{chr(10) if text else ''}conflicts with {_describe(owner)}:{paths}"
    return text


def _describe(owner: Owner) -> str:
    if owner.operation == "Apply":
        return f'"{owner.manager}"'
    subresource = f" with subresource {json.dumps(owner.subresource)}" if owner.subresource else ""
    return f'"{owner.manager}"{subresource} using {owner.api_version}'


def _remove_abandoned(merged: KubeObject, abandoned: FieldSet, others: Sequence[Owner]) -> None:
    owned: FieldSet = frozenset[Path]().union(*(owner.fields for owner in others))
    # An element goes as a whole before its fields: without its key it could not be found any more.
    for path in sorted(abandoned, key=len):
        if not any(other[: len(path)] == path for other in owned):
            remove(merged, path)


def _content(obj: KubeObject) -> KubeObject:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {**obj, "metadata": metadata}


def _with_owners(obj: KubeObject, owners: Sequence[Owner]) -> KubeObject:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    ordered = sorted(owners, key=lambda owner: (owner.operation, owner.time, *owner.identity))
    entries = [owner.document() for owner in ordered if owner.fields]
    if entries:
        metadata["managedFields"] = entries
    return {**obj, "metadata": metadata}
