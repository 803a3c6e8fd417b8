"""A server that writes bytes of a test's choosing, also such that no library would send."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Self

Script = Callable[[str, asyncio.StreamWriter], Awaitable[None]]

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def writing(*pieces: bytes, close: bool = False) -> Script:
    """Answers anything with these, one after the other, each on its way before the next."""

    async def script(_: str, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if close:
            writer.close()

    return script


class RawServer:
    """Answers each request of each connection with what `script(path, writer)` writes."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.port = 0
        self.connections = 0
        self.requests: list[str] = []  # their heads
        self.closed = 0  # connections that have ended

    @contextlib.asynccontextmanager
    async def listening(self, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Self]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            while not writer.is_closing():
                self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
                await self.script(self.requests[-1].split()[1], writer)
                await writer.drain()
        self.closed += 1
        writer.close()
