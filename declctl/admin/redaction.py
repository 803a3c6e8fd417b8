"""What of a document may be shown to everybody: types and counts, no texts.

Handlers, servers and objects write the texts, and secrets may be in them. This module names the fields whose
texts are harmless. The texts of all other fields are left out, also of fields that are added later.
"""

import re
from collections.abc import Mapping
from typing import Any, cast

_WORD = re.compile(r"[A-Za-z]+", re.ASCII)
# Names of the manifest, words of declctl, and classes of errors.
_KEPT = frozenset(
    {"name", "bundleHash", "type", "status", "state", "version", "resourceVersion", "result"}
    | {"time", "lastTransitionTime", "unreachableSince", "errorType", "lastErrorType"}
)
_TYPES = {"error": "errorType", "lastError": "lastErrorType"}  # a text, and the field that has its class


def redacted(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of `/status` or `/history` without texts, and with `redacted`.

    An error is its class, a message is empty, any other text is null and any list of texts empty.
    """
    return {**_mapping(document), "redacted": True}


def type_name(name: str | None) -> str | None:
    """The class of an error; one that has no proper name is an Exception."""
    return name if name is None or name.isidentifier() else "Exception"


def _mapping(given: Mapping[str, Any]) -> dict[str, Any]:
    shown = {key: _value(key, value) for key, value in given.items()}
    for text, kind in _TYPES.items():
        if kind in given:
            shown[text] = shown[kind] = type_name(given[kind])
    return shown


def _value(key: str, value: Any) -> Any:
    match value:
        case str():
            return value if key in _KEPT or (key == "reason" and _WORD.fullmatch(value)) else _nothing(key)
        case Mapping():
            return _mapping(cast("Mapping[str, Any]", value))
        case list() | tuple():
            items = cast("list[Any]", value)
            return [_value(key, item) for item in items if not isinstance(item, str)]
        case _:
            return value


def _nothing(key: str) -> str | None:
    return "" if key == "message" else None
