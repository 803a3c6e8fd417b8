"""Messages of protobuf, read without their definition: the fields by number, as bytes and integers."""

from collections.abc import Iterator
from typing import Any

_FIXED = {1: 8, 5: 4}  # bytes of a value of fixed width, by wire type


def message_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message, in order: an integer for a varint, else bytes.

    Fields of fixed width are left out. Raises ValueError for bytes that are cut off, and for the wire types
    of groups, which nobody writes any more.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
        elif wire == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("the protobuf is cut off")
            yield tag >> 3, data[at : at + length]
            at += length
        elif wire in _FIXED:
            at += _FIXED[wire]
        else:
            raise ValueError(f"the protobuf has the wire type {wire}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer at an offset, and the offset behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
