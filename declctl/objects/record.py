"""Records, views and events: an object in the cache, in the hands of a handler, and what happens to it.

A `Record` is what the cache holds of an object without decoding it. An `ObjectView` is the object as a
handler reads it: read-only, and decoded when it is read. Events are values of the line from the API server
to the handler, in this order: `WatchEvent` and `ListPage`, `Delta`, `Notification`, `Change`.
"""

from abc import ABCMeta
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import msgspec

from declctl.errors import MalformedAnswer
from declctl.objects.fields import FieldPath, PathStruct
from declctl.objects.frame import (
    BROKEN_FRAME,
    UNREADABLE,
    Codec,
    Frame,
    FrameCodec,
    HeldObject,
    KubeObject,
    of_kind,
)
from declctl.objects.read_only import ReadOnlyDict, read_only, refuse
from declctl.objects.resource import ObjectKey, name_of, namespace_of

Projected = str | tuple[str, ...] | None


def packed(found: tuple[str, ...]) -> Projected:
    """How the scalars at a path are kept: nothing, the only one, or all of them."""
    return None if not found else found[0] if len(found) == 1 else found


class Layout:
    """What all records of one projection share: kind, places of its paths, codec of its frames."""

    __slots__ = ("api_version", "codec", "kind", "positions")

    def __init__(
        self, *, api_version: str, kind: str, positions: Mapping[FieldPath, int], codec: Codec
    ) -> None:
        self.api_version = api_version
        self.kind = kind
        self.positions = positions
        self.codec = codec

    def decode(self, frame: Frame) -> KubeObject:
        """The object of a frame, with the `apiVersion` and `kind` that lists leave out of their items."""
        return of_kind(msgspec.json.decode(self.codec.decode(frame)), self.api_version, self.kind)


NO_LABELS = b""
_MOST_BYTES = 64 * 1024  # of frames at once: what comes out of them stays in a processor's second cache
_FIELD_DECODERS = 256  # compiled decoders of single fields that are kept
_READ_LABELS = 4096  # sets of labels that are kept as mappings, because somebody has just read them


@lru_cache(_READ_LABELS)
def _labels_of(raw: bytes) -> Mapping[str, str]:
    try:
        found = msgspec.json.decode(raw) if raw else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = None  # a number beyond all bounds, in the place of a string
    if not isinstance(found, dict):
        return MappingProxyType({})
    labels = cast("dict[str, Any]", found)
    return MappingProxyType({k: "" if v is None else str(v) for k, v in labels.items()})  # null is "" in Go


REVISION_BREAK = "\n"
"""Between the uid and the resource version of a revision."""


def revision_of(uid: str, resource_version: str) -> str:
    """Identifies one state of one object.

    Line feeds in the uid are dropped, because a line feed separates the two parts.
    """
    return f"{uid.replace(REVISION_BREAK, '')}{REVISION_BREAK}{resource_version}"


NO_ORDER = (0, "")
"""The order of a version that can't be compared; it is before every other."""


def version_order(version: str) -> tuple[int, str]:
    """The order of a resource version among those of the same resource of one server: to be compared.

    A resource version is a number of any length, without a sign and without leading zeros (Kubernetes 1.35,
    KEP-5504; apimachinery's CompareResourceVersion). Everything else is opaque and has the order NO_ORDER:
    the empty version, "0", which asks for any version, and versions of servers that count otherwise.
    """
    if version.isdecimal() and version.isascii() and version[0] != "0":
        return len(version), version
    return NO_ORDER


def newer_version(version: str, other: str) -> str:
    """Returns the newer of two resource versions.

    If one is empty, the other one; if they can't be compared, `other`.
    """
    if not version or not other:
        return other or version
    order, other_order = version_order(version), version_order(other)
    if NO_ORDER in (order, other_order):
        return other
    return version if order > other_order else other


def undecodable(key: str, fault: Exception) -> MalformedAnswer:
    """The error for an object that was stored though it can't be decoded."""
    return MalformedAnswer(f"{key} can't be decoded: {fault}")


class Record(msgspec.Struct, frozen=True, gc=False):
    """One object in the cache: its key, identity, labels and projected values, and the rest as a frame.

    It makes no reference cycles and is not tracked by the garbage collector: 100,000 of them cost a
    collection nothing. For that its key is a plain string; `object_key` is the same with its parts.
    `labels_json` is what stands in the object, shared by all that have the same. `revision` has uid and
    resource version in one string: they are compared together, and 64 bytes smaller.
    """

    key: str
    revision: str
    labels_json: bytes
    values: tuple[Projected, ...]
    frame: Frame
    layout: Layout

    @property
    def uid(self) -> str:
        """`metadata.uid`."""
        return self.revision.partition(REVISION_BREAK)[0]

    @property
    def resource_version(self) -> str:
        """`metadata.resourceVersion`; empty if it has none."""
        return self.revision.partition(REVISION_BREAK)[2]

    @property
    def labels(self) -> Mapping[str, str]:
        """`metadata.labels`, read-only; empty if there are none. Does not decode the object."""
        return _labels_of(self.labels_json)

    @property
    def object_key(self) -> ObjectKey:
        """The key with its namespace and name."""
        return ObjectKey(self.key)

    def decode(self) -> KubeObject:
        """A new copy of the whole object; costs a decompression and a parse.

        Raises MalformedAnswer for an object that was stored though it can't be decoded.
        """
        try:
            return self.layout.decode(self.frame)
        except UNREADABLE as fault:
            raise undecodable(self.key, fault) from fault

    def read(self) -> KubeObject:
        """The whole object, for reading only: where objects are held, it is shared by all readers.

        Else it is decoded. Raises MalformedAnswer as `decode` does.
        """
        frame = self.frame
        if isinstance(frame, HeldObject) and frame.body is not None:
            return frame.body
        return self.decode()

    def field(self, path: FieldPath) -> tuple[str, ...]:
        """The scalars at `path` as strings: from the projection, the metadata or, last, by decoding.

        The namespace of a cluster-scoped object is the empty string (client-go's
        MetaNamespaceIndexFunc).
        """
        position = self.layout.positions.get(path)
        if position is None:
            known = self._metadata(path)
            return path.values(self.read()) if known is None else known
        value = self.values[position]
        if value is None:
            return ()
        return (value,) if isinstance(value, str) else value

    def _metadata(self, path: FieldPath) -> tuple[str, ...] | None:
        match path.steps:
            case ("metadata", "labels", str(name)):
                value = self.labels.get(name)
                return () if value is None else (value,)
            case ("metadata", "name"):
                return (self.object_key.name,)
            case ("metadata", "namespace"):
                return (self.object_key.namespace or "",)
            case ("metadata", "uid"):
                return (self.uid,)
            case _:
                return None


Known = Callable[[str], Record | None]
"""What a cache holds of a key."""


def nothing_known(_: str) -> Record | None:
    """What a cache that is empty, or not to be looked at, holds of a key."""
    return None


if TYPE_CHECKING:
    _ReadOnlyMapping = Mapping[str, Any]
else:

    class _ReadOnlyMapping:
        """A struct can't inherit from Mapping, whose metaclass is another: it is registered as one, below."""

        __slots__ = ()


class ObjectView(msgspec.Struct, _ReadOnlyMapping, eq=False):
    """A read-only mapping of a whole object, private to its reader.

    Name, namespace, uid, labels, resource version and key are read without decoding; anything else
    decodes the object once for this view; where a cache holds objects decoded, nothing. What is inside
    is read-only as well (`read_only`): a write raises TypeError at that line. Who wants to change
    something takes `to_dict()`; a deep copy and a pickle give the same.
    """

    # A struct is made in a quarter of the time of a class with `__init__`: listers make thousands at once.
    _record: Record
    _body: KubeObject | None = None

    def __getitem__(self, field: str) -> Any:
        body = self._body
        if body is None:
            body = self._decoded()
        return body[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    def __len__(self) -> int:
        return len(self._decoded())

    def __contains__(self, field: object) -> bool:
        try:
            self[cast("str", field)]
        except KeyError:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return self._decoded() == dict(other) if isinstance(other, Mapping) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other  # a struct has a __ne__ of its own, by identity

    __hash__ = None

    def get(self, field: str, default: Any = None) -> Any:
        """What stands in a field; `default` if the object does not have it."""
        try:
            return self[field]
        except KeyError:
            return default

    def keys(self) -> KeysView[str]:
        """The names of the fields."""
        return self._decoded().keys()

    def values(self) -> ValuesView[Any]:
        """What stands in them."""
        return self._decoded().values()

    def items(self) -> ItemsView[str, Any]:
        """Both."""
        return self._decoded().items()

    def __bool__(self) -> bool:
        return True  # there is always a kind: `if old:` need not decode to know

    @property
    def key(self) -> ObjectKey:
        """`namespace/name`, or `name`."""
        return self._record.object_key

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return name_of(self._record.key)

    @property
    def namespace(self) -> str | None:
        """`metadata.namespace`; None for a cluster-scoped object."""
        return namespace_of(self._record.key)

    @property
    def uid(self) -> str:
        """`metadata.uid`."""
        return self._record.uid

    @property
    def resource_version(self) -> str:
        """`metadata.resourceVersion`: opaque; only to be compared for equality."""
        return self._record.resource_version

    @property
    def labels(self) -> Mapping[str, str]:
        """`metadata.labels`, read-only; empty if there are none."""
        return self._record.labels

    @property
    def annotations(self) -> Mapping[str, str]:
        """`metadata.annotations`, read-only; empty if there are none. Decodes."""
        metadata = self.get("metadata") or {}
        return MappingProxyType(metadata.get("annotations") or {})

    def to_dict(self) -> KubeObject:
        """A private deep copy, free to be changed."""
        return self._record.decode()

    def __deepcopy__(self, memo: dict[int, Any]) -> KubeObject:
        return self.to_dict()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.to_dict(),)

    def __repr__(self) -> str:
        record = self._record
        return f"<{record.layout.kind} {record.key} resourceVersion={record.resource_version}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        # That of a struct would show the whole object, maybe a Secret, in a traceback with local variables.
        record = self._record
        return [("kind", record.layout.kind), ("key", record.key)]

    def _decoded(self) -> KubeObject:
        body = self._body
        if body is None:
            self._body = body = ReadOnlyDict(self._record.read())
        return body

    if not TYPE_CHECKING:  # to a type checker a write is an error already
        __setitem__ = __delitem__ = refuse


cast("ABCMeta", Mapping).register(ObjectView)


class FieldView(ObjectView, kw_only=True):
    """A view that decodes each top-level field alone, when it is read.

    For functions that read one or two fields of many objects: index functions and filters. To decode `spec`
    of a pod takes half of the time of the whole object. Where all fields are read, they are decoded
    together.
    """

    _text: Any = (
        None  # the JSON of the object as a buffer, where it is at hand; else the frame is decompressed
    )
    _fields: KubeObject = msgspec.field(default_factory=dict[str, Any])  # those that were read

    def __getitem__(self, field: str) -> Any:
        if self._body is not None:
            return self._body[field]
        fields = self._fields
        if field not in fields:
            value = self._decoded_alone(field)
            if value is msgspec.UNSET:
                return self._decoded()[field]  # which fills in kind and apiVersion
            fields[field] = read_only(value)
        return fields[field]

    def _decoded_alone(self, field: str) -> Any:
        """The value of a field; UNSET where it is missing, or where no struct can name it."""
        try:
            decode = _field_decoder(field)
        except (TypeError, ValueError):
            return msgspec.UNSET
        try:
            text = self._text
            if text is None:
                text = self._text = self._record.layout.codec.decode(self._record.frame)
            return decode(text).f0
        except UNREADABLE as fault:
            raise undecodable(self._record.key, fault) from fault

    def _decoded(self) -> KubeObject:
        if self._body is None:
            # A value that was given before is given again.
            self._body = ReadOnlyDict({**self._record.decode(), **self._fields})
        return self._body


@lru_cache(_FIELD_DECODERS)
def _field_decoder(field: str) -> Callable[[Any], Any]:
    """Reads one field of an object into `f0`; raises ValueError or TypeError for what is no name."""
    return PathStruct([(field,)], missing=msgspec.UNSET).decode


def field_view(record: Record, text: Any = None) -> ObjectView:
    """A view for a function that reads few fields of many objects.

    `text` is the JSON of the object, as a buffer, where it is at hand; else the frame is decompressed.
    """
    # An object that is held decoded costs nothing to read.
    return ObjectView(record) if isinstance(record.frame, HeldObject) else FieldView(record, _text=text)


def decompressed(records: Sequence[Record]) -> Sequence[Any]:
    """For each record the JSON of its object, as a buffer, or None where that is better asked for alone."""
    frames = [record.frame for record in records]
    codecs = {record.layout.codec for record in records}
    codec = codecs.pop() if len(codecs) == 1 else None
    if not isinstance(codec, FrameCodec) or sum(map(len, frames)) > _MOST_BYTES:
        return [None] * len(records)
    try:
        return codec.decode_many(frames)  # type: ignore[arg-type] - those of a FrameCodec are bytes
    except BROKEN_FRAME:
        return [None] * len(records)  # which of them is broken is found when each is read


_RECORD: Callable[[ObjectView], Record] = attrgetter("_record")


def record_of(view: ObjectView) -> Record:
    """The record that a view reads."""
    return _RECORD(view)


class EventType(StrEnum):
    """The types of watch events.

    DROPPED and SKIPPED are ours: the transform took the object out of the cache; it is of another
    kind, and nobody wanted it.
    """

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    DROPPED = "DROPPED"
    SKIPPED = "SKIPPED"


class WatchEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a WATCH. `record` is None for a bookmark, and for what was skipped.

    `version` is that of an event without a record. `decode_warning` says why the object was skipped, or why
    only a part of it could be read; it is empty for an object that was read in full.
    """

    type: EventType
    record: Record | None
    version: str = ""
    initial_events_end: bool = False
    decode_warning: str = ""

    @property
    def resource_version(self) -> str:
        """The version that is reached with it; empty if it tells none."""
        return self.version if self.record is None else self.record.resource_version


class DeltaType(StrEnum):
    """Why a delta is in the queue (client-go's DeltaType)."""

    ADDED = "Added"
    UPDATED = "Updated"
    DELETED = "Deleted"
    REPLACED = "Replaced"
    SYNC = "Sync"


class Delta(msgspec.Struct, frozen=True, gc=False):
    """One change on its way to the store.

    `record` is None for a tombstone without a known object.
    """

    type: DeltaType
    key: str
    record: Record | None
    final_state_unknown: bool = False
    initial: bool = False
    out_of_scope: bool = False


class ChangeType(StrEnum):
    """What a handler is told."""

    ADDED = "Added"
    MODIFIED = "Modified"
    DELETED = "Deleted"
    RESYNC = "Resync"


class ChangeReason(StrEnum):
    """Why a handler is told."""

    INITIAL = "Initial"
    WATCH = "Watch"
    RELIST = "Relist"
    RESYNC = "Resync"
    OUT_OF_SCOPE = "OutOfScope"
    REPLAY = "Replay"


class Notification(msgspec.Struct, frozen=True, gc=False):
    """A change of the cache on its way to a listener.

    It holds records, so that waiting costs frames and not objects.

    `record` is the object now (for Deleted: its last known state), `old` the one before. A Deleted that
    was merged with a Modified keeps the `old` of that: a filter has to know whether it was told of it.
    `received_at` is in seconds since the epoch, when the event came off the wire. `judged` says that no
    filter has to be asked any more.
    """

    type: ChangeType
    record: Record
    old: Record | None = None
    initial: bool = False
    final_state_unknown: bool = False
    reason: ChangeReason = ChangeReason.WATCH
    received_at: float = 0.0
    judged: bool = False

    @property
    def key(self) -> str:
        """The key of the object."""
        return self.record.key

    def weight(self) -> int:
        """Bytes that it holds on to while it waits."""
        return 256 + len(self.record.frame) + (len(self.old.frame) if self.old is not None else 0)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook receives as `change`. Frozen; it may grow fields.

    `obj` is the object (for Deleted: its last known state); `old` is None unless the type is
    Modified or Resync. `received` is `received_at` in seconds since the epoch.
    """

    type: ChangeType
    resource: str
    obj: ObjectView
    old: ObjectView | None
    initial: bool
    final_state_unknown: bool
    reason: ChangeReason
    generation: int
    received: float

    @property
    def key(self) -> ObjectKey:
        """`namespace/name`, or `name`."""
        return self.obj.key

    @property
    def received_at(self) -> datetime:
        """When the event came off the wire, in UTC."""
        return datetime.fromtimestamp(self.received, UTC)


def merge(waiting: Notification, new: Notification, attempted: bool) -> Sequence[Notification]:
    """What remains of two pending changes of one key: the table of the contract.

    `attempted` says that a handler has already seen `waiting` and failed on it, so that it can't be
    taken back.
    """
    match waiting.type, new.type:
        case ChangeType.RESYNC, _:
            return [new]
        case _, ChangeType.RESYNC:
            return [waiting]
        case ChangeType.ADDED, ChangeType.MODIFIED:
            return [msgspec.structs.replace(waiting, record=new.record, judged=False)]
        case ChangeType.MODIFIED, ChangeType.MODIFIED:
            return [msgspec.structs.replace(new, old=waiting.old)]
        case ChangeType.ADDED, ChangeType.DELETED if not attempted:
            return []
        case ((ChangeType.MODIFIED | ChangeType.DELETED), ChangeType.DELETED) if (
            waiting.old or waiting.judged
        ):
            # Whoever was to hear of it, or knew it, has to hear that it is gone.
            return [msgspec.structs.replace(new, old=waiting.old, judged=waiting.judged)]
        case ((ChangeType.MODIFIED | ChangeType.ADDED | ChangeType.DELETED), ChangeType.DELETED):
            return [new]
        case _:
            return [waiting, new]


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a LIST: its records, the version of the list, and how to go on.

    `skipped` says why items are not among the records: they are of another kind, or can't be read.
    `kept_raw` says of which records only the metadata could be read.
    """

    records: Sequence[Record]
    resource_version: str
    continue_token: str
    remaining: int | None
    skipped: Sequence[str] = ()
    kept_raw: Sequence[str] = ()
