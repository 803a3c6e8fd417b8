"""Why a server gave no answer, as sentences."""

import asyncio
import re

import pytest
from aiohttp import web

from declctl.errors import Unreachable
from declctl.transport import Client


async def failure(server, kubeconfig, **cluster) -> str:
    client = await Client.from_kubeconfig_dict(kubeconfig(server, **cluster))
    try:
        with pytest.raises(Unreachable) as caught:
            await client.version()
    finally:
        await client.close()
    assert client.statistics().requests[("GET", 0)] == 1
    assert client.statistics().last_error == str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("server", "cluster", "said"),
    [
        ("http://127.0.0.1:1", {}, r"^http://127\.0\.0\.1:1 can't be reached: connection refused\.$"),
        ("http://nowhere.invalid", {}, "The name 'nowhere.invalid'"),
        ("http://127.0.0.1:99999999", {}, "http://127.0.0.1:99999999"),
        (
            "http://example.invalid",
            {"proxy-url": "http://127.0.0.1:1"},
            r"^The proxy on the way to http://example\.invalid, 127\.0\.0\.1:1, can't be reached",
        ),
    ],
)
async def test_who_is_not_reached_is_named_with_the_cause(kubeconfig, server, cluster, said):
    """A server that refuses, a name that does not resolve, an address that is none, and a proxy apart."""
    assert re.search(said, await failure(server, kubeconfig, **cluster))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"", "closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "is no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "was cut off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "is no HTTP"),
    ],
)
async def test_a_broken_answer_is_no_answer(talking, kubeconfig, written, said):
    """Servers that hang up, speak something else or stop in the middle are told apart in the log."""

    async def write(writer):
        writer.write(written)
        await writer.drain()

    async with talking(write) as url:
        found = await failure(url, kubeconfig)
    assert said in found
    assert url in found


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({}, "is not accepted.*certificate-authority"),
        ({"certificate-authority": "ca.crt"}, "IP address mismatch"),
        ({"certificate-authority": "ca.crt", "tls-server-name": "localhost"}, r"^v1\.36\.3$"),
        ({"insecure-skip-tls-verify": True}, r"^v1\.36\.3$"),
    ],
)
async def test_what_a_certificate_is_checked_against(
    serving, certificates, server_tls, kubeconfig, cluster, said
):
    """The server has one for `localhost`, and is asked at its address: as with kubectl, a sentence tells."""

    async def answer(_):
        return web.json_response({"gitVersion": "v1.36.3"})

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)  # the server's side of a handshake that we refuse
    if "certificate-authority" in cluster:
        cluster = {**cluster, "certificate-authority": str(certificates / "ca.crt")}
    async with serving(answer, ssl_context=server_tls) as url:
        client = await Client.from_kubeconfig_dict(kubeconfig(url, **cluster))
        try:
            found = await client.version()
        except Unreachable as fault:
            found = str(fault)
        await client.close()
    assert re.search(said, found)


async def test_https_to_a_server_without_tls_is_told(serving, kubeconfig):
    """A server address with https for a plain port is reported as a TLS fault."""

    async def answer(_):
        return web.json_response({})

    async with serving(answer) as url:
        assert "TLS with https://127.0.0.1" in await failure(url.replace("http", "https"), kubeconfig)
