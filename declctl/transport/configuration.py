"""What this room relies on of the official client: its Configuration and its loader, as protocols.

The official classes load half a second of code and are typed loosely; whoever needs them imports them late.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

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

    async def load_and_set(self, client_configuration: OfficialConfiguration) -> None:
        """Log in and write everything into a Configuration; raises whatever its input provokes."""
        ...


def new_configuration() -> OfficialConfiguration:
    """An official Configuration with nothing in it."""
    # Late: the official client costs half a second, and `import declctl.transport` shall not.
    from kubernetes.aio.client.configuration import Configuration

    return cast("OfficialConfiguration", Configuration())


def take_token(target: OfficialConfiguration, source: OfficialConfiguration) -> None:
    """Replace the token of one configuration by that of another, in a form that fits into a header."""
    tokens = {name: token.strip() for name, token in source.api_key.items()}  # files end in newlines
    target.api_key.clear()
    target.api_key.update(tokens)
