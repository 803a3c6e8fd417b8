"""The child process in which a bundle is imported first, as it is seen from here: asked once, and ended.

It imports nothing heavy, so that `children` can begin to load before all else is loaded.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from declctl.runtime.fork_server import STATUS

_LAST_WORDS_SECONDS = 1.0  # between the end of a child's reports and its exit
_SERVER_SECONDS = 10.0  # what the server may take to tell how a child has ended
_ORPHAN_SECONDS = 5.0  # what a child may live on after its time limit, if nobody is there to end it


class Ending(NamedTuple):
    """How a child has ended.

    `status` is as of `subprocess`, None where nobody knows; `closed` says that it was ended by `close`.
    """

    status: int | None
    closed: bool


class Aside:
    """A child that waits for one declaration, builds its plugin table, and tells what is wrong with it.

    Whatever the imported code does, it does there: it may end the process, hang or crash. What it has
    started ends with it. `talk` and `fate` are our ends of the child's sockets.
    """

    def __init__(self, talk: socket.socket, fate: socket.socket) -> None:
        self._talk = talk
        self._fate = fate
        self._closed = False

    def ask(self, declaration: bytes, told: Callable[[bytes], bool], *, limit: float) -> Ending:
        """Give it the declaration and pass on its reports, until `told` says that it was the last; blocks.

        `limit` (seconds) is what the child gives itself where nobody is left to `close` it. When this
        returns, nothing of the child is left.
        """
        with self._talk, self._fate:
            with suppress(OSError):  # it is gone, or nobody wants it any longer
                self._talk.sendall(b"%f\n" % (limit + _ORPHAN_SECONDS))
                self._talk.sendall(declaration)
                self._talk.shutdown(socket.SHUT_WR)
            said = self._listen(told)
            return self._end(_LAST_WORDS_SECONDS if not said else 0.0)

    def close(self) -> None:
        """End the child and everything it has started; from any thread, twice is harmless."""
        self._closed = True
        for each in (self._fate, self._talk):
            with suppress(OSError):  # over already
                each.shutdown(socket.SHUT_WR if each is self._fate else socket.SHUT_RDWR)

    def _listen(self, told: Callable[[bytes], bool]) -> bool:
        """Whether the last report has come."""
        with suppress(OSError), self._talk.makefile("rb") as reports:
            return any(told(line) for line in reports)
        return False

    def _end(self, patience: float) -> Ending:
        """How it ends: by itself within `patience` seconds, or else because it has to."""
        status = self._status(patience) if patience else None
        if status is None:
            with suppress(OSError):
                self._fate.shutdown(socket.SHUT_WR)
            status = self._status(_SERVER_SECONDS)
        if status is None:
            return Ending(None, self._closed)
        code, unwanted = STATUS.unpack(status)
        return Ending(code, unwanted and self._closed)

    def _status(self, patience: float) -> bytes | None:
        self._fate.settimeout(patience)
        with suppress(OSError):
            status = self._fate.recv(STATUS.size, socket.MSG_WAITALL)
            return status if len(status) == STATUS.size else None
        return None
