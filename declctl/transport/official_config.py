"""What this room relies on of the official client: its Configuration and its loader, as protocols.

The official classes load half a second of code and are typed loosely; whoever needs them imports them late.
"""

import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from declctl.transport.kubeconfig_checks import Address

_log = logging.getLogger("declctl.transport")

AuthSettings = Mapping[str, Mapping[str, str | None]]


class OfficialConfiguration(Protocol):
    """`kubernetes.aio.client.Configuration`: the server, the credentials and the TLS of one cluster."""

    host: str
    api_key: dict[str, str]
    api_key_prefix: dict[str, str]
    ssl_ca_cert: str | None
    cert_file: str | None
    key_file: str | None
    verify_ssl: bool
    tls_server_name: str | None
    proxy: str | None
    proxy_headers: Any
    client_session_kwargs: dict[str, Any] | None
    refresh_api_key_hook: "Callable[[OfficialConfiguration], Awaitable[None] | None] | None"

    async def auth_settings(self) -> AuthSettings:
        """The headers to show, after its own hook has refreshed them."""
        ...


class OfficialLoader(Protocol):
    """`kubernetes.aio.config.kube_config.KubeConfigLoader`: logs in with one context."""

    provider: str | None  # `gcp` or `oidc`
    cert_file: str | None
    key_file: str | None

    async def load_and_set(self, client_configuration: OfficialConfiguration) -> None:
        """Log in and write everything into a Configuration; raises whatever its input provokes."""
        ...


def new_configuration() -> OfficialConfiguration:
    """An official Configuration with nothing in it."""
    # Late: the official client costs half a second, and `import declctl.transport` shall not.
    from kubernetes.aio.client.configuration import Configuration

    return cast("OfficialConfiguration", Configuration())


def choose_proxy(configuration: OfficialConfiguration) -> None:
    """Choose the proxy now, for all sessions of aiohttp that are made from this configuration.

    It is the proxy of the kubeconfig, or the one that HTTPS_PROXY or HTTP_PROXY names, unless NO_PROXY
    exempts the server. The environment is read once, as by client-go. aiohttp would read it at each request,
    and `.netrc` with it: it sends what it finds there to the server and to the proxy, and raises ValueError
    for a request that has an Authorization.
    """
    options = dict(configuration.client_session_kwargs or {})
    from_environment = options.get("trust_env", True)
    options["trust_env"] = False
    if "proxy" not in options:
        proxy = configuration.proxy or (environment_proxy(configuration.host) if from_environment else None)
        if proxy:
            options["proxy"] = proxy
    configuration.client_session_kwargs = options


def environment_proxy(url: str) -> str | None:
    """The proxy that the environment names for a URL; None for a server on this machine, as in client-go."""
    from urllib.request import getproxies, proxy_bypass  # late: it loads much, and `declctl version` is quick

    address, proxies = Address.of(url), getproxies()
    try:
        parts = urlsplit(address.url)
    except ValueError:
        return None  # it is no URL, which its first request will say
    host, proxy = parts.hostname or "", proxies.get(parts.scheme)
    if not proxy or address.is_loopback or proxy_bypass(host) or _is_exempt(host, proxies.get("no", "")):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if proxy.lower().startswith("https://"):
        _log.warning(
            "The proxy of the environment, %s, is reached by TLS, which declctl can't do: %s is asked "
            "directly",
            Address.of(proxy).url,
            address.url,
        )
        return None
    return proxy


def _is_exempt(host: str, no_proxy: str) -> bool:
    """Whether NO_PROXY has a network in which the host is; `urllib` compares names only."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        for entry in no_proxy.split(","):
            with suppress(ValueError):
                if address in ipaddress.ip_network(entry.strip(), strict=False):
                    return True
    return False


def asks_loopback(configuration: OfficialConfiguration) -> bool:
    """Whether the server is on this machine: `localhost`, or a loopback address."""
    return Address.of(configuration.host).is_loopback


def take_token(target: OfficialConfiguration, source: OfficialConfiguration) -> None:
    """Replace the token of one configuration by that of another, in a form that fits into a header."""
    tokens = {name: token.strip() for name, token in source.api_key.items()}  # files end in newlines
    target.api_key.clear()
    target.api_key.update(tokens)
