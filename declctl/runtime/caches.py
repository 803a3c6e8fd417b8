"""The caches: one informer for each distinct watch, shared by whoever uses it, and outliving generations.

This is where a plan's watches become sources (of the transport), projections (of the objects) and
informers (of the line). A watch that a new generation still wants goes on untouched; one that
nobody wants any longer lingers, then closes.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from declctl.informer import (
    FieldIndex,
    IndexFunc,
    Lister,
    ReflectorOptions,
    SharedIndexInformer,
    SourceProvider,
)
from declctl.kit import Clock
from declctl.manifest.model import CacheMode
from declctl.manifest.plan import ResourcePlan, WatchKey
from declctl.objects import (
    Codec,
    FieldPath,
    FrameCodec,
    GroupVersionKind,
    MetadataCodec,
    MutationDetector,
    ObjectCodec,
    Projection,
    Transform,
)
from declctl.runtime.log import Log

_SLICE = 500  # objects that an index build may decode before the loop breathes


@dataclass(frozen=True, slots=True)
class Identity:
    """What has to stay equal for an informer to live on: what is asked, and what is done to the answer.

    `transform` is a digest of the user's transforms, empty if there are none.
    """

    watch: WatchKey
    transform: str = ""


@dataclass(frozen=True, slots=True)
class Index:
    """An index of a resource: the name that listers know, and the one it has in the store.

    The second contains a digest of the definition, so that two generations may define one name
    differently.
    """

    name: str
    internal: str
    function: IndexFunc


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a generation wants of one resource."""

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
    paths: frozenset[FieldPath] = field(default_factory=frozenset)


class Caches:
    """All informers of the process. Used on the machinery loop only."""

    def __init__(self, cluster: SourceProvider, *, tasks: asyncio.TaskGroup, clock: Clock, log: Log) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._clock = clock
        self._log = log
        self._cached: dict[Identity, Cached] = {}

    def prepare(self, wanted: Iterable[Wanted]) -> list[Cached]:
        """Make the informers that are missing, each counted once.

        Returns those that are new, not started yet.
        """
        fresh: list[Cached] = []
        for identity, users in _by_identity(wanted).items():
            cached = self._cached.get(identity)
            if cached is None:
                cached = self._cached[identity] = self._make(identity, users)
                fresh.append(cached)
            self._use(cached)
        return fresh

    def start(self, fresh: Iterable[Cached]) -> None:
        """Let new informers list and watch."""
        for cached in fresh:
            if cached.task is None:
                cached.started_at = self._clock.monotonic()
                name = f"informer {cached.identity.watch}"
                cached.task = self._tasks.create_task(cached.informer.run(), name=name)

    async def build_indexes(self, wanted: Iterable[Wanted]) -> int:
        """Build what existing informers lack, in slices; returns how many indexes were built."""
        built = 0
        for resource in wanted:
            for identity in resource.identities:
                informer = self._cached[identity].informer
                for index in resource.indexes:
                    if index.internal in informer.indexer.get_indexers():
                        continue
                    build = informer.build_index(index.internal, index.function)
                    while not build.step(_SLICE):
                        await asyncio.sleep(0)
                    built += 1
        return built

    def release(self, wanted: Iterable[Wanted], *, linger: float) -> None:
        """A generation that wanted these is gone.

        What nobody else wants closes after `linger` seconds.
        """
        for identity in _by_identity(wanted):
            cached = self._cached.get(identity)
            if cached is None:
                continue
            cached.users -= 1
            if not cached.users:
                loop = asyncio.get_running_loop()
                cached.closing = loop.call_later(linger, self._close, identity)

    def drop_indexes(self, wanted: Iterable[Wanted], kept: Iterable[Wanted]) -> None:
        """Remove the indexes of a generation that is gone, except those that `kept` still reads."""
        keep = {(identity, index.internal) for w in kept for identity in w.identities for index in w.indexes}
        for resource in wanted:
            for identity in resource.identities:
                cached = self._cached.get(identity)
                names = [i.internal for i in resource.indexes if (identity, i.internal) not in keep]
                if cached is not None and names:
                    cached.informer.remove_indexers(names)

    def reproject(self, wanted: Iterable[Wanted]) -> None:
        """Let informers that live on decode the field paths that are indexed now.

        Records that are there keep their layout, and are read by decoding where it lacks a path.
        """
        for identity, users in _by_identity(wanted).items():
            cached, paths = self._cached[identity], _paths(users)
            if not paths <= cached.paths:
                cached.paths = paths
                cached.informer.reproject(self._projection(identity, users, cached.codec))

    def of(self, wanted: Wanted) -> list[Cached]:
        """The informers of a resource."""
        return [self._cached[identity] for identity in wanted.identities]

    def lister(self, wanted: Wanted) -> Lister:
        """The view of a resource over all its informers, with the index names of that generation."""
        names = {index.name: index.internal for index in wanted.indexes}
        return Lister([cached.informer.indexer for cached in self.of(wanted)], index_names=names)

    def all(self) -> Sequence[Cached]:
        """Every informer that exists, lingering ones too."""
        return tuple(self._cached.values())

    async def close(self) -> None:
        """Stop every informer."""
        for identity in list(self._cached):
            self._close(identity)
        await asyncio.sleep(0)

    def _use(self, cached: Cached) -> None:
        cached.users += 1
        if cached.closing is not None:
            cached.closing.cancel()
            cached.closing = None

    def _close(self, identity: Identity) -> None:
        cached = self._cached.pop(identity)
        if cached.task is not None:
            cached.task.cancel()

    def _make(self, identity: Identity, users: Sequence[Wanted]) -> Cached:
        watch, codec = identity.watch, _codec(identity.watch)
        source = self._cluster.source(
            GroupVersionKind.of(watch.api_version, watch.kind),
            namespace=watch.namespace,
            label_selector=watch.label_selector,
            field_selector=watch.field_selector,
            metadata_only=watch.cache is CacheMode.METADATA_ONLY,
            projection=self._projection(identity, users, codec),
        )
        informer = SharedIndexInformer(
            source,
            name=str(watch),
            clock=self._clock,
            options=ReflectorOptions(idle_timeout=min(user.plan.idle_timeout for user in users)),
            indexers={index.internal: index.function for user in users for index in user.indexes},
        )
        mutations = MutationDetector(codec) if isinstance(codec, ObjectCodec) else None
        return Cached(identity, informer, codec, mutations, paths=_paths(users))

    def _projection(self, identity: Identity, users: Sequence[Wanted], codec: Codec) -> Projection:
        watch = identity.watch
        return Projection(
            api_version=watch.api_version,
            kind=watch.kind,
            metadata_only=watch.cache is CacheMode.METADATA_ONLY,
            paths=sorted(_paths(users), key=str),
            drop_fields=_drop_fields(watch),
            transform=next((user.transform for user in users if user.transform is not None), None),
            codec=codec,
        )


def _by_identity(wanted: Iterable[Wanted]) -> dict[Identity, list[Wanted]]:
    users: dict[Identity, list[Wanted]] = {}
    for resource in wanted:
        for identity in resource.identities:
            users.setdefault(identity, []).append(resource)
    return users


def _codec(watch: WatchKey) -> Codec:
    match watch.cache:
        case CacheMode.OBJECTS:
            return ObjectCodec(api_version=watch.api_version, kind=watch.kind)
        case CacheMode.METADATA_ONLY:
            return MetadataCodec()
        case CacheMode.FRAMES:
            return FrameCodec()


def _drop_fields(watch: WatchKey) -> Sequence[FieldPath]:
    """The fields that have to be dropped: what the server doesn't send need not be looked for."""
    paths = [FieldPath.parse(path) for path in watch.transform.drop_fields]
    if watch.cache is CacheMode.METADATA_ONLY:
        return [path for path in paths if path.steps[0] == "metadata"]
    return paths


def _paths(users: Sequence[Wanted]) -> frozenset[FieldPath]:
    return frozenset(
        index.function.path
        for user in users
        for index in user.indexes
        if isinstance(index.function, FieldIndex)
    )
