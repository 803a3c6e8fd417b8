"""The informer pool: one informer for each distinct watch, shared by generations and outliving them.

The pool makes a source, a projection and an informer for each watch of a plan. A watch that the next
generation also requires goes on untouched. An informer that no generation requires any more lingers, then
closes. If only the form of the records changes, they are made anew in slices while the cache goes on.

`MutationChecks` finds code that changes the objects which all readers share (`mode: Objects`). It checks a
part of the objects each second, which costs next to nothing. With KUBE_CACHE_MUTATION_DETECTOR=true
(client-go's variable), and in tests, it checks all of them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, KeysView, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from declctl.decoding.projection import Projection
from declctl.errors import CacheError, ReloadRefused
from declctl.informer.applier import Reprojection
from declctl.informer.informer import SharedIndexInformer
from declctl.informer.scope import ShardScope
from declctl.informer.source import SourceProvider
from declctl.informer.stores.indices import FieldIndex
from declctl.informer.stores.lister import Lister
from declctl.kit import Clock, Latch
from declctl.objects import FieldPath, GroupVersionKind, ObjectView, Resource
from declctl.objects.differences import Mutation
from declctl.runtime.caching.held_shards import HeldShards
from declctl.runtime.caching.identities import (
    CacheIdentity,
    codec_of,
    match_caches,
    projection_of,
    record_remaker,
)
from declctl.runtime.caching.managed_informer import (
    ManagedInformer,
    RequestCounter,
    RequestCounts,
    ResourceIndex,
    ResourceRequirement,
    StagedIndexBuild,
    call_for_objects,
    detector_of,
    make_informer,
    paths_of,
)
from declctl.runtime.caching.namespaces import NamespaceSelectors
from declctl.runtime.recorder import Recorder


class KeepsCaches(Protocol):
    """What keeps the objects of caches for the next process."""

    def take(self, cached: ManagedInformer) -> None:
        """Let a new cache begin with the objects that were kept, and keep those that it will have."""
        ...


_REPROJECTED_AT_ONCE = 100  # records per slice of the loop: 2 ms, or 5 ms with fields to drop
_INDEXED_AT_ONCE = 500  # objects per slice of the loop, for an index by field
_CHECK_INTERVAL = 1.0  # seconds between two mutation checks, as in client-go
_CHECKED_EACH_TIME = 100  # objects of a cache per mutation check: some 3 ms
_CHECKED_AT_ONCE = 20  # objects per slice of the loop
_MOST_MUTATIONS = 100  # that are remembered


async def make_reprojection(
    cached: ManagedInformer, identity: CacheIdentity, users: Sequence[ResourceRequirement]
) -> Reprojection:
    """Make the records of a cache anew for another identity, beside the cache: nothing has changed yet.

    The new records contain the fields that the indexes of `users` read. Raises ReloadRefused if a record
    can't be made.
    """
    same_codec = identity.watch.cache is cached.identity.watch.cache
    after = projection_of(
        identity.watch,
        paths=paths_of(users),
        transform=cached.transform,
        codec=cached.codec if same_codec else codec_of(identity.watch),
    )
    reprojection = _begin_reprojection(cached, identity, after)
    await _finish_reprojection(cached, reprojection)
    return reprojection


async def extend_projection(cached: ManagedInformer, users: Sequence[ResourceRequirement]) -> None:
    """Add the fields that the indexes of `users` read to the projection of a cache.

    For all other readers the cache stays the same. So this does not wait for a commit: each new record takes
    its place as soon as it is made. Raises ReloadRefused if a record can't be made; then the records that
    were replaced are changed back in the next slices.
    """
    before = cached.informer.source.projection
    paths = paths_of(users)
    # The usual case, decided without making a decoder.
    if paths <= _projected(before):
        return
    after = projection_of(cached.identity.watch, paths=paths, transform=cached.transform, codec=cached.codec)
    if _projected(after) <= _projected(before):
        return  # the other fields stand in every record, or need a full decode
    reprojection = _begin_reprojection(cached, cached.identity, after)
    cached.informer.take_over_first(reprojection)
    try:
        await _finish_reprojection(cached, reprojection)
    except BaseException:
        # Also when cancelled: otherwise records of two layouts would stay in one cache for ever.
        if not reprojection.is_over:
            cached.informer.take_over(_begin_reprojection(cached, cached.identity, before))
        raise


def _begin_reprojection(cached: ManagedInformer, identity: CacheIdentity, after: Projection) -> Reprojection:
    before = cached.informer.source.projection
    remake = record_remaker(cached.identity, identity, before=before, after=after)
    return cached.informer.begin_reprojection(after, remake)


async def _finish_reprojection(cached: ManagedInformer, reprojection: Reprojection) -> None:
    try:
        while not reprojection.step(_REPROJECTED_AT_ONCE):
            await asyncio.sleep(0)
    except CacheError as fault:
        raise ReloadRefused("ReprojectFailed", f"{cached.identity.watch}: {fault}") from fault


def _projected(projection: Projection) -> KeysView[FieldPath]:
    return projection.layout.positions.keys()


@dataclass(frozen=True, slots=True, eq=False)
class _StagedChanges:
    """What the commit of the staged generation changes in the pool. No other generation uses it before."""

    requirements: frozenset[ResourceRequirement] = frozenset()  # of the staged generation
    new_informers: Sequence[ManagedInformer] = ()  # caches that only this generation uses
    # Existing caches, each with the identity that it gets at the commit.
    new_identities: dict[ManagedInformer, CacheIdentity] = field(
        default_factory=dict[ManagedInformer, CacheIdentity]
    )
    # The records of these caches for the new identity; `build_indexes` makes them.
    reprojections: dict[ManagedInformer, Reprojection] = field(
        default_factory=dict[ManagedInformer, Reprojection]
    )
    # Indexes by functions that existing caches lack, by cache and internal name.
    indexes: dict[tuple[ManagedInformer, str], StagedIndexBuild] = field(
        default_factory=dict[tuple[ManagedInformer, str], StagedIndexBuild]
    )


class InformerPool:
    """All informers of the process. Used on the machinery loop only; one generation is staged at a time.

    A generation is staged from `prepare` to `commit_staged`, which is called at its commit, or to its
    `release`. Other generations may be released in between; the staged one loses nothing by that.
    """

    def __init__(
        self,
        cluster: SourceProvider,
        *,
        tasks: asyncio.TaskGroup,
        clock: Clock,
        recorder: Recorder | None = None,
        state: KeepsCaches | None = None,
        shards: HeldShards | None = None,
        known: Callable[[GroupVersionKind], Resource | None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._state = state
        self._shards = shards  # of this process; None without a sharding
        self._known = known  # a resource that was discovered
        self._tasks = tasks  # runs the informers
        self._clock = clock
        self._namespaces = NamespaceSelectors(cluster, tasks=tasks, clock=clock, recorder=recorder)
        # Every informer that exists, lingering ones too, by its present identity.
        self._cached: dict[CacheIdentity, ManagedInformer] = {}
        # The informers of each requirement, of every generation that is alive, the oldest first.
        self._used: dict[ResourceRequirement, tuple[ManagedInformer, ...]] = {}
        self._staged = _StagedChanges()  # empty while no generation is staged
        self._requests = RequestCounter()  # since the last `prepare`
        self.on_fault: list[Callable[[], object]] = []  # called after each fault of a LIST or WATCH
        self.defers_starts = False  # no informer is started before `start_deferred`

    def prepare(self, requirements: Iterable[ResourceRequirement]) -> list[ManagedInformer]:
        """Make the informers that are missing, and count all that are required as used.

        An existing cache whose records only have to change their form is reprojected at the commit
        (`commit_staged`), after `build_indexes`. A cache that has lost objects while it lingered is made
        anew. Returns the new informers, which are not started yet.
        """
        for cached in self.all():
            # Its transform failed after its code was freed: the lost objects would be missing for ever.
            if cached.is_spoiled:
                self._close(cached)
        self._requests = RequestCounter(cached.informer for cached in self.all())
        requirements = tuple(requirements)
        by_identity: dict[CacheIdentity, list[ResourceRequirement]] = {}
        for requirement in requirements:
            for identity in requirement.identities:
                by_identity.setdefault(identity, []).append(requirement)
        found = match_caches(self._cached, by_identity.keys())
        is_beside = bool(self._used)  # a generation runs while this one is staged
        # This may raise, so no user is counted before it.
        made = {
            identity: make_informer(
                self._cluster,
                identity,
                by_identity[identity],
                namespaces=self._namespaces.of,
                clock=self._clock,
                staged=is_beside,
                scope=self._new_scope(identity),
            )
            for identity, existing in found.items()
            if existing is None
        }
        staged = self._staged = _StagedChanges(frozenset(requirements), tuple(made.values()))
        serving: dict[CacheIdentity, ManagedInformer] = {}
        for identity, existing in found.items():
            cached = serving[identity] = made[identity] if existing is None else self._cached[existing]
            if existing is not None and existing != identity:
                # The running generation reads it as it is: it is reprojected at the commit.
                staged.new_identities[cached] = identity
            cached.generation_count += 1
            if cached.closing is not None:
                cached.closing.cancel()  # it lingered, and is used again
                cached.closing = None
        self._cached.update(made)
        for cached in made.values():
            cached.informer.set_watch_error_handler(self._call_on_fault)
            if self._recorder is not None:
                self._recorder.follow(cached.identity.watch, cached.informer, cached.codec)
            if self._state is not None:
                self._state.take(cached)
        self._widen_new(made.values())
        for requirement in requirements:
            self._used[requirement] = tuple(serving[identity] for identity in requirement.identities)
        return [*made.values()]

    def start(self, new_informers: Iterable[ManagedInformer]) -> None:
        """Start the list and watch of new informers; later, while starts are deferred."""
        if self.defers_starts:
            return
        for cached in new_informers:
            if cached.task is None:
                cached.started_at = self._clock.monotonic()
                name = f"informer {cached.identity.watch}"
                cached.task = self._tasks.create_task(cached.informer.run(), name=name)

    def defer_starts(self) -> None:
        """Start no informer until `start_deferred`. Before the first `start`."""
        self.defers_starts = True

    def start_deferred(self) -> None:
        """Start all informers that a generation uses, and each further one at its `start`."""
        self.defers_starts = False
        self.start(cached for cached in self.all() if cached.generation_count)

    def namespace_sets(self) -> Sequence[SharedIndexInformer]:
        """The informers of namespaces that caches follow by their labels."""
        return self._namespaces.informers()

    def _call_on_fault(self, _: Exception) -> None:
        for call in tuple(self.on_fault):
            call()

    async def build_indexes(self, requirements: Iterable[ResourceRequirement], *, timeout: float) -> int:
        """Build the indexes that existing informers lack, in slices; returns how many.

        Before that, records are made anew if the cache is reprojected, or if they lack indexed fields. Index
        functions run in threads, for `timeout` seconds at most. Their indexes are read from the commit on;
        until then the caller keeps them current (`staged_indexes`). Raises ReloadRefused if a record or an
        index can't be made; readers notice no change then.
        """
        built, requirements = 0, tuple(requirements)
        for cached in self._of_all(requirements):
            identity = self._staged.new_identities.get(cached)
            if identity is None:
                await extend_projection(cached, self._users(cached))
            else:
                reprojection = await make_reprojection(cached, identity, self._users(cached))
                self._staged.reprojections[cached] = reprojection
        for requirement in requirements:
            for cached in self.of(requirement):
                for index in requirement.indexes:
                    built += await self._build_index(cached, index, requirement)
        await call_for_objects(self.staged_indexes, timeout=timeout)
        return built

    @property
    def staged_indexes(self) -> Sequence[StagedIndexBuild]:
        """The indexes by functions that are read from the commit on; they have to be complete by then."""
        return tuple(self._staged.indexes.values())

    async def _build_index(
        self, cached: ManagedInformer, index: ResourceIndex, requirement: ResourceRequirement
    ) -> bool:
        """Build an index by field, or begin one by a function; False if the index exists."""
        staged = self._staged.indexes
        if index.internal in cached.informer.indexer.get_indexers() or (cached, index.internal) in staged:
            return False
        # The function is user code that has never run here: it runs in a thread, beside the loop.
        if not isinstance(index.function, FieldIndex):
            build_in_thread = StagedIndexBuild(cached, index, resource=requirement.plan.name)
            staged[cached, index.internal] = build_in_thread
            return True
        build = cached.informer.build_index(index.internal, index.function)
        while not build.step(_INDEXED_AT_ONCE):
            await asyncio.sleep(0)
        return True

    def commit_staged(self, requirements: Iterable[ResourceRequirement]) -> None:
        """Make the staged changes, at the commit; can't fail.

        New records take their places in the next slices. Does nothing if `requirements` are not those of the
        staged generation.
        """
        if not self._is_staged(requirements):
            return
        staged, self._staged = self._staged, _StagedChanges()
        # Indexes first: handlers of the new generation read them from this moment on.
        for index in staged.indexes.values():
            index.publish()
        for cached in staged.new_informers:
            cached.commit(self._users(cached))
        self.open_shards()
        for cached, reprojection in staged.reprojections.items():
            del self._cached[cached.identity]
            cached.identity = staged.new_identities[cached]
            self._cached[cached.identity] = cached
            codec = reprojection.projection.layout.codec
            if codec is not cached.codec:
                cached.codec, cached.mutations = codec, detector_of(codec, before=cached.mutations)
            cached.informer.take_over(reprojection)

    def release(self, requirements: Iterable[ResourceRequirement], *, linger: float) -> None:
        """End the use of informers by a generation that was retired, or never committed.

        An informer without users closes after `linger` seconds. The release of a generation that was never
        committed does not shorten the time for which the one before let an informer linger, and drops the
        staged changes.
        """
        requirements = tuple(requirements)
        was_staged, released = self._is_staged(requirements), self._of_all(requirements)
        if was_staged:
            self._staged = _StagedChanges()
        for requirement in requirements:
            self._used.pop(requirement, None)
        until = self._clock.monotonic() + linger
        for cached in released:
            cached.generation_count -= 1
            if not was_staged:
                cached.lingers_until = until
            if cached.generation_count:
                # The code of the released generation is freed: functions of the others take over.
                cached.use_functions_of(self._users(cached))
            else:
                cached.failed_before = cached.failed
                self._close_at(max(until, cached.lingers_until), cached)

    def drop_indexes(
        self, requirements: Iterable[ResourceRequirement], kept: Iterable[ResourceRequirement]
    ) -> None:
        """Remove the indexes of a retired generation that no other one reads.

        The others are those of `kept`, and the staged generation, which relies on the indexes that it found.
        """
        gone = frozenset(requirements)
        keep = {
            (cached, index.internal)
            for other in (*kept, *(self._staged.requirements - gone))
            for cached in self.of(other)
            for index in other.indexes
        }
        for requirement in gone:
            for cached in self.of(requirement):
                names = [i.internal for i in requirement.indexes if (cached, i.internal) not in keep]
                if names:
                    cached.informer.remove_indexers(names)

    def of(self, requirement: ResourceRequirement) -> Sequence[ManagedInformer]:
        """The informers of a requirement; none before `prepare` and after `release`."""
        return self._used.get(requirement, ())

    def lister(self, requirement: ResourceRequirement, view: type[ObjectView] = ObjectView) -> Lister:
        """A lister over all informers of a requirement, with index names and class of its generation."""
        names = {index.name: index.internal for index in requirement.indexes}
        informers = [cached.informer for cached in self.of(requirement)]
        return Lister(
            [informer.indexer for informer in informers],
            index_names=names,
            name=requirement.plan.name,
            filled_by=informers,
            namespaces=requirement.plan.namespaces,
            view=view,
        )

    # Shards

    def _new_scope(self, identity: CacheIdentity) -> ShardScope | None:
        if self._shards is None or not identity.watch.sharded:
            return None
        found = self._known(GroupVersionKind.of(identity.watch.api_version, identity.watch.kind))
        return self._shards.new_scope(is_namespaced=found is None or found.namespaced)

    def _widen_new(self, made: Iterable[ManagedInformer]) -> None:
        for cached in made:
            if self._shards is not None and cached.informer.scope is not None:
                # A handler that moves to it hears what differs in open shards, from before the commit on.
                cached.informer.widen(self._shards.held).on_open(self.open_shards)

    @property
    def is_staging(self) -> bool:
        """Whether a generation is staged that brings caches."""
        return bool(self._staged.new_informers or self._staged.new_identities)

    def scoped(self) -> Sequence[ManagedInformer]:
        """The caches of sharded resources."""
        return [cached for cached in self.all() if cached.informer.scope is not None]

    def open_shards(self) -> None:
        """Let listeners be told of all shards that are open in the process, in the caches that have them."""
        for cached in self.scoped():
            if self._shards is not None and (scope := cached.informer.scope) is not None:
                cached.informer.open_shards(self._shards.open & scope.listed_shards)

    def close_shard(self, shard: int) -> None:
        """Let no listener be told of a shard any more."""
        for cached in self.scoped():
            cached.informer.close_shards([shard])

    def narrow(self, shard: int) -> None:
        """Let the objects of a shard leave all caches; no listener is told."""
        for cached in self.scoped():
            cached.informer.narrow([shard])

    def widen(self, shard: int) -> Sequence[Latch]:
        """Have a shard in all caches; returns latches that open when it is listed in the caches."""
        return [cached.informer.widen([shard]) for cached in self.scoped()]

    def request_counts(self) -> RequestCounts:
        """The requests to the server since `prepare`, and those of them that were not planned."""
        return self._requests.until_now(cached.informer for cached in self.all())

    def all(self) -> Sequence[ManagedInformer]:
        """Every informer that exists, lingering ones too."""
        return tuple(self._cached.values())

    async def close(self) -> None:
        """Stop every informer."""
        for cached in self.all():
            self._close(cached)
        await asyncio.sleep(0)

    def _is_staged(self, requirements: Iterable[ResourceRequirement]) -> bool:
        return not self._staged.requirements.isdisjoint(requirements)

    def _of_all(self, requirements: Iterable[ResourceRequirement]) -> Sequence[ManagedInformer]:
        """The informers of some requirements, each once."""
        return tuple(dict.fromkeys(cached for each in requirements for cached in self.of(each)))

    def _users(self, cached: ManagedInformer) -> Sequence[ResourceRequirement]:
        """The requirements that a cache serves, of every generation that is alive, the oldest first."""
        return [requirement for requirement, used in self._used.items() if cached in used]

    def _close_at(self, time: float, cached: ManagedInformer) -> None:
        seconds = time - self._clock.monotonic()
        if seconds > 0:
            cached.closing = asyncio.create_task(self._close_after(seconds, cached), name="linger")
        else:
            self._close(cached)

    async def _close_after(self, seconds: float, cached: ManagedInformer) -> None:
        await self._clock.sleep(seconds)
        cached.closing = None  # `_close` must not cancel its own task
        self._close(cached)

    def _close(self, cached: ManagedInformer) -> None:
        del self._cached[cached.identity]
        if cached.closing is not None:
            cached.closing.cancel()
        if cached.task is not None:
            cached.task.cancel()


class MutationChecks:
    """Runs the mutation detectors of all caches. Used on the machinery loop.

    `thorough` checks every object each second.
    """

    def __init__(self, caches: InformerPool, *, clock: Clock, thorough: bool) -> None:
        self._caches = caches
        self._clock = clock
        self._thorough = thorough
        self._found: deque[Mutation] = deque(maxlen=_MOST_MUTATIONS)  # the oldest first

    @property
    def found(self) -> Sequence[Mutation]:
        """The newest mutations that were found and undone."""
        return tuple(self._found)

    async def run(self) -> None:
        """Check each second, until cancelled."""
        while True:
            await self._clock.pause(_CHECK_INTERVAL)
            await self.look()

    async def look(self) -> None:
        """Check a part of each cache, or all of it."""
        for cached in self._caches.all():
            detector, left = cached.mutations, _CHECKED_EACH_TIME
            while detector is not None and left > 0:
                self._found.extend(detector.look(_CHECKED_AT_ONCE))
                if detector.at_end_of_round:
                    break
                if not self._thorough:
                    left -= _CHECKED_AT_ONCE
                await asyncio.sleep(0)  # events go first
