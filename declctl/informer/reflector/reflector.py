"""The reflector: lists and watches one resource, for ever, and feeds a queue (client-go's reflector.go).

The protocol is a machine of a few states (`states`): `step` takes one to its end and
returns the next, `run` is the loop around it. What a fault leads to stands in `faults`,
how a list is asked for in `lists`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from declctl.errors import MalformedAnswer, WatchSilent
from declctl.informer.reflector.consistency import ConsistencyDetector
from declctl.informer.reflector.deadline import Deadline
from declctl.informer.reflector.faults import (
    Circumstances,
    Inconsistent,
    ShortWatch,
    Streak,
    judge,
    unreadable,
)
from declctl.informer.reflector.lists import PagePolicy, list_options
from declctl.informer.reflector.options import DEFAULT_OPTIONS, SHORTEST_WATCH, ReflectorOptions
from declctl.informer.reflector.pager import ListPager
from declctl.informer.reflector.states import BackingOff, Listing, Starting, State, Streaming, Watching
from declctl.informer.reflector.statistics import Figures, ReflectorStatistics
from declctl.informer.reflector.streams import InitialEvents, OpenWatch
from declctl.informer.source import Source, list_page, supports_watch_list
from declctl.kit import Clock
from declctl.objects import (
    Delta,
    DeltaType,
    EventType,
    Known,
    ListOptions,
    ListPage,
    Record,
    WatchEvent,
    WatchOptions,
    nothing_known,
)

_SHORT_WATCH_SECONDS = 1.0  # a watch that ends sooner and brought nothing is a fault (client-go 120)
_STREAM_SILENCE, _STREAM_DEADLINE = 30.0, 120.0  # seconds until a streaming list is given up
_PAGE_DEADLINE = 120.0  # seconds without progress until an answer to a LIST is given up
_BREATH = 256  # events until the loop may do something else
# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every event.
_ADDED, _MODIFIED, _DROPPED = EventType.ADDED, EventType.MODIFIED, EventType.DROPPED
_APPEARED, _UPDATED, _GONE = DeltaType.ADDED, DeltaType.UPDATED, DeltaType.DELETED
_log = logging.getLogger("declctl.informer")


class ReflectorStore(Protocol):
    """What a reflector feeds: a queue, or a store."""

    def extend(self, deltas: Iterable[Delta]) -> None:
        """These happened, in this order."""
        ...

    def replace(self, records: Sequence[Record], resource_version: str) -> None:
        """These are all the objects there are."""
        ...

    def bookmark(self, resource_version: str) -> None:
        """Nothing has changed up to that version."""
        ...


class Reflector:
    """Keeps a store told of one resource. `run` ends only when it is cancelled.

    It never spins: every fault is counted, told in `statistics().error`, and followed by a wait or
    by a question that can't fail in the same way. A watch that ends is resumed from the last
    version, without a list; everything is asked for again only when the watch can't be resumed.
    `known` tells what the store holds; `on_fault` is called with each fault (client-go's
    WatchErrorHandler). `last_sync_resource_version` may be read by any thread.
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
    ) -> None:
        self.source = source
        self.options = options
        self.on_fault = on_fault
        self.last_sync_resource_version = ""
        self._store = store
        self._clock = clock
        self._known = known
        self._state: State = Starting()
        self._streams = True  # until the server shows that it can't
        self._opened: OpenWatch | None = None  # the stream that goes on as a watch
        self._watchdog: Deadline | None = None  # of the watch that is being read
        self._fruitless = True
        self._backoff = options.backoff(clock)
        self._pages = PagePolicy()
        self._streak = Streak()
        self._figures = Figures(lambda: self.source.description)
        self._detector = ConsistencyDetector(source, self._figures, self._doubted, clock=clock)

    async def run(self) -> None:
        """List and watch until cancelled."""
        try:
            while True:
                self._state = await self.step(self._state)
        finally:
            await self._detector.close()
            if self._opened is not None:
                await self._opened.close()

    async def step(self, state: State) -> State:
        """Take a state to its end; returns the one that follows. Raises nothing but cancellation."""
        try:
            match state:
                case Starting(quorum):
                    self._figures.rounds += 1
                    return Streaming(quorum) if self._may_stream() else Listing(quorum)
                case Streaming():
                    return await self._stream(state)
                case Listing():
                    return await self._list(state)
                case Watching():
                    return await self._watch(state)
                case BackingOff():
                    await self._clock.sleep(state.seconds)
                    return state.then
        except Exception as fault:  # noqa: BLE001 - a source that breaks its promise must not end the process
            return self._after(fault, state)

    def statistics(self) -> ReflectorStatistics:
        """The figures of this moment."""
        return self._figures.statistics(type(self._state).__name__, self.last_sync_resource_version)

    def _may_stream(self) -> bool:
        return self._streams and self.options.watch_list and supports_watch_list(self.source)

    async def _stream(self, state: Streaming) -> State:
        """A watch that begins with everything; what comes after that is left for Watching.

        Nothing is told before everything is there (client-go 147).
        """
        opened = self._open("" if state.quorum else self.last_sync_resource_version, streaming=True)
        try:
            async with Deadline(
                self._clock, idle=_STREAM_SILENCE, overall=_STREAM_DEADLINE, what="the streaming list"
            ) as deadline:
                records, version, rest = await InitialEvents(self._figures).gather(opened.batches, deadline)
            self._streak.unfinished = 0
            self._figures.lists += 1  # one that is refused has cost nothing: it is a watch that failed
            self._figures.streams += 1
            await self._replace(records, version)
            if self.options.check_consistency:
                await self._detector.begin(records, version, known=self._known)
        except BaseException:
            await opened.close()
            raise
        self._opened = OpenWatch(opened.batches, opened.since, rest, streamed=True)
        return Watching(version)

    async def _list(self, state: Listing) -> State:
        """Every page, then one replacement. Nothing is told before the list is complete."""
        self._figures.lists += 1
        options = list_options(self.last_sync_resource_version, quorum=state.quorum)
        page_size = self._pages.page_size(options, self.options.page_size)
        whole = await ListPager(self._page, page_size=page_size).list(options)
        self._pages.learn(options, paged=whole.paged)
        if not whole.resource_version:
            raise MalformedAnswer("the answer to a LIST has no resource version: it can't be watched")
        await self._replace(whole.records, whole.resource_version)
        return Watching(whole.resource_version)

    async def _page(self, options: ListOptions) -> ListPage:
        async with Deadline(self._clock, idle=_PAGE_DEADLINE, what="a LIST") as deadline:

            def heard() -> None:
                self._figures.last_event_at = deadline.touch()

            page = await list_page(self.source, options, known=self._known, progress=heard)
            heard()
        self._figures.page(page, first=options.continue_token is None)
        return page

    async def _watch(self, state: Watching) -> State:
        """One watch to its end. The server may end it at any time: that is no fault."""
        version = self.last_sync_resource_version
        opened, self._opened = self._opened or self._open(state.resource_version), None
        try:
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
        if lasted < _SHORT_WATCH_SECONDS and not brought:
            raise ShortWatch(f"the watch ended after {lasted:.2f} s and brought nothing new")
        return Watching(self.last_sync_resource_version)

    async def _read(self, opened: OpenWatch, deadline: Deadline) -> None:
        if opened.rest:
            self._take(opened.rest)
        unbroken = 0
        async for batch in opened.batches:
            self._figures.last_event_at = deadline.touch()
            self._take(batch)
            unbroken += len(batch)
            if unbroken >= _BREATH:
                unbroken = 0
                await asyncio.sleep(0)  # a source that never waits: let the queue be emptied

    def _open(self, version: str, *, streaming: bool = False) -> OpenWatch:
        self._figures.watches += 1
        shortest = max(self.options.min_watch_timeout, SHORTEST_WATCH)
        seconds = shortest + int(self._clock.random() * (shortest + 1))  # so that not all end at once
        options = WatchOptions(
            resource_version=version, timeout_seconds=seconds, send_initial_events=streaming
        )
        # Only a streaming list brings again what is held already.
        batches = self.source.watch(options, known=self._known) if streaming else self.source.watch(options)
        return OpenWatch(batches, self._clock.monotonic())

    def _take(self, batch: Sequence[WatchEvent]) -> None:
        """Here a watch event becomes a delta."""
        if not batch:
            self._figures.recovered()  # the watch is open
            return
        deltas: list[Delta] = []
        for event in batch:
            kind, record = event.type, event.record
            if record is not None:
                change = _UPDATED if kind is _MODIFIED else _APPEARED if kind is _ADDED else _GONE
                deltas.append(Delta(change, record.key, record, False, False, kind is _DROPPED))
            if event.oddity:
                self._figures.odd(event.oddity, stored=record is not None and kind is not _DROPPED)
        self._figures.batch(batch)
        version = batch[-1].resource_version
        if deltas:
            self._fruitless = False
            self._store.extend(deltas)
        if version:
            self.last_sync_resource_version = version
            if batch[-1].type is EventType.BOOKMARK:
                self._store.bookmark(version)
        self._figures.recovered()

    async def _replace(self, records: Sequence[Record], version: str) -> None:
        await self._detector.close()  # whatever was being compared is the past
        self._figures.replaced += 1
        self._figures.items = len(records)
        self._fruitless = True
        self._store.replace(records, version)
        self.last_sync_resource_version = version
        self._figures.recovered()

    def _doubted(self, fault: Inconsistent) -> None:
        """The cache is not what the server has: the watch that goes on is ended."""
        if self._watchdog is not None:
            self._watchdog.strike(fault)

    def _after(self, fault: Exception, state: State) -> State:
        now, version = self._clock.monotonic(), self.last_sync_resource_version
        about = Circumstances(
            version, self._fruitless, self._streak.repeated(version, now), self._streak.unfinished
        )
        verdict = judge(fault, state, about)
        self._streak.note(fault, state, version, now)
        self._figures.idle_closes += isinstance(state, Watching) and isinstance(fault, WatchSilent)
        if verdict.gives_up_streaming:
            self._streams = False
            _log.info("%s; it is listed in pages instead", self._figures.told(fault))
        if not verdict.waits:
            return verdict.then
        at = f" (after version {version or 'none'})" if unreadable(fault) else ""
        self._figures.failed(fault, now, context=at)
        self._tell(fault)
        seconds = self._backoff.seconds(fault)
        self._figures.back_offs += 1
        self._figures.waited += seconds
        return BackingOff(self._figures.told(fault), seconds, verdict.then)

    def _tell(self, fault: Exception) -> None:
        if self.on_fault is not None:
            try:
                self.on_fault(fault)
            except Exception:  # noqa: BLE001 - the user's function
                _log.exception("%s: on_fault raised", self.source.description)
