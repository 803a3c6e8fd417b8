"""The metrics address: `/metrics` alone, without a token, with the checks and limits of the admin address."""

import asyncio
import socket
import ssl
from pathlib import Path

import aiohttp
import pytest

from declctl.admin import StaticToken, front, serve, why_not_served
from declctl.admin.server import MOST_CONNECTIONS
from declctl.admin.tls import KeyPair
from declctl.errors import UsageError
from declctl.manifest import plan
from declctl.manifest.model import AdminSpec, ControllerSpec, MetricsSpec
from declctl.manifest.values import Address
from declctl.testing import Logged
from tests.hostile.certificates import self_signed
from tests.rooms.admin.conftest import LOOPBACK, listen


def bound_of(log: Logged) -> Address:
    """The metrics address that the log names."""
    (line,) = [each for each in log.events() if each.startswith("metrics address http")]
    return Address("127.0.0.1", int(line.removesuffix(": /metrics").rpartition(":")[2]))


def taken(listener: socket.socket) -> Address:
    """The address of a socket."""
    return Address("127.0.0.1", listener.getsockname()[1])


@pytest.mark.client_go(340, "Probes & metrics")
async def test_metrics_need_no_token_there(runtime, http):
    """Prometheus needs no secret; objects and requests that change something are at the other address."""
    log = Logged()
    async with serve(runtime, LOOPBACK, metrics=LOOPBACK, authorizer=StaticToken("t" * 32), log=log) as admin:
        metrics = bound_of(log)
        answer = await http(metrics, "/metrics")
        assert (answer.status, "declctl_controller_info" in answer.text) == (200, True)
        assert answer.headers["Declctl-Controller"] == "pod-guard"
        assert (await http(admin, "/metrics")).status == 200  # a scraper of the admin address goes on
        assert (await http(admin, "/plan")).status == 401
        for path in ("/plan", "/status", "/", "/healthz", "/readyz", "/cache/pods"):
            nothing = await http(metrics, path, headers={"Authorization": f"Bearer {'t' * 32}"})
            assert nothing.status == 404
            assert nothing.json["error"].endswith("this address has /metrics alone.")
        assert (await http(metrics, "/-/reload", method="POST")).status == 404
        assert (await http(metrics, "/metrics", method="POST")).status == 405
    assert runtime.reloads == 0


async def test_its_requests_are_checked_and_counted(runtime, http):
    """Host, Origin and the named controller, as at the admin address; one figure has the refusals of both."""
    runtime.allowed_hosts = ("pod-guard.monitoring.svc",)
    log = Logged()
    async with serve(runtime, LOOPBACK, metrics=LOOPBACK, log=log) as admin:
        metrics = bound_of(log)
        wrong = [
            ({"Host": "rebound.example"}, 403),
            ({"Host": f"localhost:{admin.port}"}, 403),  # the port of the other listener
            ({"Origin": "http://evil.example"}, 403),
            ({"Declctl-Controller": "another"}, 421),
        ]
        for headers, status in wrong:
            assert (await http(metrics, "/metrics", headers=headers)).status == status
        allowed = {"Host": "pod-guard.monitoring.svc:9090"}
        assert (await http(metrics, "/metrics", headers=allowed)).status == 200
        assert (await http(admin, "/metrics", headers={"Host": "rebound.example"})).status == 403
        for address in (admin, metrics):
            text = (await http(address, "/metrics")).text
            assert 'declctl_admin_refused_total{reason="Host"} 3.0' in text
    # The first refusal of each address is told, with the address.
    for name in ("admin", "metrics"):
        assert any(each.startswith(f"{name} address: GET /metrics") for each in log.events())


async def test_a_crowd_there_takes_no_connection_of_the_probes(runtime, http):
    """Each address has a table of its own: an idle connection to the admin address stays."""
    log = Logged()
    async with serve(runtime, LOOPBACK, metrics=LOOPBACK, log=log) as admin:
        metrics = bound_of(log)
        reader, kept = await asyncio.open_connection("127.0.0.1", admin.port)
        crowd = [
            await asyncio.open_connection("127.0.0.1", metrics.port) for _ in range(MOST_CONNECTIONS + 1)
        ]
        # The one that has waited longest is closed for the last one.
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(crowd[0][0].readexactly(1), 10)
        kept.write(b"GET /healthz HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % admin.port)
        assert b"200" in await asyncio.wait_for(reader.readline(), 10)
        assert (await http(metrics, "/metrics")).status == 200
        for _, writer in [*crowd, (reader, kept)]:
            writer.close()


def test_a_busy_one_is_named_and_the_admin_address_is_free_again(runtime):
    """`declctl run` ends with this sentence, and says which of the two it is about."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            admin = taken(probe)
        with pytest.raises(UsageError) as fault:
            asyncio.run(listen(runtime, admin, metrics=taken(other)))
        assert str(fault.value).startswith(f"The metrics address {taken(other)} is in use")
        assert "spec.metrics.bindAddress (port 0 takes any" in str(fault.value)
    socket.create_server((admin.host, admin.port)).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_one_that_the_admin_address_includes_opens_nothing(runtime, http, host: str):
    """The same address, or all interfaces with the same port: the metrics are there already."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        metrics = taken(probe)
    log = Logged()
    async with serve(runtime, Address(host, metrics.port), metrics=metrics, log=log):
        assert (await http(metrics, "/metrics")).status == 200
        assert not any(each.startswith("metrics address") for each in log.events())


async def test_it_speaks_tls_as_the_admin_address_does(runtime, http, tmp_path: Path):
    """With the same certificate: what the manifest says of HTTPS holds for each port."""
    self_signed(tmp_path)
    pair = KeyPair(tmp_path / "tls.crt", tmp_path / "tls.key")
    log = Logged()
    async with serve(runtime, LOOPBACK, metrics=LOOPBACK, tls=pair, log=log):
        metrics = bound_of(log)
        trust = ssl.create_default_context(cafile=str(pair.cert_file))
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://localhost:{metrics.port}/metrics", ssl=trust) as answer,
        ):
            assert answer.status == 200
            assert "declctl_controller_info" in await answer.text()
        assert (await http(metrics, "/metrics")).status == 400  # over plain HTTP


async def test_the_front_opens_the_one_of_the_manifest(runtime, http, tmp_path: Path, monkeypatch):
    """Also if `--admin` names another admin address."""
    monkeypatch.setenv("DECLCTL_RUNTIME_DIR", str(tmp_path))
    runtime.metrics = MetricsSpec(LOOPBACK)
    log = Logged()
    async with front(LOOPBACK, log=log)(runtime):
        assert (await http(bound_of(log), "/metrics")).status == 200


def test_a_process_stays_if_the_next_one_could_not_open_it():
    """With --exec-on-restart: its own ports are free for the next process, another one's are not."""

    def why(now: Address | None, wanted: Address | None, address: Address | None = None) -> str:
        plans = (
            plan(ControllerSpec("pod-guard", admin=AdminSpec(LOOPBACK), metrics=MetricsSpec(each)))
            for each in (now, wanted)
        )
        return asyncio.run(why_not_served(*plans, folder=Path(), address=address)) or ""

    with socket.create_server(("127.0.0.1", 0)) as listener:
        busy = taken(listener)
        assert why(None, busy).startswith(f"the metrics address {busy} can't be used")
        assert why(busy, busy) == why(busy, None) == why(None, LOOPBACK) == ""
        assert why(None, busy, busy) == ""  # the own admin address
        ours, wider = Address("127.0.0.1", 8081), Address("0.0.0.0", 8081)
        told = f"the metrics address {wider} includes the admin address {ours}"
        assert why(None, wider, ours).startswith(told)
