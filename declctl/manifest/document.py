"""A document of a manifest: its data, and where each part of it stands in the text.

`data` is what the text means; `locate` and `fault` lead back from a path to a line and a column. Faults that only the
text can show (duplicate keys, `on:`, undefined variables) are found while it is read and kept in `faults`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from declctl.manifest import codes
from declctl.manifest.diagnostics import Diagnostic, Severity
from declctl.manifest.environment import BadReference, has_reference, substitute
from declctl.manifest.json_values import Json, Path
from declctl.manifest.scalars import resolve
from declctl.manifest.source_text import Position, SourceText
from declctl.manifest.yaml_nodes import Node

_TEXT_TAGS = frozenset({"!", "tag:yaml.org,2002:str"})
_GUESSED_TAGS = frozenset({f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null", "map", "seq")})
_EVENT_KEYS = frozenset({"on"})


@dataclass(frozen=True)
class Place:
    """A part of a document: the value at `path`, or with `key` the key that it stands under.

    `offset` is counted in characters into a text value, from 0.
    """

    path: Path
    key: bool = False
    offset: int = 0


@dataclass
class Document:
    """One document. Complete once `read_document` returns it, and not changed afterwards."""

    source: SourceText
    data: Json = None
    nodes: dict[Path, Node] = field(default_factory=dict[Path, Node], repr=False)
    keys: dict[Path, Position] = field(default_factory=dict[Path, Position], repr=False)
    faults: list[Diagnostic] = field(default_factory=list[Diagnostic])
    blamed: set[Path] = field(default_factory=set[Path])

    @property
    def path(self) -> str:
        """The name of the file, as people know it."""
        return self.source.name

    @property
    def text(self) -> str:
        """The whole text of the file, other documents included."""
        return self.source.text

    def locate(self, path: Path, *, key: bool = False) -> Position:
        """Line and column, from 1, of the value (or its key) at `path`, or of its nearest parent that exists."""
        if key and path in self.keys:
            return self.keys[path]
        while path not in self.nodes and path:
            path = path[:-1]
        return self.nodes[path].start if path in self.nodes else Position(1, 1)

    def fault(
        self,
        code: str,
        place: Place,
        message: str,
        *,
        suggestion: str | None = None,
        severity: Severity = "error",
    ) -> Diagnostic:
        """A diagnostic at a place of this document."""
        position = self.locate(place.path, key=place.key)
        if place.offset and not place.key:
            position = self._inside(place, position)
        return self.source.fault(code, position, message, suggestion=suggestion, severity=severity)

    def written(self, path: Path) -> str | None:
        """The characters of an unquoted scalar, as they stand in the text; None for everything else."""
        node = self.nodes.get(path)
        return node.text if node is not None and node.kind == "scalar" and node.plain else None

    def from_environment(self, path: Path) -> str | None:
        """The text before `${env:…}` was replaced, None if nothing was: messages must not show what replaced it."""
        node = self.nodes.get(path)
        return node.text if node is not None and node.kind == "scalar" and has_reference(node.text) else None

    def _inside(self, place: Place, start: Position) -> Position:
        """Only where the text stands on one line exactly as it reads can a column inside it be known."""
        node = self.nodes.get(place.path)
        if node is None or node.kind != "scalar" or self.from_environment(place.path) is not None:
            return start
        line = self.source.lines[start.line - 1]
        found = line.find(node.text, start.column - 1, start.column + 1 + len(node.text))
        return start if found < 0 else Position(start.line, found + 1 + place.offset)


def read_document(source: SourceText, root: Node, environ: Mapping[str, str]) -> Document:
    """The document whose root this is, with `${env:NAME}` replaced from `environ`."""
    document = Document(source)
    document.data = _Reading(document, environ).value(root, ())
    return document


class _Reading:
    """Turns nodes into data, and writes down where everything stands."""

    def __init__(self, document: Document, environ: Mapping[str, str]) -> None:
        self._document = document
        self._environ = environ

    def value(self, node: Node, path: Path) -> Json:
        self._document.nodes[path] = node
        if node.tag is not None and node.tag not in _TEXT_TAGS | _GUESSED_TAGS:
            message = f"the tag {node.tag} has no meaning here"
            self._fault(codes.SYNTAX, node.start, message, path=path, suggestion="remove the tag")
        if node.kind == "mapping":
            return self._mapping(node, path)
        if node.kind == "sequence":
            return [self.value(item, (*path, index)) for index, item in enumerate(node.items)]
        return self._scalar(node, path)

    def _mapping(self, node: Node, path: Path) -> dict[str, Json]:
        data: dict[str, Json] = {}
        seen: dict[str, Position] = {}
        merged: list[Node] = []
        for key, value in node.pairs:
            if key.kind == "scalar" and key.plain and key.text == "<<":
                merged += self._merged(value, path)
                continue
            name = self._key(key, path)
            if name in seen:
                first = seen[name]
                message = f'the key "{name}" stands here for the second time: first at line {first.line}, column {first.column}'
                self._fault(
                    codes.DUPLICATE_KEY, key.start, message, path=None, suggestion="remove one, or merge the two"
                )
                continue
            seen[name] = key.start
            data[name] = self._field(key, value, (*path, name))
        for mapping in merged:
            self._merge(mapping, data, path)
        return data

    def _field(self, key: Node, value: Node, path: Path) -> Json:
        self._document.keys[path] = key.start
        return self.value(value, path)

    def _merged(self, value: Node, path: Path) -> list[Node]:
        """What `<<` merges: a mapping, or a list of mappings of which an earlier one wins."""
        mappings = value.items if value.kind == "sequence" else [value]
        if any(mapping.kind != "mapping" for mapping in mappings):
            message = '"<<" merges a mapping, or a list of mappings'
            self._fault(codes.SYNTAX, value.start, message, path=path, suggestion="write *name of an anchored mapping")
        return [mapping for mapping in mappings if mapping.kind == "mapping"]

    def _merge(self, mapping: Node, data: dict[str, Json], path: Path) -> None:
        """Add what isn't there yet: what stands in the mapping itself wins."""
        nested: list[Node] = []
        for key, value in mapping.pairs:
            if key.kind == "scalar" and key.plain and key.text == "<<":
                nested += self._merged(value, path)
            elif key.kind == "scalar" and key.text not in data:
                data[key.text] = self._field(key, value, (*path, key.text))
        for inner in nested:
            self._merge(inner, data, path)

    def _key(self, key: Node, path: Path) -> str:
        """The text of a key; a key that YAML 1.1 takes for something else is a fault, and read as it is written."""
        if key.kind != "scalar":
            message = "a key is a list or a mapping, and must be text"
            fix = 'put it in quotes if it begins with "[" or "{"'
            self._fault(codes.TRAP_KEY, key.start, message, path=path, suggestion=fix)
            return f"? line {key.start.line}, column {key.start.column}"
        value = resolve(key.text) if key.plain and key.tag is None else key.text
        if not isinstance(value, str):
            shown = "null" if value is None else str(value).lower()
            message = f'the key "{key.text}" is read as {shown} by YAML 1.1, and must be text'
            fix = f'put it in quotes: "{key.text}"'
            if key.text.lower() in _EVENT_KEYS:
                fix = 'write "events" for the changes that a handler hears; for other keys, put it in quotes'
            self._fault(codes.TRAP_KEY, key.start, message, path=(*path, key.text), suggestion=fix)
        return key.text

    def _scalar(self, node: Node, path: Path) -> Json:
        if node.plain and node.tag not in _TEXT_TAGS:
            value = resolve(node.text)
            if not isinstance(value, str):
                return value
        try:
            return substitute(node.text, self._environ)
        except BadReference as error:
            fault = self._document.fault(
                codes.BAD_ENVIRONMENT_REFERENCE, Place(path), str(error), suggestion=error.suggestion
            )
            position = self._offset(node, error.offset)
            self._fault(fault.code, position, fault.message, path=path, suggestion=error.suggestion)
            return node.text

    def _offset(self, node: Node, offset: int) -> Position:
        line = self._document.source.lines[node.start.line - 1]
        found = line.find(node.text, node.start.column - 1, node.start.column + 1 + len(node.text))
        return node.start if found < 0 else Position(node.start.line, found + 1 + offset)

    def _fault(
        self, code: str, position: Position, message: str, *, path: Path | None, suggestion: str
    ) -> None:
        """Keep a fault; what it blames isn't reported again by those who look at the data."""
        self._document.faults.append(self._document.source.fault(code, position, message, suggestion=suggestion))
        if path is not None:
            self._document.blamed.add(path)
