"""The shared informer: reflector → queue → store → listeners, joined (client-go's sharedIndexInformer).

What it promises: the cache converges to the server's state; store and indexes are updated before a
listener is told; each listener hears, for each object, a subsequence of its states in order; a
listener that joins late hears the cache first, each object exactly once, then what comes. Between
objects no order is promised beyond that in which the server told.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from declctl.errors import CacheError
from declctl.informer.applying import Applier
from declctl.informer.controller import Controller
from declctl.informer.event_handlers import ResourceEventHandler
from declctl.informer.listener import Listener, ProcessorListener
from declctl.informer.processor import Registration, SharedProcessor
from declctl.informer.queues import Bookmark, DeltaFIFO, Entry, Queue, RealFIFO, Replacement, SyncAll
from declctl.informer.reflector import Reflector
from declctl.informer.reflector_options import DEFAULT_OPTIONS, ReflectorOptions
from declctl.informer.slices import Slices
from declctl.informer.source import Source
from declctl.informer.stores import (
    FieldIndex,
    FunctionIndex,
    IndexBuild,
    Indexer,
    IndexFunc,
    Lister,
    function_index,
)
from declctl.kit import Clock, Latch, SystemClock
from declctl.objects import Delta, ObjectView

_RESYNC_CHECK_SECONDS = 1.0
AnyIndexFunc = IndexFunc | Callable[[ObjectView], Iterable[str]]


@dataclass(frozen=True, slots=True)
class InformerStatistics:
    """One informer in `status`. `last_event_age` is in seconds, `bytes` counts frames.

    `index_faults` has, for each index whose function failed, how often and the last fault. `missing`
    says that the server does not have the kind, `forbidden` that it does not let us see it.
    """

    synced: bool
    state: str
    objects: int
    bytes: int
    lists: int
    watches: int
    relists: int
    resource_version: str
    last_event_age: float | None
    events: Mapping[str, int]
    items_listed: int
    failures: int
    idle_closes: int
    error: str | None
    missing: bool
    forbidden: bool
    index_faults: Mapping[str, tuple[int, str | None]]


class SharedIndexInformer:
    """One resource, cached, indexed, and told to any number of listeners.

    Used on one loop; listers are for any thread. `indexers` are functions of an object, or field
    indexes, which cost no decoding where the source projects their path.
    """

    def __init__(  # noqa: PLR0913 - a contract of its own, keyword by keyword
        self,
        source: Source,
        *,
        name: str,
        clock: Clock | None = None,
        resync_period: float = 0.0,
        indexers: Mapping[str, AnyIndexFunc] | None = None,
        queue: Literal["RealFIFO", "DeltaFIFO"] = "RealFIFO",
        options: ReflectorOptions = DEFAULT_OPTIONS,
        on_fault: Callable[[Exception], None] | None = None,
    ) -> None:
        self.name = name
        self.source = source
        self.resync_period = resync_period
        self.synced = Latch(name)
        self.indexer = Indexer(_index_functions(indexers or {}))
        self._clock: Clock = clock or SystemClock()
        self.processor = SharedProcessor(self._clock)
        self._applier = Applier(self.indexer)
        self._slices = Slices()
        self._queue: Queue = RealFIFO() if queue == "RealFIFO" else DeltaFIFO(self.indexer.known)
        self._reflector = Reflector(
            source,
            self._queue,
            clock=self._clock,
            known=self.indexer.get_by_key,
            options=options,
            on_fault=on_fault,
        )
        self._controller = Controller(self._queue, self._reflector, self.process, synced=self.synced)
        self._started = self._stopped = False

    async def run(self) -> None:
        """List, watch and tell until cancelled; runs once."""
        if self._started:
            raise CacheError(f"the informer of {self.name} was started already")
        self._started = True
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._controller.run(), name=f"informer {self.name}")
                tasks.create_task(self._resync_all(), name=f"resync {self.name}")
        finally:
            self._stop()

    def process(self, batch: Sequence[Entry]) -> Iterator[None]:
        """Apply what was queued to the store, and tell the listeners after each step of it."""
        now = self._clock.now().timestamp()
        match batch:
            case [Replacement() as replacement]:
                for told in self._applier.replace(replacement, now):
                    self.processor.distribute(told)
                    yield
            case [Bookmark() as bookmark]:
                self.indexer.bookmark(bookmark.resource_version)
            case [SyncAll()]:
                for registration in self.processor.syncing:
                    self._replay(registration)
            case _:
                self.processor.distribute(self._applier.apply(cast("Sequence[Delta]", batch), now))

    @property
    def lister(self) -> Lister:
        """A read-only view of the cache."""
        return Lister([self.indexer])

    @property
    def has_synced(self) -> bool:
        """Whether the first list is in the cache."""
        return self.synced.is_open

    @property
    def is_stopped(self) -> bool:
        """Whether it ran and ended."""
        return self._stopped

    @property
    def last_sync_resource_version(self) -> str:
        """The newest version that the reflector has seen."""
        return self._reflector.last_sync_resource_version

    def add_event_handler(
        self, handler: ResourceEventHandler, *, resync_period: float | None = None
    ) -> Registration:
        """Tell a library user's handler at its own pace, with the cache first. Any number of times."""
        self._refuse_stopped()
        listener = ProcessorListener(handler, clock=self._clock)
        registration = self._register(listener, resync_period, synced=listener.synced)
        registration.given.on_open(listener.initial_complete)
        self._introduce(registration)
        return registration

    def add_listener(
        self, listener: Listener, *, resync_period: float | None = None, initial: bool = True
    ) -> Registration:
        """Tell a listener: the cache as initial Added, if `initial`, then everything that comes."""
        self._refuse_stopped()
        registration = self._register(listener, resync_period, synced=None)
        if initial:
            self._introduce(registration)
        else:
            self.synced.on_open(registration.given.open)
        return registration

    def remove_event_handler(self, registration: Registration) -> None:
        """Tell a listener no more; what a library handler has pending is dropped (client-go 184, 186)."""
        if registration in self.processor.registrations():
            self.processor.remove_listener(registration)
            if isinstance(registration.listener, ProcessorListener):
                registration.listener.close()

    def add_indexers(self, indexers: Mapping[str, AnyIndexFunc]) -> None:
        """Add indexes at any time.

        Complete at once. A name that is taken raises CacheError and changes nothing.
        """
        self.indexer.add_indexers(_index_functions(indexers))

    def share_indexers(self, indexers: Mapping[str, AnyIndexFunc]) -> None:
        """Add those indexes that are not there; one that is there by another function raises CacheError."""
        there = self.indexer.get_indexers()
        wanted = _index_functions(indexers)
        self.indexer.add_indexers({n: f for n, f in wanted.items() if there.get(n) != f})

    def remove_indexers(self, names: Iterable[str]) -> None:
        """Forget indexes."""
        self.indexer.remove_indexers(names)

    def build_index(self, name: str, function: AnyIndexFunc) -> IndexBuild:
        """Begin an index that is filled in slices."""
        return self.indexer.build_index(name, _index_functions({name: function})[name])

    def resync_now(self, listener: Listener) -> None:
        """Replay the cache to one listener."""
        for registration in self.processor.registrations(listener):
            self._replay(registration)

    def statistics(self) -> InformerStatistics:
        """The figures of this moment."""
        reflector = self._reflector.statistics()
        last = reflector.last_event_at
        return InformerStatistics(
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
        )

    def _register(self, listener: Listener, period: float | None, *, synced: Latch | None) -> Registration:
        return self.processor.add_listener(
            listener,
            resync_period=self.resync_period if period is None else period,
            synced=synced,
            remove=self.remove_event_handler,
        )

    def _introduce(self, registration: Registration) -> None:
        def work() -> Iterator[None]:
            yield from self.processor.introduce(registration, self.indexer.known())
            self.synced.on_open(registration.given.open)

        self._slices.start(work())

    def _replay(self, registration: Registration) -> None:
        self._slices.start(self.processor.replay(registration, self.indexer.known()))

    def _refuse_stopped(self) -> None:
        if self._stopped:
            raise CacheError(f"the informer of {self.name} has stopped: nobody can join it")

    def _stop(self) -> None:
        self._stopped = True
        self._slices.cancel()
        for registration in self.processor.registrations():
            self.remove_event_handler(registration)

    async def _resync_all(self) -> None:
        while True:
            await self._clock.sleep(_RESYNC_CHECK_SECONDS)
            if self.processor.due():
                self._queue.resync()


def _index_functions(indexers: Mapping[str, AnyIndexFunc]) -> dict[str, IndexFunc]:
    """Plain functions take an object; field and function indexes take a record already."""
    return {
        name: function
        if isinstance(function, FieldIndex | FunctionIndex)
        else function_index(cast("Callable[[ObjectView], Iterable[str]]", function))
        for name, function in indexers.items()
    }
