"""The syntax tree of a compiled expression.

cel-expr serializes it as a message of protobuf, which cel-spec's checked.proto and syntax.proto define. The
few fields that matter are read here, so that no expression loads protobuf.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from declctl.kit.protobuf import message_fields

# The numbers of fields in these files.
_ANY_TYPE, _ANY_VALUE = 1, 2
_CHECKED, _PARSED = (4, 5), (2, 3)  # the expression and its source, in CheckedExpr and ParsedExpr
_SOURCE_POSITIONS = 4
_ID, _CONSTANT, _STRUCT, _COMPREHENSION = 2, 3, 8, 9
_CONSTANT_TEXT, _NULL = 6, b"\x08\x00"
_ENTRY_PARTS = (3, 4)  # of a map: a key and its value
_TEST_ONLY = 3  # of a field
_BOUND = (1, 8, 3)  # of a comprehension: the names of its variables; the accumulator is the last

Kind = Literal["null", "text", "constant", "variable", "field", "call", "list", "map", "comprehension"]

_NO_NAME = 99
# The kinds of expressions, by number: the number of the name, and those of the parts in their order.
_KINDS: Mapping[int, tuple[Kind, int, tuple[int, ...]]] = {
    _CONSTANT: ("constant", _NO_NAME, ()),
    4: ("variable", 1, ()),
    5: ("field", 2, (1,)),
    6: ("call", 2, (1, 3)),
    7: ("list", _NO_NAME, (1,)),
    _STRUCT: ("map", 1, (2,)),
    _COMPREHENSION: ("comprehension", _NO_NAME, (2, 4, 5, 6, 7)),
}


class SyntaxNode(NamedTuple):
    """An expression within an expression."""

    kind: Kind
    offset: int  # in the text, in characters from 0
    # A constant text; the name of a variable, a field or a function; the type of a map that is a message.
    name: str = ""
    # The operand of a field; the target and the arguments of a call; elements; keys and values. Of a
    # comprehension: its range, the accumulator's first value, the condition, the step and the result.
    parts: "tuple[SyntaxNode, ...]" = ()
    bound: tuple[str, ...] = ()  # of a comprehension: its variables; the last one is the accumulator
    size: int = 0  # of a constant, in bytes
    is_test: bool = False  # of a field: `has(…)` asks whether it is there

    def all(self) -> "Iterator[SyntaxNode]":
        """The node, and all nodes within it."""
        yield self
        for part in self.parts:
            yield from part.all()


def tree_of(serialized: bytes) -> SyntaxNode:
    """The syntax tree of a serialized expression, of which the types may be checked or not."""
    message = _Message(serialized)
    expression, source = _PARSED if message.content(_ANY_TYPE).endswith(b"ParsedExpr") else _CHECKED
    content = _Message(message.content(_ANY_VALUE))
    positions: dict[int, int] = {}
    for entry in _Message(content.content(source)).all(_SOURCE_POSITIONS):
        pair = _Message(entry)
        positions[pair.number(1)] = pair.number(2)
    return _node(content.content(expression), positions)


def _node(data: bytes, positions: Mapping[int, int]) -> SyntaxNode:
    expression = _Message(data)
    offset = positions.get(expression.number(_ID), 0)
    number, content = next(expression.parts(), (_CONSTANT, b""))
    kind, name_at, part_numbers = _KINDS[number]
    if number == _CONSTANT:
        if content == _NULL:
            return SyntaxNode("null", offset)
        # Only a constant text has this field, also an empty one.
        for text in _Message(content).all(_CONSTANT_TEXT):
            return SyntaxNode("text", offset, text.decode(), size=len(text))
        return SyntaxNode("constant", offset, size=len(content))
    message = _Message(content)
    parts = [part for at in part_numbers for part in message.all(at)]
    if number == _STRUCT:
        entries = [_Message(entry) for entry in parts]
        parts = [part for entry in entries for at in _ENTRY_PARTS for part in entry.all(at)]
    bound = tuple(message.content(at).decode() for at in _BOUND) if number == _COMPREHENSION else ()
    nodes = tuple(_node(part, positions) for part in parts)
    is_test = kind == "field" and message.number(_TEST_ONLY) == 1
    return SyntaxNode(kind, offset, message.content(name_at).decode(), nodes, bound, is_test=is_test)


class _Message:
    """The fields of one message of protobuf, by number."""

    def __init__(self, data: bytes) -> None:
        self._fields: list[tuple[int, int | bytes]] = list(message_fields(data))

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
