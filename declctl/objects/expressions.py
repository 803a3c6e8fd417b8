"""Expressions in CEL, the language of Kubernetes' own policies, over objects and changes.

`Expression` compiles a text with cel-expr (CEL in C++), which is imported with the first expression. It gets
only the fields that the text names: `obj.status.phase` is read out of the JSON of an object without decoding
the rest. One field costs a seventh of a whole object, because cel-expr converts every value that it gets.

cel-expr bounds the work: an expression is at most 32 levels deep and 100,000 characters long, and its
comprehensions take 10,000 steps together. It does not bound the depth of a value, and overflows the stack at
several thousand levels. So a deeply nested value is an error here. Nor does it bound the size of the texts
that a comprehension makes, which take gigabytes and seconds within that budget. So a comprehension that joins
texts is an error here where a long text meets a long list. It holds the interpreter lock while it evaluates.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import msgspec

from declctl.objects.frame import FILLED_IN, UNREADABLE
from declctl.objects.record import ChangeReason, ChangeType, Notification, Record

if TYPE_CHECKING:
    from cel_expr_python import cel

VARIABLES = ("obj", "old", "change")
_CHANGE_FIELDS = ("type", "reason", "initial")
_ENUMERATIONS = {"change.type": ChangeType, "change.reason": ChangeReason}
_MOST_LEVELS = 500  # of a value; cel-expr crashes at about 5000
_MOST_STEPS = 10_000  # of all comprehensions of an evaluation; the budget of cel-expr
_MOST_JOINED = 2**25  # characters that the joins of a comprehension may take, one text for each step
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
        tree = self._program.serialize()
        self.reads: Sequence[FieldRead] = _reads(tree)
        self._join_levels = _join_levels(tree)
        self._tree = tree
        self._variables = frozenset(read.variable for read in self.reads)
        self._fields = {name: _Fields(self.reads, name) for name in ("obj", "old") if name in self._variables}

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
        for name, fields in self._fields.items():
            record = records.get(name)
            data[name] = None if record is None else fields.read(record)
        if self._join_levels:
            _limit_joins([data[name] for name in self._fields], self._join_levels)
        try:
            result = self._program.eval(data=data)
            value = result.value()
        except Exception as fault:  # noqa: BLE001 - RuntimeError for a spent budget; and any other of C++
            raise EvaluationFailed(_plain(str(fault))) from None
        if value is True or value is False:
            return value
        kind = result.type().name()
        if kind != "ERROR":
            raise EvaluationFailed(f"the result is {_article(kind)}, and neither true nor false")
        # An error comes back as its text, which Python would take for true.
        raise EvaluationFailed(_plain(str(value)) + self._advice(str(value), records))

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
        self._decode = self._decode_whole if tree is None else msgspec.json.Decoder(_struct(tree)).decode

    def read(self, record: Record) -> dict[str, Any]:
        """The fields of an object. Raises EvaluationFailed."""
        try:
            text = record.layout.codec.decode(record.frame)
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


def _struct(tree: Mapping[str, Any]) -> Any:
    """The type by which msgspec decodes the fields of a tree into dictionaries, and skips all others."""
    fields = {name: Any if below is None else _struct(below) | None for name, below in tree.items()}
    return _typed_dict("Fields", fields, total=False)


def _limit_joins(values: Sequence[object], levels: int) -> None:
    """Raise EvaluationFailed if comprehensions of so many levels may join too much of these values.

    Any join may have the longest text in each of its steps, so this limits time and memory from above.
    """
    longest = largest = 0
    rest: list[Any] = list(values)
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            longest = max(longest, len(value))
        elif isinstance(value, dict | list):
            largest = max(largest, len(value))
            rest.extend(value)
            if isinstance(value, dict):
                rest.extend(value.values())
    steps = min(largest**levels, _MOST_STEPS)
    if steps * longest > _MOST_JOINED:
        raise EvaluationFailed(
            f"it joins texts in a comprehension: up to {steps:,} steps and a text of {longest:,} characters "
            f"are more than {_MOST_JOINED:,} characters together"
        )


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


# The rest reads the syntax tree of a compiled expression. It is a message of protobuf, as cel-spec's
# checked.proto and syntax.proto define it. The few fields that matter are read here, so that no expression
# loads protobuf. The numbers are those of the fields in these files.

_ANY_VALUE = 2
_CHECKED_EXPR, _CHECKED_SOURCE, _SOURCE_POSITIONS = 4, 5, 4
_ID, _CONST, _IDENT, _SELECT, _CALL, _COMPREHENSION = 2, 3, 4, 5, 6, 9
_CONST_STRING, _NULL = 6, b"\x08\x00"
_CALL_FUNCTION, _CALL_ARGUMENTS = 2, 3
_BINDINGS = (1, 3, 8)  # of a comprehension: the names of its variables
_IN_SCOPE = (5, 6, 7)  # its condition, step and result, which see these names
_EVERY_STEP = (5, 6)  # its condition and step, which are evaluated for each element
_ACCUMULATOR = 3
_COMPARISONS = (b"_==_", b"_!=_", b"@in")
_LIST, _ELEMENTS = 7, 1
_FIELD_OPERATORS = ("_[_]", "_?._", "_[?_]")  # obj["a"], obj.?a, obj[?"a"]


def _reads(serialized: bytes) -> Sequence[FieldRead]:
    """The fields that an expression reads, each place once."""
    expression, positions = _root(serialized)
    return tuple(dict.fromkeys(_walk(expression, positions, frozenset())))


def _root(serialized: bytes) -> tuple["_Message", Mapping[int, int]]:
    """The syntax tree, and the offset of each of its expressions in the text, by their ids."""
    checked = _Message(_Message(serialized).content(_ANY_VALUE))
    positions: dict[int, int] = {}
    for entry in _Message(checked.content(_CHECKED_SOURCE)).all(_SOURCE_POSITIONS):
        pair = _Message(entry)
        positions[pair.number(1)] = pair.number(2)
    return _Message(checked.content(_CHECKED_EXPR)), positions


def _unknown_values(serialized: bytes) -> Iterator[UnknownValue]:
    root, positions = _root(serialized)
    for expression in _all(root):
        call = _Message(expression.content(_CALL))
        if call.content(_CALL_FUNCTION) not in _COMPARISONS:
            continue
        sides = [_Message(side) for side in call.all(_CALL_ARGUMENTS)]
        names = {_Message(side.content(_IDENT)).content(1).decode() for side in sides}
        texts = [_Message(text) for side in sides for text in _Message(side.content(_LIST)).all(_ELEMENTS)]
        for variable in names & _ENUMERATIONS.keys():
            values = tuple(map(str, _ENUMERATIONS[variable]))
            for side in (*sides, *texts):
                # Only a constant text has this field, also an empty one.
                for constant in _Message(side.content(_CONST)).all(_CONST_STRING):
                    value = constant.decode()
                    if value not in values:
                        yield UnknownValue(variable, value, values, positions.get(side.number(_ID), 0))


def _all(expression: "_Message") -> Iterator["_Message"]:
    """An expression, and all expressions within it."""
    yield expression
    for number, part in expression.parts():
        if number == _COMPREHENSION:
            inner = [each for at, each in _Message(part).parts() if at not in _BINDINGS]
        else:
            inner = [] if number in (_CONST, _IDENT) else [*_operands(number, _Message(part))]
        for each in inner:
            yield from _all(_Message(each))


def _join_levels(serialized: bytes) -> int:
    """How many comprehensions are around the innermost `+`; 0 if none is around one."""
    return max(_joins(_root(serialized)[0], 0, frozenset()), default=0)


def _joins(expression: "_Message", level: int, lists: frozenset[bytes]) -> Iterator[int]:
    """The level of each `+`; not of those with which map and filter append to `lists`, their results."""
    comprehension = _Message(expression.content(_COMPREHENSION))
    lists |= set(comprehension.all(_ACCUMULATOR))
    for number, part in comprehension.parts():
        if number not in _BINDINGS:
            yield from _joins(_Message(part), level + (number in _EVERY_STEP), lists)
    call = _Message(expression.content(_CALL))
    if call.content(_CALL_FUNCTION) == b"_+_":
        first = _Message(next(call.all(_CALL_ARGUMENTS)))
        if _Message(first.content(_IDENT)).content(1) not in lists:
            yield level
    for number, part in expression.parts():
        if number not in (_CONST, _IDENT, _COMPREHENSION):
            for inner in _operands(number, _Message(part)):
                yield from _joins(_Message(inner), level, lists)


def _walk(expression: "_Message", positions: Mapping[int, int], bound: frozenset[str]) -> Iterator[FieldRead]:
    """The reads within an expression; `bound` are the names of the comprehensions around it."""
    found = _field(expression, positions) or _null_check(expression, positions)
    if found is not None:
        if found.variable in VARIABLES and found.variable not in bound:
            yield found
        return
    comprehension = expression.content(_COMPREHENSION)
    names = bound
    if comprehension:
        message = _Message(comprehension)
        names = bound | {message.content(number).decode() for number in _BINDINGS}
        for number, part in message.parts():
            if number not in _BINDINGS:
                yield from _walk(_Message(part), positions, names if number in _IN_SCOPE else bound)
        return
    # Selects, calls, lists and maps: their operands, arguments and entries are messages, too.
    for number, part in expression.parts():
        if number not in (_CONST, _IDENT):
            for inner in _operands(number, _Message(part)):
                yield from _walk(_Message(inner), positions, bound)


def _operands(number: int, message: "_Message") -> Iterator[bytes]:
    if number == _SELECT:
        yield message.content(1)
    elif number == _CALL:
        yield from message.all(1)  # the target
        yield from message.all(_CALL_ARGUMENTS)
    elif number == _LIST:
        yield from message.all(_ELEMENTS)
    elif number == 8:  # a map: its entries have a key and a value
        for entry in message.all(2):
            for part in (3, 4):
                yield from _Message(entry).all(part)


def _field(expression: "_Message", positions: Mapping[int, int]) -> FieldRead | None:
    """A variable with the names below it; None for any other expression."""
    offset = positions.get(expression.number(_ID), 0)
    if name := expression.content(_IDENT):
        # The checker has joined the name of a variable that has dots, such as change.type.
        variable, *steps = _Message(name).content(1).decode().split(".")
        return FieldRead(variable, tuple(steps), offset)
    operand, step = b"", b""
    if select := expression.content(_SELECT):
        operand, step, offset = _Message(select).content(1), _Message(select).content(2), offset + 1
    elif call := expression.content(_CALL):
        message = _Message(call)
        if message.content(_CALL_FUNCTION).decode() in _FIELD_OPERATORS:
            operand, key = message.all(_CALL_ARGUMENTS)
            step = _Message(_Message(key).content(_CONST)).content(_CONST_STRING)
            offset = positions.get(_Message(key).number(_ID), offset)
    if not step:
        return None
    below = _field(_Message(operand), positions)
    return None if below is None else FieldRead(below.variable, (*below.steps, step.decode()), offset)


def _null_check(expression: "_Message", positions: Mapping[int, int]) -> FieldRead | None:
    """The variable of `old == null` or `old != null`: it needs no field of the object."""
    call = _Message(expression.content(_CALL))
    if call.content(_CALL_FUNCTION) not in (b"_==_", b"_!=_"):
        return None
    one, other = map(_Message, call.all(_CALL_ARGUMENTS))
    if other.content(_CONST) == _NULL:
        found = _field(one, positions)
    else:
        found = _field(other, positions) if one.content(_CONST) == _NULL else None
    return None if found is None or found.steps else found._replace(is_null_check=True)


class _Message:
    """The fields of one message of protobuf, by number."""

    def __init__(self, data: bytes) -> None:
        self._fields: list[tuple[int, int | bytes]] = list(_fields(data))

    def content(self, number: int) -> bytes:
        """The bytes of a field; empty if it is missing."""
        return next(self.all(number), b"")

    def number(self, number: int) -> int:
        """The integer of a field; 0 if it is missing."""
        return next((v for n, v in self._fields if n == number and isinstance(v, int)), 0)

    def all(self, number: int) -> Iterator[bytes]:
        """The bytes of a repeated field."""
        return (value for n, value in self._fields if n == number and isinstance(value, bytes))

    def parts(self) -> Iterator[tuple[int, bytes]]:
        """All fields that have bytes."""
        return ((number, value) for number, value in self._fields if isinstance(value, bytes))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
        else:
            size = {1: 8, 5: 4}.get(kind, 0)
            if kind == 2:
                size, at = _varint(data, at)
            yield number, data[at : at + size]
            at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer at an offset, and the offset behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
