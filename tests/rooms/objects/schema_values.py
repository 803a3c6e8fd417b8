"""Types at random, and values that fit the schema of a type, or nearly do."""

import enum
import random
import re
import string
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from hypothesis import strategies as st

from declctl.objects.schema_marks import Duration, immutable, list_map, rule, rules
from declctl.objects.structural import cel_name, structural_schema

_PATTERNS = ["^[a-z]+$", "^(a|b){1,3}$", "x", "^[^ab]*$", r"^\.[A-Z]-?$", "^.$", "a|^$"]
_TEXTS = ["", "a", "b", "abc", "é", "😀", "a\n", "\n", "ab ", "٣", "25%", "5m", "1.5h", "-1h", "YQ==", "YQ"]
_TIMES = [
    *("2026-01-01T00:00:00Z", "2026-01-01t00:00:00.123456789z", "2026-12-31T23:59:59+01:30"),
    *("2026-01-01T00:00:00", "2026-01-01 00:00:00Z", "2026-01-01T00:00:00x5Z", "2026-01-01T00:00:00+99:99"),
    *("2026-01-01T23:59:60Z", "0000-01-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z"),
    *(
        "0999-01-01T00:00:00Z",
        "2026-01-01T00:00:00+0100",
        "2026-01-01",
        "0000-01-01",
        "2026-02-29",
        "2026-1-1",
    ),
    *("2024-02-29", "2024-02-29T12:00:00-00:00", "9999-12-31T23:59:59.9999999Z"),
]
_UUIDS = [
    *("6F9619FF-8B86-D011-B42D-00CF4FC964FF", "6f9619ff8b86d011b42d00cf4fc964ff"),
    *("6f9619ff8b86-d011b42d-00cf4fc964ff", "6f9619ff-8b86-d011-b42d-00cf4fc964fg"),
]
_NUMBERS = [0, 1, -1, 2, 3, 1.0, 1.5, 1e3, 1e16, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 1e300]
_JUNK = [None, True, False, [], {}, [None], [1], {"a": None}, {"a": 1}, {"n": {}}, *_TEXTS, *_NUMBERS]


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Part(msgspec.Struct):
    """An element of lists with keys."""

    name: str
    size: Annotated[int, msgspec.Meta(gt=0, lt=100)] = 1
    note: str | None = None


def random_type(chance: random.Random, *, fields: int = 12, depth: int = 2) -> type[msgspec.Struct]:
    """A struct of random fields, required and with defaults."""
    made: list[Any] = []
    for number in range(fields):
        kind, default = type_of(chance, depth)
        name = chance.choice([f"f{number}", f"f_{number}", *(["namespace"] if number == 0 else [])])
        match chance.choice(["required", "default", "default", "none", "none", "none"]):
            case "required" if number < 2:
                made.append((name, kind))
            case "default" if default is not None:
                made.append((name, kind, msgspec.field(default_factory=lambda value=default: value)))
            case _:
                made.append((name, kind | None, None))
    cls = msgspec.defstruct("Made", made, rename=chance.choice([None, "camel"]), kw_only=True)
    whole = [
        name for name, *given in made if len(given) == 2 and getattr(given[0], "__origin__", None) is int
    ]
    if whole and chance.random() < 0.5:
        # A default stands in each object, so that the rule needs no has().
        name = dict(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))[whole[0]]
        rules(rule(f"self.{cel_name(name)} != 3", message="it is 4"))(cls)
    return cls


def type_of(chance: random.Random, depth: int) -> tuple[Any, Any]:
    """A type, and a default of it."""
    plain = [_integer, _float, _text, _choice, _special]
    found = chance.choice(
        [*plain, *plain, *([_list, _map, _list] if depth else []), *([_struct] if depth else [])]
    )
    return found(chance, depth)


def _integer(chance: random.Random, _: int) -> tuple[Any, Any]:
    low = chance.choice([-3, 0, 1])
    bounds = chance.choice([{}, {"ge": low}, {"gt": low, "le": low + 9}, {"lt": 7}, {"multiple_of": 2}])
    rules = [rule("self != 4", message="it is 4")] if chance.random() < 0.3 else []
    return Annotated[int, msgspec.Meta(**bounds), *rules], 2


def _float(chance: random.Random, _: int) -> tuple[Any, Any]:
    bounds = chance.choice([{}, {"ge": -0.5}, {"gt": 0, "lt": 9.5}])
    return Annotated[float, msgspec.Meta(**bounds)], 2.5


def _text(chance: random.Random, depth: int) -> tuple[Any, Any]:
    bounds: dict[str, Any] = {}
    if chance.random() < 0.4:
        bounds |= {"min_length": chance.choice([0, 1]), "max_length": chance.choice([2, 5])}
    if chance.random() < 0.5:
        bounds["pattern"] = chance.choice(_PATTERNS)
    marks = [immutable] if depth == 2 and chance.random() < 0.1 else []  # not in a list
    return Annotated[str, msgspec.Meta(**bounds), *marks], None


def _choice(chance: random.Random, _: int) -> tuple[Any, Any]:
    return chance.choice(
        [(Colour, Colour.RED), (Level, Level.HIGH), (Literal["a", "b"], "b"), (Literal[1, 2], 1)]
    )


def _special(chance: random.Random, _: int) -> tuple[Any, Any]:
    return chance.choice(
        [
            (bool, True),
            (Any, 1),
            (datetime, datetime(2026, 1, 2, tzinfo=UTC)),
            (date, date(2026, 1, 2)),
            (bytes, b"a"),
            (UUID, UUID(int=7)),
            (Duration, "1h30m"),
            (int | Annotated[str, msgspec.Meta(pattern="^[0-9]+%$")], "25%"),
            (int | str, 80),
            (dict[str, Any], {"a": [1]}),
            (list[Any], None),
            (int | float, 1.5),
        ]
    )


def _list(chance: random.Random, depth: int) -> tuple[Any, Any]:
    inner, default = type_of(chance, depth - 1)
    bounds = chance.choice([{}, {"min_length": 1}, {"max_length": 2}])
    many = [] if default is None or bounds.get("min_length") else [default]
    return chance.choice(
        [
            (Annotated[list[inner], msgspec.Meta(**bounds)], None if bounds.get("min_length") else many),
            (list[int | None], [None, 1]),
            (set[int], {3, 1}),
            (frozenset[Annotated[str, msgspec.Meta(min_length=1)]], None),
            (tuple[int, int], (1, 2)),
            (tuple[inner, ...], None),
            (Annotated[list[Part], list_map("name")], [Part("a"), Part("b", size=2)]),
            (Annotated[list[Part], list_map("name", "size"), rule("self.size() < 3")], []),
        ]
    )


def _map(chance: random.Random, depth: int) -> tuple[Any, Any]:
    inner, _ = type_of(chance, depth - 1)
    bounds = chance.choice([{}, {"min_length": 1}, {"max_length": 1}])
    return chance.choice(
        [(Annotated[dict[str, inner], msgspec.Meta(**bounds)], None), (dict[str, int | None], {})]
    )


def _struct(chance: random.Random, depth: int) -> tuple[Any, Any]:
    made = random_type(chance, fields=3, depth=depth - 1)
    required = structural_schema(made).get("required")
    return made, None if required else made()


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values for a schema: most of them fit, the others miss by little."""
    return st.one_of(*[_fitting(schema)] * 9, st.sampled_from(_JUNK))


def _fitting(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from([*schema["enum"], *schema["enum"], "c"])
    match schema.get("type"):
        case "object":
            return _objects(schema)
        case "array":
            return _lists(schema)
        case "integer":
            return st.sampled_from([*_bounds(schema), *_NUMBERS])
        case "number":
            return st.sampled_from([*_bounds(schema), *(each + 0.25 for each in _bounds(schema)), *_NUMBERS])
        case "string":
            return _texts(schema)
        case "boolean":
            return st.booleans()
        case _:
            return st.one_of(_texts(schema), st.sampled_from(_JUNK))


def _bounds(schema: dict[str, Any]) -> list[Any]:
    limits = [schema.get("minimum"), schema.get("maximum"), 2]
    return [limit + step for limit in limits if limit is not None for step in (-1, 0, 1, 2)]


def _texts(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    known = {"date-time": _TIMES, "date": _TIMES, "uuid": _UUIDS}.get(schema.get("format", ""), _TEXTS)
    found = [st.sampled_from(known)]
    if pattern := schema.get("pattern"):
        alphabet = st.sampled_from(f"{string.ascii_letters}0123456789.-:+ %é\n")
        found += [st.from_regex(pattern, alphabet=alphabet)] * 2
    longest = schema.get("maxLength", 3)
    found.append(st.text(st.sampled_from("aé😀"), min_size=schema.get("minLength", 0), max_size=longest + 1))
    return st.one_of(*found)


def _lists(schema: dict[str, Any]) -> st.SearchStrategy[list[Any]]:
    short = st.lists(values(schema["items"]), min_size=schema.get("minItems", 0), max_size=2)
    return short | st.lists(_fitting(schema["items"]), max_size=schema.get("maxItems", 2) + 1)


def _objects(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    if (inner := schema.get("additionalProperties")) is not None:
        return st.dictionaries(st.sampled_from("abc"), values(inner), max_size=2)
    if (properties := schema.get("properties")) is None:
        return st.sampled_from([{}, {"a": 1}, {"a": None, "b": {"c": None}}])
    required = {name: _fitting(properties[name]) for name in schema.get("required", ())}
    others = {name: values(each) for name, each in properties.items()}

    @st.composite
    def made(draw: st.DrawFn) -> dict[str, Any]:
        found = {name: draw(each) for name, each in required.items() if draw(st.integers(0, 30))}
        few = draw(st.lists(st.sampled_from([*others, "unknown"]), max_size=4, unique=True)) if others else []
        return found | {name: draw(others.get(name, st.just(1))) for name in few if name not in found}

    return made()


def as_stored(schema: dict[str, Any], value: Any) -> Any:
    """A value as the server gives it to the check: without nulls that mean nothing, and 1 for 1.0."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [as_stored(schema.get("items", {}), each) for each in value]
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {}
    for name, each in value.items():
        inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
        if each is not None or inner is None or inner.get("nullable"):
            kept[name] = as_stored(inner or {}, each)
    return kept


def server_alone(schema: dict[str, Any], value: Any) -> Iterator[str]:
    """What only a server refuses: the differences that `declctl.objects.structural` names."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63 and schema.get("type") != "number":
        yield "64 bits"
    elif isinstance(value, str):
        pattern = schema.get("pattern")
        if schema.get("format") == "byte" and not value:
            yield "empty bytes"
        if pattern and value.endswith("\n") and not re.search(pattern.replace("$", r"\Z"), value):
            yield "line break"
        if pattern and schema.get("format") in ("date", "date-time") and not re.search(pattern, value):
            yield "another way to write a time"
    elif isinstance(value, list):
        for each in value:
            yield from server_alone(schema.get("items", {}), each)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from server_alone(
                schema.get("properties", {}).get(name, schema.get("additionalProperties", {})), each
            )
