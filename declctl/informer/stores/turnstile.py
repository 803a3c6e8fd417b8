"""A turnstile: many writes that readers in other threads see all of, or nothing of."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


class Turnstile:
    """Entered by the writer for a batch of writes; reads go through `read`.

    A read is made without a lock and costs a few instructions, unless it met a batch: then it is made
    again, once, when the batch is done. The thread that writes is let in at once, so that an index
    function may read the store that asks it, and sees what is written so far.
    """

    __slots__ = ("_lock", "_turns")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._turns = 0  # odd while a batch is written

    def __enter__(self) -> None:
        self._lock.acquire()
        self._turns += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turns += 1
        self._lock.release()

    def read(self, copy: Callable[[], T]) -> T:
        """What `copy` gives before or after a batch, never within one."""
        turn = self._turns
        if not turn & 1:
            found = copy()
            if turn == self._turns:
                return found
        with self._lock:
            return copy()
