"""The child's end of the socket: whoever waits for an answer reads it, one thread at a time.

Every question belongs to a call. After the end of its call nothing is asked any more, whatever thread or task
has outlived it, and no answer reaches another call.
"""

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from declctl.kit import LoopCalls, running_loop
from declctl.kit.callbacks import CodeLine
from declctl.runtime.handling.context import Forgotten, WriteFuture
from declctl.runtime.isolation.protocol import (
    CANCEL,
    Answer,
    Ask,
    Begin,
    Call,
    FromChild,
    FromParent,
    MessageReader,
    encoded,
    error_from,
)

_READ = 1 << 16  # bytes read at once
_ENDED: Final = "ctx is valid for the length of its call, and this call has ended"
Taker = Callable[[Answer | None], object]
"""Takes the answer to a question; None if the call has ended before. In the thread that reads."""


class ParentChannel:
    """The child's end of the socket. From any thread."""

    def __init__(self, talk: socket.socket) -> None:
        self._talk = talk
        self._sending = threading.Lock()
        self._messages = MessageReader(FromParent)  # used by the thread that reads
        self._changed = threading.Condition()  # guards the fields below
        self._is_read = False  # by a thread
        self._next: Begin | Call | None = None  # received, and not taken
        self._call: CallChannel | None = None  # that runs
        self.level = 0  # of the log, for this call

    def next(self) -> Begin | Call:
        """Wait for the first message, or for a call. Raises OSError or EOFError if the parent is gone."""
        self.read_until(lambda: self._next is not None)
        found, self._next = self._next, None
        assert found is not None
        return found

    def send(self, message: FromChild) -> None:
        """Send a message. Raises OSError if the parent is gone."""
        data = encoded(message)
        with self._sending:
            self._talk.sendall(data)

    def open(self, number: int) -> "CallChannel":
        """The channel of a call that begins; `number` is its number in this process."""
        self._call = opened = CallChannel(self, number)
        return opened

    def close(self) -> None:
        """End the call: its questions are not answered any more."""
        if self._call is not None:
            self._call.end()
        with self._changed:
            self._call = None
            self._changed.notify_all()

    @property
    def running(self) -> "CallChannel":
        """The channel of the call that runs. Raises RuntimeError between two calls."""
        call = self._call
        if call is None:
            raise RuntimeError(_ENDED)
        return call

    def tell(self, message: FromChild) -> None:
        """Send a message of the call that runs; without one, it is dropped."""
        if self._call is not None:
            self.send(message)

    def read_until(self, is_done: Callable[[], bool]) -> None:
        """Read messages until `is_done`, or let another thread do so. Raises as `next` does."""
        while True:
            with self._changed:
                while self._is_read and not is_done():
                    self._changed.wait()
                if is_done():
                    return
                self._is_read = True
            self._read()

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read on a loop, too, while it runs. On that loop."""
        loop.add_reader(self._talk, self._read_now, loop)

    def _read_now(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read what is there, unless a thread does so."""
        with self._changed:
            if self._is_read:
                return
            self._is_read = True
        try:
            self._read(socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass  # a thread has read it
        except (EOFError, OSError):  # the parent is gone, and this process goes with it
            loop.remove_reader(self._talk)
            self.close()

    def _read(self, flags: int = 0) -> None:
        """Receive bytes, and hand each message to whom it is for. In the thread that has set `_is_read`."""
        try:
            part = self._talk.recv(_READ, flags)
            if not part:
                raise EOFError
            self._messages.buffer += part
            while (message := self._messages.next()) is not None:
                if not isinstance(message, Answer):
                    self._next = message
                elif (call := self._call) is not None:
                    call.take(message)
        finally:
            with self._changed:
                self._is_read = False
                self._changed.notify_all()


class CallChannel:
    """The questions of one call. From any thread; RuntimeError after its end."""

    def __init__(self, channel: ParentChannel, number: int) -> None:
        self.channel = channel
        self._number = number
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # guards the fields below
        self._waiting: dict[int, Taker] = {}
        self._ended = False

    def ask(self, name: str, *given: Any) -> Any:
        """The answer to a question; raises what the parent has raised. Blocks."""
        found: list[Answer | None] = []
        self.begin(found.append, name, given)
        self.channel.read_until(lambda: bool(found))
        return value_of(found[0])

    def begin(self, take: Taker, name: str, given: tuple[Any, ...]) -> int:
        """Ask a question, and return its number; `take` is called with the answer."""
        with self._lock:
            if self._ended:
                raise RuntimeError(_ENDED)
            number = next(self._numbers)
            self._waiting[number] = take
        self.channel.send(Ask(self._number, number, name, list(given)))
        return number

    def cancel(self, number: int) -> None:
        """Cancel what the parent does for a question, unless it has answered."""
        with self._lock:
            is_waiting = self._waiting.pop(number, None) is not None
        if is_waiting:
            self.channel.send(Ask(self._number, number, CANCEL))

    def take(self, answer: Answer) -> None:
        """Hand an answer to its question."""
        with self._lock:
            found = self._waiting.pop(answer.number, None) if answer.call == self._number else None
        if found is not None:
            found(answer)

    def end(self) -> None:
        """Give up the questions that are left, and refuse further ones."""
        with self._lock:
            self._ended = True
            left = tuple(self._waiting.values())
            self._waiting.clear()
        for take in left:
            take(None)


class AskedFuture(WriteFuture):
    """The answer to a question, on a loop. A cancellation cancels what the parent does."""

    def __init__(
        self,
        call: CallChannel,
        read: Callable[[Any], Any],
        name: str,
        given: tuple[Any, ...],
        forgotten: Forgotten,
        line: CodeLine | None = None,
    ) -> None:
        super().__init__(name, forgotten, line)
        self._read = read
        self._call = call
        self._on_loop = LoopCalls.of(self.get_loop())
        call.channel.listen(self.get_loop())
        self._number = call.begin(self._take, name, given)

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel what the parent does, too."""
        if not self.done():
            self._call.cancel(self._number)
        return super().cancel(msg)

    def _take(self, answer: Answer | None) -> None:
        if answer is None:
            self.forget()
        if running_loop() is self.get_loop():
            self._answered(answer)  # now: the call may be over before the loop turns
            return
        with suppress(RuntimeError):  # its loop is closed
            self._on_loop.call(partial(self._answered, answer))

    def _answered(self, answer: Answer | None) -> None:
        if self.done():
            return
        try:
            self.set_result(self._read(value_of(answer)))
        except Exception as fault:  # noqa: BLE001 - raised where it is awaited
            self.set_exception(fault)


def value_of(answer: Answer | None) -> Any:
    """The value of an answer. Raises what the parent has raised; RuntimeError after the end of the call."""
    if answer is None:
        raise RuntimeError(_ENDED)
    if answer.failure is not None:
        raise error_from(answer.failure)
    return answer.value
