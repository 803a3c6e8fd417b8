"""Hypothesis strategies for the values of a structural schema, as a CustomResourceDefinition has it.

Values fit the schema, but for its rules in CEL. Few are drawn, and simple ones first: a life of an object is
about its changes, and not about odd texts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from hypothesis import strategies as st

from declctl.objects import KubeObject

Values = st.SearchStrategy[Any]
_TEXTS: Final = ("a", "b", "c-1", "abcdefgh")
_NEAR: Final = 3  # integers above the lowest one, which are drawn as often as all others
_FAR: Final = 100  # of them are drawn where no bound is nearer, but for the bound itself
_TIMES: Final = ("2026-01-02T03:04:05Z", "2027-01-02T03:04:05Z")
_ASCII: Final = st.characters(min_codepoint=32, max_codepoint=126)
_FREE: Final = ({}, {"a": "1"}, {"b": {"c": 2}})  # where a schema says nothing


def values(  # noqa: PLR0911 - a return for each type
    schema: Mapping[str, Any], example: object = None
) -> Values:
    """Values for a schema; an `example` is one of them, wherever it has a part for the place."""
    if "enum" in schema:
        return st.sampled_from(list(schema["enum"]))
    if schema.get("x-kubernetes-int-or-string"):
        return st.sampled_from([*_given(example), 1, 2, "50%"])
    match schema.get("type"):
        case "object":
            return _objects(schema, example)
        case "array":
            return _lists(schema, example)
        case "integer":
            return _integers(schema, example)
        case "number":
            return _integers(schema, example).map(float)
        case "string":
            return _texts(schema, example)
        case "boolean":
            return st.booleans()
        case _:
            return st.sampled_from([*_given(example), *_FREE])


def _given(example: object) -> Sequence[Any]:
    return () if example is None else (example,)


def _objects(schema: Mapping[str, Any], example: object) -> Values:
    known: KubeObject = example if isinstance(example, dict) else {}
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties") or {}
    if not properties:
        inner = schema.get("additionalProperties")
        if not isinstance(inner, Mapping):
            return st.sampled_from([*_given(example), *_FREE])
        least, most = int(schema.get("minProperties", 0)), int(schema.get("maxProperties", 2))
        keys = st.sampled_from([*known, "a", "b"])
        return st.dictionaries(keys, values(inner), min_size=least, max_size=max(least, min(most, 2)))
    # A field that has a default is no field that has to be drawn: the server fills it in.
    needed = [name for name in schema.get("required", ()) if name in properties]
    drawn = {name: values(each, known.get(name)) for name, each in properties.items()}
    return st.fixed_dictionaries(
        {name: drawn[name] for name in needed},
        optional={name: each for name, each in drawn.items() if name not in needed},
    )


def _lists(schema: Mapping[str, Any], example: object) -> Values:
    known: list[Any] = example if isinstance(example, list) else []
    items: Mapping[str, Any] = schema.get("items") or {}
    least = int(schema.get("minItems", 0))
    most = max(least, min(int(schema.get("maxItems", least + 2)), least + 2))
    inner = values(items, known[0] if known else None)
    keys: Sequence[str] = schema.get("x-kubernetes-list-map-keys") or ()
    if schema.get("x-kubernetes-list-type") == "map":
        return st.lists(inner, min_size=least, max_size=most, unique_by=lambda each: _key(each, keys))
    if schema.get("x-kubernetes-list-type") == "set" or schema.get("uniqueItems"):
        return st.lists(inner, min_size=least, max_size=most, unique_by=_json)
    return st.lists(inner, min_size=least, max_size=most)


def _key(element: Mapping[str, Any], keys: Sequence[str]) -> bytes:
    return _json([element.get(key) for key in keys])


def _json(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _integers(schema: Mapping[str, Any], example: object) -> Values:
    step = int(schema.get("multipleOf", 1)) or 1
    least: Any = schema.get("minimum")
    most: Any = schema.get("maximum")
    if least is None:
        least = 0 if most is None else min(0, most)
    least = int(least) + bool(schema.get("exclusiveMinimum"))
    least = -(-least // step) * step
    most = None if most is None else int(most) - bool(schema.get("exclusiveMaximum"))
    found = [least + step * number for number in range(_NEAR + 1)]
    found += [each for each in _given(example) if isinstance(each, int)]
    highest = _FAR
    if most is not None:
        highest = min((most - least) // step, _FAR)
        last = most // step * step
        found = [each for each in [*found, last - step, last] if least <= each <= most]
    if not found:
        return st.just(least)
    within = st.integers(0, max(highest, 0)).map(lambda number: least + step * number)
    return st.sampled_from(sorted(set(found))) | within


def _texts(schema: Mapping[str, Any], example: object) -> Values:
    given = [each for each in _given(example) if isinstance(each, str)]
    if schema.get("format") in ("date-time", "date"):
        width = 10 if schema["format"] == "date" else None
        return st.sampled_from([*given, *(each[:width] for each in _TIMES)])
    least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", 64))
    if pattern := schema.get("pattern"):
        drawn = st.from_regex(pattern, fullmatch=pattern.startswith("^"), alphabet=_ASCII)
        drawn = drawn.map(lambda text: text.removesuffix("\n")).filter(
            lambda text: least <= len(text) <= most
        )
        return st.sampled_from(given) | drawn if given else drawn
    texts = [each for each in (*given, *_TEXTS) if least <= len(each) <= most]
    return st.sampled_from(texts) if texts else st.just("a" * least)
