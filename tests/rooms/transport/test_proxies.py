"""Proxies of the environment are used; neither we nor a handler's clients send a password of `.netrc`."""

import asyncio
import contextlib
import json

import pytest
from kubernetes.aio.client import ApiClient, Configuration, VersionApi
from kubernetes.client import VersionApi as SyncVersionApi

from declctl.errors import Unreachable
from declctl.transport import Client
from declctl.transport.credentials import environment_proxy
from tests.raw_server import RawServer

FIELDS = "major minor gitVersion gitCommit gitTreeState buildDate goVersion compiler platform"
VERSION = json.dumps(dict.fromkeys(FIELDS.split(), "v1")).encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(VERSION),
    VERSION,
)


@pytest.fixture
def recording():
    """A server, or a proxy, that answers each request with a version; `async with` gives port and heads."""

    async def answer(_, writer):
        if server.requests[-1].startswith("CONNECT"):
            writer.write(b"HTTP/1.1 403 No\r\n\r\n")
            writer.close()
        else:
            writer.write(ANSWER)

    @contextlib.asynccontextmanager
    async def start():
        async with server.listening():
            yield server.port, server.requests

    server = RawServer(answer)
    return start


@pytest.fixture(params=["NETRC", "HOME"])
def netrc(request, tmp_path, monkeypatch):
    """A `.netrc` with a password for each host, where aiohttp looks for one."""
    file = tmp_path / "home" / ".netrc" if request.param == "HOME" else tmp_path / "netrc"
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        "machine 127.0.0.1 login me password netrc-secret\ndefault login me password netrc-secret\n"
    )
    file.chmod(0o600)
    monkeypatch.delenv("NETRC", raising=False)
    if request.param == "NETRC":
        monkeypatch.setenv("NETRC", str(file))


async def ask_with_each_client(client: Client) -> None:
    assert await client.version() == "v1"
    assert (await VersionApi(client.api_client()).get_code()).git_version == "v1"
    synchronous = SyncVersionApi(client.sync_api_client())
    assert (await asyncio.to_thread(synchronous.get_code)).git_version == "v1"
    await client.close()


def shown(heads: list[str]) -> set[str]:
    lines = (line.lower() for head in heads for line in head.splitlines())
    return {line for line in lines if "authorization:" in line}


@pytest.mark.parametrize("user", [{}, {"token": "own"}])
async def test_a_password_of_netrc_is_not_sent_to_the_server(recording, netrc, kubeconfig, user):
    """Not where nothing else is shown, and a request with a token is not refused because of it."""
    async with recording() as (port, heads):
        await ask_with_each_client(
            await Client.from_kubeconfig_dict(kubeconfig(f"http://127.0.0.1:{port}", user))
        )
    assert len(heads) == 3
    assert shown(heads) == ({"authorization: bearer own"} if user else set())


@pytest.mark.parametrize("key", [{}, {"BearerToken": "Bearer own"}])
async def test_a_password_of_netrc_is_not_sent_for_a_given_client(recording, netrc, key):
    """The ApiClient of a library does as it likes; declctl, with its configuration, sends no password."""
    async with (
        recording() as (port, heads),
        ApiClient(Configuration(host=f"http://127.0.0.1:{port}", api_key=key)) as given,
    ):
        client = Client.from_api_client(given)
        assert await client.version() == "v1"
        await client.close()
    assert shown(heads) == ({"authorization: bearer own"} if key else set())


async def test_a_proxy_of_the_environment_is_used_and_gets_no_password_of_netrc(
    recording, netrc, kubeconfig, monkeypatch
):
    """All three clients ask through it; neither the proxy nor the server behind it is shown `.netrc`."""
    async with recording() as (port, heads):
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        await ask_with_each_client(await Client.from_kubeconfig_dict(kubeconfig("http://cluster.example")))
    assert [head.split()[1].rstrip("/") for head in heads] == ["http://cluster.example/version"] * 3
    assert shown(heads) == set()


@pytest.mark.parametrize("server", ["http://cluster.example", "http://127.0.0.1:1"])
async def test_no_proxy_is_not_about_the_proxy_of_a_kubeconfig(recording, kubeconfig, monkeypatch, server):
    """As in client-go: all clients ask through `proxy-url`, whatever NO_PROXY exempts, also on loopback."""
    monkeypatch.setenv("NO_PROXY", "cluster.example")
    monkeypatch.setenv("no_proxy", "*")
    async with recording() as (port, heads):
        config = kubeconfig(server, **{"proxy-url": f"http://127.0.0.1:{port}"})
        await ask_with_each_client(await Client.from_kubeconfig_dict(config))
    assert [head.split()[1].rstrip("/") for head in heads] == [f"{server}/version"] * 3


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_server_on_this_machine_needs_no_proxy(recording, kubeconfig, monkeypatch, name, host):
    """Behind a company's proxy the sandbox, and kind on loopback, work as with kubectl: asked directly."""
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with recording() as (port, heads):
        await ask_with_each_client(await Client.from_kubeconfig_dict(kubeconfig(f"http://{host}:{port}")))
    assert len(heads) == 3


async def test_a_proxy_of_the_environment_gets_the_password_that_stands_in_it(
    recording, netrc, kubeconfig, monkeypatch
):
    """HTTPS_PROXY=http://name:password@proxy works with TLS behind it; the proxy does not see the token."""
    async with recording() as (port, heads):
        monkeypatch.setenv("HTTPS_PROXY", f"http://name:password@127.0.0.1:{port}")
        client = await Client.from_kubeconfig_dict(kubeconfig("https://cluster.example", {"token": "own"}))
        with pytest.raises(Unreachable, match=r"The proxy on the way to https://cluster\.example refused"):
            await client.version()
        await client.close()
        (head,) = heads
    assert head.startswith("CONNECT cluster.example:443 ")
    assert shown([head]) == {"proxy-authorization: basic bmftztpwyxnzd29yza=="}


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://cluster.example", "http://proxy:1"),
        ("http://cluster.example", "http://plain:2"),  # the scheme that is missing is http, as in Go
        ("https://10.1.2.3:6443", None),
        ("https://10.2.2.3:6443", "http://proxy:1"),
        ("https://[fd00::7]", None),
        ("https://inside.example/prefix", None),
        ("https://a.inside.example", None),
        ("https://127.0.0.1:6443", None),
        ("https://localhost", None),
        ("nonsense", None),
        ("https://[::1", None),
    ],
)
def test_no_proxy_names_hosts_and_networks(url, proxy, monkeypatch):
    """As with kubectl: the address of a Service is asked directly when NO_PROXY has its network."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:1")
    monkeypatch.setenv("HTTP_PROXY", "plain:2")
    monkeypatch.setenv("NO_PROXY", "inside.example, 10.1.0.0/16,fd00::/8, 10.2.0.0/99")
    assert environment_proxy(url) == proxy


def test_a_proxy_with_tls_is_left_out_with_a_warning(monkeypatch, caplog):
    """And its password is not in the log."""
    monkeypatch.setenv("HTTPS_PROXY", "https://me:secret@proxy:1")
    assert environment_proxy("https://cluster.example") is None
    assert "https://proxy:1, is reached by TLS" in caplog.text
    assert "secret" not in caplog.text
