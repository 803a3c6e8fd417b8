"""Kubeconfigs that were written by hand, by a stranger, or for another client: as strict as client-go."""

import asyncio
import base64
import json
import logging
import os
import random
import re
import ssl
import subprocess
import sys
import threading
from datetime import date, datetime

import pytest
import yaml

from declctl.errors import DeclctlError, Unauthorized, UsageError
from declctl.kit import ManualClock
from declctl.kit.hosts import ServerUrl
from declctl.transport import Client
from declctl.transport.config import cluster_of, find_cluster
from declctl.transport.credentials import Credentials, expiry
from declctl.transport.kubeconfig import UserSpec
from declctl.transport.official import OfficialClients
from tests.hostile import bombs
from tests.hostile.bounds import bounded
from tests.hostile.certificates import self_signed
from tests.raw_server import CHUNKED, RawServer, chunk, writing


@pytest.fixture(autouse=True)
def _no_cluster_from_outside(monkeypatch, tmp_path):
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def config(server="https://one", user=None, **cluster):
    return {
        "current-context": "dev",
        "clusters": [{"name": "dev", "cluster": {"server": server, **cluster}}],
        "contexts": [{"name": "dev", "context": {"cluster": "dev", "user": "me"}}],
        "users": [{"name": "me", "user": user or {}}],
    }


def found(path, clock=None):
    return asyncio.run(find_cluster(kubeconfig=str(path), context=None, clock=clock))


def written(content, tmp_path):
    """The file `config` with this content, which is bytes or to be written as YAML."""
    file = tmp_path / "config"
    file.write_bytes(content if isinstance(content, bytes) else yaml.safe_dump(content).encode())
    return file


async def logged_in(content, clock):
    """The credentials of a kubeconfig, after its first login."""
    cluster = await cluster_of(content, clock=clock)
    return Credentials(cluster.configuration, login=cluster.login, clock=clock)


def far_ahead():
    """A clock of a time in which every certificate has expired."""
    clock = ManualClock()
    clock.set(74 * 365 * 86400)
    return clock


def refused(content, tmp_path, clock=None):
    """The sentence with which a kubeconfig is refused."""
    file = written(content, tmp_path)
    with pytest.raises(UsageError) as caught:
        found(file, clock)
    assert str(file) in str(caught.value)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


DATA = base64.b64encode(b"x").decode()
CERTIFICATE = {"client-certificate": "tls.crt", "client-key": "tls.key"}  # as `self_signed` makes them


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"insecure-skip-tls-verify": "true"},
            "Expected `bool | null`, got `str` - at `$.clusters[0].cluster.insecure",
        ),
        ({"insecure-skip-tls-verify": 1}, "Expected `bool | null`"),
        ({"insecure-skip-tls-verify": True, "certificate-authority-data": DATA}, "Remove one of them"),
        ({"insecure-skip-tls-verify": True, "certificate-authority": "ca.crt"}, "Remove one of them"),
        ({"certificate-authority": "ca.crt", "certificate-authority-data": DATA}, "remove one of them"),
        ({"certificate-authority-data": "no base64!"}, "is no base64"),
        ({"server": None}, "has no server"),
        ({"server": 7}, "Expected `str | null`, got `int`"),
        ({"proxy-url": "socks5://localhost"}, "neither http nor https"),
    ],
)
def test_a_cluster_that_client_go_refuses_is_refused(changes, said, tmp_path):
    """A text that looks like a boolean does not switch verification off, nor on, unnoticed."""
    assert said in refused(config(**changes), tmp_path)


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"token": 123456}, "Expected `str | null`, got `int`"),
        ({"token": "t", "password": "p", "username": "u"}, "a token and a password"),
        ({"client-certificate-data": DATA}, "without the other one"),
        ({"client-key": "key"}, "without the other one"),
        (
            {"client-key": "key", "client-key-data": DATA, "client-certificate-data": DATA},
            "remove one of them",
        ),
        ({"as-groups": ["system:masters"]}, "no `as`"),
        ({"as": "a\nImpersonate-Group: system:masters"}, "can't stand in a header"),
        ({"as": "jane", "as-groups": "admins"}, "Expected `array | null`, got `str`"),
        (
            {"exec": {"command": "x", "apiVersion": "v1", "env": [{"name": "A", "value": 1}]}},
            "Expected `str`",
        ),
        ({"exec": {"command": "x"}, "auth-provider": {"name": "oidc"}}, "remove one of them"),
        ({"auth-provider": {"name": "gcp"}, "token": "t"}, "'gcp', which neither declctl nor kubectl has"),
    ],
)
def test_a_user_that_client_go_refuses_is_refused(user, said, tmp_path):
    """What contradicts itself is nobody's guess; each fault is named with the user and the file."""
    assert said in refused(config(user=user), tmp_path)


@pytest.mark.parametrize(
    "user", [{"token": "secret"}, {"username": "u", "password": "secret"}, {"tokenFile": "t"}]
)
def test_credentials_are_never_sent_in_the_clear(user, tmp_path):
    """A token goes over http to this machine alone; the error does not show it."""
    said = refused(config("http://cluster.example:8080", user), tmp_path)
    assert "http://cluster.example:8080 is not https" in said
    assert "secret" not in said
    assert "is not https" in refused(config("http://me:secret@cluster.example"), tmp_path)
    if "tokenFile" not in user:
        for server in (
            "http://127.0.0.1:1",
            "http://localhost:1",
            "http://[::1]:1",
            "https://cluster.example",
        ):
            assert "BearerToken" in found(written(config(server, user), tmp_path)).configuration.api_key


def test_a_plugin_does_not_run_for_a_server_without_tls(tmp_path):
    """Not even to find out that its token can't be shown."""
    mark = tmp_path / "ran"
    user = {
        "exec": {"command": "touch", "args": [str(mark)], "apiVersion": "client.authentication.k8s.io/v1"}
    }
    refused(config("http://cluster.example", user), tmp_path)
    assert not mark.exists()


def test_a_password_in_the_address_is_used_and_never_shown(tmp_path):
    """As Go's client does; what `run` says first has no secret in it."""
    cluster = found(written(config("https://me:s%40cret@one:6443/prefix"), tmp_path))
    assert cluster.identity.server == cluster.configuration.host == "https://one:6443/prefix"
    assert cluster.configuration.api_key == {
        "BearerToken": "Basic " + base64.b64encode(b"me:s@cret").decode()
    }
    cluster = found(written(config("https://me:secret@one", {"token": "t"}), tmp_path))
    assert cluster.configuration.api_key == {"BearerToken": "Bearer t"}
    assert ServerUrl.of("http://[broken") == ServerUrl("http://[broken", None)


async def test_an_address_of_an_official_client_is_shown_without_its_password():
    """Neither the identity nor an error has it."""
    from kubernetes.aio.client import ApiClient, Configuration

    given = ApiClient(Configuration(host="http://me:secret@127.0.0.1:1"))
    client = Client.from_api_client(given)
    assert client.identity.server == "http://127.0.0.1:1"
    with pytest.raises(DeclctlError) as caught:
        await client.version()
    await client.close()
    await given.close()
    said = str(caught.value)
    assert "http://127.0.0.1:1 can't be reached" in said
    assert "secret" not in said


def test_verification_that_is_off_is_said(tmp_path, caplog):
    """Once, as a warning, with the server."""
    file = written(config(**{"insecure-skip-tls-verify": True}), tmp_path)
    with caplog.at_level(logging.WARNING, logger="declctl.transport"):
        assert not found(file).configuration.verify_ssl
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "The certificate of https://one is not checked" in caplog.text


ODD = {
    "a list": (b"- a\n- b\n", "holds no mapping"),
    "a text": (b"just a text", ""),
    "a number of 5,000 digits": (b"a: " + b"9" * 5000, ""),
    "a date that is none": (b"a: 2026-13-45", ""),
    "binary": (bytes(range(256)), ""),
    "UTF-16": ("current-context: a".encode("utf-16"), ""),
    "a NUL": (b"\0", "is no YAML"),
    "a NUL in a value": (b"a: \0", ""),
    "a tab": (b"a:\n\t- b", ""),
    "aliases that expand": (bombs.aliases().encode(), ""),
    "merges that expand": (bombs.merges().encode(), ""),
    "an alias of itself": (b"&a [*a]", ""),
    "a tag": (b"!!python/object/apply:os.system ['true']", ""),
    "a bracket": (b"a: [", "is no YAML.*line"),
    "brackets": (b"[" * 5000, ""),
    "nothing": (b"", "is empty"),
    "too much": (b"#" * (4 * 1024 * 1024 + 1), ""),
    "two documents": (b"a: 1\n---\nb: 2", ""),
    "sections that are texts": (b"clusters: a\nusers: b\ncontexts: c", ""),
    "a section that is no list": (b"clusters: {a: b}\n", "its clusters are no list"),
    "names that are none": (b"clusters: [{cluster: {}}]", ""),
    "a context without a name": (b"contexts: [{context: {}}]\n", "an entry of its contexts has no name"),
    "a context of nothing": (b"current-context: a\ncontexts: [{name: a}]\n", "names the cluster None"),
    "a context of no cluster that there is": (
        b"current-context: a\ncontexts: [{name: a, context: {cluster: b}}]\n",
        "names the cluster 'b'",
    ),
    "a context of no user that there is": (
        b"current-context: a\ncontexts: [{name: a, context: {user: u}}]\n",
        "names the user 'u'",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_file_is_one_sentence(name, tmp_path):
    """Not a traceback, not a gigabyte, and not a minute."""
    content, said = ODD[name]
    with bounded(seconds=30, megabytes=150):
        assert re.search(said, refused(content, tmp_path))


def test_what_is_no_file_is_one_sentence_and_exit_2(tmp_path):
    """A folder, a pipe that nobody writes to and a device are refused before they are opened."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "c.yaml").write_text("")
    said = {"pipe": "a named pipe", "folder": "a folder", "/dev/zero": "a device", "empty": "is empty"}
    for name, why in said.items():
        path = tmp_path / name
        with pytest.raises(UsageError, match=why):
            found(path)
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(
        "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: a}\nspec:\n"
        "  resources: [{name: pods, apiVersion: v1, kind: Pod}]\n"
    )
    run = [sys.executable, "-m", "declctl", "run", str(manifest), "--kubeconfig", str(tmp_path / "pipe")]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "a named pipe" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_random_kubeconfigs_end_in_a_sentence(tmp_path):
    """A thousand that went wrong at random: a cluster or a UsageError."""
    user = {"token": "t", "as": "jane", "as-groups": ["a"], "as-user-extra": {"k": ["v"]}}
    whole = yaml.safe_dump(config(user=user, **{"certificate-authority-data": DATA})).encode()
    rng, ends = random.Random(3), []
    tokens = [*b"\0|\xff|*a|&a |<<: |null|true|[|}|: |\n|- |!!".split(b"|"), b"9" * 5000]
    with bounded(seconds=100, megabytes=150):
        for _ in range(1000):
            content = whole
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(len(content))
                content = content[:at] + rng.choice(tokens) + content[at + rng.choice((0, 1, 5)) :]
            try:
                found(written(content, tmp_path))
                ends.append(None)
            except UsageError as fault:
                ends.append(str(fault))
    assert 0 < ends.count(None) < 900
    assert max(len(said or "") for said in ends) < 8000


async def test_whoever_is_impersonated_is_said_with_every_request(tmp_path):
    """`as` and what goes with it reach the server from our requests and from both official clients."""
    user = {
        "token": "t",
        "as": "jane",
        "as-uid": "u-1",
        "as-groups": ["dev", "ops"],
        "as-user-extra": {"example.com/scope": ["view", "list"]},
    }
    async with RawServer(writing(CHUNKED + chunk(b"{}") + b"0\r\n\r\n")).listening() as server:
        url = f"http://127.0.0.1:{server.port}"
        client = await Client.from_kubeconfig_dict(config(url, user))
        await client.version()
        await client.api_client().call_api("GET", f"{url}/aio", {})
        synchronous = client.sync_api_client()
        await asyncio.to_thread(synchronous.call_api, "GET", f"{url}/sync", {})
        with pytest.raises(UsageError, match=r"kubernetes\.stream can't impersonate"):
            synchronous.call_api = lambda *_: None
        await client.close()
    assert [head.split()[1] for head in server.requests] == ["/version", "/aio", "/sync"]
    for head in server.requests:
        lines = sorted(line.lower() for line in head.splitlines() if line.lower().startswith("impersonate"))
        assert lines == [
            "impersonate-extra-example.com%2fscope: list",
            "impersonate-extra-example.com%2fscope: view",
            "impersonate-group: dev",
            "impersonate-group: ops",
            "impersonate-uid: u-1",
            "impersonate-user: jane",
        ]
    assert UserSpec(token="t").impersonation == ()


def test_an_expired_client_certificate_is_named(tmp_path):
    """With its file and its date, before the server refuses it with a word of TLS that nobody understands."""
    self_signed(tmp_path, days=1, name="me")
    until = expiry(str(tmp_path / "tls.crt"))
    assert until is not None
    expected = ssl._ssl._test_decode_cert(str(tmp_path / "tls.crt"))["notAfter"]
    assert until.timestamp() == ssl.cert_time_to_seconds(expected)

    said = refused(config(user=CERTIFICATE), tmp_path, far_ahead())
    assert f"The client certificate {tmp_path}/tls.crt" in said
    assert f"expired at {until:%Y-%m-%d}" in said
    file = written(config(user={**CERTIFICATE, "token": "t"}), tmp_path)
    assert found(file, far_ahead()).configuration.api_key  # the token may do


async def test_an_expired_certificate_beside_a_token_is_a_warning_once(tmp_path, caplog):
    """Not each minute; another certificate that has expired is another warning."""
    self_signed(tmp_path, days=1, name="me")
    file = written(config(user={**CERTIFICATE, "token": "t"}), tmp_path)
    cluster = await find_cluster(kubeconfig=str(file), context=None, clock=far_ahead())
    for _ in range(3):
        await cluster.login.load(cluster.configuration, afresh=False)
        await cluster.login.load(cluster.configuration, afresh=True)
    assert caplog.text.count("its token is shown as well") == 1
    self_signed(tmp_path, days=2, name="me")
    for _ in range(3):
        await cluster.login.load(cluster.configuration, afresh=False)
    assert caplog.text.count("its token is shown as well") == 2


async def test_a_certificate_that_expires_while_it_runs_is_named_in_the_refusal(tmp_path):
    """The certificate is shown all the same, for the server to decide; its refusal says what has expired."""
    self_signed(tmp_path, days=1, name="me")
    file, clock = written(config(user=CERTIFICATE), tmp_path), ManualClock()
    cluster = await find_cluster(kubeconfig=str(file), context=None, clock=clock)
    credentials = Credentials(cluster.configuration, login=cluster.login, clock=clock)
    clock.set(74 * 365 * 86400)
    proof = await credentials.proof()
    assert "expired at" in credentials.fault
    assert [name for name, _ in proof.files] == [str(tmp_path / "tls.crt"), str(tmp_path / "tls.key")]
    with pytest.raises(Unauthorized, match=r"refused the credentials, and The client certificate .* expired"):
        await credentials.renew(proof)


def test_a_certificate_that_is_none_has_no_end(tmp_path):
    """Whatever stands in the file, looking for its date does no harm."""
    self_signed(tmp_path)
    whole = (tmp_path / "tls.crt").read_text()
    der, rng = ssl.PEM_cert_to_DER_cert(whole), random.Random(5)
    for _ in range(2000):
        at = rng.randrange(len(der))
        broken = der[:at] + rng.randbytes(1) + der[at + rng.choice((0, 1)) :]
        (tmp_path / "x").write_text(ssl.DER_cert_to_PEM_cert(broken))
        until = expiry(str(tmp_path / "x"))
        assert until is None or isinstance(until, datetime)
    assert expiry(str(tmp_path)) is None


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory without a file is Linux's")
async def test_keys_of_a_kubeconfig_are_not_left_on_the_disk(tmp_path, monkeypatch):
    """After the login the temporary folder has no key, and logging in again makes no new connection."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    self_signed(tmp_path, name="me")

    def data(name):
        return base64.b64encode((tmp_path / name).read_bytes()).decode()

    def left():
        return [file for file in (tmp_path / "tmp").rglob("*") if file.is_file()]

    user = {"client-certificate-data": data("tls.crt"), "client-key-data": data("tls.key")}
    clock = ManualClock()
    content = config(user=user, **{"certificate-authority-data": data("tls.crt")})
    credentials = await logged_in(content, clock)
    clients = OfficialClients(credentials, given=None, user_agent="test")
    assert left() == []
    before = await credentials.proof()
    clock.set(200)
    assert await credentials.proof() == before
    assert credentials.fault is None
    assert credentials.configuration.key_file.startswith("/proc/self/fd/")
    clients.synchronous()  # it reads them, too
    clients.asynchronous()
    await clients.close()
    assert left() == []


@pytest.mark.parametrize(
    ("kind", "said"),  # bytes are what the file has
    [
        ("pipe", "can't be read: .*is a named pipe"),
        ("endless", "can't be read: .*is a device"),
        ("missing", "can't be read: .*No such file"),
        ("folder", "can't be read: .*is a folder"),
        pytest.param(b"x" * 2_000_000, "can't be read: .*has 2,000,000 bytes", id="large"),
        (b"\xff", "can't be read: .*can't decode byte 0xff"),
        (b"", "is empty$"),
        (b" \n", "is empty$"),
    ],
)
def test_a_token_file_that_is_none_is_a_sentence(kind, said, tmp_path):
    """A login neither waits for a pipe nor fills the memory, nor goes on without credentials.

    A `token` beside the file is used instead.
    """
    file = tmp_path / "token"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "endless":
        file.symlink_to("/dev/zero")
    elif kind == "folder":
        file.mkdir()
    elif kind != "missing":
        file.write_bytes(kind)
    with bounded(seconds=30, megabytes=60):
        message = refused(config(user={"tokenFile": "token"}), tmp_path)
    assert re.search(f"the token file {re.escape(str(file))} {said}", message)
    cluster = found(written(config(user={"tokenFile": "token", "token": "own"}), tmp_path))
    assert cluster.configuration.api_key == {"BearerToken": "Bearer own"}


async def test_a_token_file_that_is_emptied_leaves_its_last_token(tmp_path):
    """As in client-go: the file comes before a `token`, which is shown after the server has refused it."""
    token = tmp_path / "token"
    token.write_text("new")
    clock = ManualClock()
    credentials = await logged_in(config(user={"tokenFile": str(token), "token": "old"}), clock)
    token.write_text("")
    clock.set(61)
    proof = await credentials.proof()
    assert proof.authorization == "Bearer new"
    assert credentials.fault.endswith(f"the token file {token} is empty")
    assert await credentials.renew(proof)
    assert (await credentials.proof()).authorization == "Bearer old"
    assert credentials.fault is None


@pytest.fixture
def hanging(monkeypatch):
    """Lets the system hang at a file, as on a network mount that is gone, until the event is set."""
    answers = threading.Event()
    stat = os.stat

    def hang(file):
        def waiting(path, **options):
            if path == file or str(path) == str(file):
                answers.wait(3)  # and no longer, so that a loop that hangs fails the test
            return stat(path, **options)

        monkeypatch.setattr("declctl.kit.files.READ_SECONDS", 0.05)
        monkeypatch.setattr(os, "stat", waiting)
        return answers

    yield hang
    answers.set()


@pytest.mark.parametrize("field", ["certificate-authority", "client-certificate", "client-key"])
def test_a_certificate_on_a_mount_that_hangs_ends_the_login(field, tmp_path, hanging):
    """It does not stop the loop on which everything else runs."""
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).touch()
    file = tmp_path / ("tls.key" if field == "client-key" else "tls.crt")
    content = config(user=CERTIFICATE) if field != "certificate-authority" else config(**{field: "tls.crt"})
    hanging(file)
    message = refused(content, tmp_path)
    assert message.endswith(f"its {field} {file} can't be read: reading takes longer than 0.05 s")


async def test_a_certificate_whose_mount_hangs_later_is_a_failed_login_that_is_tried_again(tmp_path, hanging):
    """What was loaded stays in use meanwhile."""
    file = tmp_path / "ca.crt"
    self_signed(tmp_path)
    (tmp_path / "tls.crt").rename(file)
    clock = ManualClock()
    content = config(user={"token": "own"}, **{"certificate-authority": str(file)})
    credentials = await logged_in(content, clock)
    before = await credentials.proof()
    answers = hanging(file)
    clock.set(61)
    assert await credentials.proof() == before
    late = "reading takes longer than 0.05 s"
    assert credentials.fault.endswith(f"its certificate-authority {file} can't be read: {late}")
    answers.set()
    for thread in [each for each in threading.enumerate() if each.name == "kubeconfig"]:
        thread.join()
    clock.set(72)
    assert await credentials.proof() == before
    assert credentials.fault is None


PLUGIN = {"command": "sh", "apiVersion": "client.authentication.k8s.io/v1"}
NO_LOGIN = json.dumps({"apiVersion": PLUGIN["apiVersion"], "kind": "ExecCredential", "status": {}})


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("yes", "writes more than 1,048,576 bytes"),
        ("yes >&2", "writes more than 1,048,576 bytes"),
        ("echo '[1]'", "no ExecCredential"),
        (f"echo '{NO_LOGIN}'", "neither a token nor a certificate"),
        ("printf '\\377'", "no ExecCredential"),
        ("exit 3", "ended with status 3"),
        ("printf 'a\\033[31mb\\nc' >&2; exit 1", "ended with status 1: a\ufffd[31mb c"),
        ("kill -9 $$", "ended with status -9"),
        ('echo \'{"status": {"token": "secret\'', "no ExecCredential"),  # a token that was cut off
        ("cat; exit 4", "ended with status 4"),  # standard input has nothing
        (
            'echo \'{"apiVersion": "v1", "kind": "ExecCredential", "status": {"token": "t"}}\'',
            "of v1, and not an",
        ),
    ],
)
def test_a_credential_plugin_that_misbehaves_is_ended_with_a_sentence(script, said, tmp_path):
    """It neither fills the memory nor waits for input, and colours of a terminal are not passed on.

    What it wrote is never shown.
    """
    user = {"exec": {**PLUGIN, "args": ["-c", script]}}
    with bounded(seconds=60, megabytes=100):
        message = refused(config(user=user), tmp_path)
    assert "the credential plugin 'sh'" in message
    assert said in message
    assert "secret" not in message


def test_a_credential_plugin_that_hangs_is_killed(tmp_path, monkeypatch):
    """Giving up a login does not leave its plugin behind."""
    monkeypatch.setattr("declctl.transport.credentials.LOGIN_SECONDS", 1)
    pid = tmp_path / "pid"
    user = {"exec": {**PLUGIN, "args": ["-c", f"echo $$ > {pid}; exec sleep 600"]}}
    file = written(config(user=user), tmp_path)
    with pytest.raises(UsageError, match="is the credential plugin waiting"):
        found(file)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize("large", ["certificate-authority-data", "certificate-authority", "extensions"])
def test_what_a_plugin_is_given_has_a_bound(large, tmp_path):
    """A bundle of authorities, or aliases that become gigabytes, are a sentence and no E2BIG."""
    (tmp_path / "ca.crt").write_bytes(b"x" * 200_000)
    user = {"exec": {**PLUGIN, "args": ["-c", "echo ran >&2; exit 1"], "provideClusterInfo": True}}
    values = {
        "certificate-authority": "ca.crt",
        "certificate-authority-data": base64.b64encode(b"x" * 200_000).decode(),
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": "ALIASES"}],
    }
    content = yaml.safe_dump(config(user=user, **{large: values[large]}))
    aliases = f"[&a '{'x' * 1_000_000}', {'*a, ' * 50_000}]"
    with bounded(seconds=60, megabytes=150):
        message = refused(content.replace("ALIASES", aliases).encode(), tmp_path)
    assert "102,400" in message
    assert "ran" not in message


@pytest.mark.parametrize("extension", [{date(2026, 1, 1): 1}, {"a": {b"b": 1}}])
def test_an_extension_that_is_no_json_is_named(extension, tmp_path):
    """YAML has keys that JSON has not."""
    user = {"exec": {**PLUGIN, "provideClusterInfo": True}}
    named = [{"name": "client.authentication.k8s.io/exec", "extension": extension}]
    assert "can't be written as JSON" in refused(config(user=user, extensions=named), tmp_path)
