"""Values of the status as JSON documents: one serializer for all of them."""

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
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
    names = _names_of(type(value))
    if names is None:
        return _nested(value, without)
    return {
        shown: _nested(getattr(value, name), without) for name, shown in names.items() if name not in without
    }


@cache  # for the life of the process: all of them are types of declctl
def _names_of(kind: type) -> Mapping[str, str] | None:
    """The fields of a struct or dataclass, with their names in JSON; None for any other type."""
    if issubclass(kind, msgspec.Struct):
        return {name: camel_case(name) for name in kind.__struct_fields__}
    return {field.name: camel_case(field.name) for field in fields(kind)} if is_dataclass(kind) else None


@cache
def camel_case(name: str) -> str:
    """`last_error` as `lastError`."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _nested(value: object, without: Collection[str]) -> Any:
    if value is None or type(value) in (str, int, bool):
        return value
    if (document := getattr(value, "document", None)) is not None:
        return document()
    if _names_of(type(value)) is not None:
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
