"""The reflector: lists and watches one resource, and feeds a queue (client-go's reflector.go).

It is a state machine: `step` runs one state to its end and returns the next one, `run` is the loop around it.
The states and the reactions to faults are in `faults`, the requests for lists in `lists`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from declctl.decoding.projection import Known, Projection, nothing_known
from declctl.errors import ApiError, CacheError, MalformedAnswer, Unreachable, WatchSilent
from declctl.informer.reflector.continuity import Continuity, SeenObjects, continuity
from declctl.informer.reflector.faults import (
    BackingOff,
    BackoffFactory,
    Circumstances,
    Deadline,
    ExponentialBackoff,
    HistoryReplaced,
    Inconsistent,
    Listing,
    RelistRequested,
    Resuming,
    ShortWatch,
    Starting,
    State,
    Streak,
    Streaming,
    Watching,
    doubts_server,
    forget_frames,
    refuses_shard_selector,
    transition_after,
    unreadable,
)
from declctl.informer.reflector.lists import (
    ConsistencyDetector,
    ListPager,
    OpenWatch,
    PagePolicy,
    initial_events,
    list_options,
)
from declctl.informer.reflector.resuming import PendingBatches, caught_up
from declctl.informer.reflector.statistics import ReflectorMetrics, ReflectorStatistics
from declctl.informer.scope import ShardScope
from declctl.informer.source import ServerMonitor, Source, health_of, supports_watch_list, takes_progress
from declctl.kit import Clock
from declctl.kit.callbacks import must_propagate, plain, refuse_async
from declctl.objects import (
    NO_ORDER,
    Delta,
    DeltaType,
    EventType,
    ListOptions,
    ListPage,
    Record,
    WatchEvent,
    WatchOptions,
    version_order,
)

MIN_WATCH_SECONDS = 300  # seconds: a server is never asked to end watches sooner
_FAULTY_WATCH_SECONDS = 1.0  # a watch that ends sooner and brought nothing is a fault (client-go 120)
_STREAM_SILENCE, _STREAM_DEADLINE = 30.0, 120.0  # seconds until a streaming list is given up
_PAGE_DEADLINE = 120.0  # seconds without progress until an answer to a LIST is given up
_PROOF_DEADLINE = 30.0  # seconds for the proof of the history; after that the server is trusted
_RESUME_SILENCE = 30.0  # seconds without an answer until the watch from kept objects is given up
_RELIST_SPREAD = 2.0  # seconds over which all watches list anew when the server's history is another one
_TELLING = 20  # objects of a list, all of held shards, after which the server counts as filtering
_EVENTS_PER_TURN = 256  # events until other tasks of the loop may run
# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every event.
_ADDED_EVENT, _MODIFIED_EVENT, _DROPPED_EVENT = EventType.ADDED, EventType.MODIFIED, EventType.DROPPED
_OUTSIDE_EVENT = EventType.OUTSIDE
_APPEARED, _UPDATED, _GONE = DeltaType.ADDED, DeltaType.UPDATED, DeltaType.DELETED
_LIVE = (EventType.MODIFIED, EventType.DELETED, EventType.BOOKMARK)  # never initial events of a watch
_log = logging.getLogger("declctl.informer")


@dataclass(frozen=True, slots=True)
class ReflectorOptions:
    """The options of a reflector (client-go's ReflectorOptions). Times are in seconds.

    - `idle_timeout`: a watch without any event or bookmark for so long is opened anew.
    - `page_size`: objects on a page of every LIST. None is client-go's policy: 500 where the server reads
      its storage anyway, and no pages where its watch cache can answer.
    - `watch_list`: request streaming lists; False for LIST and then WATCH.
    - `min_watch_timeout`: the server is asked to end a watch after a random time between this and its double;
      values below 300 count as 300.
    - `backoff`: makes the schedule of waits after faults.
    - `check_consistency`: after each streaming list, list again at exactly its version, and compare
      (client-go's data consistency detector). Each check costs a LIST from the server's storage.
    """

    idle_timeout: float = 90.0
    page_size: int | None = None
    watch_list: bool = True
    min_watch_timeout: int = MIN_WATCH_SECONDS
    backoff: BackoffFactory = ExponentialBackoff
    check_consistency: bool = False


DEFAULT_OPTIONS = ReflectorOptions()


class ReflectorStore(Protocol):
    """The queue or store that a reflector writes to, on its loop (client-go's ReflectorStore)."""

    def extend(self, deltas: Iterable[Delta]) -> None:
        """Receive changes, in their order."""
        ...

    def replace(self, records: Sequence[Record], resource_version: str) -> None:
        """Receive a complete list at a version."""
        ...

    def bookmark(self, resource_version: str) -> None:
        """Note that there are no further changes up to a version."""
        ...


class AnyReflector(Protocol):
    """A reflector, or several that fill one queue. `run` and `request_relist` are used on the loop."""

    on_fault: Callable[[Exception], None] | None  # called with each fault that causes a back-off

    async def run(self) -> None:
        """List and watch until cancelled."""
        ...

    def request_relist(self) -> None:
        """End the watch, and list the most recent state."""
        ...

    @property
    def last_sync_resource_version(self) -> str:
        """The newest version that was seen."""
        ...

    @property
    def fault(self) -> Exception | None:
        """The present fault; None while requests succeed."""
        ...

    def progress(self) -> str:
        """The present fault, or the progress of the list."""
        ...

    def statistics(self) -> ReflectorStatistics:
        """The figures of this moment."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _HistoryReplacement:
    """The server has another history than the cache, and the reason. Two of them are never equal.

    It is no exception: a stored exception would keep its traceback, and so the list that was being read.
    """

    why: str

    def fault(self) -> HistoryReplaced:
        """A new exception for it."""
        return HistoryReplaced(self.why)


class _ListBeginning(NamedTuple):
    """The state at the beginning of a list, which decides whether the complete list may be used."""

    replacement: _HistoryReplacement | None
    projection: Projection
    quorum: bool = False  # it has to be of the most recent state
    widenings: int = 0  # of the scope; a list does not count for shards that come after its beginning
    changes: int = 0  # of the scope
    shard_selector: str = ""


class Reflector:
    """Lists and watches one resource, and writes the changes to a store (client-go's Reflector).

    - `source`: the resource.
    - `store`: the queue or store that receives the changes.
    - `known`: returns the record that the store holds under a key, or None.
    - `options`: see ReflectorOptions.
    - `on_fault`: a plain function, called on the loop with each fault that causes a back-off (client-go's
      WatchErrorHandler). It is not called for HistoryReplaced. Raises TypeError for an asynchronous one.
    - `scope`: the shards of which objects are requested; None for all objects. Its projection has to leave
      out the others. While no shard is held, no request is sent.

    `run` ends only when it is cancelled. A fault that causes a back-off is counted, and `statistics().error`
    shows it; HistoryReplaced has figures of its own. After a fault comes a wait, or a request that can't fail
    in the same way. A watch that ended is resumed from the last
    version; all objects are listed again only where that is not possible.

    Some servers, such as some aggregated APIs, list without a version. There the reflector watches from "",
    as client-go does, and lists again after each watch that ended before a live event had a version.

    Used on one loop; `last_sync_resource_version`, `fault`, `progress` and `statistics` may be read by any
    thread.
    """

    def __init__(
        self,
        source: Source,
        store: ReflectorStore,
        *,
        clock: Clock,
        known: Known = nothing_known,
        options: ReflectorOptions = DEFAULT_OPTIONS,
        on_fault: Callable[[Exception], None] | None = None,
        scope: ShardScope | None = None,
    ) -> None:
        refuse_async(on_fault, "on_fault")
        self.source = source
        self.options = options
        self.on_fault = on_fault
        self.last_sync_resource_version = ""  # the newest version that was seen
        self.passed: Sequence[Record] = ()  # objects that have come and gone since the version of kept ones
        self._store = store
        self._clock = clock
        self._known = known
        self._scope = scope
        self._state: State = Starting()  # written by `run` alone
        self._metrics = ReflectorMetrics(lambda: self.source.description)

        # The abilities of the server and the source, as far as they are known.
        self._reports_progress = False  # `list` of the source has the parameter `progress`
        self._streams = True  # the server has streaming lists; False after it has shown that it has not
        self._versioned = False  # a list has had a version, so a list without one is a broken answer
        self._pages = PagePolicy()
        self._selects_shards = True  # False after the server has refused a shard selector

        # The present watch.
        self._opened: OpenWatch | None = None  # the watch of a complete streaming list, until it is read
        self._watchdog: Deadline | None = None  # of the watch that is being read; `interrupt` ends the watch
        self._fruitless = True  # no watch has brought a change since the last list

        # Doubts about the cache.
        self._seen = SeenObjects(scope)
        self._unproven = False  # a connection failed: the server's history has to be proven
        self._replacement: _HistoryReplacement | None = (
            None  # the cache is of another history than the server's
        )
        self._relist_requested = False  # `request_relist` was called, and no list is complete since
        self._detector = ConsistencyDetector(source, self._metrics, self._end_inconsistent_watch, clock=clock)

        # The faults so far.
        self._backoff = options.backoff(clock)
        self._streak = Streak()

    def begin_with(self, records: Sequence[Record], resource_version: str) -> None:
        """Begin with objects that an earlier process has kept, in the place of a list. Before `run`.

        They are used only if the server still has their history; the store receives the state of now. Raises
        CacheError with a scope: the shards of the earlier process may be others.
        """
        if self._scope is not None:
            raise CacheError("a cache with a scope of shards can't begin with kept objects")
        self._state = Resuming(records, resource_version)

    async def run(self) -> None:
        """List and watch until cancelled."""
        self._reports_progress = takes_progress(self.source)
        health = self._health
        unsubscribe = health.subscribe(self._note_history_replaced) if health is not None else None
        try:
            while True:
                self._state = await self.step(self._state)
        finally:
            if unsubscribe is not None:
                unsubscribe()
            await self._detector.close()
            if self._opened is not None:
                await self._opened.close()

    async def step(self, state: State) -> State:
        """Run a state to its end; returns the next one. Raises nothing but the cancellation of this task."""
        try:
            match state:
                case Starting(quorum):
                    if self._scope is not None and not self._scope.held:
                        await self._detector.close()
                        await self._scope.until_held()
                    self._metrics.counts.rounds += 1
                    may_stream = (
                        self._streams and self.options.watch_list and supports_watch_list(self.source)
                    )
                    return Streaming(quorum) if may_stream else Listing(quorum)
                case Resuming():
                    return await self._resume(state)
                case Streaming():
                    return await self._stream(state)
                case Listing():
                    return await self._list(state)
                case Watching():
                    return await self._watch(state)
                case BackingOff():
                    await self._back_off(state)
                    return state.then
        except Exception as fault:  # noqa: BLE001 - a source that breaks its promise must not end the process
            after = self._state_after(fault, state)
            waits = isinstance(after, BackingOff) and after.then is state
            if isinstance(state, Resuming) and not waits:
                self._metrics.kept_unused(str(fault))
            return after
        except asyncio.CancelledError as stray:
            if must_propagate(stray):
                raise
            # A task that the source awaits was cancelled. Raised as it is, it would end this task silently.
            return self._state_after(MalformedAnswer("the source raised CancelledError"), state)

    def request_relist(self) -> None:
        """End the watch, and list the most recent state. A back-off that is under way is completed first.

        Further requests have no effect until a list is complete. A list that is under way counts, although it
        may be older than the request; but not for shards that came after its beginning. On the loop.
        """
        if self._relist_requested:
            return
        self._relist_requested = True
        self._metrics.counts.relists_requested += 1
        if self._watchdog is not None:
            self._watchdog.interrupt(RelistRequested("a list was requested"))

    @property
    def fault(self) -> Exception | None:
        """The present fault; None while requests succeed, and before the first answer. From any thread."""
        return self._metrics.error

    def progress(self) -> str:
        """The state, with the present fault or the progress of the list. From any thread."""
        return f"{type(self._state).__name__}: {self._metrics.progress()}"

    def statistics(self) -> ReflectorStatistics:
        """The figures of this moment. From any thread."""
        return self._metrics.statistics(type(self._state).__name__, self.last_sync_resource_version)

    @property
    def _health(self) -> ServerMonitor | None:
        return health_of(self.source)

    async def _back_off(self, state: BackingOff) -> None:
        """Wait for the seconds of the state, and as long as the server is away.

        When the server is back after an outage, the back-off begins anew.
        """
        health = self._health
        if health is None or not state.shared:
            await self._clock.sleep(state.seconds)
            return
        began = self._clock.monotonic()
        if await health.wait(state.seconds):
            self._backoff = self.options.backoff(self._clock)
        # `_state_after` has counted the seconds that were planned.
        self._metrics.counts.waited += self._clock.monotonic() - began - state.seconds

    async def _reachable(self) -> None:
        """Return when the server is not known to be away: no request is sent to a server that is away."""
        if (health := self._health) is not None:
            await health.wait(0)

    async def _stream(self, state: Streaming) -> State:
        """Read a streaming list to its end; its watch continues in Watching.

        The store receives nothing before the list is complete (client-go 147).
        """
        await self._reachable()
        began = self._list_beginning(quorum=state.quorum)
        version = "" if began.quorum else self.last_sync_resource_version
        opened = self._open(version, began.shard_selector, streaming=True)
        try:
            async with Deadline(
                self._clock,
                idle=_STREAM_SILENCE,
                overall=_STREAM_DEADLINE,
                what="the streaming list",
                on_wait=self._metrics.stream_waits,
            ) as deadline:
                records, version, rest = await initial_events(opened.batches, deadline, self._metrics)
            self._streak.unfinished = 0
            # Counted only now: a streaming list that the server refuses counts as a failed watch.
            self._metrics.counts.lists += 1
            self._metrics.counts.streams += 1
            self._note_filtering(began)
            records = await self._replace(records, version, began)
            if self.options.check_consistency:
                await self._detector.begin(
                    records,
                    version,
                    known=self._known,
                    shard_selector=began.shard_selector,
                    comparable=lambda: self._is_of_scope(began),
                )
        except BaseException:
            await opened.close()
            raise
        self._opened = OpenWatch(opened.batches, opened.since, rest, streamed=True)
        return Watching(version)

    async def _resume(self, state: Resuming) -> State:
        """Bring kept objects to the present state; the watch that does it continues in Watching."""
        await self._reachable()
        if self._replacement is not None:
            raise self._replacement.fault()  # found by another watch of this server
        began = _ListBeginning(None, self.source.projection)
        self._seen.replace(state.records, began.projection)
        async with Deadline(self._clock, idle=_PROOF_DEADLINE, what="the LIST that proves its history"):
            # The objects may be of another cluster: in doubt, all is listed.
            found = await self._prove(state.resource_version)
            if not found.holds:
                self._metrics.kept_unused(found.why)
                return Starting()
            now = await self.source.list(ListOptions(limit=1), known=nothing_known)
        opened = self._open(state.resource_version, self._shard_selector())
        batches = PendingBatches(opened.batches)
        try:
            async with Deadline(self._clock, idle=_RESUME_SILENCE, what="the watch") as deadline:
                present = await caught_up(
                    state.records,
                    state.resource_version,
                    batches,
                    until=now.resource_version,
                    clock=self._clock,
                    deadline=deadline,
                    metrics=self._metrics,
                )
            self.passed = present.passed
            await self._replace(present.records, present.resource_version, began)
        except BaseException:
            await batches.aclose()
            raise
        self._metrics.counts.resumes += 1
        self._opened = OpenWatch(batches, opened.since, streamed=True)
        return Watching(present.resource_version)

    async def _list(self, state: Listing) -> State:
        """Read all pages, then replace the objects of the store, which receives nothing before."""
        began = self._list_beginning(quorum=state.quorum)
        self._metrics.counts.lists += 1
        options = list_options(
            self.last_sync_resource_version, quorum=began.quorum, shard_selector=began.shard_selector
        )
        page_size = self._pages.page_size(options, self.options.page_size)
        whole = await ListPager(self._page, page_size=page_size).list(options)
        self._pages.learn(options, paged=whole.paged)
        if self._versioned and not whole.resource_version:
            raise MalformedAnswer("the answer to a LIST has no resource version, and others had one")
        self._note_filtering(began)
        await self._replace(whole.records, whole.resource_version, began)
        return Watching(whole.resource_version)

    async def _page(self, options: ListOptions) -> ListPage:
        await self._reachable()
        self._need_shard()  # the last one may have left since the page before
        async with Deadline(self._clock, idle=_PAGE_DEADLINE, what="a LIST") as deadline:

            def note_progress() -> None:
                self._metrics.counts.last_event_at = deadline.touch()

            known = self._reusable()
            if self._reports_progress:
                page = await self.source.list(options, known=known, progress=note_progress)
            else:
                page = await self.source.list(options, known=known)
            note_progress()
        self._metrics.page(page, first=options.continue_token is None)
        return page

    def _list_beginning(self, *, quorum: bool) -> _ListBeginning:
        """The state in which a list begins. Raises RelistRequested if no shard is held any longer."""
        replacement, projection, scope = self._replacement, self.source.projection, self._scope
        # After a rollback, the last version is of another history, and can't be a lower bound.
        quorum = quorum or replacement is not None
        if scope is None:
            return _ListBeginning(replacement, projection, quorum)
        return _ListBeginning(
            replacement,
            projection,
            # A shard that came has to be as new as the moment at which it came.
            quorum or scope.lacks_list,
            scope.widenings,
            scope.changes,
            self._shard_selector(),
        )

    def _shard_selector(self) -> str:
        """The selector of a request; empty for all objects. Raises RelistRequested if no shard is held."""
        self._need_shard()
        return "" if self._scope is None or not self._selects_shards else self._scope.selector

    def _need_shard(self) -> None:
        """Raise RelistRequested if no shard is held: no request is sent before one is."""
        if self._scope is not None and not self._scope.held:
            raise RelistRequested("no shard is held: the next one is listed")

    def _is_of_scope(self, began: _ListBeginning) -> bool:
        """Whether the scope has not changed since a list began."""
        return self._scope is None or self._scope.changes == began.changes

    def _note_filtering(self, began: _ListBeginning) -> None:
        """Note by a complete list whether the server filters by shards.

        It says so (`shardInfo`) only in lists of whole objects of built-in kinds. In other lists, many
        objects of which none is outside show it.
        """
        counts = self._metrics.counts
        if began.shard_selector and self._is_of_scope(began):
            if counts.items_outside:
                counts.filtered_by_server = False
            elif counts.items_listed >= _TELLING:
                counts.filtered_by_server = True

    async def _watch(self, state: Watching) -> State:
        """Read one watch to its end. The server may end it at any time, which is no fault."""
        if self._opened is None:
            # A request will be sent, unless one of these reasons makes it useless.
            await self._reachable()
            if self._relist_requested:
                raise RelistRequested("a list was requested")
            if self._replacement is not None:
                raise self._replacement.fault()  # found by another watch of this server
            if self._unproven:
                await self.prove_continuity()
        version = self.last_sync_resource_version
        opened, self._opened = (
            self._opened or self._open(state.resource_version, self._shard_selector()),
            None,
        )
        try:
            # The same reasons may have come up since the streaming list was complete.
            if self._replacement is not None:
                raise self._replacement.fault()
            if self._relist_requested:
                raise RelistRequested("a list was requested")
            if self._detector.difference is not None:
                raise self._detector.difference
            async with Deadline(self._clock, idle=self.options.idle_timeout, what="the watch") as deadline:
                self._watchdog = deadline
                await self._read(opened, deadline)
        finally:
            self._watchdog = None
            await opened.close()
        lasted = self._clock.monotonic() - opened.since
        brought = opened.streamed or self.last_sync_resource_version != version
        # A fault, so that a back-off follows: a server may end each watch at once.
        if lasted < _FAULTY_WATCH_SECONDS and not brought:
            raise ShortWatch(f"the watch ended after {lasted:.2f} s and brought nothing new")
        if not self.last_sync_resource_version:
            return Starting()  # without a version, only a list shows which objects were deleted meanwhile
        return Watching(self.last_sync_resource_version)

    async def prove_continuity(self) -> None:
        """Prove that the server still has the history of the cache; raises HistoryReplaced if it has not.

        Called after a connection has failed, before the next watch, and not while the reflector watches. It
        costs one small LIST, or two. Raises Unreachable where no answer comes. A server that refuses the
        LIST, or whose answer proves nothing, is trusted.
        """
        try:
            async with Deadline(self._clock, idle=_PROOF_DEADLINE, what="the LIST that proves its history"):
                await self._prove(self.last_sync_resource_version)
        except (Unreachable, HistoryReplaced):
            raise
        except ApiError as fault:
            self._note_proof(Continuity(None, str(fault)), self.last_sync_resource_version)
        self._unproven = False

    async def _prove(self, version: str) -> Continuity:
        """Whether the server's history has the seen objects at a version.

        Raises HistoryReplaced if it is refuted, and the ApiError family.
        """
        self._metrics.counts.history_checks += 1
        found = await continuity(self.source, version, self._seen.sample(self.source))
        self._note_proof(found, version)
        return found

    def _note_proof(self, found: Continuity, version: str) -> None:
        verdict = {True: "proven", False: "refuted", None: "not proven"}[found.holds]
        _log.debug(
            "%s: the history since %s is %s (%s)", self.source.description, version, verdict, found.why
        )
        if found.holds is False:
            raise self._found_history_replaced(found.why)

    def _found_history_replaced(self, why: str) -> HistoryReplaced:
        """Records a rollback that this watch has found, informs the other watches, and returns the fault.

        The caller raises it.
        """
        if (health := self._health) is not None:
            health.history_replaced(why)  # calls `_note_history_replaced` of each watch, of this one as well
        if (
            self._replacement is None
        ):  # the source has no monitor, or the monitor has reported this rollback before
            self._note_history_replaced(why)
        return HistoryReplaced(why)

    def _note_history_replaced(self, why: str) -> None:
        """Note that the server has another history than the cache.

        A watch ends at once. A list that is under way is given up when it is complete (`_replace`).
        """
        if self._metrics.replaced:  # before the first list the cache is empty
            self._metrics.rolled_back(why)
        self._replacement = _HistoryReplacement(why)
        if self._watchdog is not None:
            self._watchdog.interrupt(self._replacement.fault())

    def _end_inconsistent_watch(self, difference: Inconsistent) -> None:
        """The cache differs from the server: end the watch, so that everything is listed anew."""
        if self._watchdog is not None:
            self._watchdog.interrupt(difference)

    async def _read(self, opened: OpenWatch, deadline: Deadline) -> None:
        """Pass the events of a watch to the store until the watch ends."""
        if opened.rest:
            self._take(self._of_scope(opened.rest))
        scope = self._scope
        changes = 0 if scope is None else scope.changes  # of the scope, when the next batch was requested
        unbroken = 0  # events since other tasks of the loop could run
        async for batch in opened.batches:
            self._metrics.counts.last_event_at = deadline.touch()
            if scope is not None and scope.changes != changes:
                batch = self._of_scope(batch)  # noqa: PLW2901 - it may have been decoded before the change
                changes = scope.changes
            self._take(batch)
            unbroken += len(batch)
            if unbroken >= _EVENTS_PER_TURN:
                unbroken = 0
                await asyncio.sleep(0)  # the source never waits: the queue has to be emptied meanwhile

    def _of_scope(self, batch: Sequence[WatchEvent]) -> Sequence[WatchEvent]:
        """The events of a batch without records of shards that are not held any longer."""
        scope = self._scope
        if scope is None:
            return batch
        return [
            event
            if event.record is None or scope.holds_record(event.record)
            else WatchEvent(_OUTSIDE_EVENT, None, event.resource_version)
            for event in batch
        ]

    def _open(self, version: str, shard_selector: str, *, streaming: bool = False) -> OpenWatch:
        self._metrics.counts.watches += 1
        shortest = max(self.options.min_watch_timeout, MIN_WATCH_SECONDS)
        seconds = shortest + int(self._clock.random() * (shortest + 1))  # so that watches do not end together
        options = WatchOptions(
            resource_version=version,
            timeout_seconds=seconds,
            send_initial_events=streaming,
            shard_selector=shard_selector,
        )
        # Only a streaming list brings cached objects again.
        watch = self.source.watch
        batches = watch(options, known=self._reusable()) if streaming else watch(options)
        return OpenWatch(batches, self._clock.monotonic())

    def _reusable(self) -> Known:
        """The cached records that a list may return for objects of the same version.

        After a rollback there are none, because the server may use the same version for another state.
        """
        return self._known if self._replacement is None else nothing_known

    def _take(self, batch: Sequence[WatchEvent]) -> None:
        """Convert watch events to deltas, and write them to the store."""
        if not batch:
            self._metrics.recovered()  # the watch is open
            return
        deltas: list[Delta] = []
        for event in batch:
            kind, record = event.type, event.record
            if record is not None:
                # An object that the transform dropped leaves the cache: it is DROPPED, and out of scope.
                change = _UPDATED if kind is _MODIFIED_EVENT else _APPEARED if kind is _ADDED_EVENT else _GONE
                deltas.append(Delta(change, record.key, record, False, False, kind is _DROPPED_EVENT))
            if event.decode_warning:
                self._metrics.decode_warning(
                    event.decode_warning, stored=record is not None and kind is not _DROPPED_EVENT
                )
        self._metrics.batch(batch)
        last = batch[-1]
        # The last event may have no version, such as one of an object of another kind.
        if not last.resource_version:
            last = next((event for event in reversed(batch) if event.resource_version), last)
        version = last.resource_version
        if not self.last_sync_resource_version and not any(event.type in _LIVE for event in batch):
            # The list had no version, so the watch began with all objects, in no order. No watch can resume
            # from the version of one of them. A version can be used from the first live event on.
            version = ""
        if deltas:
            self._fruitless = False
            self._seen.change(deltas)
            self._store.extend(deltas)
        # After the store has the deltas: a reader of this version finds them there.
        if version:
            self.last_sync_resource_version = version
            if last.type is EventType.BOOKMARK or last.type is _OUTSIDE_EVENT:
                self._store.bookmark(version)
        self._metrics.recovered()

    async def _replace(
        self, records: Sequence[Record], version: str, began: _ListBeginning
    ) -> Sequence[Record]:
        """Write a complete list to the store; returns the objects that were written.

        Raises HistoryReplaced if the list may not be used.
        """
        await self._detector.close()  # it compares an older list
        if self._replacement is not None and self._replacement is not began.replacement:
            # Another watch found a rollback while this list was under way. Some objects of the list may be of
            # the old history, or cached records of it that have the same version.
            raise self._replacement.fault()
        last = self.last_sync_resource_version
        if began.replacement is None and NO_ORDER < version_order(version) < version_order(last):
            # The list has cached records in the place of objects with the same version, which are of another
            # history. So all is listed once more, without cached records.
            raise self._found_history_replaced(f"the server is at version {version}, and {last} was seen")
        relist_requested = False
        if (scope := self._scope) is not None:
            if scope.changes != began.changes:
                records = scope.of_list(records, began.widenings)
            scope.list_began = began.widenings
            # Shards that came after the beginning need another list. Without a shard no watch is opened.
            relist_requested = scope.lacks_list or not scope.held
        self._metrics.replaced += 1
        self._metrics.counts.items_listed = len(records)
        self._fruitless = True
        self._store.replace(records, version)
        self._versioned |= version != ""
        self.last_sync_resource_version = version
        self._seen.replace(records, began.projection)
        self._unproven, self._replacement, self._relist_requested = False, None, relist_requested
        self._metrics.recovered()
        return records

    def _state_after(self, fault: Exception, state: State) -> State:
        """The state after a fault, by the table in `faults`.

        Counts and logs a fault that causes a back-off, and calls `on_fault`.
        """
        if self._scope is not None and self._selects_shards and refuses_shard_selector(fault):
            # The same request without it: objects are left out here as well.
            self._selects_shards = False
            self._metrics.selects_no_shards(fault)
            return state
        now, version = self._clock.monotonic(), self.last_sync_resource_version
        about = Circumstances(
            version, self._fruitless, self._streak.repeated(version, now), self._streak.unfinished
        )
        transition = transition_after(fault, state, about)
        self._streak.note(fault, state, version, now)
        if isinstance(fault, HistoryReplaced):
            # All watches of a server find it at the same time. Their lists are spread over some seconds.
            seconds = self._clock.random() * _RELIST_SPREAD
            return BackingOff(self._metrics.sentence(fault), seconds, transition.then)
        # The server may be away: all watches wait together, and then prove the history.
        shared = doubts_server(fault)
        self._unproven |= isinstance(state, Watching) and (shared or unreadable(fault))
        if shared and (health := self._health) is not None:
            health.suspect()
        # Two kinds of faults have log lines of their own.
        if isinstance(state, Watching) and isinstance(fault, WatchSilent):
            self._metrics.fell_silent(fault)
        if transition.gives_up_streaming:
            self._streams = False
        if isinstance(state, Streaming) and isinstance(transition.then, Listing):
            self._metrics.stream_given_up(fault, for_good=not self._streams)
        if not transition.waits:
            return transition.then
        # Every other fault is shown in the status until a request succeeds.
        at = f" (after version {version or 'none'})" if unreadable(fault) else ""
        self._metrics.failed(fault, now, context=at)
        self._call_on_fault(fault)
        forget_frames(fault)  # the fault is kept until a request succeeds; its frames refer to half a list
        seconds = self._backoff.seconds(fault)
        self._metrics.counts.back_offs += 1
        self._metrics.counts.waited += seconds
        return BackingOff(self._metrics.sentence(fault), seconds, transition.then, shared)

    def _call_on_fault(self, fault: Exception) -> None:
        if self.on_fault is not None:
            try:
                plain(self.on_fault(fault), "on_fault")
            except BaseException as raised:
                if must_propagate(raised):
                    raise
                _log.exception("%s: on_fault raised", self.source.description)
