"""A TCP proxy that a test can cut, or freeze: what goes through it stops, and nobody is told."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Between a client and a server. `address` is where the client connects to.

    `accepted` counts connections of the client, also while the server is not there.
    """

    def __init__(self, listening: socket.socket, behind: tuple[str, int]) -> None:
        self.address: tuple[str, int] = listening.getsockname()
        self.accepted = 0
        self._listening = listening
        self._behind = behind
        self._lock = threading.Lock()
        self._connections: list[_Connection] = []
        self._passes = True
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def freeze(self) -> int:
        """What is open goes on to be open, and nothing passes any more; new connections do.

        Returns how many there are.
        """
        with self._lock:
            frozen = [connection for connection in self._connections if connection.freeze()]
        return len(frozen)

    def cut(self) -> None:
        """Close what is open, and whatever comes until `mend`."""
        with self._lock:
            self._passes = False
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()

    def mend(self) -> None:
        """Let everything through again."""
        with self._lock:
            self._passes = True

    def close(self) -> None:
        """End it all."""
        self.cut()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts

    def _accept(self) -> None:
        while True:
            try:
                front, _ = self._listening.accept()
            except OSError:
                return
            self.accepted += 1
            with self._lock:
                if not self._passes:
                    front.close()
                    continue
                try:
                    back = socket.create_connection(self._behind, timeout=10.0)
                except OSError:
                    front.close()
                    continue
                back.settimeout(None)
                self._connections.append(_Connection(front, back))


class _Connection:
    """Two sockets and what goes between them."""

    def __init__(self, front: socket.socket, back: socket.socket) -> None:
        self._sides = (front, back)
        self._flows = threading.Event()
        self._flows.set()
        self._closed = False
        for source, target in ((front, back), (back, front)):
            threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def freeze(self) -> bool:
        """Stop; says whether there was anything to stop."""
        self._flows.clear()
        return not self._closed

    def close(self) -> None:
        """End it in both directions."""
        self._closed = True
        self._flows.set()
        for side in self._sides:
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError, ValueError):
            while data := source.recv(65536):
                self._flows.wait()
                target.sendall(data)
        self._flows.wait()  # a frozen connection does not even say goodbye
        self.close()


@contextmanager
def proxy(behind: tuple[str, int]) -> Iterator[Proxy]:
    """A proxy for the length of the context."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        it = Proxy(listening, behind)
        try:
            yield it
        finally:
            it.close()
