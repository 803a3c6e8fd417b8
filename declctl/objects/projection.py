"""Projections: here the bytes of an API server are decoded.

A projection is compiled from what the manifest declares: it reads the envelope, the identity, the
labels and the projected field paths of an object in one partial decode, and keeps the object itself
as a frame. An object that the compiled decoder does not expect (a null where a map should be, a
field of another type) is decoded whole instead: it is never refused.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from declctl.errors import MalformedAnswer, from_status
from declctl.objects.events import EventType, WatchEvent
from declctl.objects.field_path import FieldPath
from declctl.objects.frame import FrameCodec
from declctl.objects.key import key_of
from declctl.objects.partial import PartialDecoder
from declctl.objects.record import KubeObject, Layout, Projected, Record

MANAGED_FIELDS = FieldPath.parse("metadata.managedFields")
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
Transform = Callable[[KubeObject], KubeObject | None]
Known = Callable[[str], Record | None]

_PREFIXES = {
    b'{"type":"ADDED","object":': EventType.ADDED,
    b'{"type":"MODIFIED","object":': EventType.MODIFIED,
    b'{"type":"DELETED","object":': EventType.DELETED,
}
_PREFIX_BY_LETTER = {prefix[9]: (prefix, kind) for prefix, kind in _PREFIXES.items()}
_CHANGES = {str(kind): kind for kind in _PREFIXES.values()}
_NO_LABELS: Mapping[str, str] = {}
_MOST_LABEL_SETS = 50_000  # interned; beyond it the table starts anew rather than grow for ever


def _nothing_known(_: str) -> Record | None:
    return None


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a LIST: its records, the version of the list, and how to go on."""

    records: Sequence[Record]
    resource_version: str
    continue_token: str
    remaining: int | None


@dataclass(frozen=True, slots=True)
class ProjectionStatistics:
    """What was decoded.

    All objects, how many of them whole, and how many the transform dropped or failed on.
    """

    objects: int
    decoded_whole: int
    dropped: int
    failed: int
    last_fault: str | None


class _Page(msgspec.Struct):
    metadata: dict[str, Any]
    items: list[msgspec.Raw] | None = None
    kind: str = ""


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Projection:
    """The decoder of one resource. One thread uses it; the records it makes may go anywhere.

    `paths` are projected, `drop_fields` are removed before the frame is made, `transform` is the
    user's own (it receives and returns a dict, or None to drop the object from the cache; when it
    raises, the object is dropped and counted).
    """

    def __init__(
        self,
        *,
        api_version: str,
        kind: str,
        paths: Iterable[FieldPath] = (),
        drop_fields: Sequence[FieldPath] = (MANAGED_FIELDS,),
        transform: Transform | None = None,
        codec: FrameCodec | None = None,
    ) -> None:
        self._partial = PartialDecoder(dict.fromkeys(paths))
        self.layout = Layout(
            api_version=api_version, kind=kind, positions=self._partial.positions, codec=codec or FrameCodec()
        )
        self._drop_managed = MANAGED_FIELDS in drop_fields
        self._drop_others = tuple(path for path in drop_fields if path != MANAGED_FIELDS)
        self._transform = transform
        self._page = msgspec.json.Decoder(_Page)
        self._event = msgspec.json.Decoder(_Event)
        self._labels: dict[bytes, Mapping[str, str]] = {}
        self._strings: dict[str, str] = {}
        self._objects = self._whole = self._dropped = self._failed = 0
        self._last_fault: str | None = None

    def page(self, body: bytes, *, known: Known = _nothing_known) -> ListPage:
        """Decode a LIST answer; raises MalformedAnswer if it isn't one.

        `known` tells what the cache holds of a key: an object that has not changed since is given
        back as that record, so that a relist neither compresses it again nor holds it twice.
        """
        try:
            page = self._page.decode(body)
        except msgspec.MsgspecError as fault:
            raise MalformedAnswer(f"the answer to a LIST is no list: {fault}") from fault
        if page.kind == "Table":
            raise MalformedAnswer("the answer to a LIST is a Table, which holds no objects")
        metadata = page.metadata
        records = [record for raw in page.items or () if (record := self.record(bytes(raw), known=known))]
        return ListPage(
            records=records,
            resource_version=str(metadata.get("resourceVersion") or ""),
            continue_token=metadata.get("continue") or "",
            remaining=metadata.get("remainingItemCount"),
        )

    def event(self, line: bytes) -> WatchEvent:
        """Decode one line of a WATCH.

        An ERROR event is raised as the StatusError that it carries; a line that is no event raises
        MalformedAnswer.
        """
        prefix, kind = _PREFIX_BY_LETTER.get(line[9:10][0] if len(line) > 9 else 0, (b"", None))
        if kind is not None and line.startswith(prefix):
            raw = line[len(prefix) : line.rstrip().rfind(b"}")]
            try:
                return self._changed(kind, raw)
            except MalformedAnswer:
                pass  # the object is not the last field of the event: take the long way
        try:
            event = self._event.decode(line)
        except msgspec.MsgspecError as fault:
            raise MalformedAnswer(
                f"a line of a WATCH is no event: {fault}; it begins with {line[:120]!r}"
            ) from fault
        return self._any_event(event.type, bytes(event.object))

    def record(self, raw: bytes, *, known: Known = _nothing_known) -> Record | None:
        """The record of one object.

        None where the transform dropped it. Raises MalformedAnswer if it has no name.
        """
        self._objects += 1
        if self._transform is not None or self._drop_others:
            return self._record_whole(raw)
        try:
            meta, values = self._partial.decode(raw)
        except msgspec.ValidationError:
            return self._record_whole(raw)
        except msgspec.DecodeError as fault:
            raise MalformedAnswer(f"an object is no JSON: {fault}; it begins with {raw[:120]!r}") from fault
        if not meta.name:
            raise MalformedAnswer(f"an object has no metadata.name; it begins with {raw[:120]!r}")
        key = key_of(meta.namespace, meta.name)
        held = known(key)
        if (
            held is not None
            and held.resource_version == meta.resourceVersion
            and held.uid == meta.uid
            and held.layout is self.layout
        ):
            return held
        if self._drop_managed and meta.managedFields:
            cut = _without_managed_fields(raw, bytes(meta.managedFields))
            if cut is None:
                return self._record_whole(raw)
            raw = cut
        labels = self._intern_labels(bytes(meta.labels)) if meta.labels else _NO_LABELS
        return Record(
            key=key,
            uid=meta.uid,
            resource_version=meta.resourceVersion,
            labels=labels,
            values=tuple(self._intern(value) for value in values),
            frame=self.layout.codec.encode(raw),
            layout=self.layout,
        )

    def statistics(self) -> ProjectionStatistics:
        """The figures so far."""
        return ProjectionStatistics(self._objects, self._whole, self._dropped, self._failed, self._last_fault)

    def _any_event(self, kind: str, raw: bytes) -> WatchEvent:
        if kind == "BOOKMARK":
            metadata = msgspec.json.decode(raw).get("metadata") or {}
            annotations = metadata.get("annotations") or {}
            return WatchEvent(
                EventType.BOOKMARK,
                None,
                str(metadata.get("resourceVersion") or ""),
                initial_events_end=annotations.get(INITIAL_EVENTS_END) == "true",
            )
        if kind == "ERROR":
            raise status_error(msgspec.json.decode(raw))
        known = _CHANGES.get(kind)
        if known is None:
            raise MalformedAnswer(f"a WATCH has an event of the unknown type {kind!r}")
        return self._changed(known, raw)

    def _changed(self, kind: EventType, raw: bytes) -> WatchEvent:
        record = self.record(raw)
        if record is not None:
            return WatchEvent(kind, record, record.resource_version)
        # The transform dropped it: whatever the cache holds of it has to go.
        meta, _ = PartialDecoder({}).decode(raw)
        bare = Record(
            key=key_of(meta.namespace, meta.name),
            uid=meta.uid,
            resource_version=meta.resourceVersion,
            labels=_NO_LABELS,
            values=(),
            frame=b"{}",
            layout=self.layout,
        )
        return WatchEvent(EventType.DROPPED, bare, meta.resourceVersion)

    def _record_whole(self, raw: bytes) -> Record | None:
        self._whole += 1
        try:
            obj = msgspec.json.decode(raw)
        except msgspec.DecodeError as fault:
            raise MalformedAnswer(f"an object is no JSON: {fault}; it begins with {raw[:120]!r}") from fault
        if (
            not isinstance(obj, dict)
            or not isinstance(obj.get("metadata"), dict)
            or not obj["metadata"].get("name")
        ):
            raise MalformedAnswer(f"an object has no metadata.name; it begins with {raw[:120]!r}")
        identity = dict(obj["metadata"])
        if self._drop_managed:
            obj["metadata"].pop("managedFields", None)
        for path in self._drop_others:
            path.remove_from(obj)
        if self._transform is not None:
            obj = self._transformed(obj, str(identity["name"]))
            if obj is None:
                return None
        labels = (obj.get("metadata") or {}).get("labels") or {}
        return Record(
            key=key_of(identity.get("namespace"), str(identity["name"])),
            uid=str(identity.get("uid") or ""),
            resource_version=str(identity.get("resourceVersion") or ""),
            labels={str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else _NO_LABELS,
            values=tuple(self._intern(_packed(path.values(obj))) for path in self.layout.positions),
            frame=self.layout.codec.encode(msgspec.json.encode(obj)),
            layout=self.layout,
        )

    def _transformed(self, obj: KubeObject, name: str) -> KubeObject | None:
        assert self._transform is not None
        try:
            result = self._transform(obj)
        except Exception as fault:  # noqa: BLE001 - the user's function; the object is dropped, counted and told
            self._failed += 1
            self._last_fault = f"the transform raised {type(fault).__name__} on {name}: {fault}"
            return None
        if result is None:
            self._dropped += 1
        return result

    def _intern_labels(self, raw: bytes) -> Mapping[str, str]:
        labels = self._labels.get(raw)
        if labels is None:
            if len(self._labels) >= _MOST_LABEL_SETS:
                self._labels.clear()
            decoded = msgspec.json.decode(raw)
            labels = {
                self._intern_text(str(k)): self._intern_text(str(v)) for k, v in (decoded or {}).items()
            }
            self._labels[raw] = labels
        return labels

    def _intern(self, value: Projected) -> Projected:
        return self._intern_text(value) if isinstance(value, str) else value

    def _intern_text(self, text: str) -> str:
        if len(self._strings) >= _MOST_LABEL_SETS:
            self._strings.clear()
        return self._strings.setdefault(text, text)


def status_error(status: Mapping[str, Any], *, retry_after: float | None = None) -> Exception:
    """The error that a Status object tells of."""
    details = status.get("details") or {}
    causes = [
        text for c in details.get("causes") or () for text in (c.get("reason"), c.get("message")) if text
    ]
    seconds = retry_after if retry_after is not None else details.get("retryAfterSeconds")
    return from_status(
        int(status.get("code") or 500),
        str(status.get("reason") or "Unknown"),
        str(status.get("message") or ""),
        causes=causes,
        retry_after=float(seconds) if seconds else None,
    )


def _packed(found: tuple[str, ...]) -> Projected:
    return None if not found else found[0] if len(found) == 1 else found


def _without_managed_fields(raw: bytes, value: bytes) -> bytes | None:
    # The field is cut out of the bytes; None where it can't be told for certain which bytes are it.
    # An unescaped quote ends a JSON string, so this needle only ever matches a real field; a second
    # match might be somebody else's.
    needle = b'"managedFields":' + value
    at = raw.find(needle)
    if at < 0:
        return None
    end = at + len(needle)
    if raw.find(needle, end) >= 0:
        return None
    if raw[end : end + 1] == b",":
        return raw[:at] + raw[end + 1 :]
    return raw[: at - 1] + raw[end:] if raw[at - 1 : at] == b"," else raw[:at] + raw[end:]
