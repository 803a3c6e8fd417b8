"""Matching of what a test expects with what is there: pure, without a server.

A mapping matches one that has all its fields, with values that match. A list matches one in which each of its
elements is found, each at another place, in any order. A scalar matches an equal one: numbers by their value,
and a number no text and no truth value. `null` matches a field that is not there, or null, and the text `?*`
any value that is there and not empty, as in patterns of Kyverno.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from declctl.kit.text import to_json
from declctl.manifest.values import Json, Path, dotted
from declctl.objects import KubeObject

ANY_VALUE: Final = "?*"
_MOST_SHOWN = 200  # characters of a value


class MatchDifference(NamedTuple):
    """One value that is expected and not found. `is_there` is False if there is nothing at the path.

    Of an element of a list that is not found, `found` has the elements that no other one matches.
    """

    path: Path
    expected: Json
    found: Json
    is_there: bool = True


def differences(expected: Json, found: object) -> Sequence[MatchDifference]:
    """What keeps `found` from matching `expected`; empty if it matches."""
    return list(_differences(expected, found, ()))


def matches(expected: Json, found: object) -> bool:
    """Whether `found` matches `expected`."""
    return next(iter(_differences(expected, found, ())), None) is None


def leaves(expected: Json) -> int:
    """The number of values in a pattern that are no mapping and no list; an empty one counts as a value."""
    if isinstance(expected, dict | list) and expected:
        return sum(map(leaves, expected.values() if isinstance(expected, dict) else expected))
    return 1


def nearest(
    pattern: Json, objects: Sequence[KubeObject]
) -> tuple[KubeObject, Sequence[MatchDifference]] | None:
    """The object with the most leaves that match, and what keeps it from matching; None without objects.

    Of several, the first.
    """
    compared = [(each, differences(pattern, each)) for each in objects]
    return min(compared, key=lambda one: _missed(one[1]), default=None)


def _missed(found: Iterable[MatchDifference]) -> int:
    return sum(leaves(each.expected) for each in found)


def _differences(expected: Json, found: object, path: Path) -> Iterable[MatchDifference]:
    if expected == ANY_VALUE:
        if found is None or found in ("", [], {}):
            yield _difference(path, expected, found)
    elif isinstance(expected, dict):
        if not isinstance(found, Mapping):
            yield _difference(path, expected, found)
            return
        present = cast("Mapping[str, Any]", found)
        for name, value in expected.items():
            below, there = (*path, name), present.get(name)
            if there is not None:
                yield from _differences(value, there, below)
            elif value is not None:
                yield MatchDifference(below, value, None, is_there=name in present)
    elif isinstance(expected, list):
        if not isinstance(found, Sequence) or isinstance(found, str):
            yield _difference(path, expected, found)
            return
        yield from _of_lists(expected, cast("Sequence[object]", found), path)
    elif not _equal(expected, found):
        yield _difference(path, expected, found)


def _of_lists(expected: list[Json], found: Sequence[object], path: Path) -> Iterable[MatchDifference]:
    """The differences of each element that has no place, with the nearest one that no other element has."""
    places = _places(expected, found)
    free = [each for at, each in enumerate(found) if at not in places.values()]
    for index, element in enumerate(expected):
        if index in places:
            continue
        below = (*path, index)
        compared = [list(_differences(element, each, below)) for each in free]
        best = min(compared, key=_missed, default=None)
        # An element that shares nothing with it would only confuse.
        if best is None or _missed(best) >= leaves(element):
            yield MatchDifference(below, element, cast("Json", free), is_there=False)
        else:
            yield from best


def _places(expected: list[Json], found: Sequence[object]) -> dict[int, int]:
    """For as many elements as possible, the place of one that matches it: a maximum matching of the two."""
    fitting = [[at for at, each in enumerate(found) if matches(element, each)] for element in expected]
    holder: dict[int, int] = {}  # by place, the element that has it

    def seat(index: int, seen: set[int]) -> bool:
        for at in fitting[index]:
            if at not in seen:
                seen.add(at)
                if at not in holder or seat(holder[at], seen):
                    holder[at] = index
                    return True
        return False

    for index in range(len(expected)):
        seat(index, set())
    return {index: at for at, index in holder.items()}


def _equal(expected: Json, found: object) -> bool:
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    if isinstance(expected, int | float) and isinstance(found, int | float):
        return expected == found
    return type(expected) is type(found) and expected == found


def _difference(path: Path, expected: Json, found: object) -> MatchDifference:
    return MatchDifference(path, expected, cast("Json", found), is_there=found is not None)


def sentence(difference: MatchDifference) -> str:
    """`spec.replicas: expected 2, found 1`."""
    path, found = difference.path, shown(difference.found) if difference.is_there else "nothing"
    expected = "any value" if difference.expected == ANY_VALUE else shown(difference.expected)
    if not difference.is_there and isinstance(others := difference.found, list):
        path, expected, found = path[:-1], f"an element {expected}", shown(others) if others else "no more"
    return f"{dotted(path)}: expected {expected}, found {found}"


def shown(value: Json) -> str:
    """A value in one line: JSON, cut after 200 characters."""
    if value is None:
        return "null"
    text = to_json(value, indent=None)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
