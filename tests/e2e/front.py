"""An HTTP front of an API server that refuses some requests, as a server does that is in trouble."""

import http.client
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import yaml
from rest import Rest

_HARM = ((409, False), (500, False), (500, True))
_UNAVAILABLE = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "reason": "ServiceUnavailable",
    "message": "the front refuses this",
    "code": 503,
}


class Front:
    """Between a client and the server of `rest`, with its rights. `address` speaks plain HTTP."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._refused = ""
        self._harm = 0.0  # share of the writes
        self._dice = random.Random(1)
        self.harmed: Counter[tuple[int, bool]] = Counter()  # by status, and whether it was done all the same
        self._open: dict[socket.socket, str] = {}
        self.requests: list[tuple[str, str]] = []  # method and address of each
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def kubeconfig(self, folder: Path) -> Path:
        """A kubeconfig that leads here."""
        file = folder / "front.kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "front",
            "contexts": [{"name": "front", "context": {"cluster": "front", "user": "front"}}],
            "clusters": [{"name": "front", "cluster": {"server": self.address}}],
            "users": [{"name": "front", "user": {}}],
        }
        file.write_text(yaml.safe_dump(document), "utf-8")
        return file

    def refuse(self, part: str) -> None:
        """Answer requests that have this in their address with 503, and end those that are under way."""
        self._refused = part
        for connection, address in tuple(self._open.items()):
            if part in address:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let everything through again."""
        self._refused = ""

    def harm_writes(self, share: float, *, seed: int = 1) -> None:
        """Answer this share of the writes with 409 or 500; a part of the latter are done all the same."""
        self._harm = share
        self._dice = random.Random(seed)
        self.harmed.clear()

    def _harmed(self, method: str) -> tuple[int, bool] | None:
        """The status for a write, and whether it is passed on; None for no harm."""
        if method in ("GET", "HEAD") or self._dice.random() >= self._harm:
            return None
        kind = self._dice.choice(_HARM)
        self.harmed[kind] += 1
        return kind

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:  # noqa: C901 - one small method for each verb
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                address = unquote(self.path)
                front.requests.append((self.command, address))
                if front._refused and front._refused in address:
                    self._answer(503, json.dumps(_UNAVAILABLE).encode())
                    return
                harm = front._harmed(self.command)
                if harm is not None and not harm[1]:
                    self.rfile.read(int(self.headers.get("Content-Length") or 0))
                    self._refuse(harm[0])
                    return
                front._open[self.connection] = address
                try:
                    self._pass_on(None if harm is None else harm[0])
                except (OSError, http.client.HTTPException):
                    self.close_connection = True  # the server has gone: the client learns it by that
                finally:
                    front._open.pop(self.connection, None)

            def do_POST(self) -> None:
                self.do_GET()

            def do_PATCH(self) -> None:
                self.do_GET()

            def do_PUT(self) -> None:
                self.do_GET()

            def do_DELETE(self) -> None:
                self.do_GET()

            def _refuse(self, status: int) -> None:
                reason = "Conflict" if status == 409 else "InternalError"
                body = {**_UNAVAILABLE, "reason": reason, "message": "the front harms this", "code": status}
                self._answer(status, json.dumps(body).encode())

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

            def _pass_on(self, status: int | None = None) -> None:
                """Pass a request on, and the answer back; with a `status`, that is the answer."""
                size = int(self.headers.get("Content-Length") or 0)
                wanted = {n: v for n in ("Accept", "Content-Type") if (v := self.headers.get(n))}
                with closing(front._rest.connection()) as behind:
                    headers = {**wanted, **front._rest.authorization}
                    behind.request(self.command, self.path, self.rfile.read(size) or None, headers)
                    answer = behind.getresponse()
                    if status is not None:
                        answer.read()
                        self._refuse(status)
                        return
                    self.send_response(answer.status)
                    self.send_header("Content-Type", answer.getheader("Content-Type", ""))
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    while data := answer.read1(65536):
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                    self.wfile.write(b"0\r\n\r\n")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler


@contextmanager
def front(rest: Rest) -> Iterator[Front]:
    """A front for the length of the context."""
    it = Front(rest)
    try:
        yield it
    finally:
        it.close()
