"""Decoders of one object: by compiled field paths, or as a whole.

msgspec skips the fields that a struct does not name. So reading three fields of a 4 KB object costs little
more than finding its end. `PartialDecoder` reads the metadata and the values at some paths.

`FieldCutter` drops fields without decoding and encoding the others. In JSON, an unescaped quote begins or
ends a string. So `"name":` after a brace or a comma is always the key of a field, and a value before a comma
or a brace is always complete. A partial decoder reads the values of the fields, and then each field is cut
out of the text. Each cut removes one whole field of some object. If there were as many cuts as fields, and
the decoder finds none of the fields afterwards, the right ones were cut.

`WholeObjects` is for objects that the compiled decoder can't read, and for projections with a transform. It
decodes an object as a whole and applies the transform, or keeps the object as it came. An object is refused
only if it has no name.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, cast

import msgspec

from declctl.errors import MalformedAnswer
from declctl.kit.callbacks import must_propagate, refuse_async
from declctl.kit.secret_values import is_secret, secret_values
from declctl.kit.text import exception_text
from declctl.objects.answers import decoded, identity_of, mapping, named_object
from declctl.objects.fields import ALL, FieldPath, PathStruct, Step, Wildcard, outermost, scalars
from declctl.objects.frame import UNREADABLE, Frame, KubeObject
from declctl.objects.record import NO_LABELS, Layout, Projected, Record, packed, revision_of
from declctl.objects.resource import key_of

_MOST = 50_000  # entries of a table; beyond it the table is cleared
_MOST_LISTS, _MOST_EXAMPLES = 1000, 5  # of finalizers, and objects of each
_Getter = Callable[[Any], Any]
MANAGED_FIELDS_NAME = b"managedFields"
MANAGED_FIELDS_KEY = b'"managedFields":'
_BACKSLASH = b"\\"
ESCAPED_LETTER = b"\\u00"  # begins an escape of a letter, with which no API server writes a name
_COMMA = ord(",")
_BEFORE_A_KEY = b"{,"
_AFTER_A_VALUE = b",}"
_Values = Callable[[Any], Sequence[msgspec.Raw]]
Transform = Callable[[KubeObject], KubeObject | None]
MANAGED_FIELDS = FieldPath.parse("metadata.managedFields")


class InternTables:
    """The tables by which equal labels and values share one object in memory. Used by one thread."""

    def __init__(self) -> None:
        self._labels: dict[bytes, bytes] = {}
        self._values: dict[tuple[Projected, ...], tuple[Projected, ...]] = {}
        # The shared object, or None; without adding one.
        self.known_labels = self._labels.get
        self.known_values = self._values.get

    def labels(self, raw: bytes) -> bytes:
        """The shared bytes of these labels; raises MalformedAnswer if they are no JSON."""
        known = self._labels.get(raw)
        if known is None:
            if not raw.isascii():
                decoded(raw)  # to check the encoding, which a decoder ignores in a value that it skips
            if len(self._labels) >= _MOST:
                self._labels.clear()
            known = self._labels[raw] = raw
        return known

    def values(self, values: tuple[Projected, ...]) -> tuple[Projected, ...]:
        """The shared tuple of these values."""
        known = self._values.setdefault(values, values)
        if len(self._values) > _MOST:
            self._values.clear()
        return known


class SeenFinalizers:
    """The lists of finalizers that decoded objects had, each with some of these objects.

    So a finalizer that nobody removes any more is found without decoding an object again. Written by the
    thread that decodes; any thread may call `by_name`.
    """

    def __init__(self) -> None:
        self._keys: dict[bytes, list[str]] = {}  # by the JSON of the list; the first keys that had it

    def note(self, raw: bytes, key: str) -> None:
        """Note the finalizers of an object. Beyond the first thousand, further lists are left out."""
        keys = self._keys.get(raw)
        if keys is None:
            if len(self._keys) >= _MOST_LISTS:
                return
            keys = self._keys[raw] = []
        if len(keys) < _MOST_EXAMPLES and key not in keys:
            keys.append(key)

    def by_list(self) -> Mapping[str, list[str]]:
        """The keys that were noted, by the JSON of their lists, for `note` in the next process."""
        return {raw.decode("utf-8", "replace"): list(keys) for raw, keys in tuple(self._keys.items())}

    def by_name(self) -> Mapping[str, Sequence[str]]:
        """The keys of up to five objects that had a finalizer, by its name."""
        found: dict[str, list[str]] = {}
        for raw, keys in tuple(self._keys.items()):
            try:
                names = msgspec.json.decode(raw, type=list[str])
            except UNREADABLE:
                continue  # no list of names
            for name in names:
                examples = found.setdefault(name, [])
                examples += keys[: _MOST_EXAMPLES - len(examples)]
        return found


Holds = Callable[[str | None, str], bool]
"""Whether an object with this namespace (None if it is cluster-scoped) and uid is held here."""


class Restriction:
    """Leaves out the objects of which `holds` returns False; without `holds`, none. Used by one thread."""

    def __init__(self, holds: Holds | None) -> None:
        self.holds = holds
        self.version: str | None = None  # of an object that was left out, until it is taken

    def leaves_out(self, namespace: str | None, uid: str, version: str) -> bool:
        """Whether an object is left out; then its version can be taken."""
        if self.holds is None or self.holds(namespace or None, uid):
            return False
        self.version = version
        return True

    def take(self) -> str | None:
        """The version of the last object if it was left out, else None. Returned once."""
        version, self.version = self.version, None
        return version


class PartialMetadata(msgspec.Struct, gc=False, frozen=True):
    """The metadata that every record needs; labels, finalizers and managed fields stay raw."""

    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - the field's name on the wire
    labels: msgspec.Raw = msgspec.Raw()
    finalizers: msgspec.Raw = msgspec.Raw()
    managedFields: msgspec.Raw = msgspec.Raw()  # noqa: N815


class PartialDecoder:
    """Reads the metadata and the scalars at some paths out of the JSON of an object.

    Paths that no struct can read (with an index, with a wildcard over a map, below `metadata`) are not in
    `positions`: their values need the decoded object.
    """

    def __init__(self, paths: Iterable[FieldPath]) -> None:
        projected = projectable_paths(paths)
        self.positions: Mapping[FieldPath, int] = {path: i for i, path in enumerate(projected)}
        paths_of_values = [path.steps for path in projected]
        values = PathStruct(paths_of_values)
        metadata = ("metadata", PartialMetadata, PartialMetadata())
        attributes = [values.attributes(steps) for steps in paths_of_values]
        firsts = [first for first, *_ in attributes]
        # One call reads the metadata and all paths up to their first wildcard. The metadata is named twice,
        # because attrgetter returns a tuple only for several names.
        self._read = operator.attrgetter("metadata", "metadata", *firsts)
        self._decode = PathStruct(paths_of_values, more=[metadata]).decode
        self._read_values = _tuple_of(firsts)
        self._decode_values = values.decode
        # One getter for the elements of each list on a path; None if the elements are the values.
        self._rests = [[operator.attrgetter(a) if a else None for a in rest] for _, *rest in attributes]

    def decode(self, raw: bytes) -> tuple[PartialMetadata, tuple[Projected, ...]]:
        """The metadata, and one value for each path in the order of `positions`.

        Raises msgspec.ValidationError for an object of another shape than the paths expect,
        msgspec.DecodeError for bytes that are no JSON, RecursionError for an object that is nested too deep.
        """
        found = self._read(self._decode(raw))
        values: tuple[Any, ...] = found[2:]
        for value in values:  # inline: each event runs this
            if value is not None and type(value) is not str:
                return found[0], self._leaves(values)
        return found[0], values

    def values(self, raw: bytes) -> tuple[Projected, ...]:
        """The values without the metadata, in three quarters of the time."""
        values = self._read_values(self._decode_values(raw))
        for value in values:
            if value is not None and type(value) is not str:
                return self._leaves(values)
        return values

    def _leaves(self, values: tuple[Any, ...]) -> tuple[Projected, ...]:
        return tuple(map(_leaf, values, self._rests))


def projectable_paths(paths: Iterable[FieldPath]) -> Sequence[FieldPath]:
    """The paths that a `PartialDecoder` of these paths can read."""
    projected = [path for path in paths if _is_projectable(path)]
    # A field can't be a value for one path and an object for another: the longer path is left out.
    apart = set(outermost(path.steps for path in projected))
    return [
        path
        for at, path in enumerate(projected)
        if path.steps in apart and not any(_parts_at_a_list(path.steps, o.steps) for o in projected[:at])
    ]


def _tuple_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    match names:
        case []:
            return lambda _: ()
        case [name]:
            get = operator.attrgetter(name)
            return lambda found: (get(found),)
        case _:
            return operator.attrgetter(*names)


def _is_projectable(path: FieldPath) -> bool:
    if path.steps[0] == "metadata":
        return False  # records have labels and identity; the rest of the metadata is seldom indexed
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


def _take_for_both(paths: Sequence[tuple[Step, ...]]) -> bool:
    """Whether a place is an object for one of the paths and a list for another."""
    return any(_parts_at_a_list(one, other) for one, other in combinations(paths, 2))


def _parts_at_a_list(one: Sequence[Step], other: Sequence[Step]) -> bool:
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            return mine is ALL or theirs is ALL
    return False


def _leaf(found: Any, rest: Sequence[_Getter | None]) -> Projected:
    if isinstance(found, str):
        return found
    level = [found]
    for get in rest:
        elements = [element for values in level for element in values or ()]
        level = [get(element) for element in elements] if get else elements
    return packed(tuple(text for value in level for text in scalars(value)))


def cut_field(raw: bytes, key: bytes, value: bytes) -> bytes | None:
    """JSON without its first field with this key and value; None if no field is spelled like this.

    `key` has its quotes and its colon. The field may belong to any object within the JSON.
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
    """`raw` without its first field `managedFields` with this value, and whether it is surely the right one.

    None if there is no such field. It is surely the field of the metadata if the rest has no other field with
    this name, and no escape by which the name could be spelled.
    """
    cut = cut_field(raw, MANAGED_FIELDS_KEY, value)
    if cut is None:
        return None
    # `rfind`, which is twice as fast as `find` for texts of this length.
    return cut, cut.rfind(MANAGED_FIELDS_NAME) < 0 and (
        cut.find(_BACKSLASH) < 0 or cut.rfind(ESCAPED_LETTER) < 0
    )


class FieldCutter:
    """Drops the fields at some paths from JSON, exactly those that `FieldPath.remove_from` removes.

    It works for paths of names and `[*]` that end in a name; for any other paths `cut` returns None.
    """

    def __init__(self, paths: Iterable[FieldPath]) -> None:
        self._paths = tuple(paths)
        dropped = outermost(path.steps for path in self._paths)
        self._decode: Callable[[bytes], Any] | None = None
        self._readers: list[tuple[bytes, _Values]] = []  # by field: its key with quotes and colon, its values
        self._names: tuple[bytes, ...] = ()  # of the fields, with quotes
        if all(map(_is_cuttable, dropped)) and not _take_for_both(dropped):
            names = [_spelled(cast("str", steps[-1])) for steps in dropped]
            self._names = tuple(dict.fromkeys(names))
            struct = PathStruct(dropped, leaf=msgspec.Raw, missing=msgspec.Raw())
            self._decode = struct.decode
            self._readers = [
                (name + b":", _reader(struct.attributes(steps)))
                for name, steps in zip(names, dropped, strict=True)
            ]

    def cut(self, raw: bytes) -> bytes | None:
        """The JSON object without the fields; the same bytes if it has none of them.

        None if the object has to be decoded for that: a name is spelled with escapes, a field is found twice,
        or the object has another shape than the paths.
        """
        if self._decode is None:
            return None
        if self._surely_without(raw):
            return raw
        try:
            cut = self._without(raw, self._decode(raw))
            if cut is None or cut is raw or self._surely_without(cut):
                return cut
            return None if any(self._found(self._decode(cut))) else cut
        except UNREADABLE:
            return None

    def changes(self, path: FieldPath) -> bool:
        """Whether dropping the fields may change the value at `path`."""
        return any(all(map(_may_meet, dropped.steps, path.steps)) for dropped in self._paths)

    def _surely_without(self, raw: bytes) -> bool:
        # `rfind`, which is twice as fast as `find` for texts of this length. Any other spelling of a name has
        # a backslash.
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
    # After an element of a list is dropped, the ones behind it have other indices.
    return one == other or one is ALL or other is ALL or (isinstance(one, int) and isinstance(other, int))


def _is_cuttable(steps: Sequence[Step]) -> bool:
    """Whether a struct can read the field at these steps, and the last step is a name."""
    names = [step for step in steps if step is not ALL]
    in_a_row = any(a is ALL and b is ALL for a, b in pairwise(steps))
    return (
        steps[0] is not ALL
        and steps[-1] is not ALL
        and not in_a_row
        and all(isinstance(name, str) and msgspec.json.encode(name) == _spelled(name) for name in names)
    )


def _reader(attributes: Sequence[str]) -> _Values:
    first, *rest = map(operator.attrgetter, attributes)

    def values(found: Any) -> Sequence[msgspec.Raw]:
        level = [first(found)]
        for get in rest:
            level = [get(element) for elements in level for element in elements or ()]
        return level

    return values


def _spelled(name: str) -> bytes:
    return f'"{name}"'.encode()


class TransformRunner:
    """Applies a transform, or none, and counts the objects that are left out of the cache.

    Raises TypeError for an asynchronous transform.
    """

    def __init__(self, transform: Transform | None) -> None:
        refuse_async(transform, "the transform")
        self.transform = transform
        self.dropped = self.failed = 0  # objects for which it returned None, and on which it failed
        self.last_fault: str | None = None  # a sentence

    def apply(self, obj: KubeObject, name: str) -> bytes | None:
        """The JSON of the transformed object; None to leave the object out of the cache."""
        # Encoded here, so that a value that is no JSON counts as a failure of the transform.
        if self.transform is None:
            return msgspec.json.encode(obj)
        try:
            result = self.transform(obj)
            if result is None:
                self.dropped += 1
                return None
            written = msgspec.json.encode(result)
        except BaseException as fault:  # user code: the object is left out, counted and reported
            if must_propagate(fault):
                raise
            if is_secret(str(obj.get("apiVersion")), str(obj.get("kind"))):
                secret_values.remember(obj)  # the exception may quote it
            raised = f"{type(fault).__name__} on {name}: {exception_text(fault)}"
            return self.failure(f"the transform raised {raised}")
        if not written.startswith(b"{"):
            return self.failure(f"the transform returned a {type(result).__name__} for {name}, not an object")
        return written

    def failure(self, message: str) -> None:
        """Count an object that can't be transformed, and keep the reason."""
        self.failed += 1
        self.last_fault = message


class WholeObjects:
    """Makes records by decoding whole objects: removes `drop_fields`, then applies `transforming`.

    Used by one thread.
    """

    def __init__(
        self,
        layout: Layout,
        interned: InternTables,
        *,
        drop_fields: Sequence[FieldPath],
        transforming: TransformRunner,
    ) -> None:
        self._layout = layout
        self._interned = interned
        self._drop_fields = drop_fields
        self._transforming = transforming
        # An unreadable object may be kept as it came only if nothing but managed fields would be removed.
        self._changes = transforming.transform is not None or any(p != MANAGED_FIELDS for p in drop_fields)
        self.objects = self.decoded = 0  # records that were made, and those of them that were decoded
        self.decode_warning = ""  # of the last object, if only its metadata could be read

    def read(self, raw: bytes) -> Record | None:
        """The record of an object; None if the transform dropped it or failed on it.

        Raises MalformedAnswer if the object has no name.
        """
        try:
            obj = named_object(raw)
        except MalformedAnswer as fault:
            return self.kept_raw(raw, fault)
        self.objects += 1
        self.decoded += 1
        identity = dict(obj["metadata"])
        for path in self._drop_fields:
            path.remove_from(obj)
        plain = self._transforming.apply(obj, str(identity["name"]))
        if plain is None:
            return None
        if self._transforming.transform is not None:
            obj = msgspec.json.decode(plain)
        return self._record_of(
            identity,
            labels=mapping(mapping(obj.get("metadata")).get("labels")),
            values=tuple(packed(path.values(obj)) for path in self._layout.positions),
            frame=self._layout.codec.encode(plain),
        )

    def kept_raw(self, raw: bytes, fault: Exception) -> Record | None:
        """The record of an object of which only the metadata can be read, with a decode warning.

        None if the object would have to be changed. Raises MalformedAnswer if it has no name.
        """
        identity = identity_of(raw)
        name = str(identity["name"])
        if self._changes:
            self.decode_warning = f"{name} can't be transformed: {fault}"
            return self._transforming.failure(self.decode_warning)
        self.objects += 1
        self.decode_warning = f"{name} is kept as it is, because it can't be decoded: {fault}"
        return self._record_of(
            identity,
            labels=mapping(identity.get("labels")),
            values=(None,) * len(self._layout.positions),
            frame=self._layout.codec.encode(raw),
        )

    def gone(self, raw: bytes) -> Record:
        """The record of an object that the transform dropped: its identity, and an empty frame."""
        return self._record_of(identity_of(raw), labels={}, values=(), frame=b"{}")

    def take_decode_warning(self) -> str:
        """Return the decode warning of the last object, empty if there is none, and clear it."""
        decode_warning, self.decode_warning = self.decode_warning, ""
        return decode_warning

    def _record_of(
        self,
        identity: Mapping[str, Any],
        *,
        labels: Mapping[str, Any],
        values: tuple[Projected, ...],
        frame: Frame,
    ) -> Record:
        return Record(
            key=key_of(identity.get("namespace"), str(identity["name"])),
            revision=revision_of(str(identity.get("uid") or ""), str(identity.get("resourceVersion") or "")),
            labels_json=self._interned.labels(msgspec.json.encode(labels)) if labels else NO_LABELS,
            values=self._interned.values(values),
            frame=frame,
            layout=self._layout,
        )
