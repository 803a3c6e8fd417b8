"""Bytes to lines: how the body of a WATCH is cut into events. No I/O, no decoding.

A WATCH is one JSON document a line, and a read of the socket brings any part of any number of
lines.
"""

from declctl.errors import MalformedAnswer
from declctl.objects import limits

_NEWLINE = ord("\n")


class LineSplitter:
    """Feed it parts as they come, and take the lines that are complete.

    They come without their newlines. The result is the same however the bytes were cut into parts.
    Empty lines are left out. What comes as one part, as API servers write it, is copied once.
    """

    def __init__(self, *, longest: int = limits.OBJECT_BYTES) -> None:
        self._longest = longest
        self._lines: list[bytes] = []
        # What is here of the line that is not complete yet. One buffer and no list of pieces: a server
        # that sends single bytes would make each of them an object of fifty.
        self._held = bytearray()

    def feed(self, part: memoryview) -> None:
        """The next bytes; raises MalformedAnswer for a line that is too long."""
        if self._held or part[-1] != _NEWLINE:
            self._cut(bytes(part))
            return
        line = bytes(part[:-1])
        if _NEWLINE in line or len(line) > self._longest:
            self._cut(bytes(part))
        elif line:
            self._lines.append(line)

    def take(self) -> list[bytes]:
        """The lines that have become complete since the last time."""
        lines, self._lines = self._lines, []
        return lines

    def close(self) -> None:
        """The stream has ended; raises MalformedAnswer if that was within a line."""
        if self._held:
            raise MalformedAnswer(
                f"a WATCH ended in the middle of a line of {len(self._held)} bytes or more: "
                f"{bytes(self._held[:120])!r}"
            )

    def _cut(self, part: bytes) -> None:
        begin = 0
        while (end := part.find(b"\n", begin)) >= 0:  # bytes.split is a tenth as fast
            line = part[begin:end]
            if self._held:
                line = self._completed(line)
            elif len(line) > self._longest:
                raise self._too_long()
            if line:
                self._lines.append(line)
            begin = end + 1
        if begin < len(part):
            self._hold(part[begin:])

    def _completed(self, end: bytes) -> bytes:
        self._hold(end)
        line, self._held = bytes(self._held), bytearray()
        return line

    def _hold(self, piece: bytes) -> None:
        self._held += piece
        if len(self._held) > self._longest:
            raise self._too_long()

    def _too_long(self) -> MalformedAnswer:
        return MalformedAnswer(
            f"a line of a WATCH is longer than {limits.in_mebibytes(self._longest)}, which no object of an "
            "API server is; the watch is given up. Make the object smaller, or leave it out by a selector"
        )
