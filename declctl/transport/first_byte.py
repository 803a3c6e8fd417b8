"""The moment right before the first byte of a request of the official clients.

A check there is the last thing that can stop it. For declctl's own requests, `connections.py` makes it.

Between a check and the first byte, nothing may wait: a process that has lost its Lease meanwhile would write
beside the next leader. So the check is made inside of the call that gives the first byte to the socket, and
not when a connection is there. aiohttp writes a request with a body in a task of its own, before which the
loop may turn and be blocked for seconds (Python 3.12 begins the task at once, 3.11 does not); urllib3
connects, and shakes hands, after it was asked to send.
"""

from collections.abc import Callable
from typing import Any

FirstByteCheck = Callable[[], object]
"""An exception of the check fails the request before anything is sent."""


def check_first_byte(request: Any, check: FirstByteCheck) -> None:
    """Have aiohttp's `request` make a check right before its first byte. Called in a middleware.

    The check is made twice for a request with a body: its head is written together with the body, later than
    the head of one without.
    """
    send, write = request.send, request.write_bytes

    async def checked_send(connection: Any) -> Any:
        check()
        return await send(connection)

    async def checked_write(writer: Any, connection: Any, content_length: int | None = None) -> None:
        try:
            check()
        except Exception as refusal:  # noqa: BLE001 - a task: the waiting request gets it below
            connection.protocol.set_exception(refusal)
        else:
            await write(writer, connection, content_length)

    request.send, request.write_bytes = checked_send, checked_write


def checking_connection(connection_class: Any, check: Callable[[str, str], object]) -> Any:
    """A class of urllib3's connections that calls `check(method, path)` right before a request's first byte.

    The handshakes with a server and its proxy come before it.
    """

    class CheckingConnection(connection_class):
        _unsent: tuple[str, str] | None = None  # the request of which no byte was sent

        def putrequest(self, method: str, url: str, *args: Any, **options: Any) -> None:
            self._unsent = method, url
            super().putrequest(method, url, *args, **options)

        def send(self, data: Any) -> None:
            unsent, self._unsent = self._unsent, None
            if unsent is not None:
                if self.sock is None:
                    self.connect()
                check(*unsent)
            super().send(data)

    return CheckingConnection
