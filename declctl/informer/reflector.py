"""The reflector: lists and watches one resource, for ever, and feeds the queue (client-go's reflector.go).

The protocol is a machine of four states (`reflector_states`): one `_step` takes a state and returns
the next, and `run` is the loop around it. What a fault leads to stands in `_after`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from declctl.errors import (
    ApiError,
    Expired,
    Forbidden,
    InvalidRequest,
    MalformedAnswer,
    NotFound,
    TooLargeResourceVersion,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    WatchSilent,
)
from declctl.informer.reflector_states import BackingOff, Listing, State, Streaming, Watching
from declctl.informer.source import Source
from declctl.kit import Clock
from declctl.objects import EventType, ListOptions, Record, WatchEvent, WatchOptions

_PAGE = 500
_SHORT_WATCH_SECONDS = 1.0  # a watch that ends sooner without an event is a fault (client-go 147)
_FIRST_BACKOFF, _LONGEST_BACKOFF, _FACTOR = 0.8, 30.0, 2.0
_MISSING_BACKOFF = 8.0  # a kind that is missing may appear any moment: it is looked for more often
_QUIET_SECONDS = 120.0  # without a fault for so long, back-off begins anew
_STREAM_SILENCE, _STREAM_DEADLINE = (
    30.0,
    120.0,
)  # a streaming list that says nothing, or never ends, is given up
_SHORTEST_WATCH, _LONGEST_WATCH = 300, 600  # seconds that the server is asked to keep a watch open


class Sink(Protocol):
    """What a reflector feeds: a queue."""

    def add(self, record: Record) -> None:
        """An object appeared."""
        ...

    def update(self, record: Record) -> None:
        """An object changed."""
        ...

    def delete(self, record: Record, *, out_of_scope: bool = False) -> None:
        """An object is gone."""
        ...

    def replace(self, records: Sequence[Record], resource_version: str) -> None:
        """These are all the objects there are."""
        ...


@dataclass(frozen=True, slots=True)
class ReflectorStatistics:
    """What a reflector did and how it is.

    `last_event_at` and `error_since` are on its clock, in seconds.
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


class Reflector:
    """Keeps a queue told of one resource. `run` ends only when it is cancelled.

    It never spins: every fault is counted, told in `statistics().error`, and followed by a back-off
    or by a step that can't fault the same way again. A watch that ends is resumed from the last
    version, without a list; a list is made only when the watch can't be resumed.
    """

    def __init__(
        self,
        source: Source,
        sink: Sink,
        *,
        clock: Clock,
        known: Callable[[], Mapping[str, Record]],
        idle_timeout: float = 90.0,
        page_size: int = _PAGE,
    ) -> None:
        self.source = source
        self.idle_timeout = idle_timeout
        self.last_sync_resource_version = ""
        self._sink = sink
        self._clock = clock
        self._known = known
        self._page_size = page_size
        self._state: State = Streaming()
        self._streams = True  # until the server shows that it can't
        self._lists = self._watches = self._replaced = self._pages = self._items = 0
        self._idle_closes = self._failures = self._in_a_row = 0
        self._events: Counter[str] = Counter()
        self._last_event_at: float | None = None
        self._last_failure_at = float("-inf")
        self._error: ApiError | Exception | None = None
        self._error_since: float | None = None

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                self._state = await self._step(self._state)
            except Exception as error:  # noqa: BLE001 - a source that breaks its promise must not end the process
                self._state = self._after(error, self._state)

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
            events=dict(self._events),
            resource_version=self.last_sync_resource_version,
            last_event_at=self._last_event_at,
            idle_closes=self._idle_closes,
            failures=self._failures,
            error=None if error is None else f"{self.source.description}: {error}",
            error_since=self._error_since,
            missing=isinstance(error, NotFound),
            forbidden=isinstance(error, Forbidden | Unauthorized),
        )

    async def _step(self, state: State) -> State:
        match state:
            case Streaming() if self._streams:
                return await self._stream()
            case Streaming():
                return Listing()
            case Listing():
                return await self._list(whole=state.whole)
            case Watching():
                return await self._watch(state)
            case BackingOff():
                await self._clock.sleep(state.seconds)
                return state.then

    async def _list(self, *, whole: bool) -> State:
        """Every page, then one replacement.

        Nothing is told before the list is complete (client-go 120).
        """
        self._lists += 1
        self._items = 0
        records: list[Record] = []
        token, version = "", ""
        known = self._known()
        while True:
            limit = None if whole else self._page_size
            options = ListOptions(limit=limit, continue_token=token or None)
            try:
                page = await self.source.list(options, known=known.get)
            except Expired:
                if not token:
                    raise
                return Listing(whole=True)  # the pages outlived their version (client-go's pager)
            self._pages += 1
            records += page.records
            self._items = len(records)
            version = page.resource_version
            token = page.continue_token
            if not token:
                break
        self._replace(records, version)
        return Watching(version)

    async def _stream(self) -> State:
        """A watch that begins with everything.

        After the bookmark that ends it, it is an ordinary watch.
        """
        began = self._clock.monotonic()
        self._lists += 1
        self._watches += 1
        self._items = 0
        collected: dict[str, Record] | None = {}
        known = self._known()

        def left() -> float:
            if collected is None:
                return self._idle_left(began)
            silent = self._clock.monotonic() - max(began, self._last_event_at or began)
            return min(_STREAM_SILENCE - silent, began + _STREAM_DEADLINE - self._clock.monotonic())

        options = WatchOptions(
            resource_version="", timeout_seconds=self._watch_seconds(), send_initial_events=True
        )
        try:
            async with self._watched(options, left) as batches:
                async for batch in batches:
                    self._last_event_at = self._clock.monotonic()
                    rest: Sequence[WatchEvent] = batch
                    if collected is not None:
                        rest = self._collect(batch, collected, known)
                        if rest is not batch:
                            collected = None
                        else:
                            continue
                    self._deliver(rest)
        except (WatchSilent, InvalidRequest):
            if collected is None:
                raise
            self._streams = False
            return Listing()
        if collected is not None:
            self._streams = False  # it ended before the bookmark: such a server does not stream lists
            return Listing()
        return Watching(self.last_sync_resource_version)

    def _collect(
        self, batch: Sequence[WatchEvent], collected: dict[str, Record], known: Mapping[str, Record]
    ) -> Sequence[WatchEvent]:
        """Gather initial events.

        Returns what comes after their end, or `batch` itself if they have not ended.
        """
        for position, event in enumerate(batch):
            record = event.record
            if event.type is EventType.BOOKMARK:
                if event.initial_events_end:
                    self._replace(list(collected.values()), event.resource_version)
                    return batch[position + 1 :]
            elif record is not None and event.type in (EventType.DELETED, EventType.DROPPED):
                collected.pop(record.key, None)
            elif record is not None:
                held = known.get(record.key)
                same = held is not None and _same(held, record)
                collected[record.key] = held if same and held is not None else record
        self._items = len(collected)
        return batch

    async def _watch(self, state: Watching) -> State:
        began = self._clock.monotonic()
        self._watches += 1
        told = sum(self._events.values())
        options = WatchOptions(resource_version=state.resource_version, timeout_seconds=self._watch_seconds())
        async with self._watched(options, lambda: self._idle_left(began)) as batches:
            async for batch in batches:
                self._last_event_at = self._clock.monotonic()
                self._deliver(batch)
        lasted = self._clock.monotonic() - began
        if lasted < _SHORT_WATCH_SECONDS and sum(self._events.values()) == told:
            raise Unreachable(f"the watch ended after {lasted:.2f} s without an event")
        return Watching(self.last_sync_resource_version)

    @asynccontextmanager
    async def _watched(
        self, options: WatchOptions, left: Callable[[], float]
    ) -> AsyncGenerator[AsyncGenerator[Sequence[WatchEvent], None], None]:
        """A watch under a watchdog: when `left` seconds are used up it is closed, with WatchSilent.

        One task for each watch, none for an event: it looks again when the time that was left has
        passed.
        """
        scope = asyncio.timeout(None)
        watchdog = asyncio.create_task(self._bark(scope, left))
        try:
            async with scope, aclosing(self.source.watch(options)) as batches:
                yield batches
        except TimeoutError as error:
            self._idle_closes += 1
            raise WatchSilent("the watch said nothing, not even a bookmark, for too long") from error
        finally:
            watchdog.cancel()

    async def _bark(self, scope: asyncio.Timeout, left: Callable[[], float]) -> None:
        while (seconds := left()) > 0:
            await self._clock.sleep(seconds)
        scope.reschedule(0.0)  # a moment long past

    def _deliver(self, batch: Sequence[WatchEvent]) -> None:
        sink, events = self._sink, self._events
        for event in batch:
            kind, record = event.type, event.record
            events[kind.value] += 1
            if record is not None:
                if kind is EventType.MODIFIED:
                    sink.update(record)
                elif kind is EventType.ADDED:
                    sink.add(record)
                else:
                    sink.delete(record, out_of_scope=kind is EventType.DROPPED)
        if batch:
            if batch[-1].resource_version:
                self.last_sync_resource_version = batch[-1].resource_version
            self._recovered()

    def _replace(self, records: Sequence[Record], version: str) -> None:
        self._replaced += 1
        self._sink.replace(records, version)
        self.last_sync_resource_version = version
        self._last_event_at = self._clock.monotonic()
        self._recovered()

    def _after(self, error: Exception, state: State) -> State:
        """What a fault leads to.

        A watch is resumed where that can help, else everything is listed again.
        """
        resume = isinstance(state, Watching)
        version = self.last_sync_resource_version
        if isinstance(error, WatchSilent) and version:
            return Watching(version)  # a dead connection, not a fault of the server: at once, and no list
        self._failed(error)
        then: State = Watching(version) if version and not isinstance(state, Listing) else self._anew()
        match error:
            case Expired() | TooLargeResourceVersion():
                # The version is of no use; a list does without one, so that it can't fail the same
                # way.
                then = self._anew()
                if resume:
                    return then
            case NotFound() | Forbidden() | Unauthorized() | InvalidRequest():
                then = self._anew()
            case MalformedAnswer() if isinstance(state, Watching):
                if state.malformed and state.resource_version == version:
                    then = self._anew()  # the same line is broken again: a list goes around it
                else:
                    then = Watching(version, malformed=1)
            case _:
                pass
        return BackingOff(self._backoff(error), then)

    def _anew(self) -> State:
        return Streaming() if self._streams else Listing()

    def _failed(self, error: Exception) -> None:
        now = self._clock.monotonic()
        if now - self._last_failure_at > _QUIET_SECONDS:
            self._in_a_row = 0
        self._last_failure_at = now
        self._failures += 1
        self._in_a_row += 1
        if self._error is None:
            self._error_since = now
        self._error = error

    def _recovered(self) -> None:
        self._error = None
        self._error_since = None

    def _backoff(self, error: Exception) -> float:
        longest = _MISSING_BACKOFF if isinstance(error, NotFound) else _LONGEST_BACKOFF
        seconds = min(_FIRST_BACKOFF * _FACTOR ** min(self._in_a_row - 1, 10), longest)
        jittered = seconds * (1 + self._clock.random()) if longest == _LONGEST_BACKOFF else seconds
        asked = error.retry_after if isinstance(error, TooManyRequests) else None
        return max(jittered, asked or 0.0)

    def _idle_left(self, began: float) -> float:
        return max(began, self._last_event_at or began) + self.idle_timeout - self._clock.monotonic()

    def _watch_seconds(self) -> int:
        return int(_SHORTEST_WATCH + self._clock.random() * (_LONGEST_WATCH - _SHORTEST_WATCH))


def _same(one: Record, other: Record) -> bool:
    return (
        one.resource_version == other.resource_version and one.uid == other.uid and one.layout is other.layout
    )
