"""Foreign text, made fit for a terminal and for a log: nothing in it is obeyed, and no line is forged.

Others write what is printed: object names and messages of servers, exceptions of handlers, file names.
Unprintable are control characters (C0 and C1), line and paragraph separators, and what turns the direction of
writing (`str.isprintable`).
"""

import json
import re
from typing import Any

_MARK = "\N{REPLACEMENT CHARACTER}"
# Beyond ASCII only: json.dumps itself escapes what is unprintable of ASCII, but for DEL.
_NOT_PLAIN = re.compile(r"[^\x0a\x20-\x7e]")


def visible(text: str) -> str:
    """The text with a mark for each unprintable character; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _MARK for c in text)


def one_line(text: str) -> str:
    r"""The text on one line: as `visible`, and each line end as `\n`."""
    if text.isprintable():
        return text
    return visible(text.replace("\r\n", "\n")).replace("\n", "\\n")


def exception_text(error: BaseException) -> str:
    """What `str` gives for an exception; for a broken one, whose `str` raises, that it can't be shown.

    Exceptions of user code may be anything.
    """
    try:
        return "".join([str(error)])  # a plain str: one of a class of its own may be broken, too
    except BaseException:  # noqa: BLE001 - even SystemExit
        return "(its text can't be shown)"


def excerpt(text: str, *, most: int) -> str:
    """The beginning of a text as a part of a sentence: at most `most` characters of it, on one line.

    White space, line ends among it, becomes single spaces; other unprintable characters as in `visible`.
    """
    beginning = text.lstrip()[: 4 * most]  # of what may be megabytes
    return visible(" ".join(beginning.split())[:most].rstrip())


def to_json(document: Any, *, indent: int | None = None) -> str:
    """JSON that can be looked at: letters as they are, what is unprintable as its escape.

    What JSON does not know is written as its text.
    """
    return escaped(json.dumps(document, indent=indent, ensure_ascii=False, default=str))


def escaped(document: str) -> str:
    """JSON, with what is unprintable in its texts as escapes: the same document."""
    return document if document.isprintable() else _NOT_PLAIN.sub(_escape, document)


def _escape(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]
