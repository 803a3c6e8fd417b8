"""One cache: an informer over one watch, its records kept in one way, and what generations want of it.

Two generations may define an index or a transform alike, and the cache of the first serves the second. The
code of the first is freed all the same, and its functions could import nothing after that: so they are
exchanged for those of the second, which do the same.

User code of a staged generation has never run here: its transform and its index functions are asked in
threads, under a deadline, while the loop goes on. Objects that change meanwhile are asked about again; for
the last few, the caches take in nothing for a moment, so that nothing is left to ask at the commit.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from declctl.decoding.decoders import Transform
from declctl.errors import ReloadRefused
from declctl.informer.informer import SharedIndexInformer
from declctl.informer.reflector.reflector import ReflectorOptions
from declctl.informer.source import SourceProvider, SupportsDecodeRunner
from declctl.informer.stores.indices import FieldIndex, FunctionIndex, IndexFunc, StaleObjects, function_index
from declctl.kit import Clock
from declctl.manifest.model import CacheMode
from declctl.manifest.plan import ResourcePlan
from declctl.objects import Codec, FieldPath, GroupVersionKind, KubeObject, ObjectCodec
from declctl.objects.answers import mapping
from declctl.objects.differences import MutationDetector
from declctl.objects.resource import key_of
from declctl.runtime.caching.identities import CacheIdentity, codec_of, projection_of
from declctl.runtime.threads import UserCall

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
# Objects whose answers the loop takes in at once, in one or two milliseconds.
BATCH = 1000
# Objects about which a thread asks an index function: a thread for each thousand of them costs a tenth more.
_BATCH_OF_A_THREAD = 10 * BATCH
# Batches of objects that changed meanwhile. After these the caches are held: objects that change faster than
# user code answers would keep a reload from ever ending.
_MOST_BATCHES = 10
_LONGEST_HOLD = 1.0  # seconds that a cache takes in nothing; its events wait in the socket


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """LISTs and WATCHes of all caches since a generation was prepared, and in words what was not planned.

    Planned are one LIST and one WATCH for each new cache, and none for those that live on, but what they were
    asked to list.
    """

    lists: int = 0
    watches: int = 0
    unplanned: tuple[str, ...] = ()


class RequestCounter:
    """Counts the LISTs and WATCHes of all caches since it was made, when the `living` ones existed."""

    def __init__(self, living: Iterable[SharedIndexInformer] = ()) -> None:
        # The figures of each informer that goes on, as they were then; one that is not here is new.
        self._before = {informer: informer.statistics() for informer in living}

    def until_now(self, informers: Iterable[SharedIndexInformer]) -> RequestCounts:
        """The requests since then; `informers` are those that exist now."""
        lists, watches, unplanned = 0, 0, list[str]()
        for informer in informers:
            now, before = informer.statistics(), self._before.get(informer)
            new_lists = now.lists - (before.lists if before is not None else 0)
            new_watches = now.watches - (before.watches if before is not None else 0)
            requested = now.reflector.relists_requested
            if before is not None:
                requested -= before.reflector.relists_requested
            if requested > 0 or (before is None and now.missing):
                # A relist was asked for, or the server lacks the kind, which is asked for until it appears.
                planned = (new_lists, new_watches)
            elif before is not None:
                planned = (0, 0)
            else:
                # A streaming list and its watch may be one request; a server that cannot stream a list has
                # refused one WATCH before.
                planned = (1, 1 + (not now.reflector.streams and now.watches > 1))
            for name, count, expected in zip(
                ("LIST", "WATCH"), (new_lists, new_watches), planned, strict=True
            ):
                if count != expected:
                    unplanned.append(f"{informer.name}: {count} {name} instead of {expected}")
            lists, watches = lists + new_lists, watches + new_watches
        return RequestCounts(lists, watches, tuple(unplanned))


class Exchangeable(Generic[A, R]):
    """Calls `function`, whichever that is by then. Raises what it raises."""

    def __init__(self, function: Callable[[A], R]) -> None:
        self.function = function

    def __call__(self, argument: A) -> R:
        """The answer of the function of now."""
        return self.function(argument)


def exchangeable(function: IndexFunc) -> IndexFunc:
    """An index function that can be exchanged; one by field path is nobody's, and stays what it is."""
    return function_index(function.function) if isinstance(function, FunctionIndex) else function


def exchange(there: IndexFunc, function: IndexFunc) -> None:
    """Let what `exchangeable` made call another function from now on, of the same definition."""
    if isinstance(there, FunctionIndex) and isinstance(function, FunctionIndex):
        there.function = function.function


class StagedTransform:
    """The transform of a cache that fills for a staged generation: `run` decodes in a thread.

    It takes the place of `transform`, and is called within `run` alone. When a `run` is cancelled, its
    thread ends with the object at hand, and changes nothing after that.
    """

    def __init__(self, transform: Transform, *, what: str) -> None:
        self._transform = transform
        self._what = what  # what is called, for the status and for messages
        self._turn = asyncio.Lock()  # held by the thread that decodes, until it returns; also if abandoned
        self._call = self._new_call()  # of the `run` that has the turn, or had it last

    def __call__(self, obj: KubeObject) -> KubeObject | None:
        """What the transform makes of an object."""
        metadata = mapping(obj.get("metadata"))
        call = self._call
        call.note(key_of(metadata.get("namespace"), str(metadata.get("name"))))
        try:
            return self._transform(obj)
        finally:
            # It may have been given up while user code ran: nothing of its result may reach the cache.
            call.go_on()

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, in a thread. One after the other: a decoder is for one thread."""
        await self._turn.acquire()
        loop, call = asyncio.get_running_loop(), self._new_call()
        self._call = call
        # The thread and the one who cancels race for this one item: whoever gets it gives the turn back.
        unbegun = [True]

        def decode() -> T:
            unbegun.pop()  # IndexError, which nobody hears, where the wait is over already
            try:
                return work()
            finally:
                with suppress(RuntimeError):  # the loop is closed: nobody waits for the turn
                    loop.call_soon_threadsafe(self._turn.release)

        try:
            return await call.run(decode)
        except BaseException:
            with suppress(IndexError):
                unbegun.pop()
                self._turn.release()  # no thread has begun, and none will
            raise

    @property
    def is_running(self) -> bool:
        """Whether a thread runs it now."""
        return self._turn.locked()

    def refusal(self, why: str) -> ReloadRefused:
        """TransformTimeout, with the function and the object that it was called with last."""
        return ReloadRefused("TransformTimeout", self._call.fault(why))

    def _new_call(self) -> UserCall:
        return UserCall(name="declctl-transform", what=self._what)


@dataclass(frozen=True, slots=True)
class ResourceIndex:
    """An index of a resource: the name that listers know, and the one it has in the store.

    The second contains a digest of the definition, so that two generations may define one name
    differently.
    """

    name: str
    internal: str
    function: IndexFunc


@dataclass(frozen=True, slots=True, eq=False)
class ResourceRequirement:
    """What one generation needs of one resource. Each generation has its own, compared by identity."""

    plan: ResourcePlan
    identities: tuple[CacheIdentity, ...]
    indexes: tuple[ResourceIndex, ...]
    transform: Transform | None


@dataclass(eq=False)
class ManagedInformer:
    """One informer, its task, and the number of its users.

    Used on the machinery loop; the pool writes the fields.
    """

    identity: CacheIdentity  # changes at a commit that keeps its records in another way
    informer: SharedIndexInformer
    codec: Codec  # how its records are kept
    # The function in it belongs to a generation that uses the cache, as index functions do.
    transform: Exchangeable[KubeObject, KubeObject | None] | None = None
    mutations: MutationDetector | None = None  # looks at objects that readers share; None for frames
    task: asyncio.Task[None] | None = None  # None until it is started
    users: int = 0  # requirements that it serves, of all generations
    # Until when the last generation that was committed and released wanted it kept, by the loop's time.
    lingers_until: float = 0.0
    closing: asyncio.TimerHandle | None = None  # set while nobody uses it
    started_at: float = 0.0  # by the clock, in seconds
    # Keeps the transform off the loop, from a reload that made this cache until the commit.
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
        if self.transform is not None and isinstance(self.informer.source, SupportsDecodeRunner):
            self.staged = self.transform.function = transform
            self._decode_in(transform.run)

    def _decode_in(self, decode_runner: Callable[[Callable[[], Any]], Awaitable[Any]] | None) -> None:
        source = self.informer.source
        assert isinstance(source, SupportsDecodeRunner)
        source.decode_runner = decode_runner

    def call_those_of(self, users: Sequence[ResourceRequirement]) -> None:
        """Call the functions of these users, the first one's before the others': a generation is gone."""
        transform = transform_of(users)
        if self.transform is not None and transform is not None:
            self.transform.function = transform
        # Reversed: of two functions under one name, that of the oldest user is written last, and stays.
        wanted = {index.internal: index.function for user in reversed(users) for index in user.indexes}
        for name, function in self.informer.indexer.get_indexers().items():
            if name in wanted:
                exchange(function, wanted[name])


def make_informer(
    cluster: SourceProvider,
    identity: CacheIdentity,
    users: Sequence[ResourceRequirement],
    *,
    clock: Clock,
    staged: bool,
) -> ManagedInformer:
    """A cache that is empty, is not started, and has no user yet.

    Where it is `staged` beside a generation that runs, no user code of it runs on the loop: it lacks the
    indexes by functions, which are built when it has synced, and a thread transforms what it lists.
    """
    watch, codec, transform = identity.watch, codec_of(identity.watch), transform_of(users)
    # The decoder keeps this object, so that the function of the next generation can take its place.
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
        # The strictest of its users is the one to serve.
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


class Question(Protocol):
    """What user code has to be asked about all objects of some caches. Used on the machinery loop."""

    @property
    def caches(self) -> Sequence[ManagedInformer]:
        """Whose objects these are."""
        ...

    @property
    def stale(self) -> int:
        """How many objects there are about which it has not been asked as they are now."""
        ...

    async def ask_some(self) -> None:
        """Ask in a thread about some of them. Cancelling leaves the thread behind."""
        ...

    def refusal(self, why: str) -> ReloadRefused:
        """What to raise where it does not come to an end; `why` ends a sentence about it."""
        ...


async def ask(questions: Iterable[Question], *, timeout: float) -> None:
    """Ask about all cached objects. A few that have changed meanwhile may be left, for `ask_the_rest`.

    Raises ReloadRefused after `timeout` seconds in all, and what `ask_some` raises.
    """
    question: Question | None = None
    try:
        async with asyncio.timeout(timeout):
            for question in questions:
                late = 0  # batches of what has changed meanwhile
                while question.stale and late < _MOST_BATCHES:
                    # Less than a whole batch is left: from here on it is what has changed meanwhile.
                    late += question.stale < BATCH
                    await question.ask_some()
    except TimeoutError as error:
        assert question is not None
        raise question.refusal(f"took longer than {timeout:g} s") from error


async def ask_the_rest(questions: Sequence[Question]) -> None:
    """Ask about all objects that are left, while the caches take in nothing until the next turn of the loop.

    A commit in the same turn therefore finds nothing stale. Raises as `ask` does, after a second.
    """
    question: Question | None = None
    with ExitStack() as held:
        # Only what is asked about is held; all other caches go on.
        for cached in dict.fromkeys(c for question in questions if question.stale for c in question.caches):
            held.enter_context(cached.informer.held())
        try:
            async with asyncio.timeout(_LONGEST_HOLD):
                for question in questions:
                    while question.stale:
                        await question.ask_some()
        except TimeoutError as error:
            assert question is not None
            why = f"is slower than objects change: for the last of them {_LONGEST_HOLD:g} s were too short"
            raise question.refusal(why) from error


class StagedIndexBuild:
    """An index over a cache that lives: built by a thread, kept current until the commit, then `publish`ed.

    `resource` is the name of the resource that it is declared for.
    """

    def __init__(self, cached: ManagedInformer, index: ResourceIndex, *, resource: str) -> None:
        self.caches = (cached,)
        self.internal = index.internal
        self._build = cached.informer.build_index(index.internal, exchangeable(index.function))
        self._call = UserCall(name="declctl-index", what=f"the index {index.name} of {resource}")

    @property
    def stale(self) -> int:
        """How many objects are not in it as they are now."""
        return self._build.stale

    async def ask_some(self) -> None:
        """Index some of them. Cancelling gives the index up."""
        stale_objects = self._build.stale_objects(_BATCH_OF_A_THREAD)
        try:
            values = await self._call.run(lambda: self._build.ask(stale_objects, each=self._each))
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
        """IndexTimeout, with the function and the object that it was called with last."""
        return ReloadRefused("IndexTimeout", self._call.fault(why))

    def _each(self, keys: Iterable[str]) -> Iterator[str]:
        return self._call.objects(keys, str)

    def publish(self) -> None:
        """Let it be read, at the commit. Nothing is computed where nothing is stale."""
        self._build.finish()
