"""Mutation detection: what readers have changed in objects that they share (client-go's MutationDetector).

Only held objects are shared, and only code that reaches past a view can change one. With frames every
reader has a copy of its own, and nothing can be spoilt.
"""

import marshal
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from declctl.objects.field_path import FieldPath, Step
from declctl.objects.frame import HeldObject, ObjectCodec
from declctl.objects.key import key_of
from declctl.objects.reading import mapping

_TOLD = 3  # differences of one object that are told; the others are counted
_LONGEST = 60  # characters of a value
_EXACT = 2  # the last version of marshal's format that depends on the values alone
_JSON = (dict, list, str, int, float, bool, type(None))
_SECRET = ("v1", "Secret")
_HIDDEN = "(hidden)"
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """One place that was changed; `before` and `after` are in words, and hidden for Secrets."""

    path: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path} was {self.before} and became {self.after}"


@dataclass(frozen=True, slots=True)
class Mutation:
    """An object that a reader has changed. `differences` has the first of them, `more` counts the others."""

    kind: str
    key: str
    differences: tuple[Difference, ...]
    more: int = 0

    @property
    def places(self) -> str:
        """Which object, and where in it; without the values, for those who may not see objects."""
        return self._told(", ".join(each.path for each in self.differences))

    def __str__(self) -> str:
        return self._told("; ".join(map(str, self.differences)))

    def _told(self, what: str) -> str:
        return f"{self.kind} {self.key}: {what}" + (f" (and {self.more} more)" if self.more else "")


class MutationDetector:
    """Looks at the objects of one codec in turn, and puts right what was changed. Used by one thread.

    What was changed is found wherever it is still held: in the cache, or by a change that waits for a
    handler. Whoever reads the object afterwards has it as the server sent it; who holds a view from
    before keeps what that shows. `count` is the number of changed objects so far, `last` the last.
    """

    def __init__(self, codec: ObjectCodec) -> None:
        self._codec = codec
        self._round: list[weakref.ref[HeldObject]] = []
        self.count = 0
        self.last: Mutation | None = None

    def look(self, most: int) -> list[Mutation]:
        """Compare the next `most` objects with what they were; what was changed.

        Fewer are compared at the end of a round; the next call begins another.
        """
        found: list[Mutation] = []
        if not self._round:
            self._round = [*reversed(self._codec.alive())]
        while self._round and most:
            held = self._round.pop()()
            if held is None or held.body is None:
                continue
            most -= 1
            mutation = self._compare(held, held.body)
            if mutation is not None:
                found.append(mutation)
        self.count += len(found)
        self.last = found[-1] if found else self.last
        return found

    def look_at_all(self) -> list[Mutation]:
        """Compare every object that is held."""
        self._round = []
        return self.look(len(self._codec.alive()) or 1)

    @property
    def at_end_of_round(self) -> bool:
        """Whether everything has been looked at that was there when the round began."""
        return not self._round

    def _compare(self, held: HeldObject, body: dict[str, Any]) -> Mutation | None:
        pristine = self._codec.pristine(held)
        if _same(body, pristine):
            return None
        differences = list(_differences(pristine, body, ()))
        if (self._codec.api_version, self._codec.kind) == _SECRET:
            differences = [Difference(each.path, _HIDDEN, _HIDDEN) for each in differences]
        if not differences:
            return None  # keys in another order
        held.body = pristine
        return Mutation(
            self._codec.kind,
            _key(pristine),
            tuple(differences[:_TOLD]),
            max(len(differences) - _TOLD, 0),
        )


def _key(obj: dict[str, Any]) -> str:
    metadata = mapping(obj.get("metadata"))  # a transform may have taken all of it away
    return key_of(metadata.get("namespace"), str(metadata.get("name") or "without a name"))


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    # Written out and compared: exact, where Python takes True for 1; without asking the `__eq__` of
    # whatever a reader has put in; in one step, while other threads read and write.
    try:
        return marshal.dumps(one, _EXACT) == marshal.dumps(other, _EXACT)
    except ValueError:
        return False  # something is in it that is no JSON


def _differences(before: Any, after: Any, steps: tuple[Step, ...]) -> Iterator[Difference]:
    if type(before) is not type(after):
        yield _difference(steps, before, after)
    elif isinstance(before, dict):
        yield from _differences_of_maps(cast("dict[str, Any]", before), dict(after), steps)
    elif isinstance(before, list):
        old, new = cast("list[Any]", before), list(after)
        for index in range(max(len(old), len(new))):
            yield from _differences(_at(old, index), _at(new, index), (*steps, index))
    elif before is not after and before != after:
        yield _difference(steps, before, after)


def _differences_of_maps(
    before: Mapping[str, Any], after: Mapping[Any, Any], steps: tuple[Step, ...]
) -> Iterator[Difference]:
    for name, value in before.items():
        yield from _differences(value, after.get(name, _ABSENT), (*steps, name))
    for name, value in after.items():
        if name not in before:
            yield _difference((*steps, str(name) if isinstance(name, str | int) else "?"), _ABSENT, value)


def _at(elements: list[Any], index: int) -> Any:
    return elements[index] if index < len(elements) else _ABSENT


def _difference(steps: tuple[Step, ...], before: Any, after: Any) -> Difference:
    return Difference(str(FieldPath(steps)), _shown(before), _shown(after))


def _shown(value: Any) -> str:
    """As JSON; what isn't JSON is told by its type alone, as its `__repr__` is somebody else's code."""
    if value is _ABSENT:
        return "absent"
    try:
        text = msgspec.json.encode(value).decode() if type(value) in _JSON else ""
    except (TypeError, ValueError, RecursionError):
        text = ""
    text = text or f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
