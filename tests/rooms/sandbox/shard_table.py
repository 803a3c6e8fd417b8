"""Shard selectors that a server refuses, and its words: for the sandbox and for a real one."""

_LOW, _HIGH = "'0x0000000000000000'", "'0x8000000000000000'"
_UID = "object.metadata.uid"
GOOD = f"shardRange({_UID}, {_LOW}, {_HIGH})"

REFUSED: dict[str, str] = {
    " ": "empty shard selector is not allowed; omit the parameter for unfiltered lists",
    "shard": "unexpected expression kind 3; expected shardRange() call or || operator",
    f"hash({_UID}, {_LOW}, {_HIGH})": 'unsupported function "hash"; only shardRange() and || are allowed',
    f"{GOOD} || f()": 'unsupported function "f"; only shardRange() and || are allowed',
    f"{GOOD} && {GOOD}": "",  # read as CEL by a real server
    f"{GOOD} ||": "CEL parse error: Syntax error: ",
    f"{GOOD} {GOOD}": "CEL parse error: Syntax error: ",
    "shardRange()": "shardRange() requires exactly 3 arguments, got 0",
    f"shardRange({_UID}, {_LOW})": "shardRange() requires exactly 3 arguments, got 2",
    f"shardRange('{_UID}', {_LOW}, {_HIGH})": (
        f"shardRange() first argument: expected field path (e.g. {_UID}), got expression kind 5"
    ),
    f"shardRange(metadata.uid, {_LOW}, {_HIGH})": (
        f'unsupported field path "metadata.uid"; supported: {_UID}, object.metadata.namespace'
    ),
    f"shardRange({_UID}, 0, 9)": "hexStart must be a string literal, got int64",
    f"shardRange({_UID}, {_LOW}, end)": (
        "hexEnd must be a string literal (e.g. '0xff'), got expression kind 3"
    ),
    f"shardRange({_UID}, '8000000000000000', {_HIGH})": (
        "hexStart must have '0x' prefix, got \"8000000000000000\""
    ),
    f"shardRange({_UID}, '0x', {_HIGH})": "hexStart: hex value is required after '0x'",
    f"shardRange({_UID}, {_LOW}, '0x8')": (
        'hexEnd must be a 0x-prefixed 16-digit hex value, got "0x8" (did you mean "0x0000000000000008"?)'
    ),
    f"shardRange({_UID}, {_LOW}, '0xA000000000000000')": (
        'hexEnd: invalid hex character "A" in "0xA000000000000000"'
    ),
    f"shardRange({_UID}, {_LOW}, '0x20000000000000000')": (
        "hexEnd: 17-digit hex value must be '0x10000000000000000' (2^64), got \"0x20000000000000000\""
    ),
    f"shardRange({_UID}, {_LOW}, '0x100000000000000000')": (
        'hexEnd: hex value too long (18 chars, max 17): "100000000000000000"'
    ),
    f"shardRange({_UID}, {_HIGH}, {_HIGH})": (
        "shard range start 0x8000000000000000 must be less than end 0x8000000000000000"
    ),
    f"{GOOD} || shardRange(object.metadata.namespace, {_LOW}, {_HIGH})": (
        f'all shard ranges must use the same field, got "{_UID}" and "object.metadata.namespace"'
    ),
}
"""The beginning of the reason, by the selector; the server says `invalid shard selector: ` before it."""
