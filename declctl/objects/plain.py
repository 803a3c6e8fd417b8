"""Records whose frames are plain JSON: of an object that is in no cache, and for another process."""

from functools import lru_cache

import msgspec

from declctl.objects.answers import mapping
from declctl.objects.frame import FrameCodec, KubeObject
from declctl.objects.record import NO_LABELS, Layout, ObjectView, Record, revision_of
from declctl.objects.resource import key_of

_CODEC = FrameCodec()  # it returns JSON as it is


@lru_cache(256)
def plain_layout(api_version: str, kind: str) -> Layout:
    """The layout of records whose frames are plain JSON."""
    return Layout(api_version=api_version, kind=kind, positions={}, codec=_CODEC)


def plain_record(obj: KubeObject) -> Record:
    """A record of an object as an API server has it, which is copied. From any thread."""
    metadata = mapping(obj.get("metadata"))
    labels = metadata.get("labels")
    return Record(
        key_of(metadata.get("namespace"), str(metadata.get("name"))),
        revision_of(str(metadata.get("uid") or ""), str(metadata.get("resourceVersion") or "")),
        msgspec.json.encode(labels) if labels else NO_LABELS,
        (),
        msgspec.json.encode(obj),
        plain_layout(str(obj.get("apiVersion")), str(obj.get("kind"))),
    )


def plain_view(obj: KubeObject) -> ObjectView:
    """A view of an object of an API server, which is copied. From any thread."""
    return ObjectView(plain_record(obj))
