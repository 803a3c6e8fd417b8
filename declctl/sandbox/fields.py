"""Sets of fields, as metadata.managedFields writes them (FieldsV1), and reading an object through them.

A path is a tuple of FieldsV1 steps: `f:spec` for a field, `k:{"name":"web"}` for an element with keys,
`v:"a"` for an element of a set. Pure; who owns which set is `apply`'s business.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from declctl.objects import KubeObject
from declctl.sandbox.merge_keys import Keys, Structure, key_of

Path = tuple[str, ...]
FieldSet = frozenset[Path]
MISSING: Final = object()
_SERVER_SIDE: Final = frozenset(
    {
        "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
        "deletionGracePeriodSeconds", "managedFields", "selfLink",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where a walk stands: the FieldsV1 steps, and the plain field names that structure is looked up by."""

    steps: Path = ()
    names: tuple[str, ...] = ()

    def field(self, name: str) -> "Place":
        """One field further down."""
        return Place((*self.steps, f"f:{name}"), (*self.names, name))

    def element(self, step: str) -> "Place":
        """One element further down."""
        return Place((*self.steps, step), (*self.names, "*"))


def fields_of(obj: Mapping[str, Any], structure: Structure) -> FieldSet:
    """Every field that `obj` sets, but for those that the server sets itself."""
    found: set[Path] = set()
    for name, value in obj.items():
        if name == "metadata":
            for key, entry in value.items():
                if key not in _SERVER_SIDE:
                    found.update(_walk(entry, Place().field("metadata").field(key), structure, value))
        elif name not in ("apiVersion", "kind"):
            found.update(_walk(value, Place().field(name), structure, obj))
    return frozenset(found)


def _walk(value: Any, place: Place, structure: Structure, parent: Mapping[str, Any]) -> Iterator[Path]:
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


def merge(live: Any, applied: Any, structure: Structure, place: Place = Place()) -> Any:
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
    live: list[Any], applied: list[Any], keys: Keys | None, at: tuple[Structure, Place]
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
