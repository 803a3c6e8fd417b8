"""Projections: here the bytes of an API server are decoded.

A projection is compiled from what the manifest declares: it reads the envelope, the identity, the labels and
the projected field paths of an object in one partial decode, and keeps the object itself as a frame. An
object that the compiled decoder does not expect (a null where a map should be, a field of another type) is
decoded whole instead: it is never refused.

Of objects with `cache: {mode: MetadataOnly}` the server sends nothing else (PartialObjectMetadata); they have
a codec of their own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from declctl.decoding.drop_fields import FieldCutter, cut_managed_fields
from declctl.decoding.envelopes import CHANGES, Envelopes, told
from declctl.decoding.fast_path import usual_reader
from declctl.decoding.list_items import ListItems
from declctl.decoding.partial import Interning, PartialDecoder
from declctl.decoding.slow_path import MANAGED_FIELDS, Transform, Transforming, WholeObjects
from declctl.errors import ApiError, MalformedAnswer
from declctl.objects.events import EventType, ListPage, WatchEvent
from declctl.objects.field_path import FieldPath
from declctl.objects.frame import Codec, FrameCodec, FrameStatistics
from declctl.objects.reading import UNREADABLE, no_name
from declctl.objects.record import NO_LABELS, Known, Layout, Record, nothing_known, revision_of
from declctl.objects.resource import PARTIAL_OBJECT_METADATA, GroupVersionKind
from declctl.objects.view import teach_yaml

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
        self._transforming = Transforming(transform)
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
        self._interned = Interning()
        self._whole = WholeObjects(
            self.layout, self._interned, drop_fields=self._drop_fields, transforming=self._transforming
        )
        self._usual = None
        if self._cutter is None and transform is None:
            self._usual = usual_reader(
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
        read, append = self._usual, events.append
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
                    append(self._unusual_event(line, known))
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
        if self._usual is not None:
            record = self._usual(raw, 0, len(raw), known)
            if record is not None:
                self._objects += 1
                return record
        return self._unusual(raw, known)

    def _unusual(self, raw: bytes, known: Known) -> Record | None:
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

    def _unusual_event(self, line: bytes, known: Known) -> WatchEvent:
        prefix, change, start = self._opening
        if not line.startswith(prefix) or not line.endswith(b"}"):
            return self._event_in_envelope(line, known)
        raw = line[start:-1]
        try:
            record = self._unusual(raw, known)
        except MalformedAnswer:
            return self._event_in_envelope(line, known)  # the object is not the last field of the event
        if record is None or self._whole.oddity:
            return self._odd_event(change, record, raw)
        return WatchEvent(change, record)

    def _event_in_envelope(self, line: bytes, known: Known) -> WatchEvent:
        kind, raw = self._envelopes.line(line)
        if kind not in CHANGES:
            return told(kind, raw)
        if (foreign := self._envelopes.foreign(raw)) is not None:
            return WatchEvent(EventType.SKIPPED, None, foreign.resource_version, False, foreign.reason)
        return self._odd_event(CHANGES[kind], self.record(raw, known=known), raw)

    def _odd_event(self, change: EventType, record: Record | None, raw: bytes) -> WatchEvent:
        if record is None:
            # The transform dropped it: whatever the cache holds of it has to go.
            change, record = EventType.DROPPED, self._whole.gone(raw)
        return WatchEvent(change, record, oddity=self._whole.take_oddity())

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
