"""Which cache serves which watch: what may live on under a new plan, and what has to be listed.

Pure: `plan` asks here what a manifest would cost, and the caches ask here what they shall do.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from declctl.manifest.model import CacheMode
from declctl.manifest.plan import TransformId, WatchKey
from declctl.objects import FieldPath

_WHOLE = (CacheMode.FRAMES, CacheMode.OBJECTS)  # what is asked of the server is the same


@dataclass(frozen=True, slots=True)
class Identity:
    """What has to stay equal for a cache to go on as it is: what is asked, and what is done to the answer.

    `transform` is a digest of the user's transforms, empty if there are none.
    """

    watch: WatchKey
    transform: str = ""

    @property
    def group_kind(self) -> tuple[str, str]:
        """What its objects are, in whichever version they are read: the same there are the same objects."""
        return self.watch.api_version.rpartition("/")[0], self.watch.kind


def can_become(old: Identity, new: Identity) -> bool:
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


def matched(living: Iterable[Identity], wanted: Collection[Identity]) -> Mapping[Identity, Identity | None]:
    """For each cache that is wanted, the living one that it is or becomes; None if it has to be listed.

    One that is wanted as it is becomes no other.
    """
    there = list(dict.fromkeys(living))
    free = [identity for identity in there if identity not in wanted]
    found: dict[Identity, Identity | None] = {}
    for identity in wanted:
        if identity in there:
            found[identity] = identity
            continue
        found[identity] = next((each for each in free if can_become(each, identity)), None)
        free = [each for each in free if each != found[identity]]
    return found


def _asked(identity: Identity) -> Identity:
    """The identity without what may change under a cache that lives on."""
    watch = identity.watch
    code = TransformId((), watch.transform.entry_point)
    return replace(identity, watch=replace(watch, transform=code, cache=CacheMode.FRAMES))


def _both_whole(one: WatchKey, other: WatchKey) -> bool:
    return one.cache in _WHOLE and other.cache in _WHOLE


def _lies_in(path: FieldPath, other: FieldPath) -> bool:
    return path.steps[: len(other.steps)] == other.steps
