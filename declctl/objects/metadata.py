"""Metadata only: objects of which the server sends nothing else (PartialObjectMetadata)."""

import msgspec

from declctl.objects.frame import FrameCodec, FrameStatistics
from declctl.objects.reading import UNREADABLE
from declctl.objects.resource import PARTIAL_OBJECT_METADATA

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
