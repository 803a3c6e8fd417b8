"""The shared informer: reflector → queue → store → listeners, joined (client-go's sharedIndexInformer).

What it promises: the cache converges to the server's state. Store and indexes are updated before a listener
is told. Each listener receives, for each object, a subsequence of its states in order. A listener that joins
late receives the cache first, each object exactly once, then what comes. Between objects no order is promised
beyond that in which the server told.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from declctl.decoding.decoders import Transform
from declctl.decoding.projection import Projection, ProjectionStatistics
from declctl.errors import CacheError
from declctl.informer.applier import (
    NO_DIFFERENCES,
    Applier,
    RelistDifferences,
    Remake,
    Reprojection,
    UidChange,
)
from declctl.informer.controller import Config, Controller, ControllerStatistics, QueueKind, alone, make_queue
from declctl.informer.event_handlers import ResourceEventHandler
from declctl.informer.listener import Listener, ProcessorListener, end_workers
from declctl.informer.processor import ProcessorStatistics, Registration, SharedProcessor
from declctl.informer.queues.real_fifo import Batch, Bookmark, Replacement, SyncAll
from declctl.informer.reflector.reflector import DEFAULT_OPTIONS, ReflectorOptions
from declctl.informer.reflector.statistics import ReflectorStatistics
from declctl.informer.source import Decoding, Source
from declctl.informer.stores.indices import AnyIndexFunc, IndexBuild, index_functions
from declctl.informer.stores.lister import Lister
from declctl.informer.stores.thread_safe_store import Indexer
from declctl.informer.wait import signalled
from declctl.kit import Clock, Latch, SystemClock, call_on
from declctl.kit.callbacks import refuse_async

_notices = logging.getLogger("declctl.informer.notices")


@dataclass(frozen=True, slots=True)
class InformerStatistics:
    """One informer in `status`: what people ask for first, and then what each station says of itself."""

    name: str
    synced: bool
    state: str  # of the reflector, such as Watching
    objects: int  # in the cache
    bytes: int  # of their frames
    lists: int  # this, and all to `forbidden`, as in ReflectorStatistics
    watches: int
    relists: int
    resource_version: str
    last_event_age: float | None  # seconds since something came; None if nothing has come
    events: Mapping[str, int]
    items_listed: int
    failures: int
    idle_closes: int
    error: str | None
    missing: bool
    forbidden: bool
    index_faults: Mapping[
        str, tuple[int, str | None]
    ]  # by index: how often its function failed, and why last
    projection: ProjectionStatistics  # what was decoded since the start
    reflector: ReflectorStatistics
    controller: ControllerStatistics  # the queue and its processing
    processor: ProcessorStatistics  # the listeners
    relist_differences: RelistDifferences  # what lists after the first have found


class SharedIndexInformer:
    """One resource, cached and indexed, for any number of listeners.

    Used on one loop. It may be made before the loop runs, and given handlers and indexes. Handlers and
    indexes may come and go from any thread: the call returns when the loop has done it. Listers are for any
    thread.

    - `indexers` are functions of an object, or field indexes, which cost no decoding where the source
      projects their path.
    - `resync_period` is in seconds, 0 for never, for handlers that have no period of their own.
    - `on_fault` is called on the loop with each fault of a LIST or WATCH.
    - `uid_change` says what another uid under a key becomes: a delete and an add ("recreate"), or, as in
      client-go, an update.

    `synced` opens when the first list is in the cache, `ended` when the informer has stopped.
    """

    def __init__(  # noqa: PLR0913 - a contract of its own, keyword by keyword
        self,
        source: Source,
        *,
        name: str,
        clock: Clock | None = None,
        resync_period: float = 0.0,
        indexers: Mapping[str, AnyIndexFunc] | None = None,
        queue: QueueKind = "RealFIFO",
        options: ReflectorOptions = DEFAULT_OPTIONS,
        on_fault: Callable[[Exception], None] | None = None,
        uid_change: UidChange = "recreate",
    ) -> None:
        self.name = name
        self.source = source
        self.resync_period = resync_period
        self.indexer = Indexer(index_functions(indexers or {}))
        self._clock: Clock = clock or SystemClock()
        self._decoding = Decoding(source)
        self.processor = SharedProcessor(self._clock)
        self._applier = Applier(self.indexer, uid_change=uid_change, in_order=queue == "RealFIFO")
        self._slices = Slices()  # introductions, replays and take-overs that are under way
        self.controller = Controller(
            Config(
                queue=make_queue(queue, self.indexer.known),
                source=source,
                process=self.process,
                options=options,
                on_fault=on_fault,
                known=self.indexer.known().get,
                clock=self._clock,
                name=name,
            )
        )
        self.synced = self.controller.synced
        self.ended = Latch(f"end of {name}")
        self._workers: dict[ProcessorListener, None] = {}  # whose handlers may be called
        self._transform: Transform | None = None  # of `set_transform`, until the start
        self._reprojection: Reprojection | None = None  # the last that took over
        self._started = False

    async def run(self) -> None:
        """List, watch and notify until cancelled; runs once, and raises CacheError the second time.

        At the end the reflector and the queue stop first, then the listeners. It returns when the workers of
        the handlers have ended: a call that is under way is waited for, for 10 s at most. What handlers have
        pending is dropped.
        """
        if self._started:
            raise CacheError(f"the informer of {self.name} was started already")
        self._started = True
        self.bind()
        # Only now: the factory sets a projection of its own just before the start.
        if self._transform is not None:
            self.reproject(self.source.projection.with_transform(self._transform))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.controller.run(), name=f"informer {self.name}")
                tasks.create_task(self._resync_all(), name=f"resync {self.name}")
        except BaseExceptionGroup as group:
            raise alone(group) from None
        finally:
            # Slices first: an introduction that goes on would notify listeners that are removed here.
            self._slices.cancel()
            for registration in self.processor.registrations():
                self.processor.remove_listener(registration)
            self.ended.open()
            await end_workers(tuple(self._workers), of=self.name, clock=self._clock)

    def bind(self) -> None:
        """Belong to the loop that runs here, with the handlers that were added before it ran."""
        loop = self.processor.loop = asyncio.get_running_loop()
        # Handlers that were added before a loop ran have latches that no loop knows yet.
        for listener in self._workers:
            listener.bind(loop)

    def set_transform(self, transform: Transform) -> None:
        """Pass every object through a transform before it is stored (client-go's SetTransform).

        It runs once for each object that the server sends, not for a resync. It takes the place of
        the transform that the source's projection has. Raises CacheError after the start, and TypeError
        for an asynchronous one.
        """
        self._refuse_started("another transform")
        refuse_async(transform, "the transform")
        self._transform = transform

    def set_watch_error_handler(self, handler: Callable[[Exception], None] | None) -> None:
        """Call this with each fault of the watch, in the place of `on_fault`.

        (client-go's SetWatchErrorHandler.) Raises CacheError after the start, and TypeError for an
        asynchronous one.
        """
        self._refuse_started("another watch error handler")
        refuse_async(handler, "the watch error handler")
        self.controller.reflector.on_fault = handler

    def reproject(self, projection: Projection) -> None:
        """Decode with another projection from now on; what is in the cache stays as it is."""
        self._decode_by(projection, None)

    def begin_reprojection(self, projection: Projection, remake: Remake) -> Reprojection:
        """Begin to make the cache anew as `projection` would have decoded it, aside and in slices.

        `remake` makes a record like those of the projection. Nothing has happened before `take_over`.
        """
        return Reprojection(self.indexer, projection, remake)

    def take_over(self, reprojection: Reprojection) -> None:
        """Decode with its projection from now on; what it made takes its place in the next slices.

        No listener is notified: the objects are the same. Nothing here waits or can fail.
        """
        self._decode_by(reprojection.projection, reprojection)
        self._slices.start_later(reprojection.take_over())

    def take_over_first(self, reprojection: Reprojection) -> None:
        """Decode with its projection from now on; what it will make takes its place as soon as it is made."""
        self._decode_by(reprojection.projection, reprojection)
        reprojection.take_over_first()

    def process(self, batch: Batch) -> Iterator[None]:
        """Apply a batch to the store, and notify the listeners after each step of it."""
        now = self._clock.now().timestamp()
        match batch:
            case list():
                deltas = batch if self._reprojection is None else self._reprojection.deltas(batch)
                self.processor.distribute(self._applier.apply(deltas, now))
                if self.processor.syncing and not len(self.controller.queue):
                    self.processor.served()  # the Sync deltas of a DeltaFIFO have all been distributed
            case Replacement():
                # What was listed before a take-over was decoded by the projection before it.
                if self._reprojection is not None:
                    batch = yield from self._reprojection.replacement(batch)
                # What this list finds different is told apart from what earlier lists have found.
                before = self._applier.differences
                for notifications in self._applier.replace(batch, now):
                    self.processor.distribute(notifications)
                    yield
                if (found := self._applier.differences - before) != NO_DIFFERENCES:
                    _notices.info("%s: listed anew: %s; changes in between were not seen", self.name, found)
            case Bookmark():
                self.indexer.bookmark(batch.resource_version)
            case SyncAll():
                for registration in self.processor.served():
                    self._replay(registration)

    @property
    def lister(self) -> Lister:
        """A read-only view of the cache. A read before it has synced raises NotSynced."""
        return self.get_lister()

    def get_lister(self, *, require_sync: bool = True) -> Lister:
        """A read-only view of the cache.

        Without `require_sync` it never raises NotSynced: before the first list is in, it gives those
        objects that have come so far, so that what it lacks may well be in the cluster.
        """
        return Lister([self.indexer], name=self.name, filled_by=(self,) if require_sync else ())

    @property
    def has_synced(self) -> bool:
        """Whether the first list is in the cache."""
        return self.synced.is_open

    @property
    def is_stopped(self) -> bool:
        """Whether it ran and ended."""
        return self.ended.is_open

    @property
    def last_sync_resource_version(self) -> str:
        """The newest version that the reflector has seen."""
        return self.controller.last_sync_resource_version

    @property
    def fault(self) -> Exception | None:
        """The fault of its LISTs and WATCHes that lasts, such as Forbidden; None while there is none."""
        return self.controller.reflector.fault

    def why_not_synced(self) -> str:
        """Why the first list is not in the cache, from any thread; empty if it is."""
        if self.has_synced:
            return ""
        if self.is_stopped:
            return "it was stopped"
        if not self._started:
            return "it was not started"
        return self.controller.why_not_synced()

    def add_event_handler(
        self, handler: ResourceEventHandler, *, resync_period: float | None = None, name: str | None = None
    ) -> Registration:
        """Call a library user's handler at its own pace, first for each cached object. Any number of times.

        `resync_period` is in seconds, 0 for never; below 1 s it is 1 s, and None is that of the informer.
        `name` is for logs. From any thread. Raises CacheError when the informer has stopped.
        """
        return call_on(self.processor.loop, lambda: self._add_event_handler(handler, resync_period, name))

    def _add_event_handler(
        self, handler: ResourceEventHandler, resync_period: float | None, name: str | None
    ) -> Registration:
        self._refuse_stopped()
        listener = ProcessorListener(handler, clock=self._clock, name=name)
        self._workers[listener] = None
        listener.ended.on_open(lambda: self._workers.pop(listener, None))
        registration = self._register(listener, resync_period, synced=listener.synced)
        # The listener has synced when all of its first sync is dealt with, not when it was handed over.
        registration.given.on_open(listener.initial_complete)
        self._slices.start(self._introduction(registration))
        return registration

    def add_listener(
        self,
        listener: Listener,
        *,
        resync_period: float | None = None,
        initial: bool = True,
        at_once: bool = True,
    ) -> Registration:
        """Give a listener the cache as initial Added, if `initial`, then everything that comes.

        Unless `at_once`, it receives the first object in a later turn of the loop, and this returns as soon
        for a large cache as for a small one. On the loop. Raises CacheError when the informer has stopped.
        """
        self._refuse_stopped()
        registration = self._register(listener, resync_period, synced=None)
        if not initial:
            self._give_with_sync(registration)
        elif at_once:
            self._slices.start(self._introduction(registration))
        else:
            # Events that come before the introduction begins are in it, and are not given twice.
            self.processor.postpone(registration)
            self._slices.start_later(self._introduction(registration))
        return registration

    def request_relist(self) -> None:
        """List the most recent state as soon as that can be done, and watch on from there.

        Once, however often it is called until then. Listeners are notified of what differs.
        """
        self.controller.reflector.request_relist()

    @contextmanager
    def held(self) -> Generator[None]:
        """Apply nothing in this block: what comes waits in the queue until it ends."""
        self.controller.hold()
        try:
            yield
        finally:
            self.controller.let_go()

    def remove_event_handler(self, registration: Registration) -> None:
        """Notify a listener no more, at once; what a library handler has pending is dropped.

        Nothing happens if it is another informer's or was removed (client-go 184, 186). The handler
        may still be in a call. From any thread.
        """
        call_on(self.processor.loop, lambda: self.processor.remove_listener(registration))

    async def shutdown_event_handler(self, registration: Registration) -> None:
        """Notify a listener no more, and return when its handler is called no more.

        Nothing happens if the registration is another informer's. A handler that waits for its own end would
        wait for ever: it is removed, and CacheError is raised.
        """
        if registration.processor is self.processor:
            await registration.shutdown()

    def add_indexers(self, indexers: Mapping[str, AnyIndexFunc]) -> None:
        """Add indexes at any time, from any thread.

        Complete at once. A name that is taken raises CacheError and changes nothing; what is no plain
        function raises TypeError.
        """
        wanted = index_functions(indexers)
        call_on(self.processor.loop, lambda: self.indexer.add_indexers(wanted))

    def share_indexers(self, indexers: Mapping[str, AnyIndexFunc]) -> None:
        """Add those indexes that are not there; one that is there by another function raises CacheError."""
        # Two users of a shared informer may ask for the same index; the second finds it there.
        there = self.indexer.get_indexers()
        wanted = index_functions(indexers)
        self.indexer.add_indexers({n: f for n, f in wanted.items() if there.get(n) != f})

    def remove_indexers(self, names: Iterable[str]) -> None:
        """Forget indexes. From any thread."""
        gone = tuple(names)
        call_on(self.processor.loop, lambda: self.indexer.remove_indexers(gone))

    def build_index(self, name: str, function: AnyIndexFunc) -> IndexBuild:
        """Begin an index that is filled in slices."""
        return self.indexer.build_index(name, index_functions({name: function})[name])

    def resync_now(self, listener: Listener) -> None:
        """Replay the cache to one listener."""
        for registration in self.processor.registrations(listener):
            self._replay(registration)

    def statistics(self) -> InformerStatistics:
        """The figures of this moment. From any thread."""
        reflector = self.controller.reflector.statistics()
        # The age is computed here: a reader in another process has another clock.
        last = reflector.last_event_at
        return InformerStatistics(
            name=self.name,
            synced=self.has_synced,
            state=reflector.state,
            objects=len(self.indexer),
            bytes=self.indexer.bytes,
            lists=reflector.lists,
            watches=reflector.watches,
            relists=reflector.relists,
            resource_version=reflector.resource_version,
            last_event_age=None if last is None else max(0.0, self._clock.monotonic() - last),
            events=reflector.events,
            items_listed=reflector.items_listed,
            failures=reflector.failures,
            idle_closes=reflector.idle_closes,
            error=reflector.error,
            missing=reflector.missing,
            forbidden=reflector.forbidden,
            index_faults=self.indexer.index_faults(),
            projection=self._decoding.statistics(),
            reflector=reflector,
            controller=self.controller.statistics(),
            processor=self.processor.statistics(),
            relist_differences=self._applier.differences,
        )

    def _register(self, listener: Listener, period: float | None, *, synced: Latch | None) -> Registration:
        return self.processor.add_listener(
            listener,
            resync_period=self.resync_period if period is None else period,
            synced=synced,
        )

    def _introduction(self, registration: Registration) -> Iterator[None]:
        yield from self.processor.introduce(registration, self.indexer.known())
        self._give_with_sync(registration)

    def _give_with_sync(self, registration: Registration) -> None:
        """Open `given` of a registration that has the cached objects, as soon as the cache has synced."""
        if registration.removed:
            return
        given = registration.given.open
        self.synced.on_open(given)
        registration.ended.on_open(lambda: self.synced.forget(given))

    def _replay(self, registration: Registration) -> None:
        self._slices.start(self.processor.replay(registration, self.indexer.known()))

    def _decode_by(self, projection: Projection, reprojection: Reprojection | None) -> None:
        if self._reprojection is not None:
            self._reprojection.supersede()
        self._reprojection = reprojection
        self._decoding.exchange(projection)

    def _refuse_started(self, what: str) -> None:
        if self._started:
            raise CacheError(f"the informer of {self.name} was started already: {what} comes too late")

    def _refuse_stopped(self) -> None:
        if self.is_stopped:
            raise CacheError(f"the informer of {self.name} has stopped: nobody can join it")

    async def _resync_all(self) -> None:
        processor = self.processor
        while True:
            # Woken when the next resync is due, and when a listener with another period has come.
            await signalled(processor.retimed, clock=self._clock, seconds=processor.next_due())
            if processor.due():
                self.controller.queue.resync()


class Slices:
    """Runs iterators to their end, a step at a time. Used on one loop.

    Work of only one step makes no task, and can be started without a running loop.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Iterator[None]) -> None:
        """Do the first step now and the others later."""
        for _ in work:
            self.start_later(work)
            return

    def start_later(self, work: Iterator[None]) -> None:
        """Do each step later: nothing has happened when this returns."""
        task = asyncio.get_running_loop().create_task(_finish(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Leave undone what is not done."""
        for task in self._tasks:
            task.cancel()

    def __len__(self) -> int:
        return len(self._tasks)


async def _finish(work: Iterator[None]) -> None:
    await asyncio.sleep(0)
    for _ in work:
        await asyncio.sleep(0)
