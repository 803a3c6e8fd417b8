"""The wire: one HTTP request at a time, over the connections of `connections`.

It sends credentials, counts requests, has timeouts, unpacks gzip, and converts each fault to an error of
`declctl.errors`.

An API server compresses answers of more than 128 KB if the request allows it. For each MB of JSON, that takes
6 ms of the server's CPU (Go, level 1). Decompression takes 2 ms of CPU here (zlib), and saves less than 1.2
ms for TLS. So gzip costs CPU on both sides. It saves time if the network is slow, as from a laptop
(`Cluster.compresses`).
"""

import asyncio
import re
import socket
import ssl
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from errno import ECONNREFUSED
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from declctl.errors import ApiError, InvalidWrite, MalformedAnswer, Unreachable, UsageError
from declctl.kit import Clock
from declctl.kit.hosts import ServerUrl
from declctl.kit.text import exception_text, excerpt
from declctl.objects import answers
from declctl.transport.connections import (
    ConnectionPool,
    CutOff,
    Disconnected,
    HttpConnection,
    InvalidAddress,
    NoConnection,
    ProxyRefused,
    head_of,
)
from declctl.transport.credentials import Credentials, Proof
from declctl.transport.messages import (
    ApiRequest,
    BrokenBody,
    Sink,
    TransportCounters,
    answer_error,
    redirect_error,
)
from declctl.transport.warnings import WarningHeaders

SILENCE_SECONDS = 30  # without a byte, before and within an answer
TOTAL_SECONDS = 60  # for the body of an answer that is not a LIST
HEADERS_SECONDS = 60  # until the head of the answer to a LIST or a WATCH
WATCH_SLACK_SECONDS = 30  # of silence after the timeoutSeconds of a watch

# The exceptions of a request: of connections, of timeouts, and ValueError for an invalid request or answer.
CONNECTION_FAULTS = (OSError, TimeoutError, ValueError)

_RETIRED_SECONDS = 900.0  # longer than a server lets a watch run
_WARNING = "Warning"
_PLAIN = "identity"
_GZIP = "gzip"
_WINDOW_BITS = 16 + zlib.MAX_WBITS  # with the header and the checksum of gzip
_SLICE = 256 * 1024  # bytes that are unpacked together, although JSON may become a hundred times as large
_MOST_HEADS = 64  # beginnings of requests that are kept
_NOT_IN_A_PATH = re.compile(r"[^!-~]|#")
_SHOWN = 200  # characters of an error text in messages


class HttpWire:
    """The connections to one server over HTTP/1.1, a `Wire`. Used on one loop.

    `compresses` requests lists in gzip. Watches are never compressed, because the server would have to
    compress each event by itself.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        headers: Mapping[str, str],
        clock: Clock,
        counters: TransportCounters,
        warnings: WarningHeaders,
        compresses: bool,
    ) -> None:
        self._credentials = credentials
        self._server = ServerUrl.of(credentials.configuration.host).url  # for messages: without credentials
        self._headers = headers  # of every request
        self._clock = clock
        self._counters = counters
        self._warnings = warnings
        self._list_encoding = _GZIP if compresses else _PLAIN
        self._pool: ConnectionPool | None = None  # made by the first request
        self._files: object = None  # the state of the certificate files when the pool loaded them
        # The header fields of requests, but for the length, by their authorization and their types.
        self._fields: dict[tuple[str | None, str, str, str], bytes] = {}
        self._retiring: set[asyncio.Future[None]] = set()  # pools with other certificates, until their end
        self._closed = False

    async def fetch(self, request: ApiRequest) -> bytes:
        """The body of a successful answer; raises the ApiError family."""
        _, body = await self.fetch_with_headers(request)
        return body

    async def fetch_with_headers(self, request: ApiRequest) -> tuple[Mapping[str, str], bytes]:
        """The headers and the body of a successful answer; raises the ApiError family."""
        body = _WholeBody(f"{request.method} {request.path}")
        connection = await self._send(request, SILENCE_SECONDS)
        headers = connection.headers
        stream = self._stream(request, connection, body, SILENCE_SECONDS)
        try:
            # A small answer has come as a whole with its head, and needs no time limit.
            if connection.is_read:
                stream.count()
            else:
                async with asyncio.timeout(TOTAL_SECONDS):
                    while await stream.read():
                        pass
        except TimeoutError as fault:
            raise self._failed(request, fault) from fault
        finally:
            stream.close()
        return headers, bytes(body.data)

    async def open(self, request: ApiRequest, sink: Sink) -> "BodyStream":
        """The body of a LIST or a WATCH, which goes into `sink` as it is read; raises the ApiError family."""
        if not request.watch_seconds:
            connection = await self._send(request, HEADERS_SECONDS, encoding=self._list_encoding)
            return self._stream(request, connection, sink, SILENCE_SECONDS)
        connection = await self._send(request, HEADERS_SECONDS)
        # A watch without changes may be silent as long as it runs.
        return self._stream(request, connection, sink, request.watch_seconds + WATCH_SLACK_SECONDS)

    async def prepare(self) -> None:
        """Make the TLS context; raises UsageError if certificates can't be loaded."""
        try:
            with suppress(InvalidAddress):  # each request will raise it
                self._connections(await self._credentials.proof())
        except OSError as fault:
            raise UsageError(f"The certificates for {self._server} can't be loaded: {fault}") from fault

    async def close(self) -> None:
        """Close every connection; requests after this raise Unreachable."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()
        for retiring in self._retiring:
            retiring.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    def _stream(
        self, request: ApiRequest, connection: HttpConnection, sink: Sink, silence: float
    ) -> "BodyStream":
        return BodyStream(
            connection, sink, request, server=self._server, counters=self._counters, silence=silence
        )

    async def _send(
        self, request: ApiRequest, head_seconds: float, *, encoding: str = _PLAIN
    ) -> HttpConnection:
        """Send a request; returns the connection with a successful answer when its head has come.

        That has to be within `head_seconds`. The caller closes the connection.
        """
        proof = await self._credentials.proof()
        connection = await self._attempt(request, head_seconds, proof, encoding)
        # The token may have expired or been revoked: log in again, and repeat the request once.
        if connection.status == 401:
            try:
                renewed = await self._credentials.renew(proof)
            except BaseException:
                connection.abort()
                raise
            if renewed:
                connection.abort()
                proof = await self._credentials.proof()
                connection = await self._attempt(request, head_seconds, proof, encoding)
        if not 200 <= connection.status < 300:
            raise await self._refused(request, connection)
        packed = content_encoding(connection.headers)
        if packed and packed != encoding:
            connection.abort()
            raise MalformedAnswer(
                f"{self._server} answers {request.method} {request.path} packed as {packed[:40]!r}, which "
                "was not asked for. Is there a proxy that packs what passes?"
            )
        return connection

    async def _attempt(
        self, request: ApiRequest, head_seconds: float, proof: Proof, encoding: str
    ) -> HttpConnection:
        if self._closed:
            raise Unreachable(f"The client of {self._server} is closed.")
        body = _encoded(request)
        try:
            pool = self._connections(proof)
            fields = self._fields_of(request, proof, encoding, pool)
            path = request.path
            if _NOT_IN_A_PATH.search(path):
                path = _NOT_IN_A_PATH.sub(lambda found: quote(found[0]), path)
            if request.params:
                path += _query(tuple(request.params.items()))
            line = f"{request.method} {pool.target}{path} HTTP/1.1\r\n".encode()
            sent = (
                b"%b%b\r\n" % (line, fields)
                if body is None
                else b"%b%bContent-Length: %d\r\n\r\n%b" % (line, fields, len(body), body)
            )
            connection = await pool.send(
                sent, method=request.method, seconds=head_seconds, before_send=request.before_send
            )
        except CONNECTION_FAULTS as fault:
            self._counters.sent(request.method, 0)
            raise self._failed(request, fault) from fault
        self._counters.sent(request.method, connection.status)
        self._counters.answered(request.verb, connection.status)
        if _WARNING in connection.headers:
            self._warnings.read(request.method, request.path, connection.headers.getall(_WARNING))
        return connection

    def _fields_of(self, request: ApiRequest, proof: Proof, encoding: str, pool: ConnectionPool) -> bytes:
        """The header fields of a request, but for its length. Raises ValueError for text that is none."""
        authorization = proof.authorization or pool.basic
        key = authorization, request.accept, encoding, request.content_type
        fields = self._fields.get(key)
        if fields is None:
            if len(self._fields) >= _MOST_HEADS:
                self._fields.clear()
            of_request = {
                **self._headers,
                "Accept": request.accept,
                "Accept-Encoding": encoding,
                "Content-Type": request.content_type,
                **({"Authorization": authorization} if authorization else {}),
            }
            # Impersonation may have one field for each group.
            given = (self._credentials.configuration.client_session_kwargs or {}).get("headers") or {}
            taken = {name.lower() for name in of_request}
            others = [(name, value) for name, value in given.items() if name.lower() not in taken]
            fields = self._fields[key] = head_of([*pool.fields, *others, *of_request.items()])
        return fields

    def _connections(self, proof: Proof) -> ConnectionPool:
        if self._pool is None:
            self._pool = ConnectionPool(self._credentials.configuration)
            self._files = proof.files
        elif self._files != proof.files:
            # Other certificates count for new connections. Nobody is cut off: a watch on an old connection
            # goes on until the server ends it, after some minutes.
            old, self._pool = self._pool, ConnectionPool(self._credentials.configuration)
            self._fields.clear()
            self._files = proof.files
            retiring = asyncio.ensure_future(self._retire(old))
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)
        return self._pool

    async def _retire(self, pool: ConnectionPool) -> None:
        """Close a pool that gets no request any more, when its last watch has ended, or when cancelled."""
        try:
            await self._clock.sleep(_RETIRED_SECONDS)
        finally:
            await pool.close()

    async def _refused(self, request: ApiRequest, connection: HttpConnection) -> ApiError:
        """The error of an unsuccessful answer, whose body is read up to ERROR_BYTES."""
        status, headers = connection.status, connection.headers
        error: ApiError | None = redirect_error(status, headers, server=self._server)
        if error is not None:
            connection.abort()
        else:
            body = _Beginning()
            try:
                connection.take(body, silence=SILENCE_SECONDS)
                async with asyncio.timeout(SILENCE_SECONDS):
                    while len(body.data) < answers.ERROR_BYTES and await connection.read():
                        pass
            except CONNECTION_FAULTS as fault:
                return self._failed(request, fault)
            finally:
                connection.close()
            if packed := content_encoding(headers):
                body.data = bytearray(
                    f"its text is packed as {packed[:40]!r}, which was not asked for".encode()
                )
            error = answer_error(
                status, headers, bytes(body.data[: answers.ERROR_BYTES]), now=self._clock.now()
            )
        self._counters.last_error = f"{request.verb} {request.path}: {error}"
        return error

    def _failed(self, request: ApiRequest, fault: BaseException) -> Unreachable:
        error = unreachable(fault, server=self._server)
        self._counters.failed(request.verb, str(error))
        return error


@lru_cache(maxsize=256)
def _query(params: Sequence[tuple[str, str]]) -> str:
    """The query of a URL."""
    return f"?{urlencode(params)}"


def _encoded(request: ApiRequest) -> bytes | None:
    """The body of a request as JSON; None without one. Raises InvalidWrite: no attempt could send it."""
    if request.body is None:
        return None
    try:
        return msgspec.json.encode(request.body)
    except (ValueError, TypeError) as fault:
        raise InvalidWrite(
            f"the body of {request.method} {request.path} can't be written as JSON: {fault}"
        ) from fault


class BodyStream:
    """The body of a successful answer, a `Channel`. It fails after `silence` seconds without a byte.

    A WATCH counts as open until it is closed. `close` ends the connection at once, unless the body was read
    to its end; then the connection returns to the pool.
    """

    def __init__(
        self,
        connection: HttpConnection,
        sink: Sink,
        request: ApiRequest,
        *,
        server: str,
        counters: TransportCounters,
        silence: float,
    ) -> None:
        self._connection = connection
        self._request = request
        self._server = server
        self._counters = counters
        self._open = True
        self._counted = 0  # bytes of the body that `counters` has
        # The wire refuses encodings that were not requested, so a body is either gzip or plain.
        self._unpacker = Unpacker(sink) if content_encoding(connection.headers) == _GZIP else None
        connection.take(self._unpacker or sink, silence=silence)
        if request.watch_seconds:
            counters.open_watches += 1

    async def read(self) -> bool:
        """Wait until the sink has more bytes; False at the end of the body. Raises the ApiError family."""
        try:
            return await self._more() if self._unpacker is None else await self._unpacked(self._unpacker)
        except CONNECTION_FAULTS as fault:
            error = unreachable(fault, server=self._server)
            # A WATCH that breaks was answered before, so it does not count as a request without an answer.
            if self._request.watch_seconds:
                self._counters.last_error = str(error)
            else:
                self._counters.failed(self._request.verb, str(error))
            raise error from fault

    def close(self) -> None:
        """Close the connection, unless the whole body was read. May be repeated."""
        if not self._open:
            return
        self._open = False
        if self._request.watch_seconds:
            self._counters.open_watches -= 1
        self._connection.close()

    def count(self) -> None:
        """Count the bytes that have come."""
        count = self._connection.count
        self._counters.bytes_in += count - self._counted
        self._counted = count

    async def _more(self) -> bool:
        more = await self._connection.read()
        self.count()
        return more

    async def _unpacked(self, unpacker: "Unpacker") -> bool:
        if unpacker.unpack():
            await asyncio.sleep(0)  # without a wait for the network, other tasks run here
            return True
        while await self._more():
            if unpacker.unpack():
                return True
        unpacker.close()
        return False


class _WholeBody:
    """A sink that keeps the whole body, up to BODY_BYTES."""

    def __init__(self, what: str) -> None:
        self.data = bytearray()
        self._what = what

    def feed(self, part: memoryview) -> None:
        self.data += part
        if len(self.data) > answers.BODY_BYTES:
            raise MalformedAnswer(
                f"the answer to {self._what} is longer than {answers.in_mebibytes(answers.BODY_BYTES)}. Ask "
                "for less: with `limit` and `continue`, one namespace, or a selector"
            )


class _Beginning:
    """A sink that keeps what comes until its reader has enough."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed(self, part: memoryview) -> None:
        self.data += part


def content_encoding(headers: Mapping[str, str]) -> str:
    """The encoding of a body, such as `gzip`; empty for a plain body."""
    encoding = headers.get("Content-Encoding", "").strip().lower()
    return "" if encoding == _PLAIN else encoding


class Unpacker:
    """A sink for gzip, which it unpacks into another sink, one slice at a time.

    Other tasks of the loop can run between two slices of a large body.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._packed: deque[bytes] = deque()  # parts that are not unpacked yet
        self._gzip = zlib.decompressobj(_WINDOW_BITS)

    def feed(self, part: memoryview) -> None:
        """Append the next bytes of gzip."""
        self._packed.append(bytes(part))

    def unpack(self) -> bool:
        """Unpack a slice into the other sink; False if more bytes are needed for that.

        Raises BrokenBody for bytes that are no gzip, and for bytes after its end. Servers write one gzip
        member; a reader that ignores further bytes and a reader that unpacks them would see different
        answers.
        """
        while self._packed:
            if self._gzip.eof:
                raise BrokenBody("something follows the end of what gzip made")
            packed = self._packed.popleft()
            try:
                plain = self._gzip.decompress(packed, _SLICE)
            except zlib.error as fault:
                raise BrokenBody(f"it is not what gzip makes: {fault}") from fault
            if rest := self._gzip.unused_data or self._gzip.unconsumed_tail:
                self._packed.appendleft(rest)
            elif len(plain) == _SLICE and not self._gzip.eof:
                # zlib may have more plain bytes in its buffer, even if no packed bytes are left.
                self._packed.appendleft(b"")
            if plain:
                self._sink.feed(memoryview(plain))
                return True
        return False

    def close(self) -> None:
        """Note the end of the body; raises BrokenBody if that is before the end of gzip."""
        if not self._gzip.eof:
            raise BrokenBody("what gzip made of it ended too early")


def unreachable(fault: BaseException, *, server: str) -> Unreachable:
    """The error of a request without an answer: a sentence with the server, the fault, and a hint."""
    return Unreachable(_sentence(fault, server))


def _sentence(fault: Any, server: str) -> str:  # noqa: PLR0911 - a case for each kind of fault
    # Subclasses come first: most of these are an OSError, and some are a subclass of another one.
    match fault:
        case ssl.SSLCertVerificationError():
            why = fault.verify_message or _text(fault)
            return (
                f"The certificate of {server} is not accepted: {why}. Check certificate-authority(-data), "
                "tls-server-name and the server's address in the kubeconfig."
            )
        case ssl.SSLError():
            why = str(fault.reason).replace("_", " ").lower() if fault.reason else _text(fault)
            return (
                f"TLS with {server} failed: {why}. Does it speak https, and does it accept the client "
                "certificate?"
            )
        case NoConnection():
            return _not_connected(fault, server)
        case ProxyRefused():
            return f"The proxy on the way to {server} refused: {_text(fault)}."
        case TimeoutError():
            return f"{server} did not answer in time."
        case Disconnected() if fault.__cause__ is None:
            return f"{server} closed the connection without an answer."
        case Disconnected():
            return _sentence(fault.__cause__, server)
        case CutOff():
            return f"The answer of {server} was cut off: {_text(fault)}."
        case InvalidAddress():
            return f"{server} is no address of an API server: {_text(fault)}."
        case BrokenBody():
            return f"The answer of {server} is no HTTP: {_text(fault)}."
        case OSError():
            return f"The connection to {server} broke: {_cause(fault)}."
        case _:
            return f"The request to {server} failed: {type(fault).__name__}: {_text(fault)}."


def _not_connected(fault: NoConnection, server: str) -> str:
    cause = fault.__cause__
    if isinstance(cause, socket.gaierror):
        return f"The name {fault.host!r} of {server} can't be resolved: {_cause(cause)}."
    why = "no connection in time" if isinstance(cause, TimeoutError) else _cause(cause)
    if fault.is_proxy:
        return f"The proxy on the way to {server}, {fault.host}:{fault.port}, can't be reached: {why}."
    return f"{server} can't be reached: {why}."


def _cause(fault: Any) -> str:
    # asyncio joins the errors of several addresses of one host as text.
    if isinstance(fault, ConnectionRefusedError) or f"[Errno {ECONNREFUSED}]" in str(fault):
        return "connection refused"
    if isinstance(fault, ConnectionResetError):
        return "connection reset"
    return fault.strerror or _text(fault)


def _text(fault: BaseException) -> str:
    return _part(exception_text(fault)) or type(fault).__name__


def _part(text: str) -> str:
    return excerpt(text, most=_SHOWN).rstrip(".")
