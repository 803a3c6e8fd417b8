"""The admin address: where it listens, and what it says at each path."""

import asyncio
import socket
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from declctl.admin import front, serve
from declctl.admin.acceptor import bound_sockets
from declctl.errors import UsageError
from declctl.manifest.values import Address
from declctl.testing import Logged
from tests.rooms.admin.conftest import LOOPBACK, PODS, listen


def test_an_address_that_can_not_be_used_is_named(runtime):
    """A second controller on an address is told the ways out; another machine's can't be listened on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port} is in use.*--admin"):
            asyncio.run(listen(runtime, Address("127.0.0.1", port)))
    with pytest.raises(UsageError, match=r"192\.0\.2\.1:8081 can't be listened on"):
        asyncio.run(listen(runtime, Address("192.0.2.1", 8081)))


async def test_port_0_takes_a_free_one_and_says_which(runtime):
    """With port 0 several controllers run side by side, and the log says where each answers."""
    log = Logged()
    async with serve(runtime, LOOPBACK, log=log) as bound:
        assert bound.port > 0
        assert f"http://127.0.0.1:{bound.port}" in log.events()[0]


async def test_the_front_listens_where_the_manifest_says(runtime, monkeypatch):
    """Without --admin the address is spec.admin.bindAddress."""
    asked: list[str] = []

    async def noted(address: Address, _: object) -> Sequence[socket.socket]:
        asked.append(str(address))
        return await bound_sockets("127.0.0.1", 0)

    monkeypatch.setattr("declctl.admin.server.listen", noted)
    for front_of in (front(), front(Address("127.0.0.1", 9))):
        async with front_of(runtime):
            pass
    assert asked == ["127.0.0.1:8081", "127.0.0.1:9"]


@pytest.mark.client_go(340, "Probes & metrics")
def test_alive_is_200_and_ready_says_why_not(ask: Callable, runtime):
    """Who isn't ready says what is missing, so that a pod's events are enough to know."""
    assert ask("/readyz").text == "ok\n"
    runtime.say(ready=False, resources=(replace(PODS, synced=False, error="403 Forbidden: pods"),))
    answer = ask("/readyz")
    assert answer.status == 503
    assert "pods: 403 Forbidden: pods" in answer.text
    assert ask("/healthz").status == 200


def test_status_is_the_document_of_the_contract(ask: Callable):
    """GET /status has the fields that scripts rely on."""
    document = ask("/status").json
    names = "name generation bundleHash ready leader conditions resources handlers plugins"
    assert document.keys() >= set(names.split())
    assert document["resources"][0]["objects"] == 2
    assert document["handlers"][0]["p95Seconds"] == 0.004


@pytest.mark.client_go(340)
@pytest.mark.parametrize(
    ("path", "status", "words"), [("/statsu", 404, "/status"), ("/-/reload", 405, "takes POST")]
)
def test_an_unknown_path_names_those_that_there_are(ask: Callable, path: str, status: int, words: str):
    """A mistyped path is answered with a sentence that helps; a wrong method with the right one."""
    answer = ask(path)
    assert answer.status == status
    assert words in answer.json["error"]
