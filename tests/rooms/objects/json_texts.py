"""JSON in every spelling that there is: escapes, spaces, repeated names, numbers of any length."""

import json
from collections.abc import Sequence

from hypothesis import strategies as st

Texts = st.SearchStrategy[str]

_SPACES = st.sampled_from(["", "", "", " ", "\r\n\t"])
_NUMBERS = (
    st.integers(-(10**40), 10**40).map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.sampled_from(
        ["-0", "-0.0", "0E0", "1e5", "1E+2", "-12.5e-7", "9007199254740993", "18446744073709551616"]
    )
)


def _go(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _ascii(text: str) -> str:
    return json.dumps(text)


def _slashes(text: str) -> str:
    return json.dumps(text).replace("/", "\\/")


def _all_escaped(text: str) -> str:
    units = text.encode("utf-16-be").hex()
    return '"' + "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)) + '"'


def _array(elements: Sequence[str], space: str) -> str:
    return f"[{space}{f'{space},{space}'.join(elements)}{space}]"


def object_text(fields: Sequence[tuple[str, str]], space: str = "") -> str:
    """The JSON of an object; names and values are JSON already."""
    return "{" + space + f"{space},{space}".join(f"{n}{space}:{space}{v}" for n, v in fields) + space + "}"


def strings(texts: st.SearchStrategy[str]) -> Texts:
    """These texts, spelled in one way or another."""
    return st.builds(
        lambda spell, text: spell(text), st.sampled_from([_go, _go, _ascii, _slashes, _all_escaped]), texts
    )


def fields(names: Sequence[str], values: Texts, *, most: int = 4) -> st.SearchStrategy[list[tuple[str, str]]]:
    """Fields of an object, mostly with these names; some may be there twice."""
    some = st.sampled_from(names)
    return st.lists(st.tuples(strings(some | some | st.text(max_size=3)), values), max_size=most)


def values(names: Sequence[str]) -> Texts:
    """The JSON of any value, whose objects mostly have these names."""
    scalars = st.sampled_from(["null", "true", "false"]) | _NUMBERS
    leaves = scalars | strings(st.text(max_size=8) | st.sampled_from(names))
    return st.recursive(
        leaves,
        lambda inner: (
            st.builds(_array, st.lists(inner, max_size=3), _SPACES)
            | st.builds(object_text, fields(names, inner), _SPACES)
        ),
        max_leaves=10,
    )


@st.composite
def objects(draw: st.DrawFn, names: Sequence[str], *, metadata: Sequence[str] = ()) -> bytes:
    """The JSON of an object that has a name: its fields mostly have these names, its metadata others too."""
    inside = draw(fields([*names, *metadata], values(names)))
    inside.insert(draw(st.integers(0, len(inside))), ('"name"', '"a"'))
    outside = draw(fields(names, values(names)))
    space = draw(_SPACES)
    outside.insert(draw(st.integers(0, len(outside))), ('"metadata"', object_text(inside, space)))
    return object_text(outside, space).encode()
