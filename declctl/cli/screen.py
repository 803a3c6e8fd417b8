"""One stream that log lines and a passing progress line share.

Whoever writes a line takes the progress line away first, and puts it back below. Any thread may write. A
stream that nobody reads any longer ends the writing, not the process: a controller goes on when its
log goes nowhere.
"""

import threading
from typing import TextIO

from declctl.cli.terminal import has_colour

_ERASE = "\r\x1b[2K"


class Screen:
    """A stream of whole lines, with at most one line below them that comes and goes."""

    def __init__(self, stream: TextIO) -> None:
        self.is_terminal = stream.isatty()
        self.has_colour = has_colour(stream)
        self._stream = stream
        self._lock = threading.Lock()
        self._progress = ""

    def line(self, text: str) -> None:
        """Write a line, or several."""
        with self._lock:
            self._write(f"{_ERASE if self._progress else ''}{text}\n{self._progress}")

    def progress(self, text: str) -> None:
        """Show a passing line, in place of the one that is there; an empty one takes it away.

        Only terminals show it. The cursor stays at its beginning, so that what others print starts in
        column 1.
        """
        if not self.is_terminal:
            return
        with self._lock:
            if not (text or self._progress):
                return
            self._progress = f"{text}\r" if text else ""
            self._write(f"{_ERASE}{self._progress}")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # closed, or a pipe without a reader
            return
