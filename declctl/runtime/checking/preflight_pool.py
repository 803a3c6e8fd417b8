"""The children that pre-flights are made in: forked from a process that has loaded what they need.

That process begins when this one does, and when a changed file is first seen: it loads while the files
settle. It stays while edits come one after the other, and is ended when none has come for a while. A child is
asked once, and ended. This module imports nothing heavy, so that the children can begin to load before all
else is loaded.
"""

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from declctl.kit.clock import Clock
from declctl.kit.files import is_exhausted
from declctl.runtime.checking.fork_server import NEW, STACK_SIGNAL, STATUS

_STACK_SECONDS = 2.0  # what a child may take to write it
_MUCH = 1 << 20  # bytes
LAST_WORDS_SECONDS = 1.0  # between the end of a child's reports and its exit
_SERVER_SECONDS = 10.0  # what the server may take to tell how a child has ended
ORPHAN_SECONDS = 5.0  # what a child may live on after its time limit, if nobody is there to end it
_MODULE = "declctl.runtime.checking.fork_server"
_LINGER_SECONDS = 60.0  # what it waits for another edit, twice this at most
# For the server to end itself and all that imports have started: milliseconds, unless the machine is busy.
_END_SECONDS = 10.0


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
        self._talk = talk  # the declaration goes out, reports come back
        self._fate = fate  # shut down to end the child; its status comes back
        self._said = b""  # all it has reported, written by the thread of `ask`
        self._closed = False  # set by any thread, never reset

    def ask(self, declaration: bytes, *, limit: float) -> tuple[Sequence[bytes], Ending]:
        """Give it the declaration; returns its reports, a line each, and how it has ended. Blocks.

        After `limit` seconds it is closed; then the stack of the import follows the reports, as
        `faulthandler` writes it. When this returns, nothing of the child is left.
        """
        began = time.monotonic()
        with self._talk, self._fate:
            with suppress(OSError):  # it is gone, or nobody wants it any longer
                self._talk.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(limit))
                self._talk.sendall(b"%f\n" % (limit + ORPHAN_SECONDS))
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
        status = self._status(LAST_WORDS_SECONDS)
        # Its reports are over, and it lives: exit functions or threads of the import keep it.
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


def _environment() -> object:
    return dict(os.environ)


class PreflightPool:
    """Begins children, from any thread. `close` ends them, and the process that they come from.

    `inherited` gives what a child inherits. Where it gives another value than before, a new process is begun.
    """

    def __init__(self, inherited: Callable[[], object] = _environment) -> None:
        self._inherited = inherited
        self._server: _Server | None = None  # replaced under the lock
        self._changing = threading.Lock()
        self._wanted = False  # since `linger` has looked last
        self._using = 0  # imports under way; written by the loop

    def warm(self) -> None:
        """Let there be a process to fork from: a child is wanted soon.

        Where no process can be started there is none: whoever needs a child finds out, and says so.
        """
        with suppress(OSError), self._changing:
            self._renewed()

    def begin(self) -> PreflightProcess:
        """A child of its own. Raises OSError if no process can be started."""
        with self._changing:
            try:
                return self._renewed().fork()
            except ConnectionError:  # it was killed this moment
                self._end()
                return self._renewed().fork()

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Meanwhile nothing is ended because nobody has wanted it for a while. Used on one loop."""
        self._using += 1
        try:
            yield
        finally:
            self._using -= 1

    async def linger(self, clock: Clock) -> None:
        """End the process that nobody has wanted for a while, again and again until cancelled."""
        while True:
            await clock.sleep(_LINGER_SECONDS)
            if not (self._wanted or self._using):
                try:
                    await asyncio.to_thread(self.close)
                except RuntimeError as error:  # no thread can be started now: it stays for another while
                    if not is_exhausted(error):
                        raise
            self._wanted = False

    def close(self) -> None:
        """End the process and all its children; they can be begun again."""
        with self._changing:
            self._end()

    def _renewed(self) -> "_Server":
        self._wanted = True
        # A fork has the environment of its parent: after a change of ours, children would see the old one.
        server, inherited = self._server, self._inherited()
        if server is None or server.is_over or server.inherited != inherited:
            self._end()
            self._server = server = _Server(inherited)
        return server

    def _end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()


class _Server:
    """The process. Raises OSError if it can't be started."""

    def __init__(self, inherited: object) -> None:
        self.inherited = inherited  # what its children inherit, as it was when the process began
        self._control, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    # -P: modules of the current folder are the bundle's business.
                    [sys.executable, "-P", "-m", _MODULE],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    process_group=0,
                )
        except OSError:
            self._control.close()
            raise

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def fork(self) -> PreflightProcess:
        """Another child. Raises ConnectionError if the process has ended, OSError if there are no sockets."""
        (talk, their_talk), (fate, their_fate) = socket.socketpair(), socket.socketpair()
        try:
            with their_talk, their_fate:
                socket.send_fds(self._control, [NEW], [their_talk.fileno(), their_fate.fileno()])
        except OSError:
            talk.close()
            fate.close()
            raise
        return PreflightProcess(talk, fate)

    def close(self) -> None:
        """End it; returns when it is gone."""
        with suppress(OSError), self._control:
            self._control.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
