"""The workers of a slot: the thin waiting shells around its queue.

A slot whose implementations are all asynchronous is worked by tasks on a loop for handlers, any
other by threads of its own, so that a change costs neither a task nor an executor. Either kind can
work on any change: after a reload from one to the other both exist until the old ones have left,
and the queue lets none of the new begin before there is room.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol

from declctl.kit import KeyedQueue
from declctl.kit.keyed_queue import QueueItem
from declctl.objects import Notification

_LONGEST_WAIT = 30.0  # seconds; a lost wake-up would cost no more than this


class Worked(Protocol):
    """What a pool works for: a slot."""

    name: str
    on_pending: Callable[[], None]
    """Called when something may be ready: wakes the pool that works for it now."""

    @property
    def queue(self) -> KeyedQueue[Notification]:
        """What waits."""
        ...

    def work(self, item: QueueItem[Notification]) -> bool:
        """Deliver in this thread; False tells the worker to leave."""
        ...

    async def work_async(self, item: QueueItem[Notification]) -> bool:
        """Deliver on this loop; False tells the worker to leave."""
        ...


class WorkerPool(Protocol):
    """Workers that take from a slot until they are dismissed."""

    @property
    def size(self) -> int:
        """How many changes they work on at once."""
        ...

    def start(self) -> None:
        """Make the workers, who rest until woken; raises RuntimeError where no thread can be had."""
        ...

    def wake(self) -> None:
        """Something may be ready. From any thread; costs little when nobody sleeps."""
        ...

    def replace_one(self) -> None:
        """One worker is stuck: start another."""
        ...

    def dismiss(self) -> None:
        """Every worker leaves when its present change is done."""
        ...


class ThreadWorkerPool:
    """`size` threads that each take one change at a time.

    They are made by `start`, before they are needed: a thread that starts holds up whoever starts it.
    """

    def __init__(self, slot: Worked, *, size: int) -> None:
        self.size = size
        self._slot = slot
        self._dismissed = False
        self._ready = threading.Event()

    def start(self) -> None:
        """Start the threads; where one can't be started, the others are let go."""
        try:
            for _ in range(self.size):
                self._start(self._rest_and_run)
        except RuntimeError:
            self.dismiss()
            raise

    def wake(self) -> None:
        """Wake who sleeps."""
        if not self._ready.is_set():
            self._ready.set()

    def replace_one(self) -> None:
        """Start one more thread; the stuck one leaves when it comes back."""
        if not self._dismissed:
            self._start(self._run)

    def dismiss(self) -> None:
        """Let the threads go."""
        self._dismissed = True
        self._ready.set()

    def _start(self, target: Callable[[], None]) -> None:
        # Daemons: a call that never returns must not keep the process from ending.
        threading.Thread(target=target, name=f"declctl-handler-{self._slot.name}", daemon=True).start()

    def _rest_and_run(self) -> None:
        # Until a commit lets them in, what waits in the queue belongs to the pool before.
        self._ready.wait()
        self._run()

    def _run(self) -> None:
        queue = self._slot.queue
        while True:
            # Cleared before looking, so that whatever comes after the look sets it again.
            self._ready.clear()
            if self._dismissed:
                break
            item = queue.take()
            if item is None:
                wait = queue.next_due()
                self._ready.wait(_LONGEST_WAIT if wait is None else min(wait, _LONGEST_WAIT))
                continue
            if self.size > 1:
                # A colleague may have cleared it for this change and slept through the next.
                self._ready.set()
            if not self._slot.work(item):
                return
        self._ready.set()
        self._slot.on_pending()  # who works for it now may wait until this one has left


class AsyncWorkerPool:
    """`size` tasks on a loop for handlers."""

    def __init__(self, slot: Worked, *, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self.size = size
        self.loop = loop
        self._slot = slot
        self._dismissed = False
        self._sleeping = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._event: asyncio.Event | None = None
        self._starting = False

    def start(self) -> None:
        """Nothing is made beforehand: tasks cost nothing to start, and hold up nobody."""

    def wake(self) -> None:
        """Start the tasks if this is the first change, and wake who sleeps."""
        if not self._starting:
            self._starting = True
            self.loop.call_soon_threadsafe(self._start_all)
        elif self._sleeping:
            self.loop.call_soon_threadsafe(self._set)

    def replace_one(self) -> None:
        """Start one more task; the stuck one leaves when it comes back."""
        self.loop.call_soon_threadsafe(self._start_one)

    def dismiss(self) -> None:
        """Let the tasks go."""
        self._dismissed = True
        self.loop.call_soon_threadsafe(self._set)

    def _start_all(self) -> None:
        self._event = asyncio.Event()
        for _ in range(self.size):
            self._start_one()

    def _start_one(self) -> None:
        task = self.loop.create_task(self._run(), name=f"handler {self._slot.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set(self) -> None:
        if self._event is not None:
            self._event.set()

    async def _run(self) -> None:
        queue = self._slot.queue
        breath = 0
        while not self._dismissed:
            item = queue.take()
            if item is None:
                await self._sleep(queue)
                continue
            breath += 1
            if breath % 64 == 0:
                await asyncio.sleep(0)  # a handler that never waits must not starve the others on this loop
            if not await self._slot.work_async(item):
                return
        self._slot.on_pending()  # as above

    async def _sleep(self, queue: KeyedQueue[Notification]) -> None:
        assert self._event is not None
        self._event.clear()
        self._sleeping += 1
        try:
            wait = (
                queue.next_due()
            )  # looked at after the flag is up: an add from another thread now sets the event
            if wait == 0.0:
                await asyncio.sleep(0)
                return
            async with asyncio.timeout(_LONGEST_WAIT if wait is None else min(wait, _LONGEST_WAIT)):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._sleeping -= 1
