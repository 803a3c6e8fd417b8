"""The schema of a custom resource, made from the type of its spec or status.

The types are those of msgspec: Structs, dataclasses, TypedDicts, and what these hold. The result is a
structural OpenAPI v3 schema, as Kubernetes wants it: without references, and with a type for each value. The
server fills in the defaults of the type, and refuses what the type refuses. It differs from the type only
here:

- A null of a field whose default is None is dropped by the server, as is a null that its type refuses.
- Uniqueness (sets, `list_map`) and rules in CEL are checked by the server alone.
- The server alone refuses integers beyond 64 bits, an empty text for `bytes`, a line break at the end of a
  text whose pattern ends with `$`, times that RFC 3339 writes in another way, and years out of 1000 to 8999.
- The time of a `Condition` has the format alone, as in the definitions of others: a server also takes a list
  for it, and times that Python does not know.
- What is annotated with `preserve_unknown_fields` is checked by the type alone.

A type that can't be such a schema raises `SchemaErrors`, with all faults and their places.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, cast, get_type_hints

import msgspec
from msgspec import inspect as types

from declctl.errors import DeclctlError
from declctl.objects.conditions import Condition
from declctl.objects.patterns import pattern_fault
from declctl.objects.rule_checks import cel_name, rule_faults
from declctl.objects.schema_marks import IMMUTABLE, LIST_KEYS, LIST_TYPE, PRESERVE, VALIDATIONS, rules_of

Schema = dict[str, Any]

# A server takes a list for a text with a format, but for one that has at least one element and none.
_NO_LIST: Final = {"minItems": 1, "maxItems": 0}
_EXACT: Final = 2**53  # a server reads bounds as floats, which are exact up to here
_Fields = types.StructType | types.DataclassType | types.TypedDictType
# The formats also take years that Python does not know, or rounds up to, and zones that are none.
_DATE: Final = "[1-8][0-9]{3}-[0-9]{2}-[0-9]{2}"
_TIME: Final = "[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?"
_DATE_TIME: Final = f"^{_DATE}[Tt]{_TIME}([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
_UUID: Final = "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$|^[0-9A-Fa-f]{32}$"
# What a schema may have besides its type: the rest of `extra_json_schema` is for other readers.
_EXTRA: Final = frozenset(
    {
        "description", "title", "format", "externalDocs", "example", "maximum", "exclusiveMaximum", "minimum",
        "exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems", "minItems", "multipleOf",
        "maxProperties", "minProperties", "enum", "allOf", "anyOf", "oneOf", "not", PRESERVE, VALIDATIONS,
        LIST_TYPE, LIST_KEYS, "x-kubernetes-embedded-resource", "x-kubernetes-map-type",
    }
)  # fmt: skip
_IGNORED: Final = frozenset({"examples"})
_UNFIT: Final[Mapping[str, tuple[str, str]]] = {  # by msgspec's name of a type
    "TimeDeltaType": (
        "a timedelta is written as ISO 8601 (PT90S), which no other tool of Kubernetes reads",
        "use declctl.Duration, whose values are written as 90s or 1h30m",
    ),
    "TimeType": ("a server knows no format for a time of day", "use str with a pattern"),
    "DecimalType": ("a decimal has no type in a schema", "use str with a pattern, or int"),
    "NamedTupleType": ("a named tuple is written as a list of mixed types", "make it a msgspec.Struct"),
    "ExtType": ("an extension of MessagePack has no form in JSON", "use another type"),
    "NoneType": ("a value that is always null is dropped by the server", "leave the field out"),
}


_MEND_RULE: Final = "mend the rule: a server refuses a definition that it can't compile"


class SchemaFault(NamedTuple):
    """Why a type can't be a schema: a sentence about a field of a class, and what to do.

    `path` is the place in the object, such as `spec.rules[].port`; `field` is the Python name in `cls`, and
    empty for a fault of the class itself.
    """

    message: str
    suggestion: str
    path: str
    cls: type | None = None
    field: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}; {self.suggestion}"


class SchemaErrors(DeclctlError):
    """A type can't be the schema of a custom resource; `faults` has all reasons."""

    def __init__(self, faults: Sequence[SchemaFault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = tuple(faults)


def structural_schema(of: Any, *, path: str = "spec") -> Schema:
    """The structural schema of a type that msgspec can read. Raises SchemaErrors.

    `path` is the name of the value in messages.
    """
    try:
        node = types.type_info(of)
    except Exception as error:  # an annotation may be any code
        raise SchemaErrors([_unreadable(of, path, str(error))]) from error
    walk = _SchemaMaker()
    schema = walk.schema(node, ValuePlace(path))
    faults = [*walk.faults, *_rules_without_old(schema, path)]
    if faults:
        raise SchemaErrors(faults)
    return schema


def _rules_without_old(schema: Schema, path: str, *, in_list: bool = False) -> Iterator[SchemaFault]:
    """The rules with oldSelf below a list: without keys, a server does not know an element again."""
    if in_list and any("oldSelf" in each["rule"] for each in schema.get(VALIDATIONS, ())):
        message = "a rule reads oldSelf (as declctl.immutable does) in a list whose elements have no keys"
        yield SchemaFault(
            message, "annotate the list with declctl.list_map(…), or move the rule out of it", path
        )
    for name, each in (schema.get("properties") or {}).items():
        yield from _rules_without_old(each, f"{path}.{name}", in_list=in_list)
    for name, step in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(name), dict):
            uncorrelated = in_list or (name == "items" and schema.get(LIST_TYPE) != "map")
            yield from _rules_without_old(schema[name], f"{path}{step}", in_list=uncorrelated)


class ValuePlace(NamedTuple):
    """Where a value is: its path in the object, and the innermost field of a class that has it."""

    path: str
    cls: type | None = None
    field: str = ""

    def below(self, step: str) -> "ValuePlace":
        """The place of a value in this one."""
        return self._replace(path=f"{self.path}{step}")


class _SchemaMaker:
    """Makes a schema out of what msgspec knows of a type, and collects all faults."""

    def __init__(self) -> None:
        self.faults: list[SchemaFault] = []
        self._inside: list[type] = []  # the classes that hold the present value
        self._is_open = False  # below `preserve_unknown_fields`, where classes are not described

    def schema(self, node: types.Type, at: ValuePlace) -> Schema:
        """The schema of a value; empty after a fault."""
        match node:
            case types.Metadata():
                schema = self._marked(node, at)
            case types.UnionType():
                schema = self._union(node.types, at)
            case types.AnyType() | types.RawType():
                schema = {PRESERVE: True, "nullable": True}
            case types.BoolType():
                schema = {"type": "boolean"}
            case types.IntType() | types.FloatType():
                schema = self._number(node, at)
            case types.StrType():
                schema = self._text(node, at)
            case types.EnumType() | types.LiteralType():
                schema = self._choice(node, at)
            case types.ListType() | types.VarTupleType() | types.SetType() | types.FrozenSetType():
                schema = self._list(node, at)
            case types.TupleType():
                schema = self._pair(node, at)
            case types.DictType():
                schema = self._map(node, at)
            case types.StructType() | types.DataclassType() | types.TypedDictType():
                schema = self._object(node, at)
            case _:
                schema = self._special(node, at)
        return schema

    def _fault(self, at: ValuePlace, message: str, suggestion: str) -> Schema:
        self.faults.append(SchemaFault(message, suggestion, *at))
        return {}

    def _marked(self, node: types.Metadata, at: ValuePlace) -> Schema:
        extra = dict(node.extra_json_schema or {})
        if unknown := sorted(extra.keys() - _EXTRA - _IGNORED):
            advice = "leave it out; a schema of Kubernetes has no such field"
            self._fault(at, f"{unknown[0]} can't be in a schema of a custom resource", advice)
        extra = {name: value for name, value in extra.items() if name in _EXTRA}
        is_open, self._is_open = self._is_open, self._is_open or bool(extra.pop(PRESERVE, False))
        schema = self.schema(node.type, at)
        self._is_open = is_open
        validations = [*schema.get(VALIDATIONS, ()), *extra.get(VALIDATIONS, ())]
        schema |= extra | ({VALIDATIONS: validations} if validations else {})
        if schema.get(LIST_TYPE) == "map" and LIST_KEYS in extra:
            self._check_keys(schema, at)
        if VALIDATIONS in extra:
            self._check_rules(extra[VALIDATIONS], schema, at)
        return schema

    def _check_rules(self, rules: Sequence[Any], schema: Schema, at: ValuePlace) -> None:
        """Collect the faults of rules for a value, unless its schema is incomplete because of others."""
        if not self.faults:
            self.faults += faults_of_rules(rules, schema, at)

    def _check_keys(self, schema: Schema, at: ValuePlace) -> None:
        item: Schema = schema.get("items") or {}
        properties: Mapping[str, Schema] = item.get("properties") or {}
        for key in schema[LIST_KEYS]:
            of_key = properties.get(key)
            if of_key is None:
                known = f"it has {', '.join(properties)}" if properties else "name fields of a class"
                self._fault(at, f"the elements of the list have no field {key}", known)
            elif of_key.get("nullable") or of_key.get("type") in ("object", "array"):
                self._fault(at, f"{key} can't be a key of the list", "name a text, number or boolean")
            elif key not in item.get("required", ()) and "default" not in of_key:
                advice = "leave its default out, or give it one that is not None"
                self._fault(at, f"{key} is a key of the list, and may be missing in an element", advice)

    def _union(self, members: Sequence[types.Type], at: ValuePlace) -> Schema:
        given = [each for each in members if not isinstance(each, types.NoneType)]
        if len(given) == 1:
            return _nullable(self.schema(given[0], at))
        kinds = [each.type if isinstance(each, types.Metadata) else each for each in given]
        if {type(each) for each in kinds} == {types.IntType, types.StrType}:
            schema: Schema = {"x-kubernetes-int-or-string": True}
            for each in given:  # the bounds of one say nothing of the other
                of_kind = self.schema(each, at)
                of_kind.pop("type", None)
                schema |= of_kind
        elif {type(each) for each in kinds} == {types.IntType, types.FloatType}:
            schema = self.schema(types.FloatType(), at)
            if any(self.schema(each, at).keys() != {"type"} for each in kinds):
                self._fault(at, "int and float are one type, with one set of bounds", "use float alone")
        else:
            structs = all(isinstance(each, _Fields) for each in kinds)
            advice = (
                "make it one class with an optional field for each, and a rule that one of them is there"
                if structs
                else "use one type; int | str is the only union of a schema"
            )
            return self._fault(at, "a server knows no union of these types", advice)
        return schema if len(given) == len(members) else _nullable(schema)

    def _number(self, node: types.IntType | types.FloatType, at: ValuePlace) -> Schema:
        is_float = isinstance(node, types.FloatType)
        schema: Schema = {"type": "number" if is_float else "integer"}
        for bound, name, exclusive, sign in (
            (node.ge, "minimum", False, ">="),
            (node.gt, "minimum", True, ">"),
            (node.le, "maximum", False, "<="),
            (node.lt, "maximum", True, "<"),
        ):
            if bound is None:
                continue
            if bound != int(bound):
                # A server cuts the fraction of the bound off when it compares it with a whole number.
                limit = {"rule": f"self {sign} {bound}", "message": f"it should be {sign} {bound}"}
                schema.setdefault(VALIDATIONS, []).append(limit)
                continue
            if abs(bound) > _EXACT and not is_float:
                advice = "leave the bound out, or choose one of at most 2**53"
                self._fault(at, f"a server can't compare {bound} exactly", advice)
            schema[name] = bound
            if exclusive:
                schema[f"exclusive{name.capitalize()}"] = True
        if node.multiple_of is not None:
            schema["multipleOf"] = node.multiple_of
            if is_float:
                message = "a server rounds when it divides: it would not agree on multiples of a float"
                self._fault(at, message, "use int, in a smaller unit")
        return schema

    def _text(self, node: types.StrType, at: ValuePlace) -> Schema:
        schema: Schema = {"type": "string"} | _lengths(node, "Length")
        if node.pattern is not None:
            schema["pattern"] = node.pattern
            if fault := pattern_fault(node.pattern):
                self._fault(at, fault.message, fault.suggestion)
        return schema

    def _choice(self, node: types.EnumType | types.LiteralType, at: ValuePlace) -> Schema:
        members: Sequence[Any] = node.values if isinstance(node, types.LiteralType) else list(node.cls)
        values = [each.value if isinstance(each, Enum) else each for each in members]
        given = [each for each in values if each is not None]
        kinds = {type(each) for each in given}
        if len(kinds) != 1:
            return self._fault(at, "the choices are of different types", "make all texts, or all integers")
        schema = {"type": "string" if kinds == {str} else "integer", "enum": given}
        return schema if len(given) == len(values) else {**schema, "nullable": True}

    def _list(
        self, node: types.ListType | types.VarTupleType | types.SetType | types.FrozenSetType, at: ValuePlace
    ) -> Schema:
        items = self._inner(node.item_type, at.below("[]"))
        schema: Schema = {"type": "array", "items": items} | _lengths(node, "Items")
        if isinstance(node, types.SetType | types.FrozenSetType):
            schema[LIST_TYPE] = "set"
            if items.get("type") in ("object", "array") or items.get("nullable") or PRESERVE in items:
                advice = "use a list, or a set of texts or numbers"
                self._fault(at, "a server compares the elements of a set only if they are plain", advice)
        elif getattr(node.item_type, "cls", None) is Condition:
            schema |= {LIST_TYPE: "map", LIST_KEYS: ["type"]}
        return schema

    def _pair(self, node: types.TupleType, at: ValuePlace) -> Schema:
        items = [self._inner(each, at.below("[]")) for each in node.item_types]
        if not items or any(each != items[0] for each in items):
            return self._fault(
                at, "a list of a server has elements of one type", "make it a class with a field for each"
            )
        return {"type": "array", "items": items[0], "minItems": len(items), "maxItems": len(items)}

    def _map(self, node: types.DictType, at: ValuePlace) -> Schema:
        schema: Schema = {"type": "object"} | _lengths(node, "Properties")
        if node.key_type not in (types.StrType(), types.AnyType()):
            self._fault(
                at,
                "a server does not check the keys of a map: they are plain texts",
                "use dict[str, …], with a rule such as self.all(key, key.size() < 64)",
            )
        if isinstance(node.value_type, types.AnyType):
            return {**schema, PRESERVE: True}
        return {**schema, "additionalProperties": self._inner(node.value_type, at.below("{}"))}

    def _inner(self, node: types.Type, at: ValuePlace) -> Schema:
        """The schema of a value that is no field: of an element, or of a map."""
        schema = self.schema(node, at)
        if schema.get("nullable") and "enum" in schema:
            return self._null_choice(at)
        return schema

    def _null_choice(self, at: ValuePlace) -> Schema:
        return self._fault(
            at,
            "a server refuses null for a choice",
            "leave None out, or give the field the default None: then a null counts as left out",
        )

    def _object(self, node: _Fields, at: ValuePlace) -> Schema:
        if self._is_open:
            return {"type": "object", PRESERVE: True}
        cls = cast("type", getattr(node.cls, "__origin__", node.cls))  # of a generic class
        if isinstance(node, types.StructType) and (node.array_like or node.tag is not None):
            what = "array_like" if node.array_like else "a tag"
            return self._fault(
                at._replace(cls=cls, field=""), f"{cls.__name__} has {what}", "leave it out of the class"
            )
        if cls in self._inside:
            return self._fault(
                at,
                f"{cls.__name__} holds itself, and a schema of a server has an end",
                "annotate the field: Annotated[…, declctl.preserve_unknown_fields]; its content is not "
                "checked then",
            )
        self._inside.append(cls)
        schema: Schema = {"type": "object"}
        if text := docstring(cls):
            schema["description"] = text
        properties: dict[str, Schema] = {}
        validations = [*rules_of(cls)]
        # A condition of another controller may be read without a reason; metav1.Condition has one.
        fields = [_written(each) for each in node.fields] if cls is Condition else node.fields
        for field in fields:
            here = ValuePlace(f"{at.path}.{field.encode_name}", cls, field.name)
            properties[field.encode_name] = of_field = self._field(field, cls, here)
            keeps = any(each.get("rule") == IMMUTABLE for each in of_field.get(VALIDATIONS, ()))
            # A rule with oldSelf is not checked for a field that goes or comes: the object has to say so.
            if keeps and not field.required and "default" not in of_field:
                name = cel_name(field.encode_name)
                validations.append(
                    {
                        "rule": f"has(self.{name}) == has(oldSelf.{name})",
                        "message": f"{field.encode_name} can't be changed",
                    }
                )
        if properties:
            schema["properties"] = properties
        if required := [field.encode_name for field in fields if field.required]:
            schema["required"] = required
        if validations:
            schema[VALIDATIONS] = validations
            self._check_rules(rules_of(cls), schema, at._replace(cls=cls, field=""))
        self._inside.pop()
        return schema

    def _field(self, field: types.Field, cls: type, at: ValuePlace) -> Schema:
        schema = self.schema(field.type, at)
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if default is None or (not field.required and default is msgspec.NODEFAULT):
            # Without `nullable` the server drops a null: the field is left out, which means the same.
            schema.pop("nullable", None)
        elif schema.get("nullable") and "enum" in schema:
            return self._null_choice(at)
        if default is None or default is msgspec.NODEFAULT or not schema:
            return schema
        try:
            # Sorted, so that a set is the same in each run.
            value = msgspec.to_builtins(default, order="deterministic", str_keys=True)
            msgspec.json.encode(value)
            msgspec.convert(value, _hint(cls, field.name), str_keys=True)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            advice = "write one that the type accepts: the server would refuse each object that has it"
            self._fault(at, f"the default does not fit the type: {error}", advice)
            return schema
        if schema.get("format") == "byte" and value == "":
            self._fault(at, "a server refuses empty bytes, which are the default", "make the default None")
        return {**schema, "default": _without_nulls(value, schema)}

    def _special(self, node: types.Type, at: ValuePlace) -> Schema:
        match node:
            case types.BytesType() | types.ByteArrayType() | types.MemoryViewType():
                if node.min_length is not None or node.max_length is not None:
                    message = "a server counts the characters of base64, and not the bytes"
                    self._fault(at, message, "leave the length out, or use str")
                return {"type": "string", "format": "byte", **_NO_LIST}
            case types.DateTimeType() if at.cls is Condition:
                return {"type": "string", "format": "date-time"}  # as metav1.Condition has it everywhere
            case types.DateTimeType():
                if node.tz is False:
                    self._fault(at, "a server refuses a time without a zone", "leave tz=False out")
                return {"type": "string", "format": "date-time", "pattern": _DATE_TIME, **_NO_LIST}
            case types.DateType():
                return {"type": "string", "format": "date", "pattern": f"^{_DATE}$", **_NO_LIST}
            case types.UUIDType():
                return {"type": "string", "format": "uuid", "pattern": _UUID, **_NO_LIST}
            case _:
                name, cls = type(node).__name__, getattr(node, "cls", None)
                what = getattr(cls, "__name__", name)
                if hasattr(cls, "model_validate"):
                    message = f"{what} is a model of pydantic, of which no schema for a server is made"
                    return self._fault(
                        at, message, "make it a msgspec.Struct, or write the definition by hand"
                    )
                message, advice = _UNFIT.get(
                    name,
                    (f"msgspec does not know the type {what}", "make it a msgspec.Struct or a dataclass"),
                )
                return self._fault(at, message, advice)


def faults_of_rules(
    rules: Sequence[Any], schema: Schema, at: ValuePlace, *, is_root: bool = False
) -> list[SchemaFault]:
    """Why a server does not compile rules for a value (`rule_checks`). `is_root`: a whole object."""
    found = rule_faults({**schema, VALIDATIONS: rules}, is_root=is_root)
    return [SchemaFault(str(fault), fault.suggestion or _MEND_RULE, *at) for fault in found]


def _nullable(schema: Schema) -> Schema:
    """A field whose default is None loses this again (`_SchemaMaker._field`)."""
    return {**schema, "nullable": True} if schema else schema


def _lengths(node: Any, what: str) -> Schema:
    bounds = {f"min{what}": node.min_length, f"max{what}": node.max_length}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def docstring(cls: type) -> str:
    """The text of a class that describes it; empty without one."""
    text = vars(cls).get("__doc__")
    # A dataclass without a docstring gets its signature; that of Condition is for authors of handlers.
    if not isinstance(text, str) or text.startswith(f"{cls.__name__}(") or cls is Condition:
        return ""
    return inspect.cleandoc(text)


def _hint(cls: type, field: str) -> Any:
    """The type of a field with its bounds, to check a default by."""
    return get_type_hints(cls, include_extras=True)[field]


def _written(field: types.Field) -> types.Field:
    """A field of a condition, as it is written."""
    is_reason = field.name == "reason"
    return msgspec.structs.replace(field, required=True, default=msgspec.NODEFAULT) if is_reason else field


def default_of(schema: Schema) -> Any:
    """The object that a server makes of an empty one. A server checks rules of a default as it is written."""
    properties: Mapping[str, Schema] = schema.get("properties") or {}
    filled = {name: each["default"] for name, each in properties.items() if "default" in each}
    return filled if VALIDATIONS in schema else {}


def _without_nulls(value: Any, schema: Schema) -> Any:
    """A default without the nulls that the server drops."""
    if isinstance(value, list):
        return [_without_nulls(each, schema.get("items") or {}) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    properties: Mapping[str, Schema] = schema.get("properties") or {}
    given = cast("dict[str, Any]", value)
    return {
        name: _without_nulls(each, properties.get(name) or {})
        for name, each in given.items()
        if each is not None or name not in properties or properties[name].get("nullable")
    }


def _unreadable(of: Any, path: str, reason: str) -> SchemaFault:
    """The innermost field that msgspec can't read, of a type that it refuses."""
    cls = getattr(of, "__origin__", of)
    try:
        hints = get_type_hints(cls, include_extras=True) if isinstance(cls, type) else {}
    except Exception as error:  # noqa: BLE001 - an annotation may be any code
        advice = "define or import the name in the module of the class"
        return SchemaFault(f"an annotation can't be read: {error}", advice, path, cls)
    for name, hint in hints.items():
        try:
            types.type_info(hint)
        except Exception as error:  # noqa: BLE001 - as above
            found = _unreadable(hint, f"{path}.{name}", str(error))
            return found if found.cls is not None else found._replace(cls=cls, field=name)
    advice = "use the types that msgspec supports: classes, lists, dicts, texts, numbers"
    return SchemaFault(f"msgspec can't read the type: {reason.splitlines()[0]}", advice, path)
