"""Records that are read one after the other: their frames are decompressed together."""

import operator
from collections.abc import Sequence
from typing import Any

import zstandard

from declctl.objects.frame import FrameCodec
from declctl.objects.record import Record

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
