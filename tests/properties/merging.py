"""What becomes of two changes of a key that wait together: the table of the contract, on values."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Value:
    """A change that remembers which additions went into it."""

    kind: str
    parts: tuple[int, ...]
    weight: int


def merge(waiting: Value, new: Value, attempted: bool) -> Sequence[Value]:
    """The table of the contract, on values without objects."""
    parts = waiting.parts + new.parts
    match waiting.kind, new.kind:
        case "Resync", kind:
            return [Value(kind, parts, new.weight)]
        case kind, "Resync":
            return [Value(kind, parts, waiting.weight)]
        case "Added", "Modified":
            return [Value("Added", parts, new.weight)]
        case "Added", "Deleted" if not attempted:
            return []
        case _, "Deleted":
            return [Value("Deleted", parts, new.weight)]
        case "Modified", "Modified":
            return [Value("Modified", parts, new.weight + waiting.weight)]
        case _:
            return [waiting, new]
