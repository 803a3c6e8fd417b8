"""Whether a document fits its shape, without the judge who could say what is wrong with it.

A manifest that fits is the common case: every start and every reload of a controller has one, and
jsonschema takes longer to load than everything else that is done with it. What is not known here
for sure does not fit: then jsonschema decides.
"""

from collections.abc import Callable, Iterable, Mapping

from declctl.manifest.json_values import Json, Path, mapping_at
from declctl.manifest.shape import Schema
from declctl.manifest.shape.words import NOTES


def fits(values: Iterable[tuple[Path, Json, Schema]]) -> bool:
    """Whether JSON Schema finds no fault in the values of a `walk`; False may also mean "I don't know"."""
    return all(_holds(keyword, piece, value) for _, value, piece in values for keyword in piece)


def _holds(keyword: str, shape: Schema, value: Json) -> bool:
    if keyword in _SILENT:
        return True
    holds = _KEYWORDS.get(keyword)
    return holds is not None and holds(shape, value)


def _type(shape: Schema, value: Json) -> bool:
    """A float is never taken for a whole number, although JSON Schema takes 1.0 for one."""
    names = shape["type"]
    return any(
        type(value) in _TYPES.get(str(name), ()) for name in (names if isinstance(names, list) else [names])
    )


def _additional(shape: Schema, value: Json) -> bool:
    """Those that have a shape of their own are looked at by themselves."""
    if shape["additionalProperties"] is not False or not isinstance(value, dict):
        return True
    return value.keys() <= mapping_at(shape, "properties").keys()


def _required(shape: Schema, value: Json) -> bool:
    names = shape["required"]
    return not isinstance(value, dict) or (isinstance(names, list) and all(name in value for name in names))


def _enum(shape: Schema, value: Json) -> bool:
    choices = shape["enum"]
    return isinstance(choices, list) and any(_is_same(value, choice) for choice in choices)


def _minimum(shape: Schema, value: Json) -> bool:
    low = shape["minimum"]
    return not isinstance(value, int | float) or (isinstance(low, int | float) and value >= low)


def _maximum(shape: Schema, value: Json) -> bool:
    high = shape["maximum"]
    return not isinstance(value, int | float) or (isinstance(high, int | float) and value <= high)


def _min_length(shape: Schema, value: Json) -> bool:
    least = shape["minLength"]
    return not isinstance(value, str) or (isinstance(least, int) and len(value) >= least)


def _min_items(shape: Schema, value: Json) -> bool:
    least = shape["minItems"]
    return not isinstance(value, list) or (isinstance(least, int) and len(value) >= least)


def _unique(_: Schema, value: Json) -> bool:
    """Known of texts only: when mappings are the same is for JSON Schema to say."""
    if not isinstance(value, list):
        return True
    texts = {item for item in value if isinstance(item, str)}
    return len(texts) == len(value)


def _is_same(value: Json, other: Json) -> bool:
    """Python takes True for 1; JSON does not."""
    return type(value) is type(other) and value == other


_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
# Descriptions; what `walk` goes into; and what is left to other checks, since a pattern has no words.
_SILENT = frozenset({"description", "default", "examples", NOTES, "properties", "items", "pattern", "oneOf"})
_KEYWORDS: Mapping[str, Callable[[Schema, Json], bool]] = {
    "type": _type,
    "additionalProperties": _additional,
    "required": _required,
    "enum": _enum,
    "const": lambda shape, value: _is_same(value, shape["const"]),
    "minimum": _minimum,
    "maximum": _maximum,
    "minLength": _min_length,
    "minItems": _min_items,
    "uniqueItems": _unique,
}
