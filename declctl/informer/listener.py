"""Listeners: each has its own bounded buffer and its own worker. No other part of an informer waits for it.

The worker of a library handler is a thread or a task. It calls the handler for one notification at a time.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from declctl.errors import CacheError
from declctl.informer.event_handlers import (
    DeletedFinalStateUnknown,
    FilteringResourceEventHandler,
    ResourceEventHandler,
    is_async,
    name_for_handler,
)
from declctl.kit import Clock, Latch, running_loop
from declctl.kit.callbacks import must_propagate
from declctl.kit.change_queue import ChangeQueue
from declctl.kit.key_queue import QueueItem
from declctl.kit.worker_pool import AsyncWorkerPool, ThreadWorkerPool, WorkerPool, ends_worker
from declctl.objects import ChangeType, Notification, ObjectView, merge

_LIMIT = 64 * 1024 * 1024  # bytes of pending frames
_STOP_SECONDS = 10.0  # for which the end of an informer waits for calls of handlers
_log = logging.getLogger("declctl.informer")

current_call: ContextVar[object | None] = ContextVar("current_call", default=None)
"""The queue item of the call in which the running code was started, also in its tasks and `to_thread`."""


class Listener(Protocol):
    """Receives notifications.

    It is called on the loop, between two changes of the cache, and must neither block nor raise.
    """

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Receive notifications, in their order."""
        ...


class ListenerStatistics(msgspec.Struct, frozen=True):
    """The figures of a listener: it has received delivered + waiting + merged + dropped notifications."""

    synced: bool  # the handler was called for the whole first sync
    delivered: int  # calls of the handler, those that raised included
    failed: int  # calls that raised
    merged: int  # notifications that were merged with another one
    dropped: int  # notifications that were pending at the end
    waiting: int  # notifications that are pending now


class ProcessorListener:
    """A library user's handler with its own buffer and its own worker (client-go's processorListener).

    - `handler`: called for one notification at a time, in order. An exception is logged and counted, and has
      no other effect.
    - `limit`: bytes of pending frames, beyond which pending notifications of one key are merged and counted.
    - `loop`: where a handler with an asynchronous method is called; by default the running loop. Any other
      handler is called in a thread of its own; an awaitable that it returns is awaited on `loop`.
    - `name`: for logs; by default `name_for_handler`.

    `synced` opens when the handler was called for the whole first sync, with or without exceptions, and never
    if the listener is closed before. `ended` opens when the listener is closed and its handler is not called
    any longer.

    Everything but `statistics` belongs to the loop on which the listener was made. If no loop runs then,
    `bind` names the loop before the first notification.
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
        self.queue: ChangeQueue[Notification] = ChangeQueue(
            clock=clock, weigh=Notification.weight, merge=merge, merge_above=limit
        )
        self._home = running_loop()  # the loop on which the latches open; None until `bind`
        self._loop = loop  # the loop of async methods; None for the home loop
        self._is_async = is_async(handler)
        self._pool: WorkerPool[Notification] | None = None  # one worker, made for the first notification
        self._calling: QueueItem[Notification] | None = None  # the item that the handler is called with
        self._failed = 0  # calls that raised
        self._initial: int | None = None  # the epoch that ends with the first sync, until it is dealt with

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make this the loop of the listener."""
        self._home = loop

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Queue notifications. The first call starts the worker; raises RuntimeError if it can't."""
        if not self.closed and notifications:
            self.queue.add_all([(n.record.key, n) for n in notifications])
            # Not before: a listener without notifications needs no thread.
            if self._pool is None:
                self._pool = self._started_pool()
            self._pool.wake()

    def initial_complete(self) -> None:
        """Note that the whole first sync is queued. The handler's calls for it complete the sync."""
        # Notifications that are added after the cut belong to a later epoch, and not to the first sync.
        self._initial = self.queue.cut()
        self._look_synced()

    def close(self) -> int:
        """Drop the pending notifications, and let the worker end; returns how many were dropped.

        A call that is under way goes on (client-go 201). May be repeated.
        """
        if self.closed:
            return 0
        self.closed = True  # first: an empty queue would look like the end of the first sync
        dropped = self.queue.clear()
        if self._pool is None:
            self._open(self.ended)
        else:
            self._pool.dismiss()
        return dropped

    async def gone(self) -> None:
        """Return when the listener is closed and its worker has ended.

        Raises CacheError if a call of the handler, or a task that the call has started, waits for this:
        client-go waits for ever there.
        """
        # Tasks and `asyncio.to_thread` inherit the context variable; a plain thread does not.
        call = current_call.get()
        if call is not None and call is self._calling:
            raise CacheError(f"{self.name} can't wait for its own end: remove it, which waits for nothing")
        await self.ended.wait()
        if self._pool is not None:
            self._pool.join()

    def abandon(self) -> None:
        """Give up the present call: an asynchronous one is cancelled, a thread goes on by itself."""
        if self._pool is not None:
            self._pool.cancel()

    def statistics(self) -> ListenerStatistics:
        """The figures of this moment. From any thread."""
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
        """How many notifications of the first sync the handler was not called for yet."""
        return 0 if self._initial is None else self.queue.outstanding(self._initial)

    def _started_pool(self) -> WorkerPool[Notification]:
        name, loop = f"listener {self.name}", self._loop or self._home
        if self._is_async:
            assert loop is not None  # a listener that was made where no loop runs is bound by now
            return AsyncWorkerPool(
                self.queue,
                self._work_async,
                recover=self._recover,
                name=name,
                loop=loop,
                on_left=self._worker_left,
            )
        pool = ThreadWorkerPool(
            self.queue, self._work, recover=self._recover, name=name, on_left=self._worker_left
        )
        pool.start()
        return pool

    def _work(self, item: QueueItem[Notification]) -> bool:
        """Call the handler in this thread; returns True: the worker goes on."""
        self._calling = item
        current_call.set(item)
        try:
            result = call_handler(self.handler, item.value)
            # An awaitable that a plain method returns belongs to the loop, and not to this thread.
            if result is not None and inspect.isawaitable(result):
                loop = self._loop or self._home
                assert loop is not None
                fault = asyncio.run_coroutine_threadsafe(_awaited(result), loop).result()
                if fault is not None:
                    raise fault
        except BaseException:  # noqa: BLE001 - a handler may raise anything, also SystemExit
            self._log_failure(item.value)
        finally:
            self._finish(item)
        return True

    async def _work_async(self, item: QueueItem[Notification]) -> bool:
        """Call the handler on this loop; returns True: the worker goes on."""
        self._calling = item
        current_call.set(item)
        try:
            result = call_handler(self.handler, item.value)
            if result is not None and inspect.isawaitable(result):
                await result
        except BaseException as fault:
            if ends_worker(fault):
                raise  # any other CancelledError comes from code of the handler
            self._log_failure(item.value)
        finally:
            self._finish(item)
        return True

    def _recover(self, item: QueueItem[Notification], fault: BaseException) -> bool:
        """Free the key of an item after a fault of declctl itself; returns True: the worker goes on."""
        self._failed += 1
        if item.is_taken:
            self.queue.done(item)
        what = f"an internal fault of declctl ended the work on {item.key}; please report it"
        _log.error("%s: %s", self.name, what, exc_info=fault)
        return True

    def _finish(self, item: QueueItem[Notification]) -> None:
        """The call has ended: the key is free for its next change."""
        self._calling = None
        self.queue.done(item)
        if self._initial is not None:
            self._look_synced()

    def _log_failure(self, notification: Notification) -> None:
        """Count and log the exception that the handler has just raised."""
        self._failed += 1
        what = f"{self.name} failed on {notification.type} {notification.record.key}"
        try:
            # The logging library reads the causes and texts of the exception, which may call user code.
            _log.exception(what)
        except BaseException:  # noqa: BLE001 - an exception whose text or cause raises
            _log.error("%s, with an exception that can't be shown", what)

    def _look_synced(self) -> None:
        """Open `synced` if the handler was called for the whole first sync. From any thread."""
        epoch = self._initial
        # `closed` is read last: `close` sets it, and then drops notifications that were not delivered.
        if epoch is not None and not self.queue.outstanding(epoch) and not self.closed:
            self._initial = None
            self._open(self.synced)

    def _worker_left(self) -> None:
        self._open(self.ended)

    def _open(self, latch: Latch) -> None:
        if self._home is None:
            latch.open()  # no loop was ever bound, so only one thread uses the listener
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its waiters are gone
            self._home.call_soon_threadsafe(latch.open)


def call_handler(handler: ResourceEventHandler, notification: Notification) -> Any:
    """Call the handler's method for a notification; returns its result, which may have to be awaited."""
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
                # Updates were merged into this delete: the filter needs the last state that was delivered.
                return handler.on_merged_delete(ObjectView(notification.old), gone)
            return handler.on_delete(gone)


async def end_workers(listeners: Sequence[ProcessorListener], *, of: str, clock: Clock) -> None:
    """Return when the workers of closed listeners have ended, or after 10 s.

    A handler whose call takes longer is named in the log, with its informer (`of`), and its call is given up:
    see `ProcessorListener.abandon`.
    """
    if not listeners:
        return
    ended = asyncio.create_task(_all_gone(listeners))
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


async def _all_gone(listeners: Sequence[ProcessorListener]) -> None:
    for listener in listeners:
        await listener.gone()


async def _awaited(result: Awaitable[Any]) -> BaseException | None:
    """Await `result`; returns its exception as a value, because a SystemExit in a task would end the loop."""
    try:
        await result
    except BaseException as fault:
        if must_propagate(fault):
            raise
        return fault
    return None
