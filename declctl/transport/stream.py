"""The body of one LIST or WATCH: read, counted, and closed at once when nobody wants it any more."""

import asyncio
from typing import Protocol

import aiohttp

from declctl.errors import Unreachable
from declctl.transport.bodies import Answer
from declctl.transport.compression import Unpacker, content_encoding
from declctl.transport.faults import CONNECTION_FAULTS, unreachable
from declctl.transport.request import Request, Sink
from declctl.transport.statistics import Tally

_MOST = 256 * 1024  # bytes that are taken in one go from what aiohttp holds


class Stream:
    """The body of a successful answer. It fails after `silence` seconds in which nothing came.

    A WATCH is counted as open until it is closed. `close` ends the connection at once, whatever else is still
    in it; after the last part the connection is kept for the next request.
    """

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        sink: Sink,
        request: Request,
        *,
        server: str,
        tally: Tally,
        silence: float,
    ) -> None:
        self._response = response
        self._request = request
        self._server = server
        self._tally = tally
        self._open = True
        self._counted = 0
        # Whether gzip was asked for, the wire has seen to.
        self._unpacker = Unpacker(sink) if content_encoding(response.headers) == "gzip" else None
        into = self._unpacker or sink
        taken = response.chunks(into, silence=silence) if isinstance(response, Answer) else None
        self._body: _Body = taken or _Content(response, into, silence=silence)
        if request.watch_seconds:
            tally.open_watches += 1

    async def read(self) -> bool:
        """Wait until the sink was given more; False if there will be no more. Raises the ApiError family."""
        try:
            return await self._more() if self._unpacker is None else await self._unpacked(self._unpacker)
        except CONNECTION_FAULTS as fault:
            raise self._failed(fault) from fault

    def close(self) -> None:
        """Close the connection unless everything was read; twice is harmless."""
        if not self._open:
            return
        self._open = False
        if self._request.watch_seconds:
            self._tally.open_watches -= 1
        self._body.close()
        self._response.close()

    async def _more(self) -> bool:
        more = await self._body.read()
        count = self._body.count
        self._tally.bytes_in += count - self._counted
        self._counted = count
        return more

    async def _unpacked(self, unpacker: Unpacker) -> bool:
        if unpacker.unpack():
            await asyncio.sleep(0)  # there was no need to wait: let others go on
            return True
        while await self._more():
            if unpacker.unpack():
                return True
        unpacker.close()
        return False

    def _failed(self, fault: BaseException) -> Unreachable:
        error = unreachable(fault, server=self._server)
        if self._request.watch_seconds:
            self._tally.last_error = str(error)
        else:
            self._tally.failed(self._request.verb, str(error))
        return error


class _Body(Protocol):
    """A body that goes into a sink. `count` is how many bytes have come."""

    @property
    def count(self) -> int: ...

    async def read(self) -> bool: ...

    def close(self) -> None: ...


class _Content:
    """A body that aiohttp reads: one with a length, or one that ends with its connection."""

    def __init__(self, response: aiohttp.ClientResponse, sink: Sink, *, silence: float) -> None:
        self._content = response.content
        self._sink = sink
        self._silence = silence
        self.count = 0

    async def read(self) -> bool:
        async with asyncio.timeout(self._silence):
            part = await self._content.read(_MOST)
        if not part:
            return False
        if len(part) == _MOST:
            await asyncio.sleep(0)  # the next part may be here already: let others go on
        self.count += len(part)
        self._sink.feed(memoryview(part))
        return True

    def close(self) -> None:
        """Its connection is the answer's."""
