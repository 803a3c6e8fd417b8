"""One cache: an informer over one watch, its records kept in one way, and what generations want of it.

Two generations may define an index or a transform alike, and the cache of the first serves the second. The
code of the first is freed all the same, and its functions could import nothing after that: so they are
exchanged for those of the second, which do the same.

Foreign code of a staged generation has never run here: its transform and its index functions are asked in
threads, under a deadline, while the loop goes on. Objects that change meanwhile are asked about again; for
the last few, the caches take in nothing for a moment, so that nothing is left to ask at the commit.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from declctl.decoding import Transform
from declctl.errors import ReloadRefused
from declctl.informer import (
    FieldIndex,
    FunctionIndex,
    IndexFunc,
    InformerStatistics,
    ReflectorOptions,
    SharedIndexInformer,
    SourceProvider,
    function_index,
)
from declctl.informer.source import DecodesElsewhere
from declctl.kit import Clock
from declctl.kit.callbacks import foreign_place
from declctl.manifest.model import CacheMode
from declctl.manifest.plan import ResourcePlan
from declctl.objects import Codec, FieldPath, GroupVersionKind, KubeObject, ObjectCodec
from declctl.objects.answers import mapping
from declctl.objects.differences import MutationDetector
from declctl.objects.resource import key_of
from declctl.runtime.caching.identities import CacheIdentity, codec_of, projection_of
from declctl.runtime.threads import in_thread

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
BATCH = 1000  # objects that a thread is asked about at once; to take in the answers takes about 0.5 ms
_MOST_BATCHES = 10  # of what has changed meanwhile; then caches are held, so that it comes to an end
_LONGEST_HOLD = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """LISTs and WATCHes of all caches since a generation was prepared, and in words what was not planned.

    Planned are one LIST and one WATCH for each new cache, and none for those that live on, but what they were
    asked to list.
    """

    lists: int = 0
    watches: int = 0
    unplanned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestCounter:
    """The figures of the caches that lived when a generation was prepared."""

    before: Mapping[SharedIndexInformer, InformerStatistics] = field(
        default_factory=dict[SharedIndexInformer, InformerStatistics]
    )

    @classmethod
    def begin(cls, living: Iterable[SharedIndexInformer]) -> "RequestCounter":
        """Look at what lives on."""
        return cls({informer: informer.statistics() for informer in living})

    def until_now(self, informers: Iterable[SharedIndexInformer]) -> RequestCounts:
        """What was asked since; `informers` are those that there are now."""
        lists, watches, unplanned = 0, 0, list[str]()
        for informer in informers:
            figures, before = informer.statistics(), self.before.get(informer)
            then = _counts(before) if before is not None else (0, 0)
            more = tuple(now - earlier for now, earlier in zip(_counts(figures), then, strict=True))
            lists, watches = lists + more[0], watches + more[1]
            planned = (0, 0) if before is not None else _of_a_first_list(figures)
            if _relists_requested(figures) > (_relists_requested(before) if before is not None else 0):
                planned = more
            unplanned += (f"{informer.name}: {what}" for what in _differences(more, planned))
        return RequestCounts(lists, watches, tuple(unplanned))


def _counts(figures: InformerStatistics) -> tuple[int, int]:
    return figures.lists, figures.watches


def _relists_requested(figures: InformerStatistics) -> int:
    return figures.reflector.relists_requested


def _of_a_first_list(figures: InformerStatistics) -> tuple[int, int]:
    """One LIST and one WATCH, which may be one request; a server that can't do that has refused one before.

    A kind that the server does not have is asked for until it appears.
    """
    if figures.missing:
        return _counts(figures)
    refused = not figures.reflector.streams and figures.watches > 1
    return 1, 1 + refused


def _differences(found: tuple[int, ...], planned: tuple[int, ...]) -> Iterator[str]:
    for name, count, expected in zip(("LIST", "WATCH"), found, planned, strict=True):
        if count != expected:
            yield f"{count} {name} instead of {expected}"


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


class _GivenUp(BaseException):
    """Ends a thread that nobody waits for, before the next object. No `except Exception` stops it."""


class _Work(Generic[T]):
    """One piece of work for a thread. `done` is called where it has begun, when it is over."""

    def __init__(
        self, work: Callable[[], T], *, begins: Callable[[], None], done: Callable[[], None]
    ) -> None:
        self._work, self._begins, self._done = work, begins, done
        self._deciding = threading.Lock()
        self._has_begun = False
        self.given_up = False

    def __call__(self) -> T:
        with self._deciding:
            if self.given_up:
                raise _GivenUp
            self._has_begun = True
        self._begins()
        try:
            return self._work()
        finally:
            self._done()

    def give_up(self) -> bool:
        """Nobody waits for it any longer; returns whether it has not begun, so that it never will."""
        with self._deciding:
            self.given_up = True
            return not self._has_begun


class StagedTransform:
    """The transform of a cache that fills for a staged generation: what it is asked for runs in a thread.

    It is called in the place of `transform`, within `run`. What runs was given up where nobody waits for it
    any longer: then it ends after the object that it is at, and touches nothing.
    """

    def __init__(self, transform: Transform, *, what: str) -> None:
        self._transform = transform
        self._what = what
        self._turn = asyncio.Lock()  # a thread that was left behind has it until it returns
        self._thread: int | None = None  # the one that runs, or was left behind
        self._current: _Work[Any] | None = None  # what has the turn
        self._at = ""  # the key of the object that was transformed last

    def __call__(self, obj: KubeObject) -> KubeObject | None:
        """What the transform makes of an object."""
        metadata = mapping(obj.get("metadata"))
        self._at = key_of(metadata.get("namespace"), str(metadata.get("name")))
        self._go_on()
        try:
            return self._transform(obj)
        finally:
            self._go_on()

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, in a thread. One after the other: a decoder is for one thread."""
        await self._turn.acquire()
        done = partial(self._over, asyncio.get_running_loop())
        asked = self._current = _Work(work, begins=self._begun, done=done)
        try:
            return await in_thread(asked, name="declctl-transform", what=self._what)
        except BaseException:
            if asked.give_up():  # there was no thread for it
                self._turn.release()
            raise

    @property
    def is_running(self) -> bool:
        """Whether a thread runs it now."""
        return self._turn.locked()

    def refusal(self, why: str) -> ReloadRefused:
        """TransformTimeout, with the function and the object that it was asked about last."""
        place = foreign_place(self._thread)
        return ReloadRefused("TransformTimeout", f"{self._what} {why}{asked_last(self._at, place)}")

    def _begun(self) -> None:
        self._thread = threading.get_ident()

    def _over(self, loop: asyncio.AbstractEventLoop) -> None:
        self._thread = None
        with suppress(RuntimeError):  # the loop has been closed: nobody waits for the turn any longer
            loop.call_soon_threadsafe(self._turn.release)

    def _go_on(self) -> None:
        if self._current is not None and self._current.given_up:
            raise _GivenUp


def asked_last(key: str, place: str) -> str:
    """The end of a sentence about foreign code: the object that it was asked about last, and where it is."""
    return "".join([f"; it was asked about {key} last" if key else "", f", at {place}" if place else ""])


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
    """What a generation wants of one resource. Two generations want the same in two of them."""

    plan: ResourcePlan
    identities: tuple[CacheIdentity, ...]
    indexes: tuple[ResourceIndex, ...]
    transform: Transform | None


@dataclass(eq=False)
class ManagedInformer:
    """One informer, its task, and who uses it. `mutations` looks at objects that its readers share.

    `lingers_until` is the time of the loop until which it was to be kept by the last generation that
    went, for one that may come back; `closing` is set while nobody uses it. `transform` and the index
    functions are of a generation that uses it. `staged` is there until the commit of the generation that it
    was made for by a reload: it keeps the transform off the loop.
    """

    identity: CacheIdentity
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


def make_informer(
    cluster: SourceProvider,
    identity: CacheIdentity,
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


class Question(Protocol):
    """What foreign code has to be asked about all objects of some caches. Used on the machinery loop."""

    @property
    def caches(self) -> Sequence[ManagedInformer]:
        """Whose objects these are."""
        ...

    @property
    def stale(self) -> int:
        """How many objects there are about which it has not been asked as they are now."""
        ...

    async def ask_some(self) -> None:
        """Ask in a thread about at most BATCH of them. Cancelling leaves the thread behind."""
        ...

    def refusal(self, why: str) -> ReloadRefused:
        """What to raise where it does not come to an end; `why` ends a sentence about it."""
        ...


async def ask(questions: Iterable[Question], *, timeout: float) -> None:
    """Ask about all that is cached; little is left that has changed meanwhile.

    Raises ReloadRefused after `timeout` seconds in all, and what `ask_some` raises.
    """
    question: Question | None = None
    try:
        async with asyncio.timeout(timeout):
            for question in questions:
                late = 0  # batches of what has changed meanwhile
                while question.stale and late < _MOST_BATCHES:
                    late += question.stale < BATCH
                    await question.ask_some()
    except TimeoutError as error:
        assert question is not None
        raise question.refusal(f"took longer than {timeout:g} s") from error


async def ask_the_rest(questions: Sequence[Question]) -> None:
    """Ask about all that is left, while the caches take in nothing: until the next turn of the loop.

    So whoever commits in this turn, does so with nothing stale. Raises as `ask` does, after a second.
    """
    question: Question | None = None
    with ExitStack() as held:
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
        self._what = f"the index {index.name} of {resource}"
        self._build = cached.informer.build_index(index.internal, exchangeable(index.function))
        self._thread: int | None = None  # of the last question
        self._place = ""  # where in foreign code that was when nobody waited for it any longer

    @property
    def stale(self) -> int:
        """How many objects are not in it as they are now."""
        return self._build.stale

    async def ask_some(self) -> None:
        """Index some of them. Cancelling gives the index up."""
        unasked = self._build.unasked(BATCH)

        def ask() -> Sequence[str | tuple[str, ...]]:
            self._thread = threading.get_ident()
            return self._build.ask(unasked)

        try:
            values = await in_thread(ask, name="declctl-index", what=self._what)
        except asyncio.CancelledError:
            self._place = foreign_place(self._thread)
            self._build.give_up()
            raise
        self._build.enter(unasked, values)

    def refusal(self, why: str) -> ReloadRefused:
        """IndexTimeout, with the function and the object that it was asked about last."""
        return ReloadRefused("IndexTimeout", f"{self._what} {why}{asked_last(self._build.at, self._place)}")

    def publish(self) -> None:
        """Let it be read, at the commit. Nothing is computed where nothing is stale."""
        self._build.finish()
