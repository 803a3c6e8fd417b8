"""Event loops in threads of their own, and latches.

A latch opens once, such as for "synced", "ready" or "stopped".
"""

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, wait
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

from declctl.kit.callbacks import must_propagate, plain
from declctl.kit.clock import Clock

T = TypeVar("T")

_LOOK_SECONDS = 1.0  # between two checks of `call_on` whether the loop still runs
EVENT_LOOP = "DECLCTL_EVENT_LOOP"
"""The environment variable that keeps uvloop out, if it is `asyncio`."""
BLOCKED_LOOKS = 5  # calls of `look` in a row without an answer, after which a loop counts as blocked

_YIELD_SECONDS = 0.0005  # longer than a waiting thread takes to wake up


def yield_interpreter() -> None:
    """Release the interpreter lock for other threads, between two slices of background work.

    `time.sleep(0)` would take the lock back before a waiting thread has woken up. On a loop, use
    `await asyncio.sleep(0)`.
    """
    time.sleep(_YIELD_SECONDS)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread; None without one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def call_on(loop: asyncio.AbstractEventLoop | None, function: Callable[[], T]) -> T:
    """Call a function on a loop; returns its result or raises its exception. From any thread.

    In the thread of the loop it is called at once. So it is if the loop does not run yet, or any longer: then
    only one thread uses its objects. Otherwise the caller blocks until the loop has called the function.
    Raises RuntimeError if the loop ends before.
    """
    if loop is None or running_loop() is loop or not loop.is_running():
        return function()
    called: Future[T] = Future()

    def call() -> None:
        try:
            called.set_result(function())
        except BaseException as fault:  # noqa: BLE001 - it is raised where the caller waits
            called.set_exception(fault)

    loop.call_soon_threadsafe(call)
    while not wait([called], timeout=_LOOK_SECONDS).done:
        if not loop.is_running():
            raise RuntimeError("the event loop has ended before it could do what another thread asked for")
    return called.result()


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end, even if the caller is cancelled; returns its result or raises its exception.

    A cancellation of the caller is raised after the end of `work`, unless `work` itself has failed.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and (task.cancelled() or task.exception() is None):
        raise cancelled
    return task.result()


class LoopCalls:
    """Calls functions on a loop, from any thread, in their order.

    All calls that come before the loop turns share one wake-up, which costs a system call in both threads.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._waiting: deque[Callable[[], object]] = deque()
        self._woken = False  # `_make` is going to be called; set by any thread, cleared by the loop

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> "LoopCalls":
        """The calls of a loop, which all its users share."""
        found = _calls_of.get(loop)
        return _calls_of.setdefault(loop, cls(loop)) if found is None else found

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop. Raises RuntimeError if the loop is closed, and drops the call."""
        self._waiting.append(function)
        # If it is set, the loop has not begun: it is cleared before the calls are counted.
        if self._woken:
            return
        self._woken = True
        loop = self._loop()
        try:
            if loop is None:
                raise RuntimeError("the event loop is gone")
            loop.call_soon_threadsafe(self._make)
        except RuntimeError:
            self._waiting.clear()
            self._woken = False
            raise

    def _make(self) -> None:
        self._woken = False
        for _ in range(len(self._waiting)):
            function = self._waiting.popleft()
            try:
                function()
            except Exception as error:  # noqa: BLE001 - told to the loop, as of any callback
                what = {"message": f"{function!r} has failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(what)


_calls_of: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopCalls] = WeakKeyDictionary()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """One of uvloop, if it is installed (`declctl[uvloop]`) and the environment does not say asyncio."""
    if os.environ.get(EVENT_LOOP) == "asyncio":
        return asyncio.new_event_loop()
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """An event loop that runs in a daemon thread from `start` to `stop`.

    The thread is a daemon, so that a coroutine that blocks the loop can't keep the process alive. `stop`
    cancels the tasks and waits for the thread, with a timeout.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.loop = _new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        # asyncio refers to tasks weakly: one that waits for what only itself knows would be collected.
        self._submitted: set[Future[Any]] = set()  # whose coroutines have not ended
        self.is_stopping = False  # `stop` was called: tasks of the loop are cancelled
        self._answered = True  # the loop has run since the last `look`; set by the loop, cleared by `look`
        self._unanswered = 0  # calls of `look` in a row without an answer

    def start(self) -> "LoopThread":
        """Start the thread; returns this object."""
        self._thread.start()
        return self

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop, to its end; returns the future of its result. From any thread."""
        submitted = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        self._submitted.add(submitted)
        submitted.add_done_callback(self._submitted.discard)
        return submitted

    def call_soon(self, function: Callable[[], object]) -> bool:
        """Schedule a call on the loop, from any thread; returns False if the loop has ended and drops it."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            if not self.loop.is_closed():
                raise
            return False
        return True

    @property
    def unanswered(self) -> int:
        """The number of calls of `look` in a row that the loop has not answered."""
        return self._unanswered

    @property
    def is_blocked(self) -> bool:
        """Whether the loop has not answered five calls of `look` in a row, because a callback blocks it."""
        return self._unanswered >= BLOCKED_LOOKS

    def look(self) -> None:
        """Check whether the loop has run since the last call, and ask it for a further answer.

        Called at a steady pace by one thread. Calls are counted, and not seconds, because a process that was
        suspended has not blocked its loops.
        """
        if not self._thread.is_alive():
            self._unanswered = 0
        elif self._answered:
            self._answered, self._unanswered = False, 0
            self.call_soon(self._answer)
        else:
            self._unanswered += 1

    @property
    def thread(self) -> int | None:
        """The identifier of the thread; None before `start`."""
        return self._thread.ident

    def stop(self, timeout: float = 5.0) -> bool:
        """Cancel all tasks and end the thread; returns whether it ended within `timeout` seconds. Blocks."""
        self.is_stopping = True
        if self._thread.is_alive():
            self.call_soon(self.loop.stop)
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _answer(self) -> None:
        self._answered = True

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self._cancel_all()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

    def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


_log = logging.getLogger("declctl.kit")


class Latch:
    """A flag that is set once and then stays open (client-go's HasSyncedChecker).

    `is_open` may be read from any thread; everything else belongs to one loop. A callback that is added after
    the opening is called at once. An exception of a callback is logged when the latch opens, and affects
    neither the other callbacks nor the caller of `open`.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name  # for logs
        self._open = False
        self._waiters: deque[Callable[[], object]] = deque()  # callbacks; empty once it is open

    def __bool__(self) -> bool:
        """Raises TypeError: `if latch:` would be true for a latch that is not open."""
        raise TypeError(f"ask latch.is_open, not the latch itself ({self.name})")

    @property
    def is_open(self) -> bool:
        """Whether the latch was opened."""
        return self._open

    def open(self) -> None:
        """Open the latch and call each callback once. May be repeated."""
        if self._open:
            return
        self._open = True
        while self._waiters:  # one by one: a callback may call `forget` for another one
            call = self._waiters.popleft()
            try:
                plain(call(), "a callback of a latch")
            except BaseException as fault:
                if must_propagate(fault):
                    raise
                _log.exception("a callback of the latch %s raised", self.name or "without a name")

    def on_open(self, call: Callable[[], object]) -> None:
        """Call `call` when the latch opens; at once, if it is open, and then its exception is raised."""
        if self._open:
            call()
        else:
            self._waiters.append(call)

    def forget(self, call: Callable[[], object]) -> None:
        """Remove a callback; no effect for an unknown one."""
        if call in self._waiters:
            self._waiters.remove(call)

    async def wait(self) -> None:
        """Return when the latch is open."""
        if self._open:
            return
        opened = asyncio.Event()
        self.on_open(opened.set)
        try:
            await opened.wait()
        finally:
            self.forget(opened.set)


async def all_open(latches: Iterable[Latch], *, clock: Clock, timeout: float) -> bool:
    """Return True when all latches are open, or False after `timeout` seconds of the clock."""
    closed = [latch for latch in latches if not latch.is_open]
    if not closed:
        return True
    opened = asyncio.gather(*(latch.wait() for latch in closed))
    late = asyncio.ensure_future(clock.sleep(timeout))
    try:
        await asyncio.wait((opened, late), return_when=asyncio.FIRST_COMPLETED)
        return all(latch.is_open for latch in closed)
    finally:
        opened.cancel()
        late.cancel()
