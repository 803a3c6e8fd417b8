"""Client certificates and keys of a kubeconfig: when they expire, and how no key stays on a disk.

The date is read out of the certificate's DER (RFC 5280, 4.1): Python has no public way to ask.

TLS libraries want files. The official loader writes `client-key-data` into the temporary folder, where it
stays until the process ends, and for ever if that is killed. On Linux what it wrote is moved into anonymous
memory at once.
"""

import os
import ssl
import sys
import tempfile
import weakref
from collections import OrderedDict
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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


_MOST = 16  # contents that are kept: those of a few rotations; who opens an older one is too late


class PrivateFiles:
    """Takes over the files that an official loader has made. Used on one loop; freed with its owner.

    `folder` is where the loader has to write them. The same content has the same path, so that a login
    that brings nothing new changes nothing.
    """

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="declctl-")
        self._paths: OrderedDict[bytes, tuple[int, str]] = OrderedDict()
        weakref.finalize(self, _free, self.folder, self._paths)

    def take(self, name: str | None) -> str | None:
        """The path to use instead of `name`: of a copy in memory, if it is a file in the folder."""
        if name is None or Path(name).parent != Path(self.folder):
            return name
        content = Path(name).read_bytes()
        if not hasattr(os, "memfd_create") or not Path("/proc/self/fd").is_dir():
            return name  # its folder is private, and goes with its owner
        Path(name).unlink()
        _forget(name)
        if content not in self._paths:
            descriptor = os.memfd_create("declctl", os.MFD_CLOEXEC)
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(content)
            self._paths[content] = (descriptor, f"/proc/self/fd/{descriptor}")
            while len(self._paths) > _MOST:
                os.close(self._paths.popitem(last=False)[1][0])
        self._paths.move_to_end(content)  # what each login uses, such as a CA, is never the oldest
        return self._paths[content][1]


def _forget(name: str) -> None:
    # The official loader remembers by content what it has written, and would give out a path that is gone.
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
