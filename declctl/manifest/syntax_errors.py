"""What the YAML parser complains about, said so that the person who wrote the line can mend it."""

import re

import yaml

from declctl.manifest import codes
from declctl.manifest.diagnostics import Diagnostic
from declctl.manifest.source_text import Position, SourceText

_ADVICE: tuple[tuple[str, str], ...] = (
    (
        "mapping values are not allowed",
        'put the value in quotes if it holds ": ", or check the indentation',
    ),
    ("did not find expected key", "indent this line like its siblings above"),
    ("expected <block end>", "indent this line like its siblings above"),
    ("did not find expected '-' indicator", "indent this line like the other items of the list"),
    ("could not find expected ':'", 'write "key: value", with a colon and a space'),
    (
        "did not find expected ',' or ']'",
        'close the list with "]", or separate its items with commas',
    ),
    (
        "did not find expected ',' or '}'",
        'close the mapping with "}", or separate its fields with commas',
    ),
    ("found unexpected end of stream", "close the quote that was opened here or above"),
    (
        "cannot start any token",
        'put the value in quotes: it begins with a character such as "@", "`" or "%"',
    ),
    (
        "found unknown escape character",
        "use single quotes, in which a backslash is only a backslash",
    ),
    (
        "did not find expected alphabetic or numeric character",
        'put the value in quotes if it begins with "*" or "&"',
    ),
    ("found undefined tag handle", 'put the value in quotes if it begins with "!"'),
)


def syntax_fault(source: SourceText, error: yaml.MarkedYAMLError) -> Diagnostic:
    """The diagnostic for what the parser raised."""
    mark = error.problem_mark or error.context_mark
    position = source.clamped(Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1))
    line = source.lines[position.line - 1]
    if "\t" in line[: len(line) - len(line.lstrip())]:
        column = line.index("\t") + 1
        return source.fault(
            codes.TAB,
            Position(position.line, column),
            "a tab is used for indentation, which YAML forbids",
            suggestion="use spaces; most editors can convert tabs",
        )
    problem = error.problem or error.context or "it can't be read"
    message = f"this is not YAML: {problem}"
    if error.context and error.context != problem:
        message += f" ({error.context}{_beginning(error.context_mark, position)})"
    return source.fault(codes.SYNTAX, position, message, suggestion=_advice(problem, line))


def _beginning(mark: yaml.Mark | None, position: Position) -> str:
    """Where what could not be finished began, if that is another line."""
    if mark is None or mark.line + 1 == position.line:
        return ""
    return f" that begins at line {mark.line + 1}, column {mark.column + 1}"


def _advice(problem: str, line: str) -> str | None:
    if re.search(r"\{\{.*\}\}|\{%", line):
        return "this looks like a template: render it first (for example with helm template)"
    return next((advice for part, advice in _ADVICE if part in problem), None)
