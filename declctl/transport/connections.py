"""The connections to one server: a pool, and the bodies of answers, read in large parts.

The pool is the official client's. No redirect is followed, no `.netrc` is read, no cookie is kept, and a
server that sends something while no request waits loses its connection.

aiohttp makes the connection, writes the request and reads the head of the answer. A body in chunks, as API
servers send it, is then read here: the protocol of the transport is replaced by one that reads TLS straight
into a buffer (asyncio's BufferedProtocol). After the last chunk aiohttp's protocol is back, and the
connection returns to the pool.

For an event of 4.8 KB, TLS alone costs 7 µs of CPU. From there to its line, aiohttp's reader costs 9 µs more,
because it calls five Python functions for each chunk; this module costs 3 µs. An API server writes each event
of a WATCH as one chunk, and `ChunkDecoder` takes as many of them as one read of the socket has brought.
"""

import asyncio
import re
import select
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from enum import Enum, auto
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from kubernetes.aio.client.rest import RESTClientObject
from multidict import CIMultiDictProxy

from declctl.errors import ApiError
from declctl.objects import answers
from declctl.transport.credentials import OfficialConfiguration, choose_proxy
from declctl.transport.first_byte import FirstByteCheck, first_byte_middleware
from declctl.transport.messages import BrokenBody, Sink
from declctl.transport.official import WriteGuard, refuse_redirect

_SMALLEST = 16 * 1024  # one TLS record
LARGEST = 272 * 1024  # asyncio's TLS reads 256 KB at a time
_SMALL_READS = 8  # in a row, after which a large buffer is replaced by a small one
_SIZE = rb"([0-9A-Fa-f]{1,15})[ \t]{0,9}(?:;[^\r\n]{0,%d})?\r\n" % answers.CHUNK_HEADER_BYTES
_FIRST_HEADER = re.compile(_SIZE)
_HEADER = re.compile(rb"\r\n" + _SIZE)  # with the end of the chunk before it
_CRLF = b"\r\n"
_END_OF_HEAD = b"\r\n\r\n"
_FINAL = re.compile(rb"HTTP/1\.1 [2-5]")  # what announces another answer (1xx) is aiohttp's
_MOST_HELD = 256 * 1024  # bytes since the last `read`, after which the transport is paused
_READABLE = ("", "identity", "gzip")
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class ConnectionPool(RESTClientObject):
    """A pool without a limit, because each watch holds a connection for as long as it runs. Used on one loop.

    Answers are `ChunkedResponse`s, unless the configuration asks for another class.
    """

    def __init__(self, configuration: OfficialConfiguration) -> None:
        configured = copy(configuration)
        choose_proxy(configured)  # for a caller's configuration, whose proxy was not set before
        options = configured.client_session_kwargs or {}
        configured.client_session_kwargs = {
            "response_class": ChunkedResponse,
            **options,
            "auto_decompress": False,  # the wire unpacks gzip
            # A redirect is a normal answer here, which the wire converts to an error.
            # The guard is for handlers: the machinery's own writes, such as those of a Lease, pass it by.
            "middlewares": [
                each
                for each in options.get("middlewares", ())
                if each is not refuse_redirect and not isinstance(each, WriteGuard)
            ],
        }
        super().__init__(configured)
        self._middlewares = tuple(configured.client_session_kwargs["middlewares"])
        self.maxsize = 0  # no limit, for `_create_connector`

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: aiohttp.ClientTimeout,
        before_send: FirstByteCheck | None = None,
    ) -> aiohttp.ClientResponse:
        """Send a request with a body, or without one if it is None.

        `before_send` is called right before the first byte; it may raise.

        Returns the answer when its head has come. It is the official `request` for the requests of the
        machinery, which have no forms and are repeated by their callers. It takes less CPU.
        """
        session = self.pool_manager
        if session is None:
            session = self.pool_manager = self._create_pool_manager()
        options: dict[str, Any] = {}
        if self.configuration.tls_server_name:
            options["server_hostname"] = self.configuration.tls_server_name
        if self.proxy:
            options["proxy"] = self.proxy
        if self.proxy_headers:
            options["proxy_headers"] = self.proxy_headers
        if before_send is not None:
            options["middlewares"] = (*self._middlewares, first_byte_middleware(before_send))
        return await session.request(method, url, headers=headers, data=body, timeout=timeout, **options)

    def _create_connector(self) -> aiohttp.TCPConnector:
        per_host = getattr(self.configuration, "tcp_connector_limit_per_host", None) or 0
        return _Connector(limit=self.maxsize, limit_per_host=per_host, ssl=self.ssl_context)

    def _create_pool_manager(self) -> Any:
        kwargs = self.configuration.client_session_kwargs
        kwargs.setdefault("cookie_jar", aiohttp.DummyCookieJar())  # as client-go: it has none
        return _Session(super()._create_pool_manager())


def keep_alive(response: aiohttp.ClientResponse) -> None:
    """Let the kernel detect within a minute that the peer is gone without having closed its connection."""
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
    """An aiohttp session that follows no redirect. The official client has no option for that."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def request(self, method: str, url: str, **options: Any) -> aiohttp.ClientResponse:
        options["allow_redirects"] = False
        return await self._session.request(method, url, **options)

    async def close(self) -> None:
        await self._session.close()


class _Connector(aiohttp.TCPConnector):
    """Returns no connection on which the server has sent bytes without a request.

    aiohttp would read these bytes as the answer to the next request.
    """

    async def connect(self, req: Any, traces: Sequence[Any], timeout: aiohttp.ClientTimeout) -> Connection:
        """A new connection, or a pooled one without unread bytes."""
        while True:
            connection = await super().connect(req, list(traces), timeout)
            transport, protocol = connection.transport, connection.protocol
            idle = transport.get_protocol() if transport is not None else None
            if transport is None or protocol is None or not isinstance(idle, _Idle):
                return connection
            transport.set_protocol(protocol)
            # The socket may have bytes that the loop has not read yet.
            if not protocol.should_close and not _readable(transport):
                return connection
            connection.close()

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        super()._release(key, protocol, should_close=should_close)
        transport = protocol.transport
        if transport is not None and not transport.is_closing():
            transport.set_protocol(_Idle(transport, protocol))


class _Idle(asyncio.Protocol):
    """The protocol of a connection that waits in the pool: any byte of the server ends the connection."""

    def __init__(self, transport: asyncio.Transport, aiohttp_protocol: ResponseHandler) -> None:
        self._transport = transport
        self._aiohttp_protocol = aiohttp_protocol

    def data_received(self, data: bytes) -> None:  # noqa: ARG002 - any byte is one too many
        self._transport.abort()

    def eof_received(self) -> bool | None:
        return self._aiohttp_protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._aiohttp_protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._aiohttp_protocol.pause_writing()

    def resume_writing(self) -> None:
        self._aiohttp_protocol.resume_writing()


def _readable(transport: asyncio.Transport) -> bool:
    """Whether the socket has bytes, or an end, that the loop has not read yet."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0 or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


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
                        # The last chunk: aiohttp reads it, and with it the trailer and the end of the answer.
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


class _Stage(Enum):
    """The stage of reading an answer. It begins with HEAD and only moves down this list."""

    HEAD = auto()  # no byte has come
    HELD = auto()  # aiohttp has the head; the body waits for `take` or `leave`
    TAKEN = auto()  # the body is read here
    AIOHTTP = auto()  # aiohttp's protocol has replaced this one and reads the rest
    CLOSED = auto()  # further bytes are dropped


class BodyProtocol(asyncio.BufferedProtocol):
    """The protocol of one connection from the head of one answer to its last chunk. Used on one loop.

    An answer that is unusual in any way is left to aiohttp: `take` says whether the body is read here.
    """

    def __init__(self, transport: asyncio.Transport, aiohttp_protocol: ResponseHandler) -> None:
        self._transport = transport
        self._aiohttp_protocol = aiohttp_protocol  # aiohttp's protocol of the connection
        self._loop = asyncio.get_running_loop()
        self._stage = _Stage.HEAD
        self._buffer = ReadBuffer()
        self._chunks: ChunkDecoder | None = None  # once the body is taken
        self._seen = 0  # `count` at the last `read`
        self._held = 0  # bytes that have come since the last `read`
        self._paused = False  # whether the transport reads nothing, so that the server has to wait
        self._fault: Exception | None = None  # how the body has ended early
        self._reader: asyncio.Future[None] | None = None  # of the `read` that waits
        self._heard = 0.0  # when the last byte came, by the loop's clock
        self._silence = 0.0  # seconds without a byte after which the body fails
        self._alarm: asyncio.TimerHandle | None = None  # of the silence

    @property
    def count(self) -> int:
        """Bytes of the body that have come."""
        return self._chunks.count if self._chunks is not None else 0

    def take(self, sink: Sink, *, silence: float) -> bool:
        """Read the body here, into `sink`; it fails after `silence` seconds without a byte.

        Returns False where aiohttp has the body already.
        """
        if self._stage is not _Stage.HELD:
            return False
        self._stage, self._chunks = _Stage.TAKEN, ChunkDecoder(sink)
        self._silence, self._heard = silence, self._loop.time()
        self._alarm = self._loop.call_later(silence, self._ring)
        self._take_in(self._chunks)
        return True

    def leave(self, length: int | None = None) -> None:
        """Leave the rest of the answer to aiohttp; `length` is that of the body, if it is known."""
        if self._stage in (_Stage.HEAD, _Stage.HELD):
            # Bytes behind the body would be taken for the next answer: the connection is not used again.
            if length is not None and self._buffer.filled > length:
                self._aiohttp_protocol.force_close()
            self._return(0)

    async def read(self) -> bool:
        """Wait until the sink was given something; False at the end of the body.

        Raises the fault that ended the body early: TimeoutError, aiohttp.ClientPayloadError, BrokenBody, or
        the exception of the sink.
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
        """Stop reading. The connection stays open; the answer closes it."""
        if self._stage is _Stage.TAKEN:
            self._stop(aiohttp.ClientPayloadError("the connection was closed"))

    def get_buffer(self, sizehint: int) -> memoryview:
        """The memory for the next read of asyncio."""
        return self._buffer.space(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes that asyncio has read from the socket, or out of TLS."""
        self._buffer.add(nbytes)
        if self._chunks is not None and self._stage is _Stage.TAKEN:
            self._heard = self._loop.time()
            self._held += nbytes
            self._take_in(self._chunks)
        elif self._stage is _Stage.HEAD:
            self._pass_head()
        elif self._stage is _Stage.CLOSED:
            self._buffer.drop(self._buffer.filled)
        elif self._buffer.filled >= LARGEST:
            self._pause()  # until `take` or `leave`

    def eof_received(self) -> bool | None:
        """The server has closed its side; aiohttp decides what that means."""
        return self._aiohttp_protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended; for a body that is read here, too early."""
        self.leave()  # aiohttp has to see the bytes before it sees the end
        if self._stage is _Stage.TAKEN:
            how = f": {exc}" if exc else ""
            fault = aiohttp.ClientPayloadError(f"the connection ended before the body did{how}")
            fault.__cause__ = exc
            self._stop(fault)
        self._aiohttp_protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """As asyncio asks; requests are aiohttp's."""
        self._aiohttp_protocol.pause_writing()

    def resume_writing(self) -> None:
        """As asyncio asks; requests are aiohttp's."""
        self._aiohttp_protocol.resume_writing()

    def _pass_head(self) -> None:
        # Usually one read brings the whole head, and a little more. Any other answer is left to aiohttp.
        buffer = self._buffer
        end = buffer.data.find(_END_OF_HEAD, 0, buffer.filled) + len(_END_OF_HEAD)
        if end < len(_END_OF_HEAD) or not _FINAL.match(buffer.data):
            self._return(0)
            return
        head = bytes(buffer.data[:end])
        buffer.drop(end)
        self._stage = _Stage.HELD
        self._aiohttp_protocol.data_received(head)

    def _take_in(self, chunks: ChunkDecoder) -> None:
        try:
            used = chunks.decode(self._buffer.data, self._buffer.filled)
        except (BrokenBody, ApiError) as fault:  # an ApiError is the sink's
            self._stop(fault)
            return
        if chunks.ended:
            self._return(used, ended=True)
        else:
            self._buffer.drop(used)
            if self._held > _MOST_HELD:
                self._pause()
        self._wake()

    def _return(self, used: int, *, ended: bool = False) -> None:
        # The last chunk has come, or no body was taken: aiohttp reads the rest, as if it were the whole body.
        self._stage = _Stage.AIOHTTP
        self._quiet()
        self._resume()
        self._transport.set_protocol(self._aiohttp_protocol)
        if rest := bytes(self._buffer.data[used : self._buffer.filled]):
            # Bytes behind the last chunk and its trailer belong to no answer that was asked for.
            if ended and rest.partition(_END_OF_HEAD)[2]:
                self._aiohttp_protocol.force_close()
            self._aiohttp_protocol.data_received(rest)

    def _stop(self, fault: Exception) -> None:
        self._stage = _Stage.CLOSED
        self._fault = fault
        self._quiet()
        self._wake()

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
            self._heard = self._loop.time()  # the server could send nothing meanwhile
            self._transport.resume_reading()

    def _ring(self) -> None:
        # One timer for each silence, and not for each read: it looks when the last byte came.
        left = self._heard + self._silence - self._loop.time()
        if left <= 0 and not self._paused:
            self._stop(TimeoutError())
        else:
            self._alarm = self._loop.call_later(left if left > 0 else self._silence, self._ring)

    def _quiet(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


class ChunkedResponse(aiohttp.ClientResponse):
    """aiohttp's answer. The body of a success that comes in chunks waits for a call of `chunks`."""

    _body_protocol: BodyProtocol | None = None

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read the head; the body waits. Raises BrokenBody for a head that gives the body two ends."""
        # Another protocol than that of aiohttp is left in place.
        transport, aiohttp_protocol = connection.transport, connection.protocol
        if (
            transport is not None
            and aiohttp_protocol is not None
            and transport.get_protocol() is aiohttp_protocol
        ):
            self._body_protocol = BodyProtocol(transport, aiohttp_protocol)
            transport.set_protocol(self._body_protocol)
        try:
            await super().start(connection)
            _check_framing(self.headers)
        finally:
            if self._body_protocol is not None and not self._comes_in_chunks():
                length = (self.headers or {}).get("Content-Length", "")
                is_number = length.isascii() and length.isdigit() and len(length) < 20
                self._body_protocol.leave(int(length) if is_number else None)
        return self

    def chunks(self, sink: Sink, *, silence: float) -> BodyProtocol | None:
        """Read the body into a sink; returns its protocol, None where aiohttp has to read the body."""
        if self._body_protocol is not None and self._body_protocol.take(sink, silence=silence):
            return self._body_protocol
        return None

    def arrived(self) -> bytes | None:
        """The whole body, if aiohttp has received it to its end already; None otherwise."""
        content = self.content
        if content.exception() is not None or not content.is_eof():
            return None
        return content.read_nowait()

    def _comes_in_chunks(self) -> bool:
        headers = self.headers if self.status == 200 else {}
        chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        return chunked and headers.get("Content-Encoding", "").lower() in _READABLE


def _check_framing(headers: CIMultiDictProxy[str]) -> None:
    # A proxy and this client must see the end of the body at the same place. Otherwise one of them takes the
    # rest of this body for the next answer (RFC 9112, 6.3).
    encodings, lengths = headers.getall("Transfer-Encoding", ()), headers.getall("Content-Length", ())
    if len(lengths) > 1 or (encodings and lengths):
        raise BrokenBody("its head says in two ways where the body ends")
    if encodings and [encoding.strip().lower() for encoding in encodings] != ["chunked"]:
        raise BrokenBody(f"its Transfer-Encoding is {', '.join(encodings)[:80]!r} and not chunked")
