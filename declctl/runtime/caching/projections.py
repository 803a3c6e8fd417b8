"""From what a manifest says of a resource to what decodes its objects, and keeps them."""

from collections.abc import Iterable, Sequence

from declctl.decoding import MetadataCodec, Projection, Transform
from declctl.decoding.remaking import Remaking
from declctl.manifest.model import CacheMode
from declctl.manifest.plan import WatchKey
from declctl.objects import Codec, FieldPath, FrameCodec, ObjectCodec
from declctl.runtime.caching.identities import Identity


def codec_of(watch: WatchKey) -> Codec:
    """How the objects of a watch are kept."""
    match watch.cache:
        case CacheMode.OBJECTS:
            return ObjectCodec(api_version=watch.api_version, kind=watch.kind)
        case CacheMode.METADATA_ONLY:
            return MetadataCodec()
        case CacheMode.FRAMES:
            return FrameCodec()


def projection_of(
    watch: WatchKey, *, paths: Iterable[FieldPath], transform: Transform | None, codec: Codec
) -> Projection:
    """The decoder of a watch, which has the values at some paths at hand."""
    return Projection(
        api_version=watch.api_version,
        kind=watch.kind,
        metadata_only=watch.cache is CacheMode.METADATA_ONLY,
        paths=sorted(paths, key=str),
        drop_fields=_drop_fields(watch),
        transform=transform,
        codec=codec,
    )


def remaking(old: Identity, new: Identity, *, before: Projection, after: Projection) -> Remaking:
    """Makes records as `after` decodes them for `new` out of those that `before` decoded for `old`."""
    same_codec = before.layout.codec is after.layout.codec
    same_fields = old.watch.transform.drop_fields == new.watch.transform.drop_fields
    dropping = _drop_fields(new.watch)
    # What a transform made may have a field again that was dropped before it, and what stood behind an
    # element of a list that was dropped has its place now. Neither is to be dropped a second time.
    once = bool(new.transform) or any(isinstance(step, int) for path in dropping for step in path.steps)
    return Remaking(
        after.layout,
        drop_fields=() if once else dropping,
        alike=before.layout if same_codec and same_fields else None,
    )


def _drop_fields(watch: WatchKey) -> Sequence[FieldPath]:
    """The fields that have to be dropped: what the server doesn't send need not be looked for."""
    paths = [FieldPath.parse(path) for path in watch.transform.drop_fields]
    if watch.cache is CacheMode.METADATA_ONLY:
        return [path for path in paths if path.steps[0] == "metadata"]
    return paths
