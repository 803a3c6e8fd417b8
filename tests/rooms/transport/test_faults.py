"""Why a server gave no answer, as sentences."""

import asyncio
import ssl

import pytest

from declctl.errors import Unreachable
from declctl.transport import Client


def failure(server, kubeconfig, **cluster) -> str:
    async def ask():
        client = await Client.from_kubeconfig_dict(kubeconfig(server, **cluster))
        try:
            with pytest.raises(Unreachable) as caught:
                await client.version()
        finally:
            await client.close()
        assert client.statistics().requests[("GET", 0)] == 1
        assert client.statistics().last_error == str(caught.value)
        return str(caught.value)

    return asyncio.run(ask())


def test_a_refused_connection_names_the_server_and_the_cause(kubeconfig):
    assert (
        failure("http://127.0.0.1:1", kubeconfig)
        == "http://127.0.0.1:1 can't be reached: connection refused."
    )


def test_a_name_that_does_not_resolve_is_named(kubeconfig):
    assert "The name 'nowhere.invalid'" in failure("http://nowhere.invalid", kubeconfig)


def test_an_address_that_is_none_is_told(kubeconfig):
    assert "http://127.0.0.1:99999999" in failure("http://127.0.0.1:99999999", kubeconfig)


def test_a_proxy_that_is_not_there_is_told_apart_from_the_server(kubeconfig):
    said = failure("http://example.invalid", kubeconfig, **{"proxy-url": "http://127.0.0.1:1"})
    assert said.startswith("The proxy on the way to http://example.invalid, 127.0.0.1:1, can't be reached")


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
        client = await Client.from_kubeconfig_dict(kubeconfig(url))
        with pytest.raises(Unreachable, match=said) as caught:
            await client.version()
        await client.close()
        assert url in str(caught.value)


def tls(certificates):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    return {"ssl_context": context}


def asked_over_tls(serving, certificates, kubeconfig, **cluster):
    """The version, or the sentence of the fault, of a server with a certificate for `localhost`."""
    from aiohttp import web

    async def answer(_):
        return web.json_response({"gitVersion": "v1.36.3"})

    async def ask():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)  # the server's side of a handshake that we refuse
        async with serving(answer, **tls(certificates)) as url:
            client = await Client.from_kubeconfig_dict(kubeconfig(url, **cluster))
            try:
                return await client.version()
            except Unreachable as fault:
                return str(fault)
            finally:
                await client.close()

    return asyncio.run(ask())


def test_a_certificate_of_an_unknown_authority_is_readable(serving, certificates, kubeconfig):
    said = asked_over_tls(serving, certificates, kubeconfig)
    assert "is not accepted" in said
    assert "certificate-authority" in said


def test_a_certificate_for_another_name_is_readable(serving, certificates, kubeconfig):
    said = asked_over_tls(
        serving, certificates, kubeconfig, **{"certificate-authority": str(certificates / "ca.crt")}
    )
    assert "IP address mismatch" in said


def test_tls_server_name_is_what_the_certificate_is_checked_against(serving, certificates, kubeconfig):
    """A tunnel to a cluster works with tls-server-name in the kubeconfig, as with kubectl."""
    cluster = {"certificate-authority": str(certificates / "ca.crt"), "tls-server-name": "localhost"}
    assert asked_over_tls(serving, certificates, kubeconfig, **cluster) == "v1.36.3"


def test_insecure_skip_tls_verify_is_honoured(serving, certificates, kubeconfig):
    assert (
        asked_over_tls(serving, certificates, kubeconfig, **{"insecure-skip-tls-verify": True}) == "v1.36.3"
    )


async def test_https_to_a_server_without_tls_is_told(serving, kubeconfig):
    from aiohttp import web

    async def answer(_):
        return web.json_response({})

    async with serving(answer) as url:
        client = await Client.from_kubeconfig_dict(kubeconfig(url.replace("http", "https")))
        with pytest.raises(Unreachable, match=r"TLS with https://127.0.0.1"):
            await client.version()
        await client.close()
