"""A document of a manifest: its data, the place of each part in the text, and its faults.

YAML text becomes trees of nodes with positions, and a tree becomes a `Document`. `data` has the values;
`locate` and `fault` turn a path into a line and a column. Faults that the data can't show (duplicate keys,
`on:`, undefined variables) are found while the tree is read. `Findings` collects the faults that the checks
find.

The trees are built from the events of the YAML parser, not by its composer, for three reasons: the depth of
nesting is bounded (libyaml's composer overflows the C stack), an anchor may be defined again, and every node
has its position.

A value without quotes gets its type as in YAML 1.1, which kubectl, kustomize and Helm read, too: so a
manifest means the same to all of them. `trap` names the values that surprise people, so that a message can
explain the type.

In text values, `${env:NAME}` is replaced by the variable of the process, and `$${` by the characters `${`.
Keys are not replaced. The replaced value stays a text and is not searched again. Other schemes are faults, so
that a later version can give them a meaning.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import msgspec
import yaml

from declctl import codes
from declctl.manifest.diagnostics import Diagnostic, Position, Severity, SourceText, closest
from declctl.manifest.values import BadValue, Json, Path, Schema

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
MAX_DEPTH = 64
"""Levels of nesting. A manifest has about ten; a deeper text is an accident or an attack."""
_TOO_DEEP = f"the document nests more than {MAX_DEPTH} levels deep"
_SIMPLIFY = "a manifest is written by hand and small: split or simplify it"
MAX_NODES = 100_000
"""Values of a document. An alias counts as all values of its anchor: a few aliases can expand to billions."""
_CONSTRUCTOR = yaml.constructor.SafeConstructor()
_LOADER: type[yaml.CSafeLoader] | type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<scheme>[A-Za-z][A-Za-z0-9]*):(?P<name>[^{}]*)(?P<end>\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})
_FALSE = frozenset({"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})
_INTEGER = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]+|0|[1-9][0-9_]*)", re.ASCII)
_SEXAGESIMAL = re.compile(r"[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?", re.ASCII)
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?", re.ASCII)
_SPECIAL_FLOAT = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_OCTAL = re.compile(r"[-+]?0[0-7_]+", re.ASCII)
_MAX_DIGITS = 300  # longer numbers stay text, as Python refuses to convert very long ones
_TEXT_TAGS = frozenset({"!", "tag:yaml.org,2002:str"})
_GUESSED_TAGS = frozenset(
    {f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null", "map", "seq")}
)
_EVENT_KEYS = frozenset({"on"})


def syntax_fault(source: SourceText, error: yaml.MarkedYAMLError) -> Diagnostic:
    """The diagnostic for an error of the YAML parser."""
    mark = error.problem_mark or error.context_mark
    position = source.clamped(Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1))
    line = source.lines[position.line - 1]
    # A tab gets a message of its own: the parser only says that no token can start here.
    if "\t" in line[: len(line) - len(line.lstrip())]:
        column = line.index("\t") + 1
        return source.fault(
            codes.TAB,
            Position(position.line, column),
            "a tab is used for indentation, which YAML forbids",
            suggestion="use spaces; most editors can convert tabs",
        )
    problem = error.problem or error.context or "it can't be read"
    # libyaml 0.2.6 has a limit of its own, and its scanner is ahead of the events that are counted here.
    if "maximum nesting depth" in problem:
        return source.fault(codes.UNREADABLE_TEXT, position, _TOO_DEEP, suggestion=_SIMPLIFY)
    message = f"this is not YAML: {problem}"
    if error.context and error.context != problem:
        message += f" ({error.context}{_beginning(error.context_mark, position)})"
    return source.fault(codes.SYNTAX, position, message, suggestion=_syntax_advice(problem, line))


def _beginning(mark: yaml.Mark | None, position: Position) -> str:
    """The place where the unfinished part began, for a message; empty if it is on the same line."""
    if mark is None or mark.line + 1 == position.line:
        return ""
    return f" that begins at line {mark.line + 1}, column {mark.column + 1}"


def _syntax_advice(problem: str, line: str) -> str | None:
    if re.search(r"\{\{.*\}\}|\{%", line):
        return "this looks like a template: render it first (for example with helm template)"
    return next((advice for part, advice in _ADVICE if part in problem), None)


# Tag and anchor of a scalar, and the character that says how it is written; none for a plain one.
_OPENING = re.compile(r"(?:[!&]\S*[ \t]+)*(?P<style>[|>'\"]?)")


class Node(msgspec.Struct):
    """One value of a document. A mapping has `pairs`, a sequence `items`, a scalar `text`.

    `plain` is True for a scalar without quotes, whose type YAML derives from its characters.
    """

    kind: Literal["scalar", "sequence", "mapping"]
    start: Position
    text: str = ""
    plain: bool = False
    tag: str | None = None
    items: list["Node"] = []
    pairs: list[tuple["Node", "Node"]] = []
    weight: int = 1  # the number of values in it, itself included, with aliases expanded

    def position_inside(self, source: SourceText, offset: int) -> Position:
        """The position of the character at `offset` (from 0) of the text.

        The position is exact if the source has the text on one line. On several lines, as in a block, it is
        that of the next character that is not white space. If there are escapes before it, it is the start of
        the node.
        """
        begin = self.start.column - 1
        found = source.lines[self.start.line - 1].find(self.text, begin, begin + 2 + len(self.text))
        if found >= 0:
            return Position(self.start.line, found + 1 + offset)
        # YAML may fold line breaks and remove indentation: only the other characters are the same.
        opening = _OPENING.match(source.lines[self.start.line - 1], begin)
        assert opening is not None, "it matches an empty text"
        is_block = opening["style"] in ("|", ">")
        rest = "".join(self.text[offset:].split())[:1]
        characters = "".join(self.text[:offset].split()) + rest
        number, column, seen = self.start.line + is_block, 0 if is_block else opening.end(), 0
        while seen < len(characters) and number <= len(source.lines):
            line = source.lines[number - 1]
            for at in range(column, len(line)):
                if line[at].isspace():
                    continue
                if line[at] != characters[seen]:
                    return self.start
                seen += 1
                if seen == len(characters):
                    return Position(number, at + 1)
            number, column = number + 1, 0
        return self.start


class UnreadableYaml(Exception):
    """The text is not YAML, or exceeds a bound; `diagnostic` has the place."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


def meant_kind(written: str) -> str:
    """The kind of our documents that a word is, or is like; empty if it is like none."""
    return closest(written, ("Controller", "ControllerTest")) or ""


def parse_documents(source: SourceText) -> Iterator[Node]:
    """Yields the root of each document, in order. Raises UnreadableYaml at the first fault."""
    parser = _LOADER(source.text)
    try:
        yield from _TreeBuilder(source, parser).documents()
    except yaml.MarkedYAMLError as error:
        raise UnreadableYaml(syntax_fault(source, error)) from error
    finally:
        parser.dispose()


class _TreeBuilder:
    """Builds nodes from the events of one parser."""

    def __init__(self, source: SourceText, parser: yaml.CSafeLoader | yaml.SafeLoader) -> None:
        self._source = source
        self._parser = parser
        self._anchors: dict[str, Node] = {}  # the anchors of the current document
        self._open: set[str] = set()  # the anchors whose nodes are not complete

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
        # Checked first: this method calls itself for each level of the document.
        if depth > MAX_DEPTH:
            self._refuse(start, _TOO_DEEP)
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event.anchor or "", start)
        anchor: str | None = getattr(event, "anchor", None)
        node = Node("scalar", start, tag=getattr(event, "tag", None))
        # The anchor is open until its node is complete: an alias of it inside the node would be endless.
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
            self._refuse(start, f"the alias *{anchor} refers to a value that contains the alias")
        if anchor not in self._anchors:
            message = f"the alias *{anchor} has no anchor &{anchor} before it"
            fix = 'write the anchor first, or put the text in quotes if it begins with "*"'
            raise UnreadableYaml(self._source.fault(codes.SYNTAX, start, message, suggestion=fix))
        return self._anchors[anchor]

    def _refuse(self, position: Position, message: str) -> None:
        fault = self._source.fault(codes.UNREADABLE_TEXT, position, message, suggestion=_SIMPLIFY)
        raise UnreadableYaml(fault)


def has_reference(text: str) -> bool:
    """Whether the text has a part that `substitute` replaces."""
    return "${" in text and _REFERENCE.search(text) is not None


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """The text with its references replaced. Raises BadValue at the first one that can't be replaced."""
    return _REFERENCE.sub(lambda found: _replacement(found, environ), text)


def _replacement(found: re.Match[str], environ: Mapping[str, str]) -> str:
    if found.group() == "$${":
        return "${"
    scheme, name = found["scheme"], found["name"]
    if scheme != "env":
        raise BadValue(
            f'"{scheme}" is not a kind of reference',
            offset=found.start(),
            suggestion=f"write ${{env:NAME}} for a variable, or $${{{scheme}:… for these characters",
        )
    if not found["end"] or not _NAME.fullmatch(name):
        raise BadValue(
            f"{found.group()} is not a whole reference",
            offset=found.start(),
            suggestion="write ${env:NAME}, with the name of an environment variable and a closing brace",
        )
    if name not in environ:
        raise BadValue(
            f"the environment variable {name} is not set",
            offset=found.start(),
            suggestion=_advice(name, environ),
        )
    return environ[name]


def _advice(name: str, environ: Mapping[str, str]) -> str:
    similar = closest(name, environ)
    advice = f"set {name} before you start declctl"
    return f'did you mean "{similar}"? Otherwise {advice}' if similar else advice


def resolve(text: str) -> Json:
    """The value of a scalar without quotes."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    # Python's conversions accept digits of other scripts; YAML does not.
    if len(text) > _MAX_DIGITS or not text.isascii():
        return text
    return _number(text)


def trap(text: str) -> str | None:
    """The value that YAML 1.1 reads, if it is not the written one; None for every other text.

    The phrase completes the sentence "YAML reads `10:00` as …".
    """
    if text.lower() in {"yes", "no", "on", "off"}:
        value = resolve(text)
        return None if isinstance(value, str) else f"the boolean {str(value).lower()}"
    if _SEXAGESIMAL.fullmatch(text):
        return f"the number {resolve(text)} (base 60)"
    if _OCTAL.fullmatch(text) and isinstance(resolve(text), int):
        return f"the number {resolve(text)} (octal)"
    return None


def _number(text: str) -> Json:
    node = yaml.ScalarNode("", text)
    try:
        if _INTEGER.fullmatch(text) or (_SEXAGESIMAL.fullmatch(text) and "." not in text):
            return _CONSTRUCTOR.construct_yaml_int(node)
        if _FLOAT.fullmatch(text) or _SEXAGESIMAL.fullmatch(text) or _SPECIAL_FLOAT.fullmatch(text):
            return _CONSTRUCTOR.construct_yaml_float(node)
    except ValueError:
        return text  # only underscores after the prefix, such as "0x_"
    return text


class Location(msgspec.Struct, frozen=True):
    """A part of a document: the value at `path`, or with `key` the key of this value.

    `offset` is a position in a text value, in characters from 0.
    """

    path: Path
    key: bool = False
    offset: int = 0


@dataclass
class Document:
    """One document. `read_document` makes it; then only `checks.types` adds the kinds of classes.

    `data` has the values. `nodes` and `keys` have the node and the position of the key for each path.
    `faults` has the faults of the text, and `blamed` the paths of their values.
    """

    source: SourceText
    data: Json = None
    nodes: dict[Path, Node] = field(default_factory=dict[Path, Node], repr=False)
    keys: dict[Path, Position] = field(default_factory=dict[Path, Position], repr=False)
    faults: list[Diagnostic] = field(default_factory=list[Diagnostic])
    blamed: set[Path] = field(default_factory=set[Path])

    @property
    def path(self) -> str:
        """The name of the file, as the user gave it."""
        return self.source.name

    @property
    def text(self) -> str:
        """The whole text of the file, with its other documents."""
        return self.source.text

    def locate(self, path: Path, *, key: bool = False) -> Position:
        """Line and column, from 1, of the value at `path` or of its key; else of the nearest parent."""
        if key and path in self.keys:
            return self.keys[path]
        while path not in self.nodes and path:
            path = path[:-1]
        return self.nodes[path].start if path in self.nodes else Position(1, 1)

    def fault(
        self,
        code: str,
        place: Location,
        message: str,
        *,
        suggestion: str | None = None,
        severity: Severity = "error",
    ) -> Diagnostic:
        """A diagnostic at a place of this document."""
        position = self.locate(place.path, key=place.key)
        node = self.nodes.get(place.path)
        if place.offset and node is not None and self.from_environment(place.path) is None:
            position = node.position_inside(self.source, place.offset)
        return self.source.fault(code, position, message, suggestion=suggestion, severity=severity)

    def written(self, path: Path) -> str | None:
        """The characters of a scalar without quotes, as in the source; None for every other value."""
        node = self.nodes.get(path)
        return node.text if node is not None and node.kind == "scalar" and node.plain else None

    def from_environment(self, path: Path) -> str | None:
        """The text before `${env:…}` was replaced; None if it has no reference.

        Messages show this text, as a variable may be a secret.
        """
        node = self.nodes.get(path)
        return node.text if node is not None and node.kind == "scalar" and has_reference(node.text) else None

    def has_environment_within(self, path: Path) -> bool:
        """Whether this value, or a value in it, comes from the environment."""
        return path in self._around_environment

    @cached_property
    def _around_environment(self) -> frozenset[Path]:
        """Every path at or above a value from the environment.

        Computed once, as a manifest may have thousands of such values and of questions.
        """
        found = [path for path in self.nodes if self.from_environment(path) is not None]
        return frozenset(path[:length] for path in found for length in range(len(path) + 1))


def read_document(source: SourceText, root: Node, environ: Mapping[str, str]) -> Document:
    """Reads the document with this root; `environ` has the values of `${env:NAME}`."""
    document = Document(source)
    document.data = _DocumentReader(document, environ).value(root, ())
    return document


class _DocumentReader:
    """Turns nodes into data, and records the place of each value and key in the document."""

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
        # Merged last: a field of the mapping itself takes precedence over a merged one.
        for mapping in merged:
            self._merge(mapping, data, path)
        return data

    def _field(self, key: Node, value: Node, path: Path) -> Json:
        self._document.keys[path] = key.start
        return self.value(value, path)

    def _merged(self, value: Node, path: Path) -> list[Node]:
        """The mappings that `<<` merges: one, or a list in which an earlier mapping takes precedence."""
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
        """Adds the fields of a merged mapping that `data` does not have yet."""
        nested: list[Node] = []
        for key, value in mapping.pairs:
            if key.kind == "scalar" and key.plain and key.text == "<<":
                nested += self._merged(value, path)
            elif key.kind == "scalar" and key.text not in data:
                data[key.text] = self._field(key, value, (*path, key.text))
        for inner in nested:
            self._merge(inner, data, path)

    def _key(self, key: Node, path: Path) -> str:
        """The text of a key, as written. A key that YAML 1.1 does not read as text is a fault."""
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
                fix = 'write "events" for the changes that a handler receives; put other such keys in quotes'
            self._fault(codes.TRAP_KEY, key.start, message, path=(*path, key.text), suggestion=fix)
        return key.text

    def _scalar(self, node: Node, path: Path) -> Json:
        if node.plain and node.tag not in _TEXT_TAGS:
            value = resolve(node.text)
            if not isinstance(value, str):
                return value
        try:
            return substitute(node.text, self._environ)
        except BadValue as error:
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
        self, code: str, position: Position, message: str, *, path: Path | None, suggestion: str | None
    ) -> None:
        """Adds a fault. The checks skip the value at `path`: its fault is reported."""
        self._document.faults.append(
            self._document.source.fault(code, position, message, suggestion=suggestion)
        )
        if path is not None:
            self._document.blamed.add(path)


class Findings:
    """The faults of one document, which the checks add. A fault of a blamed path is already reported."""

    def __init__(self, document: Document, pieces: Sequence[tuple[Path, Json, Schema]]) -> None:
        self.document = document
        self.pieces = pieces  # (path, value, piece of the schema) of each value that the schema knows
        self.data: Json = document.data
        self._diagnostics = list(document.faults)
        self._blamed = set(document.blamed)
        # The blamed paths and all their parents.
        self._blamed_within = {path[:length] for path in self._blamed for length in range(len(path) + 1)}
        self._meant: set[Path] = set()  # absent fields for which an unknown field probably stands

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """All faults, in the order in which they were found."""
        return tuple(self._diagnostics)

    def add(
        self,
        code: str,
        place: Location,
        message: str,
        *,
        suggestion: str | None = None,
        severity: Severity = "error",
    ) -> None:
        """Adds a fault. An error also blames its path; a warning does not."""
        self._diagnostics.append(
            self.document.fault(code, place, message, suggestion=suggestion, severity=severity)
        )
        if severity == "error":
            self._blamed.add(place.path)
            self._blamed_within.update(place.path[:length] for length in range(len(place.path) + 1))

    def is_blamed(self, path: Path) -> bool:
        """Whether a fault of this value itself is already reported."""
        return path in self._blamed

    def is_blamed_within(self, path: Path) -> bool:
        """Whether a fault of this value, or of a value in it, is already reported."""
        return path in self._blamed_within

    def mean(self, path: Path) -> None:
        """Records that an unknown field probably means this one, which is then not reported as missing."""
        self._meant.add(path)

    def is_meant(self, path: Path) -> bool:
        """Whether an unknown field probably means this one."""
        return path in self._meant

    def quoted(self, path: Path, value: Json) -> str:
        """A value for a message: as it is written, without values from the environment."""
        written = self.document.from_environment(path)
        if written is None:
            written = self.document.written(path)
        if written is None and isinstance(value, str):
            written = f'"{value}"'
        if written is None:
            return "a mapping" if isinstance(value, dict) else "a list"
        shown = written or "empty"
        return shown if len(shown) <= 60 else f"{shown[:57]}…"
