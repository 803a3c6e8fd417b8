"""Requests over a real socket: credentials, deadlines, watches, and what is counted."""

import asyncio
import base64
import gc
import ssl
import warnings

import pytest
from aiohttp import web

from declctl.errors import Unauthorized, Unreachable
from declctl.kit import ManualClock
from declctl.transport import Client
from declctl.transport.messages import ApiRequest
from tests.rooms.transport.parts import Parts

TOKEN = """cat <<EOF
{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "run-$n"%s}}
EOF"""


async def test_every_request_says_who_asks_and_for_what(connected):
    """Access logs and audit show declctl, and answers are asked for as plain JSON."""
    seen = {}

    async def answer(request):
        seen.update(request.headers)
        return web.json_response({"gitVersion": "v1.36.3"})

    async with connected(answer, {"token": "secret"}) as (_, client):
        assert await client.version() == "v1.36.3"
    assert seen["User-Agent"].startswith("declctl/")
    assert seen["Authorization"] == "Bearer secret"
    assert (seen["Accept"], seen["Accept-Encoding"]) == ("application/json", "identity")


async def test_a_401_runs_the_plugin_again_and_repeats_the_request(connected, plugin):
    """A token that the server has revoked is replaced, and nobody above notices."""
    user, runs = plugin(TOKEN % "")

    async def answer(request):
        if request.headers.get("Authorization") != "Bearer run-2":
            return web.json_response({"kind": "Status", "code": 401, "reason": "Unauthorized"}, status=401)
        return web.json_response({"gitVersion": "v1"})

    async with connected(answer, user) as (_, client):
        assert await client.version() == "v1"
        assert client.statistics().requests == {("GET", 401): 1, ("GET", 200): 1}
    assert runs() == 2


async def test_a_server_that_always_says_401_is_asked_twice(connected, plugin):
    """An account without rights ends in one error, not in an endless series of logins."""
    user, runs = plugin(TOKEN % "")
    asked = []

    async def answer(request):
        asked.append(1)
        return web.json_response({"kind": "Status", "code": 401, "reason": "Unauthorized"}, status=401)

    async with connected(answer, user, clock=ManualClock()) as (_, client):
        for _ in range(2):
            with pytest.raises(Unauthorized):
                await client.version()
    assert (len(asked), runs()) == (3, 2)


async def test_a_token_that_expires_is_renewed_before_it_does(connected, plugin):
    """With an exec plugin whose tokens last ten minutes, the server never sees an expired one."""
    user, _ = plugin(TOKEN % ', "expirationTimestamp": "2026-01-01T00:10:00Z"')
    seen = []

    async def answer(request):
        seen.append(request.headers["Authorization"])
        return web.json_response({})

    clock = ManualClock()
    async with connected(answer, user, clock=clock) as (_, client):
        await client.version()
        clock.set(7 * 60 + 59)
        await client.version()
        clock.set(2)
        await client.version()
    assert seen == ["Bearer run-1", "Bearer run-1", "Bearer run-2"]


async def test_a_rotated_authority_is_used_for_the_next_request(
    connected, certificates, server_tls, tmp_path
):
    """When a mounted CA is replaced, connections are made with the new one, without a restart.

    Watches that are open go on. A kubelet swaps the folder also where only the token is another one: files
    with the same content count as the same.
    """
    ca, stranger = tmp_path / "ca.crt", (certificates / "stranger.crt").read_bytes()
    ca.write_bytes(stranger)
    connections, step = [], asyncio.Event()

    async def answer(request):
        connections.append(request.transport.get_extra_info("peername"))
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1"})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        await step.wait()
        await response.write(b"two\n")
        return response

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the server's side of what we refuse
    clock = ManualClock()
    cluster = {"certificate-authority": str(ca), "tls-server-name": "localhost"}
    async with connected(answer, **cluster, ssl_context=server_tls, clock=clock) as (_, client):
        with pytest.raises(Unreachable, match="is not accepted"):
            await client.version()
        ca.write_bytes((certificates / "ca.crt").read_bytes())
        clock.set(61)
        assert await client.version() == "v1"
        watch, parts = ApiRequest("WATCH", "/api/v1/pods", watch_seconds=300), Parts()
        channel = await client.wire.open(watch, parts)
        assert await channel.read()
        assert await client.version() == "v1"
        before = set(connections)
        for content, more in (((certificates / "ca.crt").read_bytes(), 0), (ca.read_bytes() + stranger, 1)):
            ca.unlink()
            ca.write_bytes(content)
            clock.set(61)
            assert await client.version() == "v1"
            assert len(set(connections) - before) == more
        step.set()
        assert await channel.read()
        assert parts == [b"one\n", b"two\n"]
        assert not await channel.read()
        channel.close()


async def test_a_closed_client_says_so(kubeconfig):
    """A request after the end is an error with a sentence, and closing twice is harmless."""
    client = await Client.from_kubeconfig_dict(kubeconfig("http://127.0.0.1:1"))
    await client.close()
    await client.close()
    with pytest.raises(Unreachable, match="is closed"):
        await client.version()


@pytest.mark.filterwarnings("error::ResourceWarning")
async def test_nothing_is_left_open(connected):
    """A client that was closed leaves no connection behind, also after errors."""
    with warnings.catch_warnings(action="ignore"):
        gc.collect()  # what other tests have left is not judged here

    async def answer(_):
        return web.Response(status=500, text="no")

    async with connected(answer) as (_, client):
        with pytest.raises(Exception, match="500"):
            await client.version()
    gc.collect()


async def test_a_client_certificate_of_the_kubeconfig_is_shown(serving, kubeconfig, certificates, server_tls):
    """Certificates given as base64 in the kubeconfig log in, as the admin's of most clusters do."""
    server_tls.load_verify_locations(certificates / "ca.crt")
    server_tls.verify_mode = ssl.CERT_REQUIRED

    def data(name):
        return base64.b64encode((certificates / name).read_bytes()).decode()

    async def answer(request):
        subject = dict(field for (field,) in request.transport.get_extra_info("peercert")["subject"])
        return web.json_response({"gitVersion": subject["commonName"]})

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the server's side of a refusal
    cluster = {"certificate-authority-data": data("ca.crt"), "tls-server-name": "localhost"}
    user = {"client-certificate-data": data("server.crt"), "client-key-data": data("server.key")}
    async with serving(answer, ssl_context=server_tls) as url:
        client = await Client.from_kubeconfig_dict(kubeconfig(url, user, **cluster))
        assert await client.version() == "localhost"
        await client.close()
        client = await Client.from_kubeconfig_dict(kubeconfig(url, {"token": "t"}, **cluster))
        with pytest.raises(Unreachable):
            await client.version()
        await client.close()
