"""The listening sockets of both addresses, whose connections are accepted at a limited rate.

A server of asyncio accepts a hundred connections and more in one turn of the loop. If a thousand clients
connect at the same time, as refused ones do that try again, the loop would be busy with them for a tenth of a
second, and every event of a watch would wait.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from declctl.admin.access import Reason, Refusals

# Together 2,000 a second. A connection that is accepted and closed again costs the loop 0.1 ms.
ACCEPTED_TOGETHER: Final = 4
PAUSE_SECONDS: Final = 0.002  # after as many
# Connections that may wait. The last of them is accepted after half a second; a kubelet waits for a second.
BACKLOG: Final = 1024
SHORTAGE_SECONDS: Final = 1.0  # before the next try, when the process can open no further file


async def bound_sockets(host: str | None, port: int) -> Sequence[socket.socket]:
    """Sockets that listen, one for each address of the host; None stands for all. Raises OSError."""
    loop = asyncio.get_running_loop()
    # asyncio resolves the host and sets the options of the sockets; it accepts nothing.
    server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    sockets = [each.dup() for each in server.sockets]
    server.close()
    for each in sockets:
        each.listen(BACKLOG)
    return sockets


@asynccontextmanager
async def accepting(
    sockets: Sequence[socket.socket], make: Callable[[], asyncio.Protocol], refusals: Refusals
) -> AsyncGenerator[None, None]:
    """Accept the connections of these sockets inside an `async with` block, and close the sockets at its end.

    `make` gives the protocol of a connection.
    """
    acceptors = [Acceptor(each, make, refusals) for each in sockets]
    for each in acceptors:
        each.resume()
    try:
        yield
    finally:
        for each in acceptors:
            each.close()


class Acceptor:
    """Accepts the connections of one listening socket, which it owns. Used on one loop."""

    def __init__(
        self, listening: socket.socket, make: Callable[[], asyncio.Protocol], refusals: Refusals
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._make = make
        self._refusals = refusals
        self._pause: asyncio.TimerHandle | None = None  # until it goes on
        self._beginning: set[asyncio.Task[object]] = set()  # connections whose protocol is being made

    def resume(self) -> None:
        """Accept what waits, and what comes."""
        self._pause = None
        self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        """Accept nothing any more, and close the socket. Open connections stay open."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_TOGETHER):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return  # no other one waits
            except ConnectionAbortedError:
                continue  # the client has gone while it waited
            except OSError as error:
                sentence = f"connections wait, as the process can't accept them: {error.strerror or error}"
                self._refusals.add(Reason.CONNECTIONS, sentence)
                self._rest(SHORTAGE_SECONDS)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._loop.connect_accepted_socket(self._make, connection))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)
        self._rest(PAUSE_SECONDS)

    def _rest(self, seconds: float) -> None:
        """Let the loop do other things meanwhile, by the time of this machine whatever clock a test has."""
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(seconds, self.resume)
