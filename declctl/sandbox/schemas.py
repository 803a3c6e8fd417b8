"""Custom objects and the schema of their definition: what is pruned, what is filled in, and what is refused.

Schemas are structural OpenAPI v3 schemas. As in the real server, unknown fields go (with a warning), nulls go
where the schema allows none, defaults come, and then the object is checked. A fault that an update leaves as
it was is not its fault.

Checked of `format` are times, dates, base64, UUIDs and integers. Not checked are the other formats, and the
metadata of embedded resources.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any, Final, NamedTuple, TypeGuard, cast

from jsonschema import Draft4Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from declctl.objects import KubeObject
from declctl.objects.differences import same_json
from declctl.objects.patterns import go_pattern
from declctl.objects.rule_checks import has_rules
from declctl.sandbox import fields, rules
from declctl.sandbox.kinds import ScalePaths, ServedKind
from declctl.sandbox.status import StatusCause
from declctl.sandbox.structure import MISSING, Schema, Shape, field_schema, shape_of, shape_of_schema

_IDENTITY: Final = frozenset({"apiVersion", "kind", "metadata"})
_METADATA: Final = frozenset(
    {
        "name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation",
        "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations",
        "ownerReferences", "finalizers", "managedFields",
    }
)  # fmt: skip
_STANDARD_FINALIZERS: Final = frozenset({"orphan", "foregroundDeletion", "kubernetes"})
_MOST_REPLICAS: Final = (1 << 31) - 1
_EXACT: Final = 1 << 53  # up to here a whole number may be written as 1.0
_INTEGERS: Final[Mapping[str, int]] = {"": 1 << 63, "int64": 1 << 63, "int32": 1 << 31}  # by format
# Faults that leave the rules of a schema unchecked.
_BLOCKING: Final = frozenset(
    {
        "FieldValueNotSupported", "FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany",
        "FieldValueTypeInvalid",
    }
)  # fmt: skip
_UNCHECKED: Final = (
    "some validation rules were not checked because the object was invalid; correct the existing errors to "
    "complete validation"
)


def read(schema: Schema, obj: KubeObject) -> list[str]:
    """Prune an object, and drop nulls that mean nothing, in place; returns the paths of unknown fields."""
    unknown = [f"metadata.{name}" for name in obj["metadata"] if name not in _METADATA]
    for name in obj["metadata"].keys() - _METADATA:
        del obj["metadata"][name]
    _read_integers(obj)
    embedded = {**schema, "x-kubernetes-embedded-resource": True}
    unknown += [_dotted(each.path) for each in prune(obj, embedded)]
    _drop_nulls(obj, schema)
    return sorted(unknown)


def _read_integers(value: Any) -> None:
    """Read integers as Go does: beyond 64 bits there are only floats."""
    if isinstance(value, (dict, list)):
        held = cast("Any", value)
        for step, child in held.items() if isinstance(value, dict) else enumerate(held):
            if isinstance(child, int) and not -(1 << 63) <= child < 1 << 63:
                held[step] = float(child)
            else:
                _read_integers(child)


def write_numbers(value: Any) -> None:
    """Write 1.0 as 1, in place, as Go does with an object that is stored."""
    if isinstance(value, (dict, list)):
        held = cast("Any", value)
        for step, child in held.items() if isinstance(value, dict) else enumerate(held):
            if isinstance(child, float) and child.is_integer() and abs(child) < _EXACT:
                held[step] = int(child)
            else:
                write_numbers(child)


class PrunedField(NamedTuple):
    """A field that a schema does not have."""

    path: tuple[str | int, ...]  # from the object, its own name included
    names: Sequence[str]  # the fields that the schema has there


def prune(value: Any, schema: Schema | None, path: tuple[str | int, ...] = ()) -> Iterator[PrunedField]:
    """Remove the fields that a schema does not have, in place, and say which they were."""
    schema = schema or {}
    keeps = schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(value, dict):
        held = cast("KubeObject", value)
        for name in list(held):
            if schema.get("x-kubernetes-embedded-resource") and name in _IDENTITY:
                continue
            known = field_schema(schema, name)
            if known is not None:
                yield from prune(held[name], known, (*path, name))
            elif not keeps:
                del held[name]
                yield PrunedField((*path, name), list(schema.get("properties") or ()))
    elif isinstance(value, list):
        # What is below a list of unknown things is unknown, unless unknown things are kept.
        items = schema.get("items")
        for at, element in enumerate(cast("list[Any]", value)):
            below = {**(items or {}), "x-kubernetes-preserve-unknown-fields": True} if keeps else items
            yield from prune(element, below, (*path, at))


def _refuses_null(schema: Schema | None) -> TypeGuard[Schema]:
    return schema is not None and not schema.get("nullable")


def _drop_nulls(value: Any, schema: Schema | None) -> None:
    if isinstance(value, dict):
        held = cast("KubeObject", value)
        for name in list(held):
            inner = field_schema(schema or {}, name)
            if held[name] is None and _refuses_null(inner) and "default" not in inner:
                del held[name]
            else:
                _drop_nulls(held[name], inner)
    elif isinstance(value, list):
        for element in cast("list[Any]", value):
            _drop_nulls(element, (schema or {}).get("items"))


def fill(schema: Schema | None, value: Any) -> None:
    """Fill in the defaults, in place; they also replace a null that the schema does not allow."""
    if schema is None:
        return
    if isinstance(value, dict):
        held = cast("KubeObject", value)
        for name, inner in (schema.get("properties") or {}).items():
            if "default" in inner and name not in held:
                held[name] = copy.deepcopy(inner["default"])
        for name in held:
            inner = field_schema(schema, name)
            if held[name] is None and _refuses_null(inner) and "default" in inner:
                held[name] = copy.deepcopy(inner["default"])
            fill(inner, held[name])
    elif isinstance(value, list):
        for element in cast("list[Any]", value):
            fill(schema.get("items"), element)


def mistyped(schema: Schema, value: Any, path: str = "") -> Iterator[str]:
    """Why a configuration can't be applied: fields that the schema does not have, values of other types."""
    if value is None:
        return
    wanted = schema.get("type")
    if wanted == "object":
        if not isinstance(value, dict):
            yield f"{path}: expected map, got &{{{_in_go(value)}}}"
            return
        root = not path or schema.get("x-kubernetes-embedded-resource")
        for name, child in cast("KubeObject", value).items():
            if root and name in _IDENTITY:
                unknown = [] if name != "metadata" else sorted(child.keys() - _METADATA)
                yield from (f"{path}.metadata.{field}: field not declared in schema" for field in unknown[:1])
                continue
            inner = field_schema(schema, name)
            if inner is None and not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{path}.{name}: field not declared in schema"
                return
            yield from mistyped(inner or {}, child, f"{path}.{name}")
    elif wanted == "array":
        if not isinstance(value, list):
            yield f"{path}: expected list, got &{{{_in_go(value)}}}"
            return
        yield from _mistyped_elements(schema, cast("list[Any]", value), path)
    elif wanted in ("integer", "number") and (isinstance(value, bool) or not isinstance(value, (int, float))):
        found = _GO_TYPES.get(type(value), "map[string]interface {}")
        yield f"{path}: expected numeric (int or float), got {found}"
    elif wanted in ("string", "boolean") and not isinstance(value, str if wanted == "string" else bool):
        yield f"{path}: expected {wanted}, got &value.valueUnstructured{{Value:{_in_go(value)}}}"


def _mistyped_elements(schema: Schema, elements: list[Any], path: str) -> Iterator[str]:
    shape, keys = shape_of_schema(schema), schema.get("x-kubernetes-list-map-keys") or ()
    for at, element in enumerate(elements):
        why = ""
        if shape.keys and not isinstance(element, dict):
            why = "associative list with keys may not have non-map elements"
        elif shape.keys and fields.step_of(element, shape) == "k:{}":
            names = " ".join(f'"{key}"' for key in keys)
            without = "(and doesn't have default values for any key fields)"
            why = f"associative list with keys has an element that omits all key fields [{names}] {without}"
        elif shape.keys == () and isinstance(element, dict):
            why = "associative list without keys has an element that's a map type"
        if why:
            yield f"{path}: element {at}: {why}"
            return
        step = f"[{at}]" if shape.keys is None else fields.dotted((fields.step_of(element, shape),))
        yield from mistyped(schema.get("items") or {}, element, f"{path}{step}")


def faults(
    kind: ServedKind, new: KubeObject, old: KubeObject | None, subresource: str, warnings: list[str]
) -> list[StatusCause]:
    """What is wrong with a custom object; `old` is the state that it replaces.

    A broken rule that the write leaves as it was is added to `warnings`.
    """
    if kind.schema is None:
        return []
    schema = kind.schema
    before: Any = MISSING if old is None else old
    if subresource == "status":
        schema = field_schema(schema, "status") or {}
        found = _broken(schema, new.get("status", {}), _below_field(before, "status"), "status")
    else:
        found = _broken(schema, new, before, "")
    if kind.scale is not None:
        found += _scale_faults(kind.scale, new, status_only=subresource == "status")
    shape = shape_of(kind)
    if old is None or not any(fields.duplicates(old, shape)):
        found += _duplicates(new, shape, "")
    if not has_rules(kind.schema):
        return found
    if any(cause.reason in _BLOCKING for cause in found):
        return [*found, StatusCause("FieldValueInvalid", f"Invalid value: null: {_UNCHECKED}", "<nil>")]
    for cause, unchanged in rules.broken(kind.schema, new, before):
        if unchanged:
            warnings.append(f"{cause.field}: {cause.message}")
        else:
            found.append(cause)
    return found


def finalizer_warnings(new: KubeObject, old: KubeObject | None) -> list[str]:
    """What the server says to finalizers that a write adds and that name no domain."""
    before: Sequence[str] = () if old is None else old["metadata"].get("finalizers") or ()
    added = {name for name in new["metadata"].get("finalizers") or () if name not in before}
    said: list[str] = []
    for name in sorted(added - _STANDARD_FINALIZERS):
        if "/" not in name:
            path = " including a path (/)" if "." in name else ""
            why = f"prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other"
            said.append(f'metadata.finalizers: "{name}": {why} finalizer writers')
    return said


_TEXT_KEYWORDS: Final = {"maxLength": 1, "minLength": 2, "pattern": 3}


def _broken(schema: Schema, value: Any, old: Any, prefix: str) -> list[StatusCause]:
    shape: Shape = shape_of_schema(schema)
    found: list[StatusCause] = []
    told: set[tuple[str | int, ...]] = set()  # texts that one keyword refuses: no other is asked
    errors = _leaves(_Validator(schema).iter_errors(value))
    for error in sorted(errors, key=lambda each: _TEXT_KEYWORDS.get(str(each.validator), 0)):
        path = list(error.absolute_path)
        if error.validator in _TEXT_KEYWORDS:
            if tuple(path) in told:
                continue
            told.add(tuple(path))
        if not _unchanged(value, old, path, shape):
            found += _causes(error, _dotted(path), prefix)
    return found


def _leaves(errors: Iterator[ValidationError]) -> Iterator[ValidationError]:
    for error in errors:
        if error.validator == "allOf" and error.context:
            yield from _leaves(iter(error.context))
        else:
            yield error


def _unchanged(new: Any, old: Any, path: Sequence[str | int], shape: Shape) -> bool:
    """Whether the faulty value, or one that holds it, is as it was: elements are known by their keys only."""
    for step in path:
        if old is MISSING:
            return False
        if same_json(old, new):
            return True
        if isinstance(step, str):
            old, new, shape = _below_field(old, step), new[step], shape.field(step)
            continue
        element, known = new[step], shape.keys
        wanted = fields.step_of(element, shape) if known else None
        old = (
            next((each for each in old if fields.step_of(each, shape) == wanted), MISSING)
            if wanted
            else MISSING
        )
        new, shape = element, shape.element()
    return old is not MISSING and same_json(old, new)


def _below_field(value: Any, name: str) -> Any:
    return cast("KubeObject", value).get(name, MISSING) if isinstance(value, dict) else MISSING


def _dotted(path: Sequence[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _causes(error: ValidationError, path: str, prefix: str) -> Iterator[StatusCause]:
    where = ".".join(part for part in (prefix, path) if part) or "<nil>"
    subject = f"{path} in body"
    limit, value = cast("tuple[Any, Any]", (error.validator_value, error.instance))
    match error.validator:
        case "required":
            present = cast("KubeObject", value)
            for name in limit:
                if name not in present and repr(name) in error.message:
                    yield StatusCause.required(f"{where}.{name}" if where != "<nil>" else name)
        case "type" | "format" | "x-kubernetes-int-or-string":
            yield from _type_causes(error, where, subject)
        case "enum":
            allowed = ", ".join(
                f'"{each}"' if isinstance(each, str) else f'"{fields.text(each)}"' for each in limit
            )
            message = f"Unsupported value: {fields.told(value)}: supported values: {allowed}"
            yield StatusCause("FieldValueNotSupported", message, where)
        case "maxLength":
            message = f"Too long: may not be more than {limit} {_counted('byte', limit)}"
            yield StatusCause("FieldValueTooLong", message, where)
        case "maxItems" | "maxProperties":
            message = f"Too many: {len(value)}: must have at most {limit} {_counted('item', limit)}"
            yield StatusCause("FieldValueTooMany", message, where)
        case "anyOf" | "oneOf" | "not":
            yield StatusCause.invalid("<nil>", "", _composite(error, path))
        case name:
            if name in ("minItems", "minProperties"):
                value = len(value)
            if name in ("minimum", "maximum"):
                limit = _limit(limit, value)
            rule = _RULES.get(str(name), lambda _, __: "is not as the schema says")(limit, error.schema)
            yield StatusCause(
                "FieldValueInvalid", f"Invalid value: {fields.told(value)}: {subject} {rule}", where
            )


def _type_causes(error: ValidationError, where: str, subject: str) -> Iterator[StatusCause]:
    schema, value = cast("Schema", error.schema), error.instance
    wanted, found = _type_fault(error)
    if wanted:
        rule = f'{subject} must be of type {wanted}: "{found}"'
        yield StatusCause("FieldValueTypeInvalid", f'Invalid value: "{found}": {rule}', where)
    if error.validator_value == "integer" and _is_number(value) and not _fits(value, schema):
        form = schema.get("format")
        of_type = f"integer {f'with format {form}' if form else '(default format)'}"
        yield StatusCause.invalid("<nil>", "", f"Checked value must be of type {of_type} in {where}")


def _counted(what: str, number: int) -> str:
    return what if number == 1 else f"{what}s"


_RULES: Final[Mapping[str, Callable[[Any, Any], str]]] = {
    "minimum": lambda limit, schema: (
        f"should be greater than {'' if schema.get('exclusiveMinimum') else 'or equal to '}{limit}"
    ),
    "maximum": lambda limit, schema: (
        f"should be less than {'' if schema.get('exclusiveMaximum') else 'or equal to '}{limit}"
    ),
    "multipleOf": lambda limit, _: f"should be a multiple of {limit}",
    "minLength": lambda limit, _: f"should be at least {limit} chars long",
    "pattern": lambda limit, _: f"should match '{limit}'",
    "minItems": lambda limit, _: f"should have at least {limit} items",
    "minProperties": lambda limit, _: f"should have at least {limit} properties",
}


def _composite(error: ValidationError, path: str) -> str:
    match error.validator:
        case "anyOf":
            rule = "must validate at least one schema (anyOf)"
        case "oneOf":
            valid = len({each.schema_path[0] for each in error.context or ()})
            number = len(cast("list[Any]", error.validator_value)) - valid
            which = f"Found {number} valid alternatives" if number else "Found none valid"
            rule = f"must validate one and only one schema (oneOf). {which}"
        case _:
            rule = "must not validate the schema (not)"
    return f'"{path}" {rule}'


def _skipping_null(check: Any) -> Any:
    def checked(validator: Any, limit: Any, value: Any, schema: Schema) -> Any:
        return () if value is None else check(validator, limit, value, schema)

    return checked


def _type(validator: Any, wanted: Any, value: Any, schema: Schema) -> Iterator[ValidationError]:
    names = [wanted] if isinstance(wanted, str) else ["integer", "string"]
    if value is None and schema.get("nullable"):
        return
    # The real server takes a list, too, where a text has a format.
    if names == ["string"] and schema.get("format") and isinstance(value, list):
        return
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT and "integer" in names
    is_type = is_whole or any(validator.is_type(value, name) for name in names)
    if not is_type or (wanted == "integer" and not _fits(value, schema)):
        yield ValidationError(f"{value!r} is not of type {wanted!r}")


def _int_or_string(validator: Any, on: Any, value: Any, schema: Schema) -> Iterator[ValidationError]:
    return _type(validator, on, value, schema) if on else iter(())


def _format(_: Any, name: Any, value: Any, __: Schema) -> Iterator[ValidationError]:
    check = _FORMATS.get(name)
    if check is not None and isinstance(value, str) and not check(value):
        yield ValidationError(f"{value!r} is no {name}")


def _pattern(_: Any, pattern: Any, value: Any, __: Schema) -> Iterator[ValidationError]:
    found = go_pattern(pattern)
    if found is not None and isinstance(value, str) and not found.search(value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _enum(_: Any, allowed: Any, value: Any, __: Schema) -> Iterator[ValidationError]:
    # Go converts the value to the type of each choice: a number is cut off, or is a character.
    known = [value]
    if _is_number(value):
        known += [int(value), *([chr(value)] if isinstance(value, int) and 0 <= value < 0x110000 else [])]
    if not any(same_json(each, other) for each in known for other in allowed):
        yield ValidationError(f"{value!r} is none of {allowed!r}")


def _bound(keyword: str) -> Any:
    """The check of `minimum` or `maximum`."""
    exclusive = f"exclusive{keyword.capitalize()}"

    def check(validator: Any, limit: Any, value: Any, schema: Schema) -> Iterator[ValidationError]:
        if not validator.is_type(value, "number"):
            return
        difference = (value - _limit(limit, value)) * (1 if keyword == "minimum" else -1)
        if difference < 0 or (difference == 0 and schema.get(exclusive)):
            yield ValidationError(f"{value!r} is beyond {limit!r}")

    return check


def _multiple_of(validator: Any, factor: Any, value: Any, __: Schema) -> Iterator[ValidationError]:
    if not validator.is_type(value, "number"):
        return
    if isinstance(value, int) and isinstance(factor, int):
        is_multiple = value % factor == 0
    else:
        times = value / factor
        is_multiple = times.is_integer() and abs(times) < _EXACT
    if not is_multiple:
        yield ValidationError(f"{value!r} is no multiple of {factor!r}")


def _limit(limit: Any, value: Any) -> Any:
    """A bound as it is compared: the real server cuts its fraction off if the value is a whole number."""
    return int(limit) if isinstance(value, int) else limit


_Validator: Any = extend(
    Draft4Validator,
    {
        **{name: _skipping_null(check) for name, check in Draft4Validator.VALIDATORS.items()},
        "enum": _enum,
        "format": _format,
        "maximum": _bound("maximum"),
        "minimum": _bound("minimum"),
        "multipleOf": _multiple_of,
        "pattern": _pattern,
        "type": _type,
        "x-kubernetes-int-or-string": _int_or_string,
    },
)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _fits(value: Any, schema: Schema) -> bool:
    """Whether a number is an integer of the format of its schema."""
    beyond = _INTEGERS.get(schema.get("format") or "", 1 << 63)
    return float(value).is_integer() and -beyond <= value < beyond


def _type_fault(error: ValidationError) -> tuple[str, str]:
    """The type that a value should have, and the one that it has; empty if only its size is wrong."""
    limit, value, schema = cast(
        "tuple[Any, Any, Schema]", (error.validator_value, error.instance, error.schema)
    )
    form = schema.get("format")
    if error.validator == "format":
        return limit, fields.text(value)[1:-1]
    wanted = limit if isinstance(limit, str) else "integer,string"
    if isinstance(value, int) and not isinstance(value, bool) and wanted == "integer":
        return "", ""
    if form and value is not None and not isinstance(value, str):
        return form, {int: "int64", float: "float64"}.get(type(value), "")
    return wanted, _type_of(value)


_TIME_OF_DAY: Final = re.compile(r"(\d{2}):(\d{2}):(\d{2})(.\d+)?(z|[+-]\d{2}:\d{2})", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def _is_date(text: str) -> bool:
    if _DAY.fullmatch(text):
        with suppress(ValueError):
            # Go has a year 0, which is a leap year as 2000 is.
            return bool(date.fromisoformat(text.replace("0000-", "2000-", 1)))
    return False


def _is_date_time(text: str) -> bool:
    """A time of RFC 3339; what stands before a fraction, and the numbers of a zone, may be any."""
    day, _, time = text.lower().partition("t")
    found = _TIME_OF_DAY.fullmatch(time)
    return found is not None and _is_date(day) and found[1] < "24" and max(found[2], found[3]) < "60"


_FORMATS: Final[Mapping[str, Callable[[str], Any]]] = {
    "date": _is_date,
    "date-time": _is_date_time,
    "datetime": _is_date_time,
    "byte": re.compile(
        r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})"
    ).fullmatch,
    "uuid": re.compile("(?i)[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}").fullmatch,
}


_GO_TYPES: Final = {
    type(None): "<nil>", str: "string", bool: "bool", float: "float64", list: "[]interface {}"
}  # fmt: skip


def _scale_faults(paths: ScalePaths, obj: KubeObject, *, status_only: bool) -> list[StatusCause]:
    found: list[StatusCause] = []
    for path in (paths.status,) if status_only else (paths.spec, paths.status):
        value: Any = obj
        *holders, name = path.split(".")
        rule = ""
        for step in holders:
            if value is not MISSING and not isinstance(value, dict):
                break
            value = _below_field(value, step)
        if value is None:
            continue
        if value is not MISSING and not isinstance(value, dict):
            rule = _not_of(path, value, "map[string]interface{}")
        else:
            value = _below_field(value, name)
            if value is not MISSING and (not isinstance(value, int) or isinstance(value, bool)):
                rule = _not_of(path, value, "int64")
        if rule:
            value = 0
        elif value is not MISSING and value < 0:
            rule = "should be a non-negative integer"
        elif value is not MISSING and value > _MOST_REPLICAS:
            rule = f"should be less than or equal to {_MOST_REPLICAS}"
        if rule:
            found.append(StatusCause.invalid(f".{path}", value, rule))
    return found


def _not_of(path: str, value: Any, wanted: str) -> str:
    found = _GO_TYPES.get(type(value), "map[string]interface {}")
    return f".{path} accessor error: {_in_go(value)} is of the type {found}, expected {wanted}"


def _duplicates(value: Any, shape: Shape, path: str) -> list[StatusCause]:
    """Elements of lists with keys, and of sets, that are there a second time."""
    found: list[StatusCause] = []
    if isinstance(value, dict):
        for name, child in cast("KubeObject", value).items():
            inner = f"[{name}]" if path and not shape.declares(name) else f".{name}"
            found += _duplicates(child, shape.field(name), f"{path}{inner}".lstrip("."))
    elif isinstance(value, list):
        seen: dict[str, int] = {}
        for at, element in enumerate(cast("list[Any]", value)):
            where = f"{path}[{at}]"
            if shape.keys and not isinstance(element, dict | None):
                rule = "must be an object for an array of list-type map"
                found.append(
                    StatusCause("FieldValueInvalid", f"Invalid value: {fields.told(element)}: {rule}", where)
                )
                break
            if shape.keys is not None:
                step = _step(element, shape)
                seen[step] = seen.get(step, 0) + 1
                if seen[step] == 2:
                    told = fields.told(element) if isinstance(element, float) else step[2:]
                    found.append(StatusCause("FieldValueDuplicate", f"Duplicate value: {told}", where))
            found += _duplicates(element, shape.element(), where)
    return found


def _step(element: Any, shape: Shape) -> str:
    """The step of an element: 1.0 and 1 are the same key of a map, and different elements of a set."""
    if not shape.keys:
        return fields.step_of(element, shape)
    if element is None:
        return "k:{}"
    plain = dict(element)
    write_numbers(plain)
    return fields.step_of(plain, shape)


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def _in_go(value: Any) -> str:
    """A value as Go prints it."""
    if isinstance(value, dict):
        entries = sorted(cast("KubeObject", value).items())
        return f"map[{' '.join(f'{name}:{_in_go(child)}' for name, child in entries)}]"
    if isinstance(value, list):
        return f"[{' '.join(map(_in_go, cast('list[Any]', value)))}]"
    return "<nil>" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
