"""Texts of servers and users, made safe for a terminal and a log.

Object names, messages of servers, exceptions of handlers and file names may have unprintable characters:
control characters (C0 and C1), line and paragraph separators, and marks of the writing direction
(`str.isprintable`). These could control a terminal, or forge a line of a log.
"""

import json
import re
from typing import Any

from declctl.kit.secret_values import secret_values

_MARK = "\N{REPLACEMENT CHARACTER}"
# Beyond ASCII only: json.dumps itself escapes what is unprintable of ASCII, but for DEL.
_NOT_PLAIN = re.compile(r"[^\x0a\x20-\x7e]")


def visible(text: str) -> str:
    """The text with U+FFFD for each unprintable character; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _MARK for c in text)


def one_line(text: str) -> str:
    r"""The text as `visible` returns it, with each line end written as `\n`."""
    if text.isprintable():
        return text
    return visible(text.replace("\r\n", "\n")).replace("\n", "\\n")


def exception_text(error: BaseException) -> str:
    """The `str` of an exception, without values of Secrets.

    If it raises, as in a broken class of user code, it is a fixed text.
    """
    try:
        # A plain str, because a subclass of str may be broken, too.
        return secret_values.hide("".join([str(error)]))
    except BaseException:  # noqa: BLE001 - even SystemExit
        return "(its text can't be shown)"


def excerpt(text: str, *, most: int) -> str:
    """The beginning of a text on one line, as a part of a sentence: at most `most` characters.

    White space, line ends included, becomes single spaces; other unprintable characters are as in `visible`.
    """
    beginning = text.lstrip()[: 4 * most]  # the text may have megabytes
    return visible(" ".join(beginning.split())[:most].rstrip())


def to_json(document: Any, *, indent: int | None = None) -> str:
    """JSON for a terminal: printable characters as they are, unprintable ones as escapes.

    Values of other types than those of JSON are written as their `str`.
    """
    return escaped(json.dumps(document, indent=indent, ensure_ascii=False, default=str))


def escaped(document: str) -> str:
    """The same JSON document, with escapes for the unprintable characters of its strings."""
    return document if document.isprintable() else _NOT_PLAIN.sub(_escape, document)


def _escape(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]
