"""Where the cluster comes from: a kubeconfig or a service account, in the order of client-go.

In a pod it is the service account that the kubelet mounts, read by the official loader. Its token is
projected and rotates, and so may its CA: both are read again every minute. An `Identity` says who we are and
to which server we talk; `declctl run` prints it first.
"""

import asyncio
import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import msgspec

from declctl.errors import UsageError
from declctl.kit.files import read_in_time
from declctl.objects import KubeObject
from declctl.transport.credentials import TOKEN, Login, first_login
from declctl.transport.kubeconfig import Kubeconfig, KubeconfigLogin
from declctl.transport.official_config import (
    OfficialConfiguration,
    asks_loopback,
    choose_proxy,
    new_configuration,
    take_token,
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Names for people; `namespace` is that of the context or of the service account."""

    context: str | None
    server: str
    user: str | None
    namespace: str | None
    in_cluster: bool


def token_subject(token: str) -> str | None:
    """The `sub` of a JWT, such as `system:serviceaccount:team-a:guard`; None if it is no JWT.

    Nothing is verified: it is a name to show.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        payload: Any = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return None
    if not isinstance(payload, dict):
        return None
    subject = cast("Mapping[str, Any]", payload).get("sub")
    return subject if isinstance(subject, str) else None


FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
FOLDER_VARIABLE = "DECLCTL_SERVICE_ACCOUNT_DIR"
_ADDRESS = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
_PERIOD = timedelta(minutes=1)


class ServiceAccount:
    """A `Login` with the files of a service account."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def mounted(cls) -> "ServiceAccount | None":
        """The one of this pod; None outside of a cluster (client-go's ErrNotInCluster)."""
        folder = Path(os.environ.get(FOLDER_VARIABLE) or FOLDER).absolute()
        here = all(os.environ.get(name) for name in _ADDRESS) and (folder / "token").is_file()
        return cls(folder) if here else None

    @property
    def namespace(self) -> str | None:
        """The namespace of the pod."""
        try:
            return (self._folder / "namespace").read_text(encoding="utf-8").strip() or None
        except OSError:
            return None

    async def load(self, configuration: OfficialConfiguration, *, afresh: bool) -> None:  # noqa: ARG002
        """Read token and CA, `afresh` or not; raises UsageError when they can't be used."""
        # Late: see `configuration`.
        from kubernetes.aio.config import ConfigException
        from kubernetes.aio.config.incluster_config import InClusterConfigLoader

        token, authority = str(self._folder / "token"), str(self._folder / "ca.crt")
        found = new_configuration()
        try:
            InClusterConfigLoader(token, authority, environ=os.environ).load_and_set(cast("Any", found))
        except (ConfigException, OSError, UnicodeDecodeError) as fault:
            raise UsageError(f"The service account in {self._folder} can't be used: {fault}") from fault
        configuration.host = found.host
        configuration.ssl_ca_cert = found.ssl_ca_cert
        take_token(configuration, found)

    def good_for(self, now: datetime) -> timedelta:  # noqa: ARG002
        """A minute, as the official loader has it."""
        return _PERIOD


_DEFAULT = Path("~/.kube/config")
_NOTHING = (
    "No cluster is configured: there is no kubeconfig (looked at {looked_at}), and this is no pod with a "
    "service account. Give one with --kubeconfig or $KUBECONFIG, or use --sandbox, which needs no cluster."
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster as it was found: its names, its official Configuration, and how to log in again.

    It `compresses` lists where its network may be slow: that of a kubeconfig, unless the server is on this
    machine. The kubeconfig's `disable-compression` comes first.
    """

    identity: Identity
    configuration: OfficialConfiguration
    login: Login | None
    compresses: bool = False


async def find_cluster(*, kubeconfig: str | None, context: str | None) -> Cluster:
    """The cluster to talk to, logged in.

    In the order of client-go: `kubeconfig`; $KUBECONFIG, of which missing files are ignored; the
    service account of this pod; ~/.kube/config. With a `context` a kubeconfig comes before the
    service account. Raises UsageError with a sentence.
    """
    paths, looked_at = _candidates(kubeconfig)
    found = await asyncio.to_thread(_existing, paths)
    if kubeconfig and not found:
        raise UsageError(f"The kubeconfig {kubeconfig} does not exist.")
    asked_for = bool(kubeconfig or os.environ.get("KUBECONFIG") or context)
    account = ServiceAccount.mounted()
    if found and (asked_for or account is None):
        return await _from_kubeconfig(found, context)
    if account is not None and not context:
        return await _from_service_account(account)
    raise UsageError(_NOTHING.format(looked_at=looked_at))


async def cluster_of(config: KubeObject) -> Cluster:
    """The cluster of a kubeconfig that is a dict."""
    kubeconfig = await asyncio.to_thread(Kubeconfig.of, config)
    return await _logged_in(kubeconfig, KubeconfigLogin(kubeconfig, read=lambda: Kubeconfig.of(config)))


def _candidates(kubeconfig: str | None) -> tuple[Sequence[Path], str]:
    if kubeconfig:
        return [Path(kubeconfig).expanduser()], kubeconfig
    variable = os.environ.get("KUBECONFIG")
    if variable:
        names = [name for name in variable.split(os.pathsep) if name]
        return [Path(name).expanduser() for name in names], f"$KUBECONFIG, {variable}"
    return [_DEFAULT.expanduser()], str(_DEFAULT)


def _existing(paths: Sequence[Path]) -> Sequence[Path]:
    """Those that are there. Blocks; raises UsageError, which names the file that can't be looked at."""
    found: list[Path] = []
    for path in paths:
        try:
            if read_in_time(path, path.exists, name="kubeconfig"):
                found.append(path)
        except OSError as fault:
            raise UsageError(f"The kubeconfig {path} can't be read: {fault.strerror}.") from fault
    return found


async def _from_kubeconfig(paths: Sequence[Path], context: str | None) -> Cluster:
    # In a thread: it imports the official client and reads files, which takes half a second the
    # first time.
    kubeconfig = await asyncio.to_thread(Kubeconfig.read, paths, context=context)
    chosen = kubeconfig.context  # another current-context later on is not for this process
    return await _logged_in(
        kubeconfig, KubeconfigLogin(kubeconfig, read=lambda: Kubeconfig.read(paths, context=chosen))
    )


async def _logged_in(kubeconfig: Kubeconfig, login: KubeconfigLogin) -> Cluster:
    configuration = new_configuration()
    await first_login(login, configuration)
    choose_proxy(configuration)
    identity = Identity(
        context=kubeconfig.context,
        server=configuration.host,
        user=kubeconfig.user,
        namespace=kubeconfig.namespace,
        in_cluster=False,
    )
    disabled = kubeconfig.disable_compression
    compresses = not asks_loopback(configuration) if disabled is None else not disabled
    return Cluster(identity, configuration, login, compresses)


async def _from_service_account(account: ServiceAccount) -> Cluster:
    configuration = await asyncio.to_thread(new_configuration)
    await first_login(account, configuration)
    choose_proxy(configuration)
    identity = Identity(
        context=None,
        server=configuration.host,
        user=token_subject(configuration.api_key.get(TOKEN, "")),
        namespace=account.namespace,
        in_cluster=True,
    )
    return Cluster(identity, configuration, account)
