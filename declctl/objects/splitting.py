"""JSON cut by its brackets: for documents that no decoder takes as a whole.

A decoder gives up on a list of a thousand objects because one of them is nested too deep. Here
nothing recurses and nothing is decoded: brackets are counted, strings are skipped. It is some
hundred times slower than decoding, and is only asked when that has failed.
"""

import re
from collections.abc import Iterator

# Possessive: a string without an end is not searched backwards, which would hold each of its escapes.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
_KEY = re.compile(rb'\s*"([^"\\]*)"\s*:\s*')  # names that matter here have no escapes
_STRING, _COMMA = b'",'
_OPEN, _CLOSE = b"[{", b"]}"
_DEEPEST = 10_000  # levels: Go's decoder, and so an API server, reads no deeper


def elements(raw: bytes) -> Iterator[bytes]:
    """The elements of a JSON array; raises ValueError if its brackets do not match."""
    return _parts(raw, b"[")


def member(raw: bytes, name: str) -> bytes:
    """The value of a JSON object's field.

    Raises ValueError if there is none, or if the brackets do not match.
    """
    found: bytes | None = None
    for part in _parts(raw, b"{"):
        key = _KEY.match(part)
        if key is not None and key[1] == name.encode():
            found = part[key.end() :]
    if found is None:
        raise ValueError(f"there is no {name}")
    return found


def end_of(raw: bytes | bytearray, start: int) -> int | None:
    """Where the object or array that begins at `start` ends; None where its end is not there."""
    return BracketScan().end_of(raw, start)


class BracketScan:
    """Finds the end of one object or array that comes in parts, and scans nothing twice."""

    def __init__(self) -> None:
        self.scanned = 0  # bytes from its beginning
        self._depth = 0

    def end_of(self, raw: bytes | bytearray, start: int) -> int | None:
        """Where it ends, if it begins at `start`; None where its end is not there.

        Raises ValueError for one that nests deeper than any API server reads.
        """
        depth = self._depth
        for token in _TOKEN.finditer(raw, start + self.scanned):
            at = token.start()
            mark = raw[at]
            if mark in _OPEN:
                depth += 1
                if depth > _DEEPEST:
                    raise ValueError(f"nests deeper than {_DEEPEST} levels")
            elif mark in _CLOSE:
                depth -= 1
                if depth == 0:
                    return token.end()
            elif mark == _STRING and token.end() - at == 1:
                self.scanned, self._depth = at - start, depth
                return None  # a string has no end
        self.scanned, self._depth = len(raw) - start, depth
        return None


def _parts(raw: bytes, opener: bytes) -> Iterator[bytes]:
    """What stands between the outermost commas."""
    depth = start = 0
    if raw.lstrip()[:1] != opener:
        raise ValueError(f"it does not begin with {opener.decode()}")
    for token in _TOKEN.finditer(raw):
        at = token.start()
        mark = raw[at]
        if mark == _STRING:
            if token.end() - at == 1:
                raise ValueError("a string has no end")
        elif mark == _COMMA:
            if depth == 1:
                yield raw[start:at].strip()
                start = at + 1
        elif mark in _OPEN:
            depth += 1
            if depth == 1:
                start = at + 1
        else:
            depth -= 1
            if depth == 0:
                yield from filter(None, (raw[start:at].strip(),))
                if raw[at + 1 :].strip():
                    raise ValueError("something follows its end")
                return
    raise ValueError("it has no end")
