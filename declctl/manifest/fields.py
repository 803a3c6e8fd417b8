"""How a field of a manifest is declared: once, in the class that holds its value.

A declaration is a piece of JSON Schema, in the words of this module, and what follows from it: how the value
is read, and the value of a field that is absent. The published schema, `explain`, the checks, the refusals
and the building of the model are all derived from the declarations in `model`.

Each word gives a piece of JSON Schema. Any of them takes these keywords besides its own: `default` (as a
person would write it), `examples`, and whatever else JSON Schema knows. Notes for declctl alone stand under
the keyword `x-declctl`, which other readers of JSON Schema skip:

    value      how a text is read (`duration`, `entryPoint`, …): `VALUE_KINDS` has the function
    minimum    of a duration, in seconds; `zero` says that `0s` is fine too, and what it means
    live       False for what takes a restart to change; holds for everything below
    refuses    the code of what this version doesn't do yet; `accepts` are the values that are fine
    hints      field names of other systems, each with the field that is meant
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from declctl.manifest import codes, values
from declctl.manifest.values import (
    BadValue,
    Json,
    Path,
    Schema,
    mapping_at,
    parse_address,
    parse_duration,
    parse_entry_point,
    parse_quantity,
)
from declctl.objects.fields import FieldPath, FieldSelector, LabelSelector

API_VERSION: Final = "declctl.dev/v1alpha1"
NOTES: Final = "x-declctl"
_KEPT_FIELDS = (
    "apiVersion",
    "kind",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.resourceVersion",
)

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


def refused(schema: Schema, code: str, *, accepts: tuple[Json, ...] = ()) -> Schema:
    """Documented, and not done yet by this version, but for the values that change nothing."""
    return noted(schema, refuses=code, accepts=list(accepts))


def restart(schema: Schema) -> Schema:
    """Takes effect when the process starts again, not at a reload."""
    return noted(schema, live=False)


def label_selector(description: str) -> Schema:
    """A selector in metav1's form, or in kubectl's."""
    expression = record(
        "One condition on one label.",
        {
            "key": text("The label."),
            "operator": choice("How the label is compared.", ["In", "NotIn", "Exists", "DoesNotExist"]),
            "values": listing(
                "The values, for In and NotIn.", {"type": "string", "description": "A label value."}
            ),
        },
        required=("key", "operator"),
    )
    fields: dict[str, Schema] = {
        "matchLabels": mapping(
            "Labels and the values that they must have.",
            values={"type": "string", "description": "A label value."},
            examples=[{"app": "web"}],
        ),
        "matchExpressions": listing("Conditions that must all hold.", expression),
    }
    selector = record(
        description, fields, examples=[{"matchLabels": {"app": "web"}}, "app=web,tier in (a,b)"]
    )
    return noted({**selector, "type": ["object", "string"]}, value="labelSelector")


def namespaces(description: str) -> Schema:
    """A list of namespaces, or a selector of them."""
    name = text("The name of a namespace, or * for all of them.", value="namespace")
    schema = record(
        description,
        {"labelSelector": refused(label_selector("Namespaces by their labels."), codes.NAMESPACE_SELECTOR)},
        required=("labelSelector",),
        examples=[["default", "team-a"], ["*"]],
    )
    return {
        **schema,
        "type": ["array", "object"],
        "items": name,
        "minItems": 1,
        "uniqueItems": True,
    }


def document_schema(kind: str, description: str, spec: Schema) -> Schema:
    """A Kubernetes object with this spec."""
    notes = mapping("As on any Kubernetes object; not read.", values={"type": "string"})
    metadata = record(
        "As on any Kubernetes object.",
        {
            "name": text("The name, in status, logs and metrics.", value="subdomain", examples=["pod-guard"]),
            "namespace": text("As on any Kubernetes object; not read.", value="label"),
            "labels": notes,
            "annotations": notes,
        },
        required=("name",),
    )
    return record(
        description,
        {
            "apiVersion": {"const": API_VERSION, "description": "The version of this shape."},
            "kind": {"const": kind, "description": "The kind of document."},
            "metadata": restart(metadata),
            "spec": spec,
        },
        required=("apiVersion", "kind", "metadata", "spec"),
    )


class Spec:
    """A mapping of the manifest: the base of frozen dataclasses, whose fields `field` and `nested` declare.

    A `ClassVar[Schema]` declares a field that the manifest may have and the model does not: one that this
    version refuses.
    """

    __slots__ = ()
    ABOUT: ClassVar[Schema]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LocatedSpec(Spec):
    """A mapping that knows where it stands in the document; that counts for nothing when two are compared."""

    path: Path = dataclasses.field(default=(), compare=False, repr=False)


_Spec = TypeVar("_Spec", bound=Spec)


def _read_field_selector(text: str) -> str:
    selector = FieldSelector.parse(text)
    if not selector.conditions:
        raise BadValue("the field selector selects everything", suggestion="remove it")
    return str(selector)


def _read_field_path(text: str) -> str:
    return str(FieldPath.parse(text))


def _read_dropped_path(text: str) -> str:
    dropped = str(FieldPath.parse(text))
    for kept in _KEPT_FIELDS:
        if kept == dropped or kept.startswith(f"{dropped}."):
            raise BadValue(
                f'"{text}" can\'t be dropped: the cache needs {kept}', suggestion="remove it from the list"
            )
    return dropped


def _read_label_selector(value: Json) -> str:
    is_text = isinstance(value, str)
    return str(LabelSelector.parse(value) if is_text else LabelSelector.from_mapping(mapping_at(value)))


class ValueKind(NamedTuple):
    """How a kind of value is read; `code` is that of a value for which `read` raises ValueError."""

    code: str
    read: Callable[[Any], object]


VALUE_KINDS: Final[Mapping[str, ValueKind]] = {
    "duration": ValueKind(codes.BAD_DURATION, parse_duration),
    "quantity": ValueKind(codes.BAD_QUANTITY, parse_quantity),
    "label": ValueKind(codes.BAD_NAME, values.check_label),
    "namespace": ValueKind(codes.BAD_NAME, values.check_namespace),
    "subdomain": ValueKind(codes.BAD_NAME, values.check_subdomain),
    "objectName": ValueKind(codes.BAD_NAME, values.check_object_name),
    "fileName": ValueKind(codes.BAD_NAME, values.check_file_name),
    "indexName": ValueKind(codes.BAD_NAME, values.check_index_name),
    "pluginName": ValueKind(codes.BAD_NAME, values.check_plugin_name),
    "kind": ValueKind(codes.BAD_NAME, values.check_kind),
    "apiVersion": ValueKind(codes.BAD_NAME, values.check_api_version),
    "variable": ValueKind(codes.BAD_NAME, values.check_variable),
    "labelSelector": ValueKind(codes.BAD_LABEL_SELECTOR, _read_label_selector),
    "fieldSelector": ValueKind(codes.BAD_FIELD_SELECTOR, _read_field_selector),
    "fieldPath": ValueKind(codes.BAD_FIELD_PATH, _read_field_path),
    "droppedPath": ValueKind(codes.BAD_FIELD_PATH, _read_dropped_path),
    "address": ValueKind(codes.BAD_ADDRESS, parse_address),
    "entryPoint": ValueKind(codes.BAD_ENTRY_POINT, parse_entry_point),
    "function": ValueKind(codes.BAD_ENTRY_POINT, partial(parse_entry_point, attribute_needed=True)),
    "versionRange": ValueKind(codes.BAD_VERSION_RANGE, values.check_version_range),
}
"""Each kind of value that a piece of the schema can name; the checks and the model read with one function."""


def about(
    description: str, *, hints: Mapping[str, str] | None = None, one_of: Iterable[str] = (), **more: Json
) -> Schema:
    """What the schema says of a mapping besides its fields; of those in `one_of` exactly one is needed."""
    schema: Schema = {"description": description, **more}
    if one_of:
        schema["oneOf"] = [{"required": [name]} for name in one_of]
    return schema if hints is None else noted(schema, hints=dict(hints))


def field(
    piece: Schema,
    *,
    key: str | None = None,
    read: Callable[[Any], object] | None = None,
    absent: object = None,
    required: bool = False,
) -> Any:
    """A field of the model, with its piece of the schema.

    `key` is its name in the document, by default that of the field in camel case. `read` makes the value
    out of a checked one of the document; by default the piece says how. A field that is absent has the
    default of the piece, or `absent` if the piece has none.
    """
    read = read or _reader(piece)
    return _declared(
        piece,
        lambda value, _: read(value),
        key=key,
        default=read(piece["default"]) if "default" in piece else absent,
        required=required,
    )


def option(kind: type[Enum], description: str, *, default: Enum) -> Any:
    """A field whose value is a member of an enumeration."""
    piece = choice(description, [str(each.value) for each in kind], default=default.value)
    return field(piece, read=kind)


def nested(kind: type[_Spec], *, optional: bool = False) -> Any:
    """A field that is a mapping with fields of its own; if it is absent, so are they.

    With `optional`, a mapping that says nothing but defaults is None in the model.
    """
    # A spec is frozen: all that leave the mapping out share one value.
    usual = kind()

    def read(value: Json, path: Path) -> _Spec | None:
        found = build(kind, value, path)
        return None if optional and found == usual else found

    return _declared(schema_of(kind), read, default=None if optional else usual)


def nested_list(
    kind: type[_Spec],
    description: str,
    *,
    live: bool = True,
    ordered: Callable[[Sequence[_Spec]], Iterable[_Spec]] = tuple,
    kw_only: bool = False,
) -> Any:
    """A field that is a list of mappings; `ordered` puts them into the order of the model."""

    def read(items: list[Json], path: Path) -> tuple[_Spec, ...]:
        return tuple(ordered([build(kind, item, (*path, index)) for index, item in enumerate(items)]))

    piece = listing(description, schema_of(kind))
    return _declared(piece if live else restart(piece), read, default=(), kw_only=kw_only)


def _declared(
    piece: Schema,
    read: Callable[[Any, Path], object],
    *,
    default: object,
    key: str | None = None,
    required: bool = False,
    kw_only: bool = False,
) -> Any:
    metadata = {"piece": piece, "read": read, "key": key, "required": required}
    if required:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata, kw_only=kw_only)


def _reader(piece: Schema) -> Callable[[Any], object]:
    kind = VALUE_KINDS.get(str(notes_of(piece).get("value")))
    if kind is not None:
        return kind.read
    if piece.get("type") == "array":
        read = _reader(mapping_at(piece, "items"))
        return lambda items: tuple(map(read, items))
    return lambda value: value


def schema_of(kind: type[Spec]) -> Schema:
    """The piece of the schema for a mapping, its fields in the order in which the class declares them."""
    fields = {each.name: each for each in dataclasses.fields(kind)}  # pyright: ignore[reportArgumentType]
    properties: dict[str, Json] = {}
    required: list[Json] = []
    # The annotations of the class alone: they have refused fields too, in their place, and no `path`.
    for name in inspect.get_annotations(kind):
        if name not in fields and name != "ABOUT":
            properties[_camel(name)] = getattr(kind, name)
        elif name in fields and (metadata := fields[name].metadata):
            key = metadata["key"] or _camel(name)
            properties[key] = metadata["piece"]
            if metadata["required"]:
                required.append(key)
    own = dict(kind.ABOUT)
    schema: Schema = {"type": "object", "description": own.pop("description"), "properties": properties}
    if required:
        schema["required"] = required
    return {**schema, "additionalProperties": False, **own}


def build(kind: type[_Spec], data: Json, path: Path, **more: object) -> _Spec:
    """The value that a checked mapping declares; it can't fail, as the checks read with the same functions.

    Fields that are absent are left to their defaults.
    """
    given = mapping_at(data)
    values: dict[str, Any] = {**more, "path": path} if issubclass(kind, LocatedSpec) else more
    for each in dataclasses.fields(kind):  # pyright: ignore[reportArgumentType]
        if each.metadata:
            key = each.metadata["key"] or _camel(each.name)
            if key in given:
                values[each.name] = each.metadata["read"](given[key], (*path, key))
    return kind(**values)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def item_of(schema: Schema) -> Schema:
    """The piece of the items, for a list without fields of its own."""
    while "properties" not in schema and "items" in schema:
        schema = mapping_at(schema, "items")
    return schema


def default_of(schema: Schema, *names: str) -> Json:
    """The default of a field, by the names on the way to it; items of lists are meant without saying so."""
    for name in names:
        schema = mapping_at(item_of(schema), "properties", name)
    return schema.get("default")


def walk(data: Json, shape: Schema) -> Sequence[tuple[Path, Json, Schema]]:
    """Each value that the shape knows, with its path and its piece of the shape, parents first."""
    found: list[tuple[Path, Json, Schema]] = []
    _walk(found, (), data, shape)
    return found


def _walk(found: list[tuple[Path, Json, Schema]], path: Path, data: Json, shape: Schema) -> None:
    found.append((path, data, shape))
    if isinstance(data, dict):
        fields, others = shape.get("properties"), shape.get("additionalProperties")
        known: dict[str, Json] = fields if isinstance(fields, dict) else {}
        for key, value in data.items():
            piece = known.get(key, others)
            if isinstance(piece, dict):
                _walk(found, (*path, key), value, piece)
    elif isinstance(data, list):
        piece = shape.get("items")
        if isinstance(piece, dict):
            for index, item in enumerate(data):
                _walk(found, (*path, index), item, piece)
