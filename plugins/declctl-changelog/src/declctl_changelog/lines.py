"""A change in, a line out. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from declctl import Change, ChangeType

from declctl_changelog.differences import UNSET, Difference, differences, parse_path, written

_LONGEST_VALUE = 60


@dataclass(frozen=True, slots=True)
class Settings:
    """The plugin's config; `ignore` holds field paths."""

    ignore: Sequence[str] = ("metadata.resourceVersion", "metadata.generation")
    max_changes: int = 4
    format: str = "text"

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """From the manifest, where everything is optional."""
        default = cls()
        return cls(
            ignore=tuple(config.get("ignore", default.ignore)),
            max_changes=config.get("maxChanges", default.max_changes),
            format=config.get("format", default.format),
        )


def line_of(change: Change, settings: Settings) -> str | None:
    """The line for a change; None for a resync, which changes nothing.

    `Modified pods demo/web-1  spec.replicas: 1 → 3, status.phase: Pending → Running (+2 more)`
    """
    if change.type is ChangeType.RESYNC:
        return None
    found: list[Difference] = []
    if change.type is ChangeType.MODIFIED and change.old is not None:
        ignored = [parse_path(path) for path in settings.ignore]
        found = differences(change.old, change.obj, ignore=ignored)
    return (_as_json if settings.format == "json" else _as_text)(change, found, settings.max_changes)


def _as_text(change: Change, found: Sequence[Difference], most: int) -> str:
    head = f"{change.type} {change.resource} {change.key}"
    if change.final_state_unknown:
        head += " (while nobody watched)"
    if change.type is not ChangeType.MODIFIED:
        return head
    if not found:
        return f"{head}  nothing that is shown here"
    parts = [f"{written(one.path)}: {_value(one.old)} → {_value(one.new)}" for one in found[:most]]
    more = f" (+{len(found) - most} more)" if len(found) > most else ""
    return f"{head}  {', '.join(parts)}{more}"


def _as_json(change: Change, found: Sequence[Difference], most: int) -> str:
    document: dict[str, Any] = {
        "time": change.received_at.isoformat(timespec="milliseconds"),
        "type": str(change.type),
        "resource": change.resource,
        "key": str(change.key),
    }
    if change.type is ChangeType.MODIFIED:
        document["changes"] = [_side_by_side(one) for one in found[:most]]
        document["more"] = max(0, len(found) - most)
    return json.dumps(document, ensure_ascii=False)


def _side_by_side(one: Difference) -> dict[str, Any]:
    """A side that is unset is left out."""
    sides = {name: value for name, value in (("old", one.old), ("new", one.new)) if value is not UNSET}
    return {"path": written(one.path), **sides}


def _value(value: Any) -> str:
    plain = value is UNSET or isinstance(value, str)
    text = str(value) if plain else json.dumps(value, ensure_ascii=False)
    text = text.replace("\n", "\\n")
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
