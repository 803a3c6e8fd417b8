"""Dropping fields out of the bytes of an object, without decoding it.

A partial decoder tells the values of the fields, `cutting` cuts them out. Each cut takes out one whole
field of some object. So where the decoder finds none of them afterwards, and there were as many cuts as
fields, those were the right ones.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import msgspec

from declctl.objects.cutting import cut_field
from declctl.objects.field_path import ALL, FieldPath, Step
from declctl.objects.reading import UNREADABLE

# field → None for a field to drop, a tree for a struct, [tree] for a list of structs
_Tree = dict[str, Any]
_Values = Callable[[Any], Sequence[msgspec.Raw]]

_BACKSLASH = b"\\"


class FieldCutter:
    """Drops the fields at some paths; exactly those that `FieldPath.remove_from` removes.

    It is compiled for paths that end in a name and have names and `[*]` before it.
    """

    def __init__(self, paths: Iterable[FieldPath]) -> None:
        self._paths = tuple(paths)
        tree = _tree(self._paths)
        self._decoder = None if tree is None else msgspec.json.Decoder(_struct(tree))
        leaves = list(_leaves(tree or {}, ()))
        self._readers = [(_spelled(cast("str", steps[-1])) + b":", _reader(steps)) for steps in leaves]
        self._names = tuple({_spelled(cast("str", steps[-1])) for steps in leaves})

    def cut(self, raw: bytes) -> bytes | None:
        """The JSON object without the fields; the same bytes if it has none of them.

        None where that can't be told without decoding it: where fields are spelled as no API server
        spells them, or are found twice, or the way to them has another shape than the paths.
        """
        if self._decoder is None:
            return None
        if self._surely_without(raw):
            return raw
        try:
            cut = self._without(raw, self._decoder.decode(raw))
            if cut is None or cut is raw or self._surely_without(cut):
                return cut
            return None if any(self._found(self._decoder.decode(cut))) else cut
        except UNREADABLE:
            return None

    def changes(self, path: FieldPath) -> bool:
        """Whether another value may be found at `path` when the fields are dropped."""
        return any(all(map(_may_meet, dropped.steps, path.steps)) for dropped in self._paths)

    def _surely_without(self, raw: bytes) -> bool:
        # Backwards, because bytes.rfind is twice as fast on needles of this length. Only a backslash can
        # spell a name in another way.
        for name in self._names:
            if raw.rfind(name) >= 0:
                return False
        return raw.find(_BACKSLASH) < 0

    def _without(self, raw: bytes, found: Any) -> bytes | None:
        cut: bytes | None = raw
        for key, values in self._readers:
            for value in values(found):
                if value and cut is not None:
                    cut = cut_field(cut, key, bytes(value))
        return cut

    def _found(self, found: Any) -> Iterable[msgspec.Raw]:
        return (value for _, values in self._readers for value in values(found) if value)


def _may_meet(one: Step, other: Step) -> bool:
    # Elements behind one that is dropped move up.
    return one == other or one is ALL or other is ALL or (isinstance(one, int) and isinstance(other, int))


def _tree(paths: Sequence[FieldPath]) -> _Tree | None:
    """The fields on the way to those at the paths; None if no struct can name them."""
    tree: _Tree = {}
    return tree if all(_plant(tree, path.steps) for path in paths) else None


def _plant(tree: _Tree, steps: Sequence[Step]) -> bool:
    name, *rest = steps
    if not isinstance(name, str) or msgspec.json.encode(name) != _spelled(name):
        return False
    if not rest:
        tree[name] = None  # whatever was to be dropped in it
        return True
    listed = rest[0] is ALL
    branch = tree.setdefault(name, [{}] if listed else {})
    if branch is None:
        return True
    if isinstance(branch, list) != listed or rest == [ALL]:
        return False
    return _plant(branch[0], rest[1:]) if listed else _plant(branch, rest)


def _struct(tree: _Tree) -> Any:
    fields = [(_attribute(name), *_type_and_default(branch)) for name, branch in tree.items()]
    names = {_attribute(name): name for name in tree}
    return msgspec.defstruct("Dropped", fields, rename=names, gc=False, frozen=True)


def _type_and_default(branch: Any) -> tuple[Any, Any]:
    if branch is None:
        return msgspec.Raw, msgspec.Raw()
    if isinstance(branch, list):
        return tuple[_struct(cast("list[_Tree]", branch)[0]), ...], ()
    struct = _struct(branch)
    return struct, struct()


def _leaves(tree: _Tree, before: tuple[Step, ...]) -> Iterable[tuple[Step, ...]]:
    for name, branch in tree.items():
        if branch is None:
            yield (*before, name)
        elif isinstance(branch, list):
            yield from _leaves(cast("list[_Tree]", branch)[0], (*before, name, ALL))
        else:
            yield from _leaves(branch, (*before, name))


def _reader(steps: Sequence[Step]) -> _Values:
    parts: list[list[str]] = [[]]
    for step in steps:
        if isinstance(step, str):
            parts[-1].append(_attribute(step))
        else:
            parts.append([])
    first, *rest = (operator.attrgetter(".".join(part)) for part in parts)

    def values(found: Any) -> Sequence[msgspec.Raw]:
        level = [first(found)]
        for get in rest:
            level = [get(element) for elements in level for element in elements]
        return level

    return values


def _attribute(name: str) -> str:
    return f"field_{name.encode().hex()}"


def _spelled(name: str) -> bytes:
    return f'"{name}"'.encode()
