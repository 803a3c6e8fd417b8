"""Rules in CEL against the schema that has them, as an API server compiles them.

A server gives `self` and `oldSelf` the types of the schema, and refuses a definition whose rules read a field
that these types have not. Here such fields are found by a walk over the parsed rule. (cel-expr takes declared
types only as messages of protobuf, from a library that is not installed with it.) What the walk does not know
has no type, and nothing is said of it: the result of a function, and int-or-string.

It needs cel-expr-python (declctl's extra `cel`); without it no expression has a fault, and `are_unchecked`
says so. (SchemaDeclType in k8s.io/apiserver/pkg/cel/common.)
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from declctl.objects.expression_tree import SyntaxNode, tree_of
from declctl.objects.schema_marks import VALIDATIONS

if TYPE_CHECKING:
    from cel_expr_python import cel

_Schema = Mapping[str, Any]
_Type = _Schema | None  # None: not known, and of any type
_Scope = Mapping[str, _Type]  # types of variables

_TEXT: Final = {"type": "string"}
_BOOL: Final = {"type": "boolean"}
_MADE: Final[_Schema] = {}  # of an accumulator: what `filter` and `map` have made so far
_INDEX: Final = {"type": "integer"}
_METADATA: Final = {"type": "object", "properties": {"name": _TEXT, "generateName": _TEXT}}
_KEYWORDS: Final = frozenset(
    {
        "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if",
        "import", "let", "loop", "package", "namespace", "return", "var", "void", "while",
    }
)  # fmt: skip
_PLAIN: Final = {"string": "string", "boolean": "bool", "number": "double", "integer": "int"}
_FORMATS: Final = {"byte": "bytes", "duration": "duration", "date": "timestamp", "date-time": "timestamp"}
# Macros with two variables, an index or a key and a value, which cel-expr reads as calls.
_TWO_VARIABLES: Final = frozenset(
    {"all", "exists", "existsOne", "transformList", "transformMap", "transformMapEntry"}
)
INSTALL: Final = "pip install 'declctl[cel]'"
"""What to do about rules that are not checked."""
_RESULTS: Final = {"rule": ("boolean", "bool"), "messageExpression": ("string", "string")}
_UNTYPED: Final = (
    "failed to construct type information for x-kubernetes-validations rules: unable to convert structural "
    "schema to CEL declarations"
)
_NO_MESSAGE: Final = "message must be specified if rule contains line breaks"
_PATH: Final = re.compile(r"(\.[^.\[\]']+|\['[^']+'\])+")
_STEP: Final = re.compile(r"\.([^.\[\]']+)|\['([^']+)'\]")
_SYNTAX: Final = re.compile(r"ERROR: <input>:(\d+):(\d+): (Syntax error: [^\n]*)")


class RuleFault(NamedTuple):
    """Why a server does not take a rule of a schema."""

    steps: tuple[str | int, ...]  # from the schema to the text, or to all rules of a value
    message: str  # as the server words it
    text: str = ""  # an expression, or a field path
    offset: int | None = None  # of the fault in the expression, in characters; None for all of it
    suggestion: str | None = None

    def __str__(self) -> str:
        where = f'{self.steps[-1]} "{self.text}": ' if self.text else ""
        return f"{where}{self.message}"


def cel_name(field: str) -> str:
    """The name of a field in a rule: CEL's own words, and characters that it does not allow, are spelled."""
    if field in _KEYWORDS:
        return f"__{field}__"
    for text, word in (("__", "underscores"), (".", "dot"), ("-", "dash"), ("/", "slash")):
        field = field.replace(text, f"__{word}__")
    return field


def has_rules(schema: Any) -> bool:
    """Whether a schema, or a definition, has a rule anywhere."""
    if isinstance(schema, list):
        return any(map(has_rules, cast("list[Any]", schema)))
    if not isinstance(schema, dict):
        return False
    inner = cast("dict[str, Any]", schema)
    return bool(inner.get(VALIDATIONS)) or any(map(has_rules, inner.values()))


def are_unchecked(schema: Any) -> bool:
    """Whether a schema, or a definition, has rules, and cel-expr-python to check them by is not installed."""
    return has_rules(schema) and find_spec("cel_expr_python") is None


def unchecked(what: str) -> str:
    """The sentence about rules of something (a class, a definition) that `are_unchecked`."""
    return f"the rules of {what} in CEL are not checked, as cel-expr-python is not installed"


def schema_faults(schema: _Schema, *, is_root: bool = False) -> Iterator[RuleFault]:
    """The faults of all rules in a schema. `is_root`: it is that of a whole object, with its metadata."""
    yield from rule_faults(schema, is_root=is_root)
    for name, each in _properties(schema).items():
        yield from _below(each, "properties", name)
    for name in ("items", "additionalProperties"):
        yield from _below(schema.get(name), name)


def _below(schema: Any, *steps: str) -> Iterator[RuleFault]:
    if isinstance(schema, Mapping):
        for fault in schema_faults(schema):
            yield fault._replace(steps=(*steps, *fault.steps))


def rule_faults(schema: _Schema, *, is_root: bool = False) -> Iterator[RuleFault]:
    """The faults of the rules of one value, by its schema."""
    rules = _dicts(schema.get(VALIDATIONS))
    if rules and not _name(schema):
        yield RuleFault((VALIDATIONS,), _UNTYPED, suggestion="describe the value, or leave its rules out")
        return
    of_self = _with_metadata(schema) if is_root else schema
    for number, rule in enumerate(rules):
        if "\n" in str(rule.get("rule")).strip() and not str(rule.get("message") or "").strip():
            yield RuleFault(
                (VALIDATIONS, number, "message"), _NO_MESSAGE, suggestion='write message="…" beside the rule'
            )
            continue
        for name in (*_RESULTS, "fieldPath"):
            text = rule.get(name)
            if isinstance(text, str) and text:
                found = _faults(text, name, of_self) if name in _RESULTS else _path_faults(text, schema)
                for fault in found:
                    yield RuleFault((VALIDATIONS, number, name), fault.message, text, *fault[1:])


class _TextFault(NamedTuple):
    message: str
    offset: int | None = None
    suggestion: str | None = None


def _faults(text: str, name: str, schema: _Schema) -> Sequence[_TextFault]:
    """The faults of an expression whose `self` has a schema."""
    try:
        parsed = _parsed(text)
    except ImportError:  # without cel-expr, which `are_unchecked` says
        return ()
    if not isinstance(parsed, SyntaxNode):
        return parsed
    walk = _TypeWalk()
    result = walk.type_of(parsed, {"self": schema, "oldSelf": schema})
    kind, word = _RESULTS[name]
    if not walk.faults and result is not None and _name(result) != _name({"type": kind}):
        return [_TextFault(f"{'cel expression' if name == 'rule' else name} must evaluate to a {word}")]
    return walk.faults


def _path_faults(text: str, schema: _Schema) -> Iterator[_TextFault]:
    """The field that a path, such as `.spec.max` or `['max']`, names and the schema has not."""
    if not _PATH.fullmatch(text):
        return
    for names in _STEP.findall(text):
        name, fields = "".join(names), _properties(schema)
        if "additionalProperties" not in schema and name not in fields:
            yield _TextFault("must be a valid path", suggestion=_closest(name, list(fields)))
            return
        inner = fields.get(name, schema.get("additionalProperties"))
        schema = inner if isinstance(inner, Mapping) else {}


@lru_cache(256)
def _parsed(text: str) -> SyntaxNode | Sequence[_TextFault]:
    """The tree of an expression, or its faults: none for what cel-expr can't parse, but maybe a server.

    Raises ImportError without cel-expr.
    """
    parser = _parser()
    try:
        return tree_of(parser.compile(text, disable_check=True).serialize())
    except Exception as fault:  # noqa: BLE001 - RuntimeError, and whatever else C++ raises
        found: list[_TextFault] = []
        for line, column, message in _SYNTAX.findall(str(fault)):
            before = text.split("\n")[: int(line) - 1]
            offset = sum(len(each) + 1 for each in before) + int(column) - 1
            found.append(_TextFault(message.strip(), offset))
        return found


@lru_cache(1)
def _parser() -> "cel.Env":
    from cel_expr_python import cel  # late: few definitions have rules
    from cel_expr_python.ext import ext_optional

    return cel.NewEnv(variables={}, extensions=[ext_optional.ExtOptional()])


def _with_metadata(schema: _Schema) -> _Schema:
    """The schema of an object with the fields that rules can read in each object."""
    return {
        **schema,
        "properties": {**_properties(schema)} | {"apiVersion": _TEXT, "kind": _TEXT, "metadata": _METADATA},
    }


def _properties(schema: _Schema) -> dict[str, _Schema]:
    """The fields of a schema, which may be one that no server takes."""
    found = schema.get("properties")
    return {
        str(name): cast("_Schema", each)
        for name, each in (cast("dict[Any, Any]", found).items() if isinstance(found, dict) else ())
        if isinstance(each, Mapping)
    }


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _name(schema: _Schema) -> str:
    """The name of the type that a server gives to the values of a schema; empty if it gives them none."""
    if schema.get("x-kubernetes-int-or-string"):
        return "dyn"
    kind, inner = schema.get("type"), schema.get("additionalProperties")
    if kind == "array":
        items = schema.get("items")
        element = _name(items) if isinstance(items, Mapping) else ""
        return element and f"list({element})"
    if kind == "object" and isinstance(inner, Mapping):
        value = _name(inner)
        return value and f"map(string, {value})"
    if kind == "object":
        return "object"
    return (
        _FORMATS.get(str(schema.get("format")), "string") if kind == "string" else _PLAIN.get(str(kind), "")
    )


class _TypeWalk:
    """Follows the types of an expression from `self`, and collects the faults on the way."""

    def __init__(self) -> None:
        self.faults: list[_TextFault] = []

    def type_of(self, node: SyntaxNode, scope: _Scope) -> _Type:
        """The type of a node's values."""
        match node.kind:
            case "variable":
                return self._variable(node, scope)
            case "field":
                found = self._field(self.type_of(node.parts[0], scope), node.name, node.offset)
                return _BOOL if node.is_test else found
            case "call":
                return self._call(node, scope)
            case "comprehension":
                return self._comprehension(node, scope)
            case "list":
                return _list_of(self._all(node.parts, scope))
            case _:
                self._all(node.parts, scope)
                return None

    def _all(self, nodes: Sequence[SyntaxNode], scope: _Scope) -> list[_Type]:
        return [self.type_of(each, scope) for each in nodes]

    def _variable(self, node: SyntaxNode, scope: _Scope) -> _Type:
        # Other names that are not bound may be types or parts of a function's name.
        if node.name not in scope and (near := get_close_matches(node.name, ("self", "oldSelf"), n=1)):
            message = f"undeclared reference to '{node.name}' (in container '')"
            self.faults.append(_TextFault(message, node.offset, f'did you mean "{near[0]}"?'))
        return _known(scope.get(node.name))

    def _field(self, of: _Type, name: str, offset: int) -> _Type:
        """The type of a field that is read."""
        if of is None:
            return None
        inner = of.get("additionalProperties")
        if isinstance(inner, Mapping):
            return _known(inner)
        if of.get("type") != "object":
            self.faults.append(_TextFault(f"type '{_name(of)}' does not support field selection", offset))
            return None
        if of.get("x-kubernetes-embedded-resource"):
            of = _with_metadata(of)
        fields = _properties(of)
        # A server also takes some names as they are, such as `namespace`.
        named = fields | {cel_name(each): schema for each, schema in fields.items()}
        if name in named and _name(named[name]):
            return _known(named[name])
        self.faults.append(_TextFault(f"undefined field '{name}'", offset, _advice(name, fields)))
        return None

    def _call(self, node: SyntaxNode, scope: _Scope) -> _Type:
        first, *others = node.parts or (node,)
        if node.name == "_?._" and others[0].kind == "text":  # an optional field
            return self._field(self.type_of(first, scope), others[0].name, node.offset)
        if node.name in ("_[_]", "_[?_]"):
            of, _ = self._all(node.parts, scope)
            return None if of is None else _element(of)[1]
        if node.name == "_?_:_":
            _, one, other = self._all(node.parts, scope)
            return one if one is other or _is_made(node.parts[2], scope) else None
        if node.name == "_+_" and _is_made(first, scope):
            return self._all(node.parts, scope)[1]
        variables = [each.name for each in others[:2] if each.kind == "variable"]
        if len(variables) == 2 and len(others) > 2 and node.name in _TWO_VARIABLES:
            of = self.type_of(first, scope)
            types = (None, None) if of is None else _element(of)
            self._all(others[2:], {**scope, **dict(zip(variables, types, strict=True))})
            return None
        self._all(node.parts, scope)
        return None

    def _comprehension(self, node: SyntaxNode, scope: _Scope) -> _Type:
        of = self.type_of(node.parts[0], scope)
        key, value = (None, None) if of is None else _element(of)
        *variables, accumulator = node.bound
        names = [each for each in variables if each]
        is_map = of is not None and "additionalProperties" in of
        types = (key, value) if len(names) == 2 else (key if is_map else value,)
        inner = {**scope, accumulator: _MADE, **dict(zip(names, types, strict=True))}
        _, _, step, _ = self._all(node.parts[1:], inner)
        return step if node.parts[-1].kind == "variable" else None


def _is_made(node: SyntaxNode, scope: _Scope) -> bool:
    return node.kind == "variable" and scope.get(node.name) is _MADE


def _known(schema: _Type) -> _Type:
    """A type; None for one that may be of any type."""
    return None if schema is None or _name(schema) in ("", "dyn") else schema


def _list_of(types: Sequence[_Type]) -> _Type:
    """The type of a list with elements of these types."""
    first = types[0] if types else None
    return {"type": "array", "items": first} if first and all(each is first for each in types) else None


def _element(of: _Schema) -> tuple[_Type, _Type]:
    """The types of the keys, or indexes, and of the values of a list or a map."""
    if isinstance(inner := of.get("additionalProperties"), Mapping):
        return _TEXT, _known(inner)
    items = of.get("items")
    return (_INDEX, _known(items)) if isinstance(items, Mapping) else (None, None)


def _advice(name: str, fields: Mapping[str, _Schema]) -> str:
    if name in fields or name in map(cel_name, fields):
        return "a server does not know its type: describe its content, or test it in the code"
    return _closest(name, [cel_name(each) for each, schema in fields.items() if _name(schema)])


def _closest(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f'did you mean "{near[0]}"?' if near else f"it has {', '.join(known) or 'no fields'}"
