"""Logging in with a kubeconfig, as often as it takes.

Exec plugins, OIDC, token files and certificates are the official loader's; here its faults become sentences.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Self

from declctl.errors import UsageError
from declctl.transport.configuration import (
    OfficialConfiguration,
    OfficialLoader,
    new_configuration,
    take_token,
)
from declctl.transport.kubeconfig import Kubeconfig

_PERIOD = timedelta(minutes=1)  # token files and auth providers are looked at this often
_FOR_EVER = timedelta(days=365)
_EARLIEST = timedelta(minutes=5)  # before a token expires; a fifth of its life if that is less
_OFFICIAL_LOGGER = "kubernetes.aio.config.kube_config"


class KubeconfigLogin:
    """A `Login` with a kubeconfig; `read` reads it again after its credentials were refused."""

    def __init__(self, kubeconfig: Kubeconfig, *, read: Callable[[], Kubeconfig]) -> None:
        self._kubeconfig = kubeconfig
        self._read = read
        self._loader: OfficialLoader | None = None

    async def load(self, configuration: OfficialConfiguration, *, afresh: bool) -> None:
        """Log in and set token, certificates and, the first time, the server; raises UsageError."""
        kubeconfig, loader, first = self._kubeconfig, self._loader, self._loader is None
        # An auth provider's loader holds the newest refresh token, which may never be shown twice:
        # it is kept.
        if loader is not None and afresh and loader.provider is None:
            kubeconfig, loader = await asyncio.to_thread(self._read), None
        loader, found = await _log_in(kubeconfig, loader)
        if first:
            configuration.host = found.host
            configuration.verify_ssl = found.verify_ssl
            configuration.tls_server_name = found.tls_server_name
            configuration.proxy = found.proxy
        elif found.host != configuration.host:
            raise UsageError(
                f"{kubeconfig} points to {found.host} now, no longer to {configuration.host}: "
                "start again to follow it"
            )
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
            return left - min(_EARLIEST, left / 5)
        return _FOR_EVER if self._kubeconfig.exec_plugin else _PERIOD


async def _log_in(
    kubeconfig: Kubeconfig, loader: OfficialLoader | None
) -> tuple[OfficialLoader, OfficialConfiguration]:
    found = new_configuration()
    with _Complaints() as complaints:
        try:
            loader = loader or kubeconfig.loader()
            await loader.load_and_set(found)
        except Exception as fault:  # the official loader, which raises whatever its input provokes
            raise UsageError(f"{kubeconfig} can't be used: {fault}") from fault
    plugin = kubeconfig.exec_plugin
    if plugin and not complaints.texts and not (found.api_key or found.cert_file):
        complaints.texts.append("it gave neither a token nor a certificate")
    if plugin and complaints.texts:
        raise UsageError(f"the credential plugin {plugin!r} of {kubeconfig} failed: {complaints.texts[0]}")
    return loader, found


class _Complaints(logging.Handler):
    # The official loader logs what went wrong with a plugin, and goes on without credentials.

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(" ".join(record.getMessage().split()))

    def __enter__(self) -> Self:
        logging.getLogger(_OFFICIAL_LOGGER).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(_OFFICIAL_LOGGER).removeHandler(self)
