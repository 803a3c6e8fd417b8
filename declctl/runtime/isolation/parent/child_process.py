"""One child, in the parent: its socket, its messages, and its end."""

import os
import re
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from declctl.runtime.checking.fork_server import STACK_SIGNAL, STATUS
from declctl.runtime.checking.preflight_pool import timeval
from declctl.runtime.handling.binding import ChildStatistics
from declctl.runtime.isolation.protocol import (
    Answer,
    Begin,
    Call,
    Done,
    FromChild,
    MessageReader,
    Raised,
    Ready,
    encoded,
    failure_of,
)

_READ = 1 << 16  # bytes read at once
READY_SECONDS = 30.0  # for a child to be there, on a busy machine
_EXIT_SECONDS = 1.0  # between the end of its connection and its exit
_STATUS_SECONDS = 5.0  # for the exit status of a child that is gone
_STACK_SECONDS = 0.1  # for a child to write its stack
_MOST_STACK = 1 << 20  # bytes that are read for it, of a child that sends others, too
_LOOK_SECONDS = 0.25  # between two looks at the memory of a child that is called
_PAGE = os.sysconf("SC_PAGESIZE")
_CRASH = b"Fatal Python error"  # with which `faulthandler` begins, in the place of a message
_FRAME = re.compile(r'  File "(.*)", line (\d+) in ')
_LIBRARY = str(Path(os.__file__).parent)
_HOST = str(Path(__file__).parents[2])


class ProcessLost(Exception):
    """A call has ended without a result, as its process is gone. The message has the cause."""


class ChildProcess:
    """A child process. One thread at a time calls it; `kill` is for any thread."""

    def __init__(self, talk: socket.socket, fate: socket.socket, *, parent: int) -> None:
        self._talk = talk
        self._parent = parent  # the process that has forked it
        self._fate = fate  # shut down to kill the child; its status comes back
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._messages = MessageReader(FromChild)
        self._answers = deque[tuple[int, int, Future[Any]]]()  # of call and question; done, and not sent
        self._unanswered = 0  # questions of the present call whose answers come later
        self._longest_wait: float | None = None  # seconds of a read that blocks, as the socket has it
        self._next_look = 0.0  # monotonic seconds, at the memory
        self._memory: int | None = None  # descriptor of its statm
        self._process: int | None = None  # descriptor of the process (pidfd), for signals
        self._at_end = False  # of the connection
        self._lock = threading.Lock()  # guards the descriptors against their close
        self._closed = False
        self.killed = ""  # why, in words
        self.is_too_large = False  # it was killed for the memory that it took
        self.key = ""  # of the present call, or of the last one
        self.has_call = False  # a byte of the present call was sent to it
        self.pid = 0
        self.calls = 0
        self.started = time.monotonic()

    def begin(self, begin: Begin, until: float | None) -> None:
        """Tell the child its handler, and wait until it is there. Raises as `send` does."""
        ready = time.monotonic() + READY_SECONDS
        limit = ready if until is None else min(ready, until)
        try:
            self.send(encoded(begin), limit)
            message = self.receive(limit)
        except TimeoutError:
            if limit == until:
                raise
            raise ProcessLost(f"it was not ready within {READY_SECONDS:g} s") from None
        if not isinstance(message, Ready):
            raise ProcessLost("its process does not answer as a child of declctl does")
        self.pid = message.pid
        # Descriptors, as a number may be that of another process by the time that it is used. It is the
        # child's own word: code that was imported may have changed what it says.
        with suppress(OSError, AttributeError):  # there is no pidfd, or no /proc
            self._process = os.pidfd_open(self.pid)
            self._memory = os.open(f"/proc/{self.pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
            if int(stat.rpartition(b")")[2].split()[1]) == self._parent:
                return
        self._forget_process()

    def begin_call(self, call: Call, until: float | None) -> None:
        """Send the next call. Raises as `send` does; without `has_call`, the child knows nothing of it."""
        self.has_call, self._unanswered = False, 0
        self.send(encoded(call), until)

    def resident_bytes(self) -> int:
        """Its resident memory, shared pages included; 0 if it is not known. From any thread."""
        with self._lock, suppress(OSError, ValueError, IndexError):
            if self._memory is not None:
                return int(os.pread(self._memory, 128, 0).split()[1]) * _PAGE
        return 0

    def kill(self, why: str) -> None:
        """End the process, and with it the call that it makes. From any thread."""
        with self._lock:
            if self._closed:
                return
            self.killed = self.killed or why
            for each, how in ((self._fate, socket.SHUT_WR), (self._talk, socket.SHUT_RDWR)):
                with suppress(OSError):
                    each.shutdown(how)  # the second one wakes the thread that reads

    def send(self, data: bytes, until: float | None) -> None:
        """Send bytes. Raises ProcessLost, and TimeoutError at the monotonic time `until`.

        Reads meanwhile: a child that waits until its own message is read would never read this one.
        """
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._talk.send(rest, socket.MSG_DONTWAIT) :]
                self.has_call = True
            except BlockingIOError:
                self._wait(until, sends=True)
            except OSError:
                self._at_end = True
                raise ProcessLost from None

    def receive(self, until: float | None, look: Callable[[], None] | None = None) -> Any:
        """The next message of the child. Sends answers meanwhile. Raises as `send` does.

        `look` is called now and then, whatever comes.
        """
        while True:
            while self._answers:
                call, number, found = self._answers.popleft()
                if call == self.calls:
                    self._unanswered -= 1
                    self._answer(number, found, until)
            if look is not None and time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + _LOOK_SECONDS
                look()
            message = self._next_message()
            if message is not None:
                # Also of a child that talks without end.
                if until is not None and time.monotonic() >= until and not isinstance(message, Done | Raised):
                    raise TimeoutError
                return message
            self._wait(until, seconds=None if look is None else _LOOK_SECONDS)

    def _wait(self, until: float | None, *, seconds: float | None = None, sends: bool = False) -> None:
        """Wait until the child can be read, or written to, or for `seconds`; read what is there.

        Raises as `send` does.
        """
        if until is not None:
            left = max(0.0, until - time.monotonic())
            seconds = left if seconds is None else min(left, seconds)
        flags = 0
        if sends or self._unanswered:
            poll = select.poll()
            poll.register(self._talk, select.POLLIN | (select.POLLOUT if sends else 0))
            poll.register(self._woken, select.POLLIN)
            poll.poll(None if seconds is None else seconds * 1000)
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)
            flags = socket.MSG_DONTWAIT
        elif seconds != self._longest_wait:
            # A read that blocks is one system call: each of them gives the interpreter to another thread.
            self._longest_wait = seconds
            limit = bytes(16) if seconds is None else timeval(seconds)
            self._talk.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        try:
            part = self._talk.recv(_READ, flags)
        except BlockingIOError:
            if until is not None and time.monotonic() >= until:
                raise TimeoutError from None
            return
        except OSError:
            part = b""
        self._messages.buffer += part
        self._at_end = not part
        if self.killed or not part:
            raise ProcessLost

    def answer(self, number: int, found: Future[Any], until: float | None) -> None:
        """Answer a question of the present call, now or when the answer is there. Raises as `send` does."""
        if found.done():
            self._answer(number, found, until)
            return
        call = self.calls
        self._unanswered += 1

        def done(_: Future[Any]) -> None:
            with self._lock:
                if not self._closed:
                    self._answers.append((call, number, found))
                    with suppress(OSError):  # it is full: the reader is awake
                        os.write(self._wake, b"+")

        found.add_done_callback(done)

    def _answer(self, number: int, found: Future[Any], until: float | None) -> None:
        try:
            data = encoded(Answer(self.calls, number, found.result()))
        except Exception as error:  # noqa: BLE001 - the child raises it
            data = encoded(Answer(self.calls, number, None, failure_of(error, most=3)))
        self.send(data, until)

    def ask_stack(self) -> None:
        """Ask it for the line of user code at which it is, for `place`.

        Its stack comes amid its messages: after this, the child can only be closed.
        """
        if self._process is None:
            return
        found = self._messages.buffer
        found.clear()
        with suppress(OSError, ProcessLost):  # it has ended, or is silent
            signal.pidfd_send_signal(self._process, STACK_SIGNAL)
            until = time.monotonic() + _STACK_SECONDS
            while b" in serve\n" not in found and len(found) < _MOST_STACK and time.monotonic() < until:
                self._wait(until)

    @property
    def place(self) -> str:
        """The innermost line of user code in a stack that it has sent, such as `handlers.py:7`; or empty."""
        frames = _FRAME.findall(self._messages.buffer.decode("utf-8", "replace"))
        others = (_HOST, _LIBRARY, "<frozen")
        user = [f"{file}:{line}" for file, line in frames if not file.startswith(others)]
        own = [each for each in user if "/site-packages/" not in each]  # the files of the handler say most
        return next(iter((*own, *user)), "")

    def statistics(self) -> ChildStatistics:
        """The figures of this moment. From any thread."""
        seconds = time.monotonic() - self.started
        return ChildStatistics(self.pid, self.resident_bytes(), self.calls, round(seconds, 3))

    def close(self) -> tuple[str, str]:
        """End it, unless it has ended; returns how it has ended: in one word, and as a part of a sentence."""
        status = self._status(_EXIT_SECONDS) if self._at_end and not self.killed else b""
        with self._lock:
            self._closed = True
            with suppress(OSError):
                self._fate.shutdown(socket.SHUT_WR)
            os.close(self._woken)
            os.close(self._wake)
            self._forget_process()
        status = status or self._status(_STATUS_SECONDS)
        self._fate.close()
        self._talk.close()
        if self.killed:
            return "Killed", self.killed
        if not status:
            return "Unknown", "its end is not known"
        code, end_requested, _ = STATUS.unpack(status)
        if end_requested:
            return "Protocol", "it has closed its connection"
        if code >= 0:
            return "Exit", f"exit status {code}"
        with suppress(ValueError):
            return "Signal", signal.Signals(-code).name
        return "Signal", f"signal {-code}"

    def _forget_process(self) -> None:
        for each in (self._process, self._memory):
            if each is not None:
                os.close(each)
        self._process = self._memory = None

    def _status(self, seconds: float) -> bytes:
        """Its exit status, as it is sent; empty if it does not come."""
        self._fate.settimeout(seconds)
        with suppress(OSError):
            found = self._fate.recv(STATUS.size)
            return found if len(found) == STATUS.size else b""
        return b""

    def _next_message(self) -> Any:
        """The next message, or None if it is not there yet. Raises ProcessLost for bytes that are none."""
        try:
            return self._messages.next()
        except ValueError as fault:
            if self._messages.buffer.startswith(_CRASH):
                return None  # the stack of a crash: the end of the connection follows
            raise ProcessLost(f"its process has sent what is no message of declctl: {fault}") from None
