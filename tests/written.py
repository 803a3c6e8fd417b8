"""What a child process has written so far."""

import os
from tempfile import TemporaryFile


class WrittenLines:
    """The whole lines that a child has written to `file`.

    What it wrote before it answered or ended is here from then on; the thread that reads a pipe may be late.
    """

    def __init__(self) -> None:
        self.file = TemporaryFile()  # noqa: SIM115 - closed with this object
        self._offset = 0
        self._lines: list[str] = []

    def read(self) -> list[str]:
        """All of them; the list only grows."""
        size = os.fstat(self.file.fileno()).st_size - self._offset
        whole, newline, _ = os.pread(self.file.fileno(), size, self._offset).rpartition(b"\n")
        if newline:
            self._offset += len(whole) + 1
            self._lines += whole.decode().split("\n")
        return self._lines
