"""Records: what the cache holds of an object without decoding it."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, cast

import msgspec

from declctl.errors import MalformedAnswer
from declctl.objects.field_path import FieldPath
from declctl.objects.frame import Codec, Frame, HeldObject, of_kind
from declctl.objects.key import ObjectKey

KubeObject = dict[str, Any]
"""A Kubernetes object as JSON gives it: the only place where a shape is unknown."""

Projected = str | tuple[str, ...] | None


def packed(found: tuple[str, ...]) -> Projected:
    """How the scalars at a path are kept: nothing, the only one, or all of them."""
    return None if not found else found[0] if len(found) == 1 else found


class Layout:
    """What all records of one projection share: kind, places of its paths, codec of its frames."""

    __slots__ = ("api_version", "codec", "kind", "positions")

    def __init__(
        self, *, api_version: str, kind: str, positions: Mapping[FieldPath, int], codec: Codec
    ) -> None:
        self.api_version = api_version
        self.kind = kind
        self.positions = positions
        self.codec = codec

    def decode(self, frame: Frame) -> KubeObject:
        """The object of a frame, with the `apiVersion` and `kind` that lists leave out of their items."""
        return of_kind(msgspec.json.decode(self.codec.decode(frame)), self.api_version, self.kind)


NO_LABELS = b""
_READ_LABELS = 4096  # sets of labels that are kept as mappings, because somebody has just read them


@lru_cache(_READ_LABELS)
def _labels_of(raw: bytes) -> Mapping[str, str]:
    try:
        found = msgspec.json.decode(raw) if raw else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = None  # a number beyond all bounds, in the place of a string
    if not isinstance(found, dict):
        return MappingProxyType({})
    labels = cast("dict[str, Any]", found)
    return MappingProxyType({k: "" if v is None else str(v) for k, v in labels.items()})  # null is "" in Go


REVISION_BREAK = "\n"
"""Between the uid and the resource version of a revision."""


def revision_of(uid: str, resource_version: str) -> str:
    """Identifies one state of one object.

    Line feeds in the uid are dropped, because a line feed separates the two parts.
    """
    return f"{uid.replace(REVISION_BREAK, '')}{REVISION_BREAK}{resource_version}"


NO_ORDER = (0, "")
"""The order of a version that can't be compared; it is before every other."""


def version_order(version: str) -> tuple[int, str]:
    """The order of a resource version among those of the same resource of one server: to be compared.

    A resource version is a number of any length, without a sign and without leading zeros (Kubernetes 1.35,
    KEP-5504; apimachinery's CompareResourceVersion). Everything else is opaque and has the order NO_ORDER:
    the empty version, "0", which asks for any version, and versions of servers that count otherwise.
    """
    if version.isdecimal() and version.isascii() and version[0] != "0":
        return len(version), version
    return NO_ORDER


def newer_version(version: str, other: str) -> str:
    """Returns the newer of two resource versions.

    If one is empty, the other one; if they can't be compared, `other`.
    """
    if not version or not other:
        return other or version
    order, other_order = version_order(version), version_order(other)
    if NO_ORDER in (order, other_order):
        return other
    return version if order > other_order else other


class Record(msgspec.Struct, frozen=True, gc=False):
    """One object in the cache: its key, identity, labels and projected values, and the rest as a frame.

    It makes no reference cycles and is not tracked by the garbage collector: 100,000 of them cost a
    collection nothing. For that its key is a plain string; `object_key` is the same with its parts.
    `labels_json` is what stands in the object, shared by all that have the same. `revision` has uid and
    resource version in one string: they are compared together, and 64 bytes smaller.
    """

    key: str
    revision: str
    labels_json: bytes
    values: tuple[Projected, ...]
    frame: Frame
    layout: Layout

    @property
    def uid(self) -> str:
        """`metadata.uid`."""
        return self.revision.partition(REVISION_BREAK)[0]

    @property
    def resource_version(self) -> str:
        """`metadata.resourceVersion`; empty if it has none."""
        return self.revision.partition(REVISION_BREAK)[2]

    @property
    def labels(self) -> Mapping[str, str]:
        """`metadata.labels`, read-only; empty if there are none. Does not decode the object."""
        return _labels_of(self.labels_json)

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

    def read(self) -> KubeObject:
        """The whole object, for reading only: where objects are held, it is shared by all readers.

        Else it is decoded. Raises MalformedAnswer as `decode` does.
        """
        frame = self.frame
        if isinstance(frame, HeldObject) and frame.body is not None:
            return frame.body
        return self.decode()

    def field(self, path: FieldPath) -> tuple[str, ...]:
        """The scalars at `path` as strings: from the projection, the metadata or, last, by decoding.

        The namespace of a cluster-scoped object is the empty string (client-go's
        MetaNamespaceIndexFunc).
        """
        position = self.layout.positions.get(path)
        if position is None:
            known = self._metadata(path)
            return path.values(self.read()) if known is None else known
        value = self.values[position]
        if value is None:
            return ()
        return (value,) if isinstance(value, str) else value

    def _metadata(self, path: FieldPath) -> tuple[str, ...] | None:
        match path.steps:
            case ("metadata", "labels", str(name)):
                value = self.labels.get(name)
                return () if value is None else (value,)
            case ("metadata", "name"):
                return (self.object_key.name,)
            case ("metadata", "namespace"):
                return (self.object_key.namespace or "",)
            case ("metadata", "uid"):
                return (self.uid,)
            case _:
                return None


Known = Callable[[str], Record | None]
"""What a cache holds of a key."""


def nothing_known(_: str) -> Record | None:
    """What a cache that is empty, or not to be looked at, holds of a key."""
    return None
