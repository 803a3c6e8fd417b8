"""The workers of library handlers: a thread or a task that calls one handler, one notification at a time."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Protocol

from declctl.kit import KeyedQueue, running_loop
from declctl.kit.callbacks import must_propagate
from declctl.kit.keyed_queue import QueueItem
from declctl.objects import Notification

_BREATH = 64  # calls of an async handler until the loop may do something else

current_call: ContextVar[object | None] = ContextVar("current_call", default=None)
"""The queue item of the call in which the running code was started, also across loops and threads."""


class Served(Protocol):
    """Whose handler a worker calls. It works until `closed`."""

    name: str
    closed: bool
    queue: KeyedQueue[Notification]
    calling: QueueItem[Notification] | None

    def call(self, notification: Notification) -> Any:
        """Call the handler; what it returns may have to be awaited."""
        ...

    def failed(self, notification: Notification) -> None:
        """Count and log what the handler has just raised."""
        ...

    def look(self) -> None:
        """A notification was dealt with."""
        ...

    def worker_ended(self) -> None:
        """The worker calls nobody any more. From any thread."""
        ...


class ThreadWorker:
    """Calls a handler in a thread of its own, which starts when there is something to do."""

    def __init__(self, served: Served, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop  # None until the listener is bound to one, before the first notification
        self._served = served
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """There is something to do."""
        if self._thread is None:
            name = f"listener {self._served.name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._ready.set()

    def close(self) -> None:
        """End after the call that runs."""
        if self._thread is None:
            self._served.worker_ended()
        else:
            self._ready.set()

    def abandon(self) -> None:
        """A thread can't be ended: it is a daemon, and is left to itself."""

    def join(self) -> None:
        """Return when the thread that has ended its work is gone, which is at once."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        served = self._served
        try:
            while not served.closed:
                self._ready.wait()
                self._ready.clear()
                while not served.closed and (item := served.queue.take()) is not None:
                    self._call(item)
                    served.look()
        finally:
            served.worker_ended()

    def _call(self, item: QueueItem[Notification]) -> None:
        served = self._served
        served.calling = item
        current_call.set(item)
        try:
            result = served.call(item.value)
            if result is not None and inspect.isawaitable(result):
                assert self.loop is not None
                fault = asyncio.run_coroutine_threadsafe(_awaited(result), self.loop).result()
                if fault is not None:
                    raise fault
        except BaseException:  # noqa: BLE001 - a handler may raise what it likes, SystemExit too
            served.failed(item.value)
        finally:
            served.calling = None
            served.queue.done(item)


class LoopWorker:
    """Calls a handler on a loop, in one task, which starts when there is something to do."""

    def __init__(self, served: Served, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop  # None until the listener is bound to one, before the first notification
        self._served = served
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """There is something to do."""
        self._on_loop(self._go)

    def close(self) -> None:
        """End after the call that runs."""
        self._on_loop(self._end)

    def abandon(self) -> None:
        """Cancel the call that runs."""
        self._on_loop(self._cancel)

    def join(self) -> None:
        """Return: a task that has ended its work is gone."""

    def _on_loop(self, does: Callable[[], None]) -> None:
        if self.loop is None or self.loop is running_loop():
            does()
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(does)

    def _go(self) -> None:
        if self._task is None and not self._served.closed:
            assert self.loop is not None
            self._task = self.loop.create_task(self._run(), name=f"listener {self._served.name}")
        self._ready.set()

    def _end(self) -> None:
        if self._task is None:
            self._served.worker_ended()
        self._ready.set()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while not self._served.closed:
                await self._ready.wait()
                self._ready.clear()
                await self._work()
        finally:
            self._served.worker_ended()

    async def _work(self) -> None:
        served, calls = self._served, 0
        while not served.closed and (item := served.queue.take()) is not None:
            served.calling = item
            current_call.set(item)
            try:
                result = served.call(item.value)
                if result is not None and inspect.isawaitable(result):
                    await result
            except BaseException as fault:
                if must_propagate(fault):
                    raise  # the loop ends; otherwise the handler awaited something that was cancelled
                served.failed(item.value)
            finally:
                served.calling = None
                served.queue.done(item)
            served.look()
            calls += 1
            if calls % _BREATH == 0:
                await asyncio.sleep(0)


async def _awaited(result: Awaitable[Any]) -> BaseException | None:
    """What awaiting it raised, as a value: SystemExit that comes out of a task would end the whole loop."""
    try:
        await result
    except BaseException as fault:
        if must_propagate(fault):
            raise
        return fault
    return None
