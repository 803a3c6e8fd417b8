"""A write asks whether this process leads right before its first byte, however it is sent."""

import asyncio
import contextlib
import re
import socket

import pytest
import urllib3

from declctl.errors import NotLeader
from declctl.transport import Client

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
JSON = {"Content-Type": "application/json"}


class Server:
    """Sees each byte at once: the kernel has given it to this side when the other side's call returns."""

    def __init__(self, story: list[str]) -> None:
        self.story = story
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.received: dict[socket.socket, bytes] = {}

    def look(self) -> None:
        """Tell of a request that has begun to come, and answer one that has come."""
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self.listening.accept()
                connection.setblocking(False)
                self.received[connection] = b""
        for connection, before in self.received.items():
            with contextlib.suppress(BlockingIOError):
                received = before + connection.recv(65536)
                if received and not before:
                    self.story.append("sent")
                head, end, body = received.partition(b"\r\n\r\n")
                length = re.search(rb"Content-Length: (\d+)", head)
                complete = end and len(body) == (int(length[1]) if length else 0)
                if complete:
                    connection.sendall(ANSWER)
                self.received[connection] = b"" if complete else received

    async def serve(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(0)


@pytest.fixture
def story():
    """What happens, in order, in the process and at its server."""
    return []


@pytest.fixture
def talking(story, kubeconfig):
    """A server that tells what is sent, and a client of it."""

    @contextlib.asynccontextmanager
    async def made():
        server = Server(story)
        serving = asyncio.ensure_future(server.serve())
        client = await Client.from_kubeconfig_dict(kubeconfig(server.url))
        try:
            yield server, client
        finally:
            await client.close()
            serving.cancel()
            for each in (server.listening, *server.received):
                each.close()

    return made


def by_request(client, url, body, check):
    method = "DELETE" if body is None else "PATCH"
    return client.request_json(method, "/a", body=body, before_send=check)


def by_official_client(client, url, body, check):
    client.guard_writes(check, dry_run=False)
    return client.api_client().call_api("DELETE" if body is None else "PATCH", f"{url}/a", JSON, body=body)


def by_official_client_in_a_thread(client, url, body, check):
    client.guard_writes(check, dry_run=False)
    request = client.sync_api_client().rest_client.request
    method = "DELETE" if body is None else "PATCH"
    return asyncio.to_thread(request, method, f"{url}/a", headers=JSON, body=body)


@pytest.mark.parametrize("write", [by_request, by_official_client])
@pytest.mark.parametrize("body", [None, {"a": 1}])
async def test_the_loop_does_not_turn_between_the_check_and_the_first_byte(talking, story, write, body):
    """Whatever blocks it in that turn, such as an index function, would let the lease end meanwhile."""
    loop = asyncio.get_running_loop()
    async with talking() as (server, client):

        def turn():
            server.look()
            story.append("turned")

        def check():
            story.append("checked")
            loop.call_soon(turn)
            return ""

        for _ in range(2):  # by a new connection, and by one of the pool
            await write(client, server.url, body, check)
    sent = [at for at, what in enumerate(story) if what == "sent"]
    assert [story[at - 1] for at in sent] == ["checked", "checked"]


@pytest.mark.parametrize("body", [None, {"a": 1}])
async def test_a_thread_checks_when_it_has_connected(talking, story, monkeypatch, body):
    """Names are resolved, and hands are shaken, before a synchronous client asks for the last time."""
    connect = urllib3.connection.HTTPConnection.connect
    monkeypatch.setattr(
        urllib3.connection.HTTPConnection,
        "connect",
        lambda connection: (connect(connection), story.append("connected")),
    )

    def check():
        story.append("checked")
        return ""

    async with talking() as (server, client):
        await by_official_client_in_a_thread(client, server.url, body, check)
    assert story[-3:] == ["connected", "checked", "sent"]


@pytest.mark.parametrize("write", [by_request, by_official_client, by_official_client_in_a_thread])
@pytest.mark.parametrize("body", [None, {"a": 1}])
async def test_who_may_not_write_at_the_last_check_sends_nothing(talking, story, write, body):
    """The call raises NotLeader, at once; the client serves on."""

    def passing(times):
        """A check that passes so many times."""
        answers = iter([True] * times + [False] * 9)

        def check():
            if not (passes := next(answers)) and write is by_request:
                raise NotLeader("not sent: this process does not lead")
            return "" if passes else "it follows"

        return check

    async with talking() as (server, client):
        for times in range(3):
            with contextlib.suppress(NotLeader):
                await write(client, server.url, body, passing(times))
                # There was no further check: it was sent after the last one that passed.
                assert story.pop() == "sent"
            assert story == []
        client.guard_writes(lambda: "", dry_run=False)
        assert await client.request_json("PATCH", "/a", body={}) == {}
    assert story == ["sent"]
