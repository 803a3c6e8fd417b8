"""gzip: how a body that an API server has packed is read.

An API server packs answers of more than 128 KB if the request allows it. For each MB of JSON, packing costs
the server 6 ms of CPU (Go, level 1). Unpacking costs us 2 ms (zlib) and saves less than 1.2 ms of TLS. So
gzip never saves CPU. It saves time where the network is slow, as from a laptop (`Cluster.compresses`).
"""

import zlib
from collections import deque
from collections.abc import Mapping

from declctl.transport.request import BrokenBody, Sink

_GZIP = 16 + zlib.MAX_WBITS  # with the header and the checksum of gzip
_SLICE = 256 * 1024  # unpacked in one go: JSON may become a hundred times as large


def content_encoding(headers: Mapping[str, str]) -> str:
    """How the body of an answer is packed: `gzip`, another one, or empty for a body that is not packed."""
    encoding = headers.get("Content-Encoding", "").strip().lower()
    return "" if encoding == "identity" else encoding


class Unpacker:
    """A sink for gzip, which it unpacks into another sink, one slice at a time.

    The loop can go on between two slices, however large the whole becomes.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._packed: deque[bytes] = deque()
        self._gzip = zlib.decompressobj(_GZIP)

    def feed(self, part: memoryview) -> None:
        """The next bytes of gzip."""
        self._packed.append(bytes(part))

    def unpack(self) -> bool:
        """Give the other sink a slice; False if there is none, yet.

        Raises BrokenBody for what is no gzip, and for bytes that follow its end. Servers write one member;
        readers that stop there and readers that go on would see different answers.
        """
        while self._packed:
            if self._gzip.eof:
                raise BrokenBody("something follows the end of what gzip made")
            packed = self._packed.popleft()
            try:
                plain = self._gzip.decompress(packed, _SLICE)
            except zlib.error as fault:
                raise BrokenBody(f"it is not what gzip makes: {fault}") from fault
            if rest := self._gzip.unused_data or self._gzip.unconsumed_tail:
                self._packed.appendleft(rest)
            elif len(plain) == _SLICE and not self._gzip.eof:
                self._packed.appendleft(b"")  # there may be more, even if nothing is left to be unpacked
            if plain:
                self._sink.feed(memoryview(plain))
                return True
        return False

    def close(self) -> None:
        """Nothing more will come; raises BrokenBody if that is too early."""
        if not self._gzip.eof:
            raise BrokenBody("what gzip made of it ended too early")
