"""TLS of the admin address: a certificate from files that may be replaced, and handshakes with limits.

The files are read again every ten seconds, as by controller-runtime's certificate watcher. New connections
have the new certificate, and open ones go on. A pair that can't be used changes nothing.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from declctl.errors import UsageError
from declctl.kit import Clock
from declctl.kit.files import CONFIG_BYTES, read_file_in_time, shown
from declctl.runtime.log import Log

LOOK_SECONDS: Final = 10.0  # between two reads of the files
HANDSHAKE_SECONDS: Final = 10.0
_SHUTDOWN_SECONDS = 1.0  # for the end of TLS on a connection that is closed
_HTTP_REQUEST = "HTTP_REQUEST"  # OpenSSL's reason for bytes that begin as GET, HEAD, POST or PUT do
_SENTENCE = b'{"error": "This address speaks TLS, and the request was plain HTTP; ask with https://."}\n'
_SPEAKS_TLS = (  # as Go's server answers
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_SENTENCE), _SENTENCE)
)


class KeyPair(NamedTuple):
    """The paths of a certificate with its chain, and of its private key."""

    cert_file: Path
    key_file: Path


class ServerCertificate:
    """The certificate of a server, which follows its files. Used on one loop.

    `context` is for handshakes, and stays the same object.
    """

    def __init__(self, pair: KeyPair, log: Log | None = None) -> None:
        self.pair = pair
        self._log = log
        # The files as they were when they were tried last; the text of the error if they could not be read.
        self._read: tuple[bytes, bytes] | None = None
        self._current: ssl.SSLContext | None = None  # with the newest pair that can be used
        self.context = _new_context()
        # Called in each handshake, also without a server name: it gives the connection the newest pair.
        self.context.sni_callback = self._choose

    async def load(self) -> None:
        """Read the files for the first time. Raises UsageError if they can't be used."""
        fault = await self._try()
        if fault is not None:
            raise UsageError(
                f"The certificate of the admin address can't be used: {fault} (spec.admin.tls names "
                f"{shown(self.pair.cert_file)} and {shown(self.pair.key_file)})."
            )

    async def refresh(self) -> None:
        """Read the files again. A new pair is used and logged; a faulty one is logged once."""
        before = self._read
        fault = await self._try()
        if self._log is None or self._read == before:
            return
        if fault is None:
            self._log.info("admin address: new connections have the new certificate")
        else:
            self._log.error(
                f"admin address: the certificate before is kept, as the new files can't be used: {fault}"
            )

    async def follow(self, clock: Clock) -> None:
        """Refresh at intervals, until it is cancelled."""
        while True:
            await clock.sleep(LOOK_SECONDS)
            await self.refresh()

    async def _try(self) -> str | None:
        """Use the files as they are now, if they have changed; returns what is wrong with them, or None."""
        try:
            # In a thread: the files may be on a mount that hangs.
            found, context = await asyncio.to_thread(_load, self.pair, self._read)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            # In the place of the files, so that `refresh` logs the same error once.
            self._read = (str(error).encode(), b"")
            return str(error)
        except _Unusable as error:
            self._read = error.read
            return str(error)
        self._read = found
        if context is not None:
            self._current = context
        return None

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        if self._current is not None:
            connection.context = self._current


def certificate_fault(pair: KeyPair) -> str | None:
    """Why a server keeps another certificate than that of these files; None if they can be used. Blocks."""
    try:
        _load(pair, None)
    except (OSError, ValueError, _Unusable) as error:
        return str(error)
    return None


class _Unusable(Exception):
    """A pair that was read and is faulty."""

    def __init__(self, read: tuple[bytes, bytes], why: str) -> None:
        super().__init__(why)
        self.read = read


def _new_context() -> ssl.SSLContext:
    return ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)


def _load(
    pair: KeyPair, before: tuple[bytes, bytes] | None
) -> tuple[tuple[bytes, bytes], ssl.SSLContext | None]:
    """The content of the files, with a context for them, or with None if they are as `before`. Blocks.

    Raises _Unusable for files that are no pair, and OSError if they can't be read, or change meanwhile.
    """

    def read() -> tuple[bytes, bytes]:
        cert, key = (read_file_in_time(path, most=CONFIG_BYTES, name="declctl-certificate") for path in pair)
        return cert, key

    found = read()
    if found == before:
        return found, None
    context = _new_context()
    try:
        # Without the function, a key with a password would be asked for on the terminal.
        context.load_cert_chain(pair.cert_file, pair.key_file, password=lambda: "")
    except (ssl.SSLError, ValueError, OSError) as error:
        # OpenSSL gives no reason for a file without a block that it can read.
        reason = getattr(error, "reason", None) or "there is no certificate or no key"
        raise _Unusable(found, reason.replace("_", " ").lower()) from error
    if read() != found:
        raise OSError("the files change while they are read")
    return found, context


class TlsHandshake(asyncio.Protocol):
    """A connection until its TLS handshake has ended. It counts as one that waits for its client.

    - `make`: makes the protocol of the encrypted connection.
    - `opened`, `closed`: called with the bare transport, before and after the handshake.
    - `tasks`: holds the task of the handshake while it runs.
    """

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        certificate: ServerCertificate,
        *,
        opened: Callable[[asyncio.Transport], None],
        closed: Callable[[asyncio.Transport, str | None], None],
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._make = make
        self._certificate = certificate
        self._opened = opened
        self._closed = closed
        self._tasks = tasks
        self._received = b""  # before `start_tls`: uvloop reads also if reading is paused at the beginning

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        transport = cast("asyncio.Transport", transport)
        self._opened(transport)
        task = asyncio.create_task(self._shake(transport), name="admin TLS handshake")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def data_received(self, data: bytes) -> None:
        """Keep the first bytes of the handshake."""
        self._received += data

    async def _shake(self, transport: asyncio.Transport) -> None:
        transport.pause_reading()
        loop = asyncio.get_running_loop()
        early = EarlyBytes(self._make())
        fault: str | None = None
        encrypted = None
        # A second descriptor: asyncio closes its own before this method learns that a handshake has failed.
        second = _second_descriptor(transport)
        if self._received:
            # `start_tls` gives the transport another protocol, which begins in the next turn of the loop.
            loop.call_soon(loop.call_soon, _pass_on, transport, self._received)
        try:
            encrypted = await loop.start_tls(
                transport,
                early,
                self._certificate.context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
        except (OSError, ssl.SSLError) as error:
            fault = getattr(error, "reason", None) or str(error) or type(error).__name__
            if fault == _HTTP_REQUEST:
                fault = "it speaks plain HTTP, and this address TLS"
                _send_at_once(second, _SPEAKS_TLS)
            transport.abort()
        finally:
            if second is not None:
                second.close()
            self._closed(transport, fault)
        if encrypted is not None:
            early.begin(encrypted)


def _pass_on(transport: asyncio.Transport, data: bytes) -> None:
    """Give bytes to the protocol of a transport, as if they came now."""
    protocol: Any = transport.get_protocol()  # a BufferedProtocol; that of uvloop is none by its class
    rest = memoryview(data)
    while rest:
        buffer = memoryview(protocol.get_buffer(len(rest)))
        count = min(len(buffer), len(rest))
        buffer[:count] = rest[:count]
        protocol.buffer_updated(count)
        rest = rest[count:]


def _second_descriptor(transport: asyncio.Transport) -> socket.socket | None:
    """Another descriptor of the socket of a connection; None if there is none left."""
    try:
        return socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
    except OSError:
        return None  # the handshake needs none


def _send_at_once(connection: socket.socket | None, data: bytes) -> None:
    """Send a few bytes if that is possible without waiting."""
    if connection is not None:
        with suppress(OSError):
            connection.setblocking(False)
            connection.send(data)


class EarlyBytes(asyncio.Protocol):
    """Passes the events of a connection on to `inner`, from `begin` on.

    `start_tls` returns the transport, which `inner` needs first, when bytes may have arrived already.
    """

    def __init__(self, inner: asyncio.Protocol) -> None:
        self._inner = inner
        self._begun = False
        self._ended = False  # lost before it began
        self._early: list[bytes] = []  # at most what one read of the socket gives
        self.eof_received = inner.eof_received
        self.pause_writing = inner.pause_writing
        self.resume_writing = inner.resume_writing

    def begin(self, transport: asyncio.Transport) -> None:
        """Tell the inner protocol of its transport, then of the bytes that are there already."""
        if self._ended:
            return
        self._begun = True
        self._inner.connection_made(transport)
        early, self._early = self._early, []
        for data in early:
            self._inner.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, or keep them until `begin`."""
        if self._begun:
            self._inner.data_received(data)
        else:
            self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the end on, if the inner protocol knows of the connection."""
        self._ended = True
        if self._begun:
            self._inner.connection_lost(exc)
