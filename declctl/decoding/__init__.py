"""Decoding: from the bytes of an API server to records. No I/O."""

from declctl.decoding.decoders import Transform
from declctl.decoding.envelopes import ItemCutter
from declctl.decoding.projection import (
    MANAGED_FIELDS,
    Known,
    MetadataCodec,
    Projection,
    ProjectionStatistics,
    nothing_known,
)

__all__ = [
    "MANAGED_FIELDS",
    "ItemCutter",
    "Known",
    "MetadataCodec",
    "Projection",
    "ProjectionStatistics",
    "Transform",
    "nothing_known",
]
