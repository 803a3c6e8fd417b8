"""gzip: when it is worth asking for, and how such a body is read.

An API server compresses answers of more than 128 KB if it is asked to. For each MB of JSON that costs
it 6 ms of CPU (Go, level 1), and us 2 ms to unpack (zlib), where TLS, most of which gzip saves, costs
us 1.2 ms. So it never saves CPU; it saves time where the network carries a seventh of what a server
packs.
"""

import zlib
from collections import deque

from declctl.kit import Clock
from declctl.transport.request import BrokenBody, Sink

SLOW = 12_500_000  # bytes a second: 100 Mbit/s, less than any network within a data centre
_LARGE = 512 * 1024  # bytes; smaller answers tell about the round trip and not about the network
_GZIP = 16 + zlib.MAX_WBITS  # with the header and the checksum of gzip
_SLICE = 256 * 1024  # unpacked in one go: JSON may become a hundred times as large


class Compression:
    """Whether large answers shall be compressed: if those that came last came slower than `SLOW`.

    The first ones are never compressed. What is measured is the wire, whatever was on it, so that one
    fast answer ends it. Answers that come at the same time are measured together, because they share
    the network, and also the loop: it is busy, not the network slow.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slow = False
        self._coming = 0  # answers, at this moment
        self._count = 0  # bytes, since nothing was coming
        self._since = 0.0

    @property
    def encoding(self) -> str:
        """What to accept for a large answer (the header Accept-Encoding)."""
        return "gzip" if self._slow else "identity"

    def begins(self) -> None:
        """The body of a large answer begins to come."""
        if not self._coming:
            self._since, self._count = self._clock.monotonic(), 0
        self._coming += 1

    def ended(self, count: int) -> None:
        """It has ended, after so many bytes on the wire."""
        self._coming -= 1
        self._count += count
        if not self._coming and self._count >= _LARGE:
            self._slow = self._count < SLOW * (self._clock.monotonic() - self._since)


class Unpacker:
    """A sink for gzip. What it was given is unpacked into another sink, one slice at a time.

    So nobody is held up, whatever it unpacks to.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._packed: deque[bytes] = deque()
        self._gzip = zlib.decompressobj(_GZIP)

    def feed(self, part: memoryview) -> None:
        """The next bytes of gzip."""
        self._packed.append(bytes(part))

    def unpack(self) -> bool:
        """Give the other sink a slice; False if there is none, yet. Raises BrokenBody for what is no gzip."""
        while self._packed:
            packed = self._packed.popleft()
            try:
                plain = self._gzip.decompress(packed, _SLICE)
            except zlib.error as fault:
                raise BrokenBody(f"it is not what gzip makes: {fault}") from fault
            if len(plain) == _SLICE:  # there is more, even if nothing is left to be unpacked
                self._packed.appendleft(self._gzip.unconsumed_tail)
            if plain:
                self._sink.feed(memoryview(plain))
                return True
        return False

    def close(self) -> None:
        """Nothing more will come; raises BrokenBody if that is too early."""
        if not self._gzip.eof:
            raise BrokenBody("what gzip made of it ended too early")
