"""The connections to one server: the official client's, with what strangers could do to them ruled out.

No redirect is followed, no `.netrc` is read, no cookie is kept, nothing is unpacked that was not asked for. A
server that says something while nobody has asked loses its connection.
"""

import asyncio
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from kubernetes.aio.client.rest import RESTClientObject

from declctl.transport.bodies import Answer
from declctl.transport.official import refuse_redirect
from declctl.transport.official_config import OfficialConfiguration, choose_proxy

_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class Connections(RESTClientObject):
    """A pool without a limit: each watch holds a connection for as long as it runs.

    Answers are of a class of ours, unless the configuration asks for another one. Used on one loop.
    """

    def __init__(self, configuration: OfficialConfiguration) -> None:
        configured = copy(configuration)
        choose_proxy(configured)  # for a configuration that is somebody else's
        options = configured.client_session_kwargs or {}
        configured.client_session_kwargs = {
            "response_class": Answer,
            **options,
            "auto_decompress": False,  # a stream of ours unpacks what was asked for
            # Redirects are answers here, of which the wire makes an error.
            "middlewares": [each for each in options.get("middlewares", ()) if each is not refuse_redirect],
        }
        super().__init__(configured)
        self.maxsize = 0

    def _create_connector(self) -> aiohttp.TCPConnector:
        per_host = getattr(self.configuration, "tcp_connector_limit_per_host", None) or 0
        return _Connector(limit=self.maxsize, limit_per_host=per_host, ssl=self.ssl_context)

    def _create_pool_manager(self) -> Any:
        kwargs = self.configuration.client_session_kwargs
        kwargs.setdefault("cookie_jar", aiohttp.DummyCookieJar())  # as client-go: it has none
        return _Session(super()._create_pool_manager())


def keep_alive(response: aiohttp.ClientResponse) -> None:
    """Let the kernel notice, in a minute, that the peer of this answer vanished without a word."""
    transport = response.connection.transport if response.connection is not None else None
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None:
        return
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in _KEEPALIVE:
            option = getattr(socket, name, None)  # not every system has all of them
            if option is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, seconds)


class _Session:
    # aiohttp follows redirects unless each request says no; the official client does not ask.

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def request(self, method: str, url: str, **options: Any) -> aiohttp.ClientResponse:
        options["allow_redirects"] = False
        return await self._session.request(method, url, **options)

    async def close(self) -> None:
        await self._session.close()


class _Connector(aiohttp.TCPConnector):
    """Gives out no connection on which a server has said something that nobody asked for.

    aiohttp would take it for the answer to the next request.
    """

    async def connect(self, req: Any, traces: Sequence[Any], timeout: aiohttp.ClientTimeout) -> Connection:
        """A connection that is new, or on which nothing waits to be read."""
        while True:
            connection = await super().connect(req, list(traces), timeout)
            transport, protocol = connection.transport, connection.protocol
            idle = transport.get_protocol() if transport is not None else None
            if transport is None or protocol is None or not isinstance(idle, _Idle):
                return connection
            transport.set_protocol(protocol)
            if not protocol.should_close and not _readable(transport):
                return connection
            connection.close()

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        super()._release(key, protocol, should_close=should_close)
        transport = protocol.transport
        if transport is not None and not transport.is_closing():
            transport.set_protocol(_Idle(transport, protocol))


class _Idle(asyncio.Protocol):
    """The protocol of a connection that waits in the pool: whatever the server says ends it."""

    def __init__(self, transport: asyncio.Transport, aiohttps: ResponseHandler) -> None:
        self._transport = transport
        self._aiohttps = aiohttps

    def data_received(self, data: bytes) -> None:  # noqa: ARG002 - it is of no interest
        self._transport.abort()

    def eof_received(self) -> bool | None:
        return self._aiohttps.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._aiohttps.connection_lost(exc)

    def pause_writing(self) -> None:
        self._aiohttps.pause_writing()

    def resume_writing(self) -> None:
        self._aiohttps.resume_writing()


def _readable(transport: asyncio.Transport) -> bool:
    """Whether the socket has bytes, or an end, that the loop has not read yet."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0 or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))
