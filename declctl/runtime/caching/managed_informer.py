"""One cache: an informer over one watch, its records kept in one way, and what generations want of it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from declctl.decoding import Transform
from declctl.informer import FieldIndex, IndexFunc, ReflectorOptions, SharedIndexInformer, SourceProvider
from declctl.informer.source import DecodesElsewhere
from declctl.kit import Clock
from declctl.manifest.model import CacheMode
from declctl.manifest.plan import ResourcePlan
from declctl.objects import Codec, FieldPath, GroupVersionKind, KubeObject, MutationDetector, ObjectCodec
from declctl.runtime.caching.exchanging import Exchangeable, exchange, exchangeable
from declctl.runtime.caching.identities import Identity
from declctl.runtime.caching.projections import codec_of, projection_of
from declctl.runtime.caching.staged_transform import StagedTransform


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
class ResourceRequirement:
    """What a generation wants of one resource. Two generations want the same in two of them."""

    plan: ResourcePlan
    identities: tuple[Identity, ...]
    indexes: tuple[Index, ...]
    transform: Transform | None


@dataclass(eq=False)
class ManagedInformer:
    """One informer, its task, and who uses it. `mutations` looks at objects that its readers share.

    `lingers_until` is the time of the loop until which it was to be kept by the last generation that
    went, for one that may come back; `closing` is set while nobody uses it. `transform` and the index
    functions are of a generation that uses it. `staged` is there until the commit of the generation that it
    was made for by a reload: it keeps the transform off the loop.
    """

    identity: Identity
    informer: SharedIndexInformer
    codec: Codec
    transform: Exchangeable[KubeObject, KubeObject | None] | None = None
    mutations: MutationDetector | None = None
    task: asyncio.Task[None] | None = None
    users: int = 0
    lingers_until: float = 0.0
    closing: asyncio.TimerHandle | None = None
    started_at: float = 0.0
    staged: StagedTransform | None = None
    failed_before: int = 0  # objects that the transform had failed on when the last user went

    @property
    def failed(self) -> int:
        """How many objects its transform has failed on; they are not in it."""
        return self.informer.statistics().projection.failed

    @property
    def is_spoiled(self) -> bool:
        """Whether it has lost objects since nobody uses it: the code of its transform is gone by then."""
        return not self.users and self.transform is not None and self.failed > self.failed_before

    def commit(self, users: Sequence[ResourceRequirement]) -> None:
        """From now on the loop decodes, as it does everywhere: the generation that it was made for runs."""
        if self.staged is None:
            return
        self.staged = None
        self._decode_in(None)
        self.call_those_of(users)

    def stage(self, transform: StagedTransform) -> None:
        """Let a thread decode until the commit, if the source can do that."""
        if self.transform is not None and isinstance(self.informer.source, DecodesElsewhere):
            self.staged = self.transform.function = transform
            self._decode_in(transform.run)

    def _decode_in(self, elsewhere: Callable[[Callable[[], Any]], Awaitable[Any]] | None) -> None:
        source = self.informer.source
        assert isinstance(source, DecodesElsewhere)
        source.elsewhere = elsewhere

    def call_those_of(self, users: Sequence[ResourceRequirement]) -> None:
        """Call the functions of these users, the first one's before the others': a generation is gone."""
        transform = transform_of(users)
        if self.transform is not None and transform is not None:
            self.transform.function = transform
        wanted = {index.internal: index.function for user in reversed(users) for index in user.indexes}
        for name, function in self.informer.indexer.get_indexers().items():
            if name in wanted:
                exchange(function, wanted[name])


def make_cached(
    cluster: SourceProvider,
    identity: Identity,
    users: Sequence[ResourceRequirement],
    *,
    clock: Clock,
    staged: bool,
) -> ManagedInformer:
    """A cache that is empty, is not started, and has no user yet.

    Where it is `staged` beside a generation that runs, no foreign code of it runs on the loop: it lacks the
    indexes by functions, which are built when it has synced, and a thread transforms what it lists.
    """
    watch, codec, transform = identity.watch, codec_of(identity.watch), transform_of(users)
    latest = Exchangeable(transform) if transform is not None else None
    source = cluster.source(
        GroupVersionKind.of(watch.api_version, watch.kind),
        namespace=watch.namespace,
        label_selector=watch.label_selector,
        field_selector=watch.field_selector,
        metadata_only=watch.cache is CacheMode.METADATA_ONLY,
        projection=projection_of(watch, paths=paths_of(users), transform=latest, codec=codec),
    )
    informer = SharedIndexInformer(
        source,
        name=str(watch),
        clock=clock,
        options=ReflectorOptions(idle_timeout=min(user.plan.idle_timeout for user in users)),
        indexers={
            index.internal: exchangeable(index.function)
            for user in users
            for index in user.indexes
            if not staged or isinstance(index.function, FieldIndex)
        },
    )
    cached = ManagedInformer(identity, informer, codec, transform=latest, mutations=detector_of(codec))
    if staged and transform is not None:
        cached.stage(StagedTransform(transform, what=f"the transform of {users[0].plan.name}"))
    return cached


def detector_of(codec: Codec, *, after: MutationDetector | None = None) -> MutationDetector | None:
    """What looks at objects that readers share; it counts on where another one has stopped."""
    if not isinstance(codec, ObjectCodec):
        return None
    detector = MutationDetector(codec)
    if after is not None:
        detector.count, detector.last = after.count, after.last
    return detector


def transform_of(users: Iterable[ResourceRequirement]) -> Transform | None:
    """The transform of the first that has one; those of one cache are the same by their digest."""
    return next((user.transform for user in users if user.transform is not None), None)


def paths_of(users: Iterable[ResourceRequirement]) -> frozenset[FieldPath]:
    """The fields that indexes read, and that a projection has at hand for them."""
    return frozenset(
        index.function.path
        for user in users
        for index in user.indexes
        if isinstance(index.function, FieldIndex)
    )
