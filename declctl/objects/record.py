"""Records, views and events.

A `Record` is a cached object that is not decoded. An `ObjectView` is the object for a handler: read-only, and
decoded when it is read. On the way from the API server to the handler, a change is one of these values after
the other: `WatchEvent` or `ListPage`, `Delta`, `Notification`, `Change`. A reconciler receives a `Request`.
"""

from abc import ABCMeta
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from types import GenericAlias, MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import msgspec

from declctl.errors import MalformedAnswer
from declctl.kit.secret_values import is_secret, secret_values
from declctl.objects.conditions import Condition, condition_of
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

R = TypeVar("R")
Projected = str | tuple[str, ...] | None


def packed(found: tuple[str, ...]) -> Projected:
    """The compact form of the scalars at a path: None, the only one, or a tuple of several."""
    return None if not found else found[0] if len(found) == 1 else found


class Layout:
    """The common part of all records of one projection.

    `positions` has the index of each projected path in `Record.values`; `codec` makes and reads the frames.
    `hides` is True for Secrets: what a reader decodes of one is remembered, so that no text shows it.
    """

    __slots__ = ("api_version", "codec", "hides", "kind", "positions")

    def __init__(
        self, *, api_version: str, kind: str, positions: Mapping[FieldPath, int], codec: Codec
    ) -> None:
        self.api_version = api_version
        self.kind = kind
        self.positions = positions
        self.codec = codec
        self.hides = is_secret(api_version, kind)

    def decode(self, frame: Frame) -> KubeObject:
        """The object of a frame, with the `apiVersion` and `kind` that lists leave out of their items."""
        found = of_kind(msgspec.json.decode(self.codec.decode(frame)), self.api_version, self.kind)
        if self.hides:
            secret_values.remember(found)  # the reader may quote it in an exception or in the log
        return found


NO_LABELS = b""
_MOST_BYTES = 64 * 1024  # of frames that are decompressed together: their JSON fits into a second-level cache
_FIELD_DECODERS = 256  # size of the cache of compiled decoders of single fields
_READ_LABELS = 4096  # size of the cache of decoded labels


@lru_cache(_READ_LABELS)
def _labels_of(raw: bytes) -> Mapping[str, str]:
    try:
        found = msgspec.json.decode(raw) if raw else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = None  # such as a number out of range in the place of a string
    if not isinstance(found, dict):
        return MappingProxyType({})
    labels = cast("dict[str, Any]", found)
    return MappingProxyType({k: "" if v is None else str(v) for k, v in labels.items()})  # null is "" in Go


REVISION_BREAK = "\n"
"""Between the uid and the resource version of a revision."""


def revision_of(uid: str, resource_version: str) -> str:
    """The identifier of one state of one object.

    Line feeds in the uid are removed, because a line feed separates the two parts.
    """
    return f"{uid.replace(REVISION_BREAK, '')}{REVISION_BREAK}{resource_version}"


NO_ORDER = (0, "")
"""The order of a version that can't be compared; it is less than every other."""


def version_order(version: str) -> tuple[int, str]:
    """A value by which resource versions of one resource and one server can be compared.

    A resource version is a number of any length, without a sign and without leading zeros (Kubernetes 1.35,
    KEP-5504; apimachinery's CompareResourceVersion). Every other text is opaque and has the order NO_ORDER:
    the empty version, "0", which requests any version, and versions of servers that do not use numbers.
    """
    if version.isdecimal() and version.isascii() and version[0] != "0":
        return len(version), version
    return NO_ORDER


def newer_version(version: str, other: str) -> str:
    """The newer of two resource versions; the other one if one is empty; `other` without an order."""
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
    """One cached object: its key, identity, labels and projected values, and the whole object as a frame.

    The garbage collector does not track records, so that 100,000 of them cost a collection nothing. They make
    no reference cycles. Immutable; from any thread.
    """

    key: str  # a plain string, which the garbage collector does not track; `object_key` has its parts
    revision: str  # uid and resource version in one string, which needs 64 bytes less than two
    labels_json: bytes  # as in the object; one value for all objects with equal labels
    values: tuple[Projected, ...]  # at the projected paths, in the order of the layout
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
        """`metadata.labels`, read-only; empty if there are none. The object is not decoded."""
        return _labels_of(self.labels_json)

    @property
    def object_key(self) -> ObjectKey:
        """The key with its namespace and name."""
        return ObjectKey(self.key)

    def decode(self) -> KubeObject:
        """A new copy of the whole object, which the caller may change. Decompresses and decodes.

        Raises MalformedAnswer for an object that was stored although it can't be decoded.
        """
        try:
            return self.layout.decode(self.frame)
        except UNREADABLE as fault:
            raise undecodable(self.key, fault) from fault

    def read(self) -> KubeObject:
        """The whole object, for reading only. A held object is shared by all readers, any other is decoded.

        Raises MalformedAnswer as `decode` does.
        """
        frame = self.frame
        if isinstance(frame, HeldObject) and frame.body is not None:
            if self.layout.hides:
                secret_values.remember(frame.body)
            return frame.body
        return self.decode()

    def field(self, path: FieldPath) -> tuple[str, ...]:
        """The scalars at a path, as strings. Decodes the object if neither projection nor metadata has them.

        The namespace of a cluster-scoped object is the empty string (client-go's MetaNamespaceIndexFunc).
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
"""Returns the cached record of a key, or None."""


def nothing_known(_: str) -> Record | None:
    """The `Known` of an empty cache, and for decoding without reuse of cached records."""
    return None


if TYPE_CHECKING:
    _ReadOnlyMapping = Mapping[str, Any]
else:

    class _ReadOnlyMapping:
        """Stands for Mapping, from which a struct can't inherit; ObjectView is registered as one below."""

        __slots__ = ()


class ObjectView(msgspec.Struct, _ReadOnlyMapping, eq=False):
    """A read-only mapping of a whole object, for one reader.

    Name, namespace, uid, labels, resource version and key are read without decoding. Any other field decodes
    the object, once for this view; held objects are decoded already. All values are read-only, and a write
    raises TypeError. `to_dict()`, a deep copy and a pickle return a plain copy, which may be changed. Raises
    MalformedAnswer for an object that can't be decoded. One thread at a time may use a view.
    """

    # A struct is made in a quarter of the time of a class with `__init__`: listers make thousands at once.
    _record: Record
    _body: KubeObject | None = None  # the decoded object, once it was read

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
        """The value of a field; `default` if the object does not have it."""
        try:
            return self[field]
        except KeyError:
            return default

    def keys(self) -> KeysView[str]:
        """The names of the fields."""
        return self._decoded().keys()

    def values(self) -> ValuesView[Any]:
        """The values of the fields."""
        return self._decoded().values()

    def items(self) -> ItemsView[str, Any]:
        """The names and values of the fields."""
        return self._decoded().items()

    def __bool__(self) -> bool:
        return True  # an object always has fields: `if old:` does not have to decode

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

    @property
    def creation_timestamp(self) -> datetime:
        """`metadata.creationTimestamp`, in UTC. Decodes. Raises MalformedAnswer if no server has set it."""
        found = self._time("creationTimestamp")
        if found is None:
            raise MalformedAnswer(
                f"{self._record.key} has no metadata.creationTimestamp: it was never stored"
            )
        return found

    @property
    def deletion_timestamp(self) -> datetime | None:
        """`metadata.deletionTimestamp`, in UTC; None if the object is not being deleted. Decodes."""
        return self._time("deletionTimestamp")

    def condition(self, kind: str) -> Condition | None:
        """The condition of a type, such as Ready, in `status.conditions`; None if there is none. Decodes.

        Raises InvalidObject for a condition that can't be read, such as one with another status than True,
        False and Unknown.
        """
        status = self.get("status")
        conditions = status.get("conditions") if isinstance(status, Mapping) else None
        return condition_of(self._record.key, conditions, kind)

    def _time(self, field: str) -> datetime | None:
        """A time of the metadata. Raises MalformedAnswer for what is no time."""
        text = (self.get("metadata") or {}).get(field)
        if text is None:
            return None
        try:
            return datetime.fromisoformat(text)
        except (TypeError, ValueError) as fault:
            raise MalformedAnswer(f"{self._record.key}: metadata.{field} is no time: {fault}") from fault

    def to_dict(self) -> KubeObject:
        """A deep copy, which the caller may change. Raises MalformedAnswer if the object can't be decoded."""
        return self._record.decode()

    def __deepcopy__(self, memo: dict[int, Any]) -> KubeObject:
        return self.to_dict()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.to_dict(),)

    def __repr__(self) -> str:
        record = self._record
        return f"<{record.layout.kind} {record.key} resourceVersion={record.resource_version}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        # The inherited one would show the whole object, maybe a Secret, in a traceback with local variables.
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

if TYPE_CHECKING:
    # The default makes `Change`, `Request` and `Lister` without a class those of plain views.
    from typing_extensions import TypeVar as DefaultTypeVar

    View_co = DefaultTypeVar("View_co", bound=ObjectView, default=ObjectView, covariant=True)
else:
    View_co = TypeVar("View_co", bound=ObjectView, covariant=True)


class FieldView(ObjectView, kw_only=True):
    """A view that decodes each top-level field by itself, when it is read.

    It is for functions that read one or two fields of many objects: index functions and filters. Decoding
    `spec` of a pod takes half of the time of the whole object. A read of all fields decodes them together.
    The fields of a held object are decoded already.
    """

    # The JSON of the object as a buffer, where it is at hand; else the frame is decompressed, once.
    _text: Any = None
    _fields: KubeObject | None = None  # those that were read

    def __getitem__(self, field: str) -> Any:
        fields = self._fields
        if fields is None:
            fields = self._fields = {}
        elif field in fields:
            return fields[field]
        value = msgspec.UNSET if self._body is not None else self._decoded_alone(field)
        if value is msgspec.UNSET:
            return self._decoded()[field]  # which fills in kind and apiVersion
        value = fields[field] = read_only(value)
        return value

    def _decoded_alone(self, field: str) -> Any:
        """The value of a field; UNSET if it is missing, or if no struct can have a field with this name."""
        record = self._record
        frame = record.frame
        if isinstance(frame, HeldObject) and frame.body is not None:
            value = frame.body.get(field, msgspec.UNSET)
        else:
            try:
                decode = _field_decoder(field)
            except (TypeError, ValueError):
                return msgspec.UNSET
            try:
                value = decode(self._json()).f0
            except UNREADABLE as fault:
                raise undecodable(record.key, fault) from fault
        if record.layout.hides:
            secret_values.remember({field: value})
        return value

    def _json(self) -> Any:
        """The JSON of the object as a buffer. Raises what decompressing raises."""
        text = self._text
        if text is None:
            text = self._text = self._record.layout.codec.decode(self._record.frame)
        return text

    def _decoded(self) -> KubeObject:
        if self._body is None:
            # A value that was returned before is returned again.
            self._body = ReadOnlyDict({**self._record.read(), **(self._fields or {})})
        return self._body


@lru_cache(_FIELD_DECODERS)
def _field_decoder(field: str) -> Callable[[Any], Any]:
    """A decoder of one field of an object, into `f0`; raises ValueError or TypeError for an unusable name."""
    return PathStruct([(field,)], missing=msgspec.UNSET).decode


def field_view(record: Record, text: Any = None) -> ObjectView:
    """A view for a function that reads few fields of many objects.

    `text` is the JSON of the object as a buffer, if the caller has it; otherwise the frame is decompressed.
    """
    # A held object is decoded already.
    return ObjectView(record) if isinstance(record.frame, HeldObject) else FieldView(record, _text=text)


def decompressed(records: Sequence[Record]) -> Sequence[Any]:
    """The JSON of each record's object as a buffer; None for records to be decompressed one by one."""
    frames = [record.frame for record in records]
    codecs = {record.layout.codec for record in records}
    codec = codecs.pop() if len(codecs) == 1 else None
    if not isinstance(codec, FrameCodec) or sum(map(len, frames)) > _MOST_BYTES:
        return [None] * len(records)
    try:
        return codec.decode_many(frames)  # type: ignore[arg-type] - those of a FrameCodec are bytes
    except BROKEN_FRAME:
        return [None] * len(records)  # decompressed one by one, the broken one raises


_RECORD: Callable[[ObjectView], Record] = attrgetter("_record")
_BODY: Callable[[ObjectView], KubeObject | None] = attrgetter("_body")
_TEXT: Callable[[FieldView], Any] = attrgetter("_text")


def second_view(view: ObjectView) -> ObjectView:
    """An untyped view of the same object for another thread. What `view` has decoded is not decoded again."""
    # Both views read one dictionary, which replaces a value by its read-only form when it is read. Both may
    # do that at the same time: the forms are equal.
    return ObjectView(_RECORD(view), _BODY(view))


def view_as(view: ObjectView, kind: type[ObjectView]) -> ObjectView:
    """The view of the same object by another class; the same view if it has this class."""
    if type(view) is kind:
        return view
    if isinstance(view, FieldView) and issubclass(kind, FieldView):
        return kind(_RECORD(view), _text=_TEXT(view))  # what is decompressed is not decompressed again
    return kind(_RECORD(view))


def with_views(function: Callable[[ObjectView], R], kind: type[ObjectView]) -> Callable[[ObjectView], R]:
    """The function, called with views of a class, whatever view it is given."""
    return function if kind is ObjectView else lambda view: function(view_as(view, kind))


def record_of(view: ObjectView) -> Record:
    """The record that a view reads."""
    return _RECORD(view)


class EventType(StrEnum):
    """The types of watch events.

    The last three are no types of Kubernetes. DROPPED: the transform left the object out of the cache.
    SKIPPED: the object is of another kind than the expected one. OUTSIDE: it is of a shard that is not held.
    """

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    DROPPED = "DROPPED"
    SKIPPED = "SKIPPED"
    OUTSIDE = "OUTSIDE"


class WatchEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a WATCH. `record` is None for a bookmark, and for what was skipped or is outside.

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
        """The version that is reached with this event; empty if it has none."""
        return self.version if self.record is None else self.record.resource_version


class DeltaType(StrEnum):
    """Why a delta is in the queue (client-go's DeltaType)."""

    ADDED = "Added"
    UPDATED = "Updated"
    DELETED = "Deleted"
    REPLACED = "Replaced"
    SYNC = "Sync"


class Delta(msgspec.Struct, frozen=True, gc=False):
    """One change on its way to the store (client-go's Delta)."""

    type: DeltaType
    key: str
    record: Record | None  # the new state, or the last one; None for a tombstone of an unknown object
    final_state_unknown: bool = False  # a tombstone: the watch missed the delete
    initial: bool = False  # of the first list
    out_of_scope: bool = False  # the object left the selection, and may still exist


class ChangeType(StrEnum):
    """The kind of change of a notification."""

    ADDED = "Added"
    MODIFIED = "Modified"
    DELETED = "Deleted"
    RESYNC = "Resync"


class ChangeReason(StrEnum):
    """The cause of a notification."""

    INITIAL = "Initial"
    WATCH = "Watch"
    RELIST = "Relist"
    RESYNC = "Resync"
    OUT_OF_SCOPE = "OutOfScope"
    REPLAY = "Replay"


class Notification(msgspec.Struct, frozen=True, gc=False):
    """A change of the cache on its way to a listener. While it waits, its objects are not decoded."""

    type: ChangeType
    record: Record  # the present state; for Deleted, the last known one
    # The state before. A Deleted that was merged with a Modified has the `old` of the Modified, by which a
    # filter decides whether the handler knows the object.
    old: Record | None = None
    initial: bool = False  # of the first sync of the listener
    final_state_unknown: bool = False  # the watch missed the delete
    reason: ChangeReason = ChangeReason.WATCH
    received_at: float = 0.0  # seconds since the epoch when the cache took the event in
    judged: bool = False  # no filter is asked about it any longer

    @property
    def key(self) -> str:
        """The key of the object."""
        return self.record.key

    def weight(self) -> int:
        """The bytes that it keeps in memory while it waits."""
        return 256 + len(self.record.frame) + (len(self.old.frame) if self.old is not None else 0)


class Change(msgspec.Struct, Generic[View_co], frozen=True, kw_only=True):
    """The argument `change` of a hook. Immutable; later versions may add fields.

    `Change[Preview]` is the type of one with objects of this class.
    """

    type: ChangeType
    resource: str  # its name in the manifest
    obj: View_co  # the present state; for Deleted, the last known one
    old: View_co | None  # the state before; None unless `type` is Modified or Resync
    initial: bool  # part of the handler's first sync
    final_state_unknown: bool  # the watch missed the delete
    reason: ChangeReason
    generation: int  # the number of the generation whose code is called
    received: float  # `received_at` in seconds since the epoch

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)  # as of `typed.Object`

    @property
    def key(self) -> ObjectKey:
        """`namespace/name`, or `name`."""
        return self.obj.key

    @property
    def id(self) -> str:
        """The uid and the version of the object, as `uid@resourceVersion`.

        The same in all attempts and for all handlers. The log, traces and the ledger of writes have it, and
        an audit log of the API server has both parts.
        """
        return event_id_of(self.obj)

    @property
    def received_at(self) -> datetime:
        """When the cache took the event in, in UTC; of a change by an edit, when the difference was found."""
        return datetime.fromtimestamp(self.received, UTC)


def event_id_of(obj: "ObjectView | Record") -> str:
    """The id of the event that has brought an object into this state: `uid@resourceVersion`."""
    return f"{obj.uid}@{obj.resource_version}"


class Cause(NamedTuple):
    """Why a key was added to a queue."""

    type: str  # such as Added, Modified, Deleted, Resync, Requeue
    resource: str  # the name of the resource of the object
    key: str  # of the object
    reason: str  # such as Watch, Initial, Relist

    def __str__(self) -> str:
        """`Modified deployments default/web (Watch)`."""
        return f"{self.type} {self.resource} {self.key} ({self.reason})"


class Request(msgspec.Struct, Generic[View_co], frozen=True, kw_only=True):
    """One call of a reconciler for one key; `Request[Preview]` is the type of one for objects of this class.

    - `key`: `namespace/name`, or `name` for a cluster-scoped kind; with `.namespace` and `.name`.
    - `obj`: the newest state in the cache, read-only; None if the cache has no such object. Then it is gone,
      or it is not in the scope of the resource. For a handler with a finalizer, an object that has left the
      scope with the finalizer leads to no call with None while it lives.
    - `attempt`: the number of this call, from 1: it grows while the call fails.
    - `causes`: why the key is due, the oldest first, at most 16.
    - `id`: the same in all attempts for the same causes, and in no other call; an idempotency key.
    - `previous`: the object as the last call that succeeded had it, with `keepPrevious: true`; it may have
      another uid. None before the first success of this process.
    """

    key: ObjectKey
    obj: View_co | None
    attempt: int
    causes: tuple[Cause, ...]
    id: str
    previous: View_co | None = None

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)  # as of `typed.Object`

    @property
    def namespace(self) -> str | None:
        """The namespace; None for a cluster-scoped kind."""
        return self.key.namespace

    @property
    def name(self) -> str:
        """The name."""
        return self.key.name


@dataclass(frozen=True, slots=True)
class Requeue:
    """What a reconciler returns to be called for the key again, `after` seconds.

    A change that comes before leads to a call before, whose result decides anew. Raises ValueError unless
    `after` is above 0 and fits into a float, and TypeError if it is no number.
    """

    after: float

    def __post_init__(self) -> None:
        """Check the seconds."""
        if isinstance(self.after, bool) or not isinstance(self.after, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance] - user code
            raise TypeError(f"Requeue(after=…) takes seconds, not a {type(self.after).__name__}")
        try:
            # A plain float: the methods of a subclass are user code, which the queue must not call.
            seconds = float(self.after)
        except OverflowError:
            raise ValueError("Requeue(after=…) takes a number of seconds that fits into a float") from None
        if not seconds > 0:
            raise ValueError(
                f"Requeue(after=…) takes more than 0 seconds, not {seconds:g}: return None instead"
            )
        object.__setattr__(self, "after", seconds)


def merge(waiting: Notification, new: Notification, attempted: bool) -> Sequence[Notification]:
    """The notifications that replace two pending ones of a key: none, one or both.

    `attempted`: a handler has received `waiting` and failed on it, so that it can't be removed.
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
            # The handler knows the object, or would have been notified of it: it needs the delete.
            return [msgspec.structs.replace(new, old=waiting.old, judged=waiting.judged)]
        case ((ChangeType.MODIFIED | ChangeType.ADDED | ChangeType.DELETED), ChangeType.DELETED):
            return [new]
        case _:
            return [waiting, new]


class ListPage(msgspec.Struct, frozen=True):
    """One page of a LIST."""

    records: Sequence[Record]
    resource_version: str  # of the list
    continue_token: str  # for the next page; empty for the last one
    remaining: int | None  # items on further pages, if the server says so
    skipped: Sequence[str] = ()  # a sentence for each item that can't be used: of another kind, or unreadable
    kept_raw: Sequence[str] = ()  # a sentence for each record of which only the metadata could be read
    outside: int = 0  # items of shards that are not held
    shard_selector: str = ""  # the one by which the server has filtered; empty if it has not
