"""Changed paths: whether something at or below some field paths differs between two states of an object.

What need not be decoded is not: labels stand in every record, equal texts are equal objects, and of two
texts that differ only what stands at the paths is looked at. Order of keys, spacing and escapes never
count. What can't be read counts as changed: who is told will see for himself.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec

from declctl.errors import MalformedAnswer
from declctl.objects.field_path import FieldPath
from declctl.objects.record import Record

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_FILLED_IN = ("apiVersion", "kind")  # lists leave them out of their items; who decodes fills them in
_UNNAMEABLE = frozenset('"\\')  # no field of a struct can be called so
_Tree = dict[str, Any]  # step → None for a path that ends there, else the tree below it
_Values = Callable[[bytes], tuple[msgspec.Raw, ...]]


class ChangedPaths:
    """Some field paths, compiled; any thread may ask it.

    A path that lies below another adds nothing. Labels are compared as records have them: none at all,
    null and an empty map are the same.
    """

    def __init__(self, paths: Iterable[FieldPath]) -> None:
        given = _outermost(dict.fromkeys(paths))
        self._all_labels = any(path.steps == ("metadata", "labels") for path in given)
        self._labels = tuple(name for path in given if (name := _label(path)) is not None)
        others = [path for path in given if path.steps[:2] != ("metadata", "labels") or _is_odd_label(path)]
        read = [path for path in others if _is_named(path)]
        self._decoded = tuple(path for path in others if path not in read)
        self._read = _reader(read) if read else None
        self._undecided = tuple(others)

    @property
    def decodes(self) -> tuple[FieldPath, ...]:
        """The paths for which both objects are decoded as soon as anything in them has changed."""
        return self._decoded

    @property
    def reads(self) -> bool:
        """Whether texts are looked at; without, the labels of the records say everything."""
        return bool(self._undecided)

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
                if _any_differs(self._read(before), self._read(after)):
                    return True
            except msgspec.ValidationError:  # another shape than the paths expect: null in place of a map
                return _differ_decoded(self._undecided, old, new)
            except _UNREADABLE:
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


def _outermost(paths: Iterable[FieldPath]) -> list[FieldPath]:
    given = list(paths)
    return [
        path
        for path in given
        if not any(other is not path and path.steps[: len(other.steps)] == other.steps for other in given)
    ]


def _label(path: FieldPath) -> str | None:
    match path.steps:
        case ("metadata", "labels", str(name)):
            return name
        case _:
            return None


def _is_odd_label(path: FieldPath) -> bool:
    """Whether it leads into labels, but to neither all of them nor one."""
    return len(path.steps) > 2 and _label(path) is None


def _is_named(path: FieldPath) -> bool:
    """Whether every step can be the field of a struct."""
    return path.steps[0] not in _FILLED_IN and all(
        isinstance(step, str) and not _UNNAMEABLE.intersection(step) and step.isprintable()
        for step in path.steps
    )


def _reader(paths: Iterable[FieldPath]) -> _Values:
    """What stands in a text at each path, as it is written there; empty where nothing does.

    Raises msgspec.ValidationError for an object of another shape, and what decoding raises.
    """
    tree: _Tree = {}
    for path in paths:
        below = tree
        for step in path.steps[:-1]:
            below = below.setdefault(cast("str", step), {})
        below[cast("str", path.steps[-1])] = None
    getters: list[str] = []
    struct = _struct(tree, "", getters)
    decode = msgspec.json.Decoder(struct).decode
    # The first is named twice: attrgetter returns a tuple for two names at least.
    values = operator.attrgetter(getters[0], *getters)
    return lambda text: values(decode(text))[1:]


def _struct(tree: Mapping[str, Any], at: str, getters: list[str]) -> Any:
    fields: list[tuple[str, Any, Any]] = []
    names: dict[str, str] = {}
    for number, (step, below) in enumerate(tree.items()):
        name = f"f{number}"
        names[name] = step
        if below is None:
            getters.append(at + name)
            fields.append((name, msgspec.Raw, msgspec.Raw()))
        else:
            inner = _struct(below, f"{at}{name}.", getters)
            fields.append((name, inner, inner()))
    return msgspec.defstruct("Changed", fields, rename=names, gc=False, frozen=True)


def _any_differs(before: Iterable[msgspec.Raw], after: Iterable[msgspec.Raw]) -> bool:
    return any(one != other and _raw_differs(one, other) for one, other in zip(before, after, strict=True))


def _raw_differs(one: msgspec.Raw, other: msgspec.Raw) -> bool:
    if not bytes(one) or not bytes(other):
        return True  # it is there in one of them only
    return not same_json(msgspec.json.decode(one), msgspec.json.decode(other))


def _in_order(value: Any) -> Any:
    """The same with the keys of its maps sorted, so that `[*]` finds their values in one order."""
    if isinstance(value, dict):
        fields = cast("_Tree", value)
        return {name: _in_order(fields[name]) for name in sorted(fields)}
    return [_in_order(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value


def _differ_decoded(paths: Iterable[FieldPath], old: Record, new: Record) -> bool:
    try:
        before, after = _in_order(old.decode()), _in_order(new.decode())
        return any(not same_json(list(path.find(before)), list(path.find(after))) for path in paths)
    except (MalformedAnswer, RecursionError):
        return True
