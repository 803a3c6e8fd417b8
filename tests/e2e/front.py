"""An HTTP front of an API server that refuses some requests, as a server does that is in trouble."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import yaml
from rest import Rest

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
        self._open: dict[socket.socket, str] = {}
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

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                address = unquote(self.path)
                if front._refused and front._refused in address:
                    self._answer(503, json.dumps(_UNAVAILABLE).encode())
                    return
                front._open[self.connection] = address
                try:
                    with suppress(OSError, http.client.HTTPException):
                        self._pass_on()
                finally:
                    front._open.pop(self.connection, None)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

            def _pass_on(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                wanted = {n: v for n in ("Accept", "Content-Type") if (v := self.headers.get(n))}
                with closing(front._rest.connection()) as behind:
                    headers = {**wanted, **front._rest.authorization}
                    behind.request(self.command, self.path, self.rfile.read(size) or None, headers)
                    answer = behind.getresponse()
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
