"""Which edits of a definition keep stored objects valid."""

from typing import Annotated, Any, Literal

import msgspec
import pytest

import declctl
from declctl.objects.definitions import definitions_of
from declctl.objects.schema_changes import by_cause, compare, compare_definitions
from declctl.objects.structural import structural_schema


def of(kind: Any, *default: Any) -> dict[str, Any]:
    return structural_schema(msgspec.defstruct("Spec", [("x", kind, *default)]))


def bounded(**bounds: Any) -> Any:
    return Annotated[int, msgspec.Meta(**bounds)]


NOTHING = structural_schema(msgspec.defstruct("Spec", []))
OPEN = structural_schema(dict[str, Any])


@pytest.mark.parametrize(
    ("before", "after", "what", "compatible"),
    [
        (NOTHING, of(int), "the field is new and required, and has no default", False),
        (NOTHING, of(int, 1), "the field is new", True),
        (OPEN, of(int, 1), "the field is new", False),
        (of(int, 1), NOTHING, "the field is gone: a server drops it from stored objects", False),
        (of(int | None, None), of(int), "the field is required now, and has no default", False),
        (of(int), of(int | None, None), "the field is not required any more", True),
        (of(int, 1), of(int, 2), "default: 1 → 2", True),
        (of(int), of(float), "type: integer → number", True),
        (of(float), of(int), "type: number → integer", False),
        (of(int), of(int | str), "type: integer → integer or string", True),
        (of(bounded(ge=1)), of(bounded(ge=0)), "minimum: 1 → 0", True),
        (of(bounded(ge=1)), of(bounded(gt=1)), "minimum 1 is exclusive now", False),
        (of(int), of(bounded(le=9)), "maximum: none → 9", False),
        (of(bounded(multiple_of=4)), of(bounded(multiple_of=2)), "multipleOf: 4 → 2", True),
        (of(str), of(Annotated[str, msgspec.Meta(max_length=5)]), "maxLength: none → 5", False),
        (of(declctl.Duration), of(str), "pattern: ", True),
        (of(Literal["a", "b"]), of(Literal["b", "c"]), '"a" is no choice any more', False),
        (of(Literal["a"]), of(Literal["a", "b"]), '"b" is a choice now', True),
        (of(int | None), of(int), "it may not be null any more", False),
        (of(list[int]), of(list[str]), "type: integer → string", False),
        (of(list[str]), of(set[str]), "x-kubernetes-list-type: atomic → set", False),
        (of(dict[str, Any]), of(dict[str, int]), "the values of the map are checked now", False),
        (of(int), of(Annotated[int, declctl.rule("self > 1")]), "the rule self > 1 is new", False),
        (of(int), of(Annotated[int, declctl.immutable]), "the rule self == oldSelf is new", True),
    ],
)
def test_changes_are_told(before: Any, after: Any, what: str, compatible: bool) -> None:
    """With what they mean for objects that are stored."""
    found = [each for each in compare(before, after) if what in each.what]
    assert [each.compatible for each in found] == [compatible]
    assert all(each.path in ("x", "x[]", "x{}") for each in found)


def declared(version: str, **more: Any) -> Any:
    @declctl.custom_resource(f"acme.dev/{version}", plural="previews", kind="Preview", **more)
    class Preview(declctl.Object[dict[str, Any], dict[str, Any]]): ...

    return Preview


def test_a_stored_version_can_not_go() -> None:
    """A server may have objects in versions that are not stored any more."""
    (both,) = definitions_of([declared("v1", storage=False), declared("v2")])
    (one,) = definitions_of([declared("v2")])
    assert [(str(each), each.compatible) for each in compare_definitions(both, one)] == [
        ("v1: the version is gone", True)
    ]
    served = {**both, "status": {"storedVersions": ["v1", "v2"]}}
    assert [each.compatible for each in compare_definitions(served, one)] == [False]
    assert [each.what for each in compare_definitions(one, both)] == ["the version is new"]
    assert compare_definitions(both, both) == []


class Part(msgspec.Struct):
    size: int = 1


def kind_with(part: type, mode: Any, columns: dict[str, Any]) -> Any:
    spec = msgspec.defstruct(
        "Spec",
        [("mode", mode), ("part", part, msgspec.field(default_factory=part)), ("parts", list[part], [])],
    )

    @declctl.custom_resource("acme.dev/v1", plural="previews", kind="Preview", columns=columns)
    class Preview(declctl.Object[spec, dict[str, Any]]): ...

    return definitions_of([Preview])[0]


def test_one_cause_is_one_sentence() -> None:
    """A new field of a class in two places, another choice, and another column; values are short JSON."""
    larger = msgspec.defstruct("Part", [("size", int, 1), ("note", str, "n" * 100)])
    columns: dict[str, Any] = {"Size": ".spec.part.size", "Mode": ".spec.mode"}
    before = kind_with(Part, Literal["fast", "slow"], columns)
    after = kind_with(larger, Literal["quick", "slow"], {**columns, "Mode": ".metadata.name"})
    assert [(str(each), each.compatible) for each in by_cause(compare_definitions(before, after))] == [
        ('spec.mode: "fast" is no choice any more; "quick" is a choice now', False),
        ("spec.part.note and spec.parts[].note: the field is new", True),
        ('version v1: additionalPrinterColumns[1].jsonPath: ".spec.mode" → ".metadata.name"', True),
    ]
    (gone,) = by_cause(
        compare_definitions(before, kind_with(Part, Literal["fast", "slow"], {"Size": ".spec.part.size"}))
    )
    assert (
        gone.what
        == 'additionalPrinterColumns[1]: {"name":"Mode","type":"string","jsonPath":".spec.mode"} → none'
    )
