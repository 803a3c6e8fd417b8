"""Projections: the decoders of one resource.

A projection is compiled from the declarations of a manifest. It reads the envelope, the identity, the labels
and the projected field paths of an object in one partial decode, and keeps the object itself as a frame.

The fast path (`fast_reader`) is one function for nearly all objects. The slow path of `Projection` reads
every other object; both make the same record of an object. An object of a shape that the compiled decoder
does not expect, such as null in the place of a map, is decoded as a whole; it is never refused.

`RecordRemaker` converts records to another projection from their own frames. So a cache can project other
paths, drop further fields, or keep its objects in another form, without another LIST.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from declctl.decoding.decoders import (
    ESCAPED_LETTER,
    MANAGED_FIELDS,
    MANAGED_FIELDS_KEY,
    MANAGED_FIELDS_NAME,
    FieldCutter,
    Holds,
    InternTables,
    PartialDecoder,
    Restriction,
    SeenFinalizers,
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
_MARK = b"-0e-0"  # valid JSON that no API server writes
_MARKED_FIELD = MANAGED_FIELDS_KEY + _MARK
_RAW_MARK, _NOTHING = msgspec.Raw(_MARK), msgspec.Raw()

FastReader = Callable[[bytes, int, int, Known], Record | None]
"""Reads the object `text[start:stop]`; None leaves it to the slow path. `known` is as in `record`."""


# One function, because for each object a call would cost as much as the called code.
def fast_reader(  # noqa: C901
    partial: PartialDecoder,
    interned: InternTables,
    layout: Layout,
    *,
    drops_managed_fields: bool,
    seen: SeenFinalizers,
    restriction: Restriction | None = None,
) -> FastReader:
    """The fast path of a projection without a transform that drops no field but `managedFields`.

    It cuts the value of `managedFields` out before decoding, because even skipping it costs time, and puts a
    mark in its place. If the decoder finds the mark in the metadata, the right field was cut. The value is
    taken to end at the first closing bracket. If that bracket closes an inner list, or is within a string,
    then the rest has a bracket or a quote too many, and can't be decoded; the slow path reads the object.

    It also returns None for an object that `restriction` leaves out, which is noted there.
    """
    decode = partial.decode
    encode = layout.codec.encode
    known_labels, known_values = interned.known_labels, interned.known_values
    note_finalizers = seen.note

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
        # Before anything is made of the object: most objects may be outside.
        if restriction is not None and restriction.leaves_out(namespace, uid, version):
            return None
        key = f"{namespace}/{name}" if namespace else name
        revision = f"{uid}{REVISION_BREAK}{version}"
        if known is not nothing_known:
            # An unchanged object in a relist is neither compressed again nor kept twice.
            held = known(key)
            if held is not None and held.revision == revision and held.layout is layout:
                return held
        if not head:
            plain = around
        elif head.endswith(b","):
            plain = head[:-1] + tail
        # The field was the first one of its object: the comma after it is removed, too.
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
        if meta.finalizers:
            note_finalizers(bytes(meta.finalizers), key)
        return Record(key, revision, labels, same_values, encode(plain), layout)

    return read


_LABELS = FieldPath.parse("metadata.labels")


class ProjectionStatistics(msgspec.Struct, frozen=True):
    """The figures of a projection so far."""

    objects: int  # records that were made, or returned again for unchanged objects
    decoded_whole: int  # records whose object was decoded as a whole
    dropped: int  # objects that the transform left out
    failed: int  # objects on which the transform failed
    last_fault: str | None  # the last such failure, as a sentence
    frames: FrameStatistics  # of the codec, which several projections may share


class Projection:
    """The decoder of one resource. Used by one thread at a time; its records may be used by any.

    - `api_version`, `kind`: of the objects. Objects of other kinds are skipped.
    - `paths`: the field paths to project.
    - `drop_fields`: removed before the frame is made; by default `metadata.managedFields`.
    - `transform`: a function of the user that receives a dictionary and returns one, or None to leave the
      object out of the cache. If it raises, the object is left out and counted. Raises TypeError for an
      asynchronous one.
    - `codec`: makes the frames; by default a FrameCodec.
    - `metadata_only`: the server sends PartialObjectMetadata. With a MetadataCodec they are read as objects
      of `kind`.
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
        teach_yaml()  # before user code can write an object of this projection as YAML
        self._partial = PartialDecoder(dict.fromkeys(paths))
        self.layout = Layout(
            api_version=api_version, kind=kind, positions=self._partial.positions, codec=codec or FrameCodec()
        )
        self._drop_fields = tuple(drop_fields)
        self._drop_managed = MANAGED_FIELDS in drop_fields
        self._transforming = TransformRunner(transform)
        others = [path for path in drop_fields if path != MANAGED_FIELDS]
        self._cutter = FieldCutter(others) if others else None
        # Values are those after the cut: if a dropped field affects a path, all values are read again.
        self._reads_again = self._cutter is not None and any(
            self._cutter.changes(path) for path in (_LABELS, *self._partial.positions)
        )
        self._metadata_only = metadata_only
        sent = PARTIAL_OBJECT_METADATA if metadata_only else GroupVersionKind.of(api_version, kind)
        self._envelopes = Envelopes(sent.api_version, sent.kind)
        # The opening of the last line: the next line nearly always has the same one.
        self._opening = self._envelopes.openings[0]
        self._interned = InternTables()
        self.finalizers = SeenFinalizers()  # also of objects that a transform changes or leaves out
        self._whole = WholeObjects(
            self.layout, self._interned, drop_fields=self._drop_fields, transforming=self._transforming
        )
        self._restriction = Restriction(None)
        self._fast_reader = self._new_fast_reader()
        self._objects = 0

    def restrict(self, holds: Holds | None) -> None:
        """Leave out the objects of which `holds` returns False; with None, as at first, none.

        `holds` is called by the decoding thread, before anything but the identity of an object is used. An
        event of an object that is left out becomes an OUTSIDE event. Called between two events.
        """
        self._restriction = Restriction(holds)
        self._fast_reader = self._new_fast_reader()

    def _new_fast_reader(self) -> FastReader | None:
        if self._cutter is not None or self._transforming.transform is not None:
            return None
        return fast_reader(
            self._partial,
            self._interned,
            self.layout,
            drops_managed_fields=self._drop_managed,
            seen=self.finalizers,
            restriction=None if self._restriction.holds is None else self._restriction,
        )

    def with_transform(self, transform: Transform | None) -> "Projection":
        """The same projection with another transform; its layout and its figures are its own."""
        made = Projection(
            api_version=self.layout.api_version,
            kind=self.layout.kind,
            paths=self.layout.positions,
            drop_fields=self._drop_fields,
            transform=transform,
            codec=self.layout.codec,
            metadata_only=self._metadata_only,
        )
        made.restrict(self._restriction.holds)
        return made

    def events(
        self, lines: Iterable[bytes], *, known: Known = nothing_known
    ) -> tuple[list[WatchEvent], ApiError | None]:
        """Decode lines of a WATCH, without their newlines; returns the events before the first fault, and it.

        `known` is as in `record`, for the objects of a streaming list.
        """
        events: list[WatchEvent] = []
        read, append = self._fast_reader, events.append
        prefix, change, start = self._opening
        try:
            for line in lines:
                # A line as API servers write it is recognised by its first and last bytes. Its envelope is
                # not parsed; every other line is left to the slow path.
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

        Raises the StatusError of an ERROR event, and MalformedAnswer for a line that is no event.
        """
        events, fault = self.events((line,), known=known)
        if fault is not None:
            raise fault
        return events[0]

    def record(self, raw: bytes, *, known: Known = nothing_known) -> Record | None:
        """The record of one object; None if it is left out, or if the transform dropped it or failed on it.

        `known` returns the cached record of a key. If the object has the same version, that record is
        returned, so that an unchanged object of a relist is neither compressed again nor kept twice. Raises
        MalformedAnswer for an object without a name.
        """
        if self._fast_reader is not None:
            record = self._fast_reader(raw, 0, len(raw), known)
            if record is not None:
                self._objects += 1
                return record
            if self._restriction.version is not None:
                return None
        return self._slow_record(raw, known)

    def _slow_record(self, raw: bytes, known: Known) -> Record | None:  # noqa: C901 - each step as it is needed
        try:
            meta, values = self._partial.decode(raw)
        except msgspec.ValidationError:
            return self._restricted(self._whole.read(raw))
        except UNREADABLE as fault:
            return self._restricted(self._whole.kept_raw(raw, fault))
        name, namespace = meta.name, meta.namespace
        if not name:
            raise no_name(raw)
        if self._restriction.leaves_out(namespace, meta.uid, meta.resourceVersion):
            return None
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
        if meta.finalizers:
            self.finalizers.note(bytes(meta.finalizers), key)
        # A transform needs a dictionary, so the object is decoded as a whole.
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
        """Decode the answer to a LIST; raises MalformedAnswer if it is no list. `known` is as in `record`."""
        return self.items(known=known).page(body)

    def items(self, *, known: Known = nothing_known) -> ListItems:
        """A reader for the items of one LIST answer, one by one; `known` is as in `record`."""
        return ListItems(self._envelopes, partial(self.record, known=known), self._whole, self._restriction)

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

    def _restricted(self, record: Record | None) -> Record | None:
        """A record of which the identity was not looked at before; None if it is left out."""
        if record is None or not self._restriction.leaves_out(
            record.object_key.namespace, record.uid, record.resource_version
        ):
            return record
        self._whole.take_decode_warning()
        return None

    def _slow_event(self, line: bytes, known: Known) -> WatchEvent:
        if (version := self._restriction.take()) is not None:
            return WatchEvent(EventType.OUTSIDE, None, version)  # found by the fast path
        prefix, change, start = self._opening
        if not line.startswith(prefix) or not line.endswith(b"}"):
            return self._event_in_envelope(line, known)
        # Between the opening and the last brace stands the object, in the order that API servers write.
        raw = line[start:-1]
        try:
            record = self._slow_record(raw, known)
        except MalformedAnswer:
            return self._event_in_envelope(line, known)  # maybe the object is not the last field of the event
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
            if (version := self._restriction.take()) is not None:
                return WatchEvent(EventType.OUTSIDE, None, version)
            # The transform dropped the object: a cached state of it has to be removed.
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
    """Makes frames of metadata without `kind` and `apiVersion`, which are those of PartialObjectMetadata.

    So an object is read with the kind of its layout.
    """

    def __init__(self) -> None:
        self._frames = FrameCodec()

    def encode(self, plain: bytes) -> bytes:
        """The frame of a JSON object."""
        return self._frames.encode(_without_kind(plain))

    def decode(self, frame: bytes) -> bytes:
        """The JSON object of a frame made by this codec."""
        return self._frames.decode(frame)

    def dictionary(self, number: int) -> bytes:
        """The dictionary of a number."""
        return self._frames.dictionary(number)

    def resume(self, dictionaries: Sequence[bytes]) -> None:
        """Know the dictionaries of an earlier process."""
        self._frames.resume(dictionaries)

    def restore(self, frame: bytes) -> bytes:
        """The frame itself."""
        return frame

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
        return plain  # `Record.read` raises the error for each reader
    if obj.get("kind") == _KIND:
        obj = {name: value for name, value in obj.items() if name not in ("kind", "apiVersion")}
    return msgspec.json.encode(obj)


_Parts = tuple[bytes, tuple[Projected, ...], Frame]  # labels, values, frame


class RecordRemaker:
    """Converts records of other layouts of the same kind to `layout`. Used by one thread.

    The object in a frame was transformed before, so no transform is applied. `drop_fields` are dropped.
    Records of the layout `alike` keep their frames, because `layout` would make the same ones. If they have
    the values of all paths of `layout`, too, no object is decoded.
    """

    def __init__(
        self, layout: Layout, *, drop_fields: Sequence[FieldPath] = (), alike: Layout | None = None
    ) -> None:
        self.layout = layout
        self._alike = alike
        places = [None if alike is None else alike.positions.get(path) for path in layout.positions]
        # The positions of the values in records of the layout `alike`; None if a value is missing there.
        self._places = None if alike is None or None in places else [at for at in places if at is not None]
        self._drop_fields = tuple(drop_fields)
        self._reads = _projection(layout, layout.codec, self._drop_fields)
        self._partial = PartialDecoder(layout.positions)
        self._interned = InternTables()
        self._looks = _projection(layout, _NoFrames(), ())

    def __call__(self, record: Record) -> Record:
        """Convert a record. Object and version stay the same.

        Raises CacheError if the frame can't be read, or if a field has to be dropped from an object that
        can't be decoded.
        """
        return self._anew(record, None)

    def many(self, records: Sequence[Record]) -> Sequence[Record]:
        """Convert many records; raises CacheError as for one."""
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
            labels = record.labels_json  # the bytes that equal labels share
        # The identity is the one that the server sent: a transform may have removed it from the frame.
        return Record(record.key, record.revision, labels, values, frame, self.layout)

    def _values(self, plain: Any) -> tuple[Projected, ...]:
        try:
            values = self._partial.values(plain)
        except UNREADABLE:  # the object has another shape, or can't be decoded
            return self._read(bytes(plain), self._looks, ())[1]
        return self._interned.values(values)

    def _read(self, plain: bytes, by: Projection, drop_fields: Iterable[FieldPath]) -> _Parts:
        try:
            made = by.record(plain)
        except MalformedAnswer:  # the name was removed by a transform, or dropped
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
    """The codec of a projection whose frames are not used."""

    def encode(self, plain: bytes) -> bytes:  # noqa: ARG002 - a Codec's
        return b""

    def decode(self, frame: bytes) -> bytes:  # noqa: ARG002
        raise CacheError("a frame that was not kept can't be decoded")

    def dictionary(self, number: int) -> bytes:  # noqa: ARG002
        return b""

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
