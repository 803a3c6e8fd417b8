"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386).

Pure: both return a new document and leave the given one alone.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

from declctl.objects import KubeObject
from declctl.sandbox.status import Refusal, bad_request


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
    document: Any = copy.deepcopy(target)
    for operation in cast("list[Any]", patch):
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise bad_request("error decoding patch: each operation is an object with op and path")
        document = _apply(document, cast("KubeObject", operation))
    return document


def _apply(document: Any, operation: KubeObject) -> Any:
    path = _pointer(operation["path"])
    match operation.get("op"):
        case "add":
            return _add(document, path, _value(operation))
        case "remove":
            return _remove(document, path)
        case "replace":
            _find(document, path)
            return _replace(document, path, _value(operation))
        case "test":
            if _find(document, path) != operation.get("value"):
                raise _impossible()
            return document
        case "move":
            source = _pointer(operation.get("from", ""))
            value = _find(document, source)
            return _add(_remove(document, source), path, value)
        case "copy":
            return _add(document, path, copy.deepcopy(_find(document, _pointer(operation.get("from", "")))))
        case other:
            raise bad_request(f"error decoding patch: unexpected kind of operation: {other!r}")


def _value(operation: KubeObject) -> Any:
    if "value" not in operation:
        raise bad_request(f"error decoding patch: {operation['op']} needs a value")
    return copy.deepcopy(operation["value"])


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise bad_request(f"error decoding patch: the path {text!r} does not begin with '/'")
    return [step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:]]


def _find(document: Any, path: Sequence[str]) -> Any:
    for step in path:
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list):
            elements = cast("list[Any]", document)
            document = elements[_index(step, len(elements) - 1)]
        else:
            raise _impossible()
    return document


def _add(document: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    parent, last = _find(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        elements = cast("list[Any]", parent)
        elements.insert(len(elements) if last == "-" else _index(last, len(elements)), value)
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        raise _impossible()
    return document


def _replace(document: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    parent, last = _find(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        parent[int(last)] = value
    else:
        parent[last] = value
    return document


def _remove(document: Any, path: Sequence[str]) -> Any:
    if not path:
        raise _impossible()
    _find(document, path)
    parent, last = _find(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        del parent[int(last)]
    else:
        del parent[last]
    return document


def _index(step: str, largest: int) -> int:
    if not step.isdecimal() or int(step) > largest:
        raise _impossible()
    return int(step)


def _impossible() -> Refusal:
    # The real server says no more than this either.
    return Refusal(422, "Invalid", "the server rejected our request due to an error in our request", {})
