"""Changed paths: whether something at or below some field paths differs between two states of an object.

What need not be decoded is not: labels stand in every record, equal texts are equal objects, and of two
texts that differ only what stands at the paths is looked at. Order of keys, spacing and escapes never
count. What can't be read counts as changed: who is told will see for himself.
"""

import operator
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

from declctl.errors import MalformedAnswer
from declctl.objects.field_path import FieldPath, Step, Wildcard
from declctl.objects.frame import FILLED_IN
from declctl.objects.reading import UNREADABLE
from declctl.objects.record import Record

_UNNAMEABLE = frozenset('"\\')  # no field of a struct can be called so
_Tree = dict[str, Any]  # step → the tree below it, None where a place ends
_Steps = tuple[Step, ...]
_Places = dict[_Steps, list[_Steps]]  # a place that is cut out of a text → what is looked for in there


class ChangedPaths:
    """Some field paths, compiled; any thread may ask it.

    A path that lies below another adds nothing. Labels are compared as records have them: none at all,
    null and an empty map are the same. `[*]` over a map means its values, in the order of their keys.
    """

    def __init__(self, paths: Iterable[FieldPath]) -> None:
        given = _outermost(dict.fromkeys(path.steps for path in paths))
        self._all_labels = ("metadata", "labels") in given
        self._labels = tuple(name for steps in given if (name := _label(steps)) is not None)
        self._others = [s for s in given if s != ("metadata", "labels") and _label(s) is None]
        self._places, self._decoded = _places(self._others)
        self._read = _reader(self._places) if self._places else None

    @property
    def reads(self) -> bool:
        """Whether texts are looked at; without, the labels of the records say everything."""
        return bool(self._others)

    @property
    def decodes(self) -> bool:
        """Whether both objects are decoded whole as soon as anything in them has changed."""
        return bool(self._decoded)

    def differ(self, old: Record, new: Record) -> bool:
        """Whether something at or below one of the paths is not the same in both; never raises."""
        if old is new:
            return False
        if self._labels_differ(old, new):
            return True
        return self.reads and self._texts_differ(old, new)

    def _labels_differ(self, old: Record, new: Record) -> bool:
        if old.labels_json == new.labels_json:
            return False
        before, after = old.labels, new.labels
        if self._all_labels:
            return before != after
        return any(before.get(name) != after.get(name) for name in self._labels)

    def _texts_differ(self, old: Record, new: Record) -> bool:
        if old.layout.codec is new.layout.codec and old.frame == new.frame:
            return False
        before, after = old.layout.codec.decode(old.frame), new.layout.codec.decode(new.frame)
        if before == after:
            return False
        if self._read is not None:
            try:
                parts = zip(self._read(before), self._read(after), self._places.values(), strict=True)
                if any(one != other and _part_differs(one, other, sought) for one, other, sought in parts):
                    return True
            except msgspec.ValidationError:  # another shape than the paths expect: null in place of a map
                return _differ_decoded(self._others, old, new)
            except UNREADABLE:
                return True
        return bool(self._decoded) and _differ_decoded(self._decoded, old, new)


def same_json(one: Any, other: Any) -> bool:
    """Whether two decoded values are the same JSON: unlike in Python, true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        mine, theirs = cast("_Tree", one), cast("_Tree", other)
        return mine.keys() == theirs.keys() and all(same_json(v, theirs[k]) for k, v in mine.items())
    if isinstance(one, list) and isinstance(other, list):
        my, their = cast("list[Any]", one), cast("list[Any]", other)
        return len(my) == len(their) and all(map(same_json, my, their))
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _outermost(given: Iterable[_Steps]) -> list[_Steps]:
    paths = list(given)
    return [path for path in paths if not any(_is_below(path, other) for other in paths)]


def _is_below(path: _Steps, other: _Steps) -> bool:
    return len(path) > len(other) and path[: len(other)] == other


def _label(steps: _Steps) -> str | None:
    match steps:
        case ("metadata", "labels", str(name)):
            return name
        case _:
            return None


def _places(given: Iterable[_Steps]) -> tuple[_Places, list[_Steps]]:
    """Where paths can be cut out of a text, and those for which it can't; no place lies in another."""
    cut = {steps: _named(steps) for steps in given}
    decoded = [steps for steps, name in cut.items() if not name]
    places: _Places = {}
    for place in _outermost(dict.fromkeys(name for name in cut.values() if name)):
        inside = [steps for steps in cut if steps[: len(place)] == place]
        places[place] = [steps[len(place) :] for steps in inside]
    return places, decoded


def _named(steps: _Steps) -> _Steps:
    """The first steps, as far as they can be fields of structs; none for what a text may leave out."""
    if steps[0] in FILLED_IN:
        return ()
    for at, step in enumerate(steps):
        if not isinstance(step, str) or _UNNAMEABLE.intersection(step) or not step.isprintable():
            return steps[:at]
    return steps


def _reader(places: Iterable[_Steps]) -> Callable[[bytes], tuple[msgspec.Raw, ...]]:
    """What stands in a text at each place, as it is written there; empty where nothing does.

    Raises msgspec.ValidationError for an object of another shape, and what decoding raises.
    """
    tree: _Tree = {}
    for steps in places:
        below = tree
        for step in steps[:-1]:
            below = below.setdefault(cast("str", step), {})
        below[cast("str", steps[-1])] = None
    decode = msgspec.json.Decoder(_struct(tree)).decode
    getters = [_getter(tree, steps) for steps in places]
    # The first is named twice: attrgetter returns a tuple for two names at least.
    values = operator.attrgetter(getters[0], *getters)
    return lambda text: values(decode(text))[1:]


def _struct(tree: _Tree) -> Any:
    """Its fields are called by their number, and read by their name, which may be any text."""
    fields: list[tuple[str, Any, Any]] = []
    for number, below in enumerate(tree.values()):
        kind = msgspec.Raw if below is None else _struct(below)
        fields.append((f"f{number}", kind, kind()))
    names = {f"f{number}": step for number, step in enumerate(tree)}
    return msgspec.defstruct("Changed", fields, rename=names, gc=False, frozen=True)


def _getter(tree: _Tree, steps: _Steps) -> str:
    numbers: list[str] = []
    for step in steps:
        numbers.append(f"f{list(tree).index(cast('str', step))}")
        tree = tree[cast("str", step)]
    return ".".join(numbers)


def _part_differs(one: msgspec.Raw, other: msgspec.Raw, sought: Iterable[_Steps]) -> bool:
    before, after = _decoded(one), _decoded(other)
    return any(not same_json(_found(before, steps), _found(after, steps)) for steps in sought)


def _decoded(part: msgspec.Raw) -> list[Any]:
    """The value, if it is there."""
    return [msgspec.json.decode(part)] if bytes(part) else []


def _differ_decoded(paths: Iterable[_Steps], old: Record, new: Record) -> bool:
    try:
        before, after = [old.decode()], [new.decode()]
        return any(not same_json(_found(before, steps), _found(after, steps)) for steps in paths)
    except (MalformedAnswer, RecursionError):
        return True


def _found(values: list[Any], steps: _Steps) -> list[Any]:
    """What stands at a path below some values, in an order that the order of keys does not change."""
    for at, step in enumerate(steps):
        if isinstance(step, Wildcard):
            values = [inner for value in values for inner in _inside(value)]
        else:
            path = FieldPath(steps[at : at + 1])
            values = [found for value in values for found in path.find(value)]
    return values


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        fields = cast("_Tree", value)
        return [fields[name] for name in sorted(fields)]
    return cast("list[Any]", value) if isinstance(value, list) else []
