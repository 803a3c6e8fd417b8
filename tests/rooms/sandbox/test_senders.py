"""The sandbox is on loopback, where web pages of this machine's browsers can send requests."""

import http.client
import json
from collections.abc import Iterator

import pytest

from declctl.sandbox import SandboxThread

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "evil"}}


@pytest.fixture(name="sandbox", scope="module")
def _sandbox() -> Iterator[SandboxThread]:
    with SandboxThread() as sandbox:
        yield sandbox


def asked(sandbox: SandboxThread, method: str, path: str, *headers: tuple[str, str]) -> tuple[int, bytes]:
    """Status and body of a request with just these headers."""
    port = int(sandbox.url.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    body = json.dumps(POD).encode() if method == "POST" else b""
    connection.putrequest(method, path, skip_host=True)
    for name, value in headers:
        connection.putheader(name, value.replace("{port}", str(port)))
    connection.putheader("Content-Type", "text/plain" if "Origin" in dict(headers) else "application/json")
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    try:
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


STRANGE = {
    "a rebound name": [("Host", "evil.example:{port}")],
    "a name like ours": [("Host", "localhost.evil.example:{port}")],
    "no name": [],
    "two names": [("Host", "localhost:{port}"), ("Host", "evil.example")],
    "a form of another page": [("Host", "127.0.0.1:{port}"), ("Origin", "http://evil.example")],
    "a page of another port": [("Host", "127.0.0.1:{port}"), ("Origin", "http://127.0.0.1:1")],
    "a page without an origin": [("Host", "127.0.0.1:{port}"), ("Origin", "null")],
}


@pytest.mark.parametrize("headers", STRANGE.values(), ids=STRANGE.keys())
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/version"),
        ("GET", "/api/v1/pods"),
        ("GET", "/sandbox/ledger"),
        ("POST", "/api/v1/namespaces/default/pods"),
        ("POST", "/sandbox/faults"),
    ],
)
def test_a_web_page_neither_reads_nor_writes(sandbox, method: str, path: str, headers: list):
    """A page in the browser of who tries declctl reads no object, makes none, and orders no fault."""
    status, body = asked(sandbox, method, path, *headers)
    assert status in (400, 403)  # 400 is for what is no HTTP
    assert status == 400 or (json.loads(body)["kind"], json.loads(body)["reason"]) == ("Status", "Forbidden")
    assert sandbox.objects("Pod") == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:1", "[::1]:80", "10.0.0.7"]
)
def test_clients_are_answered(sandbox, host: str):
    """By address or localhost, as kubectl asks; through a forward the port is another one."""
    assert asked(sandbox, "GET", "/version", ("Host", host))[0] == 200
