"""Controllers: a reflector, a queue and a function that processes it (client-go controller.go).

The shared informer is built on `Controller`; alone it serves programs that want changes without a cache.
`new_informer` makes a cache for one handler. One change is worked on at a time: the cache changes, the
handler is called, and then comes the next change. For handlers that are slow, that fail, or that come and go
there is the shared informer.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Literal

from declctl.decoding.projection import Known, nothing_known
from declctl.errors import CacheError, QueueClosed
from declctl.informer.applier import Applier, UidChange, resync_of
from declctl.informer.event_handlers import ResourceEventHandler
from declctl.informer.listener import call_handler
from declctl.informer.queues.delta_fifo import DeltaFIFO
from declctl.informer.queues.real_fifo import Batch, Bookmark, Queue, RealFIFO, Replacement, SyncAll
from declctl.informer.reflector.reflector import DEFAULT_OPTIONS, Reflector, ReflectorOptions
from declctl.informer.source import Source
from declctl.informer.stores.indices import AnyIndexFunc, index_functions
from declctl.informer.stores.lister import Lister
from declctl.informer.stores.thread_safe_store import Indexer
from declctl.kit import Clock, Latch, SystemClock
from declctl.kit.callbacks import must_propagate, plain, refuse_async
from declctl.objects import Notification, Record

_CALLS_PER_TURN = 64  # calls of the handler until the loop may do something else

BATCH = 500  # entries that are processed before the loop may do something else
_SLOW_SECONDS, _SLOW_BACKLOG = 0.1, 10  # a longer step is told while more entries wait, as in client-go
_TRACE_SILENCE = 60.0  # seconds until the log speaks of slow steps again
_log = logging.getLogger("declctl.informer")

Process = Callable[[Batch], Iterable[None] | Awaitable[None] | None]
QueueKind = Literal["RealFIFO", "DeltaFIFO"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a controller is made of (client-go's Config). Times are in seconds.

    - `process` is called with each batch that is popped.
    - `full_resync_period` is how often the queue resyncs, 0 for never, if `should_resync` agrees or is None.
    - `known` gives the record that the store holds under a key.
    - `on_fault` is called with each fault of the watch (client-go's WatchErrorHandler).
    - `name` is for logs.
    """

    queue: Queue
    source: Source
    process: Process
    options: ReflectorOptions = DEFAULT_OPTIONS
    full_resync_period: float = 0.0
    should_resync: Callable[[], bool] | None = None
    on_fault: Callable[[Exception], None] | None = None
    known: Known = nothing_known
    clock: Clock = field(default_factory=SystemClock)
    name: str = ""


@dataclass(frozen=True, slots=True)
class ControllerStatistics:
    """What a controller processed and how long that took, in seconds of its clock.

    `queued` entries wait now. `entries` counts changes, and each object of a list as one; a bookmark
    or a resync is none. `slow` counts steps of more than 0.1 s while more than 10 entries waited;
    `longest` is the longest step of all.
    """

    queued: int
    batches: int
    entries: int
    seconds: float
    longest: float
    slow: int


class Controller:
    """Runs a reflector and processes what it queues, in order. Used on one loop.

    `process` may be a generator; wherever it yields, the loop does other work. It may also return an
    awaitable. Meanwhile the reflector goes on filling the queue: it never waits for `process`. An exception
    of `process` ends `run`, which raises the same (client-go 166); for a CancelledError without a
    cancellation of `run` it raises a CacheError. `synced` opens when the first list is processed.
    """

    def __init__(self, config: Config) -> None:
        refuse_async(config.should_resync, "should_resync")
        self.config = config
        self.queue = config.queue
        self.synced = Latch(config.name or "controller")
        self.reflector = Reflector(
            config.source,
            config.queue,
            clock=config.clock,
            known=config.known,
            options=config.options,
            on_fault=config.on_fault,
        )
        self._clock = config.clock
        self._holds = 0  # `hold` without its `let_go`
        self._free = asyncio.Event()  # set while there are no holds
        self._free.set()
        self._batches = self._entries = self._slow = 0  # as in ControllerStatistics
        self._seconds = self._longest = 0.0
        self._silent_until = float("-inf")  # the log does not speak of slow steps before this moment

    async def run(self) -> None:
        """List, watch and process until cancelled, or until the queue is closed and empty."""
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self.reflector.run(), name="reflector")]
                if self.config.full_resync_period > 0:
                    running.append(tasks.create_task(self._resync_all(), name="resync"))
                await self.process_loop()
                # The queue was closed and is empty: what would fill it ends, too.
                for task in running:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise alone(group) from None
        finally:
            self.queue.close()

    async def process_loop(self) -> None:
        """Process what is queued and what comes; returns when the queue is closed and empty."""
        with contextlib.suppress(QueueClosed):
            while True:
                batch = await self.queue.pop_batch(BATCH)
                while self._holds:
                    await self._free.wait()
                await self._process(batch)
                self.queue.processed(batch)
                if not self.synced.is_open and self.queue.has_synced:
                    self.synced.open()
                if len(self.queue):
                    await asyncio.sleep(0)  # a queue that is never empty shall not keep others from running

    def hold(self) -> None:
        """Process nothing until `let_go` was called as often as `hold`; changes stay in the queue."""
        self._holds += 1
        self._free.clear()

    def let_go(self) -> None:
        """Take back one `hold`. After the last one, processing goes on in the next turn of the loop."""
        self._holds -= 1
        if not self._holds:
            self._free.set()

    @property
    def has_synced(self) -> bool:
        """Whether the first list is processed."""
        return self.synced.is_open

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.config.name or self.config.source.description

    def why_not_synced(self) -> str:
        """Why the first list is not processed; empty if it is. From any thread."""
        return "" if self.has_synced else self.reflector.progress()

    @property
    def last_sync_resource_version(self) -> str:
        """The newest version that the reflector has seen."""
        return self.reflector.last_sync_resource_version

    def statistics(self) -> ControllerStatistics:
        """The figures of this moment."""
        return ControllerStatistics(
            len(self.queue), self._batches, self._entries, self._seconds, self._longest, self._slow
        )

    async def _process(self, batch: Batch) -> None:
        self._batches += 1
        self._entries += (size := _size(batch))
        began = self._clock.monotonic()
        result = self.config.process(batch)
        # The common case is asked first: to ask whether a generator is an Awaitable takes four times as long.
        if not isinstance(result, GeneratorType) and isinstance(result, Awaitable):
            await self._awaited(result)
        elif result is not None:
            for _ in result:
                # Each step is timed by itself: what the loop does between two of them is not processing.
                self._timed(began, size)
                await asyncio.sleep(0)
                while self._holds:
                    await self._free.wait()
                began = self._clock.monotonic()
        self._timed(began, size)

    async def _awaited(self, result: Awaitable[None]) -> None:
        try:
            await result
        except asyncio.CancelledError as fault:
            if must_propagate(fault):
                raise
            # `run` was not cancelled. Raised as it is, the fault would end its task as if it had been,
            # silently.
            raise CacheError(f"{self.name}: the process function raised CancelledError") from fault

    def _timed(self, began: float, size: int) -> None:
        now = self._clock.monotonic()
        took = now - began
        self._seconds += took
        self._longest = max(self._longest, took)
        if took <= _SLOW_SECONDS or (waiting := len(self.queue)) <= _SLOW_BACKLOG:
            return
        self._slow += 1
        if now < self._silent_until:
            return
        self._silent_until = now + _TRACE_SILENCE
        _log.warning(
            "%s: a step of processing took %.2f s, of %d entries, while %d waited (%d slow steps so far)",
            self.name,
            took,
            size,
            waiting,
            self._slow,
        )

    async def _resync_all(self) -> None:
        while True:
            await self._clock.sleep(self.config.full_resync_period)
            if self.config.should_resync is None or plain(self.config.should_resync(), "should_resync"):
                self.queue.resync()


def make_queue(kind: QueueKind, known: Callable[[], Mapping[str, Record]]) -> Queue:
    """The queue of that name; `known` is what the store holds."""
    return RealFIFO() if kind == "RealFIFO" else DeltaFIFO(known)


def alone(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception of a group, or the group if it has several."""
    return group.exceptions[0] if len(group.exceptions) == 1 else group


def _size(batch: Batch) -> int:
    """How many changes and objects of a list a batch has."""
    match batch:
        case list():
            return len(batch)
        case Replacement():
            return len(batch.records)
        case Bookmark() | SyncAll():
            return 0


def new_informer(  # noqa: PLR0913 - a contract of its own, keyword by keyword
    source: Source,
    handler: ResourceEventHandler,
    *,
    resync_period: float = 0.0,
    indexers: Mapping[str, AnyIndexFunc] | None = None,
    queue: QueueKind = "RealFIFO",
    options: ReflectorOptions = DEFAULT_OPTIONS,
    on_fault: Callable[[Exception], None] | None = None,
    uid_change: UidChange = "recreate",
    clock: Clock | None = None,
    name: str = "",
    require_sync: bool = True,
) -> tuple[Lister, Controller]:
    """A cache to read, and the controller that fills it while it runs (NewInformer, NewIndexerInformer).

    The handler is called on the loop of `Controller.run`, and awaited if it is asynchronous. When it
    is called for a change that the watch brought, the cache stands exactly there (client-go 172). A
    handler that raises ends `run`, which raises the same, so that no change is missed unnoticed
    (client-go 166). `has_synced` says that the handler was called for all of the first list.
    `resync_period` is in seconds, 0 for never. A read before `has_synced` raises NotSynced; a handler that
    reads the cache while the first list comes in asks for it without `require_sync`.
    """
    indexer = Indexer(index_functions(indexers or {}))
    made = make_queue(queue, indexer.known)
    clock = clock or SystemClock()
    applier = Applier(indexer, uid_change=uid_change, in_order=queue == "RealFIFO")
    config = Config(
        queue=made,
        source=source,
        process=_InlineHandler(indexer, applier, handler, clock).process,
        options=options,
        full_resync_period=resync_period,
        on_fault=on_fault,
        known=indexer.known().get,
        clock=clock,
        name=name,
    )
    controller = Controller(config)
    lister = Lister([indexer], name=controller.name, filled_by=(controller,) if require_sync else ())
    return lister, controller


class _InlineHandler:
    """Changes the cache and calls the handler, one change after the other."""

    def __init__(
        self, indexer: Indexer, applier: Applier, handler: ResourceEventHandler, clock: Clock
    ) -> None:
        self._indexer = indexer
        self._applier = applier
        self._handler = handler
        self._clock = clock
        self._calls = 0  # of the handler, until now

    async def process(self, batch: Batch) -> None:
        for notifications in self._applied(batch, self._clock.now().timestamp()):
            for notification in notifications:
                result = call_handler(self._handler, notification)
                if inspect.isawaitable(result):
                    await result
                self._calls += 1
                if self._calls % _CALLS_PER_TURN == 0:
                    await asyncio.sleep(0)

    def _applied(self, batch: Batch, now: float) -> Iterable[Iterable[Notification]]:
        match batch:
            case list():
                # One by one: the handler is called for a change before the next one is in the cache.
                for delta in batch:
                    yield self._applier.apply([delta], now)
            case Replacement():
                yield from self._applier.replace(batch, now)
            case Bookmark():
                self._indexer.bookmark(batch.resource_version)
            case SyncAll():
                yield [resync_of(record, now) for record in self._indexer.list()]
