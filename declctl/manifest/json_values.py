"""The plain data of a document, the paths into it, and the little that is asked of both."""

from collections.abc import Iterator
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""What JSON can say; what a document is after YAML has been read."""

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the root of a document: `("spec", "handlers", 0, "name")`."""


def dotted(path: Path) -> str:
    """As people write it: `spec.handlers[0].name`; the root is `the document`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text or "the document"


def value_at(data: Json, *path: str | int) -> Json:
    """What stands there, None where nothing does or where the way is of another type."""
    for step in path:
        match data, step:
            case dict(), str():
                data = data.get(step)
            case list(), int() if 0 <= step < len(data):
                data = data[step]
            case _:
                return None
    return data


def mapping_at(data: Json, *path: str | int) -> dict[str, Json]:
    """The mapping there, an empty one where there is none."""
    found = value_at(data, *path)
    return found if isinstance(found, dict) else {}


def items_at(data: Json, *path: str | int) -> list[Json]:
    """The list there, an empty one where there is none."""
    found = value_at(data, *path)
    return found if isinstance(found, list) else []


def entries_at(data: Json, *path: str | int) -> Iterator[tuple[Path, dict[str, Json]]]:
    """Each mapping in the list there, with its path; elements of other types are left out."""
    for index, item in enumerate(items_at(data, *path)):
        if isinstance(item, dict):
            yield (*path, index), item
