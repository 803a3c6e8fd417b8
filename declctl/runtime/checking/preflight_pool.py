"""The child processes of pre-flights, forked from a server process that has loaded declctl.

The server is started with this process, and when a changed file is first seen: it loads while the files
settle. It stays while edits follow each other, and is ended after a while without edits. A child does one
pre-flight. This module imports nothing heavy, so that the server can be started before everything else is
loaded.
"""

import asyncio
import json
import os
import signal
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
from declctl.runtime.checking.fork_server import NEW, STACK_SIGNAL, STATUS, blocking

# The longest wait for a child to begin: its server may have to load declctl, on a busy machine.
_BEGIN_SECONDS = 30.0
_STACK_SECONDS = 2.0  # the longest wait for a child to write its stack
_MUCH = 1 << 20  # bytes read at once
EXIT_SECONDS = 1.0  # the longest time between a child's last report and its exit
_SERVER_SECONDS = 10.0  # the longest wait for the exit status of a child that was killed
ORPHAN_SECONDS = 5.0  # a child without a controller ends itself so long after its time limit
MODULE = "declctl.runtime.checking.fork_server"
"""The module that the server process runs."""
_LINGER_SECONDS = 60.0  # the server is ended after one to two times this without edits
# For the server to end itself and all processes of imports: milliseconds, unless the machine is busy.
_END_SECONDS = 10.0


class Ending(NamedTuple):
    """The end of a child."""

    status: int | None  # as in `subprocess`; None if it is not known
    closed: bool  # `close` has ended it
    memory: int = 0  # bytes that it might take, if it was ended because it took more


class PreflightProcess:
    """A child that imports the code of one declaration and reports the faults.

    The imported code may end the child, hang or crash. Processes that it has started end with the child.
    `talk` and `fate` are the parent's ends of the child's sockets (`fork_server`).
    """

    def __init__(self, talk: socket.socket, fate: socket.socket) -> None:
        self._talk = talk  # the declaration goes out, reports come back
        self._fate = fate  # shut down to end the child; its status comes back
        self._reports = b""  # all it has reported, written by the thread of `ask`
        self._closed = False  # set by any thread, never reset

    def ask(self, declaration: bytes, *, limit: float) -> tuple[Sequence[bytes], Ending]:
        """Send the declaration; return the child's reports, a line each, and its end. Blocks.

        The limit is for the import: it begins with the first report. After `limit` seconds the child is
        closed; then the stack of the import follows the reports, as `faulthandler` writes it. When this
        returns, the child and its processes are gone.
        """
        with self._talk, self._fate:
            with suppress(OSError):  # the child is gone, or was closed
                self._talk.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(_BEGIN_SECONDS))
                self._talk.sendall(b"%f\n" % (limit + ORPHAN_SECONDS))
                self._talk.sendall(declaration)
                self._talk.shutdown(socket.SHUT_WR)
            if not (self._has_begun() and self._is_over(time.monotonic() + limit)):
                self._read_stack()
                self.close()
            return self._reports.splitlines(), self._end()

    def close(self) -> None:
        """End the child and its processes. From any thread; a second call has no effect."""
        self._closed = True
        for each, how in ((self._fate, socket.SHUT_WR), (self._talk, socket.SHUT_RDWR)):
            with suppress(OSError):  # closed before
                each.shutdown(how)

    def _read_stack(self) -> None:
        """Ask a late child for the stack of its import, and add it to the reports."""
        pid = self._pid()
        if pid is not None and not self._closed:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, STACK_SIGNAL)
            until = time.monotonic() + _STACK_SECONDS
            # A stack ends with the frame that began it, in the module that the child runs.
            while b"fork_server.py" not in self._reports and time.monotonic() < until:
                if self._is_over(min(until, time.monotonic() + 0.05)):
                    return

    def _has_begun(self) -> bool:
        """Wait for the first report; False if it does not come. True if the child is gone."""
        self._talk.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(_BEGIN_SECONDS))
        try:
            self._reports = self._talk.recv(_MUCH)
        except BlockingIOError:
            return False
        except OSError:
            pass  # it is gone, and has not read all of the declaration
        return True

    def _is_over(self, until: float) -> bool:
        """Read the reports until the child closes its end; False if it has not by `until`.

        Reads in one go: a wake-up for each line would delay events.
        """
        try:
            while (left := until - time.monotonic()) > 0:
                self._talk.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(left))
                part = self._talk.recv(_MUCH, socket.MSG_WAITALL)
                if not part:
                    return True
                self._reports += part
        except BlockingIOError:
            return False
        except OSError:
            return True  # it is gone, and has not read all of the declaration
        return False

    def _pid(self) -> int | None:
        first, begun, _ = self._reports.partition(b"\n")
        return json.loads(first)["pid"] if begun else None

    def _end(self) -> Ending:
        """Wait for the exit of the child; kill it if it does not exit soon."""
        status = self._status(EXIT_SECONDS)
        # The reports are complete and it is alive: exit functions or threads of the import keep it.
        if status is None:
            with suppress(OSError):
                self._fate.shutdown(socket.SHUT_WR)
            status = self._status(_SERVER_SECONDS)
        if status is None:
            return Ending(None, self._closed)
        code, end_requested, memory = STATUS.unpack(status)
        # A child without a declaration ends by itself when its socket is closed, perhaps before it is killed.
        return Ending(code, self._closed and (end_requested or not self._reports), memory)

    def _status(self, timeout: float) -> bytes | None:
        self._fate.settimeout(timeout)
        with suppress(OSError):
            status = self._fate.recv(STATUS.size)
            return status if len(status) == STATUS.size else None
        return None


def _blocking_pair() -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair()
    return blocking(one), blocking(other)


def timeval(seconds: float) -> bytes:
    """A struct timeval. At least a millisecond, as 0 means no timeout."""
    whole, part = divmod(seconds + 0.001, 1)
    return struct.pack("ll", int(whole), int(part * 1e6))


def _environment() -> object:
    return dict(os.environ)


class PreflightPool:
    """Starts children. `close` ends them and their server. Used by any thread.

    `inherited` returns the state that a child inherits, by default the environment. If it changes, a new
    server is started.
    """

    def __init__(self, inherited: Callable[[], object] = _environment) -> None:
        self._inherited = inherited
        self._server: ForkServerProcess | None = None  # written under the lock
        self._inherits: object = None  # the state that its children inherit, as of its start
        self._changing = threading.Lock()
        self._was_used = False  # since the last look of `linger`
        self._using = 0  # imports under way; written by the loop

    def warm(self) -> None:
        """Start the server if there is none: a child is needed soon.

        Does nothing if no process can be started: `begin` reports that.
        """
        with suppress(OSError), self._changing:
            self._renewed()

    def begin(self) -> PreflightProcess:
        """Start a child. Raises OSError if no process can be started."""
        with self._changing:
            try:
                return PreflightProcess(*self._renewed().fork())
            except ConnectionError:  # the server was killed just now
                self._end()
                return PreflightProcess(*self._renewed().fork())

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Keep `linger` from ending the server in this block. Used on one loop."""
        self._using += 1
        try:
            yield
        finally:
            self._using -= 1

    async def linger(self, clock: Clock) -> None:
        """End the server whenever it was not used for a while, until cancelled."""
        while True:
            await clock.pause(_LINGER_SECONDS)
            if not (self._was_used or self._using):
                try:
                    await asyncio.to_thread(self.close)
                except RuntimeError as error:  # no thread can be started now: the server stays
                    if not is_exhausted(error):
                        raise
            self._was_used = False

    def close(self) -> None:
        """End the server and all children. The next `begin` starts another server."""
        with self._changing:
            self._end()

    def _renewed(self) -> "ForkServerProcess":
        self._was_used = True
        # A fork has the environment of its server: after a change here, children would see the old one.
        server, inherited = self._server, self._inherited()
        if server is None or server.is_over or self._inherits != inherited:
            self._end()
            self._server = server = ForkServerProcess(MODULE, output=subprocess.DEVNULL)
            self._inherits = inherited
        return server

    def _end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()


class ForkServerProcess:
    """A process that forks others (`fork_server`). Raises OSError if it can't be started.

    It runs `module`, whose standard input is the other end of `control`. `output` is that of `subprocess`.
    """

    def __init__(self, module: str, *, output: int | None) -> None:
        self.control, theirs = _blocking_pair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    # -P: modules of the current folder must not shadow those of declctl.
                    [sys.executable, "-P", "-m", module],
                    stdin=theirs.fileno(),
                    stdout=output,
                    stderr=output,
                    process_group=0,
                )
        except OSError:
            self.control.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def fork(self) -> tuple[socket.socket, socket.socket]:
        """Start a child; returns its sockets `talk` and `fate`.

        Raises ConnectionError if the server has ended, OSError if there are no sockets.
        """
        (talk, their_talk), (fate, their_fate) = _blocking_pair(), _blocking_pair()
        try:
            with their_talk, their_fate:
                socket.send_fds(self.control, [NEW], [their_talk.fileno(), their_fate.fileno()])
        except OSError:
            talk.close()
            fate.close()
            raise
        return talk, fate

    def kill(self) -> None:
        """End the server and its process group at once. From any thread; no effect after its end was seen."""
        if self._process.returncode is None:  # so the id of its group is no other's
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the server and wait until it is gone."""
        with suppress(OSError), self.control:
            self.control.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
