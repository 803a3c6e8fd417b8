"""What may be sent to the admin address: never a fault of the process, always bounded, and probes go on.

A real `declctl run` is asked over raw sockets, as a stranger would.
"""

import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hostile.bounds import bounded

_ADMIN = re.compile(r"admin address http://127\.0\.0\.1:(\d+)")
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_SECONDS = 20.0  # until an answer, on a busy machine
_REQUESTS = 100_000 if os.environ.get("DECLCTL_SOAK") else 400  # that are made at random
_MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: attacked}
spec:
  reload: {watch: "Off"}
  resources:
    - {name: pods, apiVersion: v1, kind: Pod, indexers: [{name: byNode, fieldPath: spec.nodeName}]}
  handlers: [{name: h, resourceRef: {name: pods}, entryPoint: "handlers:on_pod"}]
"""
_OBJECTS = """\
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: demo}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
"""


class Attacked:
    """A process with an admin address, and ways to be unkind to it."""

    def __init__(self, process: subprocess.Popen[str], port: int, lines: list[str]) -> None:
        self.pid, self.port, self.lines = process.pid, port, lines
        self._process = process

    def connect(self) -> socket.socket:
        """A connection that gives up after a while."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=_SECONDS)

    def send(self, data: bytes) -> bytes:
        """All that is answered to these bytes, until the process closes or nothing is left to wait for."""
        with self.connect() as connection:
            try:
                connection.sendall(data)
                first = connection.recv(1 << 16)
                connection.shutdown(socket.SHUT_WR)  # nothing more comes: it need not wait for a body
            except ConnectionError:
                first = b""  # refused before all was sent: what was answered can still be read
            except OSError:  # it has closed already
                return first
            return first + read_all(connection)

    def ask(self, head: str | bytes, *, host: bool = True) -> list[int]:
        """The statuses of the answers to a request with this head, which is sent again after a 429.

        The tests before may have sent as many requests as a client may send in a second.
        """
        head = head.encode("latin-1") if isinstance(head, str) else head
        first, _, rest = head.partition(b"\r\n")
        ours = b"Host: 127.0.0.1:%d\r\n" % self.port if host else b""
        lines = first + b"\r\n" + ours + b"Connection: close\r\n" + (rest + b"\r\n" if rest else b"")
        deadline = time.monotonic() + _SECONDS
        while (answers := statuses(self.send(lines + b"\r\n"))) == [429] and time.monotonic() < deadline:
            time.sleep(0.05)  # requests are counted by a real clock, in the other process
        return answers

    def is_alive(self) -> bool:
        """Whether a liveness probe, on a connection of its own, is answered."""
        return self._process.poll() is None and self.ask("GET /healthz HTTP/1.1") == [200]


def read_all(connection: socket.socket) -> bytes:
    parts: list[bytes] = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionError:
        pass  # closed with what we had sent still unread
    return b"".join(parts)


def statuses(answers: bytes) -> list[int]:
    return [int(status) for status in _STATUS.findall(answers)]


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    """One process for all tests: each of them must leave it as well as it was."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "manifest.yaml").write_text(_MANIFEST)
        (folder / "handlers.py").write_text("def on_pod(change):\n    pass\n")
        (folder / "objects.yaml").write_text(_OBJECTS)
        arguments = ["--sandbox", "--objects", str(folder / "objects.yaml"), "--admin", "127.0.0.1:0"]
        environment = {name: value for name, value in os.environ.items() if name != "DECLCTL_ADMIN_TOKEN"}
        with subprocess.Popen(
            [sys.executable, "-m", "declctl", "run", str(folder), *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process:
            try:
                lines: list[str] = []
                port = _port(process, lines)
                thread = threading.Thread(target=_read, args=(process, lines), daemon=True)
                thread.start()
                found = Attacked(process, port, lines)
                deadline = time.monotonic() + _SECONDS
                while found.ask("GET /readyz HTTP/1.1") != [200]:
                    assert time.monotonic() < deadline, "".join(lines)
                yield found
                assert found.is_alive()
                assert found.ask("GET /cache/pods/demo/web-0 HTTP/1.1") == [200]
                metrics = found.send(f"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
                assert b'declctl_admin_refused_total{reason="Fault"} 0.0' in metrics
            finally:
                process.kill()
        thread.join()
        assert not [line for line in lines if "Traceback" in line or "fault in declctl" in line]
        assert len(lines) < 50, "the log grows with the attack"


def _port(process: subprocess.Popen[str], lines: list[str]) -> int:
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line)
        if found := _ADMIN.search(line):
            return int(found[1])
    raise AssertionError("".join(lines))


def _read(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stderr is not None
    lines.extend(process.stderr)


def descriptors(attacked: Attacked) -> int:
    return len(list(Path(f"/proc/{attacked.pid}/fd").iterdir()))


HUGE = {
    "a long path": b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1",
    "a long query": b"GET /cache/pods?namespace=" + b"a" * (1 << 20) + b" HTTP/1.1",
    "a long header": b"GET /status HTTP/1.1\r\nX: " + b"a" * (8 << 20),
    "a long name of a header": b"GET /status HTTP/1.1\r\n" + b"a" * (1 << 20) + b": x",
    "many headers": b"GET /status HTTP/1.1" + b"\r\nX: y" * 100_000,
    "a long method": b"G" * (1 << 20) + b" / HTTP/1.1",
    "a long version": b"GET / HTTP/1." + b"1" * (1 << 20),
    "a long token": b"GET /status HTTP/1.1\r\nAuthorization: Bearer " + b"a" * (1 << 20),
}


@pytest.mark.parametrize("head", HUGE.values(), ids=HUGE.keys())
def test_a_huge_head_is_refused(attacked: Attacked, head: bytes):
    """It is not kept in memory, whole or in parts."""
    with bounded(seconds=30, megabytes=30, pid=attacked.pid):
        answered = attacked.ask(head)
        assert answered in ([], [400], [401], [414], [431])
        assert attacked.is_alive()


ODD = [
    ("POST /-/rollback?generation=" + "9" * 5000 + " HTTP/1.1", 400),
    ("POST /-/rollback?generation=-1 HTTP/1.1", 400),
    ("POST /-/rollback?generation=\u00b2 HTTP/1.1", 400),
    ("POST /-/rollback?generation=%C2%B2 HTTP/1.1", 400),
    ("POST /-/rollback?generation=%ff HTTP/1.1", 400),
    ("GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text; version=x", 406),
    ("GET /metrics HTTP/1.1\r\nAccept: text/plain; version=\xff", 406),
    ("GET /status HTTP/1.1\r\nAuthorization: Bearer \xff", 200),
    ("GET /cache/pods?labelSelector=%ff%00%ed%a0%80 HTTP/1.1", 400),
    ("GET /cache/pods?labelSelector=" + "(" * 5000 + " HTTP/1.1", 400),
    ("GET /cache/pods/%00%0d%0a%ff HTTP/1.1", 404),
    ("GET /cache/%ed%a0%80 HTTP/1.1", 404),
    ("GET /index/pods/byNode/%ff HTTP/1.1", 200),
    ("GET /index/pods/%1b[31m/x HTTP/1.1", 404),
    ("GET /%ff%fe HTTP/1.1", 404),
    ("GET /../../etc/passwd HTTP/1.1", 404),
    ("GET http://evil.example/status HTTP/1.1", 200),
    ("OPTIONS * HTTP/1.1", 404),
    ("PROPFIND /status HTTP/1.1", 405),
    ("GET /status HTTP/1.1\r\nExpect: the impossible", 417),
    ("GET /status HTTP/1.1\r\nExpect: \x80", 417),
    ("GET /nothing HTTP/1.1\r\nExpect: \xff", 417),
    ("GET /status HTTP/1.1\r\nContent-Length: " + "9" * 5000, 400),
    ("GET /status HTTP/1.1\r\nContent-Length: -1", 400),
    ("GET /status HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 4", 400),
    ("GET /status HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade", 200),
    ("GET /status HTTP/9.9", 400),
    ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
]


@pytest.mark.parametrize(("head", "status"), ODD, ids=[ascii(head[:40]) for head, _ in ODD])
def test_an_odd_request_is_no_fault_of_declctl(attacked: Attacked, head: str, status: int):
    """Numbers, encodings and methods that nobody expects are the fault of those who send them."""
    with bounded(seconds=30, megabytes=20, pid=attacked.pid):
        assert attacked.ask(head) == [status]
        assert attacked.is_alive()


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/status", "/metrics", "/plan", "/x"])
@pytest.mark.parametrize(
    "sender",
    [
        "Host: evil.example:{port}",
        "Host: 127.0.0.1.evil.example",
        "Host: 127.0.0.1:{port}\r\nHost: evil.example",
        "Host: 127.0.0.1:{port}\r\nOrigin: http://evil.example",
        "Host: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:1",
        "Host: 127.0.0.1:{port}\r\nOrigin: null",
        "Host: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\nOrigin: null",
    ],
)
def test_a_web_page_reads_nothing(attacked: Attacked, path: str, sender: str):
    """A page in a browser of this machine is refused under each path, also when it rebinds its name."""
    head = f"GET {path} HTTP/1.1\r\n{sender}".replace("{port}", str(attacked.port))
    assert attacked.ask(head, host=False) in ([403], [400])


@pytest.mark.parametrize("kind", ["Content-Length: 10000000000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("path", ["/-/reload?wait=false", "/-/requeue", "/status"])
def test_a_body_that_never_ends_is_not_read(attacked: Attacked, kind: str, path: str):
    """It is answered without it, and the connection ends after some megabytes, however fast they come."""
    part = b"x" * 65536
    if kind.startswith("Transfer"):
        part = b"%x\r\n%s\r\n" % (len(part), part)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{attacked.port}\r\n{kind}\r\n\r\n".encode()
    with bounded(seconds=40, megabytes=30, pid=attacked.pid), attacked.connect() as connection:
        sent = 0
        try:
            connection.sendall(head)
            while sent < 1 << 30:
                connection.sendall(part)
                sent += len(part)
        except ConnectionError:
            pass
        assert sent < 50 << 20  # what the kernel has taken counts, too
        assert attacked.is_alive()


@pytest.mark.parametrize("expects", [True, False])
def test_a_body_of_ten_megabytes_is_refused(attacked: Attacked, expects: bool):
    """A client that asks first sees why. One that sends all of it is cut off, and may see it too."""
    body = b"x" * 10_000_000
    head = f"POST /-/reload HTTP/1.1\r\nHost: 127.0.0.1:{attacked.port}\r\nContent-Length: {len(body)}\r\n"
    expect = b"Expect: 100-continue\r\n" if expects else b""
    with bounded(seconds=40, megabytes=30, pid=attacked.pid):
        answered = attacked.send(head.encode() + expect + b"\r\n" + (b"" if expects else body))
        assert statuses(answered) in ([[413]] if expects else [[413], []])
        assert b"64 KiB at most" in answered or not answered
        assert attacked.is_alive()


@pytest.mark.timeout(240)
def test_a_flood_of_everything_leaves_nothing_behind(attacked: Attacked):
    """1,000 silent connections, slow heads, large bodies, quick requests: refused, and all is as before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096) if hard > 0 else 4096, hard))
    status = f"GET /status HTTP/1.1\r\nHost: 127.0.0.1:{attacked.port}\r\n\r\n".encode()
    body = b"POST /-/requeue HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n" + b"x" * 10_000_000
    try:
        before, threads = descriptors(attacked), thread_count(attacked)
        with bounded(seconds=200, megabytes=60, pid=attacked.pid), ExitStack() as held:
            for number in range(1000):
                held.enter_context(attacked.connect())
                if number % 10 == 0:
                    held.enter_context(attacked.connect()).sendall(b"GET /status HTTP/1.1\r\nX: ")
                if number % 100 == 0:
                    attacked.send(body)
                    assert attacked.is_alive()
            answers = b""
            with attacked.connect() as connection:
                connection.sendall(status * 1000)
                while len(statuses(answers)) < 1000:
                    answers += connection.recv(1 << 20)
            assert {200} <= set(statuses(answers)) <= {200, 429}  # on a busy machine, nobody is too quick
            assert descriptors(attacked) < before + 100
            assert attacked.is_alive()
        deadline = time.monotonic() + 60
        while descriptors(attacked) > before:
            assert time.monotonic() < deadline, "descriptors are left"
            time.sleep(0.1)
        assert thread_count(attacked) <= threads + 8  # those of asyncio's executor, which stay
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def thread_count(attacked: Attacked) -> int:
    return len(list(Path(f"/proc/{attacked.pid}/task").iterdir()))


def test_pipelined_garbage_ends_the_connection(attacked: Attacked):
    """What comes after a request that is no request is not read."""
    good = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{attacked.port}\r\n\r\n".encode()
    with bounded(seconds=40, megabytes=30, pid=attacked.pid):
        answered = statuses(attacked.send(good * 100 + b"\x00\xff garbage\r\n\r\n" + good * 20_000))
        # Requests that come in one segment with the garbage are refused together with it.
        assert set(answered[:-1]) <= {200}
        assert answered[-1] in (200, 400)
        assert len(answered) <= 101
        assert attacked.is_alive()


def test_answers_that_nobody_reads_do_not_pile_up(attacked: Attacked):
    """Whoever asks and does not listen is asked for no memory; others are answered meanwhile."""
    request = f"GET /status HTTP/1.1\r\nHost: 127.0.0.1:{attacked.port}\r\n\r\n".encode()
    with bounded(seconds=60, megabytes=60, pid=attacked.pid), ExitStack() as held:
        for _ in range(30):
            connection = held.enter_context(attacked.connect())
            connection.settimeout(0.2)
            try:
                connection.sendall(request * 20_000)
            except (TimeoutError, ConnectionError):
                continue  # it does not take more before it is listened to
        assert attacked.is_alive()


_PATHS = ["/", "/healthz", "/readyz", "/status", "/plan", "/metrics", "/history", "/cache/pods", "/events"]
_PATHS += ["/cache/pods/demo/web-0", "/index/pods/byNode/", "/index/pods/byNode/node-1", "/queue/h"]
_PATHS += ["/-/rollback", "/-/requeue", "/-/trigger", "/-/loglevel"]
_QUERIES = ["namespace", "labelSelector", "generation", "wait"]
_HEADERS = [
    "Accept",
    "Accept-Encoding",
    "Authorization",
    "Content-Type",
    "Expect",
    "If-None-Match",
    "Range",
    "X",
    "Content-Encoding",
    "Cookie",
    "Upgrade",
    "Connection",
    "Transfer-Encoding",
    "Content-Length",
]

_bytes = st.binary(max_size=60)
_inside = _bytes.map(lambda data: re.sub(rb"[\r\n\x00]", b"", data))
_in_url = st.one_of(_bytes.map(lambda data: "".join(f"%{byte:02x}" for byte in data).encode()), _inside)
_target = st.one_of(
    st.sampled_from(_PATHS).map(str.encode),
    st.tuples(st.sampled_from(_PATHS), _in_url).map(lambda t: t[0].encode() + b"/" + t[1]),
    st.tuples(st.sampled_from(_PATHS), st.sampled_from(_QUERIES), _in_url).map(
        lambda t: t[0].encode() + b"?" + t[1].encode() + b"=" + t[2]
    ),
    _inside,
)
_method = st.one_of(
    st.sampled_from([b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"TRACE"]), _inside
)
_lines = st.lists(
    st.tuples(st.one_of(st.sampled_from(_HEADERS).map(str.encode), _inside), _inside).map(b": ".join),
    max_size=4,
)
_head = st.tuples(_method, _target, _lines).map(
    lambda t: b"\r\n".join([b" ".join([t[0], t[1], b"HTTP/1.1"]), *t[2]])
)


@pytest.mark.timeout(120 + _REQUESTS / 10)
@settings(max_examples=_REQUESTS, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(head=st.one_of(_head, _bytes))
def test_no_request_is_a_fault_of_declctl(attacked: Attacked, head: bytes):
    """Each path, method, query and header, filled with anything: there is no 500, and there is an end.

    The ordinary test makes 400 requests; with DECLCTL_SOAK 100,000.
    """
    answered = attacked.ask(head)
    assert not {status for status in answered if status >= 500} - {501, 503, 505}, answered
