"""Worker pools: threads or tasks that take items from a queue, such as a `ChangeQueue`, and work on them.

The queue decides, and the pool waits. `work` processes one item and calls `done`, `drop` or `retry` of the
queue. It returns whether its worker goes on: False if the worker was replaced meanwhile. What it raises is a
fault of declctl itself: user code is guarded in `work`. Such a fault ends no worker. `recover` receives it,
returns the item to the queue, and returns whether the worker goes on.

User code that runs in the task of a worker may cancel that task, by intent or not. Its call has failed then
(`ends_worker`), and another worker takes the place of the cancelled one.

Two pools may take from one queue, as after a reload until the old workers have ended; the queue limits the
items of both together.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from declctl.kit.callbacks import must_propagate, running_task
from declctl.kit.key_queue import QueueItem
from declctl.kit.loops import running_loop

T = TypeVar("T")

_LONGEST_WAIT = 30.0  # seconds until the queue is checked again, whose clock may differ from the threads' one
_ITEMS_PER_TURN = 64  # items of an asynchronous worker until other tasks of the loop may run
_log = logging.getLogger("declctl.kit")

Recover = Callable[[QueueItem[T], BaseException], bool]
"""Returns an item to its queue after a fault of `work`; returns whether the worker goes on."""


class WorkerTask(asyncio.Task[None]):
    """The task of an asynchronous worker, which knows whether a cancellation is meant for the worker."""

    ends = False  # the worker has to end: its pool or its loop ends, or another worker has its place already

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the task, as `asyncio.Task.cancel` does."""
        # At the end of a loop, its tasks are cancelled when it does not run. User code runs on the loop.
        self.ends = self.ends or not self.get_loop().is_running()
        return super().cancel(msg)

    def end(self) -> None:
        """Cancel the task, and with it the worker."""
        self.ends = True
        self.cancel()


def ends_worker(error: BaseException) -> bool:
    """Whether an asynchronous worker has to raise what a call has raised; if not, the call has failed.

    As `must_propagate`. But a worker is cancelled only by its pool, or by the end of its loop: any other
    cancellation comes from user code, and ends the call only.
    """
    task = running_task()
    if isinstance(error, asyncio.CancelledError) and isinstance(task, WorkerTask):
        return task.ends
    return must_propagate(error)


async def end_cancellation() -> None:
    """End a cancellation of the worker's task that a call has left behind: it must not reach the next call.

    For a worker that makes several calls for one item, between them. No effect in any other task.
    """
    task = running_task()
    if not isinstance(task, WorkerTask) or not task.cancelling():
        return
    try:
        await asyncio.sleep(0)  # a cancellation that was not raised yet is raised here
    except asyncio.CancelledError:
        if task.ends:
            raise
    while task.cancelling():
        task.uncancel()


class ItemSource(Protocol[T]):
    """What a pool needs of a queue."""

    def take(self) -> QueueItem[T] | None:
        """Take the next item; None if no item may be taken now."""
        ...

    def next_due(self) -> float | None:
        """Seconds until an item may be taken; None if none will be."""
        ...


class ThreadWorkerPool(Generic[T]):
    """`size` daemon threads, each of which works on one item at a time. From any thread.

    `start` makes the threads before they are needed, because starting a thread blocks the caller; they wait
    until `wake`. Each worker calls `on_left` in its thread when it ends.
    """

    def __init__(
        self,
        queue: ItemSource[T],
        work: Callable[[QueueItem[T]], bool],
        *,
        recover: Recover[T],
        name: str,
        size: int = 1,
        on_left: Callable[[], None],
        ready: threading.Event | None = None,
    ) -> None:
        self.size = size
        self.is_dismissed = False
        self._queue = queue
        self._work = work
        self._recover = recover
        self._name = name  # of the threads
        self._on_left = on_left
        self._first: list[threading.Thread] = []  # those of `start`, without replacements
        self._ready = ready or threading.Event()  # set when a worker has to check the queue, or to end

    def start(self) -> None:
        """Start the threads. If one can't be started, dismisses the others and raises RuntimeError."""
        try:
            for _ in range(self.size):
                self._first.append(self._start())
        except RuntimeError:
            self.dismiss()
            raise

    def wake(self) -> None:
        """Let the workers check the queue, because an item may be ready. Cheap while all of them work."""
        if not self._ready.is_set():
            self._ready.set()

    def replace_one(self) -> None:
        """Start a worker in the place of a stuck one, which ends when its call returns."""
        if not self.is_dismissed:
            self._start()
            self._ready.set()

    def dismiss(self) -> None:
        """Let each worker end after its present item. May be repeated."""
        self.is_dismissed = True
        self._ready.set()

    def cancel(self) -> None:
        """No effect: a thread can't be cancelled. It is a daemon, and does not keep the process alive."""

    def join(self) -> None:
        """Block until the threads of `start` have ended; short, if all workers have called `on_left`."""
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
                # The wait comes first: before the commit of a reload, the items belong to another pool.
                ready.wait(wait)
                ready.clear()  # before `take`: an item that is added after it sets the event again
                while not self.is_dismissed and (item := queue.take()) is not None:
                    if self.size > 1:
                        # This worker has cleared the event for all of them, and there may be further items.
                        ready.set()
                    try:
                        goes_on = self._work(item)
                    except BaseException as fault:  # noqa: BLE001 - a fault must not end the worker
                        goes_on = _recovered(self._recover, item, fault)
                    if not goes_on:
                        return
                due = queue.next_due()
                wait = None if due is None else min(due, _LONGEST_WAIT)
        finally:
            ready.set()  # for the other workers: `dismiss` sets the event once, and one worker clears it
            self._on_left()


class AsyncWorkerPool(Generic[T]):
    """`size` tasks on a loop, which the first `wake` makes. All methods may be called from any thread.

    `on_left` is called on the loop for each worker that ends, and has not got another one in its place.
    """

    def __init__(
        self,
        queue: ItemSource[T],
        work: Callable[[QueueItem[T]], Coroutine[Any, Any, bool]],
        *,
        recover: Recover[T],
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
        self._recover = recover
        self._name = name  # of the tasks
        self._on_left = on_left
        self._started = False
        self._tasks: set[WorkerTask] = set()  # of the workers that have not ended
        self._sleepers: dict[asyncio.Future[None], None] = {}  # of workers; changed on the loop alone
        self._wakes = False  # `_wake_one` is on its way to the loop

    def start(self) -> None:
        """No effect: `wake` makes the tasks."""

    def wake(self) -> None:
        """Let the workers check the queue, because an item may be ready. Cheap while all of them work."""
        if not self._started:
            self._started = True
            self._on_loop(self._start_all)
        elif self._sleepers and not self._wakes:
            self._wakes = True
            self._on_loop(self._wake_one)

    def replace_one(self) -> None:
        """Start a worker in the place of a stuck one, which ends when its call returns."""
        self._on_loop(self._start_one)

    def dismiss(self) -> None:
        """Let each worker end after its present item. May be repeated."""
        self.is_dismissed = True
        self._on_loop(self._wake_all)

    def cancel(self) -> None:
        """Cancel the workers, with the calls that they await."""
        self._on_loop(lambda: [task.end() for task in self._tasks])

    def join(self) -> None:
        """No effect: a worker that has called `on_left` has ended."""

    def _on_loop(self, call: Callable[[], object]) -> None:
        if self.loop is running_loop():
            call()  # `call_soon_threadsafe` would cost more
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(call)

    def _wake_one(self) -> None:
        """Let a sleeping worker check the queue. If it takes an item, it wakes the next one."""
        self._wakes = False  # first: an item that is added from now on needs another call
        while self._sleepers:
            sleeper, _ = self._sleepers.popitem()
            if not sleeper.done():
                sleeper.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._sleepers:
            self._wake_one()

    def _start_all(self) -> None:
        for _ in range(self.size):
            self._start_one()

    def _start_one(self) -> None:
        task = WorkerTask(self._run(), loop=self.loop, name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._left)  # also called for a task that is cancelled before it runs

    def _left(self, task: asyncio.Task[None]) -> None:
        assert isinstance(task, WorkerTask)
        self._tasks.discard(task)
        if task.cancelling() and not (task.ends or self.is_dismissed):
            self._start_one()  # user code has cancelled it
        else:
            self._on_left()

    async def _run(self) -> None:
        queue, worked, task = self._queue, 0, running_task()
        assert isinstance(task, WorkerTask)
        # A task that was cancelled ends, and `_left` replaces it. To go on, it would have to undo what the
        # caller of `cancel` may wait for, and the next cancellation of user code could not be told from it.
        while not (self.is_dismissed or task.cancelling()):
            item = queue.take()
            if item is None:
                await self._sleep()
                continue
            if self._sleepers:
                self._wake_one()  # there may be further items
            try:
                goes_on = await self._work(item)
            except BaseException as fault:
                if ends_worker(fault):
                    raise
                goes_on = _recovered(self._recover, item, fault)
            if not goes_on:
                task.ends = True
                return
            worked += 1
            if worked % _ITEMS_PER_TURN == 0:
                await asyncio.sleep(0)  # calls that never wait must not block the loop

    async def _sleep(self) -> None:
        if self.is_dismissed:
            return
        sleeper = self.loop.create_future()
        self._sleepers[sleeper] = None
        # After the worker counts as sleeping: whoever adds an item from now on wakes it.
        due = self._queue.next_due()
        timer = None
        if due is not None:
            timer = self.loop.call_later(min(due, _LONGEST_WAIT), _end_sleep, sleeper)
        try:
            await sleeper
        finally:
            self._sleepers.pop(sleeper, None)
            if timer is not None:
                timer.cancel()


def _end_sleep(sleeper: "asyncio.Future[None]") -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def _recovered(recover: Recover[T], item: QueueItem[T], fault: BaseException) -> bool:
    """Call `recover`, whose own fault is logged; the worker goes on."""
    try:
        return recover(item, fault)
    except BaseException:  # noqa: BLE001 - as above
        _log.exception(
            "an internal fault of declctl: the work on %s has failed, and so has its end", item.key
        )
        return True


WorkerPool = ThreadWorkerPool[T] | AsyncWorkerPool[T]
