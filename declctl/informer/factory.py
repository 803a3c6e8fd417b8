"""The factory: one informer for each distinct watch, shared and counted (client-go factory.go).

It also does what client-go has three factories for: informers by kind, by the name of a resource
(dynamicinformer), and of metadata only (metadatainformer). Before it stand its options, and those of each of
its informers (client-go's SharedInformerOption).
"""

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypedDict, Unpack

from declctl.decoding.decoders import Transform
from declctl.decoding.projection import Projection
from declctl.errors import CacheError
from declctl.informer.applier import UidChange
from declctl.informer.controller import QueueKind
from declctl.informer.informer import SharedIndexInformer
from declctl.informer.reflector.reflector import DEFAULT_OPTIONS, ReflectorOptions
from declctl.informer.source import SourceProvider
from declctl.informer.stores.indices import AnyIndexFunc, FieldIndex
from declctl.informer.wait import SyncResult, wait_for_cache_sync
from declctl.kit import Clock, Latch, SystemClock, call_on, running_loop
from declctl.objects import PARTIAL_OBJECT_METADATA, FieldPath, GroupVersionKind


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects an informer watches, and how much of them.

    `namespace` None means all. The selectors are the server's work: every LIST and every WATCH
    carries them. `metadata_only` asks for PartialObjectMetadata instead of whole objects.
    """

    gvk: GroupVersionKind
    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""
    metadata_only: bool = False

    def __str__(self) -> str:
        part = " metadata" if self.metadata_only else ""
        scope = f" in {self.namespace}" if self.namespace else ""
        selectors = " and ".join(text for text in (self.label_selector, self.field_selector) if text)
        return f"{self.gvk}{part}{scope}{f' with {selectors}' if selectors else ''}"


TweakSelection = Callable[[Selection], Selection]


class FactoryOptions(TypedDict, total=False):
    """What holds for every informer of a factory that does not say otherwise.

    - `namespace`: watch this one only; by default all.
    - `resync_period`: seconds between two replays of the cache to each handler; 0, the default, for
      none. `custom_resync` has other periods by kind: `{("v1", "Pod"): 60}`.
    - `tweak_list_options`: called with each `Selection` that was asked for; what it returns is
      listed and watched instead.
    - `transform`: changes each object before it is cached.
    - `options`: how reflectors ask: page size, time limits.
    - `uid_change`: how another uid under a key is told: `recreate`, the default, as a delete and an
      add, or `update`, as client-go does.
    - `queue`: `RealFIFO`, the default, or `DeltaFIFO`, which keeps together what is pending of a key.
    - `name`: stands before the names of the informers, in messages and of tasks.
    - `clock`: the time that they live by.
    """

    namespace: str | None
    resync_period: float
    custom_resync: Mapping[tuple[str, str], float]
    tweak_list_options: TweakSelection | None
    transform: Transform | None
    options: ReflectorOptions
    uid_change: UidChange
    queue: QueueKind
    name: str
    clock: Clock | None


class InformerOptions(TypedDict, total=False):
    """What one informer is asked for with. What is left out is as the factory has it.

    - `namespace`: "" means all, also where the factory has one.
    - `label_selector`, `field_selector`: as kubectl takes them.
    - `metadata_only`: objects are PartialObjectMetadata, which are much smaller.
    - `transform`: None for none, also where the factory has one.
    - `indexers`: indexes that are added unless they are there.
    - `resync_period`, `options`: as in `FactoryOptions`. Who asks first decides; other options than
      those of the informer that is there raise CacheError.
    - `exclusive`: an informer of one's own, which nobody else is given.
    """

    namespace: str | None
    label_selector: str
    field_selector: str
    metadata_only: bool
    transform: Transform | None
    indexers: Mapping[str, AnyIndexFunc]
    resync_period: float | None
    options: ReflectorOptions
    exclusive: bool


_Watched = tuple[Selection, Transform | None]


class _Member:
    """One informer, who uses it, its task, and the task that closes it when nobody does."""

    def __init__(self, watched: _Watched, informer: SharedIndexInformer, options: ReflectorOptions) -> None:
        self.watched = watched
        self.informer = informer
        self.options = options
        self.users = 0
        self.unused = Latch(f"no user of {informer.name}")  # a new latch each time that a user comes back
        self.task: asyncio.Task[None] | None = None
        self.closing: asyncio.Task[None] | None = None
        self.ended = Latch(f"end of {informer.name}")

    @property
    def name(self) -> str:
        """Of the informer."""
        return self.informer.name

    @property
    def synced(self) -> Latch:
        """Of the informer."""
        return self.informer.synced

    def why_not_synced(self) -> str:
        """What it does, or why it does nothing any longer."""
        if self.task is not None and self.task.done() and not self.task.cancelled():
            return f"it ended: {self.task.exception()!r}"
        return self.informer.why_not_synced()

    def start(self) -> None:
        """List and watch, unless that was begun before."""
        if self.task is None:
            self.informer.bind()
            self.task = asyncio.create_task(self._run(), name=self.name)
            self.task.add_done_callback(lambda _: self.ended.open())

    async def _run(self) -> None:
        # What was indexed until now is decoded from the first object on.
        indexed = self.informer.indexer.get_indexers().values()
        paths = [function.path for function in indexed if isinstance(function, FieldIndex)]
        self.informer.source.projection = _projection(self.watched, paths)
        await self.informer.run()


class _SyncWait:
    """A member that is waited for, until it has synced or has no users any longer."""

    def __init__(self, member: _Member) -> None:
        self.member = member
        self.unused = member.unused
        self.name = member.name
        self.synced = Latch(member.name)
        self.ended = member.ended
        self._sources = (member.synced, self.unused)
        for latch in self._sources:
            latch.on_open(self.synced.open)

    def why_not_synced(self) -> str:
        """Of the member."""
        return self.member.why_not_synced()

    @property
    def counts(self) -> bool:
        """Whether somebody still wants to know: it has synced, or is used."""
        return self.member.synced.is_open or not self.unused.is_open

    def forget(self) -> None:
        """It is waited for no longer."""
        for latch in self._sources:
            latch.forget(self.synced.open)


class SharedInformerFactory:
    """Informers by what they watch, started and stopped together. Used on one loop.

    Informers may be asked for before that loop runs; `informer`, `start` and `release` may be called
    from any thread while it does. Asking twice for the same watch gives the same informer. As an async
    context manager it starts each informer as soon as it was asked for, and stops all of them when the
    last of those who have entered it leaves; else `start` starts those that were asked for until then.
    Field indexers that are added before an informer runs are projected: they cost no decoding. `options`
    are those of `FactoryOptions`.
    """

    def __init__(self, client: SourceProvider, **options: Unpack[FactoryOptions]) -> None:
        self._client = client
        self._given = options
        self._clock: Clock = options.get("clock") or SystemClock()
        self._members: dict[SharedIndexInformer, _Member] = {}
        self._shared: dict[_Watched, _Member] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # on which its informers run
        self._entered = 0  # how many blocks are in it
        self._ended = False

    async def __aenter__(self) -> Self:
        self._entered += 1
        self._ended = False
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered > 1:
            self._entered -= 1  # somebody else is in it still
        else:
            await self.shutdown()

    def informer(
        self, api_version: str, kind: str, **options: Unpack[InformerOptions]
    ) -> SharedIndexInformer:
        """The informer of a watch. The kind need not be served yet: it is waited for.

        Raises CacheError after `shutdown`, for an indexer whose name is taken by another function,
        and for other reflector options than those of the informer that is there. From any thread.
        """
        return call_on(self._loop, lambda: self._informer(api_version, kind, options))

    def _informer(self, api_version: str, kind: str, options: InformerOptions) -> SharedIndexInformer:
        if self._ended:
            raise CacheError("the factory was shut down: enter it again, or make another one")
        watched = self._watched(GroupVersionKind.of(api_version, kind), options)
        # An informer runs once: where it has stopped, a new one takes its place.
        member = None if options.get("exclusive") else self._shared.get(watched)
        if member is None or member.informer.is_stopped:
            member = self._make(watched, options)
            self._members[member.informer] = member
            if not options.get("exclusive"):
                self._shared[watched] = member
        if options.get("options", member.options) != member.options:
            raise CacheError(
                f"{member.informer.name} is watched with other options already; ask for an exclusive informer"
            )
        member.informer.share_indexers(options.get("indexers", {}))
        member.users += 1
        # It was released and lingers: the new user takes it over, and its end is called off.
        if member.unused.is_open:
            member.unused = Latch(member.unused.name)
        if member.closing is not None:
            member.closing.cancel()
            member.closing = None
        if self._entered:
            self.start()
        return member.informer

    async def for_resource(self, name: str, **options: Unpack[InformerOptions]) -> SharedIndexInformer:
        """The informer of a resource by its name (client-go's dynamic factory); shared with `informer`.

        `pods`, `deployments.apps`, `deployments.v1.apps` or `apps/v1/deployments`; without a version
        it is the one that the server prefers. Raises NotFound if the server has no such resource.
        """
        gvk = (await self._client.find_resource(name)).gvk
        return self.informer(gvk.api_version, gvk.kind, **options)

    def start(self) -> None:
        """Start what has not been started. May be called again and again; nothing after `shutdown`.

        The loop that runs is the one on which the informers run. From another thread once there is one;
        raises CacheError where there is none yet.
        """
        call_on(self._loop, self._start)

    def _start(self) -> None:
        if self._ended:
            return
        self._loop = running_loop()
        if self._loop is None:
            raise CacheError(
                "no event loop runs here on which informers could run: call start() in a coroutine, "
                "or enter the factory by `async with`"
            )
        for member in self._members.values():
            member.start()

    async def wait_for_cache_sync(
        self, timeout: float | None = None, *, informers: Iterable[SharedIndexInformer] | None = None
    ) -> SyncResult:
        """Return when the informers that were started by now and are used have their first list.

        With `informers`, only these are waited for: where others share the factory, theirs may be refused
        or take long. One that its last user releases meanwhile is waited for no longer. Raises NotSynced
        after `timeout` seconds, or when one ends before, with what is missing and why; the log says so
        after a while. Raises CacheError for an informer that is not of this factory.
        """
        # Each member is waited for by a latch that also opens when its last user leaves.
        awaited = [_SyncWait(member) for member in self._wanted(informers)]
        try:
            result = await wait_for_cache_sync(*awaited, timeout=timeout, clock=self._clock)
        finally:
            for each in awaited:
                each.forget()
        by_name = zip(result.synced, awaited, strict=True)
        result = dataclasses.replace(
            result, synced={name: each.member.synced.is_open for name, each in by_name if each.counts}
        )
        error = result.as_error()
        if error is not None:
            raise error
        return result

    def release(self, informer: SharedIndexInformer, *, linger: float = 0.0) -> None:
        """One user less; when nobody has asked for it again `linger` seconds after the last, it stops.

        An informer that is not (or no longer) of this factory is left alone. From any thread.
        """
        call_on(self._loop, lambda: self._release(informer, linger))

    def _release(self, informer: SharedIndexInformer, linger: float) -> None:
        member = self._members.get(informer)
        if member is None or member.users == 0:
            return
        if member.users == 1:
            self._end_later(member, linger)  # first: where it can't be done, nothing has changed
        member.users -= 1
        if member.users == 0:
            member.unused.open()

    def _end_later(self, member: _Member, linger: float) -> None:
        if running_loop() is not None:
            member.closing = asyncio.create_task(self._close(member, linger), name=f"close {member.name}")
        elif member.task is None:
            self._forget(member)  # no loop has run yet: there is nothing that could linger
        else:
            raise CacheError(f"the loop of {member.name} does not run any longer: nothing can be released")

    async def shutdown(self) -> None:
        """Stop every informer and return when they have ended. Final, unless the factory is entered again."""
        # Ended first: an informer that is asked for while the others stop would be left running.
        self._entered, self._ended = 0, True
        members = list(self._members.values())
        self._members.clear()
        self._shared.clear()
        # Lingering ends are cancelled with the informers that they would have ended.
        running = [task for member in members for task in (member.task, member.closing) if task is not None]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        for member in members:
            if member.task is not None and not member.task.cancelled():
                member.task.result()  # it ended by itself: that was a fault of its own

    async def _close(self, member: _Member, linger: float) -> None:
        await self._clock.sleep(linger)
        # From here on it is too late to come back: whoever asks gets another one.
        self._share_no_more(member)
        if member.task is not None:
            member.task.cancel()
            await asyncio.wait([member.task])
        self._forget(member)

    def _share_no_more(self, member: _Member) -> None:
        if self._shared.get(member.watched) is member:
            del self._shared[member.watched]

    def _forget(self, member: _Member) -> None:
        self._share_no_more(member)
        self._members.pop(member.informer, None)

    def _wanted(self, informers: Iterable[SharedIndexInformer] | None) -> Sequence[_Member]:
        """Who is waited for."""
        if informers is None:
            return [each for each in self._members.values() if each.task is not None and each.users]
        wanted: list[_Member] = []
        for informer in dict.fromkeys(informers):
            if informer not in self._members:
                raise CacheError(f"{informer.name} is not, or no longer, an informer of this factory")
            wanted.append(self._members[informer])
        return wanted

    def _watched(self, gvk: GroupVersionKind, asked: InformerOptions) -> _Watched:
        namespace = asked.get("namespace")
        selection = Selection(
            gvk,
            namespace=(self._given.get("namespace") if namespace is None else namespace) or None,
            label_selector=asked.get("label_selector", ""),
            field_selector=asked.get("field_selector", ""),
            metadata_only=asked.get("metadata_only", False),
        )
        tweak = self._given.get("tweak_list_options")
        transform = asked.get("transform", self._given.get("transform"))
        return (selection if tweak is None else tweak(selection)), transform

    def _make(self, watched: _Watched, asked: InformerOptions) -> _Member:
        selection, _ = watched
        source = self._client.source(
            selection.gvk,
            namespace=selection.namespace,
            label_selector=selection.label_selector,
            field_selector=selection.field_selector,
            metadata_only=selection.metadata_only,
            projection=_projection(watched),
        )
        factory, options = self._given.get("name"), self._given.get("options", DEFAULT_OPTIONS)
        options = asked.get("options", options)
        informer = SharedIndexInformer(
            source,
            name=f"{factory}: {selection}" if factory else str(selection),
            clock=self._clock,
            resync_period=self._resync_period(selection.gvk, asked.get("resync_period")),
            options=options,
            uid_change=self._given.get("uid_change", "recreate"),
            queue=self._given.get("queue", "RealFIFO"),
        )
        return _Member(watched, informer, options)

    def _resync_period(self, gvk: GroupVersionKind, asked: float | None) -> float:
        if asked is not None:
            return asked
        custom = self._given.get("custom_resync", {})
        return custom.get((gvk.api_version, gvk.kind), self._given.get("resync_period", 0.0))


def _projection(watched: _Watched, paths: Iterable[FieldPath] = ()) -> Projection:
    selection, transform = watched
    gvk = PARTIAL_OBJECT_METADATA if selection.metadata_only else selection.gvk
    return Projection(api_version=gvk.api_version, kind=gvk.kind, paths=paths, transform=transform)
