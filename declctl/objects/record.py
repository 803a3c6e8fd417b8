"""Records: what the cache holds of an object without decoding it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from declctl.errors import MalformedAnswer
from declctl.objects.field_path import FieldPath
from declctl.objects.frame import FrameCodec
from declctl.objects.key import ObjectKey

KubeObject = dict[str, Any]
"""A Kubernetes object as JSON gives it: the only place where a shape is unknown."""

Projected = str | tuple[str, ...] | None


class Layout:
    """What all records of one projection share: kind, places of its paths, codec of its frames."""

    __slots__ = ("api_version", "codec", "kind", "positions")

    def __init__(
        self, *, api_version: str, kind: str, positions: Mapping[FieldPath, int], codec: FrameCodec
    ) -> None:
        self.api_version = api_version
        self.kind = kind
        self.positions = positions
        self.codec = codec

    def decode(self, frame: bytes) -> KubeObject:
        """The object of a frame, with the `apiVersion` and `kind` that lists leave out of their items."""
        obj: KubeObject = msgspec.json.decode(self.codec.decode(frame))
        if "kind" not in obj or "apiVersion" not in obj:
            return {"apiVersion": self.api_version, "kind": self.kind, **obj}
        return obj


class Record(msgspec.Struct, frozen=True, gc=False):
    """One object in the cache: its key, identity, labels and projected values, and the rest as a frame.

    It makes no reference cycles and is not tracked by the garbage collector: 100,000 of them cost a
    collection nothing. For that its key is a plain string; `object_key` is the same with its parts.
    """

    key: str
    uid: str
    resource_version: str
    labels: Mapping[str, str]
    values: tuple[Projected, ...]
    frame: bytes
    layout: Layout

    @property
    def object_key(self) -> ObjectKey:
        """The key with its namespace and name."""
        return ObjectKey(self.key)

    def decode(self) -> KubeObject:
        """A new copy of the whole object; costs a decompression and a parse.

        Raises MalformedAnswer for an object that was stored though it can't be decoded.
        """
        try:
            return self.layout.decode(self.frame)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
            raise MalformedAnswer(f"{self.key} can't be decoded: {fault}") from fault

    def field(self, path: FieldPath) -> tuple[str, ...]:
        """The scalars at `path` as strings: from the projection, the metadata or, last, by decoding.

        The namespace of a cluster-scoped object is the empty string (client-go's
        MetaNamespaceIndexFunc).
        """
        position = self.layout.positions.get(path)
        if position is None:
            known = self._metadata(path)
            return path.values(self.decode()) if known is None else known
        value = self.values[position]
        if value is None:
            return ()
        return (value,) if isinstance(value, str) else value

    def _metadata(self, path: FieldPath) -> tuple[str, ...] | None:
        match path.steps:
            case ("metadata", "labels", str(name)):
                return (self.labels[name],) if name in self.labels else ()
            case ("metadata", "name"):
                return (self.object_key.name,)
            case ("metadata", "namespace"):
                return (self.object_key.namespace or "",)
            case ("metadata", "uid"):
                return (self.uid,)
            case _:
                return None
