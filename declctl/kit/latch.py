"""A door that opens once: for "synced", "ready" and "stopped"."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from declctl.kit.callbacks import must_propagate, plain

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
