"""Hosts and URLs: whom a request is meant for, and whether that is this machine.

A browser can be made to send requests to any address: under a name of the attacker's that points here (DNS
rebinding), or across pages (a form). Its user sees neither. The headers Host and Origin tell both.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._~-]{1,253})(?::(?P<port>[0-9]{1,5}))?")
_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/]*)")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Authority(NamedTuple):
    """`host[:port]`. The host is in lower case and without brackets; no port is None."""

    host: str
    port: int | None


def parse_authority(text: str) -> Authority | None:
    """What a Host header says; None if it is not `host[:port]`."""
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        return None
    port = None if found["port"] is None else int(found["port"])
    host = found["host"].strip("[]").lower().removesuffix(".")
    return Authority(host, port) if host and (port is None or port <= 65535) else None


def is_same_origin(origin: str, host: Authority) -> bool:
    """Whether a page of `origin` (a header) was served by `host`, with its port."""
    found = _ORIGIN.fullmatch(origin.lower())
    page = parse_authority(found["authority"]) if found is not None else None
    if found is None or page is None:
        return False  # `null` among others, as of a page in a sandboxed frame
    default = _DEFAULT_PORTS[found["scheme"]]
    return (page.host, page.port or default) == (host.host, host.port or default)


def is_literal(host: str) -> bool:
    """Whether a host is an IP address: no name server can point it elsewhere."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, so that no other one is on the way; of names, `localhost` alone is.

    `host` has neither brackets nor a port. An IPv4 address may be written as an IPv6 one.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """The URL of a server without the name and password that may stand in it, which are `userinfo`."""

    url: str
    userinfo: str | None

    @classmethod
    def of(cls, text: str) -> "ServerUrl":
        """Split a URL. A text that is no URL is kept as it is, without userinfo."""
        try:
            parts = urlsplit(text)
        except ValueError:
            return cls(text, None)
        userinfo, at, host = parts.netloc.rpartition("@")
        return cls(urlunsplit(parts._replace(netloc=host)), unquote(userinfo)) if at else cls(text, None)

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS protects what is sent to the server."""
        return self.url.lower().startswith("https://")

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine (`is_loopback` of its host)."""
        try:
            return is_loopback(urlsplit(self.url).hostname or "")
        except ValueError:  # no URL
            return False
