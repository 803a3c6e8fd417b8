"""The caches: one informer for each distinct watch, shared by whoever uses it, and outliving generations.

This is where a plan's watches become sources (of the transport), projections (of the objects) and
informers (of the line). A watch that a new generation still wants goes on untouched; one that
nobody wants any longer lingers, then closes.
"""

import asyncio
from collections.abc import Iterable, KeysView, Sequence
from dataclasses import dataclass

from declctl.errors import CacheError, ReloadRefused
from declctl.informer import (
    FieldIndex,
    IndexFunc,
    Lister,
    ReflectorOptions,
    Reprojection,
    SharedIndexInformer,
    SourceProvider,
)
from declctl.kit import Clock
from declctl.manifest.model import CacheMode
from declctl.manifest.plan import ResourcePlan
from declctl.objects import (
    Codec,
    FieldPath,
    GroupVersionKind,
    MutationDetector,
    ObjectCodec,
    Projection,
    Transform,
)
from declctl.runtime.asking import Asked, Asking
from declctl.runtime.identities import Identity, matched
from declctl.runtime.log import Log
from declctl.runtime.projections import codec_of, projection_of, remaking

__all__ = ["Cached", "Caches", "Identity", "Index", "Wanted"]
_SLICE = 500  # objects that an index build may decode before the loop breathes
_REMADE = 100  # records that are made anew before the loop breathes: some 2 ms, or 5 with fields to drop


@dataclass(frozen=True, slots=True)
class Index:
    """An index of a resource: the name that listers know, and the one it has in the store.

    The second contains a digest of the definition, so that two generations may define one name
    differently.
    """

    name: str
    internal: str
    function: IndexFunc


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """What a generation wants of one resource. Two generations want the same in two of them."""

    plan: ResourcePlan
    identities: tuple[Identity, ...]
    indexes: tuple[Index, ...]
    transform: Transform | None


@dataclass(eq=False)
class Cached:
    """One informer, its task, and who uses it. `mutations` looks at objects that its readers share."""

    identity: Identity
    informer: SharedIndexInformer
    codec: Codec
    mutations: MutationDetector | None = None
    task: asyncio.Task[None] | None = None
    users: int = 0
    closing: asyncio.TimerHandle | None = None
    started_at: float = 0.0


@dataclass(eq=False)
class Turn:
    """What a cache becomes at the commit; `reprojection` holds its records as they will be."""

    identity: Identity
    reprojection: Reprojection | None = None


class Caches:
    """All informers of the process. Used on the machinery loop only; one generation is staged at a time."""

    def __init__(self, cluster: SourceProvider, *, tasks: asyncio.TaskGroup, clock: Clock, log: Log) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._clock = clock
        self._log = log
        self._cached: dict[Identity, Cached] = {}
        self._used: dict[Wanted, tuple[Cached, ...]] = {}
        self._turns: dict[Cached, Turn] = {}  # of the generation that is being staged
        self._asking = Asking()

    def prepare(self, wanted: Iterable[Wanted]) -> list[Cached]:
        """Make the informers that are missing, each counted once.

        One that can become what is wanted does so at the commit (`reproject`), after `build_indexes`.
        Returns those that are new, not started yet.
        """
        self._asking = Asking.begin(cached.informer for cached in self.all())
        wanted, fresh = tuple(wanted), list[Cached]()
        by_identity = _by_identity(wanted)
        serving: dict[Identity, Cached] = {}
        for identity, living in matched(self._cached, by_identity.keys()).items():
            if living is None:
                cached = self._cached[identity] = self._make(identity, by_identity[identity])
                fresh.append(cached)
            else:
                cached = self._cached[living]
                if living != identity:
                    self._turns[cached] = Turn(identity)
            serving[identity] = cached
            self._use(cached)
        for resource in wanted:
            self._used[resource] = tuple(serving[identity] for identity in resource.identities)
        return fresh

    def start(self, fresh: Iterable[Cached]) -> None:
        """Let new informers list and watch."""
        for cached in fresh:
            if cached.task is None:
                cached.started_at = self._clock.monotonic()
                name = f"informer {cached.identity.watch}"
                cached.task = self._tasks.create_task(cached.informer.run(), name=name)

    async def build_indexes(self, wanted: Iterable[Wanted]) -> int:
        """Build what existing informers lack, in slices; returns how many indexes were built.

        Before that, records are made anew where they have to become others, or lack the fields that are
        indexed; raises ReloadRefused if that can't be done, and no cache has changed then.
        """
        built, wanted = 0, tuple(wanted)
        await self._make_records(wanted)
        for resource in wanted:
            for cached in self.of(resource):
                informer = cached.informer
                for index in resource.indexes:
                    if index.internal in informer.indexer.get_indexers():
                        continue
                    build = informer.build_index(index.internal, index.function)
                    while not build.step(_SLICE):
                        await asyncio.sleep(0)
                    built += 1
        return built

    def reproject(self, wanted: Iterable[Wanted]) -> None:
        """Let caches become what the staged generation wants of them: at its commit, and it can't fail.

        The records that were made for it take their places in the next slices.
        """
        for cached in dict.fromkeys(cached for resource in wanted for cached in self.of(resource)):
            turn = self._turns.pop(cached, None)
            if turn is None or turn.reprojection is None:
                continue
            del self._cached[cached.identity]
            cached.identity = turn.identity
            self._cached[cached.identity] = cached
            codec = turn.reprojection.projection.layout.codec
            if codec is not cached.codec:
                cached.codec, cached.mutations = codec, _detector(codec, after=cached.mutations)
            cached.informer.take_over(turn.reprojection)

    def release(self, wanted: Iterable[Wanted], *, linger: float) -> None:
        """A generation that wanted these is gone, or was never committed: then no cache becomes another.

        What nobody else wants closes after `linger` seconds.
        """
        wanted = tuple(wanted)
        given_up = _by_identity(wanted).keys()
        self._turns = {cached: turn for cached, turn in self._turns.items() if turn.identity not in given_up}
        released = [cached for resource in wanted for cached in self._used.pop(resource, ())]
        for cached in dict.fromkeys(released):
            cached.users -= 1
            if not cached.users:
                loop = asyncio.get_running_loop()
                cached.closing = loop.call_later(linger, self._close, cached)

    def drop_indexes(self, wanted: Iterable[Wanted], kept: Iterable[Wanted]) -> None:
        """Remove the indexes of a generation that is gone, except those that `kept` still reads."""
        keep = {(cached, index.internal) for w in kept for cached in self.of(w) for index in w.indexes}
        for resource in wanted:
            for cached in self.of(resource):
                names = [i.internal for i in resource.indexes if (cached, i.internal) not in keep]
                if names:
                    cached.informer.remove_indexers(names)

    def of(self, wanted: Wanted) -> Sequence[Cached]:
        """The informers of a resource; none before it was prepared, and after it was released."""
        return self._used.get(wanted, ())

    def lister(self, wanted: Wanted) -> Lister:
        """The view of a resource over all its informers, with the index names of that generation."""
        names = {index.name: index.internal for index in wanted.indexes}
        return Lister([cached.informer.indexer for cached in self.of(wanted)], index_names=names)

    def asked(self) -> Asked:
        """What was asked of the server since `prepare`, and what of it was not planned then."""
        return self._asking.until_now(cached.informer for cached in self.all())

    def all(self) -> Sequence[Cached]:
        """Every informer that exists, lingering ones too."""
        return tuple(self._cached.values())

    async def close(self) -> None:
        """Stop every informer."""
        for cached in self.all():
            self._close(cached)
        await asyncio.sleep(0)

    def _use(self, cached: Cached) -> None:
        cached.users += 1
        if cached.closing is not None:
            cached.closing.cancel()
            cached.closing = None

    def _close(self, cached: Cached) -> None:
        del self._cached[cached.identity]
        if cached.closing is not None:
            cached.closing.cancel()
        if cached.task is not None:
            cached.task.cancel()

    async def _make_records(self, wanted: Sequence[Wanted]) -> None:
        for cached in dict.fromkeys(cached for resource in wanted for cached in self.of(resource)):
            turn = self._turns.get(cached)
            if turn is not None:
                turn.reprojection = await self._remade(cached, turn.identity, self._becoming(cached, turn))
            elif not self._paths(cached) <= _at_hand(cached.informer.source.projection):
                await self._widen(cached)

    async def _widen(self, cached: Cached) -> None:
        """Let a cache have more fields at hand: it is the same for everybody, so that it need not wait."""
        before = cached.informer.source.projection
        after = projection_of(
            cached.identity.watch,
            paths=self._paths(cached),
            transform=_transform(self._users(cached)),
            codec=cached.codec,
        )
        if _at_hand(after) <= _at_hand(before):
            return  # the others stand in every record, or can't be had without decoding
        reprojection = await self._remade(cached, cached.identity, after)
        cached.informer.take_over(reprojection)
        while not (reprojection.is_over or cached.informer.is_stopped):
            await asyncio.sleep(0)

    async def _remade(self, cached: Cached, identity: Identity, after: Projection) -> Reprojection:
        remake = remaking(cached.identity, identity, before=cached.informer.source.projection, after=after)
        reprojection = cached.informer.begin_reprojection(after, remake)
        try:
            while not reprojection.step(_REMADE):
                await asyncio.sleep(0)
        except CacheError as fault:
            raise ReloadRefused("ReprojectFailed", f"{cached.identity.watch}: {fault}") from fault
        return reprojection

    def _becoming(self, cached: Cached, turn: Turn) -> Projection:
        """What decodes once a cache has become another; the transform is that of the new generation."""
        same_codec = turn.identity.watch.cache is cached.identity.watch.cache
        return projection_of(
            turn.identity.watch,
            paths=self._paths(cached),
            transform=_transform(self._users(cached)[::-1]),
            codec=cached.codec if same_codec else codec_of(turn.identity.watch),
        )

    def _users(self, cached: Cached) -> Sequence[Wanted]:
        """Who uses a cache: of every generation that is alive, the oldest first."""
        return [wanted for wanted, used in self._used.items() if cached in used]

    def _paths(self, cached: Cached) -> frozenset[FieldPath]:
        return _paths(self._users(cached))

    def _make(self, identity: Identity, users: Sequence[Wanted]) -> Cached:
        watch, codec = identity.watch, codec_of(identity.watch)
        source = self._cluster.source(
            GroupVersionKind.of(watch.api_version, watch.kind),
            namespace=watch.namespace,
            label_selector=watch.label_selector,
            field_selector=watch.field_selector,
            metadata_only=watch.cache is CacheMode.METADATA_ONLY,
            projection=projection_of(watch, paths=_paths(users), transform=_transform(users), codec=codec),
        )
        informer = SharedIndexInformer(
            source,
            name=str(watch),
            clock=self._clock,
            options=ReflectorOptions(idle_timeout=min(user.plan.idle_timeout for user in users)),
            indexers={index.internal: index.function for user in users for index in user.indexes},
        )
        return Cached(identity, informer, codec, _detector(codec))


def _by_identity(wanted: Iterable[Wanted]) -> dict[Identity, list[Wanted]]:
    users: dict[Identity, list[Wanted]] = {}
    for resource in wanted:
        for identity in resource.identities:
            users.setdefault(identity, []).append(resource)
    return users


def _transform(users: Iterable[Wanted]) -> Transform | None:
    return next((user.transform for user in users if user.transform is not None), None)


def _detector(codec: Codec, *, after: MutationDetector | None = None) -> MutationDetector | None:
    """What looks at objects that readers share; it counts on where another one has stopped."""
    if not isinstance(codec, ObjectCodec):
        return None
    detector = MutationDetector(codec)
    if after is not None:
        detector.count, detector.last = after.count, after.last
    return detector


def _at_hand(projection: Projection) -> KeysView[FieldPath]:
    return projection.layout.positions.keys()


def _paths(users: Iterable[Wanted]) -> frozenset[FieldPath]:
    return frozenset(
        index.function.path
        for user in users
        for index in user.indexes
        if isinstance(index.function, FieldIndex)
    )
