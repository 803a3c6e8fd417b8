"""A server of a few lines on loopback, and kubeconfigs that point to it."""

import asyncio
import contextlib
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from declctl.transport import Client

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CORE = {
    "kind": "APIResourceList",
    "resources": [
        {"name": "pods/log", "kind": "Pod", "namespaced": True, "verbs": ["get"]},
        {"name": "pods", "kind": "Pod", "namespaced": True, "verbs": ["list", "watch", "get"]},
        {"name": "nodes", "kind": "Node", "namespaced": False, "verbs": ["list", "watch"]},
        {"name": "bindings", "kind": "Binding", "namespaced": True, "verbs": ["create"]},
    ],
}


@pytest.fixture(autouse=True)
def _no_cluster_from_outside(monkeypatch, tmp_path):
    for name in (
        "KUBECONFIG",
        "KUBERNETES_SERVICE_HOST",
        "KUBERNETES_SERVICE_PORT",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DECLCTL_SERVICE_ACCOUNT_DIR", str(tmp_path / "no-account"))


@pytest.fixture
def serving():
    """A server whose answers are a handler's; its URL is what `async with` gives."""

    @contextlib.asynccontextmanager
    async def start(handler: Handler, **options) -> AsyncIterator[str]:
        runner = web.ServerRunner(web.Server(handler, access_log=None), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, **options)
        await site.start()
        port = runner.addresses[0][1]
        try:
            yield f"{'https' if options.get('ssl_context') else 'http'}://127.0.0.1:{port}"
        finally:
            await runner.cleanup()

    return start


@pytest.fixture
def connected(serving, kubeconfig):
    """A server whose answers are a handler's, and a client of it; `async with` gives URL and client."""

    @contextlib.asynccontextmanager
    async def start(handler: Handler, user=None, *, clock=None, ssl_context=None, **cluster):
        options = {} if clock is None else {"clock": clock}
        async with serving(handler, ssl_context=ssl_context) as url:
            client = await Client.from_kubeconfig_dict(kubeconfig(url, user, **cluster), **options)
            yield url, client
            await client.close()

    return start


@pytest.fixture
def talking():
    """A server that reads one request and then writes raw bytes; its URL is what `async with` gives."""

    @contextlib.asynccontextmanager
    async def start(script) -> AsyncIterator[str]:
        served = []

        async def serve(reader, writer):
            served.append(asyncio.current_task())
            with contextlib.closing(writer):
                await reader.readuntil(b"\r\n\r\n")
                await script(writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            await server.wait_closed()
            for task in served:
                task.cancel()
            await asyncio.gather(*served, return_exceptions=True)  # no socket is left for other tests

    return start


@pytest.fixture
def kubeconfig():
    def make(server: str, user=None, name: str = "dev", **cluster) -> dict:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": server, **cluster}}],
            "contexts": [
                {
                    "name": name,
                    "context": {"cluster": name, "user": f"{name}-user", "namespace": f"{name}-space"},
                }
            ],
            "users": [{"name": f"{name}-user", "user": user or {}}],
        }

    return make


@pytest.fixture
def core() -> dict:
    return CORE


@pytest.fixture
def plugin(tmp_path):
    """An exec plugin that counts its runs and does what it is told: prints a token, or fails."""

    def make(body: str) -> tuple[dict, Callable[[], int]]:
        runs = tmp_path / "runs"
        script = tmp_path / "plugin.sh"
        script.write_text(f"#!/bin/sh\necho run >> {runs}\nn=$(wc -l < {runs} | tr -d ' ')\n{body}\n")
        script.chmod(0o755)
        config = {"command": str(script), "apiVersion": "client.authentication.k8s.io/v1"}
        return {"exec": config}, lambda: len(runs.read_text().splitlines()) if runs.exists() else 0

    return make


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make certificates")
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    new, sign = "-newkey rsa:2048 -nodes", "-CA ca.crt -CAkey ca.key -set_serial 1"
    authority = f"req -x509 {new} -days 30 -addext keyUsage=keyCertSign"
    for line in (
        f"{authority} -subj /CN=ca -keyout ca.key -out ca.crt",
        f"{authority} -subj /CN=stranger -keyout stranger.key -out stranger.crt",
        f"req {new} -subj /CN=localhost -keyout server.key -out server.csr",
        f"x509 -req -in server.csr {sign} -days 30 -extfile names -out server.crt",
    ):
        subprocess.run(
            [openssl, *line.split()],
            cwd=folder,
            check=True,
            capture_output=True,
            env={**os.environ, "HOME": str(folder)},
        )
    return folder


@pytest.fixture
def server_tls(certificates):
    """The context of a server with TLS at `localhost`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    return context
