"""A located fault, and how faults are shown: as text with a caret, as JSON, and as annotations of GitHub.

A diagnostic is a value: it decides nothing, and says where, what, and what to do about it.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]

_COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "help": "\x1b[36m", "place": "\x1b[1m"}
_PLAIN = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault. `line` and `column` are counted from 1; `file` is the path as given, or `<stdin>`."""

    file: str
    line: int
    column: int
    code: str
    message: str
    suggestion: str | None = None
    severity: Severity = "error"
    source_line: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.severity} {self.code}: {self.message}"


def in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Sorted by file and position, each only once."""
    unique = dict.fromkeys(diagnostics)
    return tuple(sorted(unique, key=lambda fault: (fault.file, fault.line, fault.column, fault.code)))


def render_text(diagnostics: Sequence[Diagnostic], *, color: bool = False) -> str:
    """For people: the fault on one line, then the source line, a caret and the help."""
    return "".join(f"{_render_one(diagnostic, color=color)}\n" for diagnostic in diagnostics)


def render_json(diagnostics: Sequence[Diagnostic]) -> list[dict[str, str | int | None]]:
    """For programs: one mapping each, ready for `json.dumps`."""
    return [
        {
            "file": diagnostic.file,
            "line": diagnostic.line,
            "column": diagnostic.column,
            "code": diagnostic.code,
            "severity": diagnostic.severity,
            "message": diagnostic.message,
            "suggestion": diagnostic.suggestion,
        }
        for diagnostic in diagnostics
    ]


def render_github(diagnostics: Sequence[Diagnostic]) -> str:
    """For GitHub Actions: one workflow command each, which annotates the line in a pull request."""
    return "".join(f"{_workflow_command(diagnostic)}\n" for diagnostic in diagnostics)


def _render_one(diagnostic: Diagnostic, *, color: bool) -> str:
    def paint(text: str, name: str) -> str:
        return f"{_COLOURS[name]}{text}{_PLAIN}" if color else text

    place = paint(f"{diagnostic.file}:{diagnostic.line}:{diagnostic.column}:", "place")
    word = paint(f"{diagnostic.severity} {diagnostic.code}:", diagnostic.severity)
    lines = [f"{place} {word} {diagnostic.message}"]
    if diagnostic.source_line is not None:
        number = str(diagnostic.line)
        margin = " " * len(number)
        caret = paint("^", diagnostic.severity)
        lines.append(f"  {number} | {_visible(diagnostic.source_line)}".rstrip())
        lines.append(f"  {margin} | {_caret_indent(diagnostic.source_line, diagnostic.column)}{caret}")
    if diagnostic.suggestion is not None:
        lines.append(f"  {paint('help:', 'help')} {diagnostic.suggestion}")
    return "\n".join(lines)


def _visible(line: str) -> str:
    """The line without characters that would move a terminal's cursor; each gives one visible character."""
    return "".join(
        char if char == "\t" or char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line
    )


def _caret_indent(line: str, column: int) -> str:
    """As wide as the text before the column, whatever the tab stops are and however wide the letters."""
    return "".join(_blank(char) for char in line[: column - 1])


def _blank(char: str) -> str:
    if char == "\t":
        return "\t"
    if unicodedata.combining(char):
        return ""
    return "  " if unicodedata.east_asian_width(char) in "WF" else " "


def _workflow_command(diagnostic: Diagnostic) -> str:
    fields = {
        "file": diagnostic.file,
        "line": str(diagnostic.line),
        "col": str(diagnostic.column),
        "title": diagnostic.code,
    }
    properties = ",".join(f"{name}={_escaped(value, also=':,')}" for name, value in fields.items())
    message = (
        f"{diagnostic.message}; {diagnostic.suggestion}" if diagnostic.suggestion else diagnostic.message
    )
    return f"::{diagnostic.severity} {properties}::{_escaped(message)}"


def _escaped(text: str, *, also: str = "") -> str:
    """As GitHub wants it: percent, line ends, and in properties the separators."""
    for char in f"%\r\n{also}":
        text = text.replace(char, f"%{ord(char):02X}")
    return text
