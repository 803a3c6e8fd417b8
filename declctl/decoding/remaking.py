"""Records made anew out of their own frames, as if another projection had read the object.

So a cache takes other fields out of its objects, drops more of them, or keeps them another way, and no
server is asked for what is there already. Frames are decompressed together, many in one call.
"""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import zstandard

from declctl.decoding.partial import Interning, PartialDecoder
from declctl.decoding.projection import Projection
from declctl.errors import CacheError, MalformedAnswer
from declctl.objects.field_path import FieldPath
from declctl.objects.frame import Codec, Frame, FrameCodec, FrameStatistics
from declctl.objects.reading import UNREADABLE, json_object, mapping
from declctl.objects.record import NO_LABELS, Layout, Projected, Record, packed

_frame, _layout = operator.attrgetter("frame"), operator.attrgetter("layout")
_MOST_BYTES = 64 * 1024  # of frames at once: what comes out of them stays in a processor's second cache


def decompressed(records: Sequence[Record]) -> Sequence[Any]:
    """For each record the JSON of its object, as a buffer, or None where that is better asked for alone."""
    frames = list(map(_frame, records))
    codecs = {layout.codec for layout in set(map(_layout, records))}
    codec = codecs.pop() if len(codecs) == 1 else None
    if not isinstance(codec, FrameCodec) or sum(map(len, frames)) > _MOST_BYTES:
        return [None] * len(records)
    try:
        return codec.decode_many(frames)  # type: ignore[arg-type]
    except (zstandard.ZstdError, ValueError):
        return [None] * len(records)  # which of them is broken is found when each is read


_Parts = tuple[bytes, tuple[Projected, ...], Frame]  # labels, values, frame


class Remaking:
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
        at_hand = [None if alike is None else alike.positions.get(path) for path in layout.positions]
        # Where the values stand in records that are alike, if all of them do.
        self._places = None if alike is None or None in at_hand else [at for at in at_hand if at is not None]
        self._drop_fields = tuple(drop_fields)
        self._reads = _projection(layout, layout.codec, self._drop_fields)
        self._partial = PartialDecoder(layout.positions)
        self._interned = Interning()
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
