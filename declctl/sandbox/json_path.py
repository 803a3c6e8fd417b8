"""The JSONPath of additionalPrinterColumns.

`.spec.x`, `.status.items[0].y`, `['a.b']`, `[*]`, `[?(@.type=="Ready")].status`.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, cast

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
