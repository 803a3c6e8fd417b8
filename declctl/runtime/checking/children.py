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
from pathlib import Path

from declctl.kit.clock import Clock
from declctl.runtime.checking.aside import Aside
from declctl.runtime.checking.fork_server import LOADED, NEW, PATIENT

_MODULE = "declctl.runtime.checking.fork_server"
_LINGER_SECONDS = 60.0  # what it waits for another edit, twice this at most
_BUSY_PERCENT = 70.0  # of the time; events and edits alone are below 30
_END_SECONDS = 2.0  # what it takes to end by itself


def _environment() -> object:
    return dict(os.environ)


class Children:
    """Begins children, from any thread. `close` ends them, and the process that they come from.

    `inherited` gives what a child inherits. Where it gives another value than before, a new process is begun.
    Without `patience` no child is a patient one.
    """

    def __init__(self, inherited: Callable[[], object] = _environment, *, patience: bool = True) -> None:
        self._inherited = inherited
        self._patience = patience
        self._server: _Server | None = None
        self._killed: list[_Server] = []
        self._changing = threading.Lock()
        self._wanted = False  # since `linger` has looked last
        self._using = 0

    def warm(self) -> None:
        """Let there be a process to fork from: a child is wanted soon.

        Where no process can be started there is none: whoever needs a child finds out, and says so.
        """
        with suppress(OSError), self._changing:
            self._renewed(patient=True)

    def begin(self, *, patient: bool) -> Aside:
        """A child of its own; a `patient` one only runs where nobody else wants to, unless that is never.

        Raises OSError if no process can be started.
        """
        with self._changing:
            try:
                return self._renewed(patient=patient).fork()
            except ConnectionError:  # it was killed this moment
                self._end()
                return self._renewed(patient=patient).fork()

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
                await asyncio.to_thread(self.close)
            self._wanted = False

    def close(self) -> None:
        """End the process and all its children; they can be begun again."""
        with self._changing:
            self._end()
            while self._killed:
                self._killed.pop().close()

    def _renewed(self, *, patient: bool) -> "_Server":
        self._wanted = True
        patient = patient and self._patience and not _is_busy()
        server = self._server
        for each in [each for each in self._killed if each.is_over]:
            self._killed.remove(each)
            each.close()
        if server is not None and server.is_patient and not patient:
            server.kill()  # too patient to end soon
            self._killed.append(server)
            self._server = server = None
        inherited = self._inherited()
        if server is None or server.is_over or server.inherited != inherited:
            self._end()
            self._server = server = _Server(patient=patient, inherited=inherited)
        return server

    def _end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()


def _is_busy() -> bool:
    """Whether somebody has waited for a processor nearly always for ten seconds, if the system tells."""
    try:
        some, _, _ = Path("/proc/pressure/cpu").read_text().partition("\n")
    except OSError:
        return False
    return float(some.partition("avg10=")[2].partition(" ")[0]) > _BUSY_PERCENT


class _Server:
    """The process. Raises OSError if it can't be started."""

    def __init__(self, *, patient: bool, inherited: object) -> None:
        self.is_patient = patient
        self.inherited = inherited  # what its children inherit, as it was when the process began
        self._loaded = False
        self._control, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    # -P: modules of the current folder are the bundle's business.
                    [sys.executable, "-P", "-m", _MODULE, *([PATIENT] if patient else [])],
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

    def has_loaded(self) -> bool:
        """Whether it is ready to fork."""
        if not self._loaded:
            with suppress(OSError):
                self._loaded = self._control.recv(len(LOADED), socket.MSG_DONTWAIT) == LOADED
        return self._loaded

    def fork(self) -> Aside:
        """Another child. Raises ConnectionError if the process has ended, OSError if there are no sockets."""
        (talk, their_talk), (fate, their_fate) = socket.socketpair(), socket.socketpair()
        try:
            with their_talk, their_fate:
                socket.send_fds(self._control, [NEW], [their_talk.fileno(), their_fate.fileno()])
        except OSError:
            talk.close()
            fate.close()
            raise
        return Aside(talk, fate, patient=self.is_patient, can_begin=self.has_loaded)

    def kill(self) -> None:
        """End it without a word, as soon as it can; `close` waits for that."""
        self._process.kill()

    def close(self) -> None:
        """End it; returns when it is gone."""
        with suppress(OSError), self._control:
            self._control.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
