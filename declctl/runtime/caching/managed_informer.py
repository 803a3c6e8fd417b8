"""A managed informer: the cache of one watch, with the indexes and the transform that generations require.

Two generations may define an index or a transform alike. Then the cache of the first serves the second. The
code of the first is freed all the same, and its functions can import nothing after that. So they are
exchanged for those of the second, which do the same.

The user code of a staged generation has never run in this process. Its transform and its index functions
run in threads, under a deadline, while the loop goes on. They are called again for objects that change
meanwhile. For the last of these objects the caches apply nothing for a moment, so that none is left at the
commit.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from declctl.decoding.decoders import Transform
from declctl.decoding.projection import Projection
from declctl.errors import ReloadRefused
from declctl.informer.informer import SharedIndexInformer
from declctl.informer.reflector.namespaces import NamespaceSet, SourcesByNamespace
from declctl.informer.reflector.reflector import ReflectorOptions
from declctl.informer.scope import ShardScope
from declctl.informer.source import Source, SourceProvider, SupportsDecodeRunner
from declctl.informer.stores.indices import FieldIndex, FunctionIndex, IndexFunc, StaleObjects, function_index
from declctl.kit import Clock
from declctl.manifest.model import CacheMode
from declctl.manifest.plan import ResourcePlan
from declctl.objects import Codec, FieldPath, GroupVersionKind, KubeObject, ObjectCodec, ObjectKey, Record
from declctl.objects.answers import mapping
from declctl.objects.differences import MutationDetector
from declctl.objects.resource import key_of
from declctl.runtime.caching.identities import CacheIdentity, codec_of, projection_of
from declctl.runtime.caching.kept_objects import KeptObjects
from declctl.runtime.threads import CallGivenUp, UserCall

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
# Objects whose results the loop enters at once, in one or two milliseconds.
BATCH = 1000
# Objects for which one thread calls an index function: a thread for each thousand of them costs 10 % more.
_BATCH_OF_A_THREAD = 10 * BATCH
# Batches of objects that changed meanwhile. After these the caches are paused: a reload would never end if
# objects change faster than user code returns.
_MOST_BATCHES = 10
LONGEST_PAUSE = 1.0  # seconds that a cache applies nothing; its changes wait in the queue of the informer


class RequestCounts(msgspec.Struct, frozen=True):
    """LISTs and WATCHes of all caches since a generation was prepared.

    One LIST and one WATCH are planned for each new cache, and none for other caches, except requested
    relists.
    """

    lists: int = 0
    watches: int = 0
    unplanned: tuple[str, ...] = ()  # the requests that were not planned, in words


class RequestCounter:
    """Counts the LISTs and WATCHes of all caches since it was made; `existing` are the informers of then."""

    def __init__(self, existing: Iterable[SharedIndexInformer] = ()) -> None:
        # The figures of each informer at that time; an informer that is missing here is new.
        self._before = {informer: informer.statistics() for informer in existing}

    def until_now(self, informers: Iterable[SharedIndexInformer]) -> RequestCounts:
        """The requests of `informers`, which are all that exist now."""
        lists, watches, unplanned = 0, 0, list[str]()
        for informer in informers:
            now, before = informer.statistics(), self._before.get(informer)
            new_lists = now.lists - (before.lists if before is not None else 0)
            new_watches = now.watches - (before.watches if before is not None else 0)
            requested = now.reflector.relists_requested
            if before is not None:
                requested -= before.reflector.relists_requested
            follows = now.namespaces is not None
            not_served = now.missing or now.reflector.unavailable
            if follows or requested > 0 or (before is None and (not_served or informer.has_kept)):
                # The namespaces of a selector come and go at any time. A relist was requested, or the server
                # does not serve the kind, and requests go on until it does. A cache with kept objects is
                # listed only if they can't be used.
                planned = (new_lists, new_watches)
            elif before is not None:
                planned = (0, 0)
            else:
                # A streaming list and its watch are one request. A server that can't stream lists has refused
                # one WATCH before.
                refused_one = not now.reflector.streams and now.watches > 1
                planned = (1, 2 if refused_one else 1)
            for name, count, expected in zip(
                ("LIST", "WATCH"), (new_lists, new_watches), planned, strict=True
            ):
                if count != expected:
                    unplanned.append(f"{informer.name}: {count} {name} instead of {expected}")
            lists, watches = lists + new_lists, watches + new_watches
        return RequestCounts(lists, watches, tuple(unplanned))


class Exchangeable(Generic[A, R]):
    """Calls its present `function`. Raises what the function raises."""

    def __init__(self, function: Callable[[A], R]) -> None:
        self.function = function  # written by the managed informer when a generation is committed or goes

    def __call__(self, argument: A) -> R:
        """The result of the present function."""
        return self.function(argument)


def replaceable_copy(function: IndexFunc) -> IndexFunc:
    """A copy of an index function that can call another one later; field paths have no user code."""
    return function_index(function.function) if isinstance(function, FunctionIndex) else function


class StagedTransform:
    """The transform of a cache that fills for a staged generation: `run` decodes in a thread.

    It stands in the place of `transform`, and is only called within `run`. When a `run` is cancelled, its
    thread ends after the present object, and changes nothing any more.
    """

    def __init__(self, transform: Transform, *, what: str) -> None:
        self._transform = transform
        self._what = what  # names the function in the status and in messages
        self._turn = asyncio.Lock()  # locked until the decoding thread returns, also if it was abandoned
        self._call = self._new_call()  # of the present `run`, or of the last one

    def __call__(self, obj: KubeObject) -> KubeObject | None:
        """The result of the transform for an object; raises CallGivenUp after a cancelled `run`."""
        metadata = mapping(obj.get("metadata"))
        call = self._call
        call.note(key_of(metadata.get("namespace"), str(metadata.get("name"))))
        try:
            return self._transform(obj)
        finally:
            # The call may have been given up while user code ran: its result must not reach the cache.
            call.go_on()

    async def run(self, work: Callable[[], T]) -> T:
        """Return or raise the result of `work`, which runs in a thread; one `run` at a time.

        The decoder in `work` may be used by one thread only.
        """
        await self._turn.acquire()
        loop, call = asyncio.get_running_loop(), self._new_call()
        self._call = call
        # Locked once: by the thread, or by a cancellation that comes before it. That one releases the turn.
        owned = threading.Lock()

        def decode() -> T:
            if not owned.acquire(blocking=False):
                raise CallGivenUp  # nobody awaits this thread
            try:
                return work()
            finally:
                with suppress(RuntimeError):  # the loop is closed: no `run` waits for the turn
                    loop.call_soon_threadsafe(self._turn.release)

        try:
            return await call.run(decode)
        except BaseException:
            if owned.acquire(blocking=False):
                self._turn.release()  # the thread has not begun, and never will
            raise

    @property
    def is_running(self) -> bool:
        """Whether a thread is in `run`, also an abandoned one."""
        return self._turn.locked()

    def refusal(self, why: str) -> ReloadRefused:
        """A refusal TransformTimeout that names the function and the last object."""
        return ReloadRefused("TransformTimeout", self._call.fault(why))

    def _new_call(self) -> UserCall:
        return UserCall(name="declctl-transform", what=self._what)


class ResourceIndex(msgspec.Struct, frozen=True):
    """An index of a resource, with its two names."""

    name: str  # for listers
    internal: (
        str  # in the store: with a digest of the definition, as generations may define a name differently
    )
    function: IndexFunc


@dataclass(frozen=True, slots=True, eq=False)
class ResourceRequirement:
    """The watches, indexes and transform that one generation requires of one resource.

    Each generation has its own requirements, which are compared by object identity.
    """

    plan: ResourcePlan
    identities: tuple[CacheIdentity, ...]
    indexes: tuple[ResourceIndex, ...]
    transform: Transform | None


@dataclass(eq=False)
class ManagedInformer:
    """One informer, its task, and its users. Used on the machinery loop; the pool writes the fields."""

    identity: CacheIdentity  # changes at a commit that reprojects the cache
    informer: SharedIndexInformer
    codec: Codec  # of its records
    # The function in it belongs to a generation that uses the cache, as index functions do.
    transform: Exchangeable[KubeObject, KubeObject | None] | None = None
    mutations: MutationDetector | None = None  # checks objects that readers share; None for frames
    task: asyncio.Task[None] | None = None  # None until the informer is started
    generation_count: int = 0  # the number of generations that use it, the staged one included
    # Loop time: the end of the linger time that the last released generation has set, if it was committed.
    lingers_until: float = 0.0
    closing: asyncio.Task[None] | None = None  # set while it lingers without users
    started_at: float = 0.0  # by the clock, in seconds
    # Runs the transform in threads; set from a reload that made this cache to its commit.
    staged: StagedTransform | None = None
    failed_before: int = 0  # value of `failed` when the last user left
    kept: KeptObjects | None = None  # of the process before, until the first generation has begun

    @property
    def failed(self) -> int:
        """The number of objects on which its transform failed; they are not in the cache."""
        return self.informer.statistics().projection.failed

    @property
    def is_spoiled(self) -> bool:
        """Whether it has lost objects while it had no users: the code of its transform was freed then."""
        return not self.generation_count and self.transform is not None and self.failed > self.failed_before

    def commit(self, users: Sequence[ResourceRequirement]) -> None:
        """Decode on the loop from now on: the generation that it was made for is committed."""
        if self.staged is None:
            return
        self.staged = None
        self._decode_in(None)
        self.use_functions_of(users)

    def stage(self, transform: StagedTransform) -> None:
        """Decode in a thread until the commit, if the source supports that."""
        if self.transform is not None and isinstance(self.informer.source, SupportsDecodeRunner):
            self.staged = self.transform.function = transform
            self._decode_in(transform.run)

    def _decode_in(self, decode_runner: Callable[[Callable[[], Any]], Awaitable[Any]] | None) -> None:
        source = self.informer.source
        assert isinstance(source, SupportsDecodeRunner)
        source.decode_runner = decode_runner

    def use_functions_of(self, users: Sequence[ResourceRequirement]) -> None:
        """Exchange the user functions for those of `users`; of equal functions, the first user's is taken.

        Called when a generation is released, because its code is freed, and when a new cache is committed.
        """
        transform = transform_of(users)
        if self.transform is not None and transform is not None:
            self.transform.function = transform
        # Reversed: of two functions under one name, that of the oldest user is written last, and stays.
        found = {index.internal: index.function for user in reversed(users) for index in user.indexes}
        for name, index in self.informer.indexer.get_indexers().items():
            function = found.get(name)
            if isinstance(index, FunctionIndex) and isinstance(function, FunctionIndex):
                index.function = function.function


def cached_record(caches: Iterable[ManagedInformer], kind: GroupVersionKind, key: ObjectKey) -> Record | None:
    """An object as one of the caches has it, in whatever version of its kind; None if none has it."""
    for managed in caches:
        if managed.identity.group_kind == (kind.group, kind.kind):
            record = managed.informer.indexer.get_by_key(key)
            if record is not None:
                return record
    return None


def make_informer(
    cluster: SourceProvider,
    identity: CacheIdentity,
    users: Sequence[ResourceRequirement],
    *,
    namespaces: Callable[[str], NamespaceSet],
    clock: Clock,
    staged: bool,
    scope: ShardScope | None = None,
) -> ManagedInformer:
    """Make an empty cache that is not started and counts no user yet.

    `namespaces` returns the namespaces that a selector matches. `scope` is that of a sharded resource.

    With `staged`, a generation runs beside the one that needs the cache, so no new user code runs on the
    loop: the indexes by functions are left out and built after the sync, and a thread transforms the listed
    objects.
    """
    watch, codec, transform = identity.watch, codec_of(identity.watch), transform_of(users)
    # The decoder keeps this object. The function of the next generation takes its place in it.
    latest = Exchangeable(transform) if transform is not None else None
    projection = projection_of(watch, paths=paths_of(users), transform=latest, codec=codec)

    def source_in(namespace: str | None, projection: Projection) -> Source:
        return cluster.source(
            GroupVersionKind.of(watch.api_version, watch.kind),
            namespace=namespace,
            label_selector=watch.label_selector,
            field_selector=watch.field_selector,
            metadata_only=watch.cache is CacheMode.METADATA_ONLY,
            projection=projection,
        )

    if watch.namespace_selector:
        selected = namespaces(watch.namespace_selector)
        source = SourcesByNamespace(
            source_in, projection=projection, namespaces=selected, description=str(watch)
        )
    else:
        source = source_in(watch.namespace, projection)
    informer = SharedIndexInformer(
        source,
        name=str(watch),
        clock=clock,
        # The shortest timeout serves all users.
        options=ReflectorOptions(idle_timeout=min(user.plan.idle_timeout for user in users)),
        indexers={
            index.internal: replaceable_copy(index.function)
            for user in users
            for index in user.indexes
            if not staged or isinstance(index.function, FieldIndex)
        },
        scope=scope,
    )
    cached = ManagedInformer(identity, informer, codec, transform=latest, mutations=detector_of(codec))
    if staged and transform is not None:
        cached.stage(StagedTransform(transform, what=f"the transform of {users[0].plan.name}"))
    return cached


def detector_of(codec: Codec, *, before: MutationDetector | None = None) -> MutationDetector | None:
    """The mutation detector for a codec, if readers share its objects; counts go on from `before`."""
    if not isinstance(codec, ObjectCodec):
        return None
    detector = MutationDetector(codec)
    if before is not None:
        detector.count, detector.last = before.count, before.last
    return detector


def transform_of(users: Iterable[ResourceRequirement]) -> Transform | None:
    """The transform of the first user that has one; all transforms of one cache have the same digest."""
    return next((user.transform for user in users if user.transform is not None), None)


def paths_of(users: Iterable[ResourceRequirement]) -> frozenset[FieldPath]:
    """The fields that the indexes of `users` read."""
    return frozenset(
        index.function.path
        for user in users
        for index in user.indexes
        if isinstance(index.function, FieldIndex)
    )


class StagedFunction(Protocol):
    """A user function that has to be called for all objects of some caches. Used on the machinery loop."""

    @property
    def caches(self) -> Sequence[ManagedInformer]:
        """The caches of the objects."""
        ...

    @property
    def stale(self) -> int:
        """The number of objects for which it was not called in their present state."""
        ...

    async def call_some(self) -> None:
        """Call it for some of them, in a thread. A cancellation gives the thread up."""
        ...

    def refusal(self, why: str) -> ReloadRefused:
        """The refusal if it does not come to an end; `why` is the end of a sentence about it."""
        ...


async def call_for_objects(functions: Iterable[StagedFunction], *, timeout: float) -> None:
    """Call functions for all cached objects, except the last that change meanwhile (`call_for_last_objects`).

    Raises ReloadRefused after `timeout` seconds in all, and what `call_some` raises.
    """
    function: StagedFunction | None = None
    try:
        async with asyncio.timeout(timeout):
            for function in functions:
                late = 0  # batches of objects that have changed meanwhile
                while function.stale and late < _MOST_BATCHES:
                    # Less than a whole batch is left: from here on, only objects that have changed meanwhile.
                    late += function.stale < BATCH
                    await function.call_some()
    except TimeoutError as error:
        assert function is not None
        raise function.refusal(f"took longer than {timeout:g} s") from error


@contextmanager
def pause_caches(caches: Iterable[ManagedInformer]) -> Generator[None]:
    """Apply nothing to these caches in the block, and after it until the next turn of the loop."""
    with ExitStack() as pauses:
        for cached in dict.fromkeys(caches):
            pauses.enter_context(cached.informer.paused())
        yield


async def call_for_last_objects(functions: Sequence[StagedFunction]) -> None:
    """Call functions for all objects that are left, while their caches are paused.

    A commit in the same turn of the loop therefore finds nothing stale. Raises as `call_for_objects` does,
    after a second.
    """
    function: StagedFunction | None = None
    # Only the caches with stale objects are paused; all others go on.
    with pause_caches(c for function in functions if function.stale for c in function.caches):
        try:
            async with asyncio.timeout(LONGEST_PAUSE):
                for function in functions:
                    while function.stale:
                        await function.call_some()
        except TimeoutError as error:
            assert function is not None
            why = f"is slower than objects change: for the last of them {LONGEST_PAUSE:g} s were too short"
            raise function.refusal(why) from error


class StagedIndexBuild:
    """A new index over an existing cache: built in threads, kept current until the commit, then published.

    `resource` is the name of the resource that declares it. Used on the machinery loop.
    """

    def __init__(self, cached: ManagedInformer, index: ResourceIndex, *, resource: str) -> None:
        self.caches = (cached,)
        self.internal = index.internal
        self._build = cached.informer.build_index(index.internal, replaceable_copy(index.function))
        self._call = UserCall(name="declctl-index", what=f"the index {index.name} of {resource}")

    @property
    def stale(self) -> int:
        """The number of objects that are not indexed in their present state."""
        return self._build.stale

    async def call_some(self) -> None:
        """Index some of them. A cancellation gives the index up."""
        stale_objects = self._build.stale_objects(_BATCH_OF_A_THREAD)
        try:
            values = await self._call.run(lambda: self._build.compute(stale_objects, each=self._each))
            for start in range(0, len(values), BATCH):
                part = slice(start, start + BATCH)
                self._build.enter(
                    StaleObjects(stale_objects.keys[part], stale_objects.records[part]), values[part]
                )
                await asyncio.sleep(0)  # events are in a hurry
        except asyncio.CancelledError:
            self._build.give_up()
            raise

    def refusal(self, why: str) -> ReloadRefused:
        """A refusal IndexTimeout that names the function and the last object."""
        return ReloadRefused("IndexTimeout", self._call.fault(why))

    def _each(self, records: Iterable[Record]) -> Iterator[Record]:
        return self._call.objects(records, attrgetter("key"))

    def publish(self) -> None:
        """Make the index readable, at the commit. Computes nothing if no object is stale."""
        self._build.finish()
