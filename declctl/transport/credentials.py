"""Credentials, which are renewed before they expire, and after a server has refused them.

A `Login` of `config` logs in with a kubeconfig or a service account. `Credentials` decides when, and lets one
login serve all requests that wait for it. Both write into a `ClientConfiguration`.

TLS libraries need certificates and keys as files. A file with a key in the temporary folder would stay until
the process ends, or for ever if the process is killed. On Linux, `PrivateFiles` keeps the content in
anonymous memory.
"""

import asyncio
import base64
import binascii
import hashlib
import ipaddress
import logging
import os
import ssl
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import msgspec

from declctl.errors import DeclctlError, Unauthorized, UsageError
from declctl.kit import Clock
from declctl.kit.hosts import ServerUrl

_log = logging.getLogger("declctl.transport")

LOGIN_SECONDS = 60  # the limit of one login; a plugin may need a browser
AGAIN_SECONDS = 10  # after a failed login, and between two logins because of a server's refusal
TOKEN = "BearerToken"  # the key of the token in `api_key`
_VERSION, _UTC_TIME = 0xA0, 0x17  # ASN.1 tags
_END = "-----END CERTIFICATE-----"
_MOST = 16  # contents that are kept, which is enough for a few rotations


@dataclass(eq=False)
class ClientConfiguration:
    """The server, the credentials and the TLS of one cluster.

    The fields are those of `kubernetes.aio.client.Configuration` that are used here. A caller's Configuration
    takes the place of this class as it is, and the official clients of handlers get the values of these
    fields. So a process without `ctx.client` does without aiohttp, on which the official class is built.
    """

    host: str = "http://localhost"
    api_key: dict[str, str] = field(default_factory=dict[str, str])  # `TOKEN`: the header Authorization
    api_key_prefix: dict[str, str] = field(default_factory=dict[str, str])
    ssl_ca_cert: str | None = None  # a file
    ca_cert_data: str | bytes | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify_ssl: bool = True
    assert_hostname: bool | None = None
    disable_strict_ssl_verification: bool = False
    tls_server_name: str | None = None
    proxy: str | None = None
    proxy_headers: Any = None
    client_session_kwargs: dict[str, Any] | None = None  # for each aiohttp session


def choose_proxy(configuration: ClientConfiguration) -> None:
    """Set the proxy of all requests with this configuration, also for the aiohttp sessions of its clients.

    It is the proxy of the kubeconfig, or that of HTTPS_PROXY or HTTP_PROXY, unless NO_PROXY exempts the
    server. The environment is read once, as in client-go. aiohttp itself would read it for each request,
    together with `.netrc`: it would send the passwords from there to the server and the proxy, and raise
    ValueError for a request with an Authorization header.
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
    """The proxy of the environment for a URL, or None; always None for a server on this machine."""
    from urllib.request import getproxies, proxy_bypass  # late: a slow import, and `declctl version` is quick

    address, proxies = ServerUrl.of(url), getproxies()
    try:
        parts = urlsplit(address.url)
    except ValueError:
        return None  # no URL: its first request will raise the error
    host, proxy = parts.hostname or "", proxies.get(parts.scheme)
    if not proxy or address.is_loopback or proxy_bypass(host) or _is_exempt(host, proxies.get("no", "")):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if proxy.lower().startswith("https://"):
        _log.warning(
            "The proxy of the environment, %s, is reached by TLS, which declctl can't do: %s is asked "
            "directly",
            ServerUrl.of(proxy).url,
            address.url,
        )
        return None
    return proxy


def _is_exempt(host: str, no_proxy: str) -> bool:
    """Whether the host is in a network of NO_PROXY; `urllib` compares names only."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        for entry in no_proxy.split(","):
            with suppress(ValueError):
                if address in ipaddress.ip_network(entry.strip(), strict=False):
                    return True
    return False


def token_claims(token: str) -> Mapping[str, Any] | None:
    """The claims of a JWT, which are not verified; None for any other token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims: Any = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    return cast("Mapping[str, Any]", claims) if isinstance(claims, dict) else None


def take_token(target: ClientConfiguration, source: ClientConfiguration) -> None:
    """Replace the token of a configuration by that of another one, without white space around it."""
    tokens = {name: token.strip() for name, token in source.api_key.items()}  # files may end in a newline
    target.api_key.clear()
    target.api_key.update(tokens)


class Login(Protocol):
    """A way to log in. Used on the client's loop."""

    async def load(self, configuration: ClientConfiguration, *, afresh: bool) -> None:
        """Write token and certificates into a configuration.

        `afresh`: the server has refused the previous ones. Raises UsageError with a sentence.
        """
        ...

    def good_for(self, now: datetime) -> timedelta:
        """The time after which `load` has to be called again."""
        ...


class Proof(msgspec.Struct, frozen=True):
    """The credentials of one request."""

    authorization: str | None  # the header
    files: tuple[tuple[str, bytes], ...]  # name of each certificate file, and the digest of what it has


class Credentials:
    """The credentials of one client. Used on the client's loop.

    `configuration` is that of all requests. Without a `login` it is an official Configuration of the caller,
    whose own hook refreshes the token.
    """

    def __init__(self, configuration: ClientConfiguration, *, login: Login | None, clock: Clock) -> None:
        self.configuration = configuration
        self.fault: str | None = None  # why the last login failed; None if it succeeded
        self._login = login
        self._clock = clock
        self._lock = asyncio.Lock()  # held while one task logs in for all
        self._files = _files(configuration)  # their state at the last login
        self._due: datetime | None = None if login is None else self._next()  # of the next login
        self._forced_at: float | None = None  # monotonic time of the last login because of a refusal

    async def proof(self) -> Proof:
        """The present credentials, renewed if that is due.

        If the renewal fails, the old credentials are returned, which the server may still accept.
        """
        await self.keep_fresh()
        return Proof(await self._authorization(), self._files)

    async def keep_fresh(self) -> None:
        """Log in again if that is due. A failed login raises nothing; `fault` has the reason."""
        if self._is_due():
            async with self._lock:
                # Another task may have logged in while this one waited for the lock.
                if self._is_due():
                    await self._load(afresh=False)

    async def renew(self, refused: Proof) -> bool:
        """Log in again after a 401 to the request with `refused`; returns whether the credentials changed.

        All refused requests together cause at most one login in `AGAIN_SECONDS`. Raises Unauthorized if the
        login fails.
        """
        async with self._lock:
            # Another refused request may have logged in already.
            if await self._shows_other_than(refused):
                return True
            # A server that refuses every token must not cause a login for each request.
            now = self._clock.monotonic()
            if self._login is None or (self._forced_at is not None and now - self._forced_at < AGAIN_SECONDS):
                return False
            self._forced_at = now
            await self._load(afresh=True)
            if self.fault is not None:
                raise Unauthorized(
                    401, "Unauthorized", f"the server refused the credentials, and {self.fault}"
                )
            return await self._shows_other_than(refused)

    async def _shows_other_than(self, refused: Proof) -> bool:
        return Proof(await self._authorization(), self._files) != refused

    async def _authorization(self) -> str | None:
        if self._login is not None:
            return self.configuration.api_key.get(TOKEN)
        # The configuration of the caller, whose hook runs in this call and refreshes the token.
        official: Any = self.configuration
        value = (await official.auth_settings()).get(TOKEN, {}).get("value")
        return value.strip() if value else None

    def _is_due(self) -> bool:
        return self._due is not None and self._clock.now() >= self._due

    def _next(self) -> datetime:
        assert self._login is not None
        now = self._clock.now()
        return now + max(self._login.good_for(now), timedelta(seconds=AGAIN_SECONDS))

    async def _load(self, *, afresh: bool) -> None:
        assert self._login is not None
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                await self._login.load(self.configuration, afresh=afresh)
        except TimeoutError:
            self.fault = f"logging in took longer than {LOGIN_SECONDS} s"
        except DeclctlError as fault:
            self.fault = str(fault)
        else:
            self.fault = None
            self._files = _files(self.configuration)
        if self.fault is None:
            self._due = self._next()
        else:
            self._due = self._clock.now() + timedelta(seconds=AGAIN_SECONDS)


async def first_login(login: Login, configuration: ClientConfiguration) -> None:
    """Log in for the first time. Raises UsageError with a sentence, also after LOGIN_SECONDS."""
    try:
        async with asyncio.timeout(LOGIN_SECONDS):
            await login.load(configuration, afresh=True)
    except TimeoutError as fault:
        raise UsageError(
            f"Logging in to the cluster took longer than {LOGIN_SECONDS} s: is the credential plugin waiting?"
        ) from fault


def _files(configuration: ClientConfiguration) -> tuple[tuple[str, bytes], ...]:
    """What the certificate files have: it shows whether a TLS context has the present certificates.

    Mounted files change under the same name, and a swap of their folder may change none of them.
    """
    found: list[tuple[str, bytes]] = []
    for name in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file):
        if name:
            with suppress(OSError):
                found.append((str(name), hashlib.sha256(Path(name).read_bytes()).digest()))
    return tuple(found)


def expiry(file: str) -> datetime | None:
    """The time at which the first certificate of a PEM file expires; None without a readable one."""
    try:
        text = Path(file).read_text(encoding="ascii", errors="replace")
        begin = text.index("-----BEGIN CERTIFICATE-----")
        der = ssl.PEM_cert_to_DER_cert(text[begin : text.index(_END, begin) + len(_END)])
        return _not_after(der)
    except (OSError, ValueError, IndexError):
        return None


def _not_after(der: bytes) -> datetime:
    certificate = _children(der)[0][1]
    fields = _children(_children(certificate)[0][1])
    if fields[0][0] == _VERSION:
        fields = fields[1:]
    validity = fields[3]  # after serial number, algorithm and issuer
    kind, value = _children(validity[1])[1]
    text = value.decode("ascii")
    if kind == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _children(der: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of each element of DER; raises ValueError or IndexError for broken DER."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        if at + length > len(der):
            raise ValueError("an element has no end")
        found.append((tag, der[at : at + length]))
        at += length
    return found


class PrivateFiles:
    """Keeps certificates and keys in memory under paths, as TLS takes only files. Used on one loop.

    They are freed together with their owner. The same content has the same path, so that a login without new
    certificates changes no path.
    """

    def __init__(self) -> None:
        # By content: descriptor and path, the least recently used first.
        self._paths: OrderedDict[bytes, tuple[int, str]] = OrderedDict()
        weakref.finalize(self, _free, self._paths)

    def path(self, content: bytes) -> str:
        """The path of a file with this content, which may be a path of memory."""
        if content not in self._paths:
            if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
                descriptor = os.memfd_create("declctl", os.MFD_CLOEXEC)
                name = f"/proc/self/fd/{descriptor}"
            else:
                descriptor, name = tempfile.mkstemp(prefix="declctl-")  # readable by this user alone
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(content)
            self._paths[content] = (descriptor, name)
            while len(self._paths) > _MOST:
                _close(*self._paths.popitem(last=False)[1])
        self._paths.move_to_end(content)  # a content that each login uses, such as a CA, is never dropped
        return self._paths[content][1]


def _free(paths: "OrderedDict[bytes, tuple[int, str]]") -> None:
    for descriptor, name in paths.values():
        _close(descriptor, name)


def _close(descriptor: int, name: str) -> None:
    with suppress(OSError):
        if not name.startswith("/proc/"):
            Path(name).unlink()
        os.close(descriptor)
