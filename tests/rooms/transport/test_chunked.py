"""Chunks of a body to the bytes that are in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.transport.connections import ChunkDecoder
from declctl.transport.messages import BrokenBody
from tests.rooms.transport.parts import Parts

HEADERS = st.sampled_from([b"%x", b"%X", b"0%x", b"%x ", b"%x\t", b"%x;name=value", b'%x ; n="v"'])


def read(body, sizes):
    """Decode a body that comes in reads of these sizes; what comes of it, and what is left."""
    parts = Parts()
    decoder = ChunkDecoder(parts)
    buffer, at = bytearray(), 0
    for size in [*sizes, len(body)]:
        buffer += body[at : at + size]
        at += size
        used = decoder.decode(buffer, len(buffer))
        del buffer[:used]
    return decoder, parts, bytes(buffer)


@given(
    chunks=st.lists(st.tuples(HEADERS, st.binary(min_size=1, max_size=40)), max_size=6),
    sizes=st.lists(st.integers(0, 30), max_size=20),
    end=st.sampled_from([b"0\r\n\r\n", b"000;x\r\nTrailer: 1\r\n\r\n", b"0\r\n\r\nHTTP/1.1 200 OK\r\n"]),
)
def test_a_body_does_not_depend_on_how_it_was_read(chunks, sizes, end):
    """Whatever sizes chunks have, and wherever the network cuts them, the body is the same."""
    body = b"".join((header % len(content)) + b"\r\n" + content + b"\r\n" for header, content in chunks)
    decoder, parts, rest = read(body + end, sizes)
    assert parts.body == b"".join(content for _, content in chunks)
    assert decoder.count == sum(map(len, parts))
    assert b"" not in parts
    # The last chunk is left to whoever knows what follows it.
    assert decoder.ended
    assert rest == end


def test_chunks_that_are_there_come_one_by_one():
    """An event that was written as one chunk is not cut, nor joined with another one."""
    decoder, parts, rest = read(b"4\r\none\n\r\n4\r\ntwo\n\r\n5\r\nth", [])
    assert parts == [b"one\n", b"two\n", b"th"]
    assert not decoder.ended
    assert rest == b""


@given(st.integers(0, 40))
def test_what_is_here_is_given_at_once(size):
    """Nobody waits for the end of a chunk whose begin can be used."""
    body = b"20\r\n" + b"x" * 32 + b"\r\n"
    _, parts, _ = read(body[:size], [])
    assert parts.body == b"x" * min(max(size - 4, 0), 32)


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\n",
        b"\r\n",
        b"-1\r\nx\r\n",
        b"+1\r\nx\r\n",
        b"0x1\r\nx\r\n",
        b"1_0\r\n0123456789abcdef\r\n",
        b" 1\r\nx\r\n",
        b"1\nx\n",
        b"1\r\nxx\r\n",
        b"1\r\nx1\r\nx\r\n",
        b"1\r\nx\n",
        b"1\r\nx\rx",
        b"ffffffffffffffff\r\nx\r\n",
        b"1;" + b"x" * 5000,
    ],
)
@pytest.mark.parametrize("sizes", [[], [1] * 6000])
def test_what_is_no_chunk_is_told(body, sizes):
    """A server that loses its place is not read on as if nothing had happened."""
    with pytest.raises(BrokenBody, match="a chunk begins with"):
        read(body + b"\r\n1\r\nx\r\n", sizes)
