"""The identity of a cache: which watch it serves, what decodes its objects, and how they are kept.

Pure: `plan` asks here what a manifest would cost, and the caches ask here what may live on under a new plan,
and what has to be listed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from declctl.decoding.decoders import Transform
from declctl.decoding.projection import MetadataCodec, Projection, RecordRemaker
from declctl.manifest.model import CacheMode
from declctl.manifest.plan import TransformId, WatchKey
from declctl.objects import Codec, FieldPath, FrameCodec, ObjectCodec

_WHOLE = (CacheMode.FRAMES, CacheMode.OBJECTS)  # what is asked of the server is the same


@dataclass(frozen=True, slots=True)
class CacheIdentity:
    """What has to stay equal for a cache to go on as it is: what is asked, and what is done to the answer.

    `transform` is a digest of the user's transforms, empty if there are none.
    """

    watch: WatchKey
    transform: str = ""

    @property
    def group_kind(self) -> tuple[str, str]:
        """What its objects are, in whichever version they are read: the same there are the same objects."""
        return self.watch.api_version.rpartition("/")[0], self.watch.kind


def can_convert(old: CacheIdentity, new: CacheIdentity) -> bool:
    """Whether what a cache holds is all that another one would hold, so that nothing need be listed.

    So it is if objects are only kept another way, decoded or as frames, or more fields are dropped from
    them. Where there is a transform, or a path counts the elements of a list, it is not known what dropping
    more would leave.
    """
    before, after = old.watch, new.watch
    if _asked(old) != _asked(new) or (before.cache is not after.cache and not _both_whole(before, after)):
        return False
    dropped, dropping = before.transform.drop_fields, after.transform.drop_fields
    if dropped == dropping:
        return True
    if new.transform or after.transform.entry_point is not None:
        return False
    lost, left = [FieldPath.parse(path) for path in dropping], [FieldPath.parse(path) for path in dropped]
    counted = any(isinstance(step, int) for path in (*lost, *left) for step in path.steps)
    return not counted and all(any(_lies_in(path, other) for other in lost) for path in left)


def match_caches(
    living: Iterable[CacheIdentity], wanted: Collection[CacheIdentity]
) -> Mapping[CacheIdentity, CacheIdentity | None]:
    """For each cache that is wanted, the living one that it is or becomes; None if it has to be listed.

    One that is wanted as it is becomes no other.
    """
    there = list(dict.fromkeys(living))
    free = [identity for identity in there if identity not in wanted]
    found: dict[CacheIdentity, CacheIdentity | None] = {}
    for identity in wanted:
        if identity in there:
            found[identity] = identity
            continue
        found[identity] = next((each for each in free if can_convert(each, identity)), None)
        free = [each for each in free if each != found[identity]]
    return found


def _asked(identity: CacheIdentity) -> CacheIdentity:
    """The identity without what may change under a cache that lives on."""
    watch = identity.watch
    code = TransformId((), watch.transform.entry_point)
    return replace(identity, watch=replace(watch, transform=code, cache=CacheMode.FRAMES))


def _both_whole(one: WatchKey, other: WatchKey) -> bool:
    return one.cache in _WHOLE and other.cache in _WHOLE


def _lies_in(path: FieldPath, other: FieldPath) -> bool:
    return path.steps[: len(other.steps)] == other.steps


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


def record_remaker(
    old: CacheIdentity, new: CacheIdentity, *, before: Projection, after: Projection
) -> RecordRemaker:
    """Makes records as `after` decodes them for `new` out of those that `before` decoded for `old`."""
    same_codec = before.layout.codec is after.layout.codec
    same_fields = old.watch.transform.drop_fields == new.watch.transform.drop_fields
    dropping = _drop_fields(new.watch)
    # What a transform made may have a field again that was dropped before it, and what stood behind an
    # element of a list that was dropped has its place now. Neither is to be dropped a second time.
    once = bool(new.transform) or any(isinstance(step, int) for path in dropping for step in path.steps)
    return RecordRemaker(
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
