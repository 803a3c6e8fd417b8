"""The buffer that a socket is read into: as big as what comes, so that a quiet watch costs no memory."""

_SMALLEST = 16 * 1024  # one TLS record
LARGEST = 272 * 1024  # asyncio's TLS reads 256 KB at a time
_SMALL_READS = 64  # in a row, after which a big buffer is given back


class ReadBuffer:
    """Bytes that were read and not used yet, at its beginning, and space for more behind them.

    `data[:filled]` are the bytes. It grows while reads fill it, and shrinks when they have been small
    for a while.
    """

    def __init__(self) -> None:
        self.data = bytearray(_SMALLEST)
        self.filled = 0
        self._view = memoryview(self.data)
        self._small = 0
        self._tight = False  # the last read filled it

    def space(self, expected: int) -> memoryview:
        """Where the next read goes, never empty; `expected` bytes are known to be there, -1 if nothing is."""
        size, needed = len(self.data), self.filled + expected
        if needed > size or self._tight:
            self._resize(max(min(max(needed, 4 * size), LARGEST), self.filled + _SMALLEST))
        elif self._small > _SMALL_READS and size > _SMALLEST and self.filled < _SMALLEST // 2:
            self._resize(_SMALLEST)
        return self._view[self.filled :] if self.filled else self._view

    def add(self, count: int) -> None:
        """So many bytes were read into the space."""
        self.filled += count
        self._tight = self.filled == len(self.data)
        self._small = self._small + 1 if count < _SMALLEST // 2 else 0

    def drop(self, count: int) -> None:
        """The first so many bytes were used."""
        rest = self.filled - count
        if rest:
            self._view[:rest] = self._view[count : self.filled]
        self.filled = rest

    def _resize(self, size: int) -> None:
        if size == len(self.data):
            return
        data = bytearray(size)
        view = memoryview(data)
        view[: self.filled] = self._view[: self.filled]
        self.data, self._view = data, view
        self._small, self._tight = 0, False
