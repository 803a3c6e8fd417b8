"""How connections to the admin address are accepted, when many come at once and when there is no room."""

import asyncio
import contextlib
import errno
import socket
from collections import Counter

import pytest

from declctl.admin import acceptor
from declctl.admin.acceptor import ACCEPTED_TOGETHER, Acceptor, accepting, bound_sockets
from declctl.admin.access import Reason, Refusals


class Greeting(asyncio.Protocol):
    """Says hello, and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


class Full(socket.socket):
    """A listening socket of a process that can open no further file, at first."""

    failures = 1

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def _greeted(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_a_crowd_is_let_in_a_few_at_a_time() -> None:
    """A thousand clients that come at once take no turn of the loop for themselves: events go on between."""
    turns = 0
    accepted: Counter[int] = Counter()

    def make() -> asyncio.Protocol:
        accepted[turns] += 1
        return Greeting()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    sockets = await bound_sockets("127.0.0.1", 0)
    where = sockets[0].getsockname()
    with contextlib.ExitStack() as crowd:
        for _ in range(100):  # they wait in the system before the first is accepted
            crowd.enter_context(socket.create_connection(where, timeout=10))
        counting = asyncio.create_task(count_turns())
        async with accepting(sockets, make, Refusals()):
            assert await asyncio.wait_for(_greeted(where[1]), 30) == b"hello"
        counting.cancel()
    # The port is free for the next process at once.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where, timeout=10)
    assert accepted.total() == 101
    assert max(accepted.values()) <= ACCEPTED_TOGETHER


async def test_a_process_without_room_for_a_file_accepts_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection waits in the system, the refusal is counted, and the address is not lost for ever."""
    monkeypatch.setattr(acceptor, "SHORTAGE_SECONDS", 0.01)
    refusals = Refusals()
    with Full() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        one = Acceptor(listening, Greeting, refusals)
        one.resume()
        assert await asyncio.wait_for(_greeted(listening.getsockname()[1]), 30) == b"hello"
        one.close()
    assert refusals.counts[Reason.CONNECTIONS] == 1
