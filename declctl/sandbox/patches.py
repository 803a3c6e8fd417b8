"""PATCH: JSON Patch (RFC 6902), JSON Merge Patch (RFC 7386), strategic merge patch; and the Scale document.

Each function returns a new document and leaves the given one alone. Server-side apply is in `apply`.

A strategic merge patch is a merge patch that knows by which key the elements of a list are the same. It has
directives: `$patch` (replace, delete, merge), `$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>`,
`$retainKeys`. Source: apimachinery's strategicpatch package.

/scale is a small document that reads and writes the replicas of any kind that has replicas.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import jsonpatch

from declctl.objects import KubeObject
from declctl.sandbox import status
from declctl.sandbox.kinds import ScalePaths, ServedKind
from declctl.sandbox.status import Refusal, bad_request
from declctl.sandbox.structure import merges_as_set, strategic_key

_DIRECTIVE: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_DELETE: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: maps merge, null deletes, everything else replaces."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    merged: KubeObject = dict(target) if isinstance(target, Mapping) else {}
    for key, value in cast("Mapping[str, Any]", patch).items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def json_patch(target: KubeObject, patch: Any) -> Any:
    """RFC 6902, all operations or none.

    Refuses with 400 what is no patch, and with 422 what cannot be applied.
    """
    if not isinstance(patch, list):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        )
    try:
        operations = jsonpatch.JsonPatch(cast("list[Any]", patch))
    except (jsonpatch.InvalidJsonPatch, jsonpatch.JsonPointerException) as error:
        raise bad_request(f"error decoding patch: {error}") from error
    try:
        return operations.apply(target)
    except jsonpatch.InvalidJsonPatch as error:  # a member of an operation is looked at when its turn comes
        raise bad_request(f"error decoding patch: {error}") from error
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        # The real server says no more than this either.
        message = "the server rejected our request due to an error in our request"
        raise Refusal(422, "Invalid", message, {}) from error


def strategic_merge(target: Mapping[str, Any], patch: Mapping[str, Any]) -> KubeObject:
    """The target with the patch merged in; refuses with 400 a directive that isn't one."""
    directive = patch.get(_DIRECTIVE)
    if directive == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"unknown patch type found: {directive}")
    merged: KubeObject = dict(target)
    if _RETAIN in patch:
        merged = {key: value for key, value in merged.items() if key in patch[_RETAIN]}
    _delete_values(merged, patch)
    for field, value in patch.items():
        if field.startswith("$"):
            continue
        if value is None:
            merged.pop(field, None)
        else:
            merged[field] = _merge_field(field, merged, patch)
    _order(merged, target, patch)
    return merged


def _merge_field(field: str, merged: KubeObject, patch: Mapping[str, Any]) -> Any:
    old, new = merged.get(field), patch[field]
    if isinstance(new, Mapping) and isinstance(old, Mapping):
        return strategic_merge(cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new))
    if not isinstance(new, list) or not isinstance(old, list):
        return _plain(new)
    # A list: merged by value, by key, or replaced, as the field says.
    present, given = cast("list[Any]", old), cast("list[Any]", new)
    if merges_as_set(field):
        values = [*present, *(value for value in given if value not in present)]
        return _ordered(values, present, given, None)
    key = strategic_key(field, {**merged, field: [*present, *given]})
    return _plain(given) if key is None else _merge_list(present, given, key)


def _merge_list(old: list[Any], new: list[Any], key: str) -> list[Any]:
    if {_DIRECTIVE: "replace"} in new:
        return _plain(new)
    merged = list(old)
    for element in new:
        if not isinstance(element, Mapping) or key not in element:
            # The real server takes this for its own fault too.
            raise Refusal(500, "", f"map: {element} does not contain declared merge key: {key}")
        place = next((at for at, other in enumerate(merged) if other.get(key) == element[key]), None)
        fields = cast("Mapping[str, Any]", element)
        if fields.get(_DIRECTIVE) == "delete":
            merged = [other for other in merged if other.get(key) != fields[key]]
        elif place is None:
            merged.append(_plain(fields))
        else:
            merged[place] = strategic_merge(merged[place], fields)
    return _ordered(merged, old, new, key)


def _plain(value: Any) -> Any:
    """A value that replaces another one, or is new: without nulls and directives."""
    if isinstance(value, list):
        elements = cast("list[Any]", value)
        return [_plain(each) for each in elements if not isinstance(each, Mapping) or _DIRECTIVE not in each]
    if not isinstance(value, Mapping):
        return value
    fields = cast("Mapping[str, Any]", value).items()
    return {name: _plain(child) for name, child in fields if child is not None and not name.startswith("$")}


def _delete_values(merged: KubeObject, patch: Mapping[str, Any]) -> None:
    for directive, values in patch.items():
        if directive.startswith(_DELETE):
            field = directive.removeprefix(_DELETE)
            merged[field] = [value for value in merged.get(field) or () if value not in values]


def _order(merged: KubeObject, target: Mapping[str, Any], patch: Mapping[str, Any]) -> None:
    for directive, wanted in patch.items():
        field = directive.removeprefix(_ORDER)
        if directive.startswith(_ORDER) and isinstance(merged.get(field), list):
            key = strategic_key(field, merged)
            merged[field] = _ordered(merged[field], target.get(field) or [], wanted, key)


def _ordered(elements: list[Any], before: list[Any], wanted: list[Any], key: str | None) -> list[Any]:
    """The elements that `wanted` names, in its order; others come before those that they stood before."""
    ranks, stood = _places(wanted, key), _places(before, key)
    named = [element for element in elements if _identity(element, key) in ranks]
    named.sort(key=lambda element: ranks[_identity(element, key)])
    others = [element for element in elements if _identity(element, key) not in ranks]
    ordered: list[Any] = []
    for element in named:
        place = stood.get(_identity(element, key), -1)
        while others and stood.get(_identity(others[0], key), place) < place:
            ordered.append(others.pop(0))
        ordered.append(element)
    return [*ordered, *others]


def _places(elements: list[Any], key: str | None) -> dict[Any, int]:
    """Where each element comes first."""
    return {_identity(element, key): at for at, element in reversed(list(enumerate(elements)))}


def _identity(element: Any, key: str | None) -> Any:
    return element.get(key) if key is not None and isinstance(element, Mapping) else str(element)


MERGES: Final[Mapping[str, Callable[[KubeObject, Any], Any]]] = {
    JSON_PATCH: json_patch,
    MERGE_PATCH: merge_patch,
    STRATEGIC_PATCH: strategic_merge,
}


@dataclass(frozen=True, slots=True)
class Patch:
    """What a PATCH request brings; `force` is server-side apply's."""

    media_type: str
    body: Any
    force: bool = False


def accepted(kind: ServedKind) -> list[str]:
    """The media types that a kind can be patched with."""
    strategic = [] if kind.custom else [STRATEGIC_PATCH]
    return [JSON_PATCH, MERGE_PATCH, *strategic, APPLY_PATCH]


def scale_of(kind: ServedKind, obj: KubeObject) -> KubeObject:
    """The Scale of an object; refused with 404 if its kind has none."""
    paths = _paths(kind)
    metadata: KubeObject = obj["metadata"]
    replicas = _get(obj, paths.spec)
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    observed: KubeObject = {"replicas": _get(obj, paths.status) or 0}
    selector = _selector(_get(obj, paths.selector)) if paths.selector else ""
    if selector:
        observed["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {"replicas": replicas} if replicas else {},
        "status": observed,
    }


def check_scale(kind: ServedKind, obj: KubeObject) -> None:
    """Refuse with 500, as the real server, to show the Scale of a custom object that has no replicas."""
    path = _paths(kind).spec
    if kind.custom and _get(obj, path) is None:
        why = f'the spec replicas field ".{path}" does not exist'
        details = {"causes": [{"message": why}]}
        raise Refusal(500, "InternalError", f"Internal error occurred: {why}", details)


def scaled(kind: ServedKind, obj: KubeObject, scale: KubeObject) -> KubeObject:
    """The object with the replicas (and the resource version, for concurrency) of a Scale."""
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or (replicas < 0 and not kind.custom):
        cause = status.StatusCause.invalid("spec.replicas", replicas, "must be greater than or equal to 0")
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
