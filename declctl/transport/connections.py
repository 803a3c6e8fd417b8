"""The connections to one server: a pool of HTTP/1.1 connections, each with one request at a time.

asyncio connects, and does TLS; requests and answers are bytes of this module. No redirect is followed, no
`.netrc` is read, no cookie is kept, and a server that sends something while no request waits loses its
connection.

A request is given to the socket in the call that makes its last check (`before_send`): nothing that blocks
the loop comes between the two. A write without an answer is never repeated here, as the server may have done
it. A read is, if its connection came from the pool: the server may have closed it meanwhile.

An API server writes each event of a WATCH as one chunk, and `ChunkDecoder` takes as many of them as one read
of the socket has brought. TLS is read straight into a buffer (asyncio's BufferedProtocol).
"""

import asyncio
import base64
import re
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from enum import Enum, auto
from functools import partial
from typing import cast
from urllib.parse import urlsplit

from aiohappyeyeballs import start_connection
from multidict import CIMultiDict

from declctl.errors import ApiError
from declctl.kit.hosts import ServerUrl
from declctl.objects import answers
from declctl.transport.credentials import ClientConfiguration, choose_proxy
from declctl.transport.messages import BrokenBody, Sink

CONNECT_SECONDS = 10  # for the name, the socket, the proxy and TLS
_IDLE_SECONDS = 15.0  # that a connection waits in the pool; servers and load balancers wait longer
_SMALLEST = 16 * 1024  # one TLS record
LARGEST = 272 * 1024  # asyncio's TLS reads 256 KB at a time
_SMALL_READS = 8  # in a row, after which a large buffer is replaced by a small one
_SIZE = rb"([0-9A-Fa-f]{1,15})[ \t]{0,9}(?:;[^\r\n]{0,%d})?\r\n" % answers.CHUNK_HEADER_BYTES
_FIRST_HEADER = re.compile(_SIZE)
_HEADER = re.compile(rb"\r\n" + _SIZE)  # with the end of the chunk before it
_LAST_CHUNK = re.compile(_SIZE + rb"(?:[^\r\n]{1,%d}\r\n)*\r\n" % answers.CHUNK_HEADER_BYTES)
_CRLF = b"\r\n"
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_HEAD = re.compile(
    rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([^\r\n\0]*))?\r?\n"
    rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r?\n)*)\r?\n"
)
_LENGTH = re.compile(r"[0-9]{1,15}")
_BODILESS = (204, 304)
_SWITCHING = 101
_HTTP = b"HTTP/1."
_READS = ("GET", "HEAD", "OPTIONS")  # that a server may get twice
_MOST_HELD = 256 * 1024  # bytes since the last `read`, after which the transport is paused
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class NoConnection(OSError):
    """A host was not reached. `__cause__` is the reason."""

    def __init__(self, host: str, port: int, *, is_proxy: bool) -> None:
        super().__init__(f"no connection to {host}:{port}")
        self.host, self.port, self.is_proxy = host, port, is_proxy


class ProxyRefused(OSError):
    """A proxy has made no tunnel. The text is its status and its reason."""


class Disconnected(OSError):
    """The server has closed the connection before it has answered."""


class CutOff(OSError):
    """The connection has ended before the body did."""


class InvalidAddress(ValueError):
    """The configuration's address of a server or of a proxy is none."""


class HostAddress:
    """The address of a server or a proxy: `url` is its http or https URL. Raises InvalidAddress."""

    def __init__(self, url: str) -> None:
        split = ServerUrl.of(url)
        try:
            parts = urlsplit(split.url)
            self.host = parts.hostname or ""
            self.port = parts.port or (443 if parts.scheme == "https" else 80)
            name = self.host if self.host.isascii() else self.host.encode("idna").decode()
        except ValueError as fault:
            raise InvalidAddress(str(fault)) from fault
        if parts.scheme not in ("http", "https") or not self.host:
            raise InvalidAddress("it is no http or https URL with a host")
        self.encrypted = parts.scheme == "https"
        name = f"[{name}]" if ":" in name else name
        self.authority = f"{name}:{self.port}"
        self.host_header = name if parts.port in (None, 443 if self.encrypted else 80) else self.authority
        self.prefix = parts.path.rstrip("/")  # of all paths
        user = split.userinfo
        self.basic = None if user is None else f"Basic {base64.b64encode(user.encode()).decode()}"


class ConnectionPool:
    """A pool without a limit, because each watch holds a connection for as long as it runs. Used on one loop.

    Raises OSError if the certificates of `configuration` can't be loaded, and InvalidAddress.
    """

    def __init__(self, configuration: ClientConfiguration) -> None:
        configuration = copy(configuration)
        choose_proxy(configuration)  # for a caller's configuration, whose proxy was not set before
        self._server = HostAddress(configuration.host)
        proxy = (configuration.client_session_kwargs or {}).get("proxy") or configuration.proxy
        self._proxy = HostAddress(str(proxy)) if proxy else None
        self._proxy_fields = [
            (str(name), str(value)) for name, value in (configuration.proxy_headers or {}).items()
        ]
        if self._proxy is not None and self._proxy.basic:
            self._proxy_fields.append(("Proxy-Authorization", self._proxy.basic))
        self._tls = _tls_context(configuration) if self._server.encrypted else None
        self._server_name = configuration.tls_server_name or self._server.host
        self._all: set[HttpConnection] = set()
        self._idle: list[HttpConnection] = []  # the one that was used last is the last
        self._sweeping: asyncio.TimerHandle | None = None  # while connections are idle
        self._closed = False
        is_forwarded = self._proxy is not None and self._tls is None
        self.target = (f"http://{self._server.host_header}" if is_forwarded else "") + self._server.prefix
        """What comes before the path of a request in its first line."""
        self.fields = [("Host", self._server.host_header), *(self._proxy_fields if is_forwarded else ())]
        """The header fields that each request needs."""
        self.basic = self._server.basic
        """The `Authorization` of the URL of the server, if it has one."""

    async def send(
        self, request: bytes, *, method: str, seconds: float, before_send: Callable[[], object] | None = None
    ) -> "HttpConnection":
        """Send a request; returns its connection when the head of the answer has come.

        `request` is the head and the body. `before_send` is called right before the first byte; it may raise.
        Raises OSError, TimeoutError after `seconds`, and BrokenBody for a head that is no HTTP.
        """
        while True:
            used = self._take()
            connection = used or await self._connect()
            try:
                answered = connection.start(request, seconds, before_send)
            except BaseException:
                connection.close()  # nothing was sent
                raise
            try:
                await answered
            except Disconnected:
                if used is None or method not in _READS:
                    raise
            except BaseException:
                connection.abort()
                raise
            else:
                return connection

    def keep(self, connection: "HttpConnection") -> None:
        """Put a connection into the pool."""
        if self._closed:
            connection.abort()
            return
        self._idle.append(connection)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._sweep)

    def forget(self, connection: "HttpConnection") -> None:
        """Forget a connection that has ended."""
        self._all.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)

    async def close(self) -> None:
        """End all connections, also those that are used."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        connections = tuple(self._all)
        for connection in connections:
            connection.abort()
        await asyncio.gather(*(connection.ended for connection in connections))

    def _take(self) -> "HttpConnection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_quiet():
                return connection
            connection.abort()
        return None

    def _sweep(self) -> None:
        """End the connections that have waited for long."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - _IDLE_SECONDS
        old = [each for each in self._idle if each.heard <= oldest]
        self._idle = [each for each in self._idle if each.heard > oldest]
        for connection in old:
            connection.abort()
        first = self._idle[0].heard - oldest if self._idle else 0.0
        self._sweeping = loop.call_later(first, self._sweep) if self._idle else None

    async def _connect(self) -> "HttpConnection":
        first = self._proxy or self._server
        loop, tls = asyncio.get_running_loop(), None
        if first is self._server:
            tls, name = self._tls, self._server_name
        else:
            tls, name = (ssl.create_default_context() if first.encrypted else None), first.host
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                sock = await _connected(first.host, first.port)
                _, connection = await loop.create_connection(
                    partial(HttpConnection, self), sock=sock, ssl=tls, server_hostname=name if tls else None
                )
        except ssl.SSLError:
            raise
        except OSError as fault:
            raise NoConnection(first.host, first.port, is_proxy=first is not self._server) from fault
        self._all.add(connection)
        if self._closed:  # meanwhile: nothing is sent any more
            connection.abort()
            raise Disconnected("the client was closed")
        if first is not self._server and self._tls is not None:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._tunnel(connection, self._tls)
            except BaseException:
                connection.abort()
                raise
        return connection

    async def _tunnel(self, connection: "HttpConnection", tls: ssl.SSLContext) -> None:
        server = self._server.authority
        fields = head_of([("Host", server), *self._proxy_fields])
        await connection.start(b"CONNECT %b HTTP/1.1\r\n%b\r\n" % (server.encode(), fields), CONNECT_SECONDS)
        if not 200 <= connection.status < 300:
            raise ProxyRefused(f"{connection.status} {connection.reason}")
        transport = await asyncio.get_running_loop().start_tls(
            connection.tunnel(), connection, tls, server_hostname=self._server_name
        )
        assert transport is not None
        connection.connection_made(transport)


async def _connected(host: str, port: int) -> socket.socket:
    """A socket that is connected to the first address of a host that answers (RFC 8305). Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # Of a library, as `create_connection` of uvloop has no such parameter.
    return await start_connection(found, happy_eyeballs_delay=0.25, interleave=1)


def _tls_context(configuration: ClientConfiguration) -> ssl.SSLContext:
    """The TLS context of a configuration, as the official client makes it."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def head_of(fields: Sequence[tuple[str, str]]) -> bytes:
    """Header fields as bytes. Raises ValueError for text that would end a line."""
    for name, value in fields:
        if any(character in name or character in value for character in "\r\n\0"):
            raise ValueError(f"the header {name[:40]!r} has a line break or a NUL")
    return "".join(f"{name}: {value}\r\n" for name, value in fields).encode()


class _Stage(Enum):
    """The stage of a connection. A request moves it down this list, and back to IDLE."""

    IDLE = auto()  # no request waits
    HEAD = auto()  # a request was sent, and the head of its answer has not come
    HELD = auto()  # the head has come; the body waits for `take`
    TAKEN = auto()  # the body goes to its sink
    ENDED = auto()  # the body has come to its end
    CLOSED = auto()  # further bytes are dropped


class HttpConnection(asyncio.BufferedProtocol):
    """One connection, on which one request after the other is answered. Used on one loop.

    After `start`: wait for the head, `take` the body, `read` to its end, `close`.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.status = 0  # of the answer
        self.reason = ""
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.heard = 0.0  # when the last byte came, by the loop's clock
        self.ended: asyncio.Future[None] = (
            asyncio.get_running_loop().create_future()
        )  # the connection is gone
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", None)  # asyncio sets it before it returns the protocol
        self._poll: select.poll | None = None  # of the socket
        self._stage = _Stage.IDLE
        self._buffer = ReadBuffer()
        self._searched = 0  # bytes of the buffer that have no end of a head
        self._answered: asyncio.Future[None] | None = None  # of the head
        self._body: ChunkDecoder | PlainDecoder | None = None  # once it is taken
        self._length: int | None = None  # of the body; None if it is not known
        self._chunked = False
        self._ends_with_connection = False  # the body
        self._lost_by: Exception | None = None  # once the connection has `ended`
        self._was_long = False  # the request, of which a part may have to wait until the server reads
        self._lasts = False  # whether a further request may follow the answer
        self._seen = 0  # `count` at the last `read`
        self._held = 0  # bytes that have come since the last `read`
        self._paused = False  # whether the transport reads nothing, so that the server has to wait
        self._fault: Exception | None = None  # how the answer has ended early
        self._reader: asyncio.Future[None] | None = None  # of the `read` that waits
        self._silence = 0.0  # seconds without a byte after which the body fails
        self._until = 0.0  # when the answer fails, by the loop's clock
        self._alarm: asyncio.TimerHandle | None = (
            None  # which looks at `_until`; also left from earlier requests
        )

    @property
    def count(self) -> int:
        """Bytes of the body that have come."""
        return self._body.count if self._body is not None else 0

    @property
    def is_read(self) -> bool:
        """Whether the whole body has come."""
        return self._stage is _Stage.ENDED

    def is_quiet(self) -> bool:
        """Whether a request can be sent: nothing has come, also nothing that the loop has not read yet."""
        if self._stage is not _Stage.IDLE or self._transport.is_closing():
            return False
        return self._poll is None or not self._poll.poll(0)

    def start(
        self, request: bytes, seconds: float, before_send: Callable[[], object] | None = None
    ) -> asyncio.Future[None]:
        """Send a request; the future ends when the head of its answer has come.

        `before_send` is called right before the first byte. What it raises is raised here, and then nothing
        was sent. The future fails after `seconds`.
        """
        if before_send is not None:
            before_send()
        self._stage, self._searched = _Stage.HEAD, 0
        self._was_long = len(request) > _SMALLEST
        self._body, self._fault = None, None
        self._answered = answered = self._loop.create_future()
        self._expect(seconds)
        self._transport.write(request)
        return answered

    def take(self, sink: Sink, *, silence: float) -> None:
        """Read the body into `sink`; it fails after `silence` seconds without a byte."""
        if self._stage is not _Stage.HELD:
            return  # it has failed, which `read` tells
        self._body = ChunkDecoder(sink) if self._chunked else PlainDecoder(sink, self._length)
        self._stage, self._seen, self._held = _Stage.TAKEN, 0, 0
        self._take_in(self._body)
        if self._stage is _Stage.TAKEN:
            self._silence = silence
            self._expect(silence)
            if self.ended.done():
                self._end_answer()

    async def read(self) -> bool:
        """Wait until the sink was given something; False at the end of the body.

        Raises the fault that ended the body early: TimeoutError, CutOff, BrokenBody, or the exception of the
        sink.
        """
        while self.count == self._seen:
            if self._fault is not None:
                raise self._fault
            if self._stage is not _Stage.TAKEN:
                return False
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        self._seen, self._held = self.count, 0
        self._resume()
        return True

    def close(self) -> None:
        """Give the connection to the pool, if the whole answer has come; otherwise end it.

        It is called once for each request: afterwards, the connection may have another one.
        """
        if self._stage is _Stage.ENDED and self._lasts:
            self._stage, self._body = _Stage.IDLE, None
        if self._stage is _Stage.IDLE and not self._transport.is_closing():
            self._pool.keep(self)
        else:
            self.abort()

    def abort(self) -> None:
        """End the connection at once."""
        self._fail(CutOff("the connection was closed"))

    def tunnel(self) -> asyncio.Transport:
        """The transport, after a proxy has answered: what follows is not HTTP with the proxy."""
        if self._buffer.filled:
            raise BrokenBody("the proxy has sent something behind its answer")
        self._stage = _Stage.IDLE
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport, which is another one when TLS begins in a tunnel."""
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is None:
            return
        if hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)
        # The kernel finds within a minute that the peer is gone without having closed its connection.
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, seconds in _KEEPALIVE:
                option = getattr(socket, name, None)  # not every system has all of them
                if option is not None:
                    sock.setsockopt(socket.IPPROTO_TCP, option, seconds)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The memory for the next read of asyncio."""
        return self._buffer.space(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes that asyncio has read from the socket, or out of TLS."""
        self._buffer.add(nbytes)
        if self._stage is _Stage.HEAD:
            self._read_head()
        elif self._body is not None and self._stage is _Stage.TAKEN:
            self._held += nbytes
            self._expect(self._silence)
            self._take_in(self._body)
        elif self._stage is _Stage.CLOSED:
            self._buffer.drop(self._buffer.filled)
        elif self._stage is _Stage.HELD:
            if self._buffer.filled >= LARGEST:
                self._pause()  # until `take`
        else:
            self._buffer.drop(self._buffer.filled)
            self._lasts = False
            self.abort()  # no request has asked for these bytes

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended; in the middle of an answer, too early."""
        self._lost_by = exc
        if not self.ended.done():
            self.ended.set_result(None)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._pool.forget(self)
        self._end_answer()

    def _end_answer(self) -> None:
        """End the answer with its connection, unless its body waits for `take`."""
        cause = self._lost_by
        if self._stage is _Stage.HEAD:
            self._fail(Disconnected("the connection ended"), cause)
        elif self._stage is _Stage.TAKEN:
            if self._ends_with_connection and cause is None:
                self._stage = _Stage.ENDED
                self._wake()
            else:
                how = f": {cause}" if cause else ""
                self._fail(CutOff(f"the connection ended before the body did{how}"), cause)

    def _read_head(self) -> None:
        buffer = self._buffer
        while True:
            found = _END_OF_HEAD.search(buffer.data, max(0, self._searched - 3), buffer.filled)
            if found is None:
                self._searched = buffer.filled
                begin = bytes(buffer.data[: min(buffer.filled, 40)])
                if buffer.filled > answers.HEAD_BYTES or not begin.startswith(_HTTP[: len(begin)]):
                    self._fail(BrokenBody(f"it begins with {begin!r}, and has no head"))
                return
            head = bytes(buffer.data[: found.end()])
            buffer.drop(found.end())
            self._searched = 0
            try:
                self._parse(head)
            except BrokenBody as fault:
                self._fail(fault)
                return
            if self.status >= 200 or self.status == _SWITCHING:
                break  # any other 1xx announces the answer
        self._stage = _Stage.HELD
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)
        if buffer.filled >= LARGEST:
            self._pause()

    def _parse(self, head: bytes) -> None:
        """Read a head. Raises BrokenBody for one that is no HTTP/1, and for one that gives the body two ends.

        A proxy and this client must see the end of the body at the same place. Otherwise one of them takes
        the rest of this body for the next answer (RFC 9112, 6.3).
        """
        found = _HEAD.fullmatch(head)
        if found is None or len(head) > answers.HEAD_BYTES:
            raise BrokenBody(f"its head begins with {head[:40]!r}")
        self.status = status = int(found[2])
        self.reason = (found[3] or b"").decode("utf-8", "replace")
        lines = (line.partition(":") for line in found[4].decode("utf-8", "replace").split("\n"))
        self.headers = headers = CIMultiDict((name, value.strip()) for name, colon, value in lines if colon)
        encodings, lengths = headers.getall("Transfer-Encoding", ()), headers.getall("Content-Length", ())
        if len(lengths) > 1 or (encodings and lengths):
            raise BrokenBody("its head says in two ways where the body ends")
        if encodings and [encoding.lower() for encoding in encodings] != ["chunked"]:
            raise BrokenBody(f"its Transfer-Encoding is {', '.join(encodings)[:80]!r} and not chunked")
        if lengths and not _LENGTH.fullmatch(lengths[0]):
            raise BrokenBody(f"its Content-Length is {lengths[0][:80]!r}")
        self._chunked = bool(encodings)
        self._length = int(lengths[0]) if lengths else None
        if status in _BODILESS:
            self._chunked, self._length = False, 0
        self._ends_with_connection = not self._chunked and self._length is None
        connection = headers.get("Connection", "").lower()
        lasts = "close" not in connection if found[1] == b"1" else "keep-alive" in connection
        self._lasts = lasts and status != _SWITCHING and not self._ends_with_connection

    def _take_in(self, body: "ChunkDecoder | PlainDecoder") -> None:
        buffer = self._buffer
        try:
            buffer.drop(body.decode(buffer.data, buffer.filled))
            if body.ended:
                self._finish()
        except (BrokenBody, ApiError) as fault:  # an ApiError is the sink's
            self._fail(fault)
            return
        if self._held > _MOST_HELD and self._stage is _Stage.TAKEN:
            self._pause()
        self._wake()

    def _finish(self) -> None:
        """End the body, when its last chunk has come with its trailer."""
        buffer = self._buffer
        if self._chunked:
            last = _LAST_CHUNK.match(buffer.data, 0, buffer.filled)
            if last is None:
                if buffer.filled > answers.HEAD_BYTES:
                    raise BrokenBody("the trailer of its chunks has no end")
                return
            buffer.drop(last.end())
        self._stage = _Stage.ENDED
        # Bytes behind the body belong to no answer that was asked for. A request of which a part still has to
        # be sent would be the begin of the next one.
        if buffer.filled or (self._was_long and self._transport.get_write_buffer_size()):
            self._lasts = False

    def _fail(self, fault: Exception, cause: Exception | None = None) -> None:
        """End the connection, and the answer that it has."""
        if cause is not None:
            fault.__cause__ = cause
        if self._stage not in (_Stage.ENDED, _Stage.CLOSED):
            self._stage, self._fault = _Stage.CLOSED, fault
            if self._answered is not None and not self._answered.done():
                self._answered.set_exception(fault)
            self._wake()
        self._transport.abort()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._expect(self._silence)  # the server could send nothing meanwhile
            self._transport.resume_reading()

    def _expect(self, seconds: float) -> None:
        """Let the answer fail unless this is called again, or it ends, within so many seconds."""
        self.heard = self._loop.time()
        self._until = self.heard + seconds
        # One timer for many requests and reads: when it rings, it looks at `_until`.
        if self._alarm is None or self._alarm.when() > self._until:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._loop.call_at(self._until, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if self._stage not in (_Stage.HEAD, _Stage.TAKEN):
            return
        left = self._until - self._loop.time()
        if left <= 0 and not self._paused:
            self._fail(TimeoutError())
        else:
            self._alarm = self._loop.call_later(left if left > 0 else self._silence, self._ring)


class ReadBuffer:
    """Bytes that were read and not used yet, followed by space for more.

    `data[:filled]` are the bytes. The buffer grows while reads fill it, and shrinks when reads have been
    small for a while, so that a quiet watch costs no memory.
    """

    def __init__(self) -> None:
        self.data = bytearray(_SMALLEST)
        self.filled = 0
        self._view = memoryview(self.data)
        self._small = 0  # small reads in a row
        self._tight = False  # whether the last read filled the buffer

    def space(self, expected: int) -> memoryview:
        """The memory for the next read, never empty.

        `expected` is the number of bytes that are known to wait, -1 if that is not known.
        """
        size, needed = len(self.data), self.filled + expected
        # A read that filled the buffer has likely left bytes behind: fourfold growth takes few steps to the
        # size of one read of asyncio's TLS.
        if needed > size or self._tight:
            self._resize(max(min(max(needed, 4 * size), LARGEST), self.filled + _SMALLEST))
        elif self._small > _SMALL_READS and size > _SMALLEST and self.filled < _SMALLEST // 2:
            self._resize(_SMALLEST)
        return self._view[self.filled :] if self.filled else self._view

    def add(self, count: int) -> None:
        """Count bytes that were read into the space."""
        self.filled += count
        self._tight = self.filled == len(self.data)
        self._small = self._small + 1 if count < _SMALLEST // 2 else 0

    def drop(self, count: int) -> None:
        """Forget the first bytes, which were used, and move the rest to the beginning."""
        rest = self.filled - count
        if rest:
            self._view[:rest] = self._view[count : self.filled]
        self.filled = rest

    def _resize(self, size: int) -> None:
        if size == len(self.data):
            return
        data = bytearray(size)
        view = memoryview(data)
        view[: self.filled] = self._view[: self.filled]
        self.data, self._view = data, view
        self._small, self._tight = 0, False


class ChunkDecoder:
    """Gives a sink the content of chunks (RFC 9112, 7.1) in a buffer, as far as it has come.

    `count` is the number of bytes that the sink got. `ended` is true when the next chunk in the buffer is the
    last one, which has no content. It stays in the buffer, with its trailer fields.
    """

    def __init__(self, sink: Sink) -> None:
        self.count = 0
        self.ended = False
        self._sink = sink
        self._header = _FIRST_HEADER  # the pattern of the next header
        self._left = 0  # bytes of the current chunk that have not come yet

    def decode(self, buffer: bytearray, end: int) -> int:
        """Decode `buffer[:end]`; returns how many bytes were used.

        The sink is fed with one chunk at a time, or with the part of it that is there. The caller puts the
        unused bytes at the beginning of the next buffer. Raises BrokenBody for bytes that are no chunk, and
        passes exceptions of the sink.
        """
        feed = self._sink.feed
        at, left = 0, self._left
        with memoryview(buffer) as view:
            while not self.ended:
                if not left:
                    header = self._header.match(buffer, at, end)
                    if header is None:
                        # The header has not come in full, or never will.
                        self._check(bytes(view[at:end]))
                        break
                    self._left = left = int(header[1], 16)
                    if not left:
                        # The last chunk: the connection reads it, and with it the trailer.
                        self.ended, at = True, header.start(1)
                        break
                    self._header, at = _HEADER, header.end()
                stop = min(at + left, end)
                if stop == at:
                    break
                self._left = left = left - (stop - at)
                self.count += stop - at
                feed(view[at:stop])
                at = stop
        return at

    def _check(self, begin: bytes) -> None:
        # An incomplete header is no fault, unless no byte that follows can complete it.
        before = _CRLF if self._header is _HEADER else b""
        follows = begin[len(before) :]
        if (
            not before.startswith(begin[: len(before)])
            or _CRLF in follows
            or len(begin) > answers.CHUNK_HEADER_BYTES
        ):
            raise BrokenBody(f"a chunk begins with {begin.strip()[:40]!r}")


class PlainDecoder:
    """Gives a sink a body without chunks, as far as it has come: of a `length`, or None for up to the end."""

    def __init__(self, sink: Sink, length: int | None) -> None:
        self.count = 0
        self.left = length  # bytes that have not come yet
        self._sink = sink

    @property
    def ended(self) -> bool:
        """Whether the whole body has come; False without a length."""
        return self.left == 0

    def decode(self, buffer: bytearray, end: int) -> int:
        """Decode `buffer[:end]`; returns how many bytes were used. Passes exceptions of the sink."""
        size = end if self.left is None else min(self.left, end)
        if size:
            self.count += size
            if self.left is not None:
                self.left -= size
            with memoryview(buffer) as view:
                self._sink.feed(view[:size])
        return size
