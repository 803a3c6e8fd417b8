"""A stand-in for a running process: it answers at an admin address, over HTTP on loopback."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from declctl.kit.running_processes import CONTROLLER_HEADER

STATUS = {
    "name": "pod-guard",
    "generation": 6,
    "ready": True,
    "conditions": [],
    "resources": [],
    "handlers": [],
    "plugins": [],
}


class Process:
    """What answers, and what it was asked. By default it answers each request with a status document."""

    def __init__(self) -> None:
        self.status = 200
        self.body: bytes = json.dumps(STATUS).encode()
        self.documents: Sequence[Mapping[str, Any]] | None = None  # of a stream, in the place of the body
        self.asked: list[tuple[str, str, str | None]] = []  # method, path, and the header Authorization
        self.address = ""
        self.name = "pod-guard"  # of its controller; another one is refused with 421

    def answers(self, status: int, document: Any) -> None:
        """Answer with this from now on."""
        self.status, self.body, self.documents = status, json.dumps(document).encode(), None

    def streams(self, *documents: Mapping[str, Any]) -> None:
        """Answer with an event stream of these documents from now on."""
        self.status, self.documents = 200, documents


@contextmanager
def answering() -> Iterator[Process]:
    """A process that answers inside a `with` block."""
    process = Process()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            process.asked.append((self.command, self.path, self.headers.get("Authorization")))
            meant = self.headers.get(CONTROLLER_HEADER, process.name)
            self.send_response(process.status if meant == process.name else 421)
            kind = "application/json" if process.documents is None else "text/event-stream; charset=utf-8"
            self.send_header("Content-Type", kind)
            self.send_header(CONTROLLER_HEADER, process.name)
            self.end_headers()
            with suppress(ConnectionError):  # a command may leave before the end of a stream
                if process.documents is None:
                    self.wfile.write(process.body)
                    return
                self.wfile.write(b": nothing happens\n\n")
                for document in process.documents:
                    self.wfile.write(f"event: {document['kind']}\ndata: {json.dumps(document)}\n\n".encode())

        do_POST = do_GET  # noqa: N815 - as the library names it

        def log_message(self, *_: object) -> None:
            """Say nothing on the stderr that is looked at."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    process.address = f"127.0.0.1:{server.server_port}"
    try:
        yield process
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
