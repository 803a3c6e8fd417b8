"""Regular expressions that a type and an API server read alike.

A type is checked by Python's `re`, a custom resource by Go's `regexp` (RE2). What only one of them knows, and
what the two read differently, is refused: a pattern that stays means the same to both. One difference is
left: Python's `$` also matches before a line break at the end of a text, and the server's does not.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

_MOST_REPEATS: Final = 1000  # RE2 refuses larger counts
_FLAGS: Final = frozenset("ims")  # that both have

# Escapes, with what to write instead. Python's classes are those of Unicode, and RE2's those of ASCII.
_ESCAPES: Final[Mapping[str, str]] = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "s": r"[ \t\n\f\r]",
    "S": r"[^ \t\n\f\r]",
    "b": "",
    "B": "",
    "Z": "$",
    "z": "$",
    "u": "the character itself",
    "U": "the character itself",
    "N": "the character itself",
}
_SHARED: Final = frozenset("Aafnrtvx")
# Groups and repetitions that only Python has.
_GROUP: Final = re.compile(r"\(\?(?:P<\w+>|(?P<flags>[a-zA-Z]*)(?P<minus>-[a-zA-Z]+)?(?P<end>[:)]))?")
_COUNT: Final = re.compile(r"\{(\d*)(,?)(\d*)\}")


class PatternFault(NamedTuple):
    """A part of a pattern that a server can't read, or reads in another way."""

    message: str
    suggestion: str


def pattern_fault(pattern: str) -> PatternFault | None:
    """The first reason why a pattern can't be that of a schema; None if Python and RE2 read it alike."""
    try:
        _compiled(pattern)
    except re.error as error:
        return PatternFault(f"the pattern is no regular expression: {error}", "see Python's module re")
    return next(_faults(pattern), None)


@lru_cache(256)
def go_pattern(pattern: str) -> re.Pattern[str] | None:
    """A pattern of a server as Python's `re` can search for it; None for one that only Go reads."""
    made, in_class = "", False
    for part in re.findall(r"\\.|\[\^?\]?|.", pattern, re.DOTALL):
        in_class = (
            not in_class if (part[0] == "[" and not in_class) or (part == "]" and in_class) else in_class
        )
        ends_text = part == r"\z" or (part == "$" and not in_class and "(?m" not in pattern)
        made += r"\Z" if ends_text else part
    try:
        return _compiled(made, re.ASCII)
    except re.error:
        return None


def _compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of [[, which may become a nested class
        return re.compile(pattern, flags)


def _faults(pattern: str) -> Iterator[PatternFault]:
    at, in_class = 0, False
    while at < len(pattern):
        rest = pattern[at:]
        if rest[0] == "\\":
            yield from _escape(rest, in_class=in_class)
            at += 2
        elif in_class:
            if rest.startswith("[:"):
                yield PatternFault(
                    "[: begins a class of RE2, and none of Python", r"write \[ for the bracket"
                )
            in_class, at = rest[0] != "]", at + 1
        elif rest[0] == "[":
            in_class = True
            # A bracket that is the first one in the class stands for itself.
            at += 1 + (rest[1:2] == "^")
            at += pattern[at : at + 1] == "]"
        else:
            yield from _group(rest)
            step, found = _repetition(rest)
            yield from found
            at += step


def _escape(rest: str, *, in_class: bool) -> Iterator[PatternFault]:
    letter = rest[1:2]
    if letter in _ESCAPES:
        instead = _ESCAPES[letter]
        if letter in "dDwWsS":
            reason = "matches characters of all scripts in Python, and of ASCII at the server"
        else:
            reason = "is not the same in RE2, by which the server reads patterns"
        yield PatternFault(
            f"\\{letter} {reason}", f"write {instead}" if instead else "spell out what may stand there"
        )
    elif letter.isdigit():
        yield PatternFault(
            f"\\{letter} is a group that came before, or a number of base 8: RE2 has none",
            "write the character, or repeat the group",
        )
    elif letter == "x" and not re.match(r"\\x[0-9A-Fa-f]{2}", rest):
        yield PatternFault(r"\x is not followed by two digits of base 16", "write the character itself")
    elif (letter.isalpha() and letter not in _SHARED) or not letter.isascii() or (letter == "A" and in_class):
        yield PatternFault(f"\\{letter} is no escape of RE2", "write the character itself")


def _group(rest: str) -> Iterator[PatternFault]:
    if not rest.startswith("(?"):
        return
    if rest.startswith(("(?=", "(?!", "(?<=", "(?<!")):
        yield PatternFault(
            "RE2, by which the server reads patterns, can't look ahead or behind",
            "list what may stand there, or add a rule: declctl.rule(\"!self.startsWith('x')\")",
        )
        return
    found = _GROUP.match(rest)
    flags = "" if found is None else (found["flags"] or "") + (found["minus"] or "").removeprefix("-")
    if found is None or (found["end"] is None and not rest.startswith("(?P<")) or set(flags) - _FLAGS:
        yield PatternFault(f"RE2 has no group that begins with {rest[:4]}", "use ( ) or (?: )")


def _repetition(rest: str) -> tuple[int, Iterator[PatternFault]]:
    """The length of the part that a pattern begins with, and what is wrong with it as a repetition."""
    count = _COUNT.match(rest)
    if count is None and rest[0] not in "*+?":
        return 1, iter(())
    found: list[PatternFault] = []
    length = 1
    if count is not None:
        length = len(count[0])
        if not count[1]:
            found.append(PatternFault(f"{count[0]} is a text for RE2", f"write {{0,{count[3]}}}"))
        if max(int(count[1] or 0), int(count[3] or 0)) > _MOST_REPEATS:
            found.append(
                PatternFault(
                    f"RE2 repeats at most {_MOST_REPEATS:,} times",
                    "bound the length: msgspec.Meta(max_length=…)",
                )
            )
    if rest[length : length + 1] == "+":
        found.append(PatternFault(f"RE2 has no possessive {rest[: length + 1]}", "leave the second + out"))
    return length + (rest[length : length + 1] == "?"), iter(found)
