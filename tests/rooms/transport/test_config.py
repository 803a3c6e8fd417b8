"""Where the cluster comes from."""

import asyncio
import base64
import errno
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from kubernetes.aio.client import Configuration

from declctl.errors import UsageError
from declctl.transport import Client
from declctl.transport.config import ServiceAccount, find_cluster, token_subject


def find(kubeconfig=None, context=None):
    return asyncio.run(find_cluster(kubeconfig=kubeconfig, context=context))


@pytest.fixture
def write(tmp_path, kubeconfig):
    """Write a kubeconfig for a server to a file; gives its path."""

    def to(name, server="https://one", path=None, **more):
        file = path or tmp_path / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(kubeconfig(server, name=name, **more)))
        return str(file)

    return to


def encoded(claims):
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")


@pytest.fixture
def account(tmp_path, monkeypatch, certificates):
    """The folder of a service account, laid out as the kubelet does: files behind a `..data` link."""
    folder = tmp_path / "account"
    claims = encoded({"sub": "system:serviceaccount:team-a:guard"})
    (folder / "..first").mkdir(parents=True)
    (folder / "..first" / "token").write_text(f"head.{claims}.tail\n")
    (folder / "..first" / "ca.crt").write_bytes((certificates / "ca.crt").read_bytes())
    (folder / "..first" / "namespace").write_text("team-a\n")
    (folder / "..data").symlink_to("..first")
    for name in ("token", "ca.crt", "namespace"):
        (folder / name).symlink_to(f"..data/{name}")
    monkeypatch.setenv("DECLCTL_SERVICE_ACCOUNT_DIR", str(folder))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return folder


def test_nothing_configured_names_both_ways_out(account, monkeypatch):
    """Who starts it for the first time reads how to give a cluster, and that none is needed to try it.

    A pod without its token, with automountServiceAccountToken off, is no pod.
    """
    monkeypatch.setenv("DECLCTL_SERVICE_ACCOUNT_DIR", "/no/such/folder")
    with pytest.raises(UsageError, match="No cluster is configured") as caught:
        find()
    assert "--kubeconfig" in str(caught.value)
    assert "--sandbox" in str(caught.value)


def test_a_kubeconfig_that_does_not_exist_is_named():
    """A wrong path is told, instead of another cluster being used."""
    with pytest.raises(UsageError, match="The kubeconfig /no/such/file does not exist"):
        find("/no/such/file")


def test_the_identity_says_context_server_user_and_namespace(write):
    identity = find(write("dev")).identity
    assert (identity.context, identity.server) == ("dev", "https://one")
    assert (identity.user, identity.namespace, identity.in_cluster) == ("dev-user", "dev-space", False)


def test_a_file_comes_before_the_variable_and_the_pod_before_the_home(write, monkeypatch, account, tmp_path):
    """--kubeconfig, $KUBECONFIG, the service account, and at last ~/.kube/config."""
    write("home", path=tmp_path / "home/.kube/config")
    monkeypatch.setenv("KUBECONFIG", write("other"))
    assert find(write("dev")).identity.context == "dev"
    assert find().identity.context == "other"
    monkeypatch.delenv("KUBECONFIG")
    identity = find().identity
    assert (identity.in_cluster, identity.server) == (True, "https://10.0.0.1:443")
    assert (identity.user, identity.namespace) == ("system:serviceaccount:team-a:guard", "team-a")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert find().identity.context == "home"


def test_a_context_that_was_asked_for_comes_before_the_pod(write, account, tmp_path):
    """--context speaks of a kubeconfig, so the service account of the pod is not taken."""
    write("home", path=tmp_path / "home/.kube/config")
    assert find(context="home").identity.context == "home"


def test_a_broken_service_account_is_named(account):
    """An empty token file is a fault with a folder, not a 401 later on."""
    (account / "..first" / "token").write_text("")
    with pytest.raises(UsageError, match=f"The service account in {account} can't be used"):
        find()


def test_a_rotated_token_is_read(account, monkeypatch):
    """When the kubelet swaps the projected token, the next reading has the new one, within a minute."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    login, configuration = ServiceAccount(account), Configuration()
    asyncio.run(login.load(configuration, afresh=False))
    assert configuration.host == "https://[fd00::1]:443"
    assert configuration.api_key["BearerToken"].startswith("bearer head.")
    shutil.copytree(account / "..first", account / "..second")
    (account / "..second" / "token").write_text("second")
    (account / "..new").symlink_to("..second")
    (account / "..new").rename(account / "..data")
    asyncio.run(login.load(configuration, afresh=False))
    assert configuration.api_key["BearerToken"] == "bearer second"
    assert login.good_for(datetime.now(UTC)) == timedelta(minutes=1)


NO_SUBJECT = [f"h.{encoded(claims)}.t" for claims in ([], {"sub": 3}, {})]


@pytest.mark.parametrize("token", ["", "opaque", "a.b.c", "h.\xff.t", *NO_SUBJECT])
def test_a_token_that_is_no_jwt_has_no_name(token):
    """Opaque tokens are fine: there is just no name to show."""
    assert token_subject(token) is None


def test_a_list_of_files_is_merged_and_the_first_current_context_wins(write, monkeypatch):
    """Several files in $KUBECONFIG behave as with kubectl; missing ones are passed over."""
    one, two = write("one"), write("two", server="https://two")
    monkeypatch.setenv("KUBECONFIG", f"/no/such/file:{one}:{two}")
    assert find().identity.server == "https://one"
    assert find(context="two").identity.server == "https://two"


def test_of_several_kubeconfigs_the_one_at_fault_is_named(write, monkeypatch):
    """A folder that may not be searched is not said of the files beside it."""
    one, two = write("one"), str(write("two"))
    monkeypatch.setenv("KUBECONFIG", f"{one}:{two}")
    exists = Path.exists

    def denied(path, **options):
        if str(path) == two:
            raise PermissionError(errno.EACCES, "Permission denied", two)
        return exists(path, **options)

    monkeypatch.setattr(Path, "exists", denied)
    with pytest.raises(UsageError) as caught:
        find()
    assert str(caught.value) == f"The kubeconfig {two} can't be read: Permission denied."


def test_a_context_that_is_missing_or_unknown_is_answered_with_those_that_exist(write, tmp_path, kubeconfig):
    """A typing error in --context is answered with what could have been meant."""
    with pytest.raises(UsageError, match=r"has no context 'prod'. It has dev\."):
        find(write("dev"), "prod")
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(kubeconfig("https://one") | {"current-context": ""}))
    with pytest.raises(UsageError, match=r"choose one with --context. It has dev\."):
        find(str(file))


def test_a_certificate_that_is_none_is_told(write):
    """An authority that holds no certificate ends in a sentence before anything is asked."""
    with pytest.raises(UsageError, match="The certificates for https://one can't be loaded"):
        asyncio.run(Client.connect(kubeconfig=write("dev", **{"certificate-authority-data": "IQ=="})))
