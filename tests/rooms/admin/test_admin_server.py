"""The admin address: where it listens, and what it says at each path."""

import asyncio
import socket
from collections.abc import Callable, Sequence

import pytest

from declctl.admin import front, serve
from declctl.admin.acceptor import bound_sockets
from declctl.errors import UsageError
from declctl.manifest.values import Address
from tests.rooms.admin.conftest import Lines


def test_a_busy_address_is_named(runtime):
    """A second controller on the same address ends with a sentence that names it and the ways out."""

    async def scenario(port: int) -> None:
        async with serve(runtime, Address("127.0.0.1", port)):
            raise AssertionError("it listened")

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port} is in use.*--admin"):
            asyncio.run(scenario(port))


def test_an_address_of_another_machine_is_refused(runtime):
    """An address that this machine doesn't have is told as such."""

    async def scenario() -> None:
        async with serve(runtime, Address("192.0.2.1", 8081)):
            raise AssertionError("it listened")

    with pytest.raises(UsageError, match=r"192\.0\.2\.1:8081 can't be listened on"):
        asyncio.run(scenario())


def test_port_0_takes_a_free_one_and_says_which(runtime):
    """With port 0 several controllers run side by side, and the log says where each answers."""

    async def scenario() -> None:
        log = Lines()
        async with serve(runtime, Address("127.0.0.1", 0), log=log) as bound:
            assert bound.port > 0
            assert f"http://127.0.0.1:{bound.port}" in log.lines[0]

    asyncio.run(scenario())


def test_the_front_listens_where_the_manifest_says(runtime, monkeypatch):
    """Without --admin the address is spec.admin.bindAddress."""
    asked: list[Address] = []
    monkeypatch.setattr("declctl.admin.server.listen", lambda address, _: _noted(address, asked))

    async def scenario() -> None:
        async with front()(runtime):
            pass
        async with front(Address("127.0.0.1", 9))(runtime):
            pass

    asyncio.run(scenario())
    assert [str(address) for address in asked] == ["127.0.0.1:8081", "127.0.0.1:9"]


async def _noted(address: Address, asked: list[Address]) -> Sequence[socket.socket]:
    asked.append(address)
    return await bound_sockets("127.0.0.1", 0)


@pytest.mark.client_go(340, "Probes & metrics")
def test_alive_is_200(ask: Callable):
    """A kubelet's liveness probe gets 200 as long as the machinery loop answers."""
    assert ask("/healthz").status == 200


@pytest.mark.client_go(340, "Probes & metrics")
def test_ready_says_why_not(ask: Callable, runtime):
    """Who isn't ready says what is missing, so that a pod's events are enough to know."""
    assert ask("/readyz").text == "ok\n"
    pods = runtime.now.resources[0]
    waiting = type(pods)(**{**_fields(pods), "synced": False, "error": "403 Forbidden: pods"})
    runtime.say(ready=False, resources=(waiting,))
    answer = ask("/readyz")
    assert answer.status == 503
    assert "pods: 403 Forbidden: pods" in answer.text


def _fields(value: object) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__slots__}  # type: ignore[attr-defined]


def test_status_is_the_document_of_the_contract(ask: Callable):
    """GET /status has the fields that scripts rely on."""
    document = ask("/status").json
    assert set(document) >= {
        "name",
        "generation",
        "bundleHash",
        "ready",
        "leader",
        "conditions",
        "resources",
        "handlers",
        "plugins",
    }
    assert document["resources"][0]["objects"] == 2
    assert document["handlers"][0]["p95Seconds"] == 0.004


@pytest.mark.client_go(340)
def test_an_unknown_path_names_those_that_there_are(ask: Callable):
    """A mistyped path is answered with a sentence that helps."""
    answer = ask("/statsu")
    assert answer.status == 404
    assert "/status" in answer.json["error"]


def test_a_wrong_method_is_told(ask: Callable):
    """GET /-/reload does nothing and says which method does."""
    answer = ask("/-/reload")
    assert answer.status == 405
    assert "takes POST" in answer.json["error"]
