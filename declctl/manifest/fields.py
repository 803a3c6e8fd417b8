"""Declarations of the fields of a manifest: each field is declared once, in the class that has its value.

A declaration is a piece of JSON Schema, a function that reads the value, and the value of an absent field.
The published schema, `explain`, the checks, the refusals and the building of the model all use the
declarations in `model`.

The functions `text`, `choice`, `duration`, … make pieces of JSON Schema. Besides their own parameters they
take `default` (in the form that a person writes), `examples`, and other keywords of JSON Schema. Notes for
declctl stand under the keyword `x-declctl`, which other readers of JSON Schema ignore:

    value      the kind of a text (`duration`, `entryPoint`, …); `VALUE_KINDS` has the function that reads it
    minimum    of a duration, in seconds; with `zero`, `0s` is allowed, too
    live       False if a change takes a restart; applies to all fields below
    hints      field names of other systems, each with the name of the field here
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from declctl import codes
from declctl.manifest import values
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
from declctl.objects.expressions import compile_expression
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
    """The notes for declctl in a piece of the schema; empty if there are none."""
    notes = schema.get(NOTES)
    return notes if isinstance(notes, dict) else {}


def noted(schema: Schema, **notes: Json) -> Schema:
    """The same piece with more notes."""
    return {**schema, NOTES: {**notes_of(schema), **notes}}


def text(description: str, *, value: str | None = None, **more: Json) -> Schema:
    """A text that isn't empty; `value` is its kind, a key of `VALUE_KINDS`."""
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
    """A duration in Go's form, with a unit; `minimum` is in seconds, `zero` also allows `0s`."""
    schema: Schema = {
        "type": "string",
        "pattern": DURATION_PATTERN,
        "description": description,
        **more,
    }
    schema.setdefault("examples", ["500ms", "10s", "1h30m"])
    return noted(schema, value="duration", minimum=minimum, zero=zero)


def quantity(description: str, **more: Json) -> Schema:
    """A size in bytes, as a Kubernetes quantity."""
    schema: Schema = {"type": ["string", "integer"], "description": description, **more}
    return noted(schema, value="quantity")


def entry_point(description: str, *, function: bool = False, **more: Json) -> Schema:
    """A Python module, or an attribute of one; with `function`, it must be an attribute."""
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
    """`{name: …}`, which refers to a declaration in the same manifest; `what` describes the declaration."""
    return record(description, {"name": text(f"The name of {what}.")}, required=("name",))


def restart(schema: Schema) -> Schema:
    """A field whose changes take effect when the process starts again, not at a reload."""
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
    """A list of namespaces, or a selector of namespaces."""
    name = text("The name of a namespace, or * for all of them.", value="namespace")
    schema = record(
        description,
        {
            "labelSelector": label_selector(
                "The namespaces with these labels, each with a watch of its own. They are followed: a "
                "namespace comes in when it has the labels, and leaves when it has lost them or was deleted. "
                "Needs the right to list and watch namespaces."
            )
        },
        required=("labelSelector",),
        examples=[["default", "team-a"], ["*"], {"labelSelector": {"matchLabels": {"team": "web"}}}],
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
    """A mapping of the manifest: the base class of frozen dataclasses with fields of `field` and `nested`.

    A `ClassVar[Schema]` declares a field that is in the schema and not in the model, as other fields have its
    value. `ABOUT` is the schema of the mapping without its fields.
    """

    __slots__ = ()
    ABOUT: ClassVar[Schema]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LocatedSpec(Spec):
    """A mapping with its path in the document. Comparisons ignore the path."""

    path: Path = dataclasses.field(default=(), compare=False, repr=False)


_Spec = TypeVar("_Spec", bound=Spec)


def _read_field_selector(text: str) -> str:
    selector = FieldSelector.parse(text)
    if not selector.conditions:
        raise BadValue("the field selector selects everything", suggestion="remove it")
    return str(selector)


def _read_field_path(text: str) -> str:
    return str(FieldPath.parse(text))


def _read_expression(text: str) -> str:
    compile_expression(text)
    return text


def _read_dropped_path(text: str) -> str:
    dropped = str(FieldPath.parse(text))
    for kept in _KEPT_FIELDS:
        if kept == dropped or kept.startswith(f"{dropped}."):
            raise BadValue(
                f'"{text}" can\'t be dropped: the cache needs {kept}', suggestion="remove it from the list"
            )
    return dropped


def read_label_selector(value: Json) -> str:
    """The canonical text of a label selector in either form; raises ValueError."""
    is_text = isinstance(value, str)
    return str(LabelSelector.parse(value) if is_text else LabelSelector.from_mapping(mapping_at(value)))


class ValueKind(NamedTuple):
    """A kind of value: `read` reads it; if `read` raises ValueError, the fault has the code `code`."""

    code: str
    read: Callable[[Any], object]


VALUE_KINDS: Final[Mapping[str, ValueKind]] = {
    "duration": ValueKind(codes.BAD_DURATION, parse_duration),
    "quantity": ValueKind(codes.BAD_QUANTITY, parse_quantity),
    "label": ValueKind(codes.BAD_NAME, values.check_label),
    "namespace": ValueKind(codes.BAD_NAME, values.check_namespace),
    "subdomain": ValueKind(codes.BAD_NAME, values.check_subdomain),
    "objectName": ValueKind(codes.BAD_NAME, values.check_object_name),
    "finalizer": ValueKind(codes.BAD_NAME, values.check_finalizer),
    "fileName": ValueKind(codes.BAD_NAME, values.check_file_name),
    "absoluteFile": ValueKind(codes.BAD_NAME, values.check_absolute_file),
    "indexName": ValueKind(codes.BAD_NAME, values.check_index_name),
    "dataKey": ValueKind(codes.BAD_NAME, values.check_data_key),
    "pluginName": ValueKind(codes.BAD_NAME, values.check_plugin_name),
    "fieldManager": ValueKind(codes.BAD_NAME, values.check_field_manager),
    "kind": ValueKind(codes.BAD_NAME, values.check_kind),
    "apiVersion": ValueKind(codes.BAD_NAME, values.check_api_version),
    "variable": ValueKind(codes.BAD_NAME, values.check_variable),
    "labelKey": ValueKind(codes.BAD_NAME, values.check_label_key),
    "labelSelector": ValueKind(codes.BAD_LABEL_SELECTOR, read_label_selector),
    "fieldSelector": ValueKind(codes.BAD_FIELD_SELECTOR, _read_field_selector),
    "fieldPath": ValueKind(codes.BAD_FIELD_PATH, _read_field_path),
    "droppedPath": ValueKind(codes.BAD_FIELD_PATH, _read_dropped_path),
    "expression": ValueKind(codes.BAD_EXPRESSION, _read_expression),
    "address": ValueKind(codes.BAD_ADDRESS, parse_address),
    "entryPoint": ValueKind(codes.BAD_ENTRY_POINT, parse_entry_point),
    "function": ValueKind(codes.BAD_ENTRY_POINT, partial(parse_entry_point, needs="function")),
    "class": ValueKind(codes.BAD_ENTRY_POINT, partial(parse_entry_point, needs="class")),
    "cron": ValueKind(codes.BAD_CRON, values.check_cron),
    "timeZone": ValueKind(codes.BAD_TIME_ZONE, values.check_time_zone),
    "versionRange": ValueKind(codes.BAD_VERSION_RANGE, values.check_version_range),
}
"""Each kind of value that a note can name. The checks and the model use the same function."""


def about(
    description: str,
    *,
    hints: Mapping[str, str] | None = None,
    one_of: Iterable[str] = (),
    any_of: Iterable[Sequence[str]] = (),
    **more: Json,
) -> Schema:
    """The schema of a mapping without its fields.

    Exactly one of the fields in `one_of` must be present, and all fields of one of the groups in `any_of`.
    """
    schema: Schema = {"description": description, **more}
    if one_of:
        schema["oneOf"] = [{"required": [name]} for name in one_of]
    if any_of:
        schema["anyOf"] = [{"required": list[Json](names)} for names in any_of]
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

    `key` is its name in the document, by default the name of the field in camel case. `read` takes a checked
    value of the document and returns the value of the model; by default it follows from the kind of the
    piece. An absent field gets the default of the piece, or `absent` if the piece has no default.
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


def nested(kind: type[_Spec], *, optional: bool = False, live: bool = True) -> Any:
    """A field that is a mapping of type `kind`; if it is absent, its fields have their defaults.

    All fields of `kind` have defaults; for a mapping with required fields, use `nested_record`. With
    `optional`, the value is None in the model if all fields have their defaults. Without `live`, a change of
    the mapping takes effect when the process starts again.
    """
    # A spec is frozen, so that all documents without the mapping can share one value.
    usual = kind()

    def read(value: Json, path: Path) -> _Spec | None:
        found = build(kind, value, path)
        return None if optional and found == usual else found

    piece = schema_of(kind)
    return _declared(piece if live else restart(piece), read, default=None if optional else usual)


def nested_record(kind: type[_Spec], *, required: bool = False, live: bool = True) -> Any:
    """A field that is a mapping of type `kind`, which may have required fields; None if it is absent.

    Without `live`, a change of the mapping takes effect when the process starts again.
    """
    piece = schema_of(kind)
    return _declared(
        piece if live else restart(piece),
        lambda value, path: build(kind, value, path),
        default=None,
        required=required,
    )


def nested_list(
    kind: type[_Spec],
    description: str,
    *,
    live: bool = True,
    ordered: Callable[[Sequence[_Spec]], Iterable[_Spec]] = tuple,
    kw_only: bool = False,
) -> Any:
    """A field that is a list of mappings; `ordered` sorts them for the model."""

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
    """The piece of the schema for a mapping; its fields are in the order of the class."""
    fields = {each.name: each for each in dataclasses.fields(kind)}  # pyright: ignore[reportArgumentType]
    properties: dict[str, Json] = {}
    required: list[Json] = []
    # Annotations, not dataclass fields: they include the fields that are not in the model, in order, and not
    # the inherited path.
    for name in inspect.get_annotations(kind):
        if name not in fields and name != "ABOUT":
            properties[_camel(name)] = getattr(kind, name)
        elif name in fields and (metadata := fields[name].metadata):
            key = _key_of(fields[name])
            properties[key] = metadata["piece"]
            if metadata["required"]:
                required.append(key)
    own = dict(kind.ABOUT)
    schema: Schema = {"type": "object", "description": own.pop("description"), "properties": properties}
    if required:
        schema["required"] = required
    return {**schema, "additionalProperties": False, **own}


def build(kind: type[_Spec], data: Json, path: Path, **more: object) -> _Spec:
    """The spec of a checked mapping.

    It can't fail, as the checks have read the values with the same functions. `more` has values for fields
    that are not in the mapping. Absent fields get their defaults.
    """
    given = mapping_at(data)
    values: dict[str, Any] = {**more, "path": path} if issubclass(kind, LocatedSpec) else more
    for each in dataclasses.fields(kind):  # pyright: ignore[reportArgumentType]
        if each.metadata:
            key = _key_of(each)
            if key in given:
                values[each.name] = each.metadata["read"](given[key], (*path, key))
    return kind(**values)


def set_fields(spec: Spec) -> dict[str, Any]:
    """The values of a spec by their keys in a document, without those that are None."""
    fields = [each for each in dataclasses.fields(spec) if each.metadata]  # pyright: ignore[reportArgumentType]
    found = {_key_of(each): getattr(spec, each.name) for each in fields}
    return {key: value for key, value in found.items() if value is not None}


def _key_of(each: dataclasses.Field[Any]) -> str:
    return each.metadata["key"] or _camel(each.name)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def item_of(schema: Schema) -> Schema:
    """The schema of the items of a list, or of a list of lists; any other schema is returned as it is."""
    while "properties" not in schema and "items" in schema:
        schema = mapping_at(schema, "items")
    return schema


def default_of(schema: Schema, *names: str) -> Json:
    """The default of the field at a path of names. A list in the path stands for its items."""
    for name in names:
        schema = mapping_at(item_of(schema), "properties", name)
    return schema.get("default")


def walk(data: Json, shape: Schema) -> Sequence[tuple[Path, Json, Schema]]:
    """Each value that the schema `shape` knows, with its path and its piece of the schema, parents first."""
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
