"""The open connections of the admin address: how long they may take, and how many there may be.

The address shares the loop and the file descriptors of the machinery. A peer that opens connections and
says nothing, sends its request a byte at a time or does not read its answer must cost nothing that matters:
liveness probes are answered all the while.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Handler

from declctl.admin.answers import Reason, Refusals, refusal
from declctl.kit import Clock

HEAD_SECONDS = 10.0  # from the first byte of a request, or from the connection, to the end of its head
IDLE_SECONDS = 30.0  # between two requests, and for a peer that does not read
MOST_CONNECTIONS = 64
MOST_REQUESTS = 16  # at a time, besides the probes
SWEEP_SECONDS = 1.0
PROBES = ("/healthz", "/readyz")


class Transport(Protocol):
    """What is needed of asyncio's transport."""

    def abort(self) -> None:
        """Close it at once; what is not sent is dropped."""
        ...

    def get_write_buffer_size(self) -> int:
        """Bytes that the peer has not taken yet."""
        ...


class Connection:
    """One open connection. Times are on the clock of its table."""

    __slots__ = ("deadline", "requests", "since", "transport", "unsent", "waits_for_head", "whose")

    def __init__(self, transport: Transport, whose: str, now: float) -> None:
        self.transport = transport
        self.whose = whose  # the address of the peer
        self.requests = 0  # requests that are being answered: 0 or 1
        self.since = now  # when it last began to wait for its peer
        self.deadline = now + HEAD_SECONDS
        self.waits_for_head = True  # the head of its first request, or of one that has begun, is not complete
        self.unsent = 0  # bytes that the peer had not taken at the last look


class Connections:
    """All open connections of one address. Used on one loop.

    When there are too many, the connection is closed that has waited longest, among those of the peer that
    has most. A connection whose request is being answered is never closed for that.
    """

    def __init__(self, clock: Clock, refusals: Refusals, *, most: int = MOST_CONNECTIONS) -> None:
        self._clock = clock
        self._refusals = refusals
        self._most = most
        self._open: dict[object, Connection] = {}
        self._answering = 0  # requests that are being answered, without probes

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, transport: Transport, whose: str) -> None:
        """A peer has connected."""
        self._open[transport] = Connection(transport, whose, self._clock.monotonic())
        if len(self._open) > self._most:
            waiting = [each for each in self._open.values() if not each.requests]
            held = Counter(each.whose for each in waiting)
            last = min(waiting, key=lambda each: (-held[each.whose], each.since))
            self._close(
                last,
                Reason.CONNECTIONS,
                f"a connection from {last.whose} was closed: there were {len(self._open)} at a time",
            )

    def received(self, transport: Transport) -> None:
        """Bytes came in."""
        one = self._open.get(transport)
        if one is not None and not one.requests and not one.waits_for_head:
            one.waits_for_head = True
            one.deadline = self._clock.monotonic() + HEAD_SECONDS

    def closed(self, transport: Transport) -> None:
        """It is over."""
        self._open.pop(transport, None)

    @web.middleware
    async def watch(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keep account of a request while it is answered; 503 if too many are, unless it is a probe."""
        one = self._open.get(request.transport)
        if one is not None:
            one.requests += 1
        counts = request.path not in PROBES
        self._answering += counts
        try:
            if counts and self._answering > MOST_REQUESTS:
                sentence = f"{MOST_REQUESTS} requests are being answered; ask again in a moment."
                self._refusals.request(Reason.BUSY, request, sentence)
                busy = refusal(503, sentence)
                busy.headers["Retry-After"] = "1"
                return busy
            return await handler(request)
        finally:
            self._answering -= counts
            if one is not None:
                one.requests -= 1
                self._waits(one)

    def sweep(self) -> None:
        """Close what has taken too long."""
        now = self._clock.monotonic()
        for one in [each for each in self._open.values() if not each.requests]:
            before, one.unsent = one.unsent, one.transport.get_write_buffer_size()
            if one.unsent and (one.unsent < before or not before):
                one.deadline = now + IDLE_SECONDS  # the peer reads, however slowly
            if now < one.deadline:
                continue
            if one.unsent:
                what = f"{one.whose} did not read its answer for {IDLE_SECONDS:g} s"
                self._close(one, Reason.TIMEOUT, what)
            elif one.waits_for_head:
                what = f"{one.whose} sent no whole request within {HEAD_SECONDS:g} s"
                self._close(one, Reason.TIMEOUT, what)
            else:
                self._abort(one)  # the usual end of a connection that nobody uses

    def _waits(self, one: Connection) -> None:
        one.since = self._clock.monotonic()
        one.deadline = one.since + IDLE_SECONDS
        one.waits_for_head = False
        one.unsent = 0

    def _close(self, one: Connection, reason: Reason, sentence: str) -> None:
        self._refusals.add(reason, sentence)
        self._abort(one)

    def _abort(self, one: Connection) -> None:
        del self._open[one.transport]
        one.transport.abort()


class Accounted(asyncio.Protocol):
    """A connection of aiohttp's server, with its account kept in a table."""

    def __init__(self, inner: asyncio.Protocol, table: Connections) -> None:
        self._inner = inner
        self._table = table
        self._transport: asyncio.Transport | None = None
        # These go straight to aiohttp: the account does not need them.
        self.eof_received = inner.eof_received
        self.pause_writing = inner.pause_writing
        self.resume_writing = inner.resume_writing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._inner.connection_made(transport)
        self._table.opened(transport, str(peer[0]) if peer else "an unknown peer")

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        assert self._transport is not None
        self._table.received(self._transport)
        self._inner.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        assert self._transport is not None
        self._table.closed(self._transport)
        self._inner.connection_lost(exc)


def accounted(make: Callable[[], asyncio.Protocol], table: Connections) -> Callable[[], asyncio.Protocol]:
    """A factory of protocols whose connections are in the table."""
    return lambda: Accounted(make(), table)
