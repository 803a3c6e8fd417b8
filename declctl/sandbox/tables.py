"""Tables: the columns that `kubectl get` shows.

The columns of built-in kinds are in `columns`, those of custom kinds in their definition.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from declctl.objects import KubeObject
from declctl.sandbox import columns, durations, json_path
from declctl.sandbox.columns import Column
from declctl.sandbox.kinds import ServedKind

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
        found = json_path.evaluate(path, obj)
        if not found:
            return None
        if of_type == "date":
            return durations.age(found[0], now)
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
