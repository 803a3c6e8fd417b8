"""Hosts and URLs: the parts of an authority, and whether a host is this machine.

An attacker can let a browser send requests to this machine, by a host name that resolves to it (DNS
rebinding) or by a form on another page. The headers Host and Origin show both.
"""

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._~-]{1,253})(?::(?P<port>[0-9]{1,5}))?")
_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/]*)")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Authority(NamedTuple):
    """`host[:port]`, as in a Host header or a URL."""

    host: str  # in lower case, without brackets and without a final dot
    port: int | None


def parse_authority(text: str) -> Authority | None:
    """The authority of a Host header; None for a text that is not `host[:port]`."""
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        return None
    port = None if found["port"] is None else int(found["port"])
    host = found["host"].strip("[]").lower().removesuffix(".")
    return Authority(host, port) if host and (port is None or port <= 65535) else None


def is_same_origin(origin: str, host: Authority) -> bool:
    """Whether the Origin header of a request names the host and port of its Host header."""
    found = _ORIGIN.fullmatch(origin.lower())
    page = parse_authority(found["authority"]) if found is not None else None
    if found is None or page is None:
        return False  # such as `null`, the origin of a page in a sandboxed frame
    default = _DEFAULT_PORTS[found["scheme"]]
    return (page.host, page.port or default) == (host.host, host.port or default)


def is_literal(host: str) -> bool:
    """Whether a host is an IP address, which no name server resolves."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a host is this machine: a loopback address, or the name `localhost`.

    `host` has neither brackets nor a port. An IPv4 address may be written as an IPv6 one.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class ServerUrl(msgspec.Struct, frozen=True):
    """The URL of a server, separated from the credentials that may be part of it."""

    url: str  # without credentials, so that it can be shown
    userinfo: str | None  # `name:password`, unquoted

    @classmethod
    def of(cls, text: str) -> "ServerUrl":
        """Split a URL. A text that is no URL stays as it is, without userinfo."""
        try:
            parts = urlsplit(text)
        except ValueError:
            return cls(text, None)
        userinfo, at, host = parts.netloc.rpartition("@")
        return cls(urlunsplit(parts._replace(netloc=host)), unquote(userinfo)) if at else cls(text, None)

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection to the server uses TLS."""
        return self.url.lower().startswith("https://")

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine (`is_loopback` of its host)."""
        try:
            return is_loopback(urlsplit(self.url).hostname or "")
        except ValueError:  # no URL
            return False
