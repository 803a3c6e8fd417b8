"""The children that pre-flights are made in: forked from a process that has loaded what they need.

That process begins when this one does, and when a changed file is first seen: it loads while the files
settle. It stays while edits come one after the other, and is ended when none has come for a while.
"""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from declctl.kit.clock import Clock
from declctl.kit.files import is_exhausted
from declctl.runtime.checking.fork_server import NEW
from declctl.runtime.checking.preflight_process import PreflightProcess

_MODULE = "declctl.runtime.checking.fork_server"
_LINGER_SECONDS = 60.0  # what it waits for another edit, twice this at most
_END_SECONDS = (
    10.0  # to end by itself, and with it all that imports have started; milliseconds but on a busy machine
)


def _environment() -> object:
    return dict(os.environ)


class PreflightPool:
    """Begins children, from any thread. `close` ends them, and the process that they come from.

    `inherited` gives what a child inherits. Where it gives another value than before, a new process is begun.
    """

    def __init__(self, inherited: Callable[[], object] = _environment) -> None:
        self._inherited = inherited
        self._server: _Server | None = None
        self._changing = threading.Lock()
        self._wanted = False  # since `linger` has looked last
        self._using = 0

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
