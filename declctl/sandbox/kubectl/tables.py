"""Tables: the columns that `kubectl get` shows.

The columns of built-in kinds are in `columns`. Those of custom kinds are in their definition, as JSONPaths
(additionalPrinterColumns): `.spec.x`, `.status.items[0].y`, `['a.b']`, `[*]`, `[?(@.type=="Ready")].status`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

from declctl.objects import KubeObject
from declctl.sandbox.kinds import ServedKind
from declctl.sandbox.kubectl import columns
from declctl.sandbox.kubectl.columns import Column, age

_STEP: Final = re.compile(
    r"""\.(?P<name>[A-Za-z_$][\w$/-]*) | \[(?P<index>-?\d+)\] | \[(?P<all>\*)\] | \.(?P<star>\*)
    | \['(?P<quoted>[^']+)'\] | \["(?P<double>[^"]+)"\]
    | \[\?\(@\.(?P<field>[\w.]+)\s*==\s*(?P<quote>["'])(?P<value>[^"']*)(?P=quote)\)\]""",
    re.VERBOSE,
)


def evaluate(path: str, obj: Any) -> list[Any]:
    """Everything at the path, in order; nothing for a path that can't be read."""
    text = path.strip().removeprefix("{").removesuffix("}").replace("\\.", "\x00")
    if not text.startswith((".", "[")):
        text = f".{text}"
    found = [obj]
    at = 0
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            return []
        found = [value for each in found for value in _take(each, step)]
        at = step.end()
    return found


def _take(value: Any, step: re.Match[str]) -> Iterator[Any]:
    name = step["name"] or step["quoted"] or step["double"]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if name is not None and name in fields:
            yield fields[name]
        elif step["all"] or step["star"]:
            yield from fields.values()
    elif isinstance(value, list):
        yield from _elements(cast("list[Any]", value), step)


def _elements(elements: list[Any], step: re.Match[str]) -> Iterator[Any]:
    if step["all"] or step["star"]:
        yield from elements
    elif step["index"] is not None:
        index = int(step["index"])
        if -len(elements) <= index < len(elements):
            yield elements[index]
    elif step["field"]:
        for element in elements:
            if evaluate(step["field"], element) == [step["value"]]:
                yield element


_DESCRIPTIONS: Final = {"Name": "The name of the object.", "Age": "The time since the object was created."}


def columns_of(kind: ServedKind) -> Sequence[Column]:
    """The columns of a kind, in order."""
    if not kind.custom:
        return columns.BUILT_IN.get(kind.resource, columns.GENERIC)
    if not kind.columns:
        return columns.GENERIC
    return (columns.NAME, *(_custom(column) for column in kind.columns))


def definitions(kind: ServedKind) -> list[KubeObject]:
    """The columnDefinitions of a table."""
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": _DESCRIPTIONS.get(column.name, f"{column.name} of the {kind.kind}."),
            "priority": column.priority,
        }
        for column in columns_of(kind)
    ]


def cells(kind: ServedKind, obj: KubeObject, now: datetime) -> list[Any]:
    """One row. An object of a shape that its kind doesn't have gives `<unknown>` where it can't be read."""
    row: list[Any] = []
    for column in columns_of(kind):
        try:
            row.append(column.cell(obj, now))
        except (AttributeError, KeyError, TypeError, ValueError, IndexError):
            # Schemas are not checked, so a field may be anything.
            row.append("<unknown>")
    return row


def _custom(definition: Mapping[str, Any]) -> Column:
    path, of_type = definition.get("jsonPath", ""), definition.get("type", "string")

    def cell(obj: KubeObject, now: datetime) -> Any:
        found = evaluate(path, obj)
        if not found:
            return None
        if of_type == "date":
            return age(found[0], now)
        if of_type in ("integer", "number", "boolean"):
            return found[0]
        return ",".join(str(value) for value in found)

    return Column(
        definition.get("name", ""),
        cell,
        type=of_type,
        format=definition.get("format", ""),
        priority=definition.get("priority", 0),
    )
