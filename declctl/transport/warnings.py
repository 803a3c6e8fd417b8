"""Warnings of an API server: what it says in the `Warning` headers of its answers.

It warns of unknown fields that it has dropped, of deprecated versions, of rules for pods, and of what
admission webhooks find. An answer may have several warnings, as several headers or in one.
"""

import re
from collections.abc import Callable, Sequence

WarningObserver = Callable[[str, str, Sequence[str]], object]
"""Receives the HTTP method, the path and the warnings of an answer, in the thread or task of the request."""

_MISCELLANEOUS = "299"  # the code of all warnings of an API server; client-go ignores others
_MOST = 100  # warnings of one answer that are read
_LONGEST = 65_536  # characters of one header that are read; an API server limits all its texts to 4,096
# As client-go: code, agent, the quoted text, maybe a quoted date, and a comma before the next warning.
_WARNING = re.compile(
    r'\s*([0-9]{3}) ([^ \x00-\x1f\x7f]+) "((?:[^"\\]|\\.)*)"\s*(?:"[^"]*"\s*)?(?:,\s*|$)', re.DOTALL
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def parse_warnings(headers: Sequence[str]) -> list[str]:
    """The texts of all warnings with the code 299, in their order (apimachinery's ParseWarningHeaders).

    Of a header that is malformed, the warnings before the fault count. Empty texts are left out, and those
    with control characters end their header, too.
    """
    found: list[str] = []
    for header in headers[:_MOST]:
        at, beginning = 0, header[:_LONGEST]
        while len(found) < _MOST and (warning := _WARNING.match(beginning, at)) is not None:
            at = warning.end()
            text = _ESCAPED.sub(r"\1", warning[3])
            if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text):
                break
            if warning[1] == _MISCELLANEOUS and text:
                found.append(text)
    return found


class WarningHeaders:
    """Passes the warnings of answers on. From any thread. `observer` is None as long as nobody wants them."""

    def __init__(self) -> None:
        self.observer: WarningObserver | None = None

    def read(self, method: str, path: str, headers: Sequence[str]) -> None:
        """Receive the `Warning` headers of an answer."""
        if headers and self.observer is not None and (texts := parse_warnings(headers)):
            self.observer(method, path, texts)
