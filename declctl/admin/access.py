"""Who may ask the admin address, and who may see or change what.

Three rules, in this order:

- A request is for this address, and comes from a page of it or from no page: `Host` and `Origin` say so.
  This holds for every path. The danger is a web page in a browser that can reach the address: it can send
  requests under a name of its own (DNS rebinding), or without reading the answer (a form).
- A request that reads objects or changes state needs the token, on every address, if the process has one.
  A process without a token accepts such requests on loopback only.
- Other answers leave out texts where the token would be needed and is not given: objects, servers and
  handlers write them, and secrets may be in them. Types and counts stay.
"""

import hmac
from collections.abc import Callable, Iterable

from aiohttp import web
from aiohttp.typedefs import Handler

from declctl.admin.answers import Reason, Refusals, refusal
from declctl.kit.hosts import Authority, is_literal, is_loopback, is_same_origin, parse_authority
from declctl.manifest.model import Address

TOKEN_VARIABLE = "DECLCTL_ADMIN_TOKEN"
_BEARER = "bearer"


class Access:
    """The rules of one address.

    `token` is None or empty where none was given; white space around it does not count, as files end in
    newlines. `machine` is the host name of this machine. `allowed` gives the other names that a request
    may be sent to: it is asked each time, as a reload may change them. Used on one loop.
    """

    def __init__(
        self,
        address: Address,
        *,
        token: str | None = None,
        machine: str = "",
        allowed: Callable[[], Iterable[str]] = tuple,
        refusals: Refusals | None = None,
    ) -> None:
        self.is_loopback = is_loopback(address.host)
        self._names = frozenset({"localhost", machine.lower(), address.host.lower()} - {""})
        self._token = _bytes((token or "").strip())
        self._allowed = allowed
        self._refusals = refusals or Refusals()

    @property
    def needs_token(self) -> bool:
        """Whether the token is needed to see all and to change anything."""
        return bool(self._token) or not self.is_loopback

    @web.middleware
    async def check_sender(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what was sent to another name, or by a page of another host. For every path."""
        given = request.headers.getall("Host", [])
        if not given and request.version < (1, 1):
            # HTTP/1.0 needs no Host, and old health checks send none. A browser always sends one, so that no
            # web page is behind such a request.
            host = Authority("localhost", None)
        elif len(given) != 1 or (host := parse_authority(given[0])) is None:
            return self._refuse(request, Reason.HOST, 400, "A request needs one Host header, host:port.")
        elif not self._is_ours(host, _port(request)):
            return self._refuse(request, Reason.HOST, 403, self._names_wrong(given[0]))
        origins = request.headers.getall("Origin", [])
        if origins and (not given or not all(is_same_origin(origin, host) for origin in origins)):
            return self._refuse(request, Reason.ORIGIN, 403, "Other web pages may not ask this address.")
        return await handler(request)

    def guarded(self, handler: Handler) -> Handler:
        """The handler of what shows objects or changes state, behind the token."""

        async def guard(request: web.Request) -> web.StreamResponse:
            if self.needs_token and not self._has_token(request):
                return self._without_token(request)
            return await handler(request)

        return guard

    def open(
        self, handler: Callable[[web.Request, bool], web.StreamResponse], *, probe: bool = False
    ) -> Handler:
        """The handler of what everybody may ask; its second argument says whether texts may be shown.

        A wrong token is refused, as its sender wants to see everything; for a `probe` it is ignored.
        """

        async def show(request: web.Request) -> web.StreamResponse:
            texts = not self.needs_token or self._has_token(request)
            if not texts and not probe and "Authorization" in request.headers:
                return self._without_token(request)
            return handler(request, texts)

        return show

    def _is_ours(self, host: Authority, port: int | None) -> bool:
        if host.host in self._allowed():
            return True
        if self.is_loopback:
            return (host.port or 80) == port and is_loopback(host.host)
        # A literal can't be rebound. The port may be another one: that of a Service, or of a port-forward.
        return is_literal(host.host) or host.host in self._names

    def _names_wrong(self, given: str) -> str:
        if self.is_loopback:
            ours = "localhost and loopback addresses with its own port"
        else:
            ours = f"IP addresses and {', '.join(sorted(self._names))}"
        named = given[:100]
        return f"This address answers to {ours}, not to {named!r}; spec.admin.allowedHosts names others."

    def _has_token(self, request: web.Request) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return (
            bool(self._token)
            and scheme.lower() == _BEARER
            and hmac.compare_digest(_bytes(given.strip()), self._token)
        )

    def _without_token(self, request: web.Request) -> web.Response:
        if not self._token:
            return self._refuse(
                request,
                Reason.TOKEN,
                403,
                f"This address is not loopback, so that {request.path} needs a token, and the process has "
                f"none; start it with {TOKEN_VARIABLE} set.",
            )
        sentence = f"{request.path} needs the header Authorization: Bearer with the right token."
        refused = self._refuse(request, Reason.TOKEN, 401, sentence)
        refused.headers["WWW-Authenticate"] = "Bearer"
        return refused

    def _refuse(self, request: web.Request, reason: Reason, status: int, sentence: str) -> web.Response:
        self._refusals.request(reason, request, sentence)
        return refusal(status, sentence)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # as aiohttp decodes headers


def _port(request: web.Request) -> int | None:
    """The port that the connection came to; None if it is over."""
    name = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return None if name is None else int(name[1])
