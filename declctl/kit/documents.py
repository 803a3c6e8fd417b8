"""Values of the status as JSON documents: one serializer for all of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, cast

import msgspec

_DIGITS = 6  # of seconds: microseconds


def document_of(value: object, *, without: Collection[str] = ()) -> Any:
    """The value as JSON has it.

    - A struct or dataclass becomes an object with its fields in camel case, except those of `without`, at any
      depth. A value inside it with a method `document` becomes what that returns.
    - A moment becomes RFC 3339 text in whole seconds; it has to be in UTC.
    - Floats are rounded to microseconds. Enumerations become texts, and sequences lists.
    """
    names = _field_names(value)
    if names is None:
        return _nested(value, without)
    return {camel_case(name): _nested(getattr(value, name), without) for name in names if name not in without}


def _field_names(value: object) -> Sequence[str] | None:
    """The fields of a struct or dataclass; None for any other value."""
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    return [field.name for field in fields(value)] if is_dataclass(value) else None


def camel_case(name: str) -> str:
    """`last_error` as `lastError`."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _nested(value: object, without: Collection[str]) -> Any:
    if (document := getattr(value, "document", None)) is not None:
        return document()
    if _field_names(value) is not None:
        return document_of(value, without=without)
    if isinstance(value, Mapping):
        return {
            str(key): _nested(each, without) for key, each in cast("Mapping[object, object]", value).items()
        }
    if isinstance(value, list | tuple):
        return [_nested(each, without) for each in cast("list[object]", value)]
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(value) if isinstance(value, StrEnum) else value
