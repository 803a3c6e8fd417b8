"""The records of a living cache made anew, in slices, while it goes on: nobody is asked, nobody is told.

Either for what it becomes when a generation is committed, or for a field that an index is to read.
"""

import asyncio
from collections.abc import KeysView, Sequence

from declctl.decoding import Projection
from declctl.errors import CacheError, ReloadRefused
from declctl.informer import Reprojection
from declctl.objects import FieldPath
from declctl.runtime.caching.identities import Identity, codec_of, projection_of, remaking
from declctl.runtime.caching.managed_informer import ManagedInformer, ResourceRequirement, paths_of

_REPROJECTED_AT_ONCE = 100  # records before the loop may do something else: 2 ms, or 5 with fields to drop


async def become(
    cached: ManagedInformer, identity: Identity, users: Sequence[ResourceRequirement]
) -> Reprojection:
    """The records as a cache of that identity would hold them, made aside: nothing has changed yet.

    It has at hand what indexes of its `users` read. Raises ReloadRefused if a record can't be made.
    """
    same_codec = identity.watch.cache is cached.identity.watch.cache
    after = projection_of(
        identity.watch,
        paths=paths_of(users),
        transform=cached.transform,
        codec=cached.codec if same_codec else codec_of(identity.watch),
    )
    reprojection = _begun(cached, identity, after)
    await _completed(cached, reprojection)
    return reprojection


async def widen(cached: ManagedInformer, users: Sequence[ResourceRequirement]) -> None:
    """Let a cache have at hand what indexes of its users read; for everybody else it stays as it was.

    So it need not wait for a commit: each record takes its place as soon as it is made. Raises
    ReloadRefused if one can't be made. Where it comes to nothing, those that were made become in the next
    slices what they were.
    """
    before = cached.informer.source.projection
    paths = paths_of(users)
    if paths <= _at_hand(before):
        return
    after = projection_of(cached.identity.watch, paths=paths, transform=cached.transform, codec=cached.codec)
    if _at_hand(after) <= _at_hand(before):
        return  # the others stand in every record, or can't be had without decoding
    reprojection = _begun(cached, cached.identity, after)
    cached.informer.take_over_first(reprojection)
    try:
        await _completed(cached, reprojection)
    except BaseException:
        if not reprojection.is_over:
            cached.informer.take_over(_begun(cached, cached.identity, before))
        raise


def _begun(cached: ManagedInformer, identity: Identity, after: Projection) -> Reprojection:
    remake = remaking(cached.identity, identity, before=cached.informer.source.projection, after=after)
    return cached.informer.begin_reprojection(after, remake)


async def _completed(cached: ManagedInformer, reprojection: Reprojection) -> None:
    try:
        while not reprojection.step(_REPROJECTED_AT_ONCE):
            await asyncio.sleep(0)
    except CacheError as fault:
        raise ReloadRefused("ReprojectFailed", f"{cached.identity.watch}: {fault}") from fault


def _at_hand(projection: Projection) -> KeysView[FieldPath]:
    return projection.layout.positions.keys()
