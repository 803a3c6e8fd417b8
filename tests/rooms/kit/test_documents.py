"""Values as JSON documents."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from declctl.kit.documents import document_of


class Colour(StrEnum):
    RED = "Red"


@dataclass
class Inner:
    seen_at: datetime
    long_name: Colour = Colour.RED

    def document(self) -> dict[str, Any]:
        """One field more than it has."""
        return document_of(self) | {"more": 1}


@dataclass
class Outer:
    inner: Inner
    numbers: tuple[float, ...] = (1.0000004, 2)
    by_name: dict[Colour, Any] = field(default_factory=dict[Colour, Any])
    nothing: None = None
    secret_place: str = "hidden"


def test_a_dataclass_becomes_an_object_in_camel_case():
    """Also inside sequences, mappings and other dataclasses; a value with its own document uses that."""
    inner = Inner(datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC))
    shown = {"seenAt": "2026-01-02T03:04:05Z", "longName": "Red", "more": 1}
    document = document_of(Outer(inner, by_name={Colour.RED: [inner]}), without=("secret_place",))
    assert document == {"inner": shown, "numbers": [1.0, 2], "byName": {"Red": [shown]}, "nothing": None}
    assert type(document["inner"]["longName"]) is str
