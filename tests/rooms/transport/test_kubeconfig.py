"""Logging in with the users of a kubeconfig."""

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from kubernetes.aio.client import Configuration

from declctl.errors import UsageError
from declctl.transport.config import cluster_of
from declctl.transport.kubeconfig import Kubeconfig
from declctl.transport.kubeconfig_login import KubeconfigLogin

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def logged_in(config):
    return asyncio.run(cluster_of(config)).configuration.api_key.get("BearerToken")


def test_each_way_to_log_in_becomes_a_header(kubeconfig, tmp_path):
    """Tokens, token files and passwords of a kubeconfig all work, whatever white space a file ends with."""
    (tmp_path / "token").write_text("from-file\n")
    assert logged_in(kubeconfig("http://one", {"token": "secret"})) == "Bearer secret"
    assert logged_in(kubeconfig("http://one", {"tokenFile": str(tmp_path / "token")})) == "Bearer from-file"
    assert logged_in(kubeconfig("http://one", {"username": "u", "password": "p"})) == "Basic dTpw"
    assert logged_in(kubeconfig("http://one")) is None


def test_a_context_without_a_user_is_anonymous(kubeconfig):
    """A kubeconfig that only names a server with TLS is enough to be anonymous there."""
    config = kubeconfig("https://one")
    del config["contexts"][0]["context"]["user"]
    del config["users"]
    cluster = asyncio.run(cluster_of(config))
    assert cluster.identity.user is None
    assert cluster.configuration.api_key == {}


def test_files_are_found_beside_the_kubeconfig(tmp_path, kubeconfig, certificates):
    """Relative paths in a kubeconfig are relative to it, from whatever folder it is used."""
    (tmp_path / "ca.crt").write_bytes((certificates / "ca.crt").read_bytes())
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(kubeconfig("https://one", **{"certificate-authority": "ca.crt"})))
    configuration = Configuration()
    read = Kubeconfig.read([file], context=None)
    asyncio.run(KubeconfigLogin(read, read=lambda: read).load(configuration, afresh=False))
    assert configuration.ssl_ca_cert == str(tmp_path / "ca.crt")


TOKEN = """cat <<EOF
{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "run-$n"%s}}
EOF"""


def exec_login(kubeconfig, user):
    config = kubeconfig("http://one", user)
    login = KubeconfigLogin(Kubeconfig.of(config), read=lambda: Kubeconfig.of(config))
    return login, Configuration()


def test_a_plugin_is_run_once_while_its_token_lasts(kubeconfig, plugin):
    """An exec plugin is not started for every request, and its token is due shortly before it expires."""
    user, runs = plugin(TOKEN % ', "expirationTimestamp": "2999-01-01T00:00:00Z"')
    login, configuration = exec_login(kubeconfig, user)

    async def twice():
        await login.load(configuration, afresh=False)
        await login.load(configuration, afresh=False)

    asyncio.run(twice())
    assert (configuration.api_key["BearerToken"], runs()) == ("Bearer run-1", 1)
    expiry = datetime(2999, 1, 1, tzinfo=UTC)
    assert login.good_for(expiry - timedelta(hours=1)) == timedelta(minutes=55)
    assert login.good_for(expiry - timedelta(minutes=10)) == timedelta(minutes=8)


def test_a_refused_token_makes_the_plugin_run_again(kubeconfig, plugin):
    """A token that was revoked before its time is replaced."""
    user, runs = plugin(TOKEN % ', "expirationTimestamp": "2999-01-01T00:00:00Z"')
    login, configuration = exec_login(kubeconfig, user)

    async def again():
        await login.load(configuration, afresh=False)
        await login.load(configuration, afresh=True)

    asyncio.run(again())
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


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 'no ticket' >&2; exit 3", "no ticket"),
        ("echo hello", "failed to decode"),
        (
            TOKEN.replace('{"token": "run-$n"%s}', "{}"),
            "missing token",
        ),
    ],
)
def test_a_plugin_that_fails_is_quoted(kubeconfig, plugin, body, said):
    """What the plugin said is in the message, instead of a 401 from being anonymous."""
    user, _ = plugin(body)
    with pytest.raises(UsageError, match=said) as caught:
        logged_in(kubeconfig("http://one", user))
    assert "the credential plugin" in str(caught.value)


def test_a_plugin_that_is_not_installed_is_named(kubeconfig):
    """A missing `aws` or `gke-gcloud-auth-plugin` is named."""
    user = {"exec": {"command": "no-such-plugin", "apiVersion": "client.authentication.k8s.io/v1"}}
    with pytest.raises(UsageError, match=r"'no-such-plugin'.*No such file"):
        logged_in(kubeconfig("http://one", user))


def test_a_kubeconfig_that_moved_to_another_server_is_not_followed(kubeconfig):
    """A cache of one cluster is never filled up from another because somebody rewrote the file."""
    configs = [kubeconfig("http://one"), kubeconfig("http://two")]
    login = KubeconfigLogin(Kubeconfig.of(configs[0]), read=lambda: Kubeconfig.of(configs[1]))
    configuration = Configuration()

    async def move():
        await login.load(configuration, afresh=True)
        with pytest.raises(UsageError, match="points to http://two now, no longer to http://one"):
            await login.load(configuration, afresh=True)

    asyncio.run(move())
    assert configuration.host == "http://one"


def test_a_token_file_is_read_again(kubeconfig, tmp_path):
    """A token that is rotated in its file is noticed within a minute."""
    (tmp_path / "token").write_text("one")
    login, configuration = exec_login(kubeconfig, {"tokenFile": str(tmp_path / "token")})

    async def rotate():
        await login.load(configuration, afresh=False)
        (tmp_path / "token").write_text("two\n")
        await login.load(configuration, afresh=False)

    asyncio.run(rotate())
    assert configuration.api_key["BearerToken"] == "Bearer two"
    assert login.good_for(NOW) == timedelta(minutes=1)


def id_token(expires):
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires}).encode()).decode().rstrip("=")
    return f"head.{claims}.tail"


def test_an_oidc_user_shows_its_id_token_and_keeps_its_loader(kubeconfig):
    """OIDC logins work, and a refresh token that may be used once only is never read from the file again."""
    token = id_token(32503680000)
    config = kubeconfig("http://one", {"auth-provider": {"name": "oidc", "config": {"id-token": token}}})
    read_again = []
    login = KubeconfigLogin(Kubeconfig.of(config), read=lambda: read_again.append(1) or Kubeconfig.of(config))
    configuration = Configuration()

    async def twice():
        await login.load(configuration, afresh=False)
        await login.load(configuration, afresh=True)

    asyncio.run(twice())
    assert configuration.api_key["BearerToken"] == f"Bearer {token}"
    assert read_again == []
    assert login.good_for(NOW) == timedelta(minutes=1)


def test_an_expired_oidc_login_is_told(kubeconfig):
    """Who has to log in again is told so."""
    config = {"name": "oidc", "config": {"id-token": id_token(1)}}
    with pytest.raises(UsageError, match="cannot refresh without refresh-token"):
        logged_in(kubeconfig("http://one", {"auth-provider": config}))
