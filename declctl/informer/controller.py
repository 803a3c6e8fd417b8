"""Controllers: a reflector, a queue, and a function that processes the queue (client-go's controller.go).

`Controller` is the base of the shared informer. Alone it serves programs that need changes and no cache.

`new_informer` makes a cache for one handler and processes one change at a time: it changes the cache, calls
the handler, and goes on. For several handlers, and for handlers that are slow or fail, use the shared
informer.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Literal

import msgspec

from declctl.decoding.projection import Known, nothing_known
from declctl.errors import CacheError, QueueClosed
from declctl.informer.applier import Applier, UidChange, resync_of
from declctl.informer.event_handlers import ResourceEventHandler
from declctl.informer.listener import call_handler
from declctl.informer.queues.delta_fifo import DeltaFIFO
from declctl.informer.queues.real_fifo import (
    Batch,
    Bookmark,
    Departure,
    Queue,
    RealFIFO,
    Replacement,
    SyncAll,
)
from declctl.informer.reflector.reflector import (
    DEFAULT_OPTIONS,
    AnyReflector,
    Reflector,
    ReflectorOptions,
)
from declctl.informer.scope import ShardScope
from declctl.informer.source import Source
from declctl.informer.stores.indices import AnyIndexFunc, index_functions
from declctl.informer.stores.lister import Lister
from declctl.informer.stores.thread_safe_store import Indexer
from declctl.kit import Clock, Latch, SystemClock
from declctl.kit.callbacks import must_propagate, plain, refuse_async
from declctl.objects import Notification, Record

_CALLS_PER_TURN = 64  # calls of the handler until other tasks of the loop may run

BATCH = 500  # entries that are processed until other tasks of the loop may run
# A step is slow if it takes longer while more entries wait, as in client-go.
_SLOW_SECONDS, _SLOW_BACKLOG = 0.1, 10
_TRACE_SILENCE = 60.0  # seconds between two log lines about slow steps
_log = logging.getLogger("declctl.informer")

Process = Callable[[Batch], Iterable[None] | Awaitable[None] | None]
QueueKind = Literal["RealFIFO", "DeltaFIFO"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The parts of a controller (client-go's Config). Times are in seconds.

    - `queue`: filled by the reflector and emptied by the controller.
    - `source`: the resource that is listed and watched; None with a `reflector`.
    - `process`: called on the loop with each popped batch; see Controller.
    - `options`: those of the reflector.
    - `full_resync_period`: the interval of resyncs of the queue; 0, the default, for none.
    - `should_resync`: a plain function, asked before each resync; None, the default, for always.
    - `on_fault`: called on the loop with each fault of a LIST or WATCH (client-go's WatchErrorHandler).
    - `known`: returns the record that the store has under a key, or None.
    - `reflector`: fills the queue, in the place of one that is made of `source` with the options above.
    - `scope`: that of the reflector.
    - `clock`: the system's by default.
    - `name`: for logs; by default the description of the source.
    """

    queue: Queue
    source: Source | None
    process: Process
    options: ReflectorOptions = DEFAULT_OPTIONS
    full_resync_period: float = 0.0
    should_resync: Callable[[], bool] | None = None
    on_fault: Callable[[Exception], None] | None = None
    known: Known = nothing_known
    reflector: AnyReflector | None = None
    scope: ShardScope | None = None
    clock: Clock = field(default_factory=SystemClock)
    name: str = ""


class ControllerStatistics(msgspec.Struct, frozen=True):
    """The processing of a controller so far. Times are in seconds of its clock."""

    queued: int  # entries that wait now
    batches: int  # calls of `process`
    entries: int  # changes, and objects of lists; bookmarks and resyncs do not count
    seconds: float  # of processing
    longest: float  # step of processing
    slow: int  # steps of more than 0.1 s while more than 10 entries waited


class Controller:
    """Runs a reflector and processes its queue, in order (client-go's Controller). Used on one loop.

    `process` of the config may be a plain function, a generator function or a coroutine function. Other tasks
    of the loop run at each `yield` and each `await`. The reflector fills the queue meanwhile, and never waits
    for `process`.

    An exception of `process` ends `run`, which raises it (client-go 166). A CancelledError of `process`
    without a cancellation of `run` becomes a CacheError. `synced` opens when the first list is processed.
    Raises TypeError for an asynchronous `should_resync` or `on_fault`.
    """

    def __init__(self, config: Config) -> None:
        refuse_async(config.should_resync, "should_resync")
        self.config = config
        self.queue = config.queue
        self.synced = Latch(config.name or "controller")
        self.reflector = _reflector(config)
        self._clock = config.clock
        self._pauses = 0  # calls of `pause` without their `resume`
        self._free = asyncio.Event()  # set while there are no pauses
        self._free.set()
        self._batches = self._entries = self._slow = 0  # as in ControllerStatistics
        self._seconds = self._longest = 0.0
        self._silent_until = float("-inf")  # monotonic seconds: no log line about slow steps before this

    async def run(self) -> None:
        """List, watch and process until cancelled, or until the queue is closed and empty."""
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self.reflector.run(), name="reflector")]
                if self.config.full_resync_period > 0:
                    running.append(tasks.create_task(self._resync_all(), name="resync"))
                await self.process_loop()
                # The queue is closed and empty: the tasks that fill it end, too.
                for task in running:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise alone(group) from None
        finally:
            self.queue.close()

    async def process_loop(self) -> None:
        """Process the queue until it is closed and empty."""
        with contextlib.suppress(QueueClosed):
            while True:
                batch = await self.queue.pop_batch(BATCH)
                while self._pauses:
                    await self._free.wait()
                await self._process(batch)
                self.queue.processed(batch)
                del batch  # a list must not stay in memory until the next change comes
                if not self.synced.is_open and self.queue.has_synced:
                    self.synced.open()
                if len(self.queue):
                    await asyncio.sleep(0)  # a queue that is never empty must not block the loop

    def pause(self) -> None:
        """Pause processing until `resume` was called as often as `pause`. Changes stay in the queue."""
        self._pauses += 1
        self._free.clear()

    def resume(self) -> None:
        """End one `pause`. After the last one, processing goes on in the next turn of the loop."""
        self._pauses -= 1
        if not self._pauses:
            self._free.set()

    @property
    def has_synced(self) -> bool:
        """Whether the first list is processed."""
        return self.synced.is_open

    @property
    def name(self) -> str:
        """The name in messages."""
        source = self.config.source
        return self.config.name or ("controller" if source is None else source.description)

    def why_not_synced(self) -> str:
        """Why the first list is not processed; empty if it is. From any thread."""
        return "" if self.has_synced else self.reflector.progress()

    @property
    def last_sync_resource_version(self) -> str:
        """The newest version that the reflector has seen. From any thread."""
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
        # The cheap test first: `isinstance(result, Awaitable)` takes four times as long for a generator.
        if not isinstance(result, GeneratorType) and isinstance(result, Awaitable):
            await self._awaited(result)
        elif result is not None:
            for _ in result:
                # Each step is timed by itself: the work of other tasks between two steps is not processing.
                self._timed(began, size)
                await asyncio.sleep(0)
                while self._pauses:
                    await self._free.wait()
                began = self._clock.monotonic()
        self._timed(began, size)

    async def _awaited(self, result: Awaitable[None]) -> None:
        try:
            await result
        except asyncio.CancelledError as fault:
            if must_propagate(fault):
                raise
            # `run` was not cancelled. The same exception would end its task silently, as a cancellation does.
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


def _reflector(config: Config) -> AnyReflector:
    if config.reflector is not None:
        return config.reflector
    if config.source is None:
        raise TypeError(f"{config.name or 'a controller'} needs a source or a reflector")
    return Reflector(
        config.source,
        config.queue,
        clock=config.clock,
        known=config.known,
        options=config.options,
        on_fault=config.on_fault,
        scope=config.scope,
    )


def make_queue(kind: QueueKind, known: Callable[[], Mapping[str, Record]]) -> Queue:
    """A new queue of that kind; `known` returns the records of the store by key."""
    return RealFIFO() if kind == "RealFIFO" else DeltaFIFO(known)


def alone(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception of a group, or the group if it has several."""
    return group.exceptions[0] if len(group.exceptions) == 1 else group


def _size(batch: Batch) -> int:
    """The number of entries of a batch: changes, or objects of a list."""
    match batch:
        case list():
            return len(batch)
        case Replacement():
            return len(batch.records)
        case Bookmark() | SyncAll() | Departure():
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
    """A lister, and the controller that fills its cache while it runs (NewInformer, NewIndexerInformer).

    - `source`: the resource that is listed and watched.
    - `handler`: called on the loop of `Controller.run`, and awaited if it is asynchronous. During a call for
      a change of the watch, the cache has this change and no later one (client-go 172). An exception of the
      handler ends `run`, which raises it, so that no change is lost silently (client-go 166).
    - `resync_period`: seconds between two replays of the cache to the handler; 0, the default, for none.
    - `indexers`: index functions by name. Raises TypeError for one that is no plain function.
    - `queue`: `RealFIFO`, the default, or `DeltaFIFO`.
    - `options`: those of the reflector.
    - `on_fault`: called on the loop with each fault of a LIST or WATCH.
    - `uid_change`: `recreate`, the default, notifies of another uid under a key as a delete and an add;
      `update` as one update, as in client-go.
    - `clock`, `name`: the system's clock and the source's description by default.
    - `require_sync`: True, the default, lets a read before `has_synced` raise NotSynced. A handler that reads
      the cache during the first list needs False.

    `has_synced` of the controller is true when the handler was called for all objects of the first list.
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
        self._calls = 0  # of the handler so far

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
                # One by one: the handler is called for each change before the cache has the next one.
                for delta in batch:
                    yield self._applier.apply([delta], now)
            case Replacement():
                yield from self._applier.replace(batch, now)
            case Bookmark():
                self._indexer.bookmark(batch.resource_version)
            case SyncAll():
                yield [resync_of(record, now) for record in self._indexer.list()]
            case Departure():
                yield from self._applier.depart(batch, now)
