"""YAML text → trees of nodes with positions; says nothing yet about what the values mean.

The trees are built from the parser's events, not by its composer: so the depth of nesting is
bounded (the composer of libyaml overflows the C stack), an anchor may be used again, and every node
knows where it stands. What the parser complains about is said so that the author of the line can mend it.
"""

import re
from collections.abc import Iterator
from typing import Literal

import msgspec
import yaml

from declctl.manifest import codes
from declctl.manifest.diagnostics import Diagnostic
from declctl.manifest.sources import Position, SourceText

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


MAX_DEPTH = 64
"""Manifests nest about ten levels deep; beyond this a text is an accident or an attack."""

MAX_NODES = 100_000
"""Aliases counted each time that they stand for something, so that a small text can't grow without bound."""

_LOADER: type[yaml.CSafeLoader] | type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Node(msgspec.Struct):
    """One value of a document. A mapping has `pairs`, a sequence `items`, a scalar `text`.

    `plain` is True for a scalar without quotes, whose type YAML guesses from its looks.
    """

    kind: Literal["scalar", "sequence", "mapping"]
    start: Position
    text: str = ""
    plain: bool = False
    tag: str | None = None
    items: list["Node"] = []
    pairs: list[tuple["Node", "Node"]] = []
    weight: int = 1

    def position_inside(self, source: SourceText, offset: int) -> Position:
        """Where the character at `offset` (from 0) of the text stands; the start where that can't be known.

        It is known where the text stands on one line exactly as it reads: after its quote, if it
        has one.
        """
        begin = self.start.column - 1
        found = source.lines[self.start.line - 1].find(self.text, begin, begin + 2 + len(self.text))
        return self.start if found < 0 else Position(self.start.line, found + 1 + offset)


class UnreadableYaml(Exception):
    """The text stops being YAML, or stops being sane; `diagnostic` says where."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


def parse_documents(source: SourceText) -> Iterator[Node]:
    """The root of each document, in order; raises UnreadableYaml at the first fault."""
    parser = _LOADER(source.text)
    try:
        yield from _Trees(source, parser).documents()
    except yaml.MarkedYAMLError as error:
        raise UnreadableYaml(syntax_fault(source, error)) from error
    finally:
        parser.dispose()


class _Trees:
    """Builds nodes from the events of one parser; knows the anchors of the document at hand."""

    def __init__(self, source: SourceText, parser: yaml.CSafeLoader | yaml.SafeLoader) -> None:
        self._source = source
        self._parser = parser
        self._anchors: dict[str, Node] = {}
        self._open: set[str] = set()

    def documents(self) -> Iterator[Node]:
        while not self._parser.check_event(yaml.StreamEndEvent):
            event = self._next()
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors, self._open = {}, set()
                yield self._node(self._next(), depth=0)

    def _next(self) -> yaml.Event:
        event = self._parser.get_event()
        assert event is not None, "the parser was asked beyond the end of the stream"
        return event

    def _node(self, event: yaml.Event, *, depth: int) -> Node:
        mark = event.start_mark
        start = Position(mark.line + 1, mark.column + 1) if mark is not None else Position(1, 1)
        if depth > MAX_DEPTH:
            self._refuse(start, f"the document nests more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event.anchor or "", start)
        anchor: str | None = getattr(event, "anchor", None)
        node = Node("scalar", start, tag=getattr(event, "tag", None))
        if anchor is not None:
            self._anchors[anchor] = node
            self._open.add(anchor)
        self._fill(node, event, depth=depth)
        self._open.discard(anchor or "")
        if node.weight > MAX_NODES:
            message = f"the document has more than {MAX_NODES:,} values when its aliases are expanded"
            self._refuse(start, message)
        return node

    def _fill(self, node: Node, event: yaml.Event, *, depth: int) -> None:
        if isinstance(event, yaml.ScalarEvent):
            node.text = event.value
            node.plain = event.style is None or event.style == ""
        elif isinstance(event, yaml.SequenceStartEvent):
            node.kind = "sequence"
            while not self._parser.check_event(yaml.SequenceEndEvent):
                item = self._node(self._next(), depth=depth + 1)
                node.items.append(item)
                node.weight += item.weight
            self._next()
        else:
            node.kind = "mapping"
            while not self._parser.check_event(yaml.MappingEndEvent):
                key = self._node(self._next(), depth=depth + 1)
                value = self._node(self._next(), depth=depth + 1)
                node.pairs.append((key, value))
                node.weight += key.weight + value.weight
            self._next()

    def _aliased(self, anchor: str, start: Position) -> Node:
        if anchor in self._open:
            self._refuse(start, f"the alias *{anchor} refers to something that it is a part of")
        if anchor not in self._anchors:
            message = f"the alias *{anchor} has no anchor &{anchor} before it"
            fix = 'write the anchor first, or put the text in quotes if it begins with "*"'
            raise UnreadableYaml(self._source.fault(codes.SYNTAX, start, message, suggestion=fix))
        return self._anchors[anchor]

    def _refuse(self, position: Position, message: str) -> None:
        fix = "a manifest is written by hand and small: split or simplify it"
        raise UnreadableYaml(self._source.fault(codes.UNREADABLE_TEXT, position, message, suggestion=fix))
