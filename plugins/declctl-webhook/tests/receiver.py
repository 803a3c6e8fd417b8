"""A real HTTP server that receives events, in a thread of its own, and fails as a test tells it to."""

import asyncio
import base64
import json
import ssl
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from aiohttp import web

BATCHED = "application/cloudevents-batch+json"


@dataclass(frozen=True)
class Received:
    """One request."""

    headers: dict[str, str]
    body: bytes
    status: int  # of the answer; 0 for none

    @property
    def events(self) -> list[dict[str, Any]]:
        """Its events, in any content mode."""
        kind = self.headers["content-type"]
        if kind.startswith(BATCHED):
            return json.loads(self.body)
        if kind.startswith("application/cloudevents+json"):
            return [json.loads(self.body)]
        attributes = {n.removeprefix("ce-"): v for n, v in self.headers.items() if n.startswith("ce-")}
        return [{**attributes, "data": json.loads(self.body)}]


Answer = int | str | tuple[int, dict[str, str]] | Callable[[Received], int]


class Receiver:
    """`answers` are used one by one, and then `always`.

    An answer is a status; a status with headers; `hang`, `reset`, `slow` or `endless` (a 200 whose body does
    not end); or a function of the request.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.answers: list[Answer] = []
        self.always: Answer = 204
        self.requests: list[Received] = []
        self.most_at_once = 0
        self._at_once = 0
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._free = asyncio.Event()  # ends requests that hang
        self.port = 0

    @property
    def url(self) -> str:
        """Where it takes events."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/hook"

    @property
    def accepted(self) -> list[dict[str, Any]]:
        """The events that it has taken with a 2xx, in order."""
        return [event for each in list(self.requests) if 200 <= each.status < 300 for event in each.events]

    @property
    def statuses(self) -> list[int]:
        """Its answers, in order."""
        return [each.status for each in list(self.requests)]

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/hook", self._receive)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=self._tls)
        await site.start()
        self.port = runner.addresses[0][1]
        self._started.set()
        await self._stop.wait()
        self._free.set()
        await runner.cleanup()

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            return await self._answer(request)
        finally:
            self._at_once -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = Received(headers, await request.read(), 0)
        answer = self.answers.pop(0) if self.answers else self.always
        if callable(answer):
            answer = answer(received)
        if answer == "hang":
            self.requests.append(received)
            await self._free.wait()
            return web.Response(status=500)
        if answer == "reset":
            self.requests.append(received)
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        if answer == "endless":
            return await self._stream(request, received)
        if answer == "slow":
            await asyncio.sleep(0.1)
            answer = 200
        status, more = answer if isinstance(answer, tuple) else (int(answer), {})
        self.requests.append(Received(headers, received.body, status))
        head = base64.b64encode(json.dumps(headers).encode()).decode()
        text = f"status {status} for {headers.get('authorization', 'nobody')} at {request.path_qs} by {head}"
        text = None if status == 204 else text
        return web.Response(status=status, headers=more, text=text)

    async def _stream(self, request: web.Request, received: Received) -> web.StreamResponse:
        self.requests.append(Received(received.headers, received.body, 200))
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):  # the client has had enough
            while not self._free.is_set():
                await response.write(b"x" * 16384)
                await asyncio.sleep(0.001)
        return response


def certificate(folder: Path, name: str = "receiver") -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate for 127.0.0.1, and the server's side of it."""
    crt, key = folder / f"{name}.crt", folder / f"{name}.key"
    request = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        f"/CN={name}",
    ]
    files = ["-keyout", str(key), "-out", str(crt), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*request, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)
    return crt, context
