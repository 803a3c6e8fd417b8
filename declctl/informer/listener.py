"""Listeners: each has its own bounded buffer, pace and worker, and nothing upstream waits for it.

The worker of a library handler is a thread or a task that calls it with one notification at a time.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from declctl.errors import CacheError
from declctl.informer.event_handlers import (
    DeletedFinalStateUnknown,
    FilteringResourceEventHandler,
    ResourceEventHandler,
    is_async,
    name_for_handler,
)
from declctl.kit import Clock, KeyedQueue, Latch, running_loop
from declctl.kit.callbacks import must_propagate
from declctl.kit.keyed_queue import QueueItem
from declctl.kit.worker_pool import AsyncWorkerPool, ThreadWorkerPool, WorkerPool
from declctl.objects import ChangeType, Notification, ObjectView, merge

_LIMIT = 64 * 1024 * 1024  # bytes of pending frames
_STOP_SECONDS = 10.0  # how long a stop waits for handlers that are being called
_log = logging.getLogger("declctl.informer")

current_call: ContextVar[object | None] = ContextVar("current_call", default=None)
"""The queue item of the call in which the running code was started, also across loops and threads."""


class Listener(Protocol):
    """Takes notifications.

    Called on the loop, between two deltas: it must neither wait nor raise.
    """

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """These happened, in this order."""
        ...


@dataclass(frozen=True, slots=True)
class ListenerStatistics:
    """What became of what a listener received: delivered + waiting + merged + dropped.

    `failed` of those that were delivered raised.
    """

    synced: bool
    delivered: int
    failed: int
    merged: int
    dropped: int
    waiting: int


class ProcessorListener:
    """A library user's handler with its own buffer and its own worker (client-go's processorListener).

    One notification at a time, in order. A raise is logged and counted, and changes nothing else.
    Beyond `limit` bytes of pending frames, pending notifications of one key are merged and counted.
    A handler with an async method is called on `loop` (by default the one that runs), any other in
    a thread of its own; what such a one returns to be awaited is awaited on `loop`. `synced` opens
    when the first sync is dealt with, raised or not, and never if it is closed before; `ended` when it
    was closed and calls its handler no more. Everything but `statistics` belongs to the loop on which it was
    made; one that was made where no loop runs is given one by `bind`, before the first notification.
    """

    def __init__(
        self,
        handler: ResourceEventHandler,
        *,
        clock: Clock,
        limit: int = _LIMIT,
        loop: asyncio.AbstractEventLoop | None = None,
        name: str | None = None,
    ) -> None:
        self.handler = handler
        self.name = name or name_for_handler(handler)
        self.synced = Latch(f"listener {self.name}")
        self.ended = Latch(f"worker of {self.name}")
        self.closed = False
        self.queue: KeyedQueue[Notification] = KeyedQueue(
            clock=clock, weigh=Notification.weight, merge=merge, limit=limit
        )
        self._home = running_loop()  # the loop on which the latches open; None until `bind`
        self._loop = loop  # the loop of async methods; None for the home loop
        self._is_async = is_async(handler)
        self._pool: WorkerPool[Notification] | None = None  # one worker, made for the first notification
        self._calling: QueueItem[Notification] | None = None  # the item that the handler is called with
        self._failed = 0  # calls that raised
        self._initial: int | None = None  # the epoch that ends with the first sync, until it is dealt with

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Belong to this loop from now on; nothing happens if it does already."""
        self._home = loop

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Take what happened; the worker starts with the first. Raises RuntimeError where it can't start."""
        if not self.closed and notifications:
            self.queue.add_all([(n.record.key, n) for n in notifications])
            # Not before: a listener that never receives anything takes no thread.
            if self._pool is None:
                self._pool = self._started_pool()
            self._pool.wake()

    def initial_complete(self) -> None:
        """All of the first sync was added; when that is dealt with, the listener has synced."""
        # The cut tells what belongs to the first sync from all that comes later.
        self._initial = self.queue.cut()
        self._look_synced()

    def close(self) -> int:
        """Call no more; returns how many pending notifications were dropped.

        A call that runs ends by itself (client-go 201). Closing twice is harmless.
        """
        if self.closed:
            return 0
        self.closed = True  # before what is pending goes, which would look like the end of the first sync
        dropped = self.queue.clear()
        if self._pool is None:
            self._open(self.ended)
        else:
            self._pool.dismiss()
        return dropped

    async def gone(self) -> None:
        """Return when it was closed, its handler is called no more, and its worker is gone.

        Raises CacheError where a call of the handler itself waits for this, or something that it
        has started: client-go waits for ever there.
        """
        # The context variable follows the call into tasks and threads that it starts.
        call = current_call.get()
        if call is not None and call is self._calling:
            raise CacheError(f"{self.name} can't wait for its own end: remove it, which waits for nothing")
        await self.ended.wait()
        if self._pool is not None:
            self._pool.join()

    def abandon(self) -> None:
        """Wait no longer for a call that runs: an async one is cancelled, a thread left to itself."""
        if self._pool is not None:
            self._pool.cancel()

    def statistics(self) -> ListenerStatistics:
        """The figures of this moment."""
        queue = self.queue.statistics()
        return ListenerStatistics(
            synced=self.synced.is_open,
            delivered=queue.taken,
            failed=self._failed,
            merged=queue.merged,
            dropped=queue.dropped,
            waiting=queue.waiting,
        )

    def unfinished(self) -> int:
        """How many notifications of the first sync are not dealt with."""
        return 0 if self._initial is None else self.queue.outstanding(self._initial)

    def _started_pool(self) -> WorkerPool[Notification]:
        name, loop = f"listener {self.name}", self._loop or self._home
        if self._is_async:
            assert loop is not None  # a listener that was made where no loop runs is bound by now
            return AsyncWorkerPool(
                self.queue, self._work_async, name=name, loop=loop, on_left=self._worker_left
            )
        pool = ThreadWorkerPool(self.queue, self._work, name=name, on_left=self._worker_left)
        pool.start()
        return pool

    def _work(self, item: QueueItem[Notification]) -> bool:
        """Call the handler in this thread."""
        self._calling = item
        current_call.set(item)
        try:
            result = call_handler(self.handler, item.value)
            # A plain method may return something to be awaited: it belongs to the loop, not to this thread.
            if result is not None and inspect.isawaitable(result):
                loop = self._loop or self._home
                assert loop is not None
                fault = asyncio.run_coroutine_threadsafe(_awaited(result), loop).result()
                if fault is not None:
                    raise fault
        except BaseException:  # noqa: BLE001 - a handler may raise what it likes, SystemExit too
            self._log_failure(item.value)
        finally:
            self._calling = None
            self.queue.done(item)
        if self._initial is not None:
            self._look_synced()
        return True

    async def _work_async(self, item: QueueItem[Notification]) -> bool:
        """Call the handler on this loop."""
        self._calling = item
        current_call.set(item)
        try:
            result = call_handler(self.handler, item.value)
            if result is not None and inspect.isawaitable(result):
                await result
        except BaseException as fault:
            if must_propagate(fault):
                raise  # the loop ends; otherwise the handler awaited something that was cancelled
            self._log_failure(item.value)
        finally:
            self._calling = None
            self.queue.done(item)
        if self._initial is not None:
            self._look_synced()
        return True

    def _log_failure(self, notification: Notification) -> None:
        """Count and log what the handler has just raised."""
        self._failed += 1
        what = f"{self.name} failed on {notification.type} {notification.record.key}"
        try:
            # The logging library reads causes and texts of the exception, which are foreign code.
            _log.exception(what)
        except BaseException:  # noqa: BLE001 - foreign code: an exception may raise where it is read
            _log.error("%s, with an exception that can't be shown", what)

    def _look_synced(self) -> None:
        """Say that the listener has synced, if all of the first sync is dealt with. From any thread."""
        epoch = self._initial
        # Closed is looked at last: `close` drops what is pending, which is not dealt with then.
        if epoch is not None and not self.queue.outstanding(epoch) and not self.closed:
            self._initial = None
            self._open(self.synced)

    def _worker_left(self) -> None:
        self._open(self.ended)

    def _open(self, latch: Latch) -> None:
        if self._home is None:
            latch.open()  # the listener was never bound to a loop, so that only one thread knows it
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its waiters are gone
            self._home.call_soon_threadsafe(latch.open)


def call_handler(handler: ResourceEventHandler, notification: Notification) -> Any:
    """Call the method of a handler that a notification is for; what it returns may have to be awaited."""
    obj = ObjectView(notification.record)
    match notification.type:
        case ChangeType.ADDED:
            return handler.on_add(obj, notification.initial)
        case ChangeType.MODIFIED:
            return handler.on_update(ObjectView(notification.old or notification.record), obj)
        case ChangeType.RESYNC:
            return handler.on_update(obj, obj)
        case ChangeType.DELETED:
            gone = DeletedFinalStateUnknown(obj.key, obj) if notification.final_state_unknown else obj
            if notification.old is not None and isinstance(handler, FilteringResourceEventHandler):
                # Updates were merged into this delete. The filter judges the state that the handler knows.
                return handler.on_merged_delete(ObjectView(notification.old), gone)
            return handler.on_delete(gone)


async def end_workers(listeners: Sequence[ProcessorListener], *, of: str, clock: Clock) -> None:
    """Return when the workers of closed listeners have ended, or after 10 s.

    A handler that is called for longer is named in the log, with its informer (`of`), and not waited
    for: its call is cancelled if it is async, its thread left to itself if not.
    """
    if not listeners:
        return
    ended = asyncio.gather(*[listener.gone() for listener in listeners])
    late = asyncio.create_task(clock.sleep(_STOP_SECONDS))
    try:
        await asyncio.wait([ended, late], return_when=asyncio.FIRST_COMPLETED)
        for listener in listeners:
            if not listener.ended.is_open:
                _log.warning(
                    "%s: the handler %s has not returned %g s after the stop: it is left to itself",
                    of,
                    listener.name,
                    _STOP_SECONDS,
                )
                listener.abandon()
    finally:
        late.cancel()
        ended.cancel()


async def _awaited(result: Awaitable[Any]) -> BaseException | None:
    """What awaiting it raised, as a value: SystemExit that comes out of a task would end the whole loop."""
    try:
        await result
    except BaseException as fault:
        if must_propagate(fault):
            raise
        return fault
    return None
