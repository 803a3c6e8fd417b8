"""Who may read objects and change state: whoever has the token or, on loopback, is on this machine.

On loopback the danger is a web page in a browser of this machine: it can send requests here under another
name (DNS rebinding), or without reading the answer (a form). Both are told by their headers.
"""

import hmac
import ipaddress
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from declctl.admin.answers import refusal
from declctl.manifest.model import Address

TOKEN_VARIABLE = "DECLCTL_ADMIN_TOKEN"


class Access:
    """The rules of one address; `token` is None or empty where none was given."""

    def __init__(self, address: Address, *, token: str | None = None) -> None:
        self.is_loopback = is_loopback(address.host)
        self._names = frozenset({"localhost", "127.0.0.1", "::1", address.host.lower()})
        self._token = token or ""

    def guarded(self, handler: Handler) -> Handler:
        """The handler behind the rules."""

        async def guard(request: web.Request) -> web.StreamResponse:
            refused = self._local(request) if self.is_loopback else self._remote(request)
            return refused or await handler(request)

        return guard

    def _local(self, request: web.Request) -> web.Response | None:
        if _host(f"//{request.headers.get('Host', '')}") not in self._names:
            return refusal(
                403, f"This address answers to {', '.join(sorted(self._names))}, not to other names."
            )
        origin = request.headers.get("Origin")
        if origin is not None and _host(origin) not in self._names:
            return refusal(403, "Other web pages may not ask this address.")
        return None

    def _remote(self, request: web.Request) -> web.Response | None:
        if not self._token:
            return refusal(
                403,
                f"This address is not loopback, so that {request.path} needs a token, and the process has "
                f"none; start it with {TOKEN_VARIABLE} set.",
            )
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode()):
            return None
        refused = refusal(401, f"{request.path} needs the header Authorization: Bearer with the right token.")
        refused.headers["WWW-Authenticate"] = "Bearer"
        return refused


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host; a name counts only if it is `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
