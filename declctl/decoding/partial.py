"""Partial decoders: structs built at run time that read only what was declared.

msgspec skips what a struct does not name, so that reading three fields of a 4 KB object costs little more
than finding its end. Equal labels and equal projected values of many objects are held once (interning).
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from declctl.objects.field_path import FieldPath, Wildcard, scalars
from declctl.objects.reading import decoded
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
