"""Foreign text as it is printed: one definition for terminals, logs, files and messages."""

import os

import pytest

from declctl.kit.files import shown
from declctl.kit.text import excerpt, one_line, visible


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


def test_a_path_that_is_no_utf_8_is_shown():
    """With a mark for each odd byte; the line end of a file's name forges no line."""
    assert shown(os.fsdecode(b"/a\xff\nb")) == "/a\ufffd\\nb"
    assert shown(os.fsdecode(b"/a\xff\nb")).encode()


def test_the_beginning_of_a_long_text_is_a_part_of_a_sentence():
    """Its white space counts once, so that blank lines hide nothing; what follows is cut off."""
    assert excerpt("  \n\n a  b " + "c" * 10_000_000, most=8) == "a b cccc"
    assert excerpt("\n" * 10_000 + "why", most=10) == "why"
    assert excerpt("a b", most=2) == "a"
