"""The identity of a cache: its watch, the decoder of its objects, and the form in which they are kept.

Pure. The pool decides here which caches go on under a new plan, and which have to be listed. `declctl plan`
decides the same without a pool.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from declctl.decoding.decoders import Transform
from declctl.decoding.projection import MetadataCodec, Projection, RecordRemaker
from declctl.manifest.model import CacheMode
from declctl.manifest.plan import TransformId, WatchKey
from declctl.objects import Codec, FieldPath, FrameCodec, ObjectCodec

_WHOLE = (CacheMode.FRAMES, CacheMode.OBJECTS)  # both send the same requests to the server


@dataclass(frozen=True, slots=True)
class CacheIdentity:
    """The requests of a cache and the processing of the responses: with an equal identity it goes on."""

    watch: WatchKey
    transform: str = ""  # a digest of the user's transforms; empty if there are none

    @property
    def group_kind(self) -> tuple[str, str]:
        """The group and kind of its objects, which are the same in every version."""
        return self.watch.api_version.rpartition("/")[0], self.watch.kind


def can_reproject(old: CacheIdentity, new: CacheIdentity) -> bool:
    """Whether the cache of `old` can become that of `new` without a LIST: the content is in it already.

    True if only the form of the objects changes (decoded or frames), or if more fields are dropped. False
    if more fields are dropped and there is a transform, or a path has the number of a list element: then the
    result of dropping more is not known.
    """
    before, after = old.watch, new.watch
    if _without_form(old) != _without_form(new):
        return False
    if before.cache is not after.cache and not (before.cache in _WHOLE and after.cache in _WHOLE):
        return False
    dropped, dropping = before.transform.drop_fields, after.transform.drop_fields
    if dropped == dropping:
        return True
    if new.transform or after.transform.entry_point is not None:
        return False
    was_dropped = [FieldPath.parse(path).steps for path in dropped]
    will_drop = [FieldPath.parse(path).steps for path in dropping]
    if any(isinstance(step, int) for steps in (*was_dropped, *will_drop) for step in steps):
        return False
    # A field that was dropped is not in the cache, so the new cache has to drop it too, or a parent of it.
    return all(any(gone[: len(drop)] == drop for drop in will_drop) for gone in was_dropped)


def match_caches(
    existing: Iterable[CacheIdentity], required: Collection[CacheIdentity]
) -> Mapping[CacheIdentity, CacheIdentity | None]:
    """For each required cache, the existing one that serves it or can be reprojected; None: has to be listed.

    An existing cache that is required as it is, is not reprojected.
    """
    there = list(dict.fromkeys(existing))
    free = [identity for identity in there if identity not in required]
    found: dict[CacheIdentity, CacheIdentity | None] = {}
    for identity in required:
        if identity in there:
            found[identity] = identity
            continue
        found[identity] = next((each for each in free if can_reproject(each, identity)), None)
        free = [each for each in free if each != found[identity]]
    return found


def _without_form(identity: CacheIdentity) -> CacheIdentity:
    """The identity without the cache mode and the dropped fields, which a reprojection changes."""
    watch = identity.watch
    code = TransformId((), watch.transform.entry_point)
    return replace(identity, watch=replace(watch, transform=code, cache=CacheMode.FRAMES))


def codec_of(watch: WatchKey) -> Codec:
    """The codec for the objects of a watch: its cache mode decides."""
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
    """The decoder of a watch. Its records contain the values at `paths`."""
    return Projection(
        api_version=watch.api_version,
        kind=watch.kind,
        metadata_only=watch.cache is CacheMode.METADATA_ONLY,
        paths=sorted(paths, key=str),
        drop_fields=_drop_fields(watch),
        transform=transform,
        codec=codec,
    )


def record_remaker(
    old: CacheIdentity, new: CacheIdentity, *, before: Projection, after: Projection
) -> RecordRemaker:
    """Makes the records of `new` (decoded by `after`) from those of `old` (decoded by `before`)."""
    same_codec = before.layout.codec is after.layout.codec
    same_fields = old.watch.transform.drop_fields == new.watch.transform.drop_fields
    dropping = _drop_fields(new.watch)
    # A transform may have added a field again that was dropped before it. After a dropped list element, the
    # next element has its number. In both cases a second drop would remove too much.
    once = bool(new.transform) or any(isinstance(step, int) for path in dropping for step in path.steps)
    return RecordRemaker(
        after.layout,
        drop_fields=() if once else dropping,
        alike=before.layout if same_codec and same_fields else None,
    )


def _drop_fields(watch: WatchKey) -> Sequence[FieldPath]:
    """The fields that have to be dropped, without those that the server does not send in this mode."""
    paths = [FieldPath.parse(path) for path in watch.transform.drop_fields]
    if watch.cache is CacheMode.METADATA_ONLY:
        return [path for path in paths if path.steps[0] == "metadata"]
    return paths
