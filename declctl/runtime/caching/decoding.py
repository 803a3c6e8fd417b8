"""What came of the bytes of a resource's objects, as `status` and metrics show it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from declctl.informer import InformerStatistics


@dataclass(frozen=True, slots=True)
class DecodingStatus:
    """The decoder of one resource over all its watches; everything but the ratio is a count since the start.

    - `objects` were read: `projected` ones in part, which is all that is needed of most, `whole` ones by
      decoding all of them. Where there is a transform, that is so for every object; else these are
      `unexpected`: they have a field that is not of the type it should be.
    - `unread` objects can't be decoded beyond their metadata, and are cached and delivered as they came.
    - `dropped` objects were left out of the cache by the transform, `failed` ones because it raised or
      could not be applied; `last_fault` says why.
    - `frame_ratio` is how many times smaller the objects are in memory than on the wire, 0 before there
      was any; `trainings` were made for that, which gave `dictionaries`.
    """

    objects: int = 0
    whole: int = 0
    unexpected: int = 0
    unread: int = 0
    dropped: int = 0
    failed: int = 0
    last_fault: str | None = None
    frame_ratio: float = 0.0
    trainings: int = 0
    dictionaries: int = 0

    @property
    def projected(self) -> int:
        """How many were read in part."""
        return self.objects - self.whole

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "objects": self.objects,
            "projected": self.projected,
            "whole": self.whole,
            "unexpected": self.unexpected,
            "unread": self.unread,
            "dropped": self.dropped,
            "failed": self.failed,
            "lastFault": self.last_fault,
            "frameRatio": round(self.frame_ratio, 3),
            "trainings": self.trainings,
            "dictionaries": self.dictionaries,
        }


def decoding_of(parts: Sequence[InformerStatistics], *, transformed: bool) -> DecodingStatus:
    """The figures of some watches together. `transformed` says whether their objects pass a transform."""
    decoders = [part.projection for part in parts]
    whole = sum(each.decoded_whole for each in decoders)
    return DecodingStatus(
        objects=sum(each.objects for each in decoders),
        whole=whole,
        unexpected=0 if transformed else whole,
        unread=sum(part.reflector.kept_raw for part in parts),
        dropped=sum(each.dropped for each in decoders),
        failed=sum(each.failed for each in decoders),
        last_fault=next((each.last_fault for each in decoders if each.last_fault), None),
        frame_ratio=_ratio(parts),
        trainings=sum(each.frames.trainings for each in decoders),
        dictionaries=sum(each.frames.dictionaries for each in decoders),
    )


def _ratio(parts: Sequence[InformerStatistics]) -> float:
    """That of each watch, by how many objects it holds."""
    known = [part for part in parts if part.projection.frames.ratio]
    objects = sum(part.objects for part in known)
    if not objects:
        return known[0].projection.frames.ratio if known else 0.0
    return sum(part.projection.frames.ratio * part.objects for part in known) / objects
