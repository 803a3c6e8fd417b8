"""An informer that is read as a watch (client-go's NewIndexerInformerWatcher)."""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from declctl.informer.informer import AnyIndexFunc, SharedIndexInformer
from declctl.informer.processor import Registration
from declctl.informer.source import Source
from declctl.informer.stores import Lister
from declctl.informer.watches.retry_watcher import ObjectEvent
from declctl.kit import Clock, KeyedQueue, SystemClock
from declctl.objects import ChangeType, EventType, Notification, ObjectView, merge

_LIMIT = 64 * 1024 * 1024  # bytes of frames that wait for the reader
_TYPES = {
    ChangeType.ADDED: EventType.ADDED,
    ChangeType.MODIFIED: EventType.MODIFIED,
    ChangeType.RESYNC: EventType.MODIFIED,
    ChangeType.DELETED: EventType.DELETED,
}


class InformerWatcher:
    """What an informer tells, as events: what is there as ADDED, then what happens.

    A delete that the watch missed is DELETED with the last state that is known. Unlike a watch it
    needs no version, and survives an expired one: the informer lists again, and the difference is
    told. An async context manager, and in it an async iterator for one reader, which ends when the
    informer does, and raises what ended it. Beyond 64 MiB of events that wait for the reader,
    those of one object are merged. Used on one loop.

    `informer` may be a shared one that somebody else runs; with `runs` it is this watcher's own,
    which runs from the beginning of the block to its end.
    """

    def __init__(
        self, informer: SharedIndexInformer, *, runs: bool = False, clock: Clock | None = None
    ) -> None:
        self.informer = informer
        self._runs = runs
        self._queue: KeyedQueue[Notification] = KeyedQueue(
            clock=clock or SystemClock(), weigh=Notification.weight, merge=merge, limit=_LIMIT
        )
        self._changed = asyncio.Event()
        self._registration: Registration | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    async def __aenter__(self) -> Self:
        self._registration = self.informer.add_listener(self, resync_period=0.0)
        self.informer.ended.on_open(self._changed.set)
        if self._runs:
            self._task = asyncio.create_task(self.informer.run(), name=f"watch {self.informer.name}")
            self._task.add_done_callback(lambda _: self._changed.set())  # it may fail before it runs
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ObjectEvent:
        while not self._stopped:
            item = self._queue.take()
            if item is not None:
                self._queue.done(item)
                return ObjectEvent(_TYPES[item.value.type], ObjectView(item.value.record))
            if self._task is not None and self._task.done():
                self._task.result()
            if self.informer.is_stopped:
                break
            self._changed.clear()
            await self._changed.wait()
        raise StopAsyncIteration

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Take what the informer tells."""
        self._queue.add_all([(each.key, each) for each in notifications])
        self._changed.set()

    @property
    def lister(self) -> Lister:
        """The cache; it is ahead of what was read here."""
        return self.informer.lister

    async def stop(self) -> None:
        """Tell no more, drop what waits, and end the informer if it is one's own. Twice is harmless."""
        self._stopped = True
        self._queue.clear()
        self._changed.set()
        if self._registration is not None:
            self._registration.remove()
            self.informer.ended.forget(self._changed.set)
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])


def informer_watcher(
    source: Source, *, indexers: Mapping[str, AnyIndexFunc] | None = None, clock: Clock | None = None
) -> InformerWatcher:
    """A watch with an informer of its own, which its block runs; `indexers` are those of its cache."""
    informer = SharedIndexInformer(source, name=source.description, clock=clock, indexers=indexers)
    return InformerWatcher(informer, runs=True, clock=clock)
