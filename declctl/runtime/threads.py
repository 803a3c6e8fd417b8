"""User code in a thread of its own, awaited.

An executor has few threads, and Python waits for them when it ends. User code may never return.
It gets a daemon thread, so that it delays neither the next call nor the end of the process.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import msgspec

from declctl.kit.callbacks import CallGivenUp, user_code_place

A = TypeVar("A")
T = TypeVar("T")

# Thread.start() blocks until the thread runs, so a loop must not call it.
_STARTER = ThreadPoolExecutor(1, thread_name_prefix="declctl-starter")


class AbandonedCall(msgspec.Struct, frozen=True):
    """A call of user code that has not returned, and whose caller has given up."""

    name: str  # of the function, in words
    place: str  # the line of user code at which its thread is
    seconds: float  # since the call

    def __str__(self) -> str:
        at = f" at {self.place}" if self.place else ""
        return f"{self.name}{at}, for {self.seconds:.0f} s"


class _Abandoned:
    """The threads whose callers have given up: what they call, and since when. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[threading.Thread, tuple[str, float]] = {}

    def add(self, thread: threading.Thread, what: str, since: float) -> None:
        with self._lock:
            self._calls[thread] = (what, since)

    def discard(self, thread: threading.Thread) -> None:
        with self._lock:
            self._calls.pop(thread, None)

    def all(self) -> list[tuple[threading.Thread, str, float]]:
        with self._lock:
            return [(thread, *call) for thread, call in self._calls.items()]


_abandoned = _Abandoned()


def abandoned_calls() -> Sequence[AbandonedCall]:
    """The calls of `in_thread` whose callers have given up, the oldest first. Any thread may call it."""
    now = time.monotonic()
    return [
        AbandonedCall(what, user_code_place(thread.ident), now - since)
        for thread, what, since in _abandoned.all()
    ]


async def in_thread(call: Callable[[], T], *, name: str, what: str = "") -> T:
    """What `call` returns or raises; RuntimeError for StopIteration, which can't leave a coroutine.

    Cancelling ends the wait. A thread that has not begun does nothing; a thread that has begun goes on. With
    `what`, which names the call, it is one of the `abandoned_calls` until it returns.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    began = time.monotonic()
    given_up = False

    def run() -> None:
        try:
            if given_up:
                return
            value = call()
        except StopIteration as error:  # a future refuses StopIteration, and the caller would wait for ever
            fault = RuntimeError(f"{what or name} raised StopIteration")
            fault.__cause__ = error
            report(result.set_exception, fault)
        except BaseException as error:  # noqa: BLE001 - user code: raised again where it is awaited
            report(result.set_exception, error)
        else:
            report(result.set_result, value)
        finally:
            returned.set()
            _abandoned.discard(thread)

    def report(how: Callable[..., None], outcome: object) -> None:
        with suppress(RuntimeError):  # the loop has been closed: there is no caller left
            loop.call_soon_threadsafe(lambda: None if result.done() else how(outcome))

    returned = threading.Event()
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        await loop.run_in_executor(_STARTER, thread.start)
        return await result
    except asyncio.CancelledError:
        given_up = True  # a thread that begins after this moment does nothing
        if what:
            _abandoned.add(thread, what, began)
            if returned.is_set() or thread.ident is None:
                _abandoned.discard(thread)
        raise


class UserCall:
    """User code that is called for many objects, in threads of its own: some objects at each `run`.

    When the wait for a `run` is cancelled, the call is given up for good: its thread ends after the current
    object, if user code ever returns. Use `objects`, `note` and `go_on` in that thread, all else on the loop.
    """

    def __init__(self, *, name: str, what: str) -> None:
        self._name = name  # of its threads
        self._what = what  # the name of the function in status and messages
        self._at = ""  # the key of the object of the last call
        self._thread: int | None = None  # the thread of the present `run`
        self._place = ""  # the line of user code at which the thread was when the call was given up
        self._given_up = False

    async def run(self, call: Callable[[], T]) -> T:
        """Call a function in a thread; return its result or exception. A cancellation gives it up."""

        def noted() -> T:
            self._thread = threading.get_ident()
            try:
                return call()
            finally:
                self._thread = None  # the system may give its number to another thread

        try:
            return await in_thread(noted, name=self._name, what=self._what)
        except asyncio.CancelledError:
            # Read now: the refusal is made later, when the thread may be at another line.
            self._place = user_code_place(self._thread)
            self._given_up = True
            raise

    def objects(self, objects: Iterable[A], key: Callable[[A], str]) -> Iterator[A]:
        """Yields the objects, and notes the key of each; ends once the call is given up."""
        for each in objects:
            if self._given_up:
                return
            self._at = key(each)
            yield each

    def note(self, key: str) -> None:
        """Note the key of the current object. Called in the thread. Raises CallGivenUp, as `go_on` does."""
        self._at = key
        self.go_on()

    def go_on(self) -> None:
        """Raise CallGivenUp if the call was given up."""
        if self._given_up:
            raise CallGivenUp

    def fault(self, why: str) -> str:
        """A message: what is called, `why` it was given up, the current object, and the line of user code."""
        at = f"; it was asked about {self._at} last" if self._at else ""
        # A call that was not given up is still running.
        where = self._place or user_code_place(self._thread)
        place = f", at {where}" if where else ""
        return f"{self._what} {why}{at}{place}"
