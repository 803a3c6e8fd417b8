"""Credentials, which are renewed before they expire, and after a server has refused them.

A `Login` of `config` logs in with a kubeconfig or a service account. `Credentials` decides when, and lets one
login serve all requests that wait for it. Both write into the `Configuration` of the official client. Here
that is a protocol, because importing the class takes half a second.

TLS libraries need certificates and keys as files. The official loader writes `client-key-data` into the
temporary folder, where it would stay until the process ends, or for ever if the process is killed. On Linux,
`PrivateFiles` moves the content into anonymous memory at once.
"""

import asyncio
import hashlib
import ipaddress
import logging
import os
import ssl
import sys
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import msgspec

from declctl.errors import DeclctlError, Unauthorized, UsageError
from declctl.kit import Clock
from declctl.kit.hosts import ServerUrl

_log = logging.getLogger("declctl.transport")

AuthSettings = Mapping[str, Mapping[str, str | None]]
LOGIN_SECONDS = 60  # the limit of one login; a plugin may need a browser
AGAIN_SECONDS = 10  # after a failed login, and between two logins because of a server's refusal
TOKEN = "BearerToken"  # the key of the token in `api_key`
_VERSION, _UTC_TIME = 0xA0, 0x17  # ASN.1 tags
_END = "-----END CERTIFICATE-----"
_MOST = 16  # contents that are kept, which is enough for a few rotations


class OfficialConfiguration(Protocol):
    """`kubernetes.aio.client.Configuration`: the server, the credentials and the TLS of one cluster."""

    host: str
    api_key: dict[str, str]
    api_key_prefix: dict[str, str]
    ssl_ca_cert: str | None
    ca_cert_data: Any
    cert_file: str | None
    key_file: str | None
    verify_ssl: bool
    disable_strict_ssl_verification: bool
    tls_server_name: str | None
    proxy: str | None
    proxy_headers: Any
    client_session_kwargs: dict[str, Any] | None
    refresh_api_key_hook: "Callable[[OfficialConfiguration], Awaitable[None] | None] | None"

    async def auth_settings(self) -> AuthSettings:
        """The headers of a request, after the hook of the configuration has refreshed them."""
        ...


class OfficialLoader(Protocol):
    """`kubernetes.aio.config.kube_config.KubeConfigLoader`: logs in with one context."""

    provider: str | None  # `gcp` or `oidc`
    cert_file: str | None
    key_file: str | None
    exec_plugin_expiry: datetime | None  # of the token that a credential plugin gave last

    async def load_and_set(self, client_configuration: OfficialConfiguration) -> None:
        """Log in and write the result into a Configuration. May raise any exception."""
        ...


def new_configuration() -> OfficialConfiguration:
    """An empty official Configuration."""
    # Late: importing the official client takes half a second.
    from kubernetes.aio.client.configuration import Configuration

    return cast("OfficialConfiguration", Configuration())


def choose_proxy(configuration: OfficialConfiguration) -> None:
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


def take_token(target: OfficialConfiguration, source: OfficialConfiguration) -> None:
    """Replace the token of a configuration by that of another one, without white space around it."""
    tokens = {name: token.strip() for name, token in source.api_key.items()}  # files may end in a newline
    target.api_key.clear()
    target.api_key.update(tokens)


class Login(Protocol):
    """A way to log in. Used on the client's loop."""

    async def load(self, configuration: OfficialConfiguration, *, afresh: bool) -> None:
        """Write token and certificates into an official Configuration.

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

    `configuration` is the official Configuration of all requests. Without a `login` it belongs to the caller,
    and its own hook refreshes the token.
    """

    def __init__(self, configuration: OfficialConfiguration, *, login: Login | None, clock: Clock) -> None:
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
        value = (await self.configuration.auth_settings()).get(TOKEN, {}).get("value")
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


async def first_login(login: Login, configuration: OfficialConfiguration) -> None:
    """Log in for the first time. Raises UsageError with a sentence, also after LOGIN_SECONDS."""
    try:
        async with asyncio.timeout(LOGIN_SECONDS):
            await login.load(configuration, afresh=True)
    except TimeoutError as fault:
        raise UsageError(
            f"Logging in to the cluster took longer than {LOGIN_SECONDS} s: is the credential plugin waiting?"
        ) from fault


def _files(configuration: OfficialConfiguration) -> tuple[tuple[str, bytes], ...]:
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
    """Moves the files of an official loader into memory. Used on one loop; freed together with its owner.

    `folder` is the folder into which the loader has to write. The same content has the same path, so that a
    login without new certificates changes no path.
    """

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="declctl-")
        # By content: descriptor and path in memory, the least recently used first.
        self._paths: OrderedDict[bytes, tuple[int, str]] = OrderedDict()
        weakref.finalize(self, _free, self.folder, self._paths)

    def take(self, name: str | None) -> str | None:
        """The path to use in the place of `name`: of a copy in memory, for a file in `folder`."""
        if name is None or Path(name).parent != Path(self.folder):
            return name
        content = Path(name).read_bytes()
        if not hasattr(os, "memfd_create") or not Path("/proc/self/fd").is_dir():
            return name  # the folder is private, and is removed with its owner
        Path(name).unlink()
        _forget(name)
        if content not in self._paths:
            descriptor = os.memfd_create("declctl", os.MFD_CLOEXEC)
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(content)
            self._paths[content] = (descriptor, f"/proc/self/fd/{descriptor}")
            while len(self._paths) > _MOST:
                os.close(self._paths.popitem(last=False)[1][0])
        self._paths.move_to_end(content)  # a content that each login uses, such as a CA, is never dropped
        return self._paths[content][1]


def _forget(name: str) -> None:
    # The official loader caches paths by content, and would return the path of a deleted file.
    loader: Any = sys.modules["kubernetes.aio.config.kube_config"]
    written: dict[str, str] = vars(loader)["_temp_files"]
    for content in [content for content, path in written.items() if path == name]:
        del written[content]


def _free(folder: str, paths: "OrderedDict[bytes, tuple[int, str]]") -> None:
    for descriptor, _ in paths.values():
        with suppress(OSError):
            os.close(descriptor)
    for file in Path(folder).glob("*"):
        with suppress(OSError):
            file.unlink()
    with suppress(OSError):
        Path(folder).rmdir()
