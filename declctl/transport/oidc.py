"""OpenID Connect (`auth-provider: oidc`): a new id token for the refresh token of a kubeconfig.

The official client does not check the certificate of the identity provider, and fails if the kubeconfig has
an authority for it. It shows the client's secret wherever the provider redirects to. It fails if the provider
keeps the refresh token. This module loads aiohttp.
"""

import asyncio
import base64
import ssl
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote_plus

import aiohttp
import msgspec

from declctl.errors import UsageError
from declctl.kit.files import read_file_in_time
from declctl.transport.kubeconfig_checks import TLS_BYTES, Address
from declctl.transport.official_config import environment_proxy

_ANSWER_BYTES = 1024 * 1024


async def refresh(config: MutableMapping[str, Any]) -> None:
    """Get an id token from the identity provider, and write it into `config` (client-go's oidc.go).

    `config` is `auth-provider.config` of the user, in memory: a refresh token that the provider replaces is
    not written into the kubeconfig. Raises UsageError with a sentence.
    """
    for name in ("refresh-token", "idp-issuer-url", "client-id"):
        if not config.get(name):
            raise UsageError(
                f"oidc: the id-token has expired, and cannot refresh without {name}. Log in again"
            )
    issuer = str(config["idp-issuer-url"]).rstrip("/")
    try:
        context = await asyncio.to_thread(_trust, config)
        async with aiohttp.ClientSession(
            headers={"Accept": "application/json"},
            connector=aiohttp.TCPConnector(ssl=context),
            trust_env=False,  # it stands for `.netrc`, too
        ) as session:
            found = await _answer(session, "GET", f"{issuer}/.well-known/openid-configuration")
            endpoint = found.get("token_endpoint")
            if not isinstance(endpoint, str):
                raise UsageError(f"oidc: the identity provider {issuer} names no token_endpoint")
            given = await _answer(
                session,
                "POST",
                endpoint,
                # The client's secret is for this request alone: discovery needs none.
                headers={"Authorization": _basic(config)},
                form={"grant_type": "refresh_token", "refresh_token": str(config["refresh-token"])},
            )
    except (aiohttp.ClientError, msgspec.MsgspecError, OSError, RecursionError, ValueError) as fault:
        why = str(fault) or type(fault).__name__  # a TimeoutError says nothing
        raise UsageError(f"oidc: the identity provider {issuer} gave no id-token: {why}") from fault
    if not isinstance(given.get("id_token"), str):
        raise UsageError(f"oidc: the identity provider {issuer} gave no id-token. Log in again")
    config["id-token"] = given["id_token"]
    if given.get("refresh_token"):  # else the old one stays good
        config["refresh-token"] = given["refresh_token"]


async def _answer(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    form: Mapping[str, str] | None = None,
) -> Mapping[str, Any]:
    _require_tls(url)
    async with session.request(
        method,
        url,
        headers=headers,
        data=form,
        proxy=environment_proxy(url),
        allow_redirects=form is None,
    ) as response:
        for hop in (*response.history, response):
            _require_tls(str(hop.url))
        if response.status >= 300:
            # invalid_grant is a 400, invalid_client a 401 (RFC 6749, 5.2).
            refused = form is not None and response.status in (400, 401)
            hint = ". Is the refresh token still good?" if refused else ""
            raise UsageError(f"oidc: {url} answers {response.status}{hint}")
        content = bytearray()
        async for part in response.content.iter_any():
            content += part
            if len(content) > _ANSWER_BYTES:
                raise UsageError(f"oidc: the answer of {url} has more than {_ANSWER_BYTES:,} bytes")
    document: object = msgspec.json.decode(content)
    if not isinstance(document, dict):
        raise UsageError(f"oidc: what {url} answers is no JSON object")
    return cast("Mapping[str, Any]", document)


def _require_tls(url: str) -> None:
    address = Address.of(url)
    if not address.is_encrypted and not address.is_loopback:
        raise UsageError(f"oidc: {address.url} is not https: anybody on the way could read the refresh token")


def _trust(config: Mapping[str, Any]) -> ssl.SSLContext:
    """The authorities of the identity provider: those of the kubeconfig, else those of the system.

    Data of the kubeconfig replace its file, as in client-go. Blocks, for READ_SECONDS at most.
    """
    data, name = config.get("idp-certificate-authority-data"), config.get("idp-certificate-authority")
    try:
        if data:
            content = base64.b64decode(data)
        elif name:
            file = Path(name)
            # OpenSSL would open the file itself, and wait for ever for a pipe or a mount that hangs.
            content = read_file_in_time(file, most=TLS_BYTES, name="kubeconfig")
        else:
            return ssl.create_default_context()
        if not content.strip():  # which `ssl` takes for the authorities of the system
            raise ValueError("it is empty")
        # Bundles may have comments that are not ASCII, which `ssl` refuses.
        return ssl.create_default_context(cadata=content.decode("ascii", "ignore"))
    except (OSError, ValueError) as fault:
        shown = f" {name}" if name and not data else ""
        why = fault.strerror if isinstance(fault, OSError) and fault.strerror else fault
        raise UsageError(
            f"oidc: the certificate authority{shown} of the identity provider can't be used: {why}"
        ) from fault


def _basic(config: Mapping[str, Any]) -> str:
    # RFC 6749, 2.3.1: both are encoded as in a form first.
    pair = ":".join(quote_plus(str(config.get(name) or "")) for name in ("client-id", "client-secret"))
    return "Basic " + base64.b64encode(pair.encode()).decode()
