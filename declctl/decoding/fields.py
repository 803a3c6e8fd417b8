"""Field paths compiled into decoders: what is read of an object, and what is dropped out of its bytes.

msgspec skips what a struct does not name, so that reading three fields of a 4 KB object costs little more
than finding its end. `PartialDecoder` reads the metadata and the values at some paths.

`FieldCutter` drops fields without decoding and encoding the rest. An unescaped quote begins or ends a JSON
string. So `"name":` after a brace or a comma is the key of a field, whatever strings hold, and a value that
is followed by a comma or a brace is a whole one. A partial decoder tells the values of the fields, then
they are cut out. Each cut takes out one whole field of some object. So where the decoder finds none of them
afterwards, and there were as many cuts as fields, those were the right ones.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from declctl.objects.answers import decoded
from declctl.objects.fields import ALL, FieldPath, Step, Wildcard, scalars
from declctl.objects.frame import UNREADABLE
from declctl.objects.record import Projected, packed

_MOST = 50_000  # entries; beyond it a table starts anew rather than grow for ever


class Interning:
    """The tables of one projection; used by one thread.

    `known_labels` and `known_values` look without adding: what was seen first, None if it was not.
    """

    def __init__(self) -> None:
        self._labels: dict[bytes, bytes] = {}
        self._values: dict[tuple[Projected, ...], tuple[Projected, ...]] = {}
        self.known_labels = self._labels.get
        self.known_values = self._values.get

    def labels(self, raw: bytes) -> bytes:
        """These labels, as the bytes that were seen first; raises MalformedAnswer if they are no JSON."""
        known = self._labels.get(raw)
        if known is None:
            if not raw.isascii():
                decoded(raw)  # a decoder that skips a value does not look at its encoding
            if len(self._labels) >= _MOST:
                self._labels.clear()
            known = self._labels[raw] = raw
        return known

    def values(self, values: tuple[Projected, ...]) -> tuple[Projected, ...]:
        """These values, as the tuple that was seen first."""
        known = self._values.setdefault(values, values)
        if len(self._values) > _MOST:
            self._values.clear()
        return known


# field → None for a leaf, a tree for a struct, [tree] for a list of structs, [] for a list of leaves
_Tree = dict[str, Any]
_Getter = Callable[[Any], Any]


class PartialMetadata(msgspec.Struct, gc=False, frozen=True):
    """The metadata that every record needs; labels and managed fields stay raw."""

    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - the field's name on the wire
    labels: msgspec.Raw = msgspec.Raw()
    managedFields: msgspec.Raw = msgspec.Raw()  # noqa: N815


class PartialDecoder:
    """Reads metadata and the scalars at some paths out of the bytes of an object.

    Paths that no struct can name (an index, a wildcard over a map, a path through `metadata`) are
    left out of `positions`: whoever needs them decodes the object.
    """

    def __init__(self, paths: Iterable[FieldPath]) -> None:
        projected = at_hand(paths)
        self.positions: Mapping[FieldPath, int] = {path: i for i, path in enumerate(projected)}
        tree: _Tree = {}
        for path in projected:
            _plant(tree, path)
        fields = [_field(name, subtree) for name, subtree in tree.items()]
        metadata = ("metadata", PartialMetadata, PartialMetadata())
        getters = [_getters(path) for path in projected]
        firsts = [first for first, _ in getters]
        # One call reads the metadata and all paths as far as their first wildcard; the metadata is
        # named twice because attrgetter returns a tuple for two names at least.
        self._read = operator.attrgetter("metadata", "metadata", *firsts)
        self._decode = _decode([metadata, *fields])
        self._read_values = _tuple_of(firsts)
        self._decode_values = _decode(fields)
        self._rests = [rest for _, rest in getters]

    def decode(self, raw: bytes) -> tuple[PartialMetadata, tuple[Projected, ...]]:
        """Metadata and one value for each path, in the order of `positions`.

        Raises msgspec.ValidationError when the object has another shape than the paths expect,
        msgspec.DecodeError when it is no JSON, RecursionError when it is nested too deep.
        """
        found = self._read(self._decode(raw))
        values: tuple[Any, ...] = found[2:]
        for value in values:  # not in a function of its own: every event comes by here
            if value is not None and type(value) is not str:
                return found[0], self._leaves(values)
        return found[0], values

    def values(self, raw: bytes) -> tuple[Projected, ...]:
        """The values alone, in three quarters of the time."""
        values = self._read_values(self._decode_values(raw))
        for value in values:
            if value is not None and type(value) is not str:
                return self._leaves(values)
        return values

    def _leaves(self, values: tuple[Any, ...]) -> tuple[Projected, ...]:
        return tuple(map(_leaf, values, self._rests))


def at_hand(paths: Iterable[FieldPath]) -> Sequence[FieldPath]:
    """Those of some paths that a `PartialDecoder` of them reads."""
    projected = [path for path in paths if _projectable(path)]
    return [path for path in projected if not _inside_another(path, projected)]


def _decode(fields: Sequence[tuple[str, Any, Any]]) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(msgspec.defstruct("Partial", fields, gc=False, frozen=True)).decode


def _tuple_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    match names:
        case []:
            return lambda _: ()
        case [name]:
            get = operator.attrgetter(name)
            return lambda found: (get(found),)
        case _:
            return operator.attrgetter(*names)


def _projectable(path: FieldPath) -> bool:
    if path.steps[0] == "metadata":
        return False  # labels and identity are in every record; the rest of it is seldom indexed
    previous_was_wildcard = False
    for step in path.steps:
        if isinstance(step, int):
            return False
        if isinstance(step, str) and (not step.isidentifier() or step.startswith("__")):
            return False
        if isinstance(step, Wildcard) and (previous_was_wildcard or step is path.steps[0]):
            return False
        previous_was_wildcard = isinstance(step, Wildcard)
    return True


def _inside_another(path: FieldPath, others: list[FieldPath]) -> bool:
    # One field can't be a leaf for one path and a struct for another: the longer path is decoded.
    return any(
        other is not path
        and len(other.steps) < len(path.steps)
        and path.steps[: len(other.steps)] == other.steps
        for other in others
    ) or _same_start_other_kind(path, others)


def _same_start_other_kind(path: FieldPath, others: list[FieldPath]) -> bool:
    for other in others[: others.index(path)]:
        for mine, theirs in zip(path.steps, other.steps, strict=False):
            if mine != theirs:
                if isinstance(mine, Wildcard) or isinstance(theirs, Wildcard):
                    return True
                break
    return False


def _plant(tree: _Tree, path: FieldPath) -> None:
    steps = list(path.steps)
    while steps:
        name = cast("str", steps.pop(0))
        if not steps:
            tree[name] = None
        elif isinstance(steps[0], Wildcard):
            steps.pop(0)
            if not steps:
                tree[name] = []
                return
            branch: list[_Tree] = tree.setdefault(name, [{}])
            tree = branch[0]
        else:
            tree = tree.setdefault(name, {})


def _field(name: str, subtree: Any) -> tuple[str, Any, Any]:
    if subtree is None:
        return (name, Any, None)
    if subtree == []:
        return (name, list[Any] | None, None)
    if isinstance(subtree, list):
        element = _struct(name, cast("list[_Tree]", subtree)[0])
        return (name, list[element] | None, None)
    struct = _struct(name, cast("_Tree", subtree))
    return (name, struct, struct())


def _struct(name: str, tree: _Tree) -> Any:
    fields = [_field(child, subtree) for child, subtree in tree.items()]
    return msgspec.defstruct(f"Partial_{name}", fields, gc=False, frozen=True)


def _getters(path: FieldPath) -> tuple[str, list[_Getter | None]]:
    # What attrgetter reads first, and then one getter for the elements of each list on the way;
    # None for a list whose elements are the values.
    names: list[list[str]] = [[]]
    for step in path.steps:
        if isinstance(step, Wildcard):
            names.append([])
        else:
            names[-1].append(cast("str", step))
    first, *rest = (".".join(part) for part in names)
    return first, [operator.attrgetter(part) if part else None for part in rest]


def _leaf(found: Any, rest: list[_Getter | None]) -> Projected:
    if isinstance(found, str):
        return found
    level = [found]
    for get in rest:
        elements = [element for values in level for element in values or ()]
        level = [get(element) for element in elements] if get else elements
    return packed(tuple(text for value in level for text in scalars(value)))


MANAGED_FIELDS_NAME = b"managedFields"
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
    return cut, cut.rfind(MANAGED_FIELDS_NAME) < 0 and (
        cut.find(_BACKSLASH) < 0 or cut.rfind(ESCAPED_LETTER) < 0
    )


# field → None for a field to drop, a tree for a struct, [tree] for a list of structs
_Dropped = dict[str, Any]
_Values = Callable[[Any], Sequence[msgspec.Raw]]


class FieldCutter:
    """Drops the fields at some paths; exactly those that `FieldPath.remove_from` removes.

    It is compiled for paths that end in a name and have names and `[*]` before it.
    """

    def __init__(self, paths: Iterable[FieldPath]) -> None:
        self._paths = tuple(paths)
        tree = _dropped_tree(self._paths)
        self._decoder = None if tree is None else msgspec.json.Decoder(_dropped_struct(tree))
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


def _dropped_tree(paths: Sequence[FieldPath]) -> _Dropped | None:
    """The fields on the way to those at the paths; None if no struct can name them."""
    tree: _Dropped = {}
    return tree if all(_plant_dropped(tree, path.steps) for path in paths) else None


def _plant_dropped(tree: _Dropped, steps: Sequence[Step]) -> bool:
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
    return _plant_dropped(branch[0], rest[1:]) if listed else _plant_dropped(branch, rest)


def _dropped_struct(tree: _Dropped) -> Any:
    fields = [(_attribute(name), *_type_and_default(branch)) for name, branch in tree.items()]
    names = {_attribute(name): name for name in tree}
    return msgspec.defstruct("Dropped", fields, rename=names, gc=False, frozen=True)


def _type_and_default(branch: Any) -> tuple[Any, Any]:
    if branch is None:
        return msgspec.Raw, msgspec.Raw()
    if isinstance(branch, list):
        return tuple[_dropped_struct(cast("list[_Dropped]", branch)[0]), ...], ()
    struct = _dropped_struct(branch)
    return struct, struct()


def _leaves(tree: _Dropped, before: tuple[Step, ...]) -> Iterable[tuple[Step, ...]]:
    for name, branch in tree.items():
        if branch is None:
            yield (*before, name)
        elif isinstance(branch, list):
            yield from _leaves(cast("list[_Dropped]", branch)[0], (*before, name, ALL))
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
