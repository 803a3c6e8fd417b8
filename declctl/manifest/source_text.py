"""A text with a name, and the positions in it that people are shown.

Lines and columns are counted from 1, in characters. Lines end where YAML 1.1 ends them, so that
positions from the YAML parser and these lines never disagree.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from declctl.manifest.diagnostics import Diagnostic, Severity

_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


class Position(NamedTuple):
    """A place in a text: line and column, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class SourceText:
    """The text of one file; `name` is how people know the file (`<stdin>` for standard input)."""

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
        """Where the character at `offset` (from 0) stands."""
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
        """A diagnostic at a position of this text, with its source line."""
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
