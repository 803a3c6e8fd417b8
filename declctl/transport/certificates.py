"""When a client certificate expires, read out of its DER (RFC 5280, 4.1): Python has no public way to ask."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

_VERSION, _UTC_TIME = 0xA0, 0x17
_END = "-----END CERTIFICATE-----"


def expiry(file: str) -> datetime | None:
    """When the first certificate of a PEM file expires; None if there is none that can be read."""
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
    """Tag and content of each element."""
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
