"""Worker pools: the threads or tasks that take items from a `KeyedQueue` and work on them.

A pool is the waiting shell around a queue that decides and never waits. `work` deals with one item, ends it
at the queue (`done`, `drop` or `retry`), and raises nothing; it returns False where its worker was replaced
meanwhile and has to leave. Two pools may take from one queue, as they do after a reload until the old
workers have left: the queue hands out no more than it allows.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from declctl.kit.keyed_queue import KeyedQueue, QueueItem
from declctl.kit.loops import running_loop

T = TypeVar("T")

_LONGEST_WAIT = (
    30.0  # seconds for what backs off: the clock of the queue may be another one than the threads'
)
_ITEMS_PER_TURN = 64  # items that a task works on until the others of its loop may run


class ThreadWorkerPool(Generic[T]):
    """`size` daemon threads, each with one item at a time.

    `start` makes the threads before they are needed, as a thread that starts holds up its starter; they rest
    until `wake`. `on_left` is called by each worker, in its thread, when it works no more.
    """

    def __init__(
        self,
        queue: KeyedQueue[T],
        work: Callable[[QueueItem[T]], bool],
        *,
        name: str,
        size: int = 1,
        on_left: Callable[[], None],
        ready: threading.Event | None = None,
    ) -> None:
        self.size = size
        self.is_dismissed = False
        self._queue = queue
        self._work = work
        self._name = name  # of the threads
        self._on_left = on_left
        self._first: list[threading.Thread] = []  # the threads of `start`, without those that replace one
        self._ready = ready or threading.Event()  # set: look at the queue, or leave

    def start(self) -> None:
        """Start the threads. Raises RuntimeError where one can't be started, and lets the others go."""
        try:
            for _ in range(self.size):
                self._first.append(self._start())
        except RuntimeError:
            self.dismiss()
            raise

    def wake(self) -> None:
        """Something may be ready. From any thread; costs little while all of them work."""
        if not self._ready.is_set():
            self._ready.set()

    def replace_one(self) -> None:
        """Start another worker in the place of a stuck one, which leaves when its call returns."""
        if not self.is_dismissed:
            self._start()
            self._ready.set()

    def dismiss(self) -> None:
        """Let each worker leave when its present item is done. Twice is harmless."""
        self.is_dismissed = True
        self._ready.set()

    def cancel(self) -> None:
        """Nothing: a thread can't be cancelled. It is a daemon, and keeps no process from ending."""

    def join(self) -> None:
        """Return when the threads of `start` are gone: at once, where all workers have left."""
        for thread in self._first:
            if thread is not threading.current_thread():
                thread.join()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        queue, ready, wait = self._queue, self._ready, None
        try:
            while not self.is_dismissed:
                # The wait comes first: until a commit lets these workers in, the items are another pool's.
                ready.wait(wait)
                ready.clear()  # before the look: whatever is added after it sets the event again
                while not self.is_dismissed and (item := queue.take()) is not None:
                    if self.size > 1:
                        # A colleague may have cleared the event for this item, and sleep through the next.
                        ready.set()
                    if not self._work(item):
                        return
                due = queue.next_due()
                wait = None if due is None else min(due, _LONGEST_WAIT)
        finally:
            ready.set()  # for the colleagues: one `dismiss` wakes only the worker that clears the event
            self._on_left()


class AsyncWorkerPool(Generic[T]):
    """`size` tasks on a loop, made at the first `wake`: they cost nothing to start and hold up no other.

    `on_left` is called on the loop for each worker that works no more. All methods may be called from any
    thread.
    """

    def __init__(
        self,
        queue: KeyedQueue[T],
        work: Callable[[QueueItem[T]], Coroutine[Any, Any, bool]],
        *,
        name: str,
        loop: asyncio.AbstractEventLoop,
        size: int = 1,
        on_left: Callable[[], None],
    ) -> None:
        self.size = size
        self.loop = loop
        self.is_dismissed = False
        self._queue = queue
        self._work = work
        self._name = name  # of the tasks
        self._on_left = on_left
        self._started = False
        self._sleeping = 0  # workers that wait for the event; read by other threads
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = asyncio.Event()

    def start(self) -> None:
        """Nothing: tasks are made when they are needed."""

    def wake(self) -> None:
        """Something may be ready. Costs little while all of them work."""
        if not self._started:
            self._started = True
            self._on_loop(self._start_all)
        elif self._sleeping:
            self._on_loop(self._ready.set)

    def replace_one(self) -> None:
        """Start another worker in the place of a stuck one, which leaves when its call returns."""
        self._on_loop(self._start_one)

    def dismiss(self) -> None:
        """Let each worker leave when its present item is done. Twice is harmless."""
        self.is_dismissed = True
        self._on_loop(self._ready.set)

    def cancel(self) -> None:
        """Cancel the workers, with the calls that they await."""
        self._on_loop(lambda: [task.cancel() for task in self._tasks])

    def join(self) -> None:
        """Nothing: a task that has left is gone."""

    def _on_loop(self, call: Callable[[], object]) -> None:
        if self.loop is running_loop():
            call()  # at once: a handover between threads costs more than a call
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(call)

    def _start_all(self) -> None:
        for _ in range(self.size):
            self._start_one()

    def _start_one(self) -> None:
        task = self.loop.create_task(self._run(), name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._left)  # also where it is cancelled before it runs

    def _left(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._on_left()

    async def _run(self) -> None:
        queue, worked = self._queue, 0
        while not self.is_dismissed:
            item = queue.take()
            if item is None:
                await self._sleep()
                continue
            if not await self._work(item):
                return
            worked += 1
            if worked % _ITEMS_PER_TURN == 0:
                await asyncio.sleep(0)  # calls that never wait must not starve the others on this loop

    async def _sleep(self) -> None:
        self._ready.clear()
        self._sleeping += 1
        # The queue is asked after the worker counts as sleeping: whatever is added now sets the event.
        due = self._queue.next_due()
        timer = None
        if due is not None:
            timer = self.loop.call_later(min(due, _LONGEST_WAIT), self._ready.set)
        try:
            if not self.is_dismissed:
                await self._ready.wait()
        finally:
            self._sleeping -= 1
            if timer is not None:
                timer.cancel()


WorkerPool = ThreadWorkerPool[T] | AsyncWorkerPool[T]
