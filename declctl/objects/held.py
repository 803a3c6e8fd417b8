"""Held objects: what `cache: {mode: Objects}` keeps, so that a read neither decompresses nor parses.

All readers of a held object share what is inside. Views refuse writes; code that reaches past one could
change it. So its frame stays beside it: nobody can change that, a private copy is made from it, and
`mutations` puts right what was changed.
"""

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from declctl.objects.frame import FrameCodec, FrameStatistics

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


FILLED_IN = ("apiVersion", "kind")
"""What lists leave out of their items, and whoever decodes one fills in."""


def of_kind(obj: dict[str, Any], api_version: str, kind: str) -> dict[str, Any]:
    """The object with the `apiVersion` and `kind` that lists leave out of their items."""
    if "kind" in obj and "apiVersion" in obj:
        return obj
    return {"apiVersion": api_version, "kind": kind, **obj}


class HeldObject(msgspec.Struct, eq=False, weakref=True):
    """A decoded object, and its frame; its length is that of its JSON, in bytes.

    `body` is for reading only, and None where the object can't be decoded.
    """

    body: dict[str, Any] | None
    frame: bytes
    size: int

    def __len__(self) -> int:
        return self.size


Frame = bytes | HeldObject
"""How a cache keeps an object; its length is what is counted as its bytes."""


class Codec(Protocol):
    """How the objects of one resource are kept. `encode` is called by one thread, `decode` by any."""

    def encode(self, plain: bytes) -> Frame:
        """What is kept of a JSON object."""
        ...

    def decode(self, frame: Any) -> bytes:
        """The JSON object of what this codec made."""
        ...

    def statistics(self) -> FrameStatistics:
        """How small its frames are."""
        ...


class ObjectCodec:
    """Bytes to held object and back: a Codec. `alive` may be called by any thread."""

    def __init__(self, *, api_version: str, kind: str) -> None:
        self.api_version = api_version
        self.kind = kind
        self._frames = FrameCodec()
        self._made: dict[int, weakref.ref[HeldObject]] = {}

    def encode(self, plain: bytes) -> HeldObject:
        """The held object of a JSON object."""
        try:
            body = of_kind(msgspec.json.decode(plain), self.api_version, self.kind)
        except _UNREADABLE:
            body = None  # whoever reads it is told why
        held = HeldObject(body, self._frames.encode(plain), len(plain))
        number = id(held)
        self._made[number] = weakref.ref(held, lambda _: self._made.pop(number, None))
        return held

    def decode(self, frame: Frame) -> bytes:
        """The JSON object of what this codec made: as it came, whatever its readers did to it."""
        return self._frames.decode(frame if isinstance(frame, bytes) else frame.frame)

    def statistics(self) -> FrameStatistics:
        """How small the frames are that stay beside the objects."""
        return self._frames.statistics()

    def pristine(self, held: HeldObject) -> dict[str, Any]:
        """The object as it came, decoded anew; raises the errors of decoding."""
        return of_kind(msgspec.json.decode(self.decode(held)), self.api_version, self.kind)

    def alive(self) -> Sequence["weakref.ref[HeldObject]"]:
        """Every object that somebody holds: a cache, a change that waits, a reader."""
        return list(self._made.values())
