"""The shared informer: reflector → queue → store → listeners, joined (client-go's sharedIndexInformer).

The guarantees:

- The cache converges to the state of the server.
- Store and indexes have a change before listeners are notified of it.
- Each listener receives a subsequence of the states of each object, in order.
- A listener that is added late first receives each cached object exactly once, then the changes.
- Changes of different objects have the order in which the server sent them, and no other guarantee.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from declctl.decoding.decoders import Transform
from declctl.decoding.projection import Projection, ProjectionStatistics, RecordRemaker
from declctl.errors import CacheError
from declctl.informer.applier import (
    NO_DIFFERENCES,
    Applier,
    NamespacedApplier,
    RelistDifferences,
    Reprojection,
    ScopedApplier,
    UidChange,
)
from declctl.informer.controller import Config, Controller, ControllerStatistics, QueueKind, alone, make_queue
from declctl.informer.event_handlers import ResourceEventHandler
from declctl.informer.listener import Listener, ProcessorListener, end_workers
from declctl.informer.processor import ProcessorStatistics, Registration, SharedProcessor
from declctl.informer.queues.namespaced_fifo import NamespacedFIFO
from declctl.informer.queues.real_fifo import Batch, Bookmark, Departure, Replacement, SyncAll
from declctl.informer.queues.scoped_fifo import ScopedFIFO
from declctl.informer.reflector.namespaces import NamespaceReflectors, NamespaceStatistics, SourcesByNamespace
from declctl.informer.reflector.reflector import DEFAULT_OPTIONS, Reflector, ReflectorOptions
from declctl.informer.reflector.statistics import ReflectorStatistics
from declctl.informer.scope import ShardScope
from declctl.informer.source import Decoding, Source
from declctl.informer.stores.indices import (
    NAMESPACE_INDEX,
    AnyIndexFunc,
    IndexBuild,
    index_functions,
    namespace_index,
)
from declctl.informer.stores.lister import Lister
from declctl.informer.stores.thread_safe_store import Indexer
from declctl.kit import Clock, Latch, SystemClock, call_on, set_within
from declctl.kit.callbacks import refuse_async
from declctl.objects import Record, version_order

_notices = logging.getLogger("declctl.informer.notices")

OnApplied = Callable[[Sequence[str] | None], None]
"""Called on the loop of an informer when its cache has applied changes, and when the informer has stopped.

With the keys of the changes; or with None if any key may have changed.
"""


class InformerStatistics(msgspec.Struct, frozen=True):
    """The figures of one informer: the most important ones first, then those of each of its parts."""

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
    # By index: the number of failures of its function, and the last one as a sentence.
    index_faults: Mapping[str, tuple[int, str | None]]
    projection: ProjectionStatistics  # the decoding since the start
    reflector: ReflectorStatistics
    controller: ControllerStatistics  # the queue and its processing
    processor: ProcessorStatistics  # the listeners
    relist_differences: RelistDifferences  # between lists after the first and the cache
    namespaces: NamespaceStatistics | None = None  # None unless a selector of namespaces is followed


def ignore_batch(_: Batch) -> None:
    """The default of `on_batch`."""


class SharedIndexInformer:
    """The cached and indexed objects of one resource, for any number of handlers (SharedIndexInformer).

    - `source`: the resource that is listed and watched; or its sources in the namespaces of a set, which may
      change: the objects of a namespace that leaves are deleted as out of scope.
    - `name`: for logs, status and tasks.
    - `clock`: the system's by default.
    - `resync_period`: seconds between two replays of the cache, for handlers without a period of their own;
      0, the default, for none.
    - `indexers`: by name, functions of an object, or field indexes. A field index needs no decoding if the
      source projects its path. Raises TypeError for a value that is no plain function.
    - `queue`: `RealFIFO`, the default, or `DeltaFIFO`.
    - `options`: those of the reflector.
    - `on_fault`: called on the loop with each fault of a LIST or WATCH.
    - `uid_change`: `recreate`, the default, notifies of another uid under a key as a delete and an add;
      `update` as one update, as in client-go.
    - `scope`: the shards that the cache has, of this informer alone; None, the default, for all objects. It
      changes by `widen`, `open_shards`, `close_shards` and `narrow`, also before the start. Raises CacheError
      beside a set of namespaces, a DeltaFIFO and `update`.

    The informer belongs to the loop of `run`. Handlers and indexes may be added before that loop runs. While
    it runs, they may be added and removed from any thread; the call returns when the loop has done it.
    Listers may be used from any thread.

    `synced` opens when the first list is in the cache, `ended` when the informer has stopped.
    """

    def __init__(  # noqa: PLR0913 - a contract of its own, keyword by keyword
        self,
        source: Source | SourcesByNamespace,
        *,
        name: str,
        clock: Clock | None = None,
        resync_period: float = 0.0,
        indexers: Mapping[str, AnyIndexFunc] | None = None,
        queue: QueueKind = "RealFIFO",
        options: ReflectorOptions = DEFAULT_OPTIONS,
        on_fault: Callable[[Exception], None] | None = None,
        uid_change: UidChange = "recreate",
        scope: ShardScope | None = None,
    ) -> None:
        self.name = name
        self.source = source
        self.resync_period = resync_period
        by_namespace = isinstance(source, SourcesByNamespace)
        # The objects of a namespace that leaves are looked up by it.
        own = {NAMESPACE_INDEX: namespace_index()} if by_namespace else {}
        self.indexer = Indexer(index_functions({**own, **(indexers or {})}))
        self._clock: Clock = clock or SystemClock()
        self._decoding = Decoding(source)
        self.scope = scope
        self.processor = SharedProcessor(self._clock, scope)
        if scope is not None and (by_namespace or queue != "RealFIFO" or uid_change != "recreate"):
            raise CacheError(
                f"{name}: a scope of shards needs one source, the queue RealFIFO and uid_change 'recreate'"
            )
        if by_namespace:
            self._applier: Applier = NamespacedApplier(self.indexer, uid_change=uid_change)
        elif scope is not None:
            self._applier = ScopedApplier(self.indexer, scope)
            source.projection.restrict(scope.holds)
        else:
            self._applier = Applier(self.indexer, uid_change=uid_change, in_order=queue == "RealFIFO")
        self._slices = Slices()  # the initial notifications, replays and reprojections that are under way
        made = make_queue(queue, self.indexer.known) if scope is None else ScopedFIFO(scope)
        reflectors = None
        if isinstance(source, SourcesByNamespace):
            made = NamespacedFIFO()
            reflectors = NamespaceReflectors(
                source,
                made,
                clock=self._clock,
                known=self.indexer.known().get,
                count_in=lambda namespace: len(self.indexer.list_by_namespace(namespace)),
                options=options,
                on_fault=on_fault,
            )
        self.controller = Controller(
            Config(
                queue=made,
                source=None if isinstance(source, SourcesByNamespace) else source,
                reflector=reflectors,
                process=self.process,
                options=options,
                on_fault=on_fault,
                known=self.indexer.known().get,
                scope=scope,
                clock=self._clock,
                name=name,
            )
        )
        self.synced = self.controller.synced
        self.ended = Latch(f"end of {name}")
        self._observers: dict[OnApplied, None] = {}  # a set that keeps the order
        # Called with each batch: changes are in the store then, and no listener has them; a list is not.
        self.on_batch: Callable[[Batch], None] = ignore_batch
        self._workers: dict[ProcessorListener, None] = {}  # listeners whose worker has not ended
        self._transform: Transform | None = None  # of `set_transform`, applied at the start
        self._reprojection: Reprojection | None = None  # the last one that took over, if it is still in use
        self._started = False
        # It begins with kept objects: all that listeners may know, and of the cluster that is there now.
        self.has_kept, self._kept_whole, self._same_cluster, self._kept_version = False, True, False, ""

    async def run(self) -> None:
        """List, watch and notify until cancelled (client-go's Run). Raises CacheError the second time.

        At the end, reflector and queue stop first, then the listeners. Pending notifications of handlers are
        dropped. `run` returns when no handler is being called, or after 10 s.
        """
        if self._started:
            raise CacheError(f"the informer of {self.name} was started already")
        self._started = True
        self.bind()
        # Only now, because the factory sets a projection of its own just before the start.
        if self._transform is not None:
            self.reproject(self.source.projection.with_transform(self._transform))
        queue = self.controller.queue
        if isinstance(queue, ScopedFIFO) and self.scope is not None and not self.scope.held:
            queue.expect_nothing()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.controller.run(), name=f"informer {self.name}")
                tasks.create_task(self._resync_all(), name=f"resync {self.name}")
        except BaseExceptionGroup as group:
            raise alone(group) from None
        finally:
            # Slices first: they would notify listeners that are removed here.
            self._slices.cancel()
            for registration in self.processor.registrations():
                self.processor.remove_listener(registration)
            self.ended.open()
            self._tell_observers(None)
            await end_workers(tuple(self._workers), of=self.name, clock=self._clock)

    def bind(self) -> None:
        """Make the running loop the one of this informer and of the handlers that it has already."""
        loop = self.processor.loop = asyncio.get_running_loop()
        # A handler that was added before a loop ran has latches without a loop.
        for listener in self._workers:
            listener.bind(loop)

    def set_transform(self, transform: Transform) -> None:
        """Apply a transform to every object before it is stored (client-go's SetTransform).

        `transform` receives a dictionary and returns the one to store, or None to leave the object out of the
        cache. It is called on the loop, once for each object that the server sends. It replaces the transform
        of the source's projection. Raises CacheError after the start, and TypeError for an asynchronous
        transform.
        """
        self._refuse_started("another transform")
        refuse_async(transform, "the transform")
        self._transform = transform

    def set_watch_error_handler(self, handler: Callable[[Exception], None] | None) -> None:
        """Replace `on_fault` (client-go's SetWatchErrorHandler).

        `handler` is called on the loop with each fault of a LIST or WATCH; None for no calls. Raises
        CacheError after the start, and TypeError for an asynchronous handler.
        """
        self._refuse_started("another watch error handler")
        refuse_async(handler, "the watch error handler")
        self.controller.reflector.on_fault = handler

    def begin_with(
        self, records: Sequence[Record], resource_version: str, *, whole: bool, same_cluster: bool
    ) -> None:
        """Begin with objects that an earlier process has kept, in the place of a list.

        They are used only if the server still has their history; then the cache is filled with their state of
        now. Unless they are `whole`, the process may have told of later objects: those that are gone count as
        known. If it is not known to be the `same_cluster`, and the cache had to be listed, objects of which
        none is there are no deleted ones. Raises CacheError after the start, for an informer of a set of
        namespaces, and with a scope.
        """
        self._refuse_started("kept objects")
        reflector = self.controller.reflector
        if not isinstance(reflector, Reflector):
            raise CacheError(
                f"{self.name} has a reflector for each namespace: it can't begin with kept objects"
            )
        reflector.begin_with(records, resource_version)
        self.has_kept, self._kept_version = True, resource_version
        self._kept_whole, self._same_cluster = whole, same_cluster

    def widen(self, shards: Iterable[int]) -> Latch:
        """Have these shards in the cache, too; returns a latch that opens when they are in the store.

        They are listed in the most recent state, after this call. Listeners are notified of the objects from
        `open_shards` on. If one of the shards is narrowed away before, the latch does not open.
        Raises CacheError without a scope, and for a number that is no shard. On the loop.
        """
        new, latch = self._scoped().widen(shards)
        if new:
            self.request_relist()
        return latch

    def open_shards(self, shards: Iterable[int]) -> None:
        """Notify listeners of these shards: first of each cached object, as initial, then of each change.

        A listener that was added for changes only is notified of changes only. Raises CacheError without a
        scope, and for a shard of which no list is in the store. On the loop.
        """
        if new := self._scoped().open_shards(shards):
            self._slices.start(self.processor.introduce_shards(new, self.indexer.known()))

    def close_shards(self, shards: Iterable[int]) -> None:
        """Notify listeners of these shards no longer; the cache keeps them. On the loop.

        Raises CacheError without a scope.
        """
        closed = frozenset(shards)
        self._scoped().close_shards(closed)
        self.processor.close_shards(closed)

    def narrow(self, shards: Iterable[int]) -> None:
        """Close these shards, and let their objects leave the cache, of which no listener is notified.

        The present watch goes on with its selector, and the next request has the narrower one. Raises
        CacheError without a scope. On the loop.
        """
        scope, queue = self._scoped(), self.controller.queue
        assert isinstance(queue, ScopedFIFO)
        if gone := scope.narrow(shards):
            self.processor.close_shards(gone)
            # All that is queued later is of the shards that are held now: the reflector sees to that.
            queue.depart(Departure(shards=gone))
            if not scope.held:
                self.request_relist()  # ends the watch, and waits for a shard
                queue.expect_nothing()

    def _scoped(self) -> ShardScope:
        if self.scope is None:
            raise CacheError(f"the informer of {self.name} has no scope of shards: it has all objects")
        return self.scope

    def reproject(self, projection: Projection) -> None:
        """Decode with another projection from now on. Cached records stay as they are."""
        self._decode_by(projection, None)

    def begin_reprojection(self, projection: Projection, remake: RecordRemaker) -> Reprojection:
        """A reprojection, which makes the cached records as `projection` would have decoded them.

        `remake` makes one record. The cache changes only with `take_over` or `take_over_first`.
        """
        return Reprojection(self.indexer, projection, remake)

    def take_over(self, reprojection: Reprojection) -> None:
        """Decode with the new projection from now on, and store the records that were made, in slices.

        No listener is notified, because the objects are the same. Neither waits nor fails.
        """
        self._decode_by(reprojection.projection, reprojection)
        self._slices.start_later(reprojection.take_over())

    def take_over_first(self, reprojection: Reprojection) -> None:
        """Decode with the new projection from now on; each further record is stored when it is made."""
        self._decode_by(reprojection.projection, reprojection)
        reprojection.take_over_first()

    def process(self, batch: Batch) -> Iterator[None]:
        """Apply a batch to the store, and notify the listeners after each step of it."""
        now = self._clock.now().timestamp()
        match batch:
            case list():
                deltas = batch if self._reprojection is None else self._reprojection.deltas(batch)
                notifications = self._applier.apply(deltas, now)
                self.on_batch(batch)
                self.processor.distribute(notifications)
                if self.processor.syncing and not len(self.controller.queue):
                    self.processor.served()  # the Sync deltas of a DeltaFIFO have all been distributed
            case Replacement():
                # A list that came before a take-over was decoded by the projection before it.
                if self._reprojection is not None:
                    batch = yield from self._reprojection.replacement(batch)
                self.on_batch(batch)
                # `differences` is a sum over all lists: this list's own are the increase.
                before = self._applier.differences
                for notifications in self._applier.replace(batch, now):
                    self.processor.distribute(notifications)
                    yield
                if (found := self._applier.differences - before) != NO_DIFFERENCES:
                    _notices.info("%s: listed anew: %s; changes in between were not seen", self.name, found)
            case Bookmark():
                self._applier.bookmark(batch)
                self.on_batch(batch)
            case Departure():
                self.on_batch(batch)
                for notifications in self._applier.depart(batch, now):
                    self.processor.distribute(notifications)
                    yield
            case SyncAll():
                for registration in self.processor.served():
                    self._replay(registration)
        self._tell_observers(batch)

    def observe(self, call: OnApplied) -> None:
        """Call `call` when the cache has applied changes, and when the informer has stopped. On the loop."""
        self._observers[call] = None

    def unobserve(self, call: OnApplied) -> None:
        """Do not call it any more. From any thread."""
        self._observers.pop(call, None)

    def _tell_observers(self, batch: Batch | None) -> None:
        """Call the observers after a batch; None for the end of the informer."""
        if not self._observers or isinstance(batch, SyncAll):
            return
        keys = [delta.key for delta in batch] if isinstance(batch, list) else None
        for call in tuple(self._observers):
            call(keys)

    @property
    def lister(self) -> Lister:
        """A lister of the cache, for any thread. Its reads raise NotSynced before the cache has synced."""
        return self.get_lister()

    def get_lister(self, *, require_sync: bool = True) -> Lister:
        """A lister of the cache, for any thread (client-go's GetIndexer).

        `require_sync` True, the default, lets reads before the sync raise NotSynced. With False they return
        the objects that have come so far; the cluster may have more.
        """
        return Lister([self.indexer], name=self.name, filled_by=(self,) if require_sync else ())

    @property
    def has_synced(self) -> bool:
        """Whether the first list is in the cache."""
        return self.synced.is_open

    @property
    def is_stopped(self) -> bool:
        """Whether the informer ran and has ended."""
        return self.ended.is_open

    @property
    def last_sync_resource_version(self) -> str:
        """The newest version that the reflector has seen."""
        return self.controller.last_sync_resource_version

    @property
    def seen_version(self) -> str:
        """The version up to which everything was seen, in each namespace that is watched."""
        return self.controller.reflector.statistics().resource_version

    @property
    def newest_store_version(self) -> str:
        """The newest version of which the cache has changes. On the loop.

        With a set of namespaces, the cache may lack older changes of some of them.
        """
        return self._applier.newest_version

    def follows(self, namespace: str | None) -> bool:
        """Whether a namespace is listed and watched, in an informer of a set of namespaces; else True.

        From any thread.
        """
        reflectors = self.controller.reflector
        return not isinstance(reflectors, NamespaceReflectors) or reflectors.follows(namespace)

    def reflectors(self) -> Mapping[str | None, Reflector]:
        """The reflectors by namespace; without a set of namespaces, one under None. On the loop."""
        reflector = self.controller.reflector
        if isinstance(reflector, NamespaceReflectors):
            return {**reflector.by_namespace}
        assert isinstance(reflector, Reflector)
        return {None: reflector}

    @property
    def follows_all(self) -> bool:
        """Whether each namespace of a set has a reflector; True without a set."""
        reflectors = self.controller.reflector
        return not isinstance(reflectors, NamespaceReflectors) or reflectors.follows_all

    def version_in(self, namespace: str | None) -> str | None:
        """The version up to which the cache has all changes in a namespace. From any thread.

        None if a set of namespaces is followed that does not have it, or before its first list.
        """
        if isinstance(self._applier, NamespacedApplier):
            return None if namespace is None else self._applier.version_of(namespace)
        return self.indexer.last_store_sync_resource_version

    @property
    def fault(self) -> Exception | None:
        """The present fault of LIST and WATCH, such as Forbidden; None while requests succeed."""
        return self.controller.reflector.fault

    def why_not_synced(self) -> str:
        """Why the first list is not in the cache; empty if it is. From any thread."""
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
        """Call a handler for each cached object, then for each change (client-go's AddEventHandler).

        - `handler`: called at its own pace; see ResourceEventHandler. It may be added several times.
        - `resync_period`: seconds, at least 1; 0 for no resyncs; None, the default, for that of the informer.
        - `name`: for logs and statistics; by default `name_for_handler`.

        Returns the registration. Raises CacheError when the informer has stopped. From any thread.
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
        # The listener has synced when the handler was called for its whole first sync, not when it is queued.
        registration.received_initial.on_open(listener.initial_complete)
        self._slices.start(self._introduction(registration))
        return registration

    def add_listener(
        self,
        listener: Listener,
        *,
        resync_period: float | None = None,
        initial: bool = True,
        deferred: bool = False,
        knows: Callable[[], Mapping[str, Record]] | None = None,
    ) -> Registration:
        """Notify a listener of each cached object, then of each change. On the loop.

        - `resync_period`: as in `add_event_handler`.
        - `initial`: False for changes only.
        - `deferred`: the first notification comes in a later turn of the loop, so that this call takes the
          same time for a large cache as for a small one.
        - `knows`: returns objects of an earlier process that the listener knows, by key. When the cache has
          synced, it is notified of the differences in the place of each object, unless the cache has none of
          them: then they are of another cluster.

        Returns the registration. Raises CacheError when the informer has stopped.
        """
        self._refuse_stopped()
        registration = self._register(listener, resync_period, synced=None, initial=initial)
        if not initial:
            self._give_with_sync(registration)
        elif knows is not None:
            self.processor.postpone(registration)
            known = knows
            begin = lambda: self._slices.start_later(self._introduction(registration, known))  # noqa: E731
            self.synced.on_open(begin)
            registration.ended.on_open(lambda: self.synced.forget(begin))
        elif deferred:
            # The initial notifications have the cache of their turn: changes until then are part of it.
            self.processor.postpone(registration)
            self._slices.start_later(self._introduction(registration))
        else:
            self._slices.start(self._introduction(registration))
        return registration

    def request_relist(self) -> None:
        """Request a LIST of the most recent state; the watch continues from there. On the loop.

        Further requests until that list is complete have no effect. Listeners are notified of differences.
        """
        self.controller.reflector.request_relist()

    @contextmanager
    def paused(self) -> Generator[None]:
        """A block in which no change is applied to the cache; changes wait in the queue. On the loop."""
        self.controller.pause()
        try:
            yield
        finally:
            self.controller.resume()

    def remove_event_handler(self, registration: Registration) -> None:
        """Stop notifying a handler or listener, and drop its pending notifications (RemoveEventHandler).

        A call of the handler that is under way goes on. No effect for a registration of another informer, and
        for one that was removed (client-go 184, 186). From any thread.
        """
        call_on(self.processor.loop, lambda: self.processor.remove_listener(registration))

    async def shutdown_event_handler(self, registration: Registration) -> None:
        """Remove a handler, and return when it is not being called any longer (ShutDownEventHandler).

        Raises CacheError if the handler itself waits for this, which would never end; the handler is removed.
        No effect for a registration of another informer. On the loop.
        """
        if registration.processor is self.processor:
            await registration.shutdown()

    def add_indexers(self, indexers: Mapping[str, AnyIndexFunc]) -> None:
        """Add indexes, complete with all cached objects (client-go's AddIndexers). From any thread.

        Raises CacheError for a name that exists already, and TypeError for a value that is no plain function;
        then nothing is changed.
        """
        wanted = index_functions(indexers)
        call_on(self.processor.loop, lambda: self.indexer.add_indexers(wanted))

    def share_indexers(self, indexers: Mapping[str, AnyIndexFunc]) -> None:
        """Add the indexes that do not exist yet. Raises CacheError if one exists with another function."""
        # Two users of a shared informer may ask for the same index.
        there = self.indexer.get_indexers()
        wanted = index_functions(indexers)
        self.indexer.add_indexers({n: f for n, f in wanted.items() if there.get(n) != f})

    def remove_indexers(self, names: Iterable[str]) -> None:
        """Remove indexes; unknown names are ignored. From any thread."""
        gone = tuple(names)
        call_on(self.processor.loop, lambda: self.indexer.remove_indexers(gone))

    def build_index(self, name: str, function: AnyIndexFunc) -> IndexBuild:
        """Begin an index that is filled in slices; raises CacheError and TypeError as `add_indexers`."""
        return self.indexer.build_index(name, index_functions({name: function})[name])

    def resync_now(self, listener: Listener) -> None:
        """Replay the cache to one listener, as resyncs. On the loop."""
        for registration in self.processor.registrations(listener):
            self._replay(registration)

    @property
    def unfinished_work(self) -> int:
        """How many initial notifications, replays and reprojections are under way."""
        return len(self._slices)

    def statistics(self) -> InformerStatistics:
        """The figures of this moment. From any thread."""
        reflectors = self.controller.reflector
        reflector = reflectors.statistics()
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
            namespaces=reflectors.namespaces() if isinstance(reflectors, NamespaceReflectors) else None,
        )

    def _register(
        self, listener: Listener, period: float | None, *, synced: Latch | None, initial: bool = True
    ) -> Registration:
        return self.processor.add_listener(
            listener,
            resync_period=self.resync_period if period is None else period,
            initial=initial,
            synced=synced,
        )

    def _introduction(
        self, registration: Registration, knows: Callable[[], Mapping[str, Record]] | None = None
    ) -> Iterator[None]:
        cache = self.indexer.known()
        known = {} if knows is None else {**self._passed(), **knows()}
        found = ((each, cache.get(key)) for key, each in known.items())
        # A watch that went on from the kept objects is of their server. After a list, objects of which none
        # is there may be those of another cluster: nobody has deleted them.
        resumed = self.controller.reflector.statistics().resumes > 0
        is_here = self._same_cluster or resumed
        is_here = is_here or any(here is not None and here.uid == each.uid for each, here in found)
        if knows is not None and (is_here or not known):
            # A server that was put back to a backup may not be further than the earlier process was.
            now, then = (
                version_order(each)
                for each in (self.indexer.last_store_sync_resource_version, self._kept_version)
            )
            exactly = now <= then and not resumed
            self.processor.introduce_differences(registration, known, cache, exactly=exactly)
        else:
            yield from self.processor.introduce(registration, cache)
        self._give_with_sync(registration)

    def _passed(self) -> Mapping[str, Record]:
        """Objects that the earlier process may have told of, and that are gone, by key."""
        reflector = self.controller.reflector
        if self._kept_whole or not isinstance(reflector, Reflector):
            return {}
        return {each.key: each for each in reflector.passed}

    def _give_with_sync(self, registration: Registration) -> None:
        """Open `received_initial` when the cache has synced; the registration has all cached objects."""
        if registration.removed:
            return
        given = registration.received_initial.open
        self.synced.on_open(given)
        registration.ended.on_open(lambda: self.synced.forget(given))

    def _replay(self, registration: Registration) -> None:
        self._slices.start(self.processor.resync(registration, self.indexer.known()))

    def _decode_by(self, projection: Projection, reprojection: Reprojection | None) -> None:
        if self._reprojection is not None:
            self._reprojection.supersede()
        self._reprojection = reprojection
        if self.scope is not None:
            projection.restrict(self.scope.holds)
        self._decoding.exchange(projection)

    def _refuse_started(self, what: str) -> None:
        if self._started:
            raise CacheError(f"the informer of {self.name} was started already: {what} comes too late")

    def _refuse_stopped(self) -> None:
        if self.is_stopped:
            raise CacheError(f"the informer of {self.name} has stopped: no handler can be added")

    async def _resync_all(self) -> None:
        processor = self.processor
        while True:
            # Until the next resync is due, or a listener with another period was added.
            if (seconds := processor.next_due()) is None:
                await processor.retimed.wait()
            else:
                await set_within(processor.retimed, seconds, clock=self._clock)
            processor.retimed.clear()
            if processor.due():
                self.controller.queue.resync()


class Slices:
    """Runs iterators to their end, one step for each turn of the loop. Used on one loop.

    Work of only one step needs no task, and can be started before the loop runs.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()  # one for each iterator that has not ended

    def start(self, work: Iterator[None]) -> None:
        """Run the first step now and the others later."""
        for _ in work:
            self.start_later(work)
            return

    def start_later(self, work: Iterator[None]) -> None:
        """Run all steps later, the first one in the next turn of the loop."""
        task = asyncio.get_running_loop().create_task(_finish(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """End all iterators after their present step."""
        for task in self._tasks:
            task.cancel()

    def __len__(self) -> int:
        return len(self._tasks)


async def _finish(work: Iterator[None]) -> None:
    await asyncio.sleep(0)
    for _ in work:
        await asyncio.sleep(0)
