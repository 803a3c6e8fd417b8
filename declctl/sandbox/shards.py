"""Shard selectors: which objects of a LIST or WATCH, by a range of hashes, as KEP-5866 has them.

The real server reads an expression in CEL. Here it has to have the form in which clients write it:
`shardRange(FIELD, 'START', 'END')`, or several of them with `||` between. The server refuses what it can't
read with 500 and no reason.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from declctl.objects.shards import fnv1a
from declctl.sandbox.history import Stored
from declctl.sandbox.status import Refusal

_UID: Final = "object.metadata.uid"
_NAMESPACE: Final = "object.metadata.namespace"
_CALL: Final = re.compile(r"\s*(\w+)\(([^()]*)\)\s*")
_PATH: Final = re.compile(r"[A-Za-z_][\w.]*")
_TEXT: Final = re.compile(r"""'[^'"\\]*'|"[^'"\\]*\"""")
_DIGITS: Final = 16
_END: Final = f"0x1{'0' * _DIGITS}"  # of all hashes, exclusive


@dataclass(frozen=True, slots=True)
class ShardRange:
    """The hashes from `start` on that are less than `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ShardSelector:
    """Selects the objects with a hash in one of the ranges. `by` is the path of what is hashed."""

    by: str
    ranges: Sequence[ShardRange]

    @classmethod
    def parse(cls, text: str) -> "ShardSelector | None":
        """From the query parameter; None if it is empty, refused with 500 if it can't be read."""
        if not text:
            return None
        if not text.strip():
            raise _unreadable("empty shard selector is not allowed; omit the parameter for unfiltered lists")
        read = [_range(part) for part in text.split("||")]
        by = read[0][0]
        for other, _ in read:
            if other != by:
                raise _unreadable(f'all shard ranges must use the same field, got "{by}" and "{other}"')
        return cls(by, tuple(found for _, found in read))

    def __str__(self) -> str:
        """As the server repeats it in an answer."""
        return " || ".join(
            f"shardRange({self.by}, '{_shown(each.start)}', '{_shown(each.end)}')" for each in self.ranges
        )

    def matches(self, stored: Stored) -> bool:
        """Whether the object is selected; it stays so, as neither its uid nor its namespace changes."""
        found = fnv1a(stored.uid if self.by == _UID else stored.namespace)
        return any(each.start <= found < each.end for each in self.ranges)


def _range(text: str) -> tuple[str, ShardRange]:
    """The path and the range of one call."""
    call = _CALL.fullmatch(text)
    if call is None:
        if _PATH.fullmatch(text.strip()):
            raise _unreadable("unexpected expression kind 3; expected shardRange() call or || operator")
        raise _unreadable(f"CEL parse error: Syntax error: this is no call of shardRange: {text.strip()}")
    if call[1] != "shardRange":
        raise _unreadable(f'unsupported function "{call[1]}"; only shardRange() and || are allowed')
    arguments = [each.strip() for each in call[2].split(",")] if call[2].strip() else []
    if len(arguments) != 3:
        raise _unreadable(f"shardRange() requires exactly 3 arguments, got {len(arguments)}")
    by, start, end = arguments
    if not _PATH.fullmatch(by):
        raise _unreadable(
            f"shardRange() first argument: expected field path (e.g. {_UID}), got expression kind 5"
        )
    if by not in (_UID, _NAMESPACE):
        raise _unreadable(f'unsupported field path "{by}"; supported: {_UID}, {_NAMESPACE}')
    found = ShardRange(_bound(start, "hexStart"), _bound(end, "hexEnd"))
    if found.start >= found.end:
        raise _unreadable(
            f"shard range start {_shown(found.start)} must be less than end {_shown(found.end)}"
        )
    return by, found


def _bound(literal: str, name: str) -> int:
    if literal.isdecimal():
        raise _unreadable(f"{name} must be a string literal, got int64")
    if not _TEXT.fullmatch(literal):
        raise _unreadable(f"{name} must be a string literal (e.g. '0xff'), got expression kind 3")
    text = literal[1:-1]
    if not text.startswith("0x"):
        raise _unreadable(f"{name} must have '0x' prefix, got \"{text}\"")
    digits = text.removeprefix("0x")
    if not digits:
        raise _unreadable(f"{name}: hex value is required after '0x'")
    if len(digits) > len(_END) - 2:
        raise _unreadable(f'{name}: hex value too long ({len(digits)} chars, max 17): "{digits}"')
    if wrong := re.search(r"[^0-9a-f]", digits):
        raise _unreadable(f'{name}: invalid hex character "{wrong[0]}" in "{text}"')
    if len(digits) > _DIGITS and text != _END:
        raise _unreadable(f"{name}: 17-digit hex value must be '{_END}' (2^64), got \"{text}\"")
    if len(digits) < _DIGITS:
        meant = f"0x{digits.zfill(_DIGITS)}"
        raise _unreadable(
            f'{name} must be a 0x-prefixed 16-digit hex value, got "{text}" (did you mean "{meant}"?)'
        )
    return int(digits, 16)


def _shown(bound: int) -> str:
    return f"{bound:#018x}"


def _unreadable(why: str) -> Refusal:
    return Refusal(500, "", f"invalid shard selector: {why}")
