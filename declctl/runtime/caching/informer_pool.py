"""The pool: one informer for each distinct watch, shared by all that want it, and outliving generations.

A plan's watches become sources (of the transport), projections (of the objects) and informers here. A watch
that a new generation still wants goes on untouched; an unwanted one lingers, then closes. Records that are to
be kept another way are made anew in slices, while the cache goes on.

`MutationDetection` finds code that changes what all readers share (`mode: Objects`): it looks at a part of
the objects each second, so that it costs next to nothing; with KUBE_CACHE_MUTATION_DETECTOR=true (client-go's
variable), and in tests, at all of them.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, KeysView, Sequence
from dataclasses import dataclass, field

from declctl.decoding.projection import Projection
from declctl.errors import CacheError, ReloadRefused
from declctl.informer.applier import Reprojection
from declctl.informer.informer import InformerStatistics
from declctl.informer.source import SourceProvider
from declctl.informer.stores.indices import FieldIndex
from declctl.informer.stores.lister import Lister
from declctl.kit import Clock
from declctl.objects import FieldPath
from declctl.objects.differences import Mutation
from declctl.runtime.caching.identities import CacheIdentity, codec_of, matched, projection_of, remaking
from declctl.runtime.caching.managed_informer import (
    ManagedInformer,
    RequestCounter,
    RequestCounts,
    ResourceIndex,
    ResourceRequirement,
    StagedIndexBuild,
    ask,
    detector_of,
    make_informer,
    paths_of,
)
from declctl.runtime.log import Log

_REPROJECTED_AT_ONCE = 100  # records before the loop may do something else: 2 ms, or 5 with fields to drop
_INDEXED_AT_ONCE = 500  # objects that the build of an index by field looks at in one slice
# Of the mutation detector.
_EVERY = 1.0  # seconds, as in client-go
_PART = 100  # objects of a cache that are looked at each time: some 3 ms
_CHECKED_AT_ONCE = 20  # objects until the loop may do something else
_KEPT = 100  # of the newest changes


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
    """The mean of the watches' ratios, weighted by the number of objects."""
    known = [part for part in parts if part.projection.frames.ratio]
    objects = sum(part.objects for part in known)
    if not objects:
        return known[0].projection.frames.ratio if known else 0.0
    return sum(part.projection.frames.ratio * part.objects for part in known) / objects


async def become(
    cached: ManagedInformer, identity: CacheIdentity, users: Sequence[ResourceRequirement]
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
    # The usual case, decided without making a decoder.
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
        # Also where it was cancelled: records of two layouts in one cache would stay that way for ever.
        if not reprojection.is_over:
            cached.informer.take_over(_begun(cached, cached.identity, before))
        raise


def _begun(cached: ManagedInformer, identity: CacheIdentity, after: Projection) -> Reprojection:
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


@dataclass(eq=False)
class _Conversion:
    """What a cache becomes at the commit; `reprojection` holds its records as they will be."""

    identity: CacheIdentity
    reprojection: Reprojection | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Staged:
    """The generation that is being staged, by what it wants: no other one can touch what is made for it.

    `fresh` caches are its own, `turns` are what others become, and `indexes` are those by functions that
    others lack. All of that is done at its commit.
    """

    wanted: frozenset[ResourceRequirement] = frozenset()
    fresh: Sequence[ManagedInformer] = ()
    turns: dict[ManagedInformer, _Conversion] = field(default_factory=dict[ManagedInformer, _Conversion])
    indexes: dict[tuple[ManagedInformer, str], StagedIndexBuild] = field(
        default_factory=dict[tuple[ManagedInformer, str], StagedIndexBuild]
    )


class InformerPool:
    """All informers of the process. Used on the machinery loop only; one generation is staged at a time.

    It is staged from `prepare` until `reproject`, at its commit, or until it is released. Others may be
    released meanwhile, which takes nothing from it.
    """

    def __init__(self, cluster: SourceProvider, *, tasks: asyncio.TaskGroup, clock: Clock, log: Log) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._clock = clock
        self._log = log
        # Every informer that exists, also one that lingers, by what it holds now.
        self._cached: dict[CacheIdentity, ManagedInformer] = {}
        # The informers of each requirement, of every generation that is alive, the oldest first.
        self._used: dict[ResourceRequirement, tuple[ManagedInformer, ...]] = {}
        self._staged = _Staged()  # empty while no generation is staged
        self._requests = RequestCounter()  # since the last `prepare`

    def prepare(self, wanted: Iterable[ResourceRequirement]) -> list[ManagedInformer]:
        """Make the informers that are missing, each counted once.

        One that can become what is wanted does so at the commit (`reproject`), after `build_indexes`;
        one that has lost objects while it lingered is made anew. Returns those that are new, not started yet.
        """
        for cached in self.all():
            # Its transform failed after its code was freed: the objects it lost would be missing for ever.
            if cached.is_spoiled:
                self._close(cached)
        self._requests = RequestCounter(cached.informer for cached in self.all())
        wanted = tuple(wanted)
        by_identity = _by_identity(wanted)
        found = matched(self._cached, by_identity.keys())
        beside = bool(self._used)  # a generation runs, which this one is staged beside
        made = {  # this may raise, and nothing has been counted then
            identity: make_informer(
                self._cluster, identity, by_identity[identity], clock=self._clock, staged=beside
            )
            for identity, living in found.items()
            if living is None
        }
        staged = self._staged = _Staged(frozenset(wanted), tuple(made.values()))
        serving: dict[CacheIdentity, ManagedInformer] = {}
        for identity, living in found.items():
            cached = serving[identity] = made[identity] if living is None else self._cached[living]
            if living is not None and living != identity:
                # The generation that runs reads it as it is: it is converted at the commit.
                staged.turns[cached] = _Conversion(identity)
            cached.users += 1
            if cached.closing is not None:
                cached.closing.cancel()  # it lingered, and is wanted again
                cached.closing = None
        self._cached.update(made)
        for resource in wanted:
            self._used[resource] = tuple(serving[identity] for identity in resource.identities)
        return [*made.values()]

    def start(self, fresh: Iterable[ManagedInformer]) -> None:
        """Let new informers list and watch."""
        for cached in fresh:
            if cached.task is None:
                cached.started_at = self._clock.monotonic()
                name = f"informer {cached.identity.watch}"
                cached.task = self._tasks.create_task(cached.informer.run(), name=name)

    async def build_indexes(self, wanted: Iterable[ResourceRequirement], *, timeout: float) -> int:
        """Build what existing informers lack, in slices; returns how many indexes were built.

        Before that, records are made anew where they have to become others, or lack the fields that are
        indexed. Functions are asked in threads, for `timeout` seconds at most; their indexes are read from
        the commit on, and kept current until then by whoever asks the `staged_indexes`. Raises ReloadRefused
        if one of that can't be done, and no cache has changed then.
        """
        built, wanted = 0, tuple(wanted)
        for cached in self._of_all(wanted):
            turn = self._staged.turns.get(cached)
            if turn is None:
                await widen(cached, self._users(cached))
            else:
                turn.reprojection = await become(cached, turn.identity, self._users(cached))
        for resource in wanted:
            for cached in self.of(resource):
                for index in resource.indexes:
                    built += await self._build_index(cached, index, resource)
        await ask(self.staged_indexes, timeout=timeout)
        return built

    @property
    def staged_indexes(self) -> Sequence[StagedIndexBuild]:
        """The indexes by functions that are read from the commit on, where they have to be complete."""
        return tuple(self._staged.indexes.values())

    async def _build_index(
        self, cached: ManagedInformer, index: ResourceIndex, resource: ResourceRequirement
    ) -> bool:
        """Build one index by field, or begin one by a function; False if it is there."""
        staged = self._staged.indexes
        if index.internal in cached.informer.indexer.get_indexers() or (cached, index.internal) in staged:
            return False
        # A function is foreign code that has never run here: a thread asks it, beside the loop.
        if not isinstance(index.function, FieldIndex):
            staged[cached, index.internal] = StagedIndexBuild(cached, index, resource=resource.plan.name)
            return True
        build = cached.informer.build_index(index.internal, index.function)
        while not build.step(_INDEXED_AT_ONCE):
            await asyncio.sleep(0)
        return True

    def reproject(self, wanted: Iterable[ResourceRequirement]) -> None:
        """Let caches become what the staged generation wants of them: at its commit, and it can't fail.

        The records that were made for it take their places in the next slices. Nothing happens if what
        is staged is not this one.
        """
        if not self._is_staged(tuple(wanted)):
            return
        staged, self._staged = self._staged, _Staged()
        # Indexes first: handlers of the new generation read them from this moment on.
        for index in staged.indexes.values():
            index.publish()
        for cached in staged.fresh:
            cached.commit(self._users(cached))
        for cached, turn in staged.turns.items():
            if turn.reprojection is None:
                continue
            del self._cached[cached.identity]
            cached.identity = turn.identity
            self._cached[cached.identity] = cached
            codec = turn.reprojection.projection.layout.codec
            if codec is not cached.codec:
                cached.codec, cached.mutations = codec, detector_of(codec, after=cached.mutations)
            cached.informer.take_over(turn.reprojection)

    def release(self, wanted: Iterable[ResourceRequirement], *, linger: float) -> None:
        """A generation that wanted these is gone, or was never committed: then no cache becomes another.

        What nobody else wants closes after `linger` seconds. What the one before left lingering, or would
        have if one that was never committed had not come, does so for the time that it had.
        """
        wanted = tuple(wanted)
        was_staged, released = self._is_staged(wanted), self._of_all(wanted)
        if was_staged:
            self._staged = _Staged()
        for resource in wanted:
            self._used.pop(resource, None)
        until = asyncio.get_running_loop().time() + linger
        for cached in released:
            cached.users -= 1
            # A generation that was never committed takes nothing from the time that the one before left.
            if not was_staged:
                cached.lingers_until = until
            if cached.users:
                # The code of the generation that goes is freed: functions of those that stay take over.
                cached.call_those_of(self._users(cached))
            else:
                cached.failed_before = cached.failed
                self._close_at(max(until, cached.lingers_until), cached)

    def drop_indexes(
        self, wanted: Iterable[ResourceRequirement], kept: Iterable[ResourceRequirement]
    ) -> None:
        """Remove the indexes of a generation that is gone, except those that others still read.

        Those are `kept`, and the one that is being staged: it counts on what it found there.
        """
        gone = frozenset(wanted)
        keep = {
            (cached, index.internal)
            for other in (*kept, *(self._staged.wanted - gone))
            for cached in self.of(other)
            for index in other.indexes
        }
        for resource in gone:
            for cached in self.of(resource):
                names = [i.internal for i in resource.indexes if (cached, i.internal) not in keep]
                if names:
                    cached.informer.remove_indexers(names)

    def of(self, wanted: ResourceRequirement) -> Sequence[ManagedInformer]:
        """The informers of a resource; none before it was prepared, and after it was released."""
        return self._used.get(wanted, ())

    def lister(self, wanted: ResourceRequirement) -> Lister:
        """The view of a resource over all its informers, with the index names of that generation."""
        names = {index.name: index.internal for index in wanted.indexes}
        informers = [cached.informer for cached in self.of(wanted)]
        return Lister(
            [informer.indexer for informer in informers],
            index_names=names,
            name=wanted.plan.name,
            filled_by=informers,
        )

    def asked(self) -> RequestCounts:
        """What was asked of the server since `prepare`, and what of it was not planned then."""
        return self._requests.until_now(cached.informer for cached in self.all())

    def all(self) -> Sequence[ManagedInformer]:
        """Every informer that exists, lingering ones too."""
        return tuple(self._cached.values())

    async def close(self) -> None:
        """Stop every informer."""
        for cached in self.all():
            self._close(cached)
        await asyncio.sleep(0)

    def _is_staged(self, wanted: Sequence[ResourceRequirement]) -> bool:
        return not self._staged.wanted.isdisjoint(wanted)

    def _of_all(self, wanted: Iterable[ResourceRequirement]) -> Sequence[ManagedInformer]:
        """The informers of some resources, each once."""
        return tuple(dict.fromkeys(cached for resource in wanted for cached in self.of(resource)))

    def _users(self, cached: ManagedInformer) -> Sequence[ResourceRequirement]:
        """Who uses a cache: of every generation that is alive, the oldest first."""
        return [wanted for wanted, used in self._used.items() if cached in used]

    def _close_at(self, time: float, cached: ManagedInformer) -> None:
        loop = asyncio.get_running_loop()
        if time > loop.time():
            cached.closing = loop.call_at(time, self._close, cached)
        else:
            self._close(cached)

    def _close(self, cached: ManagedInformer) -> None:
        del self._cached[cached.identity]
        if cached.closing is not None:
            cached.closing.cancel()
        if cached.task is not None:
            cached.task.cancel()


def _by_identity(wanted: Iterable[ResourceRequirement]) -> dict[CacheIdentity, list[ResourceRequirement]]:
    users: dict[CacheIdentity, list[ResourceRequirement]] = {}
    for resource in wanted:
        for identity in resource.identities:
            users.setdefault(identity, []).append(resource)
    return users


class MutationChecks:
    """The detectors of all caches, run on the machinery loop. `thorough` looks at every object each time."""

    def __init__(self, caches: InformerPool, *, clock: Clock, thorough: bool) -> None:
        self._caches = caches
        self._clock = clock
        self._thorough = thorough
        self._found: deque[Mutation] = deque(maxlen=_KEPT)  # the newest, the oldest first

    @property
    def found(self) -> Sequence[Mutation]:
        """The newest changes that were found and put right."""
        return tuple(self._found)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._clock.sleep(_EVERY)
            await self.look()

    async def look(self) -> None:
        """Look at a part of each cache, or at all of it."""
        for cached in self._caches.all():
            detector, left = cached.mutations, _PART
            while detector is not None and left > 0:
                self._found.extend(detector.look(_CHECKED_AT_ONCE))
                if detector.at_end_of_round:
                    break
                if not self._thorough:
                    left -= _CHECKED_AT_ONCE
                await asyncio.sleep(0)  # events go first
