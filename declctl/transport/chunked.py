"""Bodies in chunks (RFC 9112, 7.1) to the bytes that are in them. No I/O.

An API server writes each event of a WATCH as one chunk, and aiohttp's parser calls three Python
functions for each. This decoder takes as many of them as one read of the socket has brought.
"""

import re

from declctl.objects import limits
from declctl.transport.request import BrokenBody, Sink

_SIZE = rb"([0-9A-Fa-f]{1,15})[ \t]{0,9}(?:;[^\r\n]{0,%d})?\r\n" % limits.CHUNK_HEADER_BYTES
_FIRST_HEADER = re.compile(_SIZE)
_HEADER = re.compile(rb"\r\n" + _SIZE)  # with the end of the chunk before it
_CRLF = b"\r\n"


class ChunkDecoder:
    """Takes the content of chunks out of a buffer and gives it to a sink, as far as it has come.

    `count` is the number of bytes that the sink got. `ended` is true when the next chunk in the buffer is the
    last one, which has no content. It stays in the buffer, with its trailer fields.
    """

    def __init__(self, sink: Sink) -> None:
        self.count = 0
        self.ended = False
        self._sink = sink
        self._header = _FIRST_HEADER
        self._left = 0  # bytes that the chunk at hand still has

    def decode(self, buffer: bytearray, end: int) -> int:
        """Take what is in `buffer[:end]`; returns how far it was used.

        The sink is fed with one chunk at a time, or with as much of one as is there. What was not used
        belongs at the beginning of the next buffer. Raises BrokenBody for what is no chunk, and what
        the sink raises.
        """
        feed = self._sink.feed
        at, left = 0, self._left
        with memoryview(buffer) as view:
            while not self.ended:
                if not left:
                    header = self._header.match(buffer, at, end)
                    if header is None:
                        self._check(bytes(view[at:end]))
                        break
                    self._left = left = int(header[1], 16)
                    if not left:
                        self.ended, at = True, header.start(1)
                        break
                    self._header, at = _HEADER, header.end()
                stop = min(at + left, end)
                if stop == at:
                    break
                self._left = left = left - (stop - at)
                self.count += stop - at
                feed(view[at:stop])
                at = stop
        return at

    def _check(self, begin: bytes) -> None:
        # A header need not be here in full; but what is here must be able to become one.
        before = _CRLF if self._header is _HEADER else b""
        follows = begin[len(before) :]
        if (
            not before.startswith(begin[: len(before)])
            or _CRLF in follows
            or len(begin) > limits.CHUNK_HEADER_BYTES
        ):
            raise BrokenBody(f"a chunk begins with {begin.strip()[:40]!r}")
