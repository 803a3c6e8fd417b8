"""The shared informer: reflector → queue → store → listeners, joined (client-go's sharedIndexInformer).

What it promises: the cache converges to the server's state; store and indexes are updated before a
listener is told; each listener hears, for each object, a subsequence of its states in order; a
listener that joins late hears the cache first, each object exactly once, then what comes. Between
objects no order is promised beyond that in which the server told.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from declctl.errors import CacheError
from declctl.informer.listener import Listener, ProcessorListener, ResourceEventHandler
from declctl.informer.processor import SharedProcessor
from declctl.informer.queues import DeltaFIFO, Entry, RealFIFO, Replacement, SyncAll
from declctl.informer.reflector import Reflector
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
from declctl.objects import (
    ChangeReason,
    ChangeType,
    Delta,
    DeltaType,
    Notification,
    ObjectView,
    Record,
)

_BATCH = 1000
_RESYNC_CHECK_SECONDS = 1.0
AnyIndexFunc = IndexFunc | Callable[[ObjectView], Iterable[str]]


@dataclass(frozen=True, slots=True)
class InformerStatistics:
    """One informer in `status`. `last_event_age` is in seconds, `bytes` counts frames."""

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


class Registration:
    """A listener's place at an informer."""

    def __init__(self, informer: "SharedIndexInformer", listener: Listener) -> None:
        self._informer = informer
        self._listener = listener

    @property
    def has_synced(self) -> bool:
        """Whether the first list is in the cache and, for a library handler, has been dealt with by it."""
        if isinstance(self._listener, ProcessorListener):
            return self._listener.synced.is_open
        return self._informer.has_synced

    @property
    def synced(self) -> Latch:
        """Opens when it has synced."""
        if isinstance(self._listener, ProcessorListener):
            return self._listener.synced
        return self._informer.synced

    def remove(self) -> None:
        """Be told no more; removing twice is harmless."""
        self._informer.remove_event_handler(self)

    def retime(self, resync_period: float) -> None:
        """Another resync period (seconds, 0 for none); its phase is kept."""
        self._informer.processor.retime(self._listener, resync_period)

    @property
    def listener(self) -> Listener:
        """Who is told."""
        return self._listener


class SharedIndexInformer:
    """One resource, cached, indexed, and told to any number of listeners.

    Used on one loop; listers are for any thread.
    """

    def __init__(
        self,
        source: Source,
        *,
        name: str,
        clock: Clock | None = None,
        resync_period: float = 0.0,
        idle_timeout: float = 90.0,
        indexers: Mapping[str, AnyIndexFunc] | None = None,
        queue: Literal["RealFIFO", "DeltaFIFO"] = "RealFIFO",
        page_size: int = 500,
    ) -> None:
        self.name = name
        self.source = source
        self.resync_period = resync_period
        self.synced = Latch(name)
        self.indexer = Indexer(_index_functions(indexers or {}))
        self._clock: Clock = clock or SystemClock()
        self.processor = SharedProcessor(self._clock)
        self._queue = RealFIFO() if queue == "RealFIFO" else DeltaFIFO(self.indexer.known)
        self._reflector = Reflector(
            source,
            self._queue,
            clock=self._clock,
            known=self.indexer.known,
            idle_timeout=idle_timeout,
            page_size=page_size,
        )
        self._started = self._stopped = False

    async def run(self) -> None:
        """List, watch and tell until cancelled; runs once."""
        if self._started:
            raise CacheError(f"the informer of {self.name} was started already")
        self._started = True
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._reflector.run(), name=f"reflector {self.name}")
                tasks.create_task(self._process_all(), name=f"processor {self.name}")
                tasks.create_task(self._resync_all(), name=f"resync {self.name}")
        finally:
            self._stopped = True

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
        """Tell a library user's handler, in a thread of its own, with the cache first.

        Any number of times.
        """
        return self.add_listener(ProcessorListener(handler, clock=self._clock), resync_period=resync_period)

    def add_listener(
        self, listener: Listener, *, resync_period: float | None = None, initial: bool = True
    ) -> Registration:
        """Tell a listener.

        The cache as initial Added, if `initial`, then everything that comes, with no gap between.
        """
        if self._stopped:
            raise CacheError(f"the informer of {self.name} has stopped")
        period = self.resync_period if resync_period is None else resync_period
        self.processor.add_listener(listener, resync_period=period)
        # No await between the snapshot and the attachment: nothing can be told twice or not at all.
        if initial:
            now = self._clock.now().timestamp()
            present = [
                Notification(
                    ChangeType.ADDED, record, initial=True, reason=ChangeReason.INITIAL, received_at=now
                )
                for record in self.indexer.list()
            ]
            listener.add_all(present)
        if self.has_synced and isinstance(listener, ProcessorListener):
            listener.initial_complete()
        elif isinstance(listener, ProcessorListener):
            self.synced.on_open(listener.initial_complete)
        return Registration(self, listener)

    def remove_event_handler(self, registration: Registration) -> None:
        """Tell a listener no more; what a library handler has pending is dropped."""
        self.processor.remove_listener(registration.listener)
        if isinstance(registration.listener, ProcessorListener):
            registration.listener.stop()

    def add_indexers(self, indexers: Mapping[str, AnyIndexFunc]) -> None:
        """Add indexes at any time.

        Complete at once. A name that is taken raises CacheError and changes nothing.
        """
        self.indexer.add_indexers(_index_functions(indexers))

    def remove_indexers(self, names: Iterable[str]) -> None:
        """Forget indexes."""
        self.indexer.remove_indexers(names)

    def build_index(self, name: str, function: AnyIndexFunc) -> IndexBuild:
        """Begin an index that is filled in slices."""
        return self.indexer.build_index(name, _index_functions({name: function})[name])

    def resync_now(self, listener: Listener) -> None:
        """Replay the cache to one listener, after what is queued."""
        self._queue.resync([listener])

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

    async def _process_all(self) -> None:
        while True:
            await self._queue.wait()
            while batch := self._queue.pop_batch_nowait(_BATCH):
                self.process(batch)
                await asyncio.sleep(0)

    def process(self, batch: Sequence[Entry]) -> None:
        """Apply queued entries to the store, then tell the listeners."""
        now = self._clock.now().timestamp()
        told: list[Notification] = []
        for entry in batch:
            match entry:
                case Delta():
                    self._apply(entry, told, now)
                case Replacement():
                    self._replace(entry, told, now)
                case SyncAll():
                    self._flush(told)
                    self._replay(entry, now)
        self._flush(told)
        self._queue.processed(batch)
        if not self.synced.is_open and self._queue.has_synced:
            self.synced.open()

    def _flush(self, told: list[Notification]) -> None:
        if told:
            self.processor.distribute(tuple(told))
            told.clear()

    def _apply(self, delta: Delta, told: list[Notification], now: float) -> None:
        if delta.type is DeltaType.DELETED:
            self._remove(delta, told, now)
        elif delta.record is not None:
            relisted = delta.type is DeltaType.REPLACED
            reason = ChangeReason.WATCH
            if relisted:
                reason = ChangeReason.INITIAL if delta.initial else ChangeReason.RELIST
            self._upsert(delta.record, told, now=now, reason=reason)

    def _upsert(self, record: Record, told: list[Notification], *, now: float, reason: ChangeReason) -> None:
        indexer = self.indexer
        old = indexer.get_by_key(record.key)
        if old is None:
            indexer.add(record)
            initial = reason is ChangeReason.INITIAL
            told.append(
                Notification(ChangeType.ADDED, record, initial=initial, reason=reason, received_at=now)
            )
            return
        if old is record or (old.resource_version == record.resource_version and old.uid == record.uid):
            if old is not record and old.layout is not record.layout:
                indexer.add(record)  # the same object in a newer layout: nobody is told
            return
        indexer.add(record)
        if old.uid != record.uid:
            # Deleted and made again while nobody looked: two changes, not one (client-go tells an
            # update).
            told.append(_gone(old, reason, now))
            told.append(Notification(ChangeType.ADDED, record, reason=reason, received_at=now))
        else:
            told.append(Notification(ChangeType.MODIFIED, record, old, reason=reason, received_at=now))

    def _remove(self, delta: Delta, told: list[Notification], now: float) -> None:
        old = self.indexer.delete(delta.key)
        if old is None:
            return
        if delta.final_state_unknown:
            told.append(_gone(old, ChangeReason.RELIST, now))
        elif delta.out_of_scope or delta.record is None:
            told.append(
                Notification(ChangeType.DELETED, old, reason=ChangeReason.OUT_OF_SCOPE, received_at=now)
            )
        else:
            told.append(Notification(ChangeType.DELETED, delta.record, received_at=now))

    def _replace(self, entry: Replacement, told: list[Notification], now: float) -> None:
        reason = ChangeReason.INITIAL if entry.initial else ChangeReason.RELIST
        listed = {record.key for record in entry.records}
        for key in [key for key in self.indexer.known() if key not in listed]:
            old = self.indexer.delete(key)
            if old is not None:
                told.append(_gone(old, ChangeReason.RELIST, now))
        for record in entry.records:
            self._upsert(record, told, now=now, reason=reason)
        self.indexer.last_store_sync_resource_version = entry.resource_version

    def _replay(self, entry: SyncAll, now: float) -> None:
        notifications = tuple(
            Notification(ChangeType.RESYNC, record, record, reason=ChangeReason.RESYNC, received_at=now)
            for record in self.indexer.list()
        )
        for listener in entry.listeners:
            if self.processor.has(listener):
                cast("Listener", listener).add_all(notifications)

    async def _resync_all(self) -> None:
        await self.synced.wait()
        while True:
            await self._clock.sleep(_RESYNC_CHECK_SECONDS)
            due = self.processor.due()
            if due:
                self._queue.resync(due)


def _gone(old: Record, reason: ChangeReason, now: float) -> Notification:
    return Notification(ChangeType.DELETED, old, final_state_unknown=True, reason=reason, received_at=now)


def _index_functions(indexers: Mapping[str, AnyIndexFunc]) -> dict[str, IndexFunc]:
    """Plain functions take an object; field and function indexes take a record already."""
    return {
        name: function
        if isinstance(function, FieldIndex | FunctionIndex)
        else function_index(cast("Callable[[ObjectView], Iterable[str]]", function))
        for name, function in indexers.items()
    }
