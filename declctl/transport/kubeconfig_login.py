"""Logging in with a kubeconfig, as often as it takes.

OIDC, token files and certificates are the official loader's; here its faults become sentences.
"""

import asyncio
import base64
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from declctl.errors import UsageError
from declctl.kit.files import read_file_in_time
from declctl.transport.certificates import expiry
from declctl.transport.configuration import (
    OfficialConfiguration,
    OfficialLoader,
    new_configuration,
    take_token,
)
from declctl.transport.credentials import TOKEN
from declctl.transport.kubeconfig import Kubeconfig
from declctl.transport.kubeconfig_checks import EARLY, TLS_BYTES, Address
from declctl.transport.private_files import PrivateFiles

_PERIOD = timedelta(minutes=1)  # token files and auth providers are looked at this often
_FOR_EVER = timedelta(days=365)
_log = logging.getLogger("declctl.transport")


class KubeconfigLogin:
    """A `Login` with a kubeconfig; `read` reads it again after its credentials were refused."""

    def __init__(self, kubeconfig: Kubeconfig, *, read: Callable[[], Kubeconfig]) -> None:
        self._kubeconfig = kubeconfig
        self._read = read
        self._loader: OfficialLoader | None = None
        self._private = PrivateFiles()
        self._expired: object = None  # the last certificate that a warning has named

    async def load(self, configuration: OfficialConfiguration, *, afresh: bool) -> None:
        """Log in and set token, certificates and, the first time, the server; raises UsageError."""
        kubeconfig, loader, first = self._kubeconfig, self._loader, self._loader is None
        # An auth provider's loader holds the newest refresh token, which may never be shown twice:
        # it is kept.
        if loader is not None and afresh and loader.provider is None:
            kubeconfig, loader = await asyncio.to_thread(self._read), None
        loader, found = await _log_in(kubeconfig, loader, self._private)
        self._check_expiry(found, kubeconfig)
        if first:
            if not kubeconfig.verifies:
                _log.warning(
                    "The certificate of %s is not checked (insecure-skip-tls-verify): who stands in between "
                    "can read and change everything, the credentials included.",
                    found.host,
                )
            _impersonate(configuration, kubeconfig)
            configuration.host = found.host
            configuration.verify_ssl = found.verify_ssl
            configuration.tls_server_name = found.tls_server_name
            configuration.proxy = found.proxy
        elif found.host != configuration.host:
            raise UsageError(
                f"{kubeconfig} points to {found.host} now, no longer to {configuration.host}: "
                "start again to follow it"
            )
        elif kubeconfig.impersonation != self._kubeconfig.impersonation:
            raise UsageError(f"{kubeconfig} impersonates somebody else now: start again to follow it")
        configuration.ssl_ca_cert = found.ssl_ca_cert
        configuration.cert_file = found.cert_file
        configuration.key_file = found.key_file
        take_token(configuration, found)
        self._kubeconfig, self._loader = kubeconfig, loader

    def good_for(self, now: datetime) -> timedelta:
        """Until shortly before a plugin's token expires; a minute for what changes unannounced."""
        expiry: datetime | None = getattr(self._loader, "exec_plugin_expiry", None)
        if expiry is not None:
            left = expiry.astimezone(UTC) - now
            return left - min(EARLY, left / 5)  # a fifth of its life if that is less
        return _FOR_EVER if self._kubeconfig.exec_plugin else _PERIOD

    def _check_expiry(self, found: OfficialConfiguration, kubeconfig: Kubeconfig) -> None:
        """Raise UsageError for a client certificate that has expired; with a token as well, warn once."""
        if not found.cert_file:
            return
        until = expiry(found.cert_file)
        if until is None or until > datetime.now(UTC):
            return
        name = "of its client-certificate-data" if found.cert_file.startswith("/proc/") else found.cert_file
        message = f"The client certificate {name} in {kubeconfig} expired at {until:%Y-%m-%d %H:%M:%S} UTC"
        if not found.api_key:
            raise UsageError(f"{message}, by the clock of this machine. Log in again, or renew it.")
        if self._expired != (found.cert_file, until):
            self._expired = (found.cert_file, until)
            _log.warning("%s; its token is shown as well", message)


async def _log_in(
    kubeconfig: Kubeconfig, loader: OfficialLoader | None, private: PrivateFiles
) -> tuple[OfficialLoader, OfficialConfiguration]:
    await asyncio.to_thread(_require_tls_files, kubeconfig)
    found = new_configuration()
    plugin = kubeconfig.exec_plugin
    try:
        loader = loader or kubeconfig.loader(private.folder)
        await loader.load_and_set(found)
        # The same content, and so the same file, may be there twice.
        files = {name: private.take(name) for name in {found.ssl_ca_cert, found.cert_file, found.key_file}}
        found.ssl_ca_cert = files[found.ssl_ca_cert]
        found.cert_file, found.key_file = files[found.cert_file], files[found.key_file]
        if found.cert_file:  # the loader goes on to name what it has made once
            loader.cert_file, loader.key_file = found.cert_file, found.key_file
    except Exception as fault:  # the official loader, which raises whatever its input provokes
        if plugin and isinstance(fault, UsageError):
            raise UsageError(f"the credential plugin {plugin!r} of {kubeconfig} failed: {fault}") from fault
        raise UsageError(f"{kubeconfig} can't be used: {fault}") from fault
    address = Address.of(found.host)
    found.host = address.url
    if address.userinfo and not found.api_key:
        # As Go's HTTP client: what stands in the URL is shown where there is nothing else to show.
        found.api_key[TOKEN] = "Basic " + base64.b64encode(address.userinfo.encode()).decode()
    return loader, found


def _require_tls_files(kubeconfig: Kubeconfig) -> None:
    """Read the certificates and keys that the kubeconfig names; raises UsageError. Blocks.

    The official loader, `expiry` and TLS open them on the loop right after this. There a mount that hangs
    would stop everything, so a login ends here while it does.
    """
    for field, file in kubeconfig.tls_files.items():
        try:
            read_file_in_time(file, most=TLS_BYTES, name="kubeconfig")
        except OSError as fault:
            raise UsageError(
                f"{kubeconfig} can't be used: its {field} {file} can't be read: {fault.strerror}"
            ) from fault


def _impersonate(configuration: OfficialConfiguration, kubeconfig: Kubeconfig) -> None:
    headers = kubeconfig.impersonation
    if not headers:
        return
    from multidict import CIMultiDict  # late: see `configuration`

    # Headers of the session: of our own requests, and of the official clients made from this configuration.
    kwargs = configuration.client_session_kwargs or {}
    configuration.client_session_kwargs = {**kwargs, "headers": CIMultiDict(headers)}
