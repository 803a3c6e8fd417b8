"""Nodes → a document: the data, the place of everything in it, and the faults that only the text can show."""

from collections.abc import Mapping

from declctl.manifest import codes
from declctl.manifest.document import Document
from declctl.manifest.environment import BadReference, substitute
from declctl.manifest.json_values import Json, Path
from declctl.manifest.scalars import resolve
from declctl.manifest.source_text import Position, SourceText
from declctl.manifest.yaml_nodes import Node

_TEXT_TAGS = frozenset({"!", "tag:yaml.org,2002:str"})
_GUESSED_TAGS = frozenset(
    {f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null", "map", "seq")}
)
_EVENT_KEYS = frozenset({"on"})


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
                message = f'the key "{name}" is here twice: first at line {first.line}, column {first.column}'
                self._fault(
                    codes.DUPLICATE_KEY,
                    key.start,
                    message,
                    path=None,
                    suggestion="remove one, or merge the two",
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
            self._fault(
                codes.SYNTAX,
                value.start,
                message,
                path=path,
                suggestion="write *name of an anchored mapping",
            )
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
        """The text of a key; a key that YAML 1.1 takes for something else is a fault, and read as written."""
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
            position = node.position_inside(self._document.source, error.offset)
            self._fault(
                codes.BAD_ENVIRONMENT_REFERENCE,
                position,
                str(error),
                path=path,
                suggestion=error.suggestion,
            )
            return node.text

    def _fault(
        self, code: str, position: Position, message: str, *, path: Path | None, suggestion: str
    ) -> None:
        """Keep a fault; what it blames isn't reported again by those who look at the data."""
        self._document.faults.append(
            self._document.source.fault(code, position, message, suggestion=suggestion)
        )
        if path is not None:
            self._document.blamed.add(path)
