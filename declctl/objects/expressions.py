"""Expressions in CEL, the language of Kubernetes' own policies, over objects and changes.

`Expression` compiles a text with cel-expr (CEL in C++), which is imported with the first expression. It gets
only the fields that the text names: `obj.status.phase` is read out of the JSON of an object without decoding
the rest. One field costs a seventh of a whole object, because cel-expr converts every value that it gets.

cel-expr bounds the work a little: an expression is at most 32 levels deep and 100,000 characters long, and
its comprehensions take 10,000 steps together. `expression_costs` bounds the time and the memory of each
evaluation. cel-expr does not bound the depth of a value either, and overflows the stack at several thousand
levels. So a deeply nested value is an error here. It holds the interpreter lock while it evaluates.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

import msgspec

from declctl.kit.timetable import check_zone
from declctl.objects.expression_costs import (
    COMPARISONS,
    FIELD_OPERATORS,
    FUNCTIONS,
    MOST_BYTES,
    MOST_SECONDS,
    TIME_PARTS,
    CostModel,
    Measure,
    OverBudget,
    measure_json,
)
from declctl.objects.expression_tree import SyntaxNode, tree_of
from declctl.objects.frame import FILLED_IN, UNREADABLE
from declctl.objects.record import ChangeReason, ChangeType, Notification, Record

if TYPE_CHECKING:
    from cel_expr_python import cel

VARIABLES = ("obj", "old", "change")
_CHANGE_FIELDS = ("type", "reason", "initial")
_ENUMERATIONS = {"change.type": ChangeType, "change.reason": ChangeReason}
_MOST_LEVELS = 500  # of a value; cel-expr crashes at about 5000
_BUDGET = f"{MOST_SECONDS * 1000:.0f} ms or {MOST_BYTES >> 20} MiB"
_ZONE_OFFSET = re.compile(r"[+-]?\d\d:\d\d")
_COMPILED = 1024  # size of the cache of compiled expressions
_LONGEST_MESSAGE = 300  # characters: a message of cel-expr may quote a value
_ERROR = re.compile(r"ERROR: <input>:(?P<line>-?\d+):(?P<column>-?\d+): (?P<message>[^\n]*)")
_STATUS = re.compile(r"^[A-Z_]+: | \[[A-Z_]+\]$")
_UNDECLARED = re.compile(r"undeclared reference to '(?P<name>[^']*)'")
_INSTALL = "pip install 'declctl[cel]'"
_NOT_HERE: Mapping[str, str] = {
    "quantity": "CEL has no quantities here: compare them in a function (filter.entryPoint)",
    "now": "CEL has no clock here: a filter judges a change once, when it is delivered",
}
_FUNCTIONS = (
    "the functions are size, has, startsWith, endsWith, contains, matches, all, exists, filter, map, int, "
    "double, string, timestamp, duration, and others of CEL's standard"
)
# The class of a decoded object is made while the program runs, which a type checker does not expect.
_typed_dict: Any = TypedDict


class ExpressionError(ValueError):
    """A text is no expression that can be evaluated."""

    def __init__(self, message: str, offset: int = 0, *, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.offset = offset  # of the fault in the text, in characters from 0
        self.suggestion = suggestion


class EvaluationFailed(Exception):
    """An expression has no result for an object or a change; the message says why."""


class FieldRead(NamedTuple):
    """A field that an expression reads."""

    variable: str  # one of VARIABLES
    steps: tuple[str, ...]  # names below the variable, up to the first index or call; empty for all of it
    offset: int  # of the last name in the text, in characters from 0
    is_null_check: bool = False  # only compares the variable with null


class UnknownValue(NamedTuple):
    """A text that is compared with `change.type` or `change.reason`, and that neither ever is."""

    variable: str
    value: str
    values: tuple[str, ...]  # that the variable may have
    offset: int  # of the text in the expression, in characters from 0


class Expression:
    """A compiled expression. Immutable; from any thread.

    The variables are those of a hook: `obj`; `old`, which is null except for a Modified or Resync; and
    `change.type`, `change.reason` and `change.initial`. Raises ExpressionError for a text that does not
    compile, for one whose result is known not to be a boolean, and if cel-expr is not installed.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._program = _compile(text)
        self._is_boolean = self._program.return_type().name() == "BOOL"  # or an error; else any type
        self._tree = tree_of(self._program.serialize())
        for node in self._tree.all():
            _check_cost_is_known(node)
        # Each place once.
        self.reads: Sequence[FieldRead] = tuple(dict.fromkeys(_reads(self._tree, frozenset())))
        self._variables = frozenset(read.variable for read in self.reads)
        self._fields = {name: _Fields(self.reads, name) for name in ("obj", "old") if name in self._variables}
        try:
            self.costs = CostModel(self._tree, frozenset(self._fields))
        except OverBudget as fault:
            offset = 0 if fault.node is None else fault.node.offset
            raise ExpressionError(
                f"it may take more than {_BUDGET}, whatever the object is", offset
            ) from None

    @property
    def judges_objects(self) -> bool:
        """Whether it reads nothing but `obj`, so that objects enter and leave it; else it judges changes."""
        return not self._variables - {"obj"}

    def unknown_values(self) -> Sequence[UnknownValue]:
        """The comparisons with a type or a reason of changes that there is not."""
        return tuple(_unknown_values(self._tree))

    def matches(self, obj: Record) -> bool:
        """The result for an object. Raises EvaluationFailed, always if it judges changes."""
        return self._evaluate({"obj": obj})

    def matches_change(self, notification: Notification, old: Record | None) -> bool:
        """The result for a change. `old` is the state that a hook receives. Raises EvaluationFailed."""
        return self._evaluate(
            {"obj": notification.record, "old": old},
            {
                "change.type": str(notification.type),
                "change.reason": str(notification.reason),
                "change.initial": notification.initial,
            },
        )

    def _evaluate(
        self, records: Mapping[str, Record | None], more: Mapping[str, object] | None = None
    ) -> bool:
        data: dict[str, object] = dict(more or {})
        texts: dict[str, bytes] = {}
        size = 0
        for name, fields in self._fields.items():
            data[name] = None
            if (record := records.get(name)) is not None:
                texts[name] = text = fields.text(record)
                size += len(text)
        # Every byte may be a value.
        sizes = [] if self.costs.within(size, size) else self._sizes(texts)
        try:
            if sizes:
                self.costs.check_reading(sizes)
            for name, text in texts.items():
                data[name] = self._fields[name].read(cast("Record", records[name]), text)
            if sizes:
                self.costs.check(sizes, data)
        except OverBudget as fault:
            # Equal for all objects, so that the log counts it as one fault.
            place = "to read it" if fault.node is None else f"with its character {fault.node.offset + 1}"
            raise EvaluationFailed(
                f"it may take more than {_BUDGET} on an object of this size, {place}, and was not evaluated"
            ) from None
        try:
            result = self._program.eval(data=data)
            # The value of another type may be a list with a million elements.
            kind = "BOOL" if self._is_boolean else result.type().name()
            value = result.value() if kind in ("BOOL", "ERROR") else None
        except Exception as fault:  # noqa: BLE001 - RuntimeError for a spent budget; and any other of C++
            raise EvaluationFailed(_plain(str(fault))) from None
        if kind not in ("BOOL", "ERROR"):
            raise EvaluationFailed(f"the result is {_article(kind)}, and neither true nor false")
        if value is True or value is False:
            return value
        # An error comes back as its text, which Python would take for true.
        raise EvaluationFailed(_plain(str(value)) + self._advice(str(value), records))

    def _sizes(self, texts: dict[str, bytes]) -> Sequence[Measure]:
        """The sizes of objects; empty if they are within the budget. Leaves only fields that are read."""
        for name, text in texts.items():
            texts[name] = self._fields[name].read_alone(text)
        sizes = [measure_json(text) for text in texts.values()]
        total = sum(sizes, Measure(values=0))
        return [] if self.costs.within(int(total.bytes), int(total.values)) else sizes

    def _advice(self, error: str, records: Mapping[str, Record | None]) -> str:
        if "non-message" in error and "old" in self._variables and records.get("old") is None:
            return "; `old` is null here: write `old == null || …` or `old != null && …`"
        if error.startswith("NOT_FOUND"):
            return "; test a field that may be missing with has(…)"
        return ""


@lru_cache(_COMPILED)
def compile_expression(text: str) -> Expression:
    """The compiled expression of a text; one object for equal texts. Raises ExpressionError."""
    return Expression(text)


class _Fields:
    """Reads the fields of one variable out of records, as plain dictionaries and lists."""

    def __init__(self, reads: Sequence[FieldRead], variable: str) -> None:
        tree: dict[str, Any] | None = {}
        for read in reads:
            if read.variable == variable and not read.is_null_check:
                tree = _with(tree, read.steps)
        self._filled_in = FILLED_IN if tree is None else tuple(name for name in FILLED_IN if name in tree)
        self._decode_whole = msgspec.json.Decoder(dict[str, Any]).decode
        self._decode, self._decode_raw = self._decode_whole, None
        if tree is not None:
            self._decode = msgspec.json.Decoder(_struct(tree, Any)).decode
            self._decode_raw = msgspec.json.Decoder(_struct(tree, msgspec.Raw)).decode

    def text(self, record: Record) -> bytes:
        """An object as JSON."""
        return record.layout.codec.decode(record.frame)

    def read_alone(self, text: bytes) -> bytes:
        """The JSON of an object with nothing but these fields, which are not decoded."""
        if self._decode_raw is None:
            return text
        try:
            return msgspec.json.encode(self._decode_raw(text))
        except UNREADABLE:  # a field is no object, though the expression reads fields of it; or broken JSON
            return text

    def read(self, record: Record, text: bytes) -> dict[str, Any]:
        """The fields of an object, of its JSON. Raises EvaluationFailed."""
        try:
            try:
                found = self._decode(text)
            except msgspec.ValidationError:  # a field is no object, though the expression reads fields of it
                found = self._decode_whole(text)
        except UNREADABLE as fault:
            raise EvaluationFailed(f"the object can't be decoded: {fault}") from None
        for name in self._filled_in:
            found.setdefault(name, record.layout.kind if name == "kind" else record.layout.api_version)
        # JSON with fewer opening brackets than levels is not searched.
        if text.count(b"{") + text.count(b"[") > _MOST_LEVELS and _is_deep(found):
            raise EvaluationFailed(f"the object is nested deeper than {_MOST_LEVELS} levels")
        return found


def _with(tree: dict[str, Any] | None, steps: Sequence[str]) -> dict[str, Any] | None:
    """The tree of names with one more path; None is the tree of a value that is read as a whole."""
    if tree is None or not steps:
        return None
    name, *rest = steps
    return {**tree, name: _with(tree.get(name, {}), rest)}


def _struct(tree: Mapping[str, Any], value: Any) -> Any:
    """The type by which msgspec decodes the fields of a tree into dictionaries, and skips all others.

    `value` is the type of a field that is read as a whole.
    """
    fields = {name: value if below is None else _struct(below, value) | None for name, below in tree.items()}
    return _typed_dict("Fields", fields, total=False)


def _is_deep(value: object) -> bool:
    level: list[Any] = [value]
    for _ in range(_MOST_LEVELS):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
        if not level:
            return False
    return True


@lru_cache(1)
def _environment() -> "cel.Env":
    """The variables and functions of all expressions. The import needs 6 MB, the rest 6 MB more."""
    try:
        from cel_expr_python import cel  # late: most manifests have no expression
        from cel_expr_python.ext import ext_optional
    except ImportError as error:
        message = f"expressions need the package cel-expr-python, which can't be imported: {error}"
        raise ExpressionError(message, suggestion=_INSTALL) from None
    # No extension for strings: its `replace` may need a minute and gigabytes within the budget of steps.
    return cel.NewEnv(
        variables={
            "obj": cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
            "old": cel.Type.DYN,
            "change.type": cel.Type.STRING,
            "change.reason": cel.Type.STRING,
            "change.initial": cel.Type.BOOL,
        },
        extensions=[ext_optional.ExtOptional()],
    )


def _compile(text: str) -> "cel.Expression":
    environment = _environment()
    try:
        program = environment.compile(text)
    except Exception as fault:  # noqa: BLE001 - RuntimeError; TypeError for a lone surrogate; others of C++
        raise _compile_error(text, str(fault)) from None
    kind = program.return_type().name()
    if kind not in ("BOOL", "DYN"):
        advice = "compare it, as in obj.status.phase == 'Running'"
        raise ExpressionError(
            f"the result is {_article(kind)}, and neither true nor false", suggestion=advice
        )
    return program


def _check_cost_is_known(node: SyntaxNode) -> None:
    """Raise ExpressionError for a call whose cost the objects may choose."""
    if node.kind == "map" and node.name:
        raise ExpressionError(f"messages of protobuf can't be made here: {node.name}", node.offset)
    if node.kind != "call":
        return
    if node.name not in FUNCTIONS:
        raise ExpressionError(f"the cost of {node.name} is not known", node.offset, suggestion=_FUNCTIONS)
    last = node.parts[-1] if node.parts else node
    if node.name == "matches" and last.kind != "text":
        raise ExpressionError(
            "the pattern of matches is not a constant: an object could choose one that takes seconds",
            last.offset,
            suggestion="write the pattern as a text in quotes",
        )
    # cel-expr opens the name of a zone as a file: with /proc/self/fd/0 or a pipe, it would wait for ever.
    if node.name in TIME_PARTS and len(node.parts) > 1:
        if last.kind != "text":
            raise ExpressionError(
                f"the time zone of {node.name} is not a constant: cel-expr opens its name as a file",
                last.offset,
                suggestion="write the zone as a text in quotes, such as 'Europe/Berlin'",
            )
        if _ZONE_OFFSET.fullmatch(last.name) is None:
            try:
                check_zone(last.name)
            except ValueError as fault:
                raise ExpressionError(
                    str(fault),
                    last.offset,
                    suggestion="write an IANA name such as 'Europe/Berlin', or an offset such as '+02:00'",
                ) from None


def _compile_error(text: str, fault: str) -> ExpressionError:
    """The first fault of a text, at its place."""
    found = _ERROR.search(fault)
    if found is None:
        return ExpressionError(_plain(fault))
    line, column, message = int(found["line"]), int(found["column"]), found["message"].strip()
    message = message.replace(" (in container '')", "")
    lines = text.split("\n")
    if not 0 < line <= len(lines):
        return ExpressionError(_plain(message))
    if len(lines) > 1:
        message = f"{message} (line {line}, column {column} of the expression)"
    offset = sum(len(each) + 1 for each in lines[: line - 1]) + column - 1
    return ExpressionError(
        _plain(message),
        max(0, min(offset, len(text) - 1)),
        suggestion=_suggestion(message, text[offset : offset + 1]),
    )


def _suggestion(message: str, character: str) -> str | None:
    """What to write instead; `character` is the one at the place of the fault."""
    undeclared = _UNDECLARED.search(message)
    if undeclared is None:
        return None
    name = undeclared["name"]
    if name.partition(".")[0] == "change":
        return f"change has {', '.join(_CHANGE_FIELDS)}"
    if character == "(":
        return _NOT_HERE.get(name, _FUNCTIONS)
    return "the variables are obj, old and change; text in an expression needs quotes"


def _plain(message: str) -> str:
    """A message of cel-expr without the name of its status."""
    return _STATUS.sub("", message).replace(" : ", ": ")[:_LONGEST_MESSAGE]


def _article(kind: str) -> str:
    """The name of a type of CEL, in a sentence."""
    name = kind.partition("<")[0].lower()
    return "null" if name == "null" else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _unknown_values(tree: SyntaxNode) -> Iterator[UnknownValue]:
    for call in tree.all():
        if call.kind != "call" or call.name not in COMPARISONS:
            continue
        names = {side.name for side in call.parts if side.kind == "variable"}
        lists = [side.parts for side in call.parts if side.kind == "list"]
        texts = [each for parts in (call.parts, *lists) for each in parts if each.kind == "text"]
        for variable in names & _ENUMERATIONS.keys():
            values = tuple(map(str, _ENUMERATIONS[variable]))
            yield from (
                UnknownValue(variable, text.name, values, text.offset)
                for text in texts
                if text.name not in values
            )


def _reads(node: SyntaxNode, bound: frozenset[str]) -> Iterator[FieldRead]:
    """The reads within an expression; `bound` are the names of the comprehensions around it."""
    found = _field(node) or _null_check(node)
    if found is not None:
        if found.variable in VARIABLES and found.variable not in bound:
            yield found
        return
    for number, part in enumerate(node.parts):
        # The range of a comprehension, and the first value of its accumulator, are outside of it.
        yield from _reads(part, bound | frozenset(node.bound) if number > 1 else bound)


def _field(node: SyntaxNode) -> FieldRead | None:
    """A variable with the names below it; None for any other expression."""
    if node.kind == "variable":
        # The checker has joined the name of a variable that has dots, such as change.type.
        variable, *steps = node.name.split(".")
        return FieldRead(variable, tuple(steps), node.offset)
    if node.kind == "field":
        step, offset = node.name, node.offset + 1
    elif node.kind == "call" and node.name in FIELD_OPERATORS and node.parts[1].kind == "text":
        step, offset = node.parts[1].name, node.parts[1].offset
    else:
        return None
    below = _field(node.parts[0])
    return None if below is None else FieldRead(below.variable, (*below.steps, step), offset)


def _null_check(node: SyntaxNode) -> FieldRead | None:
    """The variable of `old == null` or `old != null`: it needs no field of the object."""
    if node.kind != "call" or node.name not in ("_==_", "_!=_"):
        return None
    one, other = node.parts
    if "null" not in (one.kind, other.kind):
        return None
    found = _field(one if other.kind == "null" else other)
    return None if found is None or found.steps else found._replace(is_null_check=True)
