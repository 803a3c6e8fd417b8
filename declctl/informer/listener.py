"""Listeners.

Who is told. A listener has its own bounded buffer and its own pace; nothing upstream waits for it.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from declctl.kit import Clock, Lanes, Latch
from declctl.objects import ChangeType, Notification, ObjectKey, ObjectView, merge

_LIMIT = 64 * 1024 * 1024
_log = logging.getLogger("declctl.informer")


class Listener(Protocol):
    """Takes notifications.

    Called on the loop, between two deltas: it must neither wait nor raise.
    """

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """These happened, in this order."""
        ...


class ResourceEventHandler(Protocol):
    """What a library user implements (client-go's ResourceEventHandler). Methods may be sync or async.

    `on_delete` receives DeletedFinalStateUnknown where the watch missed the delete.
    """

    def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> Any:
        """An object appeared, or was there."""
        ...

    def on_update(self, old: ObjectView, new: ObjectView) -> Any:
        """An object changed, or its resync is due (then both are equal)."""
        ...

    def on_delete(self, obj: "ObjectView | DeletedFinalStateUnknown") -> Any:
        """An object is gone."""
        ...


@dataclass(frozen=True, slots=True)
class DeletedFinalStateUnknown:
    """A delete that the watch missed.

    `obj` is the last known state, which may not be the last one.
    """

    key: ObjectKey
    obj: ObjectView


@dataclass(frozen=True, slots=True)
class ResourceEventHandlerFuncs:
    """A handler made of functions; those that are left out are not called."""

    add: Callable[[ObjectView, bool], Any] | None = None
    update: Callable[[ObjectView, ObjectView], Any] | None = None
    delete: Callable[[ObjectView | DeletedFinalStateUnknown], Any] | None = None

    def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> Any:
        """Call `add`."""
        return self.add(obj, is_in_initial_list) if self.add else None

    def on_update(self, old: ObjectView, new: ObjectView) -> Any:
        """Call `update`."""
        return self.update(old, new) if self.update else None

    def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> Any:
        """Call `delete`."""
        return self.delete(obj) if self.delete else None


class FilteringResourceEventHandler:
    """Passes on what a filter accepts.

    Entering it is an add, leaving it a delete (client-go 96).
    """

    def __init__(self, accepts: Callable[[ObjectView], bool], handler: ResourceEventHandler) -> None:
        self._accepts = accepts
        self._handler = handler

    def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> Any:
        """Pass on what is accepted."""
        return self._handler.on_add(obj, is_in_initial_list) if self._accepts(obj) else None

    def on_update(self, old: ObjectView, new: ObjectView) -> Any:
        """Pass on as an update, an add or a delete."""
        before, now = self._accepts(old), self._accepts(new)
        if before and now:
            return self._handler.on_update(old, new)
        if now:
            return self._handler.on_add(new, False)
        return self._handler.on_delete(old) if before else None

    def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> Any:
        """Pass on what is accepted."""
        last = obj.obj if isinstance(obj, DeletedFinalStateUnknown) else obj
        return self._handler.on_delete(obj) if self._accepts(last) else None


class ProcessorListener:
    """A library user's handler with its own buffer and its own thread.

    One notification at a time, in order. A raise is logged and counted, and changes nothing else.
    Beyond `limit` bytes of pending frames, pending notifications of one key are merged and counted.
    Asynchronous methods run on the loop that made the listener.
    """

    def __init__(self, handler: ResourceEventHandler, *, clock: Clock, limit: int = _LIMIT) -> None:
        self.handler = handler
        self.synced = Latch(f"listener {type(handler).__name__}")
        self.failures = 0
        self.lanes: Lanes[Notification] = Lanes(
            clock=clock, weigh=Notification.weight, merge=merge, limit=limit
        )
        self._loop = asyncio.get_running_loop()
        self._ready = threading.Event()
        self._stopped = False
        self._last_initial: str | None = None
        self._awaiting_last = False
        self._thread: threading.Thread | None = None

    def add_all(self, notifications: Sequence[Notification]) -> None:
        """Take what happened; the thread starts with the first."""
        if self._stopped or not notifications:
            return
        self.lanes.add_all([(n.key, n) for n in notifications])
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="declctl-listener", daemon=True)
            self._thread.start()
        self._ready.set()

    def initial_complete(self) -> None:
        """Everything of the first sync has been added.

        When all of it is dealt with, the listener has synced.
        """
        self._awaiting_last = True
        self._ready.set()
        if self.lanes.idle:
            self._open()

    def stop(self) -> None:
        """Take and call no more.

        A call that is running ends by itself, what is pending is dropped.
        """
        self._stopped = True
        self.lanes.clear()
        self._ready.set()

    def _run(self) -> None:
        while not self._stopped:
            self._ready.clear()
            ticket = self.lanes.take()
            if ticket is None:
                if self._awaiting_last and not self.synced.is_open:
                    self._loop.call_soon_threadsafe(self._open)
                self._ready.wait()
                continue
            try:
                self._call(ticket.value)
            except Exception:
                self.failures += 1
                _log.exception("a handler failed on %s", ticket.key)
            finally:
                self.lanes.done(ticket)

    def _open(self) -> None:
        if self.lanes.idle:
            self.synced.open()

    def _call(self, notification: Notification) -> None:
        obj = ObjectView(notification.record)
        result: Any
        match notification.type:
            case ChangeType.ADDED:
                result = self.handler.on_add(obj, notification.initial)
            case ChangeType.MODIFIED:
                old = ObjectView(notification.old) if notification.old is not None else obj
                result = self.handler.on_update(old, obj)
            case ChangeType.RESYNC:
                result = self.handler.on_update(ObjectView(notification.record), obj)
            case ChangeType.DELETED:
                unknown = notification.final_state_unknown
                result = self.handler.on_delete(DeletedFinalStateUnknown(obj.key, obj) if unknown else obj)
        if inspect.iscoroutine(result):
            asyncio.run_coroutine_threadsafe(result, self._loop).result()
