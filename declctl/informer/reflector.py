"""The reflector: lists and watches one resource, for ever, and feeds a queue (client-go's reflector.go).

The protocol is a machine of a few states (`reflector_states`): `step` takes one to its end and
returns the next, `run` is the loop around it. What a fault leads to stands in `reflector_faults`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from declctl.errors import (
    Expired,
    Forbidden,
    MalformedAnswer,
    NotFound,
    ServerError,
    Unauthorized,
    WatchSilent,
)
from declctl.informer.deadline import Deadline
from declctl.informer.reflector_faults import (
    Backoff,
    Circumstances,
    NoInitialEventsEnd,
    ShortWatch,
    judge,
    relist_resource_version,
    unreadable,
)
from declctl.informer.reflector_options import DEFAULT_OPTIONS, ReflectorOptions
from declctl.informer.reflector_states import BackingOff, Listing, Starting, State, Streaming, Watching
from declctl.informer.source import Source
from declctl.kit import Clock
from declctl.objects import Delta, DeltaType, EventType, Known, ListOptions, Record, WatchEvent, WatchOptions

_SHORT_WATCH_SECONDS = 1.0  # a watch that ends sooner and brought nothing is a fault (client-go 120)
_STREAM_SILENCE, _STREAM_DEADLINE = 30.0, 120.0  # seconds until a streaming list is given up
_PAGE_DEADLINE = 120.0  # seconds until an answer to a LIST is given up
_BREATH = 256  # events until the loop may do something else
_SHORTEST_WATCH, _WATCH_SPREAD = 300, 300  # seconds that the server is asked to keep a watch open
# A member of an enum is looked up in 150 ns on Python 3.11, which is too much to do for every event.
_EVENT_TYPES: Final = tuple(EventType)
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


@dataclass(frozen=True, slots=True)
class ReflectorStatistics:
    """What a reflector did and how it is.

    `lists` counts how often everything was asked for, by LIST or by a stream, and `relists` how
    often everything came again. `items_listed` is the progress of that. `last_event_at` and
    `error_since` are on its clock, in seconds.
    """

    state: str
    lists: int
    watches: int
    relists: int
    pages: int
    items_listed: int
    events: Mapping[str, int]
    resource_version: str
    last_event_at: float | None
    idle_closes: int
    failures: int
    error: str | None
    error_since: float | None
    missing: bool
    forbidden: bool


def _nothing_known(_: str) -> Record | None:
    return None


@dataclass(frozen=True, slots=True)
class _Opened:
    """A watch that is open, and the events of it that were read and not told yet."""

    batches: AsyncIterator[Sequence[WatchEvent]]
    since: float  # on the clock
    rest: Sequence[WatchEvent] = ()
    streamed: bool = False  # it brought everything already

    async def close(self) -> None:
        close = getattr(self.batches, "aclose", None)
        if close is not None:
            await close()


class Reflector:
    """Keeps a store told of one resource. `run` ends only when it is cancelled.

    It never spins: every fault is counted, told in `statistics().error`, and followed by a wait or
    by a question that can't fail in the same way. A watch that ends is resumed from the last
    version, without a list; everything is asked for again only when the watch can't be resumed.
    `known` tells what the store holds; `on_fault` is called with each fault (client-go's
    WatchErrorHandler).
    """

    def __init__(
        self,
        source: Source,
        store: ReflectorStore,
        *,
        clock: Clock,
        known: Known = _nothing_known,
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
        self._opened: _Opened | None = None  # the stream that goes on as a watch
        self._backoff = Backoff(clock)
        self._fruitless = True
        self._stuck = ("", 0)  # the version from which watches failed last, and how often in a row
        self._lists = self._watches = self._replaced = self._pages = self._items = 0
        self._idle_closes = self._failures = 0
        self._events: Counter[EventType] = Counter()
        self._last_event_at: float | None = None
        self._error: Exception | None = None
        self._error_since: float | None = None

    async def run(self) -> None:
        """List and watch until cancelled."""
        try:
            while True:
                self._state = await self.step(self._state)
        finally:
            if self._opened is not None:
                await self._opened.close()

    async def step(self, state: State) -> State:
        """Take a state to its end; returns the one that follows. Raises nothing but cancellation."""
        try:
            match state:
                case Starting(quorum):
                    return Streaming(quorum) if self._streams else Listing(quorum)
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
        error = self._error
        return ReflectorStatistics(
            state=type(self._state).__name__,
            lists=self._lists,
            watches=self._watches,
            relists=max(0, self._replaced - 1),
            pages=self._pages,
            items_listed=self._items,
            events={kind.value: count for kind, count in self._events.items()},
            resource_version=self.last_sync_resource_version,
            last_event_at=self._last_event_at,
            idle_closes=self._idle_closes,
            failures=self._failures,
            error=None if error is None else self._told(error),
            error_since=self._error_since,
            missing=isinstance(error, NotFound),
            forbidden=isinstance(error, Forbidden | Unauthorized),
        )

    async def _stream(self, state: Streaming) -> State:
        """A watch that begins with everything; what comes after that is left for Watching.

        Nothing is told before everything is there (client-go 147).
        """
        version = "" if state.quorum else self.last_sync_resource_version
        opened = self._open(version, send_initial_events=True)
        try:
            records, version, rest = await self._gather(opened.batches)
        except BaseException:
            await opened.close()
            raise
        self._lists += 1  # one that is refused has cost nothing: it is a watch that failed
        self._replace(records, version)
        self._opened = _Opened(opened.batches, opened.since, rest, streamed=True)
        return Watching(version)

    async def _gather(
        self, batches: AsyncIterator[Sequence[WatchEvent]]
    ) -> tuple[Sequence[Record], str, Sequence[WatchEvent]]:
        """The objects of a streaming list, its version, and the events read beyond its end."""
        collected: dict[str, Record] = {}
        self._items = 0
        limits = Deadline(
            self._clock, idle=_STREAM_SILENCE, overall=_STREAM_DEADLINE, what="the streaming list"
        )
        async with limits as deadline:
            async for batch in batches:
                self._last_event_at = deadline.touch()
                for position, event in enumerate(batch):
                    if event.initial_events_end:
                        return list(collected.values()), event.resource_version, batch[position + 1 :]
                    self._collect(event, collected)
                self._items = len(collected)
                await asyncio.sleep(0)
        raise NoInitialEventsEnd("the streaming list ended before it was complete")

    def _collect(self, event: WatchEvent, collected: dict[str, Record]) -> None:
        record = event.record
        if record is None:
            return
        if event.type is EventType.DELETED or event.type is EventType.DROPPED:
            collected.pop(record.key, None)
            return
        held = self._known(record.key)
        if (
            held is not None
            and held.resource_version == record.resource_version
            and held.uid == record.uid
            and held.layout is record.layout
        ):
            record = held  # so that a relist does not hold everything twice
        collected[record.key] = record

    async def _list(self, state: Listing) -> State:
        """Every page, then one replacement. Nothing is told before the list is complete."""
        self._lists += 1
        self._items = 0
        version = relist_resource_version(self.last_sync_resource_version, quorum=state.quorum)
        options = ListOptions(
            resource_version=version or None,
            resource_version_match=None if version in ("", "0") else "NotOlderThan",
            limit=None if state.whole else self.options.page_size,
        )
        records: list[Record] = []
        version = ""
        while True:
            try:
                async with Deadline(self._clock, idle=_PAGE_DEADLINE, what="a LIST") as deadline:
                    page = await self.source.list(options, known=self._known)
                    self._last_event_at = deadline.touch()
            except Expired:
                if options.continue_token is None:
                    raise
                return Listing(state.quorum, whole=True)  # the pages outlived their version (client-go 136)
            self._pages += 1
            records += page.records
            self._items = len(records)
            version = version or page.resource_version
            if not page.continue_token:
                break
            if page.continue_token == options.continue_token:
                raise MalformedAnswer("a LIST gave the same continue token twice: it would never end")
            options = ListOptions(limit=self.options.page_size, continue_token=page.continue_token)
        if not version:
            raise MalformedAnswer("the answer to a LIST has no resource version: it can't be watched")
        self._replace(records, version)
        return Watching(version)

    async def _watch(self, state: Watching) -> State:
        """One watch to its end. The server may end it at any time: that is no fault."""
        version = self.last_sync_resource_version
        opened, self._opened = self._opened or self._open(state.resource_version), None
        try:
            async with Deadline(self._clock, idle=self.options.idle_timeout, what="the watch") as deadline:
                if opened.rest:
                    self._take(opened.rest)
                unbroken = 0
                async for batch in opened.batches:
                    self._last_event_at = deadline.touch()
                    self._take(batch)
                    unbroken += len(batch)
                    if unbroken >= _BREATH:
                        unbroken = 0
                        await asyncio.sleep(0)  # a source that never waits: let the queue be emptied
        finally:
            await opened.close()
        lasted = self._clock.monotonic() - opened.since
        brought = opened.streamed or self.last_sync_resource_version != version
        if lasted < _SHORT_WATCH_SECONDS and not brought:
            raise ShortWatch(f"the watch ended after {lasted:.2f} s and brought nothing new")
        return Watching(self.last_sync_resource_version)

    def _open(self, version: str, *, send_initial_events: bool = False) -> _Opened:
        self._watches += 1
        seconds = _SHORTEST_WATCH + int(self._clock.random() * _WATCH_SPREAD)  # so that not all end at once
        options = WatchOptions(
            resource_version=version, timeout_seconds=seconds, send_initial_events=send_initial_events
        )
        return _Opened(self.source.watch(options), self._clock.monotonic())

    def _take(self, batch: Sequence[WatchEvent]) -> None:
        """Here a watch event becomes a delta."""
        if not batch:
            self._recovered()  # the watch is open
            return
        deltas: list[Delta] = []
        for kind, record, _, _, _ in batch:
            if record is not None:
                change = _UPDATED if kind is _MODIFIED else _APPEARED if kind is _ADDED else _GONE
                deltas.append(Delta(change, record.key, record, False, False, kind is _DROPPED))
        kinds = [event.type for event in batch]
        for kind in _EVENT_TYPES:
            if count := kinds.count(kind):
                self._events[kind] += count
        version = batch[-1].resource_version
        if deltas:
            self._fruitless = False
            self._store.extend(deltas)
        if version:
            self.last_sync_resource_version = version
            if batch[-1].type is EventType.BOOKMARK:
                self._store.bookmark(version)
        self._recovered()

    def _replace(self, records: Sequence[Record], version: str) -> None:
        self._replaced += 1
        self._fruitless = True
        self._items = len(records)
        self._store.replace(records, version)
        self.last_sync_resource_version = version
        self._recovered()

    def _recovered(self) -> None:
        if self._error is not None:
            _log.info("%s: works again", self.source.description)
            self._error = self._error_since = None

    def _after(self, fault: Exception, state: State) -> State:
        version = self.last_sync_resource_version
        stuck_at, times = self._stuck
        repeated = times if stuck_at == version else 0
        verdict = judge(fault, state, Circumstances(version, self._fruitless, repeated))
        if isinstance(state, Watching):
            self._idle_closes += isinstance(fault, WatchSilent)
            if unreadable(fault) or isinstance(fault, ServerError):
                self._stuck = (version, repeated + 1)
        if verdict.gives_up_streaming:
            self._streams = False
            _log.info("%s; it is listed in pages instead", self._told(fault))
        if not verdict.waits:
            return verdict.then
        self._failed(fault)
        return BackingOff(self._told(fault), self._backoff.seconds(fault), verdict.then)

    def _failed(self, fault: Exception) -> None:
        self._failures += 1
        known = self._error is not None and self._told(self._error) == self._told(fault)
        _log.log(logging.DEBUG if known else logging.WARNING, "%s", self._told(fault))
        if self._error is None:
            self._error_since = self._clock.monotonic()
        self._error = fault
        if self.on_fault is not None:
            try:
                self.on_fault(fault)
            except Exception:  # noqa: BLE001 - the user's function
                _log.exception("%s: on_fault raised", self.source.description)

    def _told(self, fault: Exception) -> str:
        known = fault if str(fault) else repr(fault)
        return f"{self.source.description}: {known}"
