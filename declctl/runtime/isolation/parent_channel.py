"""The child's end of the socket: one thread reads it, and hands each message to whom it is for.

Every question belongs to a call. After the end of its call nothing is asked any more, whatever thread or task
has outlived it, and no answer reaches another call.
"""

import itertools
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

import msgspec

from declctl.runtime.isolation.protocol import (
    CANCEL,
    LENGTH,
    MOST_BYTES,
    Answer,
    Ask,
    Begin,
    Call,
    FromChild,
    FromParent,
    encoded,
    error_from,
)

T = TypeVar("T")
_DECODER = msgspec.msgpack.Decoder(FromParent)


class ParentChannel:
    """The child's end of the socket. From any thread."""

    def __init__(self, talk: socket.socket) -> None:
        self._talk = talk
        self._sending = threading.Lock()
        self.level = 0  # of the log, for this call
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._asked = threading.Lock()  # guards the fields below
        self._call: CallChannel | None = None  # that runs

    def begin(self) -> Begin:
        """Wait for the first message, and read the others in a thread from then on. Raises EOFError."""
        message = self._receive()
        assert isinstance(message, Begin)
        threading.Thread(target=self._read, name="declctl-channel", daemon=True).start()
        return message

    def next_call(self) -> Call | None:
        """Wait for a call; None if the parent is gone, or needs this child no more."""
        return self._calls.get()

    def send(self, message: FromChild) -> None:
        """Send a message. Raises OSError if the parent is gone."""
        data = encoded(message)
        with self._sending:
            self._talk.sendall(data)

    def open(self, number: int) -> "CallChannel":
        """The channel of a call that begins; `number` is its number in this process."""
        opened = CallChannel(self, number)
        with self._asked:
            self._call = opened
        return opened

    def close(self) -> None:
        """End the call: its questions are not answered any more."""
        with self._asked:
            ended, self._call = self._call, None
        if ended is not None:
            ended.end()

    @property
    def running(self) -> "CallChannel":
        """The channel of the call that runs. Raises RuntimeError between two calls."""
        call = self._call
        if call is None:
            raise RuntimeError("ctx is valid for the length of its call, and this call has ended")
        return call

    def tell(self, message: FromChild) -> None:
        """Send a message of the call that runs; without one, it is dropped."""
        if self._call is not None:
            self.send(message)

    def _read(self) -> None:
        try:
            while True:
                message = self._receive()
                if isinstance(message, Call):
                    self._calls.put(message)
                elif isinstance(message, Answer):
                    call = self._call
                    if call is not None:
                        call.answered(message)
        except (EOFError, OSError):
            self.close()
            self._calls.put(None)

    def _receive(self) -> Begin | Call | Answer:
        size = LENGTH.unpack(self._exactly(LENGTH.size))[0]
        return _DECODER.decode(self._exactly(size))

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


class CallChannel:
    """The questions of one call. From any thread; RuntimeError after its end."""

    def __init__(self, channel: ParentChannel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # guards the fields below
        self._waiting: dict[int, tuple[Future[Any], Callable[[Any], Any]]] = {}
        self._ended = False

    def ask(self, name: str, *given: Any) -> Any:
        """The answer to a question; raises what the parent has raised."""
        return self.begin(lambda answer: answer, name, *given).result()

    def begin(self, read: Callable[[Any], T], name: str, *given: Any) -> Future[T]:
        """Ask a question; `read` makes a value of the answer. A cancellation cancels what the parent does."""
        question: Future[T] = Future()
        with self._lock:
            if self._ended:
                raise RuntimeError("ctx is valid for the length of its call, and this call has ended")
            number = next(self._numbers)
            self._waiting[number] = question, read
        question.add_done_callback(lambda done: self._cancel(number) if done.cancelled() else None)
        self._channel.send(Ask(self._number, number, name, list(given)))
        return question

    def answered(self, answer: Answer) -> None:
        """Hand an answer to its question. In the thread that reads."""
        with self._lock:
            found = self._waiting.pop(answer.number, None)
        if answer.call != self._number or found is None or not found[0].set_running_or_notify_cancel():
            return
        question, read = found
        if answer.failure is not None:
            question.set_exception(error_from(answer.failure))
            return
        try:
            question.set_result(read(answer.value))
        except Exception as fault:  # noqa: BLE001 - raised where it is awaited
            question.set_exception(fault)

    def end(self) -> None:
        """Cancel the questions that are left, and refuse further ones."""
        with self._lock:
            self._ended = True
            left = [question for question, _ in self._waiting.values()]
            self._waiting.clear()
        for question in left:
            question.cancel()

    def _cancel(self, number: int) -> None:
        with self._lock:
            is_known = self._waiting.pop(number, None) is not None
        if is_known:
            self._channel.send(Ask(self._number, 0, CANCEL, [number]))
