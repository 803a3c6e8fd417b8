"""Schemas that are made of types; tests/e2e/test_types_and_servers.py shows what they accept."""

import dataclasses
import re
from datetime import timedelta
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pytest
from cel_expr_python import cel
from hypothesis import assume, given
from hypothesis import strategies as st

import declctl
from declctl.objects.patterns import go_pattern, pattern_fault
from declctl.objects.structural import SchemaErrors, structural_schema

PRESERVE = "x-kubernetes-preserve-unknown-fields"


class Port(msgspec.Struct):
    """A port."""

    name: str
    number: int = 80


@declctl.rules(declctl.rule("self.min <= self.max", message="min is above max"))
class Range(msgspec.Struct):
    min: int = 0
    max: int = 9
    note: str | None = None


class Tree(msgspec.Struct):
    children: Annotated[list["Tree"], declctl.preserve_unknown_fields] = []


class Ring(msgspec.Struct):
    next: "Ring | None" = None


@dataclasses.dataclass
class Plain:
    size: Annotated[int, msgspec.Meta(ge=1)] = 1


class Keys(TypedDict):
    size: int
    note: NotRequired[str]


def of(kind: Any, default: Any = msgspec.NODEFAULT) -> dict[str, Any]:
    """The schema of a field of a struct."""
    field = ("x", kind) if default is msgspec.NODEFAULT else ("x", kind, default)
    return structural_schema(msgspec.defstruct("Spec", [field]))["properties"]["x"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            Annotated[int, msgspec.Meta(gt=0, le=9, multiple_of=3, description="Size.")],
            {
                "type": "integer",
                "minimum": 0,
                "exclusiveMinimum": True,
                "maximum": 9,
                "multipleOf": 3,
                "description": "Size.",
            },
        ),
        (int | None, {"type": "integer", "nullable": True}),
        (int | str, {"x-kubernetes-int-or-string": True}),
        (
            int | Annotated[str, msgspec.Meta(pattern="^[0-9]+%$")] | None,
            {"x-kubernetes-int-or-string": True, "pattern": "^[0-9]+%$", "nullable": True},
        ),
        (Literal["b", "a"], {"type": "string", "enum": ["a", "b"]}),
        (
            Annotated[list[str], msgspec.Meta(min_length=1)],
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
        ),
        (tuple[int, int], {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}),
        (set[str], {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (dict[str, Any], {"type": "object", PRESERVE: True}),
        (Any, {PRESERVE: True, "nullable": True}),
        (
            Annotated[
                str,
                declctl.rule("self != 'a'", message="no a"),
                declctl.rule("self != 'b'", reason="FieldValueForbidden"),
            ],
            {
                "type": "string",
                "x-kubernetes-validations": [
                    {"rule": "self != 'a'", "message": "no a"},
                    {"rule": "self != 'b'", "reason": "FieldValueForbidden"},
                ],
            },
        ),
        # A server compares whole numbers with a bound without its fraction.
        (
            Annotated[float, msgspec.Meta(ge=0.5)],
            {
                "type": "number",
                "x-kubernetes-validations": [{"rule": "self >= 0.5", "message": "it should be >= 0.5"}],
            },
        ),
        (
            Plain,
            {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1, "default": 1}}},
        ),
        (
            Keys,
            {
                "type": "object",
                "properties": {"note": {"type": "string"}, "size": {"type": "integer"}},
                "required": ["size"],
            },
        ),
        (
            Tree,
            {
                "type": "object",
                "properties": {
                    "children": {"type": "array", "items": {"type": "object", PRESERVE: True}, "default": []}
                },
            },
        ),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_type_has_a_schema(kind: Any, expected: dict[str, Any]) -> None:
    """Bounds, choices, unions, lists, maps, rules and classes."""
    assert of(kind) == expected


def test_lists_of_objects_have_keys() -> None:
    """Server-side apply merges them by element."""
    made = of(Annotated[list[Port], declctl.list_map("name")])
    assert (made["x-kubernetes-list-type"], made["x-kubernetes-list-map-keys"]) == ("map", ["name"])
    assert made["items"]["description"] == "A port."
    conditions = of(list[declctl.Condition])
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    properties = conditions["items"]["properties"]
    # As controller-gen writes metav1.Condition.
    assert properties["lastTransitionTime"] == {"type": "string", "format": "date-time"}
    # One of another controller may be read without a reason, and none is written without.
    assert "reason" in conditions["items"]["required"]
    assert "default" not in properties["reason"]


def test_the_server_fills_in_the_defaults() -> None:
    """A default of None is left out; one of an object is whole, as a server asks its rules about it."""
    made = of(Range, msgspec.field(default_factory=Range))
    assert made["default"] == {"min": 0, "max": 9}
    assert "nullable" not in of(int | None, None)
    assert of(int | None, 5) == {"type": "integer", "nullable": True, "default": 5}
    assert of(set[int], msgspec.field(default_factory=lambda: {3, 1, 2}))["default"] == [1, 2, 3]


def test_an_immutable_field_can_not_go_or_come() -> None:
    """A rule with oldSelf is not asked about a field that was not there."""

    class Spec(msgspec.Struct):
        image: Annotated[str, declctl.immutable]
        in_: Annotated[str | None, declctl.immutable] = msgspec.field(default=None, name="in")

    schema = structural_schema(Spec)
    for field in schema["properties"].values():
        assert [each["rule"] for each in field["x-kubernetes-validations"]] == ["self == oldSelf"]
    assert schema["x-kubernetes-validations"] == [
        {"rule": "has(self.__in__) == has(oldSelf.__in__)", "message": "in can't be changed"}
    ]


class Unknown:
    pass


class Model:
    @classmethod
    def model_validate(cls, given: Any) -> "Model":
        return cls()


@pytest.mark.parametrize(
    ("kind", "default", "said"),
    [
        (timedelta, None, "spec.x: a timedelta is written as ISO 8601"),
        (Annotated[str, msgspec.Meta(pattern=r"^\d+$")], None, r"\d matches characters of all scripts"),
        (Annotated[str, msgspec.Meta(pattern="(?=a)")], None, "RE2, by which the server reads patterns"),
        (Ring, None, "spec.x.next: Ring holds itself"),
        (int | list[int], None, "a server knows no union of these types"),
        (tuple[int, str], None, "a list of a server has elements of one type"),
        (dict[int, int], None, "a server does not check the keys of a map"),
        (set[Port], None, "a server compares the elements of a set only if they are plain"),
        (Literal["a", 1], None, "the choices are of different types"),
        (list[Literal["a"] | None], None, "spec.x[]: a server refuses null for a choice"),
        (Annotated[list[Port], declctl.list_map("nam")], None, "have no field nam; it has name, number"),
        (
            Annotated[list[Range], declctl.list_map("note")],
            None,
            "note is a key of the list, and may be missing",
        ),
        (Annotated[int, msgspec.Meta(ge=2)], 1, "the default does not fit the type: Expected `int` >= 2"),
        (Annotated[int, msgspec.Meta(le=2**60)], None, "a server can't compare 1152921504606846976 exactly"),
        (Annotated[float, msgspec.Meta(multiple_of=0.1)], None, "it would not agree on multiples of a float"),
        (bytes, b"", "a server refuses empty bytes"),
        (Annotated[int, msgspec.Meta(extra_json_schema={"if": 1})], None, "if can't be in a schema"),
        (Unknown, None, "msgspec does not know the type Unknown"),
        (Model, None, "Model is a model of pydantic"),
        (list[Port | Range], None, "spec.x: msgspec can't read the type"),
        ("Nowhere", None, "an annotation can't be read: name 'Nowhere' is not defined"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_what_no_server_takes_is_refused(kind: Any, default: Any, said: str) -> None:
    """With the place in the object, the field of the class, and what to write instead."""
    with pytest.raises(SchemaErrors) as raised:
        of(kind, msgspec.NODEFAULT if default is None else default)
    assert said in str(raised.value)
    assert all(fault.suggestion for fault in raised.value.faults)


def test_elements_without_keys_have_no_old_value() -> None:
    """A server knows the elements of a list map again, and those of other lists not."""
    with pytest.raises(SchemaErrors, match=r"spec.x\[\]: a rule reads oldSelf"):
        of(list[Annotated[str, declctl.immutable]])
    assert of(dict[str, Annotated[str, declctl.immutable]])


def test_durations_are_written_as_go_writes_them() -> None:
    """The type checks the text, and `parse_duration` reads it."""
    for text, seconds in {"90s": 90, "1h30m": 5400, "1.5h": 5400, "100ms": 0.1, "1h0m0.5s": 3600.5}.items():
        assert msgspec.convert(text, declctl.Duration) == text
        assert declctl.parse_duration(text).total_seconds() == seconds
    for text in ("", "5", "1d", "-1h", "1h 3m", "h"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(text, declctl.Duration)
        with pytest.raises(ValueError, match="no duration"):
            declctl.parse_duration(text)


_PARTS = [
    "a",
    "b",
    ".",
    "[a-c]",
    "[^a]",
    "[]a]",
    "(",
    ")",
    "(?:",
    "|",
    "*",
    "+?",
    "?",
    "{1,2}",
    "^",
    "$",
    r"\.",
]
_PARTS += [
    r"\n",
    r"\x41",
    "(?P<n>",
    "(?i)",
    r"\d",
    r"\Z",
    r"\1",
    "(?=",
    "{,2}",
    "a++",
    r"\pL",
    "[[:alpha:]]",
    "é",
]


@given(st.lists(st.sampled_from(_PARTS), max_size=6).map("".join), st.text("abcA.\n1é", max_size=4))
def test_patterns_mean_the_same_to_python_and_the_server(pattern: str, text: str) -> None:
    """What is not refused is read by RE2, which cel-expr has, and matches the same texts."""
    assume(pattern_fault(pattern) is None)
    quoted, given = (f'r"""{each}"""' for each in (pattern, text))
    found = cel.NewEnv(variables={}).compile(f"{given}.matches({quoted})")
    known = go_pattern(pattern)
    assert known is not None
    matches = found.eval(data={}).value()
    assert matches is (known.search(text) is not None)
    if not text.endswith("\n"):
        assert matches is (re.search(pattern, text) is not None)
