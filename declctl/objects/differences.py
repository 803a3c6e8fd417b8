"""Differences between two states of an object: at field paths, and between a shared object and its frame.

`ChangedPaths` compares the values at and below some field paths. It decodes as little as possible: labels are
compared in the records, equal JSON texts are equal objects, and of different texts only the values at the
paths are decoded. The order of keys, white space and escapes have no effect. An unreadable value counts as
changed, so that the handler is called for the object.

`changed_paths` names the paths at which two decoded states differ, without their values; `diff` has both.

`MutationDetector` finds changes that readers made to shared objects (client-go's MutationDetector). Only held
objects are shared, and only code that bypasses the view can change one. With frames every reader decodes a
copy of its own.
"""

import itertools
import marshal
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from declctl.errors import MalformedAnswer
from declctl.objects.answers import mapping
from declctl.objects.fields import FieldPath, PathStruct, Step, Wildcard, outermost
from declctl.objects.frame import FILLED_IN, UNREADABLE, HeldObject, ObjectCodec
from declctl.objects.read_only import read_only
from declctl.objects.record import ObjectView, Record, record_of
from declctl.objects.resource import key_of

_UNNAMEABLE = frozenset('"\\')  # characters that a field name of a struct can't have
_Tree = dict[str, Any]
_Steps = tuple[Step, ...]
_Places = dict[_Steps, list[_Steps]]  # by place that a struct can read: the paths within it


class ChangedPaths:
    """Compares two records at some field paths. From any thread.

    A path below another one has no effect. Missing labels, null and an empty map are equal. `[*]` over a map
    stands for its values, in the order of their keys.
    """

    def __init__(self, paths: Iterable[FieldPath]) -> None:
        given = outermost(path.steps for path in paths)
        self._all_labels = ("metadata", "labels") in given
        self._labels = tuple(name for steps in given if (name := _label(steps)) is not None)
        self._others = [s for s in given if s != ("metadata", "labels") and _label(s) is None]
        self._places, self._decoded = _places(self._others)
        self._read = _reader(self._places) if self._places else None

    @property
    def reads(self) -> bool:
        """Whether the JSON of objects has to be read; False if all paths are labels."""
        return bool(self._others)

    @property
    def decodes(self) -> bool:
        """Whether two different objects have to be decoded as a whole, because a struct can't read a path."""
        return bool(self._decoded)

    def differ(self, old: Record, new: Record) -> bool:
        """Whether a value at or below one of the paths differs between two records. Never raises."""
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
            except msgspec.ValidationError:  # another shape than the paths expect, such as null for a map
                return _differ_decoded(self._others, old, new)
            except UNREADABLE:
                return True
        return bool(self._decoded) and _differ_decoded(self._decoded, old, new)


def same_json(one: Any, other: Any) -> bool:
    """Whether two decoded values are equal JSON. Unlike in Python, true is not equal to 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        mine, theirs = cast("_Tree", one), cast("_Tree", other)
        return mine.keys() == theirs.keys() and all(same_json(v, theirs[k]) for k, v in mine.items())
    if isinstance(one, list) and isinstance(other, list):
        my, their = cast("list[Any]", one), cast("list[Any]", other)
        return len(my) == len(their) and all(map(same_json, my, their))
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _label(steps: _Steps) -> str | None:
    match steps:
        case ("metadata", "labels", str(name)):
            return name
        case _:
            return None


def _places(given: Iterable[_Steps]) -> tuple[_Places, list[_Steps]]:
    """The places that a struct can read, none within another; and the paths that it can't read."""
    cut = {steps: _named(steps) for steps in given}
    decoded = [steps for steps, name in cut.items() if not name]
    places: _Places = {}
    for place in outermost(name for name in cut.values() if name):
        inside = [steps for steps in cut if steps[: len(place)] == place]
        places[place] = [steps[len(place) :] for steps in inside]
    return places, decoded


def _named(steps: _Steps) -> _Steps:
    """The first steps of a path that can be fields of structs; empty for a field that JSON may lack."""
    if steps[0] in FILLED_IN:
        return ()
    for at, step in enumerate(steps):
        if not isinstance(step, str) or _UNNAMEABLE.intersection(step) or not step.isprintable():
            return steps[:at]
    return steps


def _reader(places: Iterable[_Steps]) -> Callable[[bytes], tuple[msgspec.Raw, ...]]:
    """A function that returns the JSON at each place of an object; empty for a missing value.

    The function raises msgspec.ValidationError for an object of another shape, and the errors of decoding.
    """
    places = list(places)
    struct = PathStruct(places, leaf=msgspec.Raw, missing=msgspec.Raw())
    getters = [struct.attributes(steps)[0] for steps in places]
    # The first name is given twice, because attrgetter returns a tuple only for several names.
    values = operator.attrgetter(getters[0], *getters)
    return lambda text: values(struct.decode(text))[1:]


def _part_differs(one: msgspec.Raw, other: msgspec.Raw, sought: Iterable[_Steps]) -> bool:
    before, after = _decoded(one), _decoded(other)
    return any(not same_json(_found(before, steps), _found(after, steps)) for steps in sought)


def _decoded(part: msgspec.Raw) -> list[Any]:
    """A list of the one value; empty if it is missing."""
    return [msgspec.json.decode(part)] if bytes(part) else []


def _differ_decoded(paths: Iterable[_Steps], old: Record, new: Record) -> bool:
    try:
        before, after = [old.decode()], [new.decode()]
        return any(not same_json(_found(before, steps), _found(after, steps)) for steps in paths)
    except (MalformedAnswer, RecursionError):
        return True


def _found(values: list[Any], steps: _Steps) -> list[Any]:
    """The values at a path below some values, in an order that does not depend on the order of keys."""
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


_ALWAYS_DIFFERENT = (("metadata", "resourceVersion"), ("metadata", "managedFields"))
_MOST_COUNTED = 1000  # differences of one object, for `changed_paths`
_MOST_SHOWN = 3  # differences of one object; further ones are counted
_LONGEST = 60  # characters of a shown value
_EXACT = 2  # the last version of marshal's format that depends on the values alone
_JSON = (dict, list, str, int, float, bool, type(None))
_SECRET = ("v1", "Secret")
_HIDDEN = "(hidden)"
_ABSENT = object()


class ShownDifference(msgspec.Struct, frozen=True):
    """One change within an object, for people."""

    path: str
    before: str  # the value as JSON, shortened; hidden for Secrets
    after: str  # as `before`

    def __str__(self) -> str:
        return f"{self.path} was {self.before} and became {self.after}"


class Mutation(msgspec.Struct, frozen=True):
    """A shared object that a reader has changed."""

    kind: str
    key: str
    differences: tuple[ShownDifference, ...]  # the first ones
    more: int = 0  # the number of further differences

    @property
    def places(self) -> str:
        """The object and the changed paths, without values, for users who may not see objects."""
        return self._sentence(", ".join(each.path for each in self.differences))

    def __str__(self) -> str:
        return self._sentence("; ".join(map(str, self.differences)))

    def _sentence(self, what: str) -> str:
        return f"{self.kind} {self.key}: {what}" + (f" (and {self.more} more)" if self.more else "")


class MutationDetector:
    """Compares the shared objects of a codec with their frames, and restores changed ones.

    It covers every object that is alive: in the cache, or in a notification that waits for a handler. Later
    readers see the object as the server sent it. A view from before shows the changed state. Used by one
    thread.
    """

    def __init__(self, codec: ObjectCodec) -> None:
        self._codec = codec
        self._round: list[weakref.ref[HeldObject]] = []  # objects that this round has not compared yet
        self.count = 0  # changed objects so far
        self.last: Mutation | None = None  # the last change that was found

    def look(self, most: int) -> list[Mutation]:
        """Compare the next `most` objects; returns the changes.

        At the end of a round fewer are compared; the next call begins a new round.
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
        """Compare every object that is alive; returns the changes."""
        self._round = []
        return self.look(len(self._codec.alive()) or 1)

    @property
    def at_end_of_round(self) -> bool:
        """Whether all objects of the present round were compared."""
        return not self._round

    def _compare(self, held: HeldObject, body: dict[str, Any]) -> Mutation | None:
        pristine = self._codec.pristine(held)
        if _same(body, pristine):
            return None
        differences = [_difference(*each) for each in _differences(pristine, body, ())]
        if (self._codec.api_version, self._codec.kind) == _SECRET:
            differences = [ShownDifference(each.path, _HIDDEN, _HIDDEN) for each in differences]
        if not differences:
            return None  # keys in another order
        held.body = pristine
        return Mutation(
            self._codec.kind,
            _key(pristine),
            tuple(differences[:_MOST_SHOWN]),
            max(len(differences) - _MOST_SHOWN, 0),
        )


def _key(obj: dict[str, Any]) -> str:
    metadata = mapping(obj.get("metadata"))  # which a transform may have removed
    return key_of(metadata.get("namespace"), str(metadata.get("name") or "without a name"))


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    # Serialised and compared, for three reasons: True differs from 1; no `__eq__` of a reader's value is
    # called; and each object is read in one step, while other threads use it.
    try:
        return marshal.dumps(one, _EXACT) == marshal.dumps(other, _EXACT)
    except ValueError:
        return False  # a reader has stored a value that is no JSON


class Difference(NamedTuple):
    """One difference of two objects, as `declctl.diff` finds it.

    - `path`: the field, such as `spec.containers[0].image`.
    - `old`, `new`: the value in each of the two, read-only; None where the field is missing.
    """

    path: str
    old: Any
    new: Any


def diff(old: object, new: object) -> list[Difference]:
    """The differences between two objects, in the order of their fields. From any thread.

    Each is an object, a view of one, a part of one, such as `obj["spec"]`, a Struct or a dataclass; None has
    no fields. A field that one of them lacks is one difference, and null is as missing. Elements of lists are
    compared by their position. Fields that differ in every two states are left out:
    `metadata.resourceVersion` and `metadata.managedFields`.
    """
    found = (
        Difference(str(FieldPath(steps)), *(None if each is _ABSENT else read_only(each) for each in values))
        for steps, *values in _differences(_fields_of(old), _fields_of(new), ())
        if steps[:2] not in _ALWAYS_DIFFERENT
    )
    return [each for each in found if each.old is not None or each.new is not None]


def _fields_of(given: object) -> Any:
    if given is None:
        return {}
    if isinstance(given, ObjectView):
        return record_of(given).read()
    return (
        dict(cast("Mapping[str, Any]", given)) if isinstance(given, Mapping) else msgspec.to_builtins(given)
    )


def changed_paths(
    before: Mapping[str, Any], after: Mapping[str, Any], *, most: int
) -> tuple[Sequence[str], int]:
    """The first `most` paths at which two states of an object differ, and the number of further ones.

    A field that one state lacks is one path. Elements of lists are compared by their position. Fields that
    differ in every two states are left out: `metadata.resourceVersion` and `metadata.managedFields`. At most
    1,000 differences are counted.
    """
    found = (
        str(FieldPath(steps))
        for steps, _, _ in _differences(before, after, ())
        if steps[:2] not in _ALWAYS_DIFFERENT
    )
    paths = list(itertools.islice(found, _MOST_COUNTED))
    return paths[:most], max(len(paths) - most, 0)


def _differences(before: Any, after: Any, steps: _Steps) -> Iterator[tuple[_Steps, Any, Any]]:
    """Each place at which two values differ, with both values there."""
    if _json_type(before) is not _json_type(after):
        yield steps, before, after
    elif isinstance(before, dict):
        yield from _differences_of_maps(cast("dict[str, Any]", before), dict(after), steps)
    elif isinstance(before, list):
        old, new = cast("list[Any]", before), list(after)
        for index in range(max(len(old), len(new))):
            yield from _differences(_at(old, index), _at(new, index), (*steps, index))
    elif before is not after and before != after:
        yield steps, before, after


def _json_type(value: Any) -> type:
    """The type of a value; of a read-only dictionary or list, that of a plain one."""
    return dict if isinstance(value, dict) else list if isinstance(value, list) else type(value)


def _differences_of_maps(
    before: Mapping[str, Any], after: Mapping[Any, Any], steps: _Steps
) -> Iterator[tuple[_Steps, Any, Any]]:
    for name, value in before.items():
        yield from _differences(value, after.get(name, _ABSENT), (*steps, name))
    for name, value in after.items():
        if name not in before:
            yield (*steps, str(name) if isinstance(name, str | int) else "?"), _ABSENT, value


def _at(elements: list[Any], index: int) -> Any:
    return elements[index] if index < len(elements) else _ABSENT


def _difference(steps: tuple[Step, ...], before: Any, after: Any) -> ShownDifference:
    return ShownDifference(str(FieldPath(steps)), _shown(before), _shown(after))


def _shown(value: Any) -> str:
    """The value as JSON, shortened; of other values only the type, because their `__repr__` is user code."""
    if value is _ABSENT:
        return "absent"
    try:
        text = msgspec.json.encode(value).decode() if type(value) in _JSON else ""
    except (TypeError, ValueError, RecursionError):
        text = ""
    text = text or f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
