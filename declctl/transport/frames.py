"""Bytes to lines: how the body of a WATCH is cut into events. No I/O, no decoding.

A WATCH is one JSON document a line, and a read of the socket brings any part of any number of
lines.
"""

from declctl.errors import MalformedAnswer

# Bytes; etcd holds objects of 1.5 MiB, so only a broken answer comes near this.
LONGEST_LINE = 64 * 1024 * 1024
_NEWLINE = ord("\n")


class LineSplitter:
    """Feed it parts as they come, and take the lines that are complete.

    They come without their newlines. The result is the same however the bytes were cut into parts.
    Empty lines are left out. What comes as one part, as API servers write it, is copied once.
    """

    def __init__(self, *, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._lines: list[bytes] = []
        # Of the line that is not complete yet: joined once, when its end is here.
        self._pieces: list[bytes] = []
        self._held = 0

    def feed(self, part: memoryview) -> None:
        """The next bytes; raises MalformedAnswer for a line that is too long."""
        if self._pieces or part[-1] != _NEWLINE:
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
        if self._pieces:
            begin = b"".join(self._pieces)[:120]
            raise MalformedAnswer(
                f"a WATCH ended in the middle of a line of {self._held} bytes or more: {begin!r}"
            )

    def _cut(self, part: bytes) -> None:
        begin = 0
        while (end := part.find(b"\n", begin)) >= 0:  # bytes.split is a tenth as fast
            self._hold(part[begin:end])
            if self._pieces:
                self._lines.append(b"".join(self._pieces))
                self._pieces.clear()
                self._held = 0
            begin = end + 1
        self._hold(part[begin:])

    def _hold(self, piece: bytes) -> None:
        if not piece:
            return
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held > self._longest:
            raise MalformedAnswer(
                f"a line of a WATCH is longer than {self._longest} bytes; the watch is given up"
            )
