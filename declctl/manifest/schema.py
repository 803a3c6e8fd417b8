"""The published JSON Schema of manifests, and `explain`, which describes one field of it.

`python -m declctl.manifest.schema` prints the schema and makes the copy in `schema/`; a test checks that the
copy is current. The config schemas of plugins are not in it, but in `schema_with_plugins`: the runtime, which
knows the installed plugins, checks configs with them.
"""

import copy
import json
import re
import sys
from collections.abc import Mapping
from typing import Literal

import msgspec

from declctl.errors import UsageError
from declctl.manifest.controller_test import CONTROLLER_TEST
from declctl.manifest.diagnostics import did_you_mean, listed
from declctl.manifest.fields import Schema, item_of, notes_of
from declctl.manifest.model import CONTROLLER
from declctl.manifest.values import Json, mapping_at, value_at

_ID = "https://declctl.dev/schema/declctl.v1alpha1.schema.json"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
KINDS: Mapping[str, Schema] = {"Controller": CONTROLLER, "ControllerTest": CONTROLLER_TEST}
"""The kinds of documents, with their schemas."""
_TYPES = {"object": "mapping", "array": "list", "string": "text", "integer": "whole number"}


ChangeEffect = Literal["live", "restart"]


class Explanation(msgspec.Struct, frozen=True):
    """The description of one field.

    `default`, `enum` and `example` are in the form that a person writes. `live` is "live" if a change takes
    effect at a reload, "restart" if it takes a new process, and None in a document that no process runs.
    """

    path: str
    type: str
    default: Json
    description: str
    enum: tuple[str, ...]
    example: Json
    live: ChangeEffect | None
    required: bool = False
    fields: tuple[tuple[str, str, str], ...] = ()  # name, type, description


def schema(kind: str | None = None) -> Schema:
    """The JSON Schema 2020-12 of all kinds of documents, or of one kind (`Controller`, `ControllerTest`).

    Raises UsageError for an unknown kind.
    """
    kinds: dict[str, Json] = dict(KINDS)
    head: Schema = {"$schema": _DIALECT, "$id": _ID, "title": "declctl manifest"}
    if kind is not None:
        if kind not in kinds:
            advice = did_you_mean(kind, kinds) or f"the kinds are {listed(kinds)}"
            raise UsageError(f'There is no kind "{kind}"; {advice}.')
        return {**head, **mapping_at(kinds, kind)}
    # if/then/else instead of oneOf: an editor then shows only the faults of the kind that the document has.
    is_test: Schema = {"properties": {"kind": {"const": "ControllerTest"}}, "required": ["kind"]}
    return {
        **head,
        "if": is_test,
        "then": {"$ref": "#/$defs/ControllerTest"},
        "else": {"$ref": "#/$defs/Controller"},
        "$defs": kinds,
    }


def schema_with_plugins(kind: str | None, configs: Mapping[str, Schema | None]) -> Schema:
    """As `schema`, with the names of plugins and the schemas of their configs, for editors.

    `configs` are those schemas by the name of the plugin; None for a plugin without one.
    """
    document = copy.deepcopy(schema(kind))
    controller = document if kind is not None else mapping_at(document, "$defs", "Controller")
    if kind == "ControllerTest" or not configs:
        return document
    item = mapping_at(controller, "properties", "spec", "properties", "plugins", "items")
    mapping_at(item, "properties", "name")["examples"] = list[Json](configs)
    item["allOf"] = [
        {
            "if": {"properties": {"name": {"const": name}}, "required": ["name"]},
            "then": {"properties": {"config": _embedded(name, config)}},
        }
        for name, config in configs.items()
        if config is not None
    ]
    return document


def _embedded(plugin: str, config: Schema) -> Schema:
    """A whole schema as a part of another one: its references stay within it."""
    if "$ref" in json.dumps(config):
        return {"$id": f"urn:declctl:plugin:{plugin}", **config}
    return {name: value for name, value in config.items() if name != "$schema"}


def explain(path: str) -> Explanation:
    """Describes the field at `path`, such as `spec.handlers.retry`. A list in the path stands for its items.

    The path may begin with `Controller.` or `ControllerTest.`. Raises UsageError for an unknown field; the
    message lists the fields at that place.
    """
    kind, names = _steps(path)
    found, parent = schema(kind), schema(kind)
    live: ChangeEffect | None = "live" if kind == "Controller" else None
    for depth, name in enumerate(names):
        parent = item_of(found)
        fields = mapping_at(parent, "properties")
        if name not in fields:
            raise UsageError(_unknown(names[:depth], name, list(fields)))
        found = mapping_at(fields, name)
        # A field takes a restart if a field above it takes one.
        if notes_of(found).get("live") is False:
            live = "restart"
    required = bool(names) and names[-1] in _texts(parent.get("required"))
    return _explanation(".".join(names) or kind, found, live=live, required=required)


def _steps(path: str) -> tuple[str, list[str]]:
    """The kind, and the names of the fields in a path; indexes such as `[0]` and `[]` are ignored."""
    names = [re.sub(r"\[[^\]]*\]$", "", step) for step in path.strip().split(".") if step]
    kinds = {each.lower(): each for each in KINDS}
    head = names[0].lower() if names else ""
    return (kinds[head], names[1:]) if head in kinds else ("Controller", names)


def published() -> str:
    """The text of the copy in `schema/`."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _explanation(path: str, found: Schema, *, live: ChangeEffect | None, required: bool) -> Explanation:
    return Explanation(
        path=path,
        type=_type(found),
        default=found.get("default"),
        description=str(found.get("description", "")),
        enum=tuple(_texts(found.get("enum"))),
        example=value_at(found, "examples", 0),
        live=live,
        required=required,
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


if __name__ == "__main__":
    sys.stdout.write(published())
