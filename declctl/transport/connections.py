"""The connections to one server: a pool that strangers can't misuse, and bodies that are read in large parts.

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
from collections.abc import Sequence
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
from declctl.transport.messages import BrokenBody, Sink
from declctl.transport.official import refuse_redirect

_SMALLEST = 16 * 1024  # one TLS record
LARGEST = 272 * 1024  # asyncio's TLS reads 256 KB at a time
_SMALL_READS = 64  # in a row, after which a big buffer is given back
_SIZE = rb"([0-9A-Fa-f]{1,15})[ \t]{0,9}(?:;[^\r\n]{0,%d})?\r\n" % answers.CHUNK_HEADER_BYTES
_FIRST_HEADER = re.compile(_SIZE)
_HEADER = re.compile(rb"\r\n" + _SIZE)  # with the end of the chunk before it
_CRLF = b"\r\n"
_END_OF_HEAD = b"\r\n\r\n"
_FINAL = re.compile(rb"HTTP/1\.1 [2-5]")  # what announces another answer (1xx) is aiohttp's
_MOST_HELD = 256 * 1024  # bytes that nobody has read yet; then the server has to wait
_READABLE = ("", "identity", "gzip")
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class ReadBuffer:
    """Bytes that were read and not used yet, at its beginning, and space for more behind them.

    `data[:filled]` are the bytes. It grows while reads fill it, and shrinks when they have been small
    for a while.
    """

    def __init__(self) -> None:
        self.data = bytearray(_SMALLEST)
        self.filled = 0
        self._view = memoryview(self.data)
        self._small = 0
        self._tight = False  # the last read filled it

    def space(self, expected: int) -> memoryview:
        """Where the next read goes, never empty; `expected` bytes are known to be there, -1 if nothing is."""
        size, needed = len(self.data), self.filled + expected
        if needed > size or self._tight:
            self._resize(max(min(max(needed, 4 * size), LARGEST), self.filled + _SMALLEST))
        elif self._small > _SMALL_READS and size > _SMALLEST and self.filled < _SMALLEST // 2:
            self._resize(_SMALLEST)
        return self._view[self.filled :] if self.filled else self._view

    def add(self, count: int) -> None:
        """So many bytes were read into the space."""
        self.filled += count
        self._tight = self.filled == len(self.data)
        self._small = self._small + 1 if count < _SMALLEST // 2 else 0

    def drop(self, count: int) -> None:
        """The first so many bytes were used."""
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
    """Takes the content of chunks out of a buffer and gives it to a sink, as far as it has come.

    `count` is the number of bytes that the sink got. `ended` is true when the next chunk in the buffer is the
    last one, which has no content. It stays in the buffer, with its trailer fields.
    """

    def __init__(self, sink: Sink) -> None:
        self.count = 0
        self.ended = False
        self._sink = sink
        self._header = _FIRST_HEADER
        self._left = 0  # bytes that the chunk at hand still has

    def decode(self, buffer: bytearray, end: int) -> int:
        """Take what is in `buffer[:end]`; returns how far it was used.

        The sink is fed with one chunk at a time, or with as much of one as is there. What was not used
        belongs at the beginning of the next buffer. Raises BrokenBody for what is no chunk, and what
        the sink raises.
        """
        feed = self._sink.feed
        at, left = 0, self._left
        with memoryview(buffer) as view:
            while not self.ended:
                if not left:
                    header = self._header.match(buffer, at, end)
                    if header is None:
                        self._check(bytes(view[at:end]))
                        break
                    self._left = left = int(header[1], 16)
                    if not left:
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
        # A header need not be here in full; but what is here must be able to become one.
        before = _CRLF if self._header is _HEADER else b""
        follows = begin[len(before) :]
        if (
            not before.startswith(begin[: len(before)])
            or _CRLF in follows
            or len(begin) > answers.CHUNK_HEADER_BYTES
        ):
            raise BrokenBody(f"a chunk begins with {begin.strip()[:40]!r}")


class _Stage(Enum):
    HEAD = auto()  # nothing has come
    HELD = auto()  # aiohttp has the head; the rest waits for somebody to say who reads it
    TAKEN = auto()  # the body is read here
    AIOHTTPS = auto()  # everything is aiohttp's, and this is out of the way
    CLOSED = auto()  # whatever comes is of no interest


class BodyProtocol(asyncio.BufferedProtocol):
    """The protocol of one connection from the head of one answer to its last chunk.

    Whatever it is not sure of is left to aiohttp: `take` says whether the body is read here.
    """

    def __init__(self, transport: asyncio.Transport, aiohttps: ResponseHandler) -> None:
        self._transport = transport
        self._aiohttps = aiohttps
        self._loop = asyncio.get_running_loop()
        self._stage = _Stage.HEAD
        self._buffer = ReadBuffer()
        self._chunks: ChunkDecoder | None = None
        self._seen = self._held = 0
        self._paused = False
        self._fault: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._heard = 0.0
        self._silence = 0.0
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """Bytes of the body that have come."""
        return self._chunks.count if self._chunks is not None else 0

    def take(self, sink: Sink, *, silence: float) -> bool:
        """Read the body here, into `sink`; it fails after so many seconds without a byte.

        False where it is too late: aiohttp has it.
        """
        if self._stage is not _Stage.HELD:
            return False
        self._stage, self._chunks = _Stage.TAKEN, ChunkDecoder(sink)
        self._silence, self._heard = silence, self._loop.time()
        self._alarm = self._loop.call_later(silence, self._ring)
        self._take_in(self._chunks)
        return True

    def leave(self, length: int | None = None) -> None:
        """Leave everything that has come, and all that will, to aiohttp; `length` is the body's, if known."""
        if self._stage in (_Stage.HEAD, _Stage.HELD):
            if length is not None and self._buffer.filled > length:
                self._aiohttps.force_close()
            self._return(0)

    async def read(self) -> bool:
        """Wait until the sink was given something; False at the end of the body.

        Raises what ended it early: TimeoutError, aiohttp.ClientPayloadError, BrokenBody, or what the
        sink raised.
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
        """Stop reading. The connection stays open; its owner closes it."""
        if self._stage is _Stage.TAKEN:
            self._stop(aiohttp.ClientPayloadError("the connection was closed"))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where asyncio reads the next bytes into."""
        return self._buffer.space(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Here bytes come from the socket, or out of TLS."""
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
            self._pause()

    def eof_received(self) -> bool | None:
        """The server has nothing more to say."""
        return self._aiohttps.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended; for a body that is taken here, too early."""
        self.leave()
        if self._stage is _Stage.TAKEN:
            how = f": {exc}" if exc else ""
            fault = aiohttp.ClientPayloadError(f"the connection ended before the body did{how}")
            fault.__cause__ = exc
            self._stop(fault)
        self._aiohttps.connection_lost(exc)

    def pause_writing(self) -> None:
        """As asyncio asks; requests are aiohttp's."""
        self._aiohttps.pause_writing()

    def resume_writing(self) -> None:
        """As asyncio asks; requests are aiohttp's."""
        self._aiohttps.resume_writing()

    def _pass_head(self) -> None:
        # One read brings the whole head, and a little more. What is not so, aiohttp reads.
        buffer = self._buffer
        end = buffer.data.find(_END_OF_HEAD, 0, buffer.filled) + len(_END_OF_HEAD)
        if end < len(_END_OF_HEAD) or not _FINAL.match(buffer.data):
            self._return(0)
            return
        head = bytes(buffer.data[:end])
        buffer.drop(end)
        self._stage = _Stage.HELD
        self._aiohttps.data_received(head)

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
        # The last chunk has come, or nothing was taken: for aiohttp, the body is what follows.
        self._stage = _Stage.AIOHTTPS
        self._quiet()
        self._resume()
        self._transport.set_protocol(self._aiohttps)
        if rest := bytes(self._buffer.data[used : self._buffer.filled]):
            if ended and rest.partition(_END_OF_HEAD)[2]:  # something follows the last chunk and its trailer
                self._aiohttps.force_close()
            self._aiohttps.data_received(rest)

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
            self._heard = self._loop.time()  # it could say nothing
            self._transport.resume_reading()

    def _ring(self) -> None:
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
    """aiohttp's answer. The body of a success that comes in chunks waits for whoever asks for `chunks`."""

    _intake: BodyProtocol | None = None

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read the head; the body waits. Raises BrokenBody for a head that gives the body two ends."""
        transport, aiohttps = connection.transport, connection.protocol
        if transport is not None and aiohttps is not None and transport.get_protocol() is aiohttps:
            self._intake = BodyProtocol(transport, aiohttps)
            transport.set_protocol(self._intake)
        try:
            await super().start(connection)
            _check_framing(self.headers)
        finally:
            if self._intake is not None and not self._comes_in_chunks():
                self._intake.leave(self._length())
        return self

    def chunks(self, sink: Sink, *, silence: float) -> BodyProtocol | None:
        """The body, to be read into a sink; None where it can only be read as aiohttp does."""
        if self._intake is not None and self._intake.take(sink, silence=silence):
            return self._intake
        return None

    def _length(self) -> int | None:
        length = (self.headers or {}).get("Content-Length", "")
        return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else None

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


class ConnectionPool(RESTClientObject):
    """A pool without a limit: each watch holds a connection for as long as it runs.

    Answers are of a class of ours, unless the configuration asks for another one. Used on one loop.
    """

    def __init__(self, configuration: OfficialConfiguration) -> None:
        configured = copy(configuration)
        choose_proxy(configured)  # for a configuration that is somebody else's
        options = configured.client_session_kwargs or {}
        configured.client_session_kwargs = {
            "response_class": ChunkedResponse,
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
