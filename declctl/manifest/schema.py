"""The published JSON Schema of manifests, and `explain`, which reads single fields out of it.

`python -m declctl.manifest.schema` prints the schema; the copy in `schema/` is made so, and a test
says that it is current. Plugins' own config schemas are not in it: who knows the installed plugins
adds them.
"""

import json
import re
import sys
from typing import Literal

import msgspec

from declctl.errors import UsageError
from declctl.manifest.codes import CODES
from declctl.manifest.diagnostics import did_you_mean, listed
from declctl.manifest.fields import (
    Schema,
    choice,
    document_schema,
    item_of,
    listing,
    mapping,
    notes_of,
    record,
    reference,
    text,
    whole,
)
from declctl.manifest.model import ALL_EVENTS, CONTROLLER
from declctl.manifest.values import Json, mapping_at, value_at

_ID = "https://declctl.dev/schema/declctl.v1alpha1.schema.json"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {"object": "mapping", "array": "list", "string": "text", "integer": "whole number"}


class Explanation(msgspec.Struct, frozen=True):
    """What there is to know about one field.

    `default`, `enum` and `example` are as a person would write them. `live` says whether a change
    takes a reload or a restart; `supported` is False for what this version refuses, `note` says so,
    or which values it refuses.
    """

    path: str
    type: str
    default: Json
    description: str
    enum: tuple[str, ...]
    example: Json
    live: Literal["live", "restart"]
    supported: bool
    required: bool = False
    note: str | None = None
    fields: tuple[tuple[str, str, str], ...] = ()  # name, type, description


def schema(kind: str | None = None) -> Schema:
    """The JSON Schema 2020-12 of all documents, or of one kind (`Controller`, `ControllerTest`).

    Raises UsageError for another kind.
    """
    kinds: dict[str, Json] = {"Controller": CONTROLLER, "ControllerTest": _controller_test()}
    head: Schema = {"$schema": _DIALECT, "$id": _ID, "title": "declctl manifest"}
    if kind is not None:
        if kind not in kinds:
            advice = did_you_mean(kind, kinds) or f"the kinds are {listed(kinds)}"
            raise UsageError(f'There is no kind "{kind}"; {advice}.')
        return {**head, **mapping_at(kinds, kind)}
    # if/then/else instead of oneOf: an editor then shows the faults of one kind only.
    is_test: Schema = {"properties": {"kind": {"const": "ControllerTest"}}, "required": ["kind"]}
    return {
        **head,
        "if": is_test,
        "then": {"$ref": "#/$defs/ControllerTest"},
        "else": {"$ref": "#/$defs/Controller"},
        "$defs": kinds,
    }


def explain(path: str) -> Explanation:
    """What the field at `path` (`spec.handlers.retry`) is for; items of lists are meant without saying so.

    `Controller.` or `ControllerTest.` may stand before it. Raises UsageError for a path that there
    is not, with the fields that there are.
    """
    kind, names = _steps(path)
    found, parent = schema(kind), schema(kind)
    live = True
    for depth, name in enumerate(names):
        parent = item_of(found)
        fields = mapping_at(parent, "properties")
        if name not in fields:
            raise UsageError(_unknown(names[:depth], name, list(fields)))
        found = mapping_at(fields, name)
        # A field takes a restart if any field above it does.
        live = live and notes_of(found).get("live") is not False
    required = bool(names) and names[-1] in _texts(parent.get("required"))
    return _explanation(".".join(names) or kind, found, live=live, required=required)


def _steps(path: str) -> tuple[str, list[str]]:
    """The kind, and the names of the fields on the way; indexes such as `[0]` and `[]` count for nothing."""
    names = [re.sub(r"\[[^\]]*\]$", "", step) for step in path.strip().split(".") if step]
    kinds = {"controller": "Controller", "controllertest": "ControllerTest"}
    head = names[0].lower() if names else ""
    return (kinds[head], names[1:]) if head in kinds else ("Controller", names)


def published() -> str:
    """The text of the published copy."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _explanation(path: str, found: Schema, *, live: bool, required: bool) -> Explanation:
    notes = notes_of(found)
    code = notes.get("refuses")
    choices = tuple(_texts(found.get("enum")))
    accepted = [choice for choice in choices if choice in _texts(notes.get("accepts"))]
    return Explanation(
        path=path,
        type=_type(found),
        default=found.get("default"),
        description=str(found.get("description", "")),
        enum=choices,
        example=value_at(found, "examples", 0),
        live="live" if live else "restart",
        supported=code is None or bool(accepted),
        required=required,
        note=None if code is None else f"{code}: {CODES[str(code)]}",
        fields=tuple(_described(item_of(found))),
    )


def _described(found: Schema) -> list[tuple[str, str, str]]:
    fields = mapping_at(found, "properties")
    described = ((name, mapping_at(fields, name)) for name in fields)
    return [(name, _type(field), str(field.get("description", ""))) for name, field in described]


def _type(found: Schema) -> str:
    value = notes_of(found).get("value")
    if value in ("duration", "quantity"):
        return str(value)
    if "const" in found or "enum" in found:
        return "text"
    types = [_TYPES.get(name, name) for name in _texts(found.get("type"))]
    if types == ["list"]:
        return f"list of {_type(mapping_at(found, 'items'))}"
    return " or ".join(types)


def _texts(value: Json) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _unknown(parents: list[str], name: str, fields: list[str]) -> str:
    place = ".".join(parents) or "the document"
    if not fields:
        return f'There is no field "{name}" in {place}: it has no fields.'
    advice = did_you_mean(name, fields) or f"its fields are {listed(fields)}"
    return f'There is no field "{name}" in {place}; {advice}.'


def _controller_test() -> Schema:
    """A whole ControllerTest."""
    spec = record(
        "What is given, what happens, and what is expected.",
        {
            "controllerRef": reference("The Controller under test.", "a Controller in the same files"),
            "given": mapping(
                "Objects that are there before the first step, for each resource.",
                values=listing("Objects.", _object()),
            ),
            "steps": listing("What happens, in order.", _step()),
        },
        required=("controllerRef", "steps"),
    )
    return document_schema("ControllerTest", "A test of a Controller that needs no cluster.", spec)


def _object() -> Schema:
    return mapping(
        "A whole object, or {file: PATH} for one in a file beside the manifest.",
        examples=[{"file": "testdata/running.yaml"}],
    )


def _step() -> Schema:
    target: dict[str, Schema] = {
        "resource": text("The name of a resource.", examples=["pods"]),
        "name": text("The name of the object."),
        "namespace": text("The namespace of the object.", default="default"),
    }
    patch = mapping("A merge patch.", examples=[{"status": {"phase": "Failed"}}])
    create = {"resource": target["resource"], "object": _object()}
    return record(
        "A change, and what follows from it.",
        {
            "create": record("A new object.", create, required=("resource", "object")),
            "modify": record(
                "A changed object.",
                {**target, "patch": patch},
                required=("resource", "name", "patch"),
            ),
            "delete": record("An object goes.", target, required=("resource", "name")),
            "expect": _expectation(),
        },
    )


def _expectation() -> Schema:
    handled = record(
        "A call of a handler.",
        {
            "handler": text("The name of the handler."),
            "event": choice("The type of change.", list(ALL_EVENTS)),
            "times": whole("How often.", minimum=0, default=1),
        },
        required=("handler",),
    )
    call = record(
        "A call of a plugin's method.",
        {
            "plugin": text("The name of the plugin."),
            "method": text("The name of the method."),
            "match": mapping("Arguments, with * for anything.", examples=[{"text": "*Failed*"}]),
        },
        required=("plugin", "method"),
    )
    return record(
        "What must have happened when everything rests.",
        {
            "handled": listing("Calls of handlers.", handled),
            "calls": listing("Calls of plugins.", call),
        },
    )


if __name__ == "__main__":
    sys.stdout.write(published())
