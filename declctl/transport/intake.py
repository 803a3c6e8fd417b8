"""Bodies of long answers, in reads as large as the socket gives them.

aiohttp makes the connection, writes the request and reads the head of the answer. If the body comes
in chunks, as those of API servers do, it is then taken in here, on the way that asyncio has for it:
the transport's protocol is exchanged for one that reads TLS straight into a buffer. With the last
chunk everything is aiohttp's again, and the connection goes back into its pool.

For an event of 4.8 KB TLS alone costs 7 µs of CPU. From there to its line aiohttp's reader, which calls
five Python functions for each chunk, costs 9 µs more, and this 3 µs.
"""

import asyncio
from enum import Enum, auto

import aiohttp
from aiohttp.connector import Connection

from declctl.errors import ApiError
from declctl.transport.chunked import ChunkDecoder
from declctl.transport.read_buffer import LARGEST, ReadBuffer
from declctl.transport.request import BrokenBody, Sink

_END_OF_HEAD = b"\r\n\r\n"
_MOST_HELD = 256 * 1024  # bytes that nobody has read yet; then the server has to wait
_READABLE = ("", "identity", "gzip")


class _Stage(Enum):
    HEAD = auto()  # nothing has come
    HELD = auto()  # aiohttp has the head; the rest waits for somebody to say who reads it
    TAKEN = auto()  # the body is read here
    AIOHTTPS = auto()  # everything is aiohttp's, and this is out of the way
    CLOSED = auto()  # whatever comes is of no interest


class Intake(asyncio.BufferedProtocol):
    """The protocol of one connection from the head of one answer to its last chunk.

    Whatever it is not sure of is left to aiohttp: `take` says whether the body is read here.
    """

    def __init__(self, transport: asyncio.Transport, aiohttps: asyncio.Protocol) -> None:
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

    def leave(self) -> None:
        """Leave everything that has come, and all that will, to aiohttp."""
        if self._stage in (_Stage.HEAD, _Stage.HELD):
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
        """Nobody reads any more; the connection is left to whoever closes it."""
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
        if end < len(_END_OF_HEAD) or not buffer.data.startswith(b"HTTP/1.1 200"):
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
            self._return(used)
        else:
            self._buffer.drop(used)
            if self._held > _MOST_HELD:
                self._pause()
        self._wake()

    def _return(self, used: int) -> None:
        # The last chunk has come, or nothing was taken: for aiohttp, the body is what follows.
        self._stage = _Stage.AIOHTTPS
        self._quiet()
        self._resume()
        self._transport.set_protocol(self._aiohttps)
        if rest := bytes(self._buffer.data[used : self._buffer.filled]):
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


class Answer(aiohttp.ClientResponse):
    """aiohttp's answer. The body of a success that comes in chunks waits for whoever asks for `chunks`."""

    _intake: Intake | None = None

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read the head; the body waits."""
        transport, aiohttps = connection.transport, connection.protocol
        if transport is not None and aiohttps is not None and transport.get_protocol() is aiohttps:
            self._intake = Intake(transport, aiohttps)
            transport.set_protocol(self._intake)
        try:
            await super().start(connection)
        finally:
            if self._intake is not None and not self._comes_in_chunks():
                self._intake.leave()
        return self

    def chunks(self, sink: Sink, *, silence: float) -> Intake | None:
        """The body, to be read into a sink; None where it can only be read as aiohttp does."""
        if self._intake is not None and self._intake.take(sink, silence=silence):
            return self._intake
        return None

    def _comes_in_chunks(self) -> bool:
        headers = self.headers if self.status == 200 else {}
        chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        return chunked and headers.get("Content-Encoding", "").lower() in _READABLE
