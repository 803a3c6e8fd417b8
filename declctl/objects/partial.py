"""Partial decoders: structs built at run time that read only what was declared.

msgspec skips what a struct does not name, so that reading three fields of a 4 KB object costs
little more than finding its end.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec

from declctl.objects.field_path import FieldPath, Wildcard, scalars
from declctl.objects.record import Projected

_Tree = dict[str, Any]  # field → None for a leaf, a tree for a struct, [tree] for a list of structs


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
        projected = [path for path in paths if _projectable(path)]
        projected = [path for path in projected if not _inside_another(path, projected)]
        self.positions: Mapping[FieldPath, int] = {path: i for i, path in enumerate(projected)}
        tree: _Tree = {}
        for path in projected:
            _plant(tree, path)
        fields: list[tuple[str, Any, Any]] = [("metadata", PartialMetadata, PartialMetadata())]
        fields += [_field(name, subtree) for name, subtree in tree.items()]
        self._decoder = msgspec.json.Decoder(msgspec.defstruct("Partial", fields, gc=False, frozen=True))
        self._readers = [_reader(path) for path in projected]

    def decode(self, raw: bytes) -> tuple[PartialMetadata, list[Projected]]:
        """Metadata and one value for each path, in the order of `positions`.

        Raises msgspec.ValidationError when the object has another shape than the paths expect,
        msgspec.DecodeError when it is no JSON.
        """
        partial: Any = self._decoder.decode(raw)
        return partial.metadata, [read(partial) for read in self._readers]


def _projectable(path: FieldPath) -> bool:
    if path.steps[0] == "metadata":
        return False  # labels and identity are in every record; the rest of it is seldom indexed
    previous_was_wildcard = False
    for step in path.steps:
        if isinstance(step, int) or (isinstance(step, str) and not step.isidentifier()):
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
                tree[name] = None  # a list of scalars is read through at the leaf
                return
            branch: list[_Tree] = tree.setdefault(name, [{}])
            tree = branch[0]
        else:
            tree = tree.setdefault(name, {})


def _field(name: str, subtree: Any) -> tuple[str, Any, Any]:
    if subtree is None:
        return (name, Any, None)
    if isinstance(subtree, list):
        element = _struct(name, cast("list[_Tree]", subtree)[0])
        return (name, list[element] | None, None)
    struct = _struct(name, cast("_Tree", subtree))
    return (name, struct, struct())


def _struct(name: str, tree: _Tree) -> Any:
    fields = [_field(child, subtree) for child, subtree in tree.items()]
    return msgspec.defstruct(f"Partial_{name}", fields, gc=False, frozen=True)


def _reader(path: FieldPath) -> Callable[[Any], Projected]:
    names: list[list[str]] = [[]]
    for step in path.steps:
        if isinstance(step, Wildcard):
            names.append([])
        else:
            names[-1].append(cast("str", step))
    getters = [operator.attrgetter(".".join(part)) for part in names if part]
    if len(getters) == 1:
        get = getters[0]
        return lambda partial: _leaf(get(partial))
    return lambda partial: _leaf(_through(partial, getters))


def _through(found: Any, getters: list[Callable[[Any], Any]]) -> list[Any]:
    level = [found]
    for get in getters[:-1]:
        level = [element for value in level for element in get(value) or ()]
    return [getters[-1](element) for element in level]


def _leaf(found: Any) -> Projected:
    if isinstance(found, str):
        return found
    if found is None:
        return None
    values = tuple(scalars(found))
    return None if not values else values[0] if len(values) == 1 else values
