"""What a kubeconfig may say: its fields, their types, and what contradicts itself (validation.go)."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from declctl.errors import UsageError
from declctl.kit.hosts import is_loopback

EARLY = timedelta(minutes=5)
"""How long before it expires a credential is asked for anew, by a login and by its plugin alike."""

TLS_BYTES = 4 * 1024 * 1024
"""The limit of a file with certificates or a key; a bundle of all public authorities has 250 KB."""

_PROXIES = ("http", "https")  # what aiohttp can talk to; client-go knows socks5 as well


class ExecVariable(msgspec.Struct):
    """An environment variable of a credential plugin."""

    name: str
    value: str = ""


class ExecSpec(msgspec.Struct):
    """`user.exec`: a credential plugin."""

    command: str = ""
    apiVersion: str = ""  # noqa: N815 - the fields' names in the file, here and below
    args: list[str] | None = None
    env: list[ExecVariable] | None = None
    installHint: str | None = None  # noqa: N815
    provideClusterInfo: bool | None = None  # noqa: N815
    interactiveMode: str | None = None  # noqa: N815


class NamedExtension(msgspec.Struct):
    """An entry of `extensions`: what is for others than the client, such as a credential plugin."""

    name: str
    extension: Any = None


class ClusterSpec(msgspec.Struct, rename="kebab"):
    """`cluster`."""

    server: str | None = None
    tls_server_name: str | None = None
    insecure_skip_tls_verify: bool | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    proxy_url: str | None = None
    disable_compression: bool | None = None
    extensions: list[NamedExtension] | None = None


class UserSpec(
    msgspec.Struct,
    rename=lambda name: "tokenFile" if name == "token_file" else name.strip("_").replace("_", "-"),
):
    """`user`."""

    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = None
    as_: str | None = None
    as_uid: str | None = None
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str] | None] | None = None
    username: str | None = None
    password: str | None = None
    auth_provider: dict[str, Any] | None = None
    exec: ExecSpec | None = None


class _ContextSpec(msgspec.Struct):
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: ClusterSpec | None = None


class _NamedUser(msgspec.Struct):
    name: str
    user: UserSpec | None = None


class _NamedContext(msgspec.Struct):
    name: str
    context: _ContextSpec | None = None


class _File(msgspec.Struct):
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str | None = msgspec.field(default=None, name="current-context")


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address without the name and password that may stand in it, which are `userinfo`."""

    url: str
    userinfo: str | None

    @classmethod
    def of(cls, url: str) -> "Address":
        """From a URL; whatever can't be read as one is its own address."""
        try:
            parts = urlsplit(url)
        except ValueError:
            return cls(url, None)
        userinfo, at, host = parts.netloc.rpartition("@")
        return cls(urlunsplit(parts._replace(netloc=host)), unquote(userinfo)) if at else cls(url, None)

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS protects what is sent there."""
        return self.url.lower().startswith("https://")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can be there (`kit.hosts.is_loopback`)."""
        try:
            return is_loopback(urlsplit(self.url).hostname or "")
        except ValueError:  # no URL
            return False


def check_types(content: Mapping[str, Any], *, where: str) -> None:
    """Raise UsageError where a field has another type than in client-go: `"true"` is no boolean.

    Fields that are not known are left alone, as client-go leaves them.
    """
    try:
        msgspec.convert(content, _File)
    except msgspec.ValidationError as fault:
        raise UsageError(f"{where} is no kubeconfig: {fault}") from fault


def check_cluster(body: Mapping[str, Any], *, where: str) -> None:
    """Raise UsageError for a cluster that contradicts itself."""
    cluster = msgspec.convert(body, ClusterSpec)
    if not cluster.server:
        raise UsageError(f"{where} has no server.")
    if cluster.certificate_authority and cluster.certificate_authority_data:
        raise UsageError(_both(where, "certificate-authority"))
    if cluster.insecure_skip_tls_verify and (
        cluster.certificate_authority or cluster.certificate_authority_data
    ):
        raise UsageError(
            f"{where} has insecure-skip-tls-verify and a certificate-authority: the one says that nothing is "
            "checked, the other by what. Remove one of them, better the first."
        )
    _check_base64(where, "certificate-authority-data", cluster.certificate_authority_data)
    if cluster.proxy_url and urlsplit(cluster.proxy_url).scheme not in _PROXIES:
        raise UsageError(f"{where} has a proxy-url that is neither http nor https, which declctl can't use.")


def check_user(body: Mapping[str, Any], *, where: str, server: str) -> None:
    """Raise UsageError for a user that contradicts itself, or may not be shown to this server."""
    user = msgspec.convert(body, UserSpec)
    for name in ("client-certificate", "client-key"):
        field = name.replace("-", "_")
        if getattr(user, field) and getattr(user, f"{field}_data"):
            raise UsageError(_both(where, name))
        _check_base64(where, f"{name}-data", getattr(user, f"{field}_data"))
    certificate = user.client_certificate or user.client_certificate_data
    if bool(certificate) != bool(user.client_key or user.client_key_data):
        raise UsageError(f"{where} has a client-certificate or a client-key without the other one.")
    if (user.token or user.token_file) and (user.username or user.password):
        raise UsageError(f"{where} has a token and a password: a server takes one of them. Remove the other.")
    if user.exec and user.auth_provider:
        raise UsageError(f"{where} has an auth-provider and an exec plugin: remove one of them.")
    if not user.as_ and (user.as_uid or user.as_groups or user.as_user_extra):
        raise UsageError(f"{where} has as-uid, as-groups or as-user-extra, and no `as`: who acts? Add `as`.")
    for value in (user.as_, user.as_uid, *(user.as_groups or ()), *_flat(user.as_user_extra)):
        if value and not value.isprintable():
            raise UsageError(f"{where} impersonates {value!r}, which can't stand in a header.")
    address = Address.of(server)
    shown = certificate or user.token or user.token_file or user.username or user.exec or user.auth_provider
    if (shown or address.userinfo) and not address.is_encrypted and not address.is_loopback:
        raise UsageError(
            f"{where} has credentials, and {address.url} is not https: anybody on the way could read them. "
            "Use https, or a user without credentials."
        )


def impersonation(body: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """The headers of `as`, `as-uid`, `as-groups`, `as-user-extra` (client-go's impersonatingRoundTripper)."""
    user = msgspec.convert(body, UserSpec)
    if not user.as_:
        return ()
    headers = [("Impersonate-User", user.as_)]
    if user.as_uid:
        headers.append(("Impersonate-Uid", user.as_uid))
    headers += [("Impersonate-Group", group) for group in user.as_groups or ()]
    for key, values in (user.as_user_extra or {}).items():
        headers += [(f"Impersonate-Extra-{_header_key(key)}", value) for value in values or ()]
    return headers


def _header_key(key: str) -> str:
    # As client-go's headerKeyEscape: what is no token character of HTTP, and the percent sign, is escaped.
    legal = b"!#$&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return "".join(chr(byte) if byte in legal else f"%{byte:02X}" for byte in key.encode())


def _flat(extra: Mapping[str, Sequence[str] | None] | None) -> Sequence[str]:
    return [value for values in (extra or {}).values() for value in values or ()]


def _both(where: str, name: str) -> str:
    return f"{where} has {name} and {name}-data: remove one of them."


def _check_base64(where: str, name: str, data: str | None) -> None:
    try:
        base64.b64decode("".join((data or "").split()), validate=True)
    except (binascii.Error, ValueError) as fault:
        raise UsageError(f"{where} has a {name} that is no base64: {fault}.") from fault
