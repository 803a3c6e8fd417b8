"""Strategic merge patch: JSON Merge Patch that knows by which key the elements of a list are the same.

Directives: `$patch` (replace, delete, merge), `$deleteFromPrimitiveList/<field>`,
`$setElementOrder/<field>`, `$retainKeys`. Source: apimachinery's strategicpatch package. Pure: the given
objects are left alone.
"""

import copy
from collections.abc import Mapping
from typing import Any, Final, cast

from declctl.objects import KubeObject
from declctl.sandbox.merge_keys import merges_as_set, strategic_key
from declctl.sandbox.status import Refusal, bad_request

_DIRECTIVE: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_DELETE: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"


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
    _order(merged, patch)
    return merged


def _merge_field(field: str, merged: KubeObject, patch: Mapping[str, Any]) -> Any:
    old, new = merged.get(field), patch[field]
    if isinstance(new, Mapping):
        base = cast("Mapping[str, Any]", old) if isinstance(old, Mapping) else {}
        return strategic_merge(base, cast("Mapping[str, Any]", new))
    if not isinstance(new, list):
        return new
    base_list = cast("list[Any]", old) if isinstance(old, list) else []
    if merges_as_set(field):
        return [*base_list, *(value for value in cast("list[Any]", new) if value not in base_list)]
    key = strategic_key(field, {**merged, field: [*base_list, *cast("list[Any]", new)]})
    if key is None:
        return [_plain(value) for value in cast("list[Any]", new)]
    return _merge_list(base_list, cast("list[Any]", new), key)


def _merge_list(old: list[Any], new: list[Any], key: str) -> list[Any]:
    if {_DIRECTIVE: "replace"} in new:
        return [_plain(element) for element in new if element != {_DIRECTIVE: "replace"}]
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
            merged.append(strategic_merge({}, fields))
        else:
            merged[place] = strategic_merge(merged[place], fields)
    return merged


def _plain(value: Any) -> Any:
    # What replaces as a whole may still carry directives inside.
    return (
        strategic_merge({}, cast("Mapping[str, Any]", value))
        if isinstance(value, Mapping)
        else copy.deepcopy(value)
    )


def _delete_values(merged: KubeObject, patch: Mapping[str, Any]) -> None:
    for directive, values in patch.items():
        if directive.startswith(_DELETE):
            field = directive.removeprefix(_DELETE)
            merged[field] = [value for value in merged.get(field) or () if value not in values]


def _order(merged: KubeObject, patch: Mapping[str, Any]) -> None:
    for directive, wanted in patch.items():
        field = directive.removeprefix(_ORDER)
        if not directive.startswith(_ORDER) or not isinstance(merged.get(field), list):
            continue
        key = strategic_key(field, merged)
        ranks = {_identity(element, key): rank for rank, element in enumerate(wanted)}
        merged[field] = _ordered(merged[field], key, ranks)


def _ordered(elements: list[Any], key: str | None, ranks: Mapping[Any, int]) -> list[Any]:
    """Those that the order names, in that order; the others stay behind the one that they stood behind."""
    rank, keyed = -1.0, list[tuple[float, int, Any]]()
    for at, element in enumerate(elements):
        rank = ranks.get(_identity(element, key), rank + 0.5 if rank == int(rank) else rank)
        keyed.append((rank, at, element))
    return [element for _, _, element in sorted(keyed, key=lambda entry: entry[:2])]


def _identity(element: Any, key: str | None) -> Any:
    return element.get(key) if key is not None and isinstance(element, Mapping) else str(element)
