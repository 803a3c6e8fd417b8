"""Event loops in threads of their own, one for the machinery and one for asynchronous handlers; and latches.

A latch opens once: for "synced", "ready" and "stopped".
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from declctl.kit.callbacks import must_propagate, plain
from declctl.kit.clock import Clock

T = TypeVar("T")

_LOOK_SECONDS = 1.0  # between two looks whether a loop that was given something still runs
BLOCKED_LOOKS = 5  # in a row without an answer: then a loop is blocked

_YIELD_SECONDS = 0.0005  # longer than a waiting thread takes to wake up


def yield_interpreter() -> None:
    """Give the interpreter to the threads that wait for it: called between two slices of background work.

    `time.sleep(0)` takes the lock back before a waiting thread has woken up. On a loop, the same is
    `await asyncio.sleep(0)`.
    """
    time.sleep(_YIELD_SECONDS)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread; None if none does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def call_on(loop: asyncio.AbstractEventLoop | None, function: Callable[[], T]) -> T:
    """What a function returns or raises when it is called on a loop. From any thread.

    It is called at once in the thread of that loop, and where the loop does not run (yet, or any more):
    then there is only one thread to care for. Else the caller waits until the loop has called it.
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
    """What `work` returns or raises, even if whoever awaits it is cancelled meanwhile.

    Then the cancellation is raised when the work is over.
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


class LoopThread:
    """An event loop that runs in a daemon thread from `start` to `stop`.

    It is a daemon so that a coroutine which never yields cannot keep the process from ending;
    `stop` cancels what is still running and waits for it, but only for a while.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._answered = True  # set by the loop, cleared by `look`
        self._unanswered = 0  # looks in a row

    def start(self) -> "LoopThread":
        """Start the thread; returns itself."""
        self._thread.start()
        return self

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there; its result or its exception is in the future. From any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this loop's thread."""
        return threading.current_thread() is self._thread

    @property
    def unanswered(self) -> int:
        """How many looks in a row the loop has not answered."""
        return self._unanswered

    @property
    def is_blocked(self) -> bool:
        """Whether a callback or a coroutine has not given the loop back for five looks in a row."""
        return self._unanswered >= BLOCKED_LOOKS

    def look(self) -> None:
        """Look whether the loop has answered since the look before, and ask again.

        Called at a steady pace, by one thread. Looks are counted, and not seconds: a process that was stopped
        for a while has not blocked its loops.
        """
        if not self._thread.is_alive():
            self._unanswered = 0
        elif self._answered:
            self._answered, self._unanswered = False, 0
            self.loop.call_soon_threadsafe(self._answer)
        else:
            self._unanswered += 1

    @property
    def thread(self) -> int | None:
        """The identifier of its thread; None before it has started."""
        return self._thread.ident

    def stop(self, timeout: float = 5.0) -> bool:
        """Cancel what runs, end the thread, and say whether it ended within `timeout` seconds."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
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
    """Open or not; once open it stays open. Asked from any thread, opened and waited for on one loop.

    `on_open` calls back at once if it is open already, so that nobody can come too late
    (client-go's HasSyncedChecker). What a callback raises when the latch opens is logged: it harms
    neither the other callbacks nor whoever opens it.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._open = False
        self._waiters: deque[Callable[[], object]] = deque()

    def __bool__(self) -> bool:
        """Refused: `if latch:` looks like a question about the door and is one about the object."""
        raise TypeError(f"ask latch.is_open, not the latch itself ({self.name})")

    @property
    def is_open(self) -> bool:
        """Whether it was opened."""
        return self._open

    def open(self) -> None:
        """Open it and call everybody who waits, once; opening twice is harmless."""
        if self._open:
            return
        self._open = True
        while self._waiters:  # one by one: a callback may let another one be forgotten
            call = self._waiters.popleft()
            try:
                plain(call(), "a callback of a latch")
            except BaseException as fault:
                if must_propagate(fault):
                    raise
                _log.exception("a callback of the latch %s raised", self.name or "without a name")

    def on_open(self, call: Callable[[], object]) -> None:
        """Call `call` when it opens, or now; what it raises now is raised."""
        if self._open:
            call()
        else:
            self._waiters.append(call)

    def forget(self, call: Callable[[], object]) -> None:
        """Do not call `call` when it opens: nobody waits there any longer."""
        if call in self._waiters:
            self._waiters.remove(call)

    async def wait(self) -> None:
        """Return when it is open."""
        if self._open:
            return
        opened = asyncio.Event()
        self.on_open(opened.set)
        try:
            await opened.wait()
        finally:
            self.forget(opened.set)


async def all_open(latches: Iterable[Latch], *, clock: Clock, timeout: float) -> bool:
    """Return True when all of these are open, or False after `timeout` seconds of the clock."""
    closed = [latch for latch in latches if not latch.is_open]
    if not closed:
        return True
    late = asyncio.ensure_future(clock.sleep(timeout))
    try:
        for latch in closed:
            if not latch.is_open:
                opened = asyncio.ensure_future(latch.wait())
                try:
                    await asyncio.wait((opened, late), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    opened.cancel()
                if not latch.is_open:
                    return False
        return True
    finally:
        late.cancel()
