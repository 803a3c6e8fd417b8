"""Bytes to lines: how the body of a WATCH is cut into events. No I/O, no decoding.

A WATCH is one JSON document a line, and a read of the socket brings any part of any number of
lines.
"""

from declctl.errors import MalformedAnswer

LONGEST_LINE = (
    64 * 1024 * 1024
)  # bytes; etcd holds objects of 1.5 MiB, so only a broken answer comes near this


class LineSplitter:
    """Feed it chunks as they come; it gives back the lines that are complete.

    They come without their newlines. The result is the same however the bytes were cut into chunks.
    Empty lines are left out. A chunk is copied once.
    """

    def __init__(self, *, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._pieces: list[
            bytes
        ] = []  # of the line that is not complete yet: joined once, when its end is here
        self._held = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes; raises MalformedAnswer for one that is too long."""
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._pieces:
            lines[0] = b"".join((*self._pieces, lines[0]))
            self._pieces.clear()
            self._held = 0
        if rest:
            self._pieces.append(rest)
            self._held += len(rest)
        too_long = self._held > self._longest or any(len(line) > self._longest for line in lines)
        if too_long:
            raise MalformedAnswer(
                f"a line of a WATCH is longer than {self._longest} bytes; the watch is given up"
            )
        return [line for line in lines if line] if b"" in lines else lines

    def close(self) -> None:
        """The stream has ended; raises MalformedAnswer if that was within a line."""
        if self._pieces:
            begin = b"".join(self._pieces)[:120]
            raise MalformedAnswer(
                f"a WATCH ended in the middle of a line of {self._held} bytes or more: {begin!r}"
            )
