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
    for size in [*sizes, len(body)]:
        if part := body[at : at + size]:
            splitter.feed(memoryview(part))
            found += splitter.take()
        at += size
    splitter.close()
    assert found == [line for line in lines if line]


@given(st.binary(min_size=1, max_size=30).filter(lambda text: b"\n" not in text))
def test_a_cut_line_is_a_fault_and_no_event(text):
    """A connection that breaks within an object never delivers half of it."""
    splitter = LineSplitter()
    splitter.feed(memoryview(b"whole\n" + text))
    assert splitter.take() == [b"whole"]
    with pytest.raises(MalformedAnswer, match="in the middle of a line"):
        splitter.close()


@given(st.integers(1, 40))
def test_a_line_without_end_is_given_up(size):
    """A broken server that never ends a line can't fill the memory, in however small pieces it comes."""
    splitter = LineSplitter(longest=20)
    for _ in range(20 // size):
        splitter.feed(memoryview(b"x" * size))
        assert splitter.take() == []
    with pytest.raises(MalformedAnswer, match="longer than 20 bytes"):
        splitter.feed(memoryview(b"x" * size))


def test_a_long_line_that_ends_is_given_up_too():
    """The bound does not depend on whether the end of the line is already here."""
    splitter = LineSplitter(longest=20)
    splitter.feed(memoryview(b"x" * 20 + b"\n"))
    assert splitter.take() == [b"x" * 20]
    with pytest.raises(MalformedAnswer):
        splitter.feed(memoryview(b"y\n" + b"x" * 21 + b"\n"))
    assert splitter.take() == [b"y"]


def test_memory_that_is_used_again_does_not_change_a_line():
    """The buffer of a socket is written over while its lines still wait to be decoded."""
    buffer = bytearray(b"one\ntw")
    splitter = LineSplitter()
    splitter.feed(memoryview(buffer))
    buffer[:] = b"o\n____\n"
    splitter.feed(memoryview(buffer)[:2])
    assert splitter.take() == [b"one", b"two"]
