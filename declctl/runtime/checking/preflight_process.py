"""The child process in which a bundle is imported first, as it is seen from here: asked once, and ended.

It imports nothing heavy, so that `children` can begin to load before all else is loaded.
"""

import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from declctl.runtime.checking.fork_server import STACK_SIGNAL, STATUS

_STACK_SECONDS = 2.0  # what a child may take to write it
_MUCH = 1 << 20  # bytes
_LAST_WORDS_SECONDS = 1.0  # between the end of a child's reports and its exit
_SERVER_SECONDS = 10.0  # what the server may take to tell how a child has ended
_ORPHAN_SECONDS = 5.0  # what a child may live on after its time limit, if nobody is there to end it


class Ending(NamedTuple):
    """How a child has ended.

    `status` is as of `subprocess`, None where nobody knows. `closed` says that it was ended by `close`.
    """

    status: int | None
    closed: bool


class PreflightProcess:
    """A child that waits for one declaration, builds its plugin table, and tells what is wrong with it.

    Whatever the imported code does, it does there: it may end the process, hang or crash. What it has
    started ends with it. `talk` and `fate` are our ends of the child's sockets.
    """

    def __init__(self, talk: socket.socket, fate: socket.socket) -> None:
        self._talk = talk
        self._fate = fate
        self._said = b""
        self._closed = False

    def ask(self, declaration: bytes, *, limit: float) -> tuple[Sequence[bytes], Ending]:
        """Give it the declaration; returns its reports, a line each, and how it has ended. Blocks.

        After `limit` seconds it is closed; then the stack of the import follows the reports, as
        `faulthandler` writes it. When this returns, nothing of the child is left.
        """
        began = time.monotonic()
        with self._talk, self._fate:
            with suppress(OSError):  # it is gone, or nobody wants it any longer
                self._talk.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(limit))
                self._talk.sendall(b"%f\n" % (limit + _ORPHAN_SECONDS))
                self._talk.sendall(declaration)
                self._talk.shutdown(socket.SHUT_WR)
            if not self._is_over(began + limit):
                self._hear_stack()
                self.close()
            return self._said.splitlines(), self._end()

    def close(self) -> None:
        """End the child and everything it has started; from any thread, twice is harmless."""
        self._closed = True
        for each, how in ((self._fate, socket.SHUT_WR), (self._talk, socket.SHUT_RDWR)):
            with suppress(OSError):  # over already
                each.shutdown(how)

    def _hear_stack(self) -> None:
        """The child is late: add the stack of its import to what it has said."""
        pid = self._pid()
        if pid is not None and not self._closed:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, STACK_SIGNAL)
            until = time.monotonic() + _STACK_SECONDS
            # A stack ends with the frame that began it, in the module that the child runs.
            while b"fork_server.py" not in self._said and time.monotonic() < until:
                if self._is_over(min(until, time.monotonic() + 0.05)):
                    return

    def _is_over(self, until: float) -> bool:
        """Hear it in one go, to be woken for each line would keep events waiting; False if it goes on."""
        try:
            while (left := until - time.monotonic()) > 0:
                self._talk.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(left))
                part = self._talk.recv(_MUCH, socket.MSG_WAITALL)
                if not part:
                    return True
                self._said += part
        except BlockingIOError:
            return False
        except OSError:
            return True  # it is gone, and left unread what it was told
        return False

    def _pid(self) -> int | None:
        first, begun, _ = self._said.partition(b"\n")
        return json.loads(first)["pid"] if begun else None

    def _end(self) -> Ending:
        """How it ends: by itself soon, or else because it has to."""
        status = self._status(_LAST_WORDS_SECONDS)
        if status is None:
            with suppress(OSError):
                self._fate.shutdown(socket.SHUT_WR)
            status = self._status(_SERVER_SECONDS)
        if status is None:
            return Ending(None, self._closed)
        code, unwanted = STATUS.unpack(status)
        # One that had not begun may have ended before it was ended: it sees that it is not wanted.
        return Ending(code, self._closed and (unwanted or not self._said))

    def _status(self, patience: float) -> bytes | None:
        self._fate.settimeout(patience)
        with suppress(OSError):
            status = self._fate.recv(STATUS.size)
            return status if len(status) == STATUS.size else None
        return None


def _timeval(seconds: float) -> bytes:
    """As the system takes it; nothing would be for ever."""
    whole, part = divmod(seconds + 0.001, 1)
    return struct.pack("ll", int(whole), int(part * 1e6))
