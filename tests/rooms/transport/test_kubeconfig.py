"""Logging in with the users of a kubeconfig."""

import asyncio
import base64
import contextlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from kubernetes.aio.client import Configuration

from declctl.errors import UsageError
from declctl.transport.config import KubeconfigLogin, cluster_of, find_cluster
from declctl.transport.kubeconfig import Kubeconfig

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def logged_in(config):
    return asyncio.run(cluster_of(config)).configuration.api_key.get("BearerToken")


def test_each_way_to_log_in_becomes_a_header(kubeconfig, tmp_path):
    """Tokens, token files and passwords of a kubeconfig all work, whatever white space a file ends with."""
    (tmp_path / "token").write_text("from-file\n")
    assert logged_in(kubeconfig("https://one", {"token": "secret"})) == "Bearer secret"
    assert logged_in(kubeconfig("https://one", {"tokenFile": str(tmp_path / "token")})) == "Bearer from-file"
    assert logged_in(kubeconfig("https://one", {"username": "u", "password": "p"})) == "Basic dTpw"
    assert logged_in(kubeconfig("https://one")) is None


def test_a_context_without_a_user_is_anonymous(kubeconfig):
    """A kubeconfig that only names a server with TLS is enough to be anonymous there."""
    config = kubeconfig("https://one")
    del config["contexts"][0]["context"]["user"]
    del config["users"]
    cluster = asyncio.run(cluster_of(config))
    assert cluster.identity.user is None
    assert cluster.configuration.api_key == {}


def loaded(*files):
    """What a login with these kubeconfigs sets."""
    configuration = Configuration()
    read = Kubeconfig.read(list(files), context=None)
    asyncio.run(KubeconfigLogin(read, read=lambda: read).load(configuration, afresh=False))
    return configuration


TOKEN = """cat <<EOF
{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "run-$n"%s}}
EOF"""


def exec_login(kubeconfig, user):
    config = kubeconfig("https://one", user)
    login = KubeconfigLogin(Kubeconfig.of(config), read=lambda: Kubeconfig.of(config))
    return login, Configuration()


async def test_a_plugin_is_run_once_while_its_token_lasts(kubeconfig, plugin):
    """Not for every request; its token is due shortly before it expires. A refused token is replaced."""
    user, runs = plugin(TOKEN % ', "expirationTimestamp": "2999-01-01T00:00:00Z"')
    login, configuration = exec_login(kubeconfig, user)
    await login.load(configuration, afresh=False)
    await login.load(configuration, afresh=False)
    assert (configuration.api_key["BearerToken"], runs()) == ("Bearer run-1", 1)
    expiry = datetime(2999, 1, 1, tzinfo=UTC)
    assert login.good_for(expiry - timedelta(hours=1)) == timedelta(minutes=55)
    assert login.good_for(expiry - timedelta(minutes=10)) == timedelta(minutes=8)
    await login.load(configuration, afresh=True)
    assert (configuration.api_key["BearerToken"], runs()) == ("Bearer run-2", 2)


def test_a_token_without_an_end_is_good_until_it_is_refused(kubeconfig, plugin):
    """A plugin that names no expiry is not run every minute."""
    user, _ = plugin(TOKEN % "")
    login, configuration = exec_login(kubeconfig, user)
    asyncio.run(login.load(configuration, afresh=False))
    assert login.good_for(NOW) > timedelta(days=30)


def test_a_plugin_may_give_a_certificate(kubeconfig, plugin, certificates):
    """Plugins that hand out client certificates instead of tokens work too."""
    user, _ = plugin(
        'echo \'{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": '
        '{"clientCertificateData": "CERT", "clientKeyData": "KEY"}}\''
    )
    login, configuration = exec_login(kubeconfig, user)
    asyncio.run(login.load(configuration, afresh=False))
    files = (Path(configuration.cert_file), Path(configuration.key_file))
    assert [file.read_text() for file in files] == ["CERT", "KEY"]


async def test_a_kubeconfig_that_moved_to_another_server_is_not_followed(kubeconfig):
    """A cache of one cluster is never filled up from another because somebody rewrote the file."""
    configs = [kubeconfig("https://one"), kubeconfig("http://two")]
    login = KubeconfigLogin(Kubeconfig.of(configs[0]), read=lambda: Kubeconfig.of(configs[1]))
    configuration = Configuration()
    await login.load(configuration, afresh=True)
    with pytest.raises(UsageError, match="points to http://two now, no longer to https://one"):
        await login.load(configuration, afresh=True)
    assert configuration.host == "https://one"


def id_token(expires):
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires}).encode()).decode().rstrip("=")
    return f"head.{claims}.tail"


async def test_an_oidc_user_shows_its_id_token_and_keeps_its_loader(kubeconfig):
    """OIDC logins work, and a refresh token that may be used once only is never read from the file again."""
    token = id_token(32503680000)
    config = kubeconfig("https://one", {"auth-provider": {"name": "oidc", "config": {"id-token": token}}})
    read_again = []
    login = KubeconfigLogin(Kubeconfig.of(config), read=lambda: read_again.append(1) or Kubeconfig.of(config))
    configuration = Configuration()
    await login.load(configuration, afresh=False)
    await login.load(configuration, afresh=True)
    assert configuration.api_key["BearerToken"] == f"Bearer {token}"
    assert read_again == []
    assert login.good_for(NOW) == timedelta(minutes=1)


def test_an_expired_oidc_login_is_told(kubeconfig):
    config = {"name": "oidc", "config": {"id-token": id_token(1)}}
    with pytest.raises(UsageError, match="cannot refresh without refresh-token"):
        logged_in(kubeconfig("https://one", {"auth-provider": config}))


ECHO = """printf '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": '
printf '{"token": "%s"}}' "$(printf %s "$KUBERNETES_EXEC_INFO" | base64 | tr -d '\\n')\""""


def exec_info(config):
    """What a plugin that answers with its KUBERNETES_EXEC_INFO was given."""
    return json.loads(base64.b64decode(logged_in(config).removeprefix("Bearer ")))


def test_a_plugin_that_wants_the_cluster_is_given_it(kubeconfig, plugin, tmp_path):
    """provideClusterInfo, as in client-go: server, TLS, proxy, authority, and the extension for plugins."""
    user, _ = plugin(ECHO)
    extensions = [
        {"name": "cluster_info", "extension": {"other": 1}},
        {
            "name": "client.authentication.k8s.io/exec",
            "extension": {"audience": "ü", "since": date(2026, 1, 1)},
        },
    ]
    (tmp_path / "ca.crt").write_bytes(b"authority")
    cluster = {
        "tls-server-name": "other",
        "proxy-url": "http://proxy:1",
        "certificate-authority": str(tmp_path / "ca.crt"),
        "extensions": extensions,
    }
    bare = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    assert exec_info(kubeconfig("https://one", user, **cluster)) == {**bare, "spec": {"interactive": False}}
    user["exec"]["provideClusterInfo"] = True
    given = {
        "server": "https://one",
        "tls-server-name": "other",
        "proxy-url": "http://proxy:1",
        "certificate-authority-data": base64.b64encode(b"authority").decode(),
        "config": {"audience": "ü", "since": "2026-01-01"},
    }
    assert exec_info(kubeconfig("https://one", user, **cluster)) == {
        **bare,
        "spec": {"interactive": False, "cluster": given},
    }
    skipping = kubeconfig("https://one", user, **{"insecure-skip-tls-verify": True})
    assert exec_info(skipping)["spec"]["cluster"] == {
        "server": "https://one",
        "insecure-skip-tls-verify": True,
    }
    data = kubeconfig("https://one", user, **{"certificate-authority-data": "eHg=\n"})
    assert exec_info(data)["spec"]["cluster"]["certificate-authority-data"] == "eHg="


@pytest.mark.parametrize("variable", ["relative", "in the second file", "a bare name"])
def test_a_plugin_beside_the_kubeconfig_is_found(tmp_path, kubeconfig, plugin, monkeypatch, variable):
    """`bin/dev-login` is beside the file that names it; `dev-login` is looked up in PATH alone."""
    user, runs = plugin(TOKEN % "")
    script = Path(user["exec"]["command"])
    folder = tmp_path / "config" / "bin"
    folder.mkdir(parents=True)
    script.rename(folder / "dev-login")
    script = folder / "dev-login"
    script.chmod(0o755)
    user["exec"]["command"] = "dev-login" if variable == "a bare name" else "bin/../bin/dev-login"
    # `exec.env` is for the plugin; it is found in PATH of this process, as by client-go.
    user["exec"]["env"] = [{"name": "PATH", "value": "/usr/bin:/bin"}]
    content = kubeconfig("https://one", user)
    files = [folder.parent / "config"]
    if variable == "in the second file":
        (tmp_path / "first").write_text(yaml.safe_dump({**content, "users": []}))
        files.insert(0, tmp_path / "first")
    files[-1].write_text(yaml.safe_dump(content))
    monkeypatch.chdir(folder.parent)
    if variable == "a bare name":
        for path in (os.environ["PATH"], f":{os.environ['PATH']}", f"bin:{os.environ['PATH']}"):
            monkeypatch.setenv("PATH", path)
            why = "current folder, from which" if path.startswith("bin") else "no folder of PATH has it"
            with pytest.raises(UsageError, match=f"'dev-login'.*{why}"):
                loaded(*files)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    else:
        monkeypatch.chdir("/")
    assert (loaded(*files).api_key["BearerToken"], runs()) == ("Bearer run-1", 1)


def test_files_are_beside_the_file_that_names_them(tmp_path, kubeconfig, certificates):
    """With two kubeconfigs, a client certificate is not looked for beside that of the cluster."""
    user = {"client-certificate": "server.crt", "client-key": "server.key"}
    content = kubeconfig("https://one", user, **{"certificate-authority": "ca.crt"})
    (tmp_path / "ca.crt").write_bytes((certificates / "ca.crt").read_bytes())
    (tmp_path / "one").write_text(yaml.safe_dump({**content, "users": []}))
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "config").write_text(yaml.safe_dump(content))
    for name in ("server.crt", "server.key"):
        (tmp_path / "two" / name).write_bytes((certificates / name).read_bytes())
    configuration = loaded(tmp_path / "one", tmp_path / "two" / "config")
    assert configuration.cert_file == str(tmp_path / "two" / "server.crt")
    assert configuration.ssl_ca_cert == str(tmp_path / "ca.crt")


def test_a_kubeconfig_on_a_mount_that_hangs_keeps_one_thread(tmp_path, kubeconfig, monkeypatch):
    """However often the login is repeated, it ends with the same sentence; it works when the mount does."""
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig("https://one", {"token": "one"})))
    monkeypatch.setattr("declctl.kit.files.READ_SECONDS", 0.05)
    answers, reads = threading.Event(), []
    exists = Path.exists

    def hanging(path, **options):
        if path == tmp_path / "config":
            reads.append(path)
            answers.wait()
        return exists(path, **options)

    monkeypatch.setattr(Path, "exists", hanging)

    def attempt():
        with pytest.raises(UsageError) as caught:
            asyncio.run(find_cluster(kubeconfig=str(tmp_path / "config"), context=None))
        return str(caught.value)

    with ThreadPoolExecutor(4) as pool:
        said = {attempt() for _ in range(3)} | {
            each.result() for each in [pool.submit(attempt) for _ in range(4)]
        }
    assert said == {f"The kubeconfig {tmp_path}/config can't be read: reading takes longer than 0.05 s."}
    hung = [thread for thread in threading.enumerate() if thread.name == "kubeconfig"]
    assert (len(hung), len(reads)) == (1, 1)
    answers.set()
    hung[0].join()
    monkeypatch.setattr("declctl.kit.files.READ_SECONDS", 20)
    cluster = asyncio.run(find_cluster(kubeconfig=str(tmp_path / "config"), context=None))
    assert cluster.configuration.api_key == {"BearerToken": "Bearer one"}


@pytest.fixture
def provider(serving, server_tls):
    """An identity provider with TLS at `localhost`, which gives a token; `seen` has its requests."""
    seen = []

    @contextlib.asynccontextmanager
    async def start(**changes):
        async def answer(request):
            seen.append((request.path, request.headers.get("Authorization"), dict(await request.post())))
            if request.method == "GET":
                return web.json_response({"token_endpoint": f"{url}/token", **changes})
            return web.json_response({"id_token": id_token(32503680000)})

        async with serving(answer, ssl_context=server_tls) as address:
            url = address.replace("127.0.0.1", "localhost")
            yield url

    return start, seen


def oidc(kubeconfig, issuer, **changes):
    config = {
        "id-token": id_token(1),
        "refresh-token": "old",
        "client-id": "me",
        "client-secret": "a:b",
        "idp-issuer-url": issuer,
        **changes,
    }
    return kubeconfig("https://one", {"auth-provider": {"name": "oidc", "config": config}})


def authority(data, file):
    """The authority of an identity provider: the data of one file, beside the path of another."""
    encoded = base64.b64encode(data.read_bytes()).decode()
    return {"idp-certificate-authority-data": encoded, "idp-certificate-authority": str(file)}


async def test_an_expired_id_token_is_exchanged_at_the_provider(kubeconfig, provider, certificates, tmp_path):
    """With an authority of the kubeconfig, whose comments may be in any language; data replace the file.

    A provider that goes on with the same refresh token works, too.
    """
    start, seen = provider
    bundle = tmp_path / "bundle.crt"
    bundle.write_bytes("# Főtanúsítvány\n".encode() + (certificates / "ca.crt").read_bytes())
    async with start() as url:
        for trust in (authority(bundle, "/no/such/file"), {"idp-certificate-authority": str(bundle)}):
            cluster = await cluster_of(oidc(kubeconfig, url, **trust))
            assert cluster.configuration.api_key == {"BearerToken": f"Bearer {id_token(32503680000)}"}
    secret = "Basic " + base64.b64encode(b"me:a%3Ab").decode()
    assert seen[1] == ("/token", secret, {"grant_type": "refresh_token", "refresh_token": "old"})
    # The client's secret is for the token endpoint alone.
    discovery = ("/.well-known/openid-configuration", None)
    assert [each[:2] for each in seen] == [discovery, ("/token", secret)] * 2


async def test_an_identity_provider_is_checked(kubeconfig, provider, certificates):
    """Who stands in between gets neither the client's secret nor the refresh token, with a CA or without.

    As in client-go, a file beside the data of an authority is not trusted.
    """
    start, seen = provider
    async with start() as url:
        for trust in ({}, authority(certificates / "stranger.crt", certificates / "ca.crt")):
            with pytest.raises(UsageError, match=r"gave no id-token: .*certificate verify failed"):
                await cluster_of(oidc(kubeconfig, url, **trust))
    assert seen == []


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("pipe", "it is a named pipe, and only regular files are read"),
        ("missing", "No such file or directory"),
        ("empty", "it is empty"),
        ("hanging", "reading takes longer than 0.05 s"),
    ],
)
def test_an_authority_of_an_identity_provider_that_can_not_be_read_is_a_sentence(
    kubeconfig, tmp_path, monkeypatch, kind, said
):
    """A login does not wait for it, and the process can end."""
    file, answers = tmp_path / "ca.crt", threading.Event()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind != "missing":
        file.touch()
    if kind == "hanging":
        monkeypatch.setattr("declctl.kit.files.READ_SECONDS", 0.05)
        monkeypatch.setattr("declctl.kit.files.read_file", lambda *_, **__: answers.wait())
    with pytest.raises(UsageError) as caught:
        asyncio.run(
            cluster_of(oidc(kubeconfig, "https://issuer.example", **{"idp-certificate-authority": str(file)}))
        )
    answers.set()
    assert str(caught.value).endswith(
        f"oidc: the certificate authority {file} of the identity provider can't be used: {said}"
    )


async def test_a_refresh_token_is_not_sent_in_the_clear(kubeconfig, provider, certificates):
    """Neither to an issuer without TLS, nor to where such an issuer points."""
    start, seen = provider
    with pytest.raises(UsageError, match=r"http://issuer\.example/.* is not https"):
        await cluster_of(oidc(kubeconfig, "http://issuer.example"))
    async with start(token_endpoint="http://issuer.example/token") as url:
        trust = {"idp-certificate-authority": str(certificates / "ca.crt")}
        with pytest.raises(UsageError, match=r"http://issuer\.example/token is not https"):
            await cluster_of(oidc(kubeconfig, url, **trust))
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status": 302, "headers": {"Location": "/elsewhere"}}, "answers 404"),
        ({"status": 400, "text": "no"}, "answers 400$"),  # the refresh token was not sent yet
        ({"text": "no"}, "gave no id-token"),
        ({"text": "[]"}, "is no JSON object"),
        ({"text": "{}"}, "names no token_endpoint"),
        ({"body": b"[" * 3_000_000}, "more than 1,048,576 bytes"),
        ({"body": b"[" * 1_000_000}, "gave no id-token: .*recursion"),
    ],
)
async def test_what_an_identity_provider_may_answer(kubeconfig, serving, answer, said):
    """Nonsense is a sentence, and costs no memory."""

    async def respond(request):
        if request.path == "/elsewhere":
            return web.Response(status=404)
        return web.Response(**answer)

    async with serving(respond) as url:
        with pytest.raises(UsageError, match=said):
            await cluster_of(oidc(kubeconfig, url))


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (307, "answers 307"),
        (400, "answers 400. Is the refresh token still good?"),
        (401, "answers 401. Is the refresh token still good?"),
        (403, "answers 403"),
        (503, "answers 503"),
    ],
)
async def test_a_token_endpoint_that_refuses_is_a_sentence(kubeconfig, serving, status, said):
    """A provider that has a bad day is no reason to doubt the refresh token."""

    async def respond(request):
        return web.json_response(
            {"token_endpoint": f"{request.url.origin()}/token"},
            status=200 if request.method == "GET" else status,
        )

    async with serving(respond) as url:
        with pytest.raises(UsageError) as caught:
            await cluster_of(oidc(kubeconfig, url))
        assert str(caught.value).endswith(f"oidc: {url}/token {said}")


def test_an_identity_provider_that_says_nothing_is_a_sentence(kubeconfig, monkeypatch):
    """The exception of a timeout has no text."""

    def silent(*_, **__):
        raise TimeoutError

    monkeypatch.setattr("aiohttp.ClientSession.request", silent)
    with pytest.raises(UsageError, match=r"https://issuer\.example gave no id-token: TimeoutError$"):
        asyncio.run(cluster_of(oidc(kubeconfig, "https://issuer.example")))
