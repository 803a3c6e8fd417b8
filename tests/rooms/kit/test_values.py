"""Values for people and scripts: figures, texts of others, documents, and names of hosts."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.kit.documents import document_of
from declctl.kit.figures import age, byte_size, count, duration, number, rate
from declctl.kit.files import shown
from declctl.kit.hosts import ServerUrl, is_loopback
from declctl.kit.text import excerpt, one_line, visible
from tests.rooms.kit.figure_examples import COUNTS, RATES

# Each figure, and how it is written.
DURATIONS = """
    0 0ms  1e-8 0ms  0.000012 0.012ms  0.00034 0.34ms  0.001 1ms  0.0034 3.4ms  0.01234 12.3ms  0.0125 12.5ms
    0.34 340ms  0.9994 999ms  0.9996 1s  1 1s  1.25 1.25s  3 3s  12.34 12.3s  99.96 100s  100 100s  150 2m
    3000 50m  7200 2h  172800 2d
"""
AGES = """
    -3 0s  0.9 0s  42.9 42s  119 119s  120 2m  7199 119m  7200 2h  86399 23h  86400 1d  34560000 400d
    345600000 4,000d
"""
SIZES = """
    0 0B  812 812B  1023 1,023B  1024 1Ki  12800 12.5Ki  812345 793Ki  3145728 3Mi  1610612736 1.5Gi
    5497558138880 5,120Gi
"""
NUMBERS = "0.0 0  0.003 0.003  1.0 1  1e-5 0.00001  1234567.5 1,234,567.5"


def examples(table: str, read: type = float) -> dict[float, str]:
    words = table.split()
    return dict(zip(map(read, words[::2]), words[1::2], strict=True))


@pytest.mark.parametrize(
    ("write", "table"),
    [
        (duration, examples(DURATIONS)),
        (age, examples(AGES)),
        (byte_size, examples(SIZES, int)),
        (number, examples(NUMBERS)),
        (count, COUNTS),
        (rate, RATES),
    ],
)
def test_each_figure_has_one_form(write: Callable[[Any], str], table: dict[Any, str]):
    """Three seconds are `3s`, ages are as kubectl writes them, sizes as the memory of a pod."""
    assert {value: write(value) for value in table} == table


@given(st.floats(0, 1e12))
def test_no_figure_has_an_exponent(value: float):
    """Nobody reads `3e+03ms` aloud, and no long row of digits either."""
    for written in (duration(value), age(value), byte_size(int(value)), rate(value), number(value)):
        assert "e" not in written
    digits = [c for c in duration(min(value, 1e6)).lstrip("0.") if c.isdigit()]
    assert len(digits) <= 3 or math.isclose(value, 100, rel_tol=0.1)


@pytest.mark.parametrize(
    ("text", "lines", "line", "part"),
    [
        ("plain", "plain", "plain", "plain"),
        ("über 東京", "über 東京", "über 東京", "über 東京"),
        ("a\nb", "a\nb", "a\\nb", "a b"),
        ("a\r\nb\rc", "a\ufffd\nb\ufffdc", "a\\nb\ufffdc", "a b c"),
        ("a\tb", "a\tb", "a\tb", "a b"),
        ("a\x1b[31mb", "a\ufffd[31mb", "a\ufffd[31mb", "a\ufffd[31mb"),
        ("a\x9b1mb\x00", "a\ufffd1mb\ufffd", "a\ufffd1mb\ufffd", "a\ufffd1mb\ufffd"),
        ("a\u202eb", "a\ufffdb", "a\ufffdb", "a\ufffdb"),  # turns the direction of writing
        ("a\u2028b", "a\ufffdb", "a\ufffdb", "a b"),  # separates lines
        (" \n ", " \n ", " \\n ", ""),
    ],
)
def test_nothing_in_a_foreign_text_is_obeyed(text: str, lines: str, line: str, part: str):
    """Colours, line ends and directions of others reach neither a terminal nor a line of the log."""
    assert (visible(text), one_line(text), excerpt(text, most=100)) == (lines, line, part)
    assert shown(text.replace("\x00", "")) == one_line(text.replace("\x00", ""))


def test_odd_paths_and_long_texts_are_shown_in_part():
    """A mark for each odd byte of a path; the beginning of a text, whose white space counts once."""
    assert shown(os.fsdecode(b"/a\xff\nb")) == "/a\ufffd\\nb"
    assert shown(os.fsdecode(b"/a\xff\nb")).encode()
    assert excerpt("  \n\n a  b " + "c" * 10_000_000, most=8) == "a b cccc"
    assert excerpt("\n" * 10_000 + "why", most=10) == "why"
    assert excerpt("a b", most=2) == "a"


class Colour(StrEnum):
    RED = "Red"


@dataclass
class Inner:
    seen_at: datetime
    long_name: Colour = Colour.RED

    def document(self) -> dict[str, Any]:
        """One field more than it has."""
        return document_of(self) | {"more": 1}


@dataclass
class Outer:
    inner: Inner
    numbers: tuple[float, ...] = (1.0000004, 2)
    by_name: dict[Colour, Any] = field(default_factory=dict[Colour, Any])
    nothing: None = None
    secret_place: str = "hidden"


def test_a_dataclass_becomes_an_object_in_camel_case():
    """Also inside sequences, mappings and other dataclasses; a value with its own document uses that."""
    inner = Inner(datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC))
    told = {"seenAt": "2026-01-02T03:04:05Z", "longName": "Red", "more": 1}
    document = document_of(Outer(inner, by_name={Colour.RED: [inner]}), without=("secret_place",))
    assert document == {"inner": told, "numbers": [1.0, 2], "byName": {"Red": [told]}, "nothing": None}
    assert type(document["inner"]["longName"]) is str


LOOPBACK = ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "::1%lo", "localhost", "LOCALHOST"]
# Name servers are asked for `localhost.`; an empty host is every interface.
ELSEWHERE = ["localhost.", "localhost.example.com", "127.0.0.1.example.com", "127.1", "myhost"]
ELSEWHERE += ["::ffff:10.0.0.1", "0.0.0.0", "::", "10.0.0.1"]


@pytest.mark.parametrize("host", LOOPBACK + ELSEWHERE)
def test_what_counts_as_this_machine(host: str):
    """Credentials go to a server in the clear, and past a proxy, where the admin address trusts requests."""
    loopback = host in LOOPBACK
    assert is_loopback(host) is loopback
    authority = f"[{host}]" if ":" in host else host
    for url in (f"http://{authority}", f"http://{authority}:6443/prefix", f"http://me:pw@{authority}:1"):
        assert ServerUrl.of(url).is_loopback is loopback, url
    assert not is_loopback("")
    for url in ("", "localhost", "http://", "http://[::1", "http://localhost@evil.example", "http://a b"):
        assert not ServerUrl.of(url).is_loopback, url
