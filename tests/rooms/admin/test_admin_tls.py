"""TLS of the admin address: certificates that are replaced or broken, and clients without a handshake."""

import asyncio
import gc
import json
import shutil
import socket
import ssl
import subprocess
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import aiohttp
import pytest
import uvloop

from declctl.admin import front, serve
from declctl.admin.server import MOST_CONNECTIONS
from declctl.admin.tls import LOOK_SECONDS, KeyPair, ServerCertificate
from declctl.cli.admin_client import AdminAddress, admin_address, ask
from declctl.errors import UsageError
from declctl.kit import ManualClock
from declctl.manifest.model import AdminSpec, TlsFiles
from declctl.manifest.values import Address
from declctl.testing import Logged
from tests.hostile.certificates import self_signed
from tests.rooms.admin.conftest import LOOPBACK, listen, until


@pytest.fixture(name="pair")
def _pair(tmp_path: Path) -> KeyPair:
    self_signed(tmp_path)
    return KeyPair(tmp_path / "tls.crt", tmp_path / "tls.key")


@pytest.fixture(autouse=True)
def _runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime folder of the test's own, and no settings of the person."""
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("DECLCTL_ADMIN_TOKEN", "DECLCTL_ADMIN_TOKEN_FILE", "DECLCTL_ADMIN_CA_FILE"):
        monkeypatch.delenv(name, raising=False)


def shown_at(port: int) -> bytes:
    """The certificate that a new connection gets."""
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port), timeout=10))


def of_file(pair: KeyPair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.cert_file.read_text())


async def test_https_answers_as_http_does(runtime, pair: KeyPair):
    """All paths are there, connections are kept, and Host is checked with the port of the listener."""
    async with (
        serve(runtime, LOOPBACK, tls=pair) as bound,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False, limit=1)) as session,
    ):
        url = f"https://127.0.0.1:{bound.port}"
        for path, headers, status in (
            ("/healthz", {}, 200),
            ("/status", {"Origin": url}, 200),
            ("/cache/pods", {}, 200),
            ("/status", {"Origin": f"http://127.0.0.1:{bound.port + 1}"}, 403),
            ("/status", {"Host": "evil.example"}, 403),
        ):
            async with session.get(url + path, headers=headers) as response:
                assert await response.read()
                assert response.status == status


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_what_a_client_sends_at_once_is_not_lost(runtime, pair: KeyPair, loop):
    """Its first bytes may be there before the server has begun the handshake."""

    async def shake() -> None:
        async with serve(runtime, LOOPBACK, tls=pair) as bound:
            for _ in range(20):
                assert await asyncio.to_thread(shown_at, bound.port) == of_file(pair)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(shake())


async def test_a_replaced_certificate_is_shown_without_a_restart(runtime, pair: KeyPair, tmp_path: Path):
    """cert-manager renews a certificate each month, and the process goes on."""
    log, clock = Logged(), ManualClock()
    (tmp_path / "next").mkdir()
    self_signed(tmp_path / "next")
    first = of_file(pair)
    certificate = ServerCertificate(pair, log)
    await certificate.load()
    async with serve(runtime, LOOPBACK, tls=pair, log=log, clock=clock) as bound:
        assert await asyncio.to_thread(shown_at, bound.port) == first
        for name in ("tls.crt", "tls.key"):
            (tmp_path / "next" / name).replace(tmp_path / name)
        await clock.advance(LOOK_SECONDS)
        await until(lambda: any("new certificate" in line for line in log.events()))
        assert await asyncio.to_thread(shown_at, bound.port) == of_file(pair) != first


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("tls.key", "of another", "key values mismatch"),
        (
            "tls.crt",
            "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n",
            "there is no certificate or no key",
        ),
        ("tls.crt", "", "there is no certificate or no key"),
        ("tls.key", None, "No such file"),
    ],
)
async def test_a_pair_that_can_not_be_used_keeps_the_one_before_and_is_told_once(
    runtime, pair: KeyPair, tmp_path: Path, name: str, content: str | None, why: str
):
    """A half-written Secret does not take the address away; at the start, the same pair is a usage error."""
    log = Logged()
    first = of_file(pair)
    certificate = ServerCertificate(pair, log)
    await certificate.load()
    if content is None:
        (tmp_path / name).unlink()
    elif content == "of another":
        (tmp_path / "other").mkdir()
        self_signed(tmp_path / "other")
        (tmp_path / "other" / name).replace(tmp_path / name)
    else:
        (tmp_path / name).write_text(content)
    for _ in range(3):
        await certificate.refresh()
    (line,) = log.events()
    assert "is kept" in line
    assert why in line
    with pytest.raises(UsageError, match=why):
        await listen(runtime, LOOPBACK, tls=pair)
    self_signed(tmp_path)  # mended
    await certificate.refresh()
    assert "new certificate" in log.events()[1]
    assert of_file(pair) != first


async def test_a_key_with_a_password_is_no_question_at_the_terminal(runtime, pair: KeyPair, tmp_path: Path):
    """The start ends with a sentence instead of waiting for a person."""
    line = f"rsa -aes128 -passout pass:x -in {pair.key_file} -out {tmp_path / 'locked'}"
    subprocess.run([shutil.which("openssl") or "", *line.split()], check=True, capture_output=True)
    (tmp_path / "locked").replace(pair.key_file)
    with pytest.raises(UsageError, match="certificate of the admin address can't be used"):
        await listen(runtime, LOOPBACK, tls=pair)


async def test_clients_that_do_not_shake_hands_keep_nobody_out(runtime, pair: KeyPair):
    """Silent connections count before their TLS is there, and end; plain HTTP is one refused client."""
    log = Logged()
    async with serve(runtime, LOOPBACK, tls=pair, log=log) as bound:
        before = len(asyncio.all_tasks())

        def attack() -> None:
            with ExitStack() as held:
                where = ("127.0.0.1", bound.port)
                silent = [
                    held.enter_context(socket.create_connection(where)) for _ in range(3 * MOST_CONNECTIONS)
                ]
                assert shown_at(bound.port) == of_file(pair)
                silent[-1].sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
                silent[-1].settimeout(20)
                with suppress(ConnectionResetError):
                    assert silent[-1].recv(100).startswith(b"HTTP/1.1 400 ")
                gone = 0
                for each in silent[:-1]:
                    each.setblocking(False)
                    try:
                        gone += not each.recv(1)
                    except ConnectionResetError:
                        gone += 1
                    except BlockingIOError:
                        continue
                assert gone >= 2 * MOST_CONNECTIONS - 2

        await asyncio.to_thread(attack)
        await until(lambda: len(asyncio.all_tasks()) <= before)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_plain_http_is_answered_with_the_mistake(runtime, pair: KeyPair, method: str):
    """`curl http://…` of an address with TLS says what to write, and the log names the client."""
    log = Logged()

    async def scenario() -> bytes:
        async with serve(runtime, LOOPBACK, tls=pair, log=log) as bound:
            reader, writer = await asyncio.open_connection(bound.host, bound.port)
            writer.write(f"{method} /status HTTP/1.1\r\nHost: {bound}\r\n\r\n".encode())
            with closing(writer):
                return await reader.read()

    gc.collect()  # what other tests have left open is closed now, and not meanwhile
    before = len(list(Path("/proc/self/fd").iterdir()))
    head, _, body = asyncio.run(scenario()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert "ask with https://" in json.loads(body)["error"]
    told = "admin address: no TLS with 127.0.0.1: it speaks plain HTTP, and this address TLS"
    assert [line for line in log.events() if "no TLS" in line] == [told]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_commands_name_a_mistaken_scheme(runtime, pair: KeyPair):
    """Plain HTTP to an address with TLS, also of another server, and TLS to one without it."""

    def asked(address: Address, *, encrypted: bool, named: bool = True) -> str:
        with pytest.raises(UsageError) as raised:
            ask(AdminAddress(address, named=named, encrypted=encrypted), "GET", "/status")
        return str(raised.value)

    async with serve(runtime, LOOPBACK, tls=pair) as bound:
        told = await asyncio.to_thread(asked, bound, encrypted=False)
        assert told.startswith(f"{bound} speaks TLS, and the request was plain HTTP")
        assert told.endswith(f"write --admin https://{bound}.")
    async with serve(runtime, LOOPBACK) as bound:
        told = await asyncio.to_thread(asked, bound, encrypted=True)
        assert told.startswith(f"{bound} speaks plain HTTP, and not TLS: write --admin {bound}, without")
        told = await asyncio.to_thread(asked, bound, encrypted=True, named=False)
        assert "spec.admin.tls takes effect at the next start of the process" in told
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pair)
    # One that answers bytes that are no TLS with nothing.
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        other = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        told = await asyncio.to_thread(asked, other, encrypted=False)
        assert told.startswith(f"{other} speaks TLS, and the request was plain HTTP")


async def test_a_process_of_this_user_is_trusted_by_its_file_and_another_by_its_authority(
    runtime, pair: KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`declctl status` needs no option for a local process, whatever name its certificate has."""
    runtime.admin = AdminSpec(bind_address=LOOPBACK, tls=TlsFiles("tls.crt", "tls.key"))
    log = Logged()
    async with front(folder=tmp_path, log=log)(runtime):
        assert "admin address https://127.0.0.1:" in "".join(log.events())

        def commands() -> None:
            found = admin_address("pod-guard")
            assert str(found).startswith("https://127.0.0.1:")
            assert ask(found, "GET", "/status").document["name"] == "pod-guard"
            port = found.address.port
            unknown = AdminAddress(Address("127.0.0.1", port), named=True, encrypted=True)
            with pytest.raises(UsageError, match="DECLCTL_ADMIN_CA_FILE"):
                ask(unknown, "GET", "/status")
            monkeypatch.setenv("DECLCTL_ADMIN_CA_FILE", str(pair.cert_file))
            local = AdminAddress(Address("localhost", port), named=True, encrypted=True)
            assert ask(local, "GET", "/status").status == 200
            assert str(admin_address(f"https://localhost:{port}/")) == f"https://localhost:{port}"
            monkeypatch.delenv("DECLCTL_ADMIN_CA_FILE")
            (tmp_path / "impostor").mkdir()
            self_signed(tmp_path / "impostor")
            (tmp_path / "impostor" / "tls.crt").replace(pair.cert_file)
            # It has the key of another one, and is then no certificate at all.
            for fault in ("key values mismatch", "there is no certificate or no key"):
                with pytest.raises(UsageError, match=f"tls.crt and .*tls.key can't be used: {fault}. Mend"):
                    ask(found, "GET", "/status")
                pair.cert_file.write_text("half of a file")
            self_signed(pair.cert_file.parent)
            with pytest.raises(UsageError, match="another certificate than its file"):
                ask(found, "GET", "/status")

        await asyncio.to_thread(commands)
