"""The factory: one informer for each distinct watch, shared by its users (client-go's factory.go).

It does the work of three factories of client-go: informers by kind, by the name of a resource
(dynamicinformer), and of metadata only (metadatainformer). `FactoryOptions` and `InformerOptions` are the
keyword arguments (client-go's SharedInformerOption).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypedDict, Unpack

from msgspec.structs import replace

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
    """Which objects an informer watches, and how much of each. Two equal selections share an informer.

    - `gvk`: the kind.
    - `namespace`: None, the default, for all namespaces.
    - `label_selector`, `field_selector`: as kubectl takes them; empty selects everything. The server applies
      them: they are parameters of every LIST and WATCH.
    - `metadata_only`: the server sends PartialObjectMetadata in the place of whole objects.
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
"""Returns the selection to watch in the place of the one that was asked for."""


class FactoryOptions(TypedDict, total=False):
    """The options of a factory; an informer's own options take precedence.

    - `namespace`: watch this namespace only; by default all.
    - `resync_period`: seconds between two replays of the cache to each handler; 0, the default, for
      none. `custom_resync` has other periods by kind: `{("v1", "Pod"): 60}`.
    - `tweak_list_options`: called with each `Selection` that a user asks for; the selection that it returns
      is listed and watched (client-go's WithTweakListOptions).
    - `transform`: changes each object before it is cached (WithTransform).
    - `options`: how reflectors list and watch: page size, time limits.
    - `uid_change`: the notifications when a key has an object with another uid: `recreate`, the default, for
      a delete and an add, or `update`, as in client-go, for one update.
    - `queue`: `RealFIFO`, the default, or `DeltaFIFO`, which keeps the pending changes of a key together.
    - `name`: a prefix of the names of the informers, in messages and of tasks.
    - `clock`: the clock of the informers; the system's by default.
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
    """The options of one informer. The factory's options apply to those that are left out.

    - `namespace`: "" means all, also where the factory has a namespace.
    - `label_selector`, `field_selector`: as kubectl takes them.
    - `metadata_only`: objects are PartialObjectMetadata, which are much smaller.
    - `transform`: None for no transform, also where the factory has one.
    - `indexers`: index functions by name; those that the informer has already are not added again.
    - `resync_period`, `options`: as in `FactoryOptions`. They are those of the first user. If a later user
      asks for other `options`, CacheError is raised.
    - `exclusive`: True for an informer that is not shared.
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
    """One informer of a factory, with its users and tasks."""

    def __init__(self, watched: _Watched, informer: SharedIndexInformer, options: ReflectorOptions) -> None:
        self.watched = watched
        self.informer = informer
        self.options = options  # of the reflector, as the first user asked
        self.users = 0  # calls of `informer` without their `release`
        # Opens when `users` becomes 0. A user who comes after that replaces it.
        self.unused = Latch(f"no user of {informer.name}")
        self.task: asyncio.Task[None] | None = None  # runs the informer; None before the start
        self.closing: asyncio.Task[None] | None = None  # ends the informer after its linger; None while used
        self.ended = Latch(f"end of {informer.name}")  # opens with the end of `task`

    @property
    def name(self) -> str:
        """The name of the informer."""
        return self.informer.name

    @property
    def synced(self) -> Latch:
        """The latch of the informer's sync."""
        return self.informer.synced

    def why_not_synced(self) -> str:
        """Why the informer has not synced: its state, or the exception that ended it."""
        if self.task is not None and self.task.done() and not self.task.cancelled():
            return f"it ended: {self.task.exception()!r}"
        return self.informer.why_not_synced()

    def start(self) -> None:
        """Start the informer, unless it was started before."""
        if self.task is None:
            self.informer.bind()
            self.task = asyncio.create_task(self._run(), name=self.name)
            self.task.add_done_callback(lambda _: self.ended.open())

    async def _run(self) -> None:
        # Paths that are indexed by now are projected: their values need no decoding.
        indexed = self.informer.indexer.get_indexers().values()
        paths = [function.path for function in indexed if isinstance(function, FieldIndex)]
        self.informer.source.projection = _projection(self.watched, paths)
        await self.informer.run()


class _SyncWait:
    """The wait for one member, a `Waitable`. It ends when the member has synced or has no user any longer."""

    def __init__(self, member: _Member) -> None:
        self.member = member
        self.unused = member.unused  # the latch at the beginning: a user who comes later has another one
        self.name = member.name
        self.synced = Latch(member.name)  # opens at the end of the wait
        self.ended = member.ended
        self._sources = (member.synced, self.unused)  # each of them opens `synced`
        for latch in self._sources:
            latch.on_open(self.synced.open)

    def why_not_synced(self) -> str:
        """Why the member has not synced."""
        return self.member.why_not_synced()

    @property
    def counts(self) -> bool:
        """Whether the member belongs into the result: it has synced, or its users have not left."""
        return self.member.synced.is_open or not self.unused.is_open

    def forget(self) -> None:
        """Detach from the latches of the member."""
        for latch in self._sources:
            latch.forget(self.synced.open)


class SharedInformerFactory:
    """One informer for each distinct watch, started and stopped together (SharedInformerFactory).

    `client` makes the sources. `options` are those of `FactoryOptions`.

    - Two requests for the same watch return the same informer.
    - As an async context manager, the factory starts each informer at its first request. It stops all of them
      when the last of its blocks ends. Outside of such a block, `start` starts the informers that were
      requested before.
    - Field indexers that are added before the start of an informer are projected: they need no decoding.

    The informers run on one loop. Before that loop runs, the factory may be used by one thread. While it
    runs, `informer`, `start` and `release` may be called from any thread, the other methods on the loop.
    """

    def __init__(self, client: SourceProvider, **options: Unpack[FactoryOptions]) -> None:
        self._client = client
        self._given = options
        self._clock: Clock = options.get("clock") or SystemClock()
        self._members: dict[SharedIndexInformer, _Member] = {}  # all that have not ended
        self._shared: dict[_Watched, _Member] = {}  # those that a further request returns
        self._loop: asyncio.AbstractEventLoop | None = None  # of the informers; None before the start
        self._entered = 0  # `async with` blocks that are open
        self._ended = False  # `shutdown` was called, and no block was entered since

    async def __aenter__(self) -> Self:
        self._entered += 1
        self._ended = False
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered > 1:
            self._entered -= 1  # another block still uses the informers
        else:
            await self.shutdown()

    def informer(
        self, api_version: str, kind: str, **options: Unpack[InformerOptions]
    ) -> SharedIndexInformer:
        """The informer of a kind, such as `apps/v1` and `Deployment`; `options` are InformerOptions.

        The server may serve the kind later: the informer waits for it. Each call needs a `release`, unless
        the factory is shut down. Raises CacheError after `shutdown`, for an indexer whose name another
        function has, and for other reflector options than those of the existing informer. From any thread.
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
        # A released informer that lingers has a user again: its end is cancelled.
        if member.unused.is_open:
            member.unused = Latch(member.unused.name)
        if member.closing is not None:
            member.closing.cancel()
            member.closing = None
        if self._entered:
            self.start()
        return member.informer

    async def for_resource(self, name: str, **options: Unpack[InformerOptions]) -> SharedIndexInformer:
        """The informer of a resource by its name (client-go's dynamicinformer); shared with `informer`.

        `name` is such as `pods`, `deployments.apps`, `deployments.v1.apps` or `apps/v1/deployments`. Without
        a version, the server's preferred version is used. Raises NotFound if the server has no such resource,
        UsageError for a text that is no such name, and as `informer` does. On the loop.
        """
        gvk = (await self._client.find_resource(name)).gvk
        return self.informer(gvk.api_version, gvk.kind, **options)

    def start(self) -> None:
        """Start the informers that were requested and not started. No effect after `shutdown`.

        The first call is made on the loop on which the informers shall run; raises CacheError where no loop
        runs. Further calls may come from any thread.
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
        """Wait until informers have their first list in the cache (client-go's WaitForCacheSync).

        - `informers`: wait for these only; by default for all that are started and have a user.
        - `timeout`: seconds, None for no limit.

        The wait for an informer also ends when its last user releases it. Raises NotSynced after `timeout`,
        or when an informer ends before it has synced; the message names each missing informer and the reason.
        During a long wait the log has the same. Raises CacheError for an informer of another factory. On the
        loop.
        """
        # Each member is waited for by a latch that also opens when its last user leaves.
        awaited = [_SyncWait(member) for member in self._wanted(informers)]
        try:
            result = await wait_for_cache_sync(*awaited, timeout=timeout, clock=self._clock)
        finally:
            for each in awaited:
                each.forget()
        by_name = zip(result.synced, awaited, strict=True)
        result = replace(
            result, synced={name: each.member.synced.is_open for name, each in by_name if each.counts}
        )
        error = result.as_error()
        if error is not None:
            raise error
        return result

    def release(self, informer: SharedIndexInformer, *, linger: float = 0.0) -> None:
        """Take back one request for an informer. Without further users, it stops after `linger` seconds.

        A request within these seconds keeps the informer running. No effect for an informer that is not, or
        no longer, of this factory. Raises CacheError when the loop of a running informer has ended. From any
        thread.
        """
        call_on(self._loop, lambda: self._release(informer, linger))

    def _release(self, informer: SharedIndexInformer, linger: float) -> None:
        member = self._members.get(informer)
        if member is None or member.users == 0:
            return
        if member.users == 1:
            self._end_later(member, linger)  # first: if it raises, the user still counts
        member.users -= 1
        if member.users == 0:
            member.unused.open()

    def _end_later(self, member: _Member, linger: float) -> None:
        if running_loop() is not None:
            member.closing = asyncio.create_task(self._close(member, linger), name=f"close {member.name}")
        elif member.task is None:
            self._forget(member)  # the informer has not been started: nothing has to be ended
        else:
            raise CacheError(f"the loop of {member.name} does not run any longer: nothing can be released")

    async def shutdown(self) -> None:
        """Stop every informer, and return when all have ended (client-go's Shutdown). On the loop.

        Further requests raise CacheError, until the factory is entered again. Raises the exception of an
        informer that failed.
        """
        # First of all: an informer that is requested while the others stop would be left running.
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
                member.task.result()  # a task that was not cancelled ended by an exception

    async def _close(self, member: _Member, linger: float) -> None:
        await self._clock.sleep(linger)
        # From here on the end can't be cancelled: a new request makes another informer.
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
        """The members whose sync is waited for."""
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
