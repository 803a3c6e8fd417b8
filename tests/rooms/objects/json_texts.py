"""JSON in every spelling that there is: escapes, spaces, repeated names, numbers of any length."""

import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st


class Fields(NamedTuple):
    """An object as it is written: names may repeat."""

    fields: Sequence[tuple[str, Any]]


class Number(NamedTuple):
    """A number as it is written."""

    text: str


_NUMBERS = [
    *(
        "0",
        "-0",
        "-0.0",
        "1",
        "12",
        "-1.5",
        "0E0",
        "1e5",
        "1E+2",
        "-12.5e-7",
        "0.1",
        "1.7976931348623157e308",
    ),
    *("9007199254740993", "18446744073709551616", "-340282366920938463463374607431768211456", "1" * 60),
]


def _go(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    units = text.encode("utf-16-be").hex()
    return '"' + "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)) + '"'


def _slashes(text: str) -> str:
    return json.dumps(text).replace("/", "\\/")


_SCALARS = st.sampled_from([None, True, False, "", "text", *map(Number, _NUMBERS)]) | st.text(max_size=6)


class _Writer:
    """Writes JSON, in one of three times as Go does."""

    def __init__(self, chance: random.Random) -> None:
        canonical = chance.random() < 1 / 3
        self._chance = chance
        self._spellings = [_go] if canonical else [_go, _go, _go, json.dumps, _slashes, _escaped]
        self._spaces = [""] if canonical else ["", "", "", "", "", " ", "\r\n\t"]

    def text(self, value: Any) -> str:
        match value:
            case Number():
                return value.text
            case Fields():
                return self._joined("{}", [self._field(name, each) for name, each in value.fields])
            case list():
                return self._joined("[]", [self.text(each) for each in value])
            case str():
                return self._chance.choice(self._spellings)(value)
            case _:
                return json.dumps(value)

    def _space(self) -> str:
        return self._chance.choice(self._spaces)

    def _field(self, name: str, value: Any) -> str:
        return f"{self.text(name)}{self._space()}:{self._space()}{self.text(value)}"

    def _joined(self, brackets: str, parts: Sequence[str]) -> str:
        inside = ",".join(f"{self._space()}{part}{self._space()}" for part in parts)
        return f"{brackets[0]}{inside or self._space()}{brackets[1]}"


class _Maker:
    """Makes objects of some names and some values, so that many are there twice."""

    def __init__(self, chance: random.Random, names: Sequence[str], scalars: Sequence[Any]) -> None:
        self._chance = chance
        self._names = [*names, *names, *names, "", "\u00e9", "\U0001f600/<&>"]
        self._scalars = scalars

    def fields(self, most: int, depth: int = 3) -> list[tuple[str, Any]]:
        count = self._chance.randint(0, most)
        return [(self._chance.choice(self._names), self._value(depth)) for _ in range(count)]

    def nested(self, depth: int) -> Any:
        value = self._value(1)
        for level in range(depth):
            value = [value] if level % 2 else Fields([("deep", value)])
        return value

    def _value(self, depth: int) -> Any:
        shape = self._chance.random()
        if depth and shape < 0.4:
            return Fields(self.fields(3, depth - 1))
        if depth and shape < 0.55:
            return [self._value(depth - 1) for _ in range(self._chance.randint(0, 3))]
        return self._chance.choice(self._scalars)


@st.composite
def objects(
    draw: st.DrawFn,
    names: Sequence[str],
    values: Sequence[Any] = (),
    *,
    called: str = "a",
    usual: Sequence[tuple[str, Any]] = (),
) -> bytes:
    """The JSON of an object that has a name, and whatever else; most names in it are of `names`.

    Values are often of `values`, and half of the objects have each of the `usual` fields. Where names
    are there twice, the object may have another name, or none.
    """
    chance = random.Random(draw(st.integers(0, 2**32)))
    made = _Maker(chance, names, [*values, *draw(st.lists(_SCALARS, min_size=1, max_size=3))])
    metadata = Fields([*made.fields(2), ("name", called), *made.fields(3)])
    deep = [("deep", made.nested(chance.choice([2, 200])))] if chance.random() < 0.3 else []
    expected = [field for field in usual if chance.random() < 0.5]
    whole = Fields([*made.fields(3), ("metadata", metadata), *deep, *expected, *made.fields(3)])
    return _Writer(chance).text(whole).encode()
