"""The child's end of the socket: it asks questions, and reads their answers in the thread that waits."""

import itertools
import select
import socket
import threading
from concurrent.futures import Future
from typing import Any

import msgspec

from declctl.runtime.isolation.protocol import (
    CANCEL,
    LENGTH,
    MOST_BYTES,
    Answer,
    Ask,
    FromChild,
    FromParent,
    encoded,
    error_from,
)

_DECODER = msgspec.msgpack.Decoder(FromParent)


class Question(Future[Any]):
    """A question under way. The thread that waits for its result reads the socket meanwhile."""

    def __init__(self, channel: "ParentChannel", number: int) -> None:
        super().__init__()
        self._channel = channel
        self.number = number

    def result(self, timeout: float | None = None) -> Any:
        """The answer. On a loop, it is there already."""
        if not self.done():
            self._channel.read_until(self)
        return super().result(timeout)

    def cancel(self) -> bool:
        """Cancel what the parent does for it, too."""
        is_first = super().cancel()
        if is_first:
            self._channel.send(Ask(0, CANCEL, [self.number]))
        return is_first


class ParentChannel:
    """The child's end of the socket. From any thread, while a call runs."""

    def __init__(self, talk: socket.socket) -> None:
        self._talk = talk
        self._reading = threading.RLock()  # a thread reads whole messages
        self._sending = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Question] = {}
        self.is_open = False  # a call runs
        self.level = 0  # of the log, for this call

    def send(self, message: FromChild) -> None:
        """Send a message. Raises OSError if the parent is gone."""
        data = encoded(message)
        with self._sending:
            self._talk.sendall(data)

    def receive(self) -> FromParent:
        """The next message. Raises EOFError if the parent is gone."""
        size = LENGTH.unpack(self._exactly(LENGTH.size))[0]
        return _DECODER.decode(self._exactly(size))

    def ask(self, name: str, *given: Any) -> Any:
        """The answer to a question; raises what the parent has raised."""
        return self.begin(name, *given).result()

    def begin(self, name: str, *given: Any) -> Question:
        """Ask a question. Raises RuntimeError outside of a call."""
        if not self.is_open:
            raise RuntimeError("ctx is valid for the length of its call, and this call has ended")
        question = Question(self, next(self._numbers))
        self._waiting[question.number] = question
        self.send(Ask(question.number, name, list(given)))
        return question

    def read_until(self, question: Question) -> None:
        """Read messages until a question is answered."""
        while not question.done():
            with self._reading:
                if not question.done():
                    self.read_one()

    def read_ready(self) -> None:
        """Read one message, if there is one: another thread may have read it."""
        with self._reading:
            if select.select([self._talk], [], [], 0)[0]:
                self.read_one()

    def read_one(self) -> None:
        """Read one message, and hand an answer to its question."""
        with self._reading:
            message = self.receive()
        if not isinstance(message, Answer):
            return
        question = self._waiting.pop(message.number, None)
        if question is None or not question.set_running_or_notify_cancel():
            return
        if message.failure is None:
            question.set_result(message.value)
        else:
            question.set_exception(error_from(message.failure))

    def end_call(self) -> None:
        """Forget the questions of the call that has ended."""
        self.is_open = False
        for question in tuple(self._waiting.values()):
            Future.cancel(question)
        self._waiting.clear()

    def fileno(self) -> int:
        """That of the socket."""
        return self._talk.fileno()

    def _exactly(self, size: int) -> bytes:
        if size > MOST_BYTES:
            raise EOFError
        data = self._talk.recv(size, socket.MSG_WAITALL)
        while len(data) < size:
            more = self._talk.recv(size - len(data), socket.MSG_WAITALL)
            if not more:
                raise EOFError
            data += more
        return data
