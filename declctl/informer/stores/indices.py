"""Indices: from a value to the objects that have it. This is where an event is indexed.

A bucket holds the records themselves, so that a query is one copy, which another thread can take
while the loop writes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from declctl.objects import FieldPath, ObjectView, Record

IndexFunc = Callable[[Record], Iterable[str]]


@dataclass(frozen=True, slots=True)
class FieldIndex:
    """Indexes by the scalars at a field path; reads the projection where the path is projected."""

    path: FieldPath

    def __call__(self, record: Record) -> tuple[str, ...]:
        return record.field(self.path)


def field_index(path: str) -> FieldIndex:
    """An index by field path, such as `spec.nodeName`; raises FieldPathError."""
    return FieldIndex(FieldPath.parse(path))


@dataclass(frozen=True, slots=True)
class FunctionIndex:
    """Indexes by a function of the object, which it decodes.

    That costs tens of microseconds each.
    """

    function: Callable[[ObjectView], Iterable[str]]

    def __call__(self, record: Record) -> tuple[str, ...]:
        return tuple(self.function(ObjectView(record)))


def function_index(function: Callable[[ObjectView], Iterable[str]]) -> FunctionIndex:
    """An index by a function of the object that gives its values."""
    return FunctionIndex(function)


class Index:
    """One index. Written by the loop, read by any thread.

    A function that raises, or returns something that is no string, keeps that object out of the
    index; it is counted, and the last fault is kept in words.
    """

    def __init__(self, function: IndexFunc) -> None:
        self.function = function
        self.faults = 0
        self.last_fault: str | None = None
        self._buckets: dict[str, dict[str, Record]] = {}
        self._values: dict[str, tuple[str, ...]] = {}

    def put(self, record: Record) -> None:
        """Let the record be found under its values, and under no others."""
        key = record.key
        values = self._computed(record)
        before = self._values.get(key)
        if before is not None and before != values:
            self._leave(key, before)
        if values:
            self._values[key] = values
            for value in values:
                self._buckets.setdefault(value, {})[key] = record
        elif before is not None:
            del self._values[key]

    def remove(self, key: str) -> None:
        """Let the key be found no longer."""
        values = self._values.pop(key, None)
        if values is not None:
            self._leave(key, values)

    def records(self, value: str) -> list[Record]:
        """The records that have the value."""
        bucket = self._buckets.get(value)
        return list(bucket.values()) if bucket is not None else []

    def keys(self, value: str) -> list[str]:
        """Their keys."""
        bucket = self._buckets.get(value)
        return list(bucket) if bucket is not None else []

    def values(self) -> list[str]:
        """Every value that some object has."""
        return list(self._buckets)

    def _computed(self, record: Record) -> tuple[str, ...]:
        try:
            values = tuple(dict.fromkeys(self.function(record)))
        except Exception as error:  # noqa: BLE001 - the user's function
            return self._fault(f"{type(error).__name__} on {record.key}: {error}")
        if not all(isinstance(value, str) for value in values):
            return self._fault(f"on {record.key} it gave {values!r}, which are not all strings")
        return values

    def _fault(self, message: str) -> tuple[str, ...]:
        self.faults += 1
        self.last_fault = message
        return ()

    def _leave(self, key: str, values: Sequence[str]) -> None:
        for value in values:
            bucket = self._buckets.get(value)
            if bucket is not None:
                bucket.pop(key, None)
                if not bucket:
                    del self._buckets[value]  # empty buckets would pile up (client-go 80)
