"""YAML text → trees of nodes with positions; says nothing yet about what the values mean.

The trees are built from the parser's events, not by its composer: so the depth of nesting is
bounded (the composer of libyaml overflows the C stack), an anchor may be used again, and every node
knows where it stands.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec
import yaml

from declctl.manifest import codes
from declctl.manifest.diagnostics import Diagnostic
from declctl.manifest.source_text import Position, SourceText
from declctl.manifest.syntax_errors import syntax_fault

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
