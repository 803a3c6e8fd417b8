"""A fault with its place, and its three forms: text with a caret, JSON, and annotations of GitHub.

A diagnostic says where the fault is, what it is, and what to do. `closest` finds the word that the user
probably meant.
"""

import re
import unicodedata
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec

from declctl.kit.text import one_line, visible

Severity = Literal["error", "warning"]

# The line ends of YAML 1.1: so a line number of the YAML parser is always the number of the same line here.
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "help": "\x1b[36m", "place": "\x1b[1m"}
_PLAIN = "\x1b[0m"
_LONGEST_LINE = 240  # characters of a source line that are shown
_LONGEST_WORD = 64  # characters; the time of a comparison grows with the product of both lengths
_MOST_CANDIDATES = 1000
_MOST_COMPARISONS = 5000  # for all words of one manifest; a comparison takes about 50 µs
_MOST_LISTED = 30
_left: ContextVar[list[int] | None] = ContextVar("comparisons that are left", default=None)
_NO_SYNONYMS: Mapping[str, str] = {}


class Diagnostic(msgspec.Struct, frozen=True):
    """One fault. `line` and `column` are counted from 1; `file` is the path as given, or `<stdin>`.

    `traceback` is the end of the traceback of a plugin that can't be loaded.
    """

    file: str
    line: int
    column: int
    code: str
    message: str
    suggestion: str | None = None
    severity: Severity = "error"
    source_line: str | None = None
    traceback: str | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.severity} {self.code}: {self.message}"

    @property
    def place(self) -> str:
        """File, line and column."""
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def log_line(self) -> str:
        """The fault without its severity, which is the level of the line."""
        return f"{self.place}: {self.code}: {self.message}"


class Position(NamedTuple):
    """A place in a text: line and column, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class SourceText:
    """The text of one file. `name` is the path as the user gave it, `<stdin>` for standard input."""

    name: str
    text: str

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines without their ends; at least one."""
        return tuple(_LINE_BREAK.split(self.text))

    def clamped(self, position: Position) -> Position:
        """The nearest position inside the text; the column after the last character counts as inside."""
        line = min(max(position.line, 1), len(self.lines))
        return Position(line, min(max(position.column, 1), len(self.lines[line - 1]) + 1))

    def position_of(self, offset: int) -> Position:
        """The position of the character at `offset`, which counts from 0."""
        line, start = 1, 0
        for found in _LINE_BREAK.finditer(self.text, 0, offset):
            line, start = line + 1, found.end()
        return Position(line, offset - start + 1)

    def fault(
        self,
        code: str,
        position: Position,
        message: str,
        *,
        suggestion: str | None = None,
        severity: Severity = "error",
    ) -> Diagnostic:
        """A diagnostic at a position of this text, with the line there."""
        line, column = self.clamped(position)
        return Diagnostic(
            file=self.name,
            line=line,
            column=column,
            code=code,
            message=message,
            suggestion=suggestion,
            severity=severity,
            source_line=self.lines[line - 1],
        )


def in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The diagnostics sorted by file and position, without duplicates."""
    unique = dict.fromkeys(diagnostics)
    return tuple(sorted(unique, key=lambda fault: (fault.file, fault.line, fault.column, fault.code)))


def new_among(diagnostics: Iterable[Diagnostic], known: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The diagnostics that are not among the known ones.

    Line numbers do not count, as an edit may have moved a line. The text of the line counts.
    """

    def content(fault: Diagnostic) -> tuple[str, str, str, str | None]:
        return fault.file, fault.code, fault.message, fault.source_line

    before = set(map(content, known))
    return tuple(fault for fault in diagnostics if content(fault) not in before)


def render_text(diagnostics: Sequence[Diagnostic], *, color: bool = False) -> str:
    """Diagnostics for people: the fault on one line, then the source line, a caret and the help."""
    return "".join(f"{_render_one(diagnostic, color=color)}\n" for diagnostic in diagnostics)


def render_json(diagnostics: Sequence[Diagnostic]) -> list[dict[str, str | int | None]]:
    """Diagnostics for programs: one mapping for each, ready for `json.dumps`.

    `traceback` is there only if there is one.
    """
    names = ("file", "line", "column", "code", "severity", "message", "suggestion")
    found: list[dict[str, str | int | None]] = []
    for diagnostic in diagnostics:
        traceback = {} if diagnostic.traceback is None else {"traceback": diagnostic.traceback}
        found.append({**{name: getattr(diagnostic, name) for name in names}, **traceback})
    return found


def render_github(diagnostics: Sequence[Diagnostic]) -> str:
    """Diagnostics for GitHub Actions: workflow commands, which annotate the lines in a pull request."""
    return "".join(f"{_workflow_command(diagnostic)}\n" for diagnostic in diagnostics)


def _render_one(diagnostic: Diagnostic, *, color: bool) -> str:
    def paint(text: str, name: str) -> str:
        return f"{_COLOURS[name]}{text}{_PLAIN}" if color else text

    place = paint(f"{one_line(diagnostic.file)}:{diagnostic.line}:{diagnostic.column}:", "place")
    word = paint(f"{diagnostic.severity} {one_line(diagnostic.code)}:", diagnostic.severity)
    lines = [f"{place} {word} {_indented(diagnostic.message)}"]
    if diagnostic.source_line is not None:
        number = str(diagnostic.line)
        margin = " " * len(number)
        caret = paint("^", diagnostic.severity)
        line, column = _excerpt(diagnostic.source_line, diagnostic.column)
        lines.append(f"  {number} | {one_line(line)}".rstrip())
        lines.append(f"  {margin} | {_caret_indent(line, column)}{caret}")
    if diagnostic.traceback is not None:
        lines.append(f"    {_indented(diagnostic.traceback)}")
    if diagnostic.suggestion is not None:
        lines.append(f"  {paint('help:', 'help')} {_indented(diagnostic.suggestion)}")
    return "\n".join(lines)


def _excerpt(line: str, column: int) -> tuple[str, int]:
    """The part of a long line around a column, and the column in that part.

    A line may be as long as the whole text.
    """
    if len(line) <= _LONGEST_LINE:
        return line, column
    begin = max(0, min(column - _LONGEST_LINE // 2, len(line) - _LONGEST_LINE))
    end = begin + _LONGEST_LINE
    before, after = "…" if begin else "", "…" if end < len(line) else ""
    return f"{before}{line[begin:end]}{after}", column - begin + len(before)


def _indented(text: str) -> str:
    """The text with its further lines indented.

    Values of a manifest stand in messages: without the indent, a line of a value could look like another
    fault.
    """
    return visible(text).replace("\n", "\n    ")


def _caret_indent(line: str, column: int) -> str:
    """Blanks as wide as the text before the column; tabs stay tabs, and wide letters are two blanks."""
    before = line[: column - 1]
    if before.isascii() and "\t" not in before:
        return " " * len(before)
    return "".join(_blank(char) for char in before)


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
    """The text with percent signs and line ends in GitHub's escapes; `also` has further characters."""
    text = visible(text.replace("\r\n", "\n"))
    for char in f"%\r\n{also}":
        text = text.replace(char, f"%{ord(char):02X}")
    return text


def closest(
    word: str, candidates: Iterable[str], *, synonyms: Mapping[str, str] = _NO_SYNONYMS
) -> str | None:
    """The candidate that the user probably meant, or None. Upper and lower case are the same.

    `synonyms` (lower case → candidate) are words of other systems that resemble no candidate. The comparison
    is bounded: words of more than 64 characters are skipped, and so are candidates after the first thousand.
    Within `bounded_suggestions`, the result is None once the comparisons are used up.
    """
    left = _left.get()
    if left is not None and left[0] <= 0:
        return None
    # Synonyms come before similar words: `update` means Modified, even if another candidate resembles it.
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    lower = word.lower()
    meant = synonyms.get(lower)
    if meant is not None and meant.lower() in by_lower:
        return meant
    if lower in by_lower:
        return by_lower[lower]
    near = [candidate for candidate in by_lower if _may_be_like(lower, candidate)][:_MOST_CANDIDATES]
    if left is not None:
        left[0] -= len(near)
    found = get_close_matches(lower, near, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


@contextmanager
def bounded_suggestions() -> Generator[None]:
    """Bounds the comparisons of words in its block: a manifest with thousands of faults then takes a second.

    The first faults get suggestions; the faults after the bound get none.
    """
    token = _left.set([_MOST_COMPARISONS])
    try:
        yield
    finally:
        _left.reset(token)


def _may_be_like(word: str, candidate: str) -> bool:
    """Whether difflib's ratio of two words of these lengths can reach 0.6."""
    shorter, longer = sorted((len(word), len(candidate)))
    return longer <= _LONGEST_WORD and 2 * shorter >= 0.6 * (shorter + longer)


def did_you_mean(
    word: str, candidates: Iterable[str], *, synonyms: Mapping[str, str] = _NO_SYNONYMS
) -> str | None:
    """`did you mean "pods"?`, or None."""
    found = closest(word, candidates, synonyms=synonyms)
    return None if found is None else f'did you mean "{found}"?'


def listed(names: Iterable[str]) -> str:
    """The names as `a, b and c`, in the given order.

    `none` stands for no names. After thirty names, the number of the others stands at the end.
    """
    words = list(names)
    if len(words) > _MOST_LISTED:
        words = [*words[:_MOST_LISTED], f"{len(words) - _MOST_LISTED:,} more"]
    if not words:
        return "none"
    head, last = words[:-1], words[-1]
    return f"{', '.join(head)} and {last}" if head else last
