"""Lines out of chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.errors import MalformedAnswer
from declctl.transport import LineSplitter


@given(st.lists(st.binary(max_size=12)), st.lists(st.integers(1, 9)))
def test_lines_do_not_depend_on_how_the_bytes_were_cut(contents, sizes):
    """Whatever the network does with packets, the same events come out."""
    lines = [content.replace(b"\n", b"") for content in contents]
    body = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter()
    found, at = [], 0
    for size in sizes:
        found += splitter.feed(body[at : at + size])
        at += size
    found += splitter.feed(body[at:])
    splitter.close()
    assert found == [line for line in lines if line]


@given(st.binary(min_size=1, max_size=30).filter(lambda text: b"\n" not in text))
def test_a_cut_line_is_a_fault_and_no_event(text):
    """A connection that breaks within an object never delivers half of it."""
    splitter = LineSplitter()
    assert splitter.feed(b"whole\n" + text) == [b"whole"]
    with pytest.raises(MalformedAnswer, match="in the middle of a line"):
        splitter.close()


@given(st.integers(1, 40))
def test_a_line_without_end_is_given_up(size):
    """A broken server that never ends a line can't fill the memory, in however small pieces it comes."""
    splitter = LineSplitter(longest=20)
    for _ in range(20 // size):
        assert splitter.feed(b"x" * size) == []
    with pytest.raises(MalformedAnswer, match="longer than 20 bytes"):
        splitter.feed(b"x" * size)


def test_a_long_line_that_ends_is_given_up_too():
    """The bound does not depend on whether the end of the line is already here."""
    splitter = LineSplitter(longest=20)
    assert splitter.feed(b"x" * 20 + b"\n") == [b"x" * 20]
    with pytest.raises(MalformedAnswer):
        splitter.feed(b"x" * 21 + b"\n")
