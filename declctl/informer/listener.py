"""Listeners: who is told. Each has its own bounded buffer and pace; nothing upstream waits for it."""

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from declctl.informer.event_handlers import DeletedFinalStateUnknown, ResourceEventHandler, is_async
from declctl.kit import Clock, Lanes, Latch
from declctl.objects import ChangeType, Notification, ObjectView, merge

_LIMIT = 64 * 1024 * 1024  # bytes of pending frames
_BREATH = 64  # calls of an async handler until the loop may do something else
_log = logging.getLogger("declctl.informer")


class Listener(Protocol):
    """Takes notifications.

    Called on the loop, between two deltas: it must neither wait nor raise.
    """

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """These happened, in this order."""
        ...


@dataclass(frozen=True, slots=True)
class ListenerStatistics:
    """What became of what a listener was told: told = delivered + waiting + merged + dropped.

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
    a thread of its own; what such a one returns to be awaited is awaited on `loop`. `add_all`,
    `initial_complete` and `close` belong to the loop.
    """

    def __init__(
        self,
        handler: ResourceEventHandler,
        *,
        clock: Clock,
        limit: int = _LIMIT,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.handler = handler
        self.name = type(handler).__name__
        self.synced = Latch(f"listener {self.name}")
        self.lanes: Lanes[Notification] = Lanes(
            clock=clock, weigh=Notification.weight, merge=merge, limit=limit
        )
        self._loop = loop or asyncio.get_running_loop()
        worker = _LoopWorker if is_async(handler) else _ThreadWorker
        self._worker = worker(self, self._loop)
        self._failed = 0
        self._initial: int | None = None  # the epoch that ends with the first sync, until it is dealt with
        self.closed = False

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Take what happened; the worker starts with the first."""
        if not self.closed and notifications:
            self.lanes.add_all([(n.record.key, n) for n in notifications])
            self._worker.wake()

    def initial_complete(self) -> None:
        """All of the first sync was added; when that is dealt with, the listener has synced."""
        self._initial = self.lanes.cut()
        self.look()

    def close(self) -> None:
        """Call no more: what is pending is dropped, a call that runs ends by itself (client-go 201)."""
        self.closed = True
        self.lanes.clear()
        self._worker.wake()

    def statistics(self) -> ListenerStatistics:
        """The figures of this moment."""
        lanes = self.lanes.statistics()
        return ListenerStatistics(
            synced=self.synced.is_open,
            delivered=lanes.taken,
            failed=self._failed,
            merged=lanes.merged,
            dropped=lanes.dropped,
            waiting=lanes.waiting,
        )

    def call(self, notification: Notification) -> Any:
        """Call the handler; what it returns may have to be awaited."""
        obj = ObjectView(notification.record)
        match notification.type:
            case ChangeType.ADDED:
                return self.handler.on_add(obj, notification.initial)
            case ChangeType.MODIFIED:
                return self.handler.on_update(ObjectView(notification.old or notification.record), obj)
            case ChangeType.RESYNC:
                return self.handler.on_update(obj, obj)
            case ChangeType.DELETED:
                unknown = notification.final_state_unknown
                return self.handler.on_delete(DeletedFinalStateUnknown(obj.key, obj) if unknown else obj)

    def failed(self, notification: Notification) -> None:
        """Count and log what the handler has just raised."""
        self._failed += 1
        _log.exception("%s failed on %s %s", self.name, notification.type, notification.record.key)

    def look(self) -> None:
        """Say that the listener has synced, if all of the first sync is dealt with. From any thread."""
        if self._initial is not None and not self.lanes.outstanding(self._initial):
            self._initial = None
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any longer
                self._loop.call_soon_threadsafe(self.synced.open)


class _ThreadWorker:
    """Calls a handler in a thread of its own, which starts when there is something to do."""

    def __init__(self, listener: ProcessorListener, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._loop = loop
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """There is something to do, or the listener was closed."""
        if self._thread is None and not self._listener.closed:
            name = f"listener {self._listener.name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._ready.set()

    def _run(self) -> None:
        listener = self._listener
        while not listener.closed:
            self._ready.wait()
            self._ready.clear()
            while not listener.closed and (ticket := listener.lanes.take()) is not None:
                try:
                    result = listener.call(ticket.value)
                    if inspect.isawaitable(result):
                        asyncio.run_coroutine_threadsafe(_await(result), self._loop).result()
                except BaseException:  # noqa: BLE001 - a handler may raise what it likes, SystemExit too
                    listener.failed(ticket.value)
                finally:
                    listener.lanes.done(ticket)
                listener.look()


class _LoopWorker:
    """Calls a handler on a loop, in one task, which starts when there is something to do."""

    def __init__(self, listener: ProcessorListener, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._loop = loop
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """There is something to do, or the listener was closed."""
        if self._loop is asyncio.get_running_loop():
            self._go()
        else:
            self._loop.call_soon_threadsafe(self._go)

    def _go(self) -> None:
        if self._task is None and not self._listener.closed:
            self._task = self._loop.create_task(self._run(), name=f"listener {self._listener.name}")
        self._ready.set()

    async def _run(self) -> None:
        listener, calls = self._listener, 0
        while not listener.closed:
            await self._ready.wait()
            self._ready.clear()
            while not listener.closed and (ticket := listener.lanes.take()) is not None:
                try:
                    result = listener.call(ticket.value)
                    if inspect.isawaitable(result):
                        await result
                except (Exception, SystemExit, asyncio.CancelledError) as fault:
                    if isinstance(fault, asyncio.CancelledError) and _is_cancelled():
                        raise  # the loop ends; otherwise the handler awaited something that was cancelled
                    listener.failed(ticket.value)
                finally:
                    listener.lanes.done(ticket)
                listener.look()
                calls += 1
                if calls % _BREATH == 0:
                    await asyncio.sleep(0)


async def _await(result: Awaitable[Any]) -> None:
    await result


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
