"""The child process in which a bundle is imported first, as it is seen from here: asked once, and ended.

It imports nothing heavy, so that `children` can begin to load before all else is loaded.
"""

import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from declctl.runtime.checking.fork_server import STACK_SIGNAL, STATUS

_STACK_SECONDS = 2.0  # what a patient child may take to write it
_MUCH = 1 << 20  # bytes
_LOOK_SECONDS = 0.5  # between two looks whether a patient child gets on
_LAST_WORDS_SECONDS = 1.0  # between the end of a child's reports and its exit
_SERVER_SECONDS = 10.0  # what the server may take to tell how a child has ended
_ORPHAN_SECONDS = 5.0  # what a child may live on after its time limit, if nobody is there to end it


class Ending(NamedTuple):
    """How a child has ended.

    `status` is as of `subprocess`, None where nobody knows. `closed` says that it was ended by `close`,
    and `starved` that this was because others had the processors.
    """

    status: int | None
    closed: bool
    starved: bool = False


class Aside:
    """A child that waits for one declaration, builds its plugin table, and tells what is wrong with it.

    Whatever the imported code does, it does there: it may end the process, hang or crash. What it has
    started ends with it. `talk` and `fate` are our ends of the child's sockets. A `patient` one only runs
    where nobody else wants to, and is closed where that is hardly ever; `can_begin` says whether the process
    that it comes from is ready.
    """

    def __init__(
        self,
        talk: socket.socket,
        fate: socket.socket,
        *,
        patient: bool,
        can_begin: Callable[[], bool],
    ) -> None:
        self._can_begin = can_begin
        self._talk = talk
        self._fate = fate
        self._patient = patient
        self._said = b""
        self._starved = False
        self._closed = False

    def ask(self, declaration: bytes, *, limit: float) -> tuple[Sequence[bytes], Ending]:
        """Give it the declaration; returns its reports, a line each, and how it has ended. Blocks.

        After `limit` seconds it is closed; then the stack of the import follows the reports, as
        `faulthandler` writes it. When this returns, nothing of the child is left, but
        for one that starved, which dies as soon as it gets a processor.
        """
        began = time.monotonic()
        with self._talk, self._fate:
            with suppress(OSError):  # it is gone, or nobody wants it any longer
                self._talk.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(limit))
                self._talk.sendall(b"%f\n" % (limit + _ORPHAN_SECONDS))
                self._talk.sendall(declaration)
                self._talk.shutdown(socket.SHUT_WR)
            self._hear(began, limit)
            return self._said.splitlines(), self._end()

    def close(self) -> None:
        """End the child and everything it has started; from any thread, twice is harmless."""
        self._closed = True
        for each, how in ((self._fate, socket.SHUT_WR), (self._talk, socket.SHUT_RDWR)):
            with suppress(OSError):  # over already
                each.shutdown(how)

    def _hear(self, began: float, limit: float) -> None:
        """All that it says until its end, or until it is closed."""
        end, may_have_begun = began + limit, False
        while (now := time.monotonic()) < end:
            if self._is_over(min(now + _LOOK_SECONDS, end)):
                return
            if self._patient:
                pid = self._pid()
                self._starved = may_have_begun if pid is None else _is_starved(pid)
                may_have_begun = self._can_begin()
            if self._starved:
                break
        else:
            self._hear_stack()
        self._starved = self._starved or (self._patient and self._pid() is None)
        self.close()

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
        if self._starved:
            return self._given_way()
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

    def _given_way(self) -> Ending:
        """Ended from here: the process that it comes from is as starved as it is, and would take seconds.

        If it begins only now, it ends as it can't tell anybody.
        """
        if (pid := self._pid()) is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        return Ending(None, closed=True, starved=True)

    def _status(self, patience: float) -> bytes | None:
        self._fate.settimeout(patience)
        with suppress(OSError):
            status = self._fate.recv(STATUS.size)
            return status if len(status) == STATUS.size else None
        return None


def _is_starved(pid: int) -> bool:
    """Whether a process has waited for a processor longer than it had one, if the system tells."""
    try:
        ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except OSError:
        return False
    return int(waited) / 1e9 > max(_LOOK_SECONDS / 2, int(ran) / 1e9)


def _timeval(seconds: float) -> bytes:
    """As the system takes it; nothing would be for ever."""
    whole, part = divmod(seconds + 0.001, 1)
    return struct.pack("ll", int(whole), int(part * 1e6))
