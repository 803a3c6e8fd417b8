"""A place that receives messages."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """An HTTP server for apprise's `json://`. It keeps the messages that it has accepted."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.requests = 0
        self.status = 200  # of the answers; a message is accepted with 200
        self.go_on = threading.Event()  # an answer waits for it
        self.go_on.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.requests += 1
                status = receiver.status
                receiver.go_on.wait(30)
                if status == 200:
                    receiver.messages.append(body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Nothing: pytest would show it."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that has given up closes its connection."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def texts(self) -> list[str]:
        """Title and body of each accepted message."""
        return [f"{one['title']}\n{one['message']}" for one in self.messages]

    def close(self) -> None:
        """Refuse connections from now on."""
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()
