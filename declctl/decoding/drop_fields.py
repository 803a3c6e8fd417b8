"""Dropping fields out of the bytes of an object, without decoding and encoding the rest.

An unescaped quote begins or ends a JSON string. So `"name":` after a brace or a comma is the key of a
field, whatever strings hold, and a value that is followed by a comma or a brace is a whole one.

A partial decoder tells the values of the fields, then they are cut out. Each cut takes out one whole field of
some object. So where the decoder finds none of them afterwards, and there were as many cuts as fields, those
were the right ones.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import msgspec

from declctl.objects.field_path import ALL, FieldPath, Step
from declctl.objects.reading import UNREADABLE

MANAGED_FIELDS = b"managedFields"
MANAGED_FIELDS_KEY = b'"managedFields":'
_BACKSLASH = b"\\"
ESCAPED_LETTER = b"\\u00"  # how a letter may be written that could be written as it is; nobody does
_COMMA = ord(",")
_BEFORE_A_KEY = b"{,"
_AFTER_A_VALUE = b",}"


def cut_field(raw: bytes, key: bytes, value: bytes) -> bytes | None:
    """JSON without its first field that has this key and value; None if it has none that is so spelled.

    `key` has its quotes and its colon. What is cut is always one whole field, of whatever object.
    """
    at = raw.find(key)
    while at > 0:
        start = at + len(key)
        end = start + len(value)
        before = raw[at - 1]
        if raw.startswith(value, start) and before in _BEFORE_A_KEY and raw[end] in _AFTER_A_VALUE:
            if raw[end] == _COMMA:
                return raw[:at] + raw[end + 1 :]
            return raw[: at - 1 if before == _COMMA else at] + raw[end:]
        at = raw.find(key, start)
    return None


def cut_managed_fields(raw: bytes, value: bytes) -> tuple[bytes, bool] | None:
    """`raw` without its first field `managedFields` of this value, and whether it is surely the right one.

    None where the bytes can't be told for certain. It is surely the one of the metadata if no other
    field can be: none is spelled the same, none is spelled with escapes.
    """
    cut = cut_field(raw, MANAGED_FIELDS_KEY, value)
    if cut is None:
        return None
    # Backwards, because bytes.rfind is twice as fast on needles of this length.
    return cut, cut.rfind(MANAGED_FIELDS) < 0 and (cut.find(_BACKSLASH) < 0 or cut.rfind(ESCAPED_LETTER) < 0)


# field → None for a field to drop, a tree for a struct, [tree] for a list of structs
_Tree = dict[str, Any]
_Values = Callable[[Any], Sequence[msgspec.Raw]]


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
