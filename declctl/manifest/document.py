"""A document of a manifest: its data, where each part of it stands in the text, and what is wrong with it.

YAML text becomes trees of nodes with positions, and a tree becomes a `Document`: `data` is what the text
means; `locate` and `fault` lead back from a path to a line and a column. Faults that only the text can show
(duplicate keys, `on:`, undefined variables) are found while it is read. `Findings` collects what checks find.

The trees are built from the parser's events, not by its composer: so the depth of nesting is bounded (the
composer of libyaml overflows the C stack), an anchor may be used again, and every node knows its position.

The types of values without quotes are guessed as YAML 1.1 does (and with it kubectl, kustomize and Helm), so
that a manifest means the same everywhere. The traps are known by name, so that a message can say how the
value came to be of that type.

`${env:NAME}` inside text values is replaced by the variable of the process, `$${` by the plain characters.
Only text is replaced, never keys; the replaced text is text and is not read again. Other schemes are
refused, so that they can get a meaning later.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import msgspec
import yaml

from declctl.manifest import codes
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
"""Levels of nesting; a manifest has about ten, and a deeper text is an accident or an attack."""
MAX_NODES = 100_000
"""Values of a document. An alias counts as all values of its anchor, so that a small text can't grow huge."""
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
_MAX_DIGITS = 300  # longer numbers stay text: nobody writes them, and Python refuses to convert the longest
_TEXT_TAGS = frozenset({"!", "tag:yaml.org,2002:str"})
_GUESSED_TAGS = frozenset(
    {f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null", "map", "seq")}
)
_EVENT_KEYS = frozenset({"on"})


def syntax_fault(source: SourceText, error: yaml.MarkedYAMLError) -> Diagnostic:
    """The diagnostic for what the parser raised."""
    mark = error.problem_mark or error.context_mark
    position = source.clamped(Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1))
    line = source.lines[position.line - 1]
    # A tab gets a message of its own: the one of the parser only says that no token starts here.
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
    return source.fault(codes.SYNTAX, position, message, suggestion=_syntax_advice(problem, line))


def _beginning(mark: yaml.Mark | None, position: Position) -> str:
    """Where what could not be finished began, if that is another line."""
    if mark is None or mark.line + 1 == position.line:
        return ""
    return f" that begins at line {mark.line + 1}, column {mark.column + 1}"


def _syntax_advice(problem: str, line: str) -> str | None:
    if re.search(r"\{\{.*\}\}|\{%", line):
        return "this looks like a template: render it first (for example with helm template)"
    return next((advice for part, advice in _ADVICE if part in problem), None)


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
        # Before anything is built: recursion is as deep as the document.
        if depth > MAX_DEPTH:
            self._refuse(start, f"the document nests more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event.anchor or "", start)
        anchor: str | None = getattr(event, "anchor", None)
        node = Node("scalar", start, tag=getattr(event, "tag", None))
        # The anchor is open until its node is complete: an alias inside of it would be endless.
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


def has_reference(text: str) -> bool:
    """Whether there is anything to replace."""
    return "${" in text and _REFERENCE.search(text) is not None


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """The text with its references replaced; raises BadValue at the first that can't be."""
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
    """The value of a scalar that stands without quotes."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    # Python's conversions accept digits of other scripts, YAML does not.
    if len(text) > _MAX_DIGITS or not text.isascii():
        return text
    return _number(text)


def trap(text: str) -> str | None:
    """How YAML 1.1 reads the text, if not as what is written; None for everything harmless.

    A phrase that completes the sentence "YAML reads `10:00` as …".
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
    digits = text.replace("_", "")
    try:
        if _INTEGER.fullmatch(text):
            return _integer(digits)
        if _SEXAGESIMAL.fullmatch(text):
            return _base_60(digits)
        if _FLOAT.fullmatch(text):
            return float(digits)
    except ValueError:
        return text  # only underscores after the prefix, such as "0x_"
    if _SPECIAL_FLOAT.fullmatch(text):
        return math.nan if "n" in text.lower().replace("inf", "") else float(text.replace(".", ""))
    return text


def _integer(digits: str) -> int:
    sign = -1 if digits.startswith("-") else 1
    body = digits.lstrip("+-")
    if body.startswith(("0b", "0x")):
        return sign * int(body, 0)
    return sign * int(body, 8 if body.startswith("0") else 10)


def _base_60(digits: str) -> int | float:
    sign = -1 if digits.startswith("-") else 1
    whole, _, fraction = digits.lstrip("+-").partition(".")
    total = 0
    for part in whole.split(":"):
        total = total * 60 + int(part)
    return sign * (total + float(f"0.{fraction}")) if fraction else sign * total


class Location(msgspec.Struct, frozen=True):
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
        """Line and column, from 1, of the value (or its key) at `path`, or of its nearest parent."""
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
        """The characters of an unquoted scalar, as they stand in the text; None for everything else."""
        node = self.nodes.get(path)
        return node.text if node is not None and node.kind == "scalar" and node.plain else None

    def from_environment(self, path: Path) -> str | None:
        """The text before `${env:…}` was replaced, None if nothing was: messages show only this."""
        node = self.nodes.get(path)
        return node.text if node is not None and node.kind == "scalar" and has_reference(node.text) else None

    def has_environment_within(self, path: Path) -> bool:
        """Whether this value, or anything in it, came out of the environment."""
        return path in self._around_environment

    @cached_property
    def _around_environment(self) -> frozenset[Path]:
        """Every path at or above a value out of the environment; a manifest may have thousands of each."""
        found = [path for path in self.nodes if self.from_environment(path) is not None]
        return frozenset(path[:length] for path in found for length in range(len(path) + 1))


def read_document(source: SourceText, root: Node, environ: Mapping[str, str]) -> Document:
    """The document whose root this is, with `${env:NAME}` replaced from `environ`."""
    document = Document(source)
    document.data = _DocumentReader(document, environ).value(root, ())
    return document


class _DocumentReader:
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
        # Last, so that fields of the mapping itself win.
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
        """Keep a fault; what it blames isn't reported again by those who look at the data."""
        self._document.faults.append(
            self._document.source.fault(code, position, message, suggestion=suggestion)
        )
        if path is not None:
            self._document.blamed.add(path)


class Findings:
    """The faults of one document. A blamed path is wrong for a reason that has been reported."""

    def __init__(self, document: Document, pieces: Sequence[tuple[Path, Json, Schema]]) -> None:
        self.document = document
        self.pieces = pieces  # each value that the schema knows: its path, the value, its piece of the schema
        self.data: Json = document.data
        self._diagnostics = list(document.faults)
        self._blamed = set(document.blamed)
        self._blamed_within = {path[:length] for path in self._blamed for length in range(len(path) + 1)}
        self._meant: set[Path] = set()

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Everything found."""
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
        """Report a fault; an error blames its place."""
        self._diagnostics.append(
            self.document.fault(code, place, message, suggestion=suggestion, severity=severity)
        )
        if severity == "error":
            self._blamed.add(place.path)
            self._blamed_within.update(place.path[:length] for length in range(len(place.path) + 1))

    def is_blamed(self, path: Path) -> bool:
        """Whether this very value is known to be wrong."""
        return path in self._blamed

    def is_blamed_within(self, path: Path) -> bool:
        """Whether this value, or anything in it, is known to be wrong."""
        return path in self._blamed_within

    def mean(self, path: Path) -> None:
        """Remember that an unknown field stands where this one was meant: so it is not missing."""
        self._meant.add(path)

    def is_meant(self, path: Path) -> bool:
        """Whether a field of another name was probably meant to be this one."""
        return path in self._meant

    def quoted(self, path: Path, value: Json) -> str:
        """A value as a message may show it: as it is written, never what came out of the environment."""
        written = self.document.from_environment(path)
        if written is None:
            written = self.document.written(path)
        if written is None and isinstance(value, str):
            written = f'"{value}"'
        if written is None:
            return "a mapping" if isinstance(value, dict) else "a list"
        shown = written or "empty"
        return shown if len(shown) <= 60 else f"{shown[:57]}…"
