"""Where the cluster is and how to log in: a kubeconfig or a service account, in the order of client-go.

In a pod it is the service account that the kubelet mounts, read by the official loader. Its token is
projected and rotates, and so may its CA: both are read again every minute. An `Identity` says who we are and
to which server we talk; `declctl run` prints it first.
"""

import asyncio
import base64
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from declctl.errors import UsageError
from declctl.kit import Clock, SystemClock
from declctl.kit.files import read_file_in_time, read_in_time
from declctl.kit.hosts import ServerUrl
from declctl.objects import KubeObject
from declctl.transport.credentials import (
    TOKEN,
    ClientConfiguration,
    Login,
    PrivateFiles,
    choose_proxy,
    expiry,
    first_login,
    take_token,
    token_claims,
)
from declctl.transport.kubeconfig import EARLY, TLS_BYTES, Kubeconfig

if TYPE_CHECKING:
    from declctl.transport.auth_plugins import UserLogin

FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
FOLDER_VARIABLE = "DECLCTL_SERVICE_ACCOUNT_DIR"
_ADDRESS = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
_PERIOD = timedelta(minutes=1)  # token files and auth providers are looked at this often
_FOR_EVER = timedelta(days=365)
_log = logging.getLogger("declctl.transport")
_DEFAULT = "~/.kube/config"
_NOTHING = (
    "No cluster is configured: there is no kubeconfig (looked at {looked_at}), and this is no pod with a "
    "service account. Give one with --kubeconfig or $KUBECONFIG, or use --sandbox, which needs no cluster."
)


class Identity(msgspec.Struct, frozen=True):
    """The user and the server of a client, for logs and status."""

    context: str | None  # of the kubeconfig; None for a service account
    server: str  # the URL, without credentials
    user: str | None  # None if it is not known
    namespace: str | None  # of the context or the pod
    in_cluster: bool  # it is the service account of this pod


class Cluster(msgspec.Struct, frozen=True):
    """A cluster that was found and logged in to."""

    identity: Identity
    configuration: ClientConfiguration
    login: Login | None  # renews the credentials; None for a caller's configuration, which does that itself
    # Lists are requested in gzip, because the network may be slow. True for the server of a kubeconfig,
    # unless it is on this machine or the kubeconfig has `disable-compression`.
    compresses: bool = False


def authority_of(cluster: Cluster) -> str:
    """A digest of the server's address and of the authority that signs for it: that of one cluster.

    Another cluster at the same address has an authority of its own, unless people share one. Reads a file.
    """
    configuration = cluster.configuration
    signs = configuration.ca_cert_data or b""
    if configuration.ssl_ca_cert:
        with suppress(OSError):
            signs = Path(configuration.ssl_ca_cert).read_bytes()
    parts = (cluster.identity.server.encode(), signs.encode() if isinstance(signs, str) else signs)
    return sha256(b"\n".join(parts)).hexdigest()


async def find_cluster(*, kubeconfig: str | None, context: str | None, clock: Clock | None = None) -> Cluster:
    """Find the configured cluster and log in. Files are read in threads, so that the loop is not blocked.

    The order is that of client-go: `kubeconfig`; $KUBECONFIG, of which missing files are ignored; the service
    account of this pod; ~/.kube/config. With a `context`, a kubeconfig takes precedence over the service
    account. Raises UsageError with a sentence.
    """
    variable = os.environ.get("KUBECONFIG")
    if kubeconfig:
        names, looked_at = [kubeconfig], kubeconfig
    elif variable:
        names, looked_at = [name for name in variable.split(os.pathsep) if name], f"$KUBECONFIG, {variable}"
    else:
        names, looked_at = [_DEFAULT], _DEFAULT
    found = await asyncio.to_thread(_existing, names)
    if kubeconfig and not found:
        raise UsageError(f"The kubeconfig {kubeconfig} does not exist.")
    account = ServiceAccount.mounted()
    # In a pod, a ~/.kube/config is an accident, unless an argument or a variable asks for it.
    if found and (kubeconfig or variable or context or account is None):
        read = await asyncio.to_thread(Kubeconfig.read, found, context=context)
        chosen = read.context  # a later change of current-context does not concern this process
        return await _logged_in(read, lambda: Kubeconfig.read(found, context=chosen), clock)
    if account is not None and not context:
        return await _from_service_account(account)
    raise UsageError(_NOTHING.format(looked_at=looked_at))


async def cluster_of(config: KubeObject, *, clock: Clock | None = None) -> Cluster:
    """Log in to the cluster of a kubeconfig in a dictionary; raises UsageError with a sentence."""
    kubeconfig = await asyncio.to_thread(Kubeconfig.of, config)
    return await _logged_in(kubeconfig, lambda: Kubeconfig.of(config), clock)


def _existing(names: Sequence[str]) -> Sequence[Path]:
    """The files that exist. Raises UsageError for a path that can't be checked. Blocks."""
    found: list[Path] = []
    for path in (Path(name).expanduser() for name in names):
        try:
            if read_in_time(path, path.exists, name="kubeconfig"):
                found.append(path)
        except OSError as fault:
            raise UsageError(f"The kubeconfig {path} can't be read: {fault.strerror}.") from fault
    return found


async def _logged_in(kubeconfig: Kubeconfig, read: Callable[[], Kubeconfig], clock: Clock | None) -> Cluster:
    login = KubeconfigLogin(kubeconfig, read=read, clock=clock)
    configuration = ClientConfiguration()
    await first_login(login, configuration)
    choose_proxy(configuration)
    identity = Identity(
        context=kubeconfig.context,
        server=configuration.host,
        user=kubeconfig.user_name,
        namespace=kubeconfig.namespace,
        in_cluster=False,
    )
    disabled = kubeconfig.cluster.disable_compression
    is_near = ServerUrl.of(configuration.host).is_loopback
    compresses = not (is_near if disabled is None else disabled)
    return Cluster(identity, configuration, login, compresses)


async def _from_service_account(account: "ServiceAccount") -> Cluster:
    configuration = ClientConfiguration()
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


def token_subject(token: str) -> str | None:
    """The `sub` of a JWT, such as `system:serviceaccount:team-a:guard`; None for any other token.

    The token is not verified: the name is for display.
    """
    subject = (token_claims(token) or {}).get("sub")
    return subject if isinstance(subject, str) else None


class ServiceAccount:
    """A `Login` with the files of a service account."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def mounted(cls) -> "ServiceAccount | None":
        """The service account of this pod; None outside of a cluster (client-go's ErrNotInCluster)."""
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

    async def load(self, configuration: ClientConfiguration, *, afresh: bool) -> None:  # noqa: ARG002
        """Read token and CA, `afresh` or not; raises UsageError when they can't be used."""
        found = await asyncio.to_thread(self._load)
        configuration.host = found.host
        configuration.ssl_ca_cert = found.ssl_ca_cert
        take_token(configuration, found)

    def _load(self) -> ClientConfiguration:
        # Late, and in a thread: the first import of the official client takes a quarter of a second.
        from kubernetes.config import ConfigException
        from kubernetes.config.incluster_config import InClusterConfigLoader

        token, authority = str(self._folder / "token"), str(self._folder / "ca.crt")
        found = ClientConfiguration()
        loader = InClusterConfigLoader(token, authority, try_refresh_token=False, environ=os.environ)
        try:
            loader.load_and_set(cast("Any", found))
        except (ConfigException, OSError, UnicodeDecodeError) as fault:
            raise UsageError(f"The service account in {self._folder} can't be used: {fault}") from fault
        return found

    def good_for(self, now: datetime) -> timedelta:  # noqa: ARG002
        """A minute, as in the official loader: the kubelet may replace the files at any time."""
        return _PERIOD


class KubeconfigLogin:
    """A `Login` with a kubeconfig. `read` reads it again after the server has refused its credentials."""

    def __init__(
        self, kubeconfig: Kubeconfig, *, read: Callable[[], Kubeconfig], clock: Clock | None = None
    ) -> None:
        self._kubeconfig = kubeconfig  # of the last successful login
        self._read = read
        self._clock = clock or SystemClock()
        self._user: UserLogin | None = None  # of the last successful login
        self._private = PrivateFiles()
        self._expired: object = None  # the last certificate about which a warning was logged

    async def load(self, configuration: ClientConfiguration, *, afresh: bool) -> None:
        """Log in and set token, certificates and, the first time, the server; raises UsageError."""
        kubeconfig, user, first = self._kubeconfig, self._user, self._user is None
        # After a refusal the kubeconfig is read again. Not with an auth provider: `user` has the newest
        # refresh token, and the file may have an older one, which the provider no longer accepts.
        if user is not None and afresh and not kubeconfig.user.auth_provider:
            kubeconfig, user = await asyncio.to_thread(self._read), None
        user, found = await self._log_in(kubeconfig, user)
        self._check_expiry(found, kubeconfig)
        if first:
            if kubeconfig.cluster.insecure_skip_tls_verify:
                _log.warning(
                    "The certificate of %s is not checked (insecure-skip-tls-verify): who stands in between "
                    "can read and change everything, the credentials included.",
                    found.host,
                )
            if headers := kubeconfig.user.impersonation:
                from multidict import CIMultiDict  # late: as above

                # In the session, so that they also apply to official clients that use this configuration.
                kwargs = configuration.client_session_kwargs or {}
                configuration.client_session_kwargs = {**kwargs, "headers": CIMultiDict(headers)}
            configuration.host = found.host
            configuration.verify_ssl = found.verify_ssl
            configuration.tls_server_name = found.tls_server_name
            configuration.proxy = found.proxy
        # Caches and sources belong to one server and one identity. Another one needs another process.
        elif found.host != configuration.host:
            raise UsageError(
                f"{kubeconfig} points to {found.host} now, no longer to {configuration.host}: "
                "start again to follow it"
            )
        elif kubeconfig.user.impersonation != self._kubeconfig.user.impersonation:
            raise UsageError(f"{kubeconfig} impersonates another user now: start again to follow it")
        configuration.ssl_ca_cert = found.ssl_ca_cert
        configuration.cert_file = found.cert_file
        configuration.key_file = found.key_file
        take_token(configuration, found)
        self._kubeconfig, self._user = kubeconfig, user

    def good_for(self, now: datetime) -> timedelta:
        """Until shortly before a plugin's token expires; a minute for files, which may change at any time."""
        until = self._user.expires if self._user is not None else None
        if until is not None:
            left = until.astimezone(UTC) - now
            return left - min(EARLY, left / 5)  # for a short-lived token, a fifth of the rest of its life
        # A plugin whose token has no expiry is run again when the server refuses the token.
        return _FOR_EVER if self._kubeconfig.user.exec else _PERIOD

    def _check_expiry(self, found: ClientConfiguration, kubeconfig: Kubeconfig) -> None:
        """Raise UsageError for an expired client certificate; if there is a token, too, only warn, once."""
        if not found.cert_file:
            return
        until = expiry(found.cert_file)
        if until is None or until > self._clock.now():
            return
        name = "of its client-certificate-data" if found.cert_file.startswith("/proc/") else found.cert_file
        message = f"The client certificate {name} in {kubeconfig} expired at {until:%Y-%m-%d %H:%M:%S} UTC"
        if not found.api_key:
            raise UsageError(f"{message}, by the clock of this machine. Log in again, or renew it.")
        if self._expired != (found.cert_file, until):
            self._expired = (found.cert_file, until)
            _log.warning("%s; its token is shown as well", message)

    async def _log_in(
        self, kubeconfig: Kubeconfig, user: "UserLogin | None"
    ) -> "tuple[UserLogin, ClientConfiguration]":
        from declctl.transport.auth_plugins import UserLogin  # late: in a pod, none is needed

        await asyncio.to_thread(_require_tls_files, kubeconfig)
        user = user or UserLogin(kubeconfig, self._private)
        plugin = kubeconfig.user.exec
        try:
            found = await user.load()
        except Exception as fault:  # the official loader may raise any exception for a broken kubeconfig
            if plugin and isinstance(fault, UsageError):
                raise UsageError(
                    f"the credential plugin {plugin.command!r} of {kubeconfig} failed: {fault}"
                ) from fault
            raise UsageError(f"{kubeconfig} can't be used: {fault}") from fault
        address = ServerUrl.of(found.host)
        found.host = address.url
        if address.userinfo and not found.api_key:
            # As in Go's HTTP client: a name and a password in the URL are used if there are no other
            # credentials.
            found.api_key[TOKEN] = "Basic " + base64.b64encode(address.userinfo.encode()).decode()
        return user, found


def _require_tls_files(kubeconfig: Kubeconfig) -> None:
    """Read the certificates and keys that the kubeconfig names; raises UsageError. Blocks.

    `expiry` and TLS open these files on the loop after this. There, a mount that hangs would block the loop;
    here, the login fails in time.
    """
    for field, file in kubeconfig.tls_files.items():
        try:
            read_file_in_time(file, most=TLS_BYTES, name="kubeconfig")
        except OSError as fault:
            raise UsageError(
                f"{kubeconfig} can't be used: its {field} {file} can't be read: {fault.strerror}"
            ) from fault
