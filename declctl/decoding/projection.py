"""Projections: here the bytes of an API server are decoded.

A projection is compiled from what the manifest declares. It reads the envelope, the identity, the labels
and the projected field paths of an object in one partial decode, and keeps the object itself as a frame.

The fast path reads the object as nearly all of them are, in one function. An object that differs in any way
is left to `Projection`, which reads it as carefully as it takes; the record that both make of an object is
the same. An object that the compiled decoder does not expect (a null where a map should be, a field of
another type) is decoded whole instead: it is never refused.

`RecordRemaker` makes records anew out of their own frames, as if another projection had read the object. So a
cache takes other fields out of its objects, drops more of them, or keeps them another way, without another
LIST.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from declctl.decoding.decoders import (
    ESCAPED_LETTER,
    MANAGED_FIELDS,
    MANAGED_FIELDS_KEY,
    MANAGED_FIELDS_NAME,
    FieldCutter,
    InternTables,
    PartialDecoder,
    Transform,
    TransformRunner,
    WholeObjects,
    cut_managed_fields,
)
from declctl.decoding.envelopes import CHANGES, Envelopes, ListItems, event_without_object
from declctl.errors import ApiError, CacheError, MalformedAnswer
from declctl.objects.answers import json_object, mapping, no_name
from declctl.objects.fields import FieldPath
from declctl.objects.frame import UNREADABLE, Codec, Frame, FrameCodec, FrameStatistics
from declctl.objects.read_only import teach_yaml
from declctl.objects.record import (
    NO_LABELS,
    REVISION_BREAK,
    EventType,
    Known,
    Layout,
    ListPage,
    Projected,
    Record,
    WatchEvent,
    decompressed,
    nothing_known,
    packed,
    revision_of,
)
from declctl.objects.resource import PARTIAL_OBJECT_METADATA, GroupVersionKind

_FIELD = MANAGED_FIELDS_KEY + b"["
_MARK = b"-0e-0"  # a value that nobody writes
_MARKED_FIELD = MANAGED_FIELDS_KEY + _MARK
_RAW_MARK, _NOTHING = msgspec.Raw(_MARK), msgspec.Raw()

FastReader = Callable[[bytes, int, int, Known], Record | None]
"""Reads the object that is `text[start:stop]`; None if it is not as usual. `known` is as for a projection."""


# In one function, because for each object a call costs as much as what would be called.
def fast_reader(  # noqa: C901
    partial: PartialDecoder, interned: InternTables, layout: Layout, *, drops_managed_fields: bool
) -> FastReader:
    """The reader of objects of which nothing but `managedFields` is dropped, and nothing is transformed.

    `managedFields` are taken out before anything is decoded: they need not even be skipped. In their
    place stands a mark, and where the decoder finds that in the metadata, it was those of the metadata.
    What was taken for their value ends at the first bracket that closes. Where that one closes a list in
    the list, or is in a string, what is left has a bracket or a quote too many, and can't be decoded.
    """
    decode = partial.decode
    encode = layout.codec.encode
    known_labels, known_values = interned.known_labels, interned.known_values

    def read(text: bytes, start: int, stop: int, known: Known) -> Record | None:  # noqa: C901, PLR0912
        at = text.find(MANAGED_FIELDS_NAME, start, stop) - 1 if drops_managed_fields else -1
        if at < 0:
            head = tail = b""
            around, mark = text[start:stop], _NOTHING
        else:
            end = text.find(b"]", at, stop) + 1
            if (
                not end
                or not text.startswith(_FIELD, at)
                or (text.find(b"\\", start, at) >= 0 and text.find(ESCAPED_LETTER, start, at) >= 0)
            ):
                return None
            head, tail = text[start:at], text[end:stop]
            around, mark = head + _MARKED_FIELD + tail, _RAW_MARK
        try:
            meta, values = decode(around)
        except UNREADABLE:
            return None
        name, namespace, uid, version = meta.name, meta.namespace, meta.uid, meta.resourceVersion
        if not name or not version or REVISION_BREAK in uid:
            return None
        if drops_managed_fields and meta.managedFields != mark:
            return None
        key = f"{namespace}/{name}" if namespace else name
        revision = f"{uid}{REVISION_BREAK}{version}"
        if known is not nothing_known:
            # A relist of what has not changed neither compresses the object again nor holds it twice.
            held = known(key)
            if held is not None and held.revision == revision and held.layout is layout:
                return held
        if not head:
            plain = around
        elif head.endswith(b","):
            plain = head[:-1] + tail
        # The field that was cut out stood first, so the comma after it goes with it.
        elif head.endswith(b"{") and tail.startswith(b","):
            plain = head + tail[1:]
        else:
            return None
        raw_labels = bytes(meta.labels)
        labels = known_labels(raw_labels)
        if labels is None:
            labels = interned.labels(raw_labels)
        same_values = known_values(values)
        if same_values is None:
            same_values = interned.values(values)
        return Record(key, revision, labels, same_values, encode(plain), layout)

    return read


_LABELS = FieldPath.parse("metadata.labels")


@dataclass(frozen=True, slots=True)
class ProjectionStatistics:
    """How many objects were decoded, how many of them whole, and how many the transform took out.

    `frames` are those of its codec, which it may share with the projections before and after it.
    """

    objects: int
    decoded_whole: int
    dropped: int
    failed: int
    last_fault: str | None
    frames: FrameStatistics


class Projection:
    """The decoder of one resource. One thread uses it; the records it makes may go anywhere.

    `paths` are projected, `drop_fields` are removed before the frame is made, `transform` is the
    user's own (it receives and returns a dict, or None to drop the object from the cache; when it
    raises, the object is dropped and counted). `metadata_only` says that the server sends
    PartialObjectMetadata; with a MetadataCodec they are read as objects of the kind all the same.
    """

    def __init__(
        self,
        *,
        api_version: str,
        kind: str,
        paths: Iterable[FieldPath] = (),
        drop_fields: Sequence[FieldPath] = (MANAGED_FIELDS,),
        transform: Transform | None = None,
        codec: Codec | None = None,
        metadata_only: bool = False,
    ) -> None:
        teach_yaml()  # before anybody reads, and writes as YAML, an object of it
        self._partial = PartialDecoder(dict.fromkeys(paths))
        self.layout = Layout(
            api_version=api_version, kind=kind, positions=self._partial.positions, codec=codec or FrameCodec()
        )
        self._drop_fields = tuple(drop_fields)
        self._drop_managed = MANAGED_FIELDS in drop_fields
        self._transforming = TransformRunner(transform)
        others = [path for path in drop_fields if path != MANAGED_FIELDS]
        self._cutter = FieldCutter(others) if others else None
        # What is indexed is what is left: fields that lie in a dropped one are read after the cut.
        self._reads_again = self._cutter is not None and any(
            self._cutter.changes(path) for path in (_LABELS, *self._partial.positions)
        )
        self._metadata_only = metadata_only
        sent = PARTIAL_OBJECT_METADATA if metadata_only else GroupVersionKind.of(api_version, kind)
        self._envelopes = Envelopes(sent.api_version, sent.kind)
        self._opening = self._envelopes.openings[0]  # how the last line began: the next one does, too
        self._interned = InternTables()
        self._whole = WholeObjects(
            self.layout, self._interned, drop_fields=self._drop_fields, transforming=self._transforming
        )
        self._fast_reader = None
        if self._cutter is None and transform is None:
            self._fast_reader = fast_reader(
                self._partial, self._interned, self.layout, drops_managed_fields=self._drop_managed
            )
        self._objects = 0

    def with_transform(self, transform: Transform | None) -> "Projection":
        """The same projection with another transform; its layout and its figures are its own."""
        return Projection(
            api_version=self.layout.api_version,
            kind=self.layout.kind,
            paths=self.layout.positions,
            drop_fields=self._drop_fields,
            transform=transform,
            codec=self.layout.codec,
            metadata_only=self._metadata_only,
        )

    def events(
        self, lines: Iterable[bytes], *, known: Known = nothing_known
    ) -> tuple[list[WatchEvent], ApiError | None]:
        """Decode lines of a WATCH; the events before the first fault, and the fault.

        `known` is as in `record`, for the objects of a streaming list.
        """
        events: list[WatchEvent] = []
        read, append = self._fast_reader, events.append
        prefix, change, start = self._opening
        try:
            for line in lines:
                # What every API server writes is recognised by its first and last bytes and never parsed
                # as an envelope; everything else takes the long way.
                if not line.startswith(prefix):
                    prefix, change, start = self._opening = self._envelopes.opening(line) or self._opening
                record = None
                if read is not None and line.startswith(prefix) and line.endswith(b"}"):
                    record = read(line, start, len(line) - 1, known)
                if record is None:
                    append(self._slow_event(line, known))
                else:
                    self._objects += 1
                    append(WatchEvent(change, record))
        except ApiError as fault:
            return events, fault
        return events, None

    def event(self, line: bytes, *, known: Known = nothing_known) -> WatchEvent:
        """Decode one line of a WATCH, without its newline.

        An ERROR event is raised as the StatusError that it carries; a line that is no event raises
        MalformedAnswer.
        """
        events, fault = self.events((line,), known=known)
        if fault is not None:
            raise fault
        return events[0]

    def record(self, raw: bytes, *, known: Known = nothing_known) -> Record | None:
        """The record of one object; None where the transform dropped it.

        `known` tells what the cache holds of a key: an object that has not changed since is given
        back as that record, so that a relist neither compresses it again nor holds it twice. Raises
        MalformedAnswer if the object has no name.
        """
        if self._fast_reader is not None:
            record = self._fast_reader(raw, 0, len(raw), known)
            if record is not None:
                self._objects += 1
                return record
        return self._slow_record(raw, known)

    def _slow_record(self, raw: bytes, known: Known) -> Record | None:
        try:
            meta, values = self._partial.decode(raw)
        except msgspec.ValidationError:
            return self._whole.read(raw)
        except UNREADABLE as fault:
            return self._whole.kept_raw(raw, fault)
        name, namespace = meta.name, meta.namespace
        if not name:
            raise no_name(raw)
        key = f"{namespace}/{name}" if namespace else name
        revision = revision_of(meta.uid, meta.resourceVersion)
        held = None if known is nothing_known else known(key)
        if (
            held is not None
            and held.revision == revision
            and held.layout is self.layout
            and meta.resourceVersion
        ):
            self._objects += 1
            return held
        # A transform takes a dictionary, so that the object is decoded whole.
        if self._transforming.transform is not None:
            return self._whole.read(raw)
        if self._drop_managed and meta.managedFields:
            cut = self._without_managed_fields(raw, bytes(meta.managedFields))
            if cut is None:
                return self._whole.read(raw)
            raw = cut
        if self._cutter is not None:
            cut = self._cutter.cut(raw)
            if cut is None:
                return self._whole.read(raw)
            raw = cut
            if self._reads_again:
                meta, values = self._partial.decode(raw)
        self._objects += 1
        return Record(
            key,
            revision,
            self._interned.labels(bytes(meta.labels)) if meta.labels else NO_LABELS,
            self._interned.values(values),
            self.layout.codec.encode(raw),
            self.layout,
        )

    def page(self, body: bytes, *, known: Known = nothing_known) -> ListPage:
        """Decode a LIST answer; raises MalformedAnswer if it isn't one. `known` is as in `record`."""
        return self.items(known=known).page(body)

    def items(self, *, known: Known = nothing_known) -> ListItems:
        """Reads the items of one LIST answer as they are cut out of it; `known` is as in `record`."""
        return ListItems(self._envelopes, partial(self.record, known=known), self._whole)

    def statistics(self) -> ProjectionStatistics:
        """The figures so far."""
        by, whole = self._transforming, self._whole
        return ProjectionStatistics(
            self._objects + whole.objects,
            whole.decoded,
            by.dropped,
            by.failed,
            by.last_fault,
            self.layout.codec.statistics(),
        )

    def _slow_event(self, line: bytes, known: Known) -> WatchEvent:
        prefix, change, start = self._opening
        if not line.startswith(prefix) or not line.endswith(b"}"):
            return self._event_in_envelope(line, known)
        # Between the opening and the last brace stands the object, in the order that API servers write.
        raw = line[start:-1]
        try:
            record = self._slow_record(raw, known)
        except MalformedAnswer:
            return self._event_in_envelope(line, known)  # the object is not the last field of the event
        if record is None or self._whole.decode_warning:
            return self._event_of(change, record, raw)
        return WatchEvent(change, record)

    def _event_in_envelope(self, line: bytes, known: Known) -> WatchEvent:
        kind, raw = self._envelopes.line(line)
        if kind not in CHANGES:
            return event_without_object(kind, raw)
        if (other := self._envelopes.unexpected_kind(raw)) is not None:
            return WatchEvent(EventType.SKIPPED, None, other.resource_version, False, other.reason)
        return self._event_of(CHANGES[kind], self.record(raw, known=known), raw)

    def _event_of(self, change: EventType, record: Record | None, raw: bytes) -> WatchEvent:
        if record is None:
            # The transform dropped it: whatever the cache holds of it has to go.
            change, record = EventType.DROPPED, self._whole.gone(raw)
        return WatchEvent(change, record, decode_warning=self._whole.take_decode_warning())

    def _without_managed_fields(self, raw: bytes, value: bytes) -> bytes | None:
        found = cut_managed_fields(raw, value)
        if found is None:
            return None
        cut, sure = found
        if sure:
            return cut
        try:
            meta, _ = self._partial.decode(cut)
        except UNREADABLE:
            return None
        return None if meta.managedFields else cut


_KIND, _VERSION = PARTIAL_OBJECT_METADATA.kind, PARTIAL_OBJECT_METADATA.api_version
_BEGINNINGS = (
    f'{{"kind":"{_KIND}","apiVersion":"{_VERSION}",'.encode(),
    f'{{"apiVersion":"{_VERSION}","kind":"{_KIND}",'.encode(),
)


class MetadataCodec:
    """Frames of metadata, which do not say that they are of the kind PartialObjectMetadata.

    So an object is read as one of its own kind, which every reader of a layout is told.
    """

    def __init__(self) -> None:
        self._frames = FrameCodec()

    def encode(self, plain: bytes) -> bytes:
        """The frame of a JSON object."""
        return self._frames.encode(_without_kind(plain))

    def decode(self, frame: bytes) -> bytes:
        """The JSON object of a frame made by this codec."""
        return self._frames.decode(frame)

    def statistics(self) -> FrameStatistics:
        """The figures so far."""
        return self._frames.statistics()


def _without_kind(plain: bytes) -> bytes:
    for beginning in _BEGINNINGS:
        if plain.startswith(beginning):
            return b"{" + plain[len(beginning) :]
    try:
        obj = msgspec.json.decode(plain)
    except UNREADABLE:
        return plain  # whoever reads it is told why
    if obj.get("kind") == _KIND:
        obj = {name: value for name, value in obj.items() if name not in ("kind", "apiVersion")}
    return msgspec.json.encode(obj)


_Parts = tuple[bytes, tuple[Projected, ...], Frame]  # labels, values, frame


class RecordRemaker:
    """Makes records of `layout` out of records of other layouts of the same kind. One thread uses it.

    What is in a frame has been transformed, so that nothing is transformed again; `drop_fields` are
    dropped. Of records of the layout `alike` the frames are kept as they are: they are those that
    `layout` would have. If all that it has at hand stands in them, nothing is decoded.
    """

    def __init__(
        self, layout: Layout, *, drop_fields: Sequence[FieldPath] = (), alike: Layout | None = None
    ) -> None:
        self.layout = layout
        self._alike = alike
        places = [None if alike is None else alike.positions.get(path) for path in layout.positions]
        # Where the values stand in records that are alike, if all of them do.
        self._places = None if alike is None or None in places else [at for at in places if at is not None]
        self._drop_fields = tuple(drop_fields)
        self._reads = _projection(layout, layout.codec, self._drop_fields)
        self._partial = PartialDecoder(layout.positions)
        self._interned = InternTables()
        self._looks = _projection(layout, _NoFrames(), ())

    def __call__(self, record: Record) -> Record:
        """The record anew: the same object in the same state.

        Raises CacheError if its frame can't be read, or if a field has to be dropped from an object that
        can't be decoded.
        """
        return self._anew(record, None)

    def many(self, records: Sequence[Record]) -> Sequence[Record]:
        """All of these anew; raises as for one."""
        plain = decompressed(records) if self._places is None else [None] * len(records)
        return [self._anew(record, each) for record, each in zip(records, plain, strict=True)]

    def _anew(self, record: Record, plain: Any) -> Record:
        if record.layout is self.layout:
            return record
        if self._places is not None and record.layout is self._alike:
            values = self._interned.values(tuple([record.values[at] for at in self._places]))
            return msgspec.structs.replace(record, values=values, layout=self.layout)
        try:
            if plain is None:
                plain = record.layout.codec.decode(record.frame)
            if record.layout is self._alike:
                labels, values, frame = record.labels_json, self._values(plain), record.frame
            else:
                labels, values, frame = self._read(bytes(plain), self._reads, self._drop_fields)
        except Exception as fault:
            raise CacheError(f"{record.key} can't be made anew: {fault}") from fault
        if labels == record.labels_json:
            labels = record.labels_json  # which others share
        # Its identity is that which the server gave it, whatever a transform has left of that in the frame.
        return Record(record.key, record.revision, labels, values, frame, self.layout)

    def _values(self, plain: Any) -> tuple[Projected, ...]:
        try:
            values = self._partial.values(plain)
        except UNREADABLE:  # an object of another shape, or none at all
            return self._read(bytes(plain), self._looks, ())[1]
        return self._interned.values(values)

    def _read(self, plain: bytes, by: Projection, drop_fields: Iterable[FieldPath]) -> _Parts:
        try:
            made = by.record(plain)
        except MalformedAnswer:  # a transform has taken its name away, or it was dropped
            return self._nameless(json_object(plain), by.layout.codec, drop_fields)
        if made is None:
            raise CacheError(by.statistics().last_fault or "it can't be decoded")
        return made.labels_json, made.values, made.frame

    def _nameless(self, obj: dict[str, Any], codec: Codec, drop_fields: Iterable[FieldPath]) -> _Parts:
        for path in drop_fields:
            path.remove_from(obj)
        labels = mapping(mapping(obj.get("metadata")).get("labels"))
        values = tuple(packed(path.values(obj)) for path in self.layout.positions)
        frame = codec.encode(msgspec.json.encode(obj))
        return msgspec.json.encode(labels) if labels else NO_LABELS, values, frame


class _NoFrames:
    """The codec of a projection whose frames nobody wants."""

    def encode(self, plain: bytes) -> bytes:  # noqa: ARG002 - a Codec's
        return b""

    def decode(self, frame: bytes) -> bytes:  # noqa: ARG002
        raise CacheError("a frame that was not kept can't be decoded")

    def statistics(self) -> FrameStatistics:
        return FrameStatistics(ratio=0.0, trainings=0, dictionaries=0)


def _projection(layout: Layout, codec: Codec, drop_fields: Sequence[FieldPath]) -> Projection:
    return Projection(
        api_version=layout.api_version,
        kind=layout.kind,
        paths=layout.positions,
        drop_fields=drop_fields,
        codec=codec,
    )
