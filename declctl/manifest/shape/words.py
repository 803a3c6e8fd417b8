"""The words in which the shape is written: each gives a piece of JSON Schema.

Keywords that any of them takes besides its own: `default` (as a person would write it), `examples`,
and whatever else JSON Schema knows. Notes for declctl alone:

    value      how a text is read (`duration`, `entryPoint`, …): `checks.values` has one check for
    each minimum    of a duration, in seconds; `zero` says that `0s` is fine too, and what it means
    live False for what takes a restart to change; holds for everything below refuses    the code of
    what this version doesn't do yet; `accepts` are the values that are fine all the same hints
    field names of other systems, each with the field that is meant
"""

from collections.abc import Mapping
from typing import Final

from declctl.manifest.json_values import Json

Schema = dict[str, Json]

NOTES: Final = "x-declctl"

DURATION_PATTERN: Final = r"^(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+$|\$\{env:"


def notes_of(schema: Mapping[str, Json]) -> dict[str, Json]:
    """What declctl alone knows about a piece of the schema."""
    notes = schema.get(NOTES)
    return notes if isinstance(notes, dict) else {}


def noted(schema: Schema, **notes: Json) -> Schema:
    """The same piece with more notes."""
    return {**schema, NOTES: {**notes_of(schema), **notes}}


def text(description: str, *, value: str | None = None, **more: Json) -> Schema:
    """A text that isn't empty; `value` says how it is read."""
    schema: Schema = {"type": "string", "minLength": 1, "description": description, **more}
    return schema if value is None else noted(schema, value=value)


def choice(description: str, values: list[str], **more: Json) -> Schema:
    """One of a few words."""
    return {"type": "string", "enum": list[Json](values), "description": description, **more}


def flag(description: str, **more: Json) -> Schema:
    """True or false."""
    return {"type": "boolean", "description": description, **more}


def whole(description: str, *, minimum: int | None = None, **more: Json) -> Schema:
    """A whole number."""
    schema: Schema = {"type": "integer", "description": description, **more}
    return schema if minimum is None else {**schema, "minimum": minimum}


def duration(description: str, *, minimum: float = 0.001, zero: bool = False, **more: Json) -> Schema:
    """A length of time in Go's form, with a unit."""
    schema: Schema = {
        "type": "string",
        "pattern": DURATION_PATTERN,
        "description": description,
        **more,
    }
    schema.setdefault("examples", ["500ms", "10s", "1h30m"])
    return noted(schema, value="duration", minimum=minimum, zero=zero)


def quantity(description: str, **more: Json) -> Schema:
    """A size in bytes, as Kubernetes writes them."""
    schema: Schema = {"type": ["string", "integer"], "description": description, **more}
    return noted(schema, value="quantity")


def entry_point(description: str, *, function: bool = False, **more: Json) -> Schema:
    """A Python module, or something in it; with `function` only the latter."""
    more.setdefault("examples", ["handlers.pods:on_change"])
    return text(description, value="function" if function else "entryPoint", **more)


def record(
    description: str, fields: Mapping[str, Schema], *, required: tuple[str, ...] = (), **more: Json
) -> Schema:
    """A mapping with these fields and no others."""
    schema: Schema = {
        "type": "object",
        "description": description,
        "properties": dict[str, Json](fields),
    }
    if required:
        schema["required"] = list[Json](required)
    return {**schema, "additionalProperties": False, **more}


def mapping(description: str, *, values: Schema | None = None, **more: Json) -> Schema:
    """A mapping with any keys."""
    schema: Schema = {"type": "object", "description": description, **more}
    return schema if values is None else {**schema, "additionalProperties": values}


def listing(description: str, item: Schema, **more: Json) -> Schema:
    """A list."""
    return {"type": "array", "description": description, "items": item, **more}


def reference(description: str, what: str) -> Schema:
    """`{name: …}` of something that is declared in the same manifest."""
    return record(description, {"name": text(f"The name of {what}.")}, required=("name",))


def exactly_one(schema: Schema, *names: str) -> Schema:
    """Of these fields one is needed, and only one."""
    return {**schema, "oneOf": [{"required": [name]} for name in names]}


def refused(schema: Schema, code: str, *, accepts: tuple[Json, ...] = ()) -> Schema:
    """Documented, and not done yet by this version, but for the values that change nothing."""
    return noted(schema, refuses=code, accepts=list(accepts))


def restart(schema: Schema) -> Schema:
    """Takes effect when the process starts again, not at a reload."""
    return noted(schema, live=False)
