"""The wire: one HTTP request at a time, over the official client's connections.

It shows credentials, counts, keeps deadlines, and turns whatever goes wrong into errors of
`declctl.errors`. This module loads aiohttp and the official client (0.5 s), so it is itself only
loaded when there is a cluster to talk to.
"""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import urlencode

import aiohttp

from declctl.errors import ApiError, MalformedAnswer, Unreachable, UsageError
from declctl.kit import Clock
from declctl.objects import limits
from declctl.transport.answers import answer_error, redirect_error
from declctl.transport.compression import content_encoding
from declctl.transport.connections import Connections, keep_alive
from declctl.transport.credentials import Credentials, Proof
from declctl.transport.faults import CONNECTION_FAULTS, unreachable
from declctl.transport.kubeconfig_checks import Address
from declctl.transport.request import Request, Sink
from declctl.transport.statistics import Tally
from declctl.transport.stream import Stream

CONNECT_SECONDS = 10
SILENCE_SECONDS = 30  # before and within an answer
TOTAL_SECONDS = 60  # a whole answer that is not a LIST
HEADERS_SECONDS = 60  # until a LIST or a WATCH begins
WATCH_SLACK_SECONDS = 30  # after the timeoutSeconds of a watch, when the server should have ended it
_LIMITS = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)  # this module keeps the others
_PLAIN = "identity"
_GZIP = "gzip"


class HttpWire:
    """The connections to one server, over HTTP/1.1. Used on one loop.

    Where it `compresses`, lists are asked for in gzip. Watches never are: each event would have to be packed
    alone.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        headers: Mapping[str, str],
        clock: Clock,
        tally: Tally,
        compresses: bool,
    ) -> None:
        self._credentials = credentials
        self._base = credentials.configuration.host
        self._server = Address.of(self._base).url  # for people: without the password that may be in it
        self._headers = headers
        self._clock = clock
        self._tally = tally
        self._list_encoding = _GZIP if compresses else _PLAIN
        self._connections: Connections | None = None
        self._files: object = None
        self._closed = False

    async def fetch(self, request: Request) -> bytes:
        """The body of a successful answer; raises the ApiError family."""
        body = _Whole(f"{request.method} {request.path}")
        response = await self._send(request, SILENCE_SECONDS)
        stream = Stream(
            response, body, request, server=self._server, tally=self._tally, silence=SILENCE_SECONDS
        )
        try:
            async with asyncio.timeout(TOTAL_SECONDS):
                while await stream.read():
                    pass
        except TimeoutError as fault:
            raise self._failed(request, fault) from fault
        finally:
            stream.close()
        return bytes(body.data)

    async def open(self, request: Request, sink: Sink) -> Stream:
        """The body of a LIST or a WATCH, which goes into `sink` as it is read; raises the ApiError family."""
        encoding = _PLAIN if request.watch_seconds else self._list_encoding
        response = await self._send(request, HEADERS_SECONDS, encoding=encoding)
        if request.watch_seconds:
            keep_alive(response)
        return Stream(
            response,
            sink,
            request,
            server=self._server,
            tally=self._tally,
            silence=request.watch_seconds + WATCH_SLACK_SECONDS if request.watch_seconds else SILENCE_SECONDS,
        )

    async def prepare(self) -> None:
        """Make the TLS context; raises UsageError when certificates can't be loaded."""
        try:
            await self._connect(await self._credentials.proof())
        except OSError as fault:
            raise UsageError(f"The certificates for {self._server} can't be loaded: {fault}") from fault

    async def close(self) -> None:
        """Close every connection; requests after this raise Unreachable."""
        self._closed = True
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close()

    async def _send(
        self, request: Request, patience: float, *, encoding: str = _PLAIN
    ) -> aiohttp.ClientResponse:
        proof = await self._credentials.proof()
        response = await self._attempt(request, patience, proof, encoding)
        if response.status == 401:
            try:
                renewed = await self._credentials.renew(proof)
            except BaseException:
                response.close()
                raise
            if renewed:
                response.close()
                response = await self._attempt(request, patience, await self._credentials.proof(), encoding)
        if not 200 <= response.status < 300:
            raise await self._refused(request, response)
        packed = content_encoding(response.headers)
        if packed and packed != encoding:
            response.close()
            raise MalformedAnswer(
                f"{self._server} answers {request.method} {request.path} packed as {packed[:40]!r}, which "
                "was not asked for. Is there a proxy that packs what passes?"
            )
        return response

    async def _attempt(
        self, request: Request, patience: float, proof: Proof, encoding: str
    ) -> aiohttp.ClientResponse:
        if self._closed:
            raise Unreachable(f"The client of {self._server} is closed.")
        query = f"?{urlencode(request.params)}" if request.params else ""
        headers = {
            **self._headers,
            "Accept": request.accept,
            "Accept-Encoding": encoding,
            "Content-Type": request.content_type,
        }
        if proof.authorization:
            headers["Authorization"] = proof.authorization
        try:
            connections = await self._connect(proof)
            async with asyncio.timeout(patience):
                answer = await connections.request(
                    request.method,
                    f"{self._base}{request.path}{query}",
                    headers=headers,
                    body=request.body,
                    _request_timeout=_LIMITS,
                )
        except CONNECTION_FAULTS as fault:
            raise self._failed(request, fault) from fault
        response: aiohttp.ClientResponse = answer.response
        self._tally.answered(request.verb, response.status)
        return response

    async def _connect(self, proof: Proof) -> Connections:
        if self._connections is None:
            self._connections = Connections(self._credentials.configuration)
            self._files = proof.files
        elif self._files != proof.files:
            # Certificates rotated. What runs over the old ones ends now, as with client-go's
            # rotating dialer.
            renewed = Connections(self._credentials.configuration)
            old, self._connections, self._files = self._connections, renewed, proof.files
            await old.close()
        return self._connections

    async def _refused(self, request: Request, response: aiohttp.ClientResponse) -> ApiError:
        if (elsewhere := redirect_error(response.status, response.headers, server=self._server)) is not None:
            response.close()
            self._tally.last_error = f"{request.verb} {request.path}: {elsewhere}"
            return elsewhere
        body = bytearray()
        try:
            async with response, asyncio.timeout(SILENCE_SECONDS):
                while len(body) < limits.ERROR_BYTES and (part := await response.content.readany()):
                    body += part
        except CONNECTION_FAULTS as fault:
            return self._failed(request, fault)
        if packed := content_encoding(response.headers):
            body = bytearray(f"its text is packed as {packed[:40]!r}, which was not asked for".encode())
        now: datetime = self._clock.now()
        error = answer_error(response.status, response.headers, bytes(body[: limits.ERROR_BYTES]), now=now)
        self._tally.last_error = f"{request.verb} {request.path}: {error}"
        return error

    def _failed(self, request: Request, fault: BaseException) -> Unreachable:
        error = unreachable(fault, server=self._server)
        self._tally.failed(request.verb, str(error))
        return error


class _Whole:
    """A sink that keeps everything, up to a limit."""

    def __init__(self, what: str) -> None:
        self.data = bytearray()
        self._what = what

    def feed(self, part: memoryview) -> None:
        self.data += part
        if len(self.data) > limits.BODY_BYTES:
            raise MalformedAnswer(
                f"the answer to {self._what} is longer than {limits.in_mebibytes(limits.BODY_BYTES)}. Ask "
                "for less: with `limit` and `continue`, one namespace, or a selector"
            )
