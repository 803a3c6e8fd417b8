"""The buffer that a socket is read into."""

from hypothesis import given
from hypothesis import strategies as st

from declctl.transport.connections import LARGEST, ReadBuffer

READS = st.lists(
    st.tuples(st.integers(-1, 400_000), st.integers(1, 400_000), st.integers(0, 100)), min_size=1, max_size=60
)


@given(READS)
def test_what_was_read_and_not_used_is_kept(reads):
    """Growing, shrinking and using a part of it lose no byte and change none."""
    buffer = ReadBuffer()
    expected = b""
    for number, (known, most, left) in enumerate(reads):
        space = buffer.space(known)
        assert len(space) > 0
        read = bytes([number]) * min(most, len(space))
        space[: len(read)] = read
        buffer.add(len(read))
        expected += read
        assert buffer.data[: buffer.filled] == expected
        used = max(len(expected) - left, 0)
        buffer.drop(used)
        expected = expected[used:]
        assert buffer.data[: buffer.filled] == expected


def fill(buffer, count, known=-1):
    """One read of as many bytes as there are; how many fit."""
    space = buffer.space(known)
    count = min(count, len(space))
    buffer.add(count)
    buffer.drop(count)
    return count


def test_a_flood_is_read_in_large_pieces():
    """While a hundred thousand objects stream in, a read takes what the socket has."""
    buffer = ReadBuffer()
    sizes = [fill(buffer, 10**9) for _ in range(5)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == LARGEST
    assert fill(ReadBuffer(), 10**9, known=200_000) == 200_000


def test_a_watch_that_has_become_quiet_gives_its_buffer_back():
    """A hundred watches that wait for something to happen hold next to nothing."""
    buffer = ReadBuffer()
    for _ in range(5):
        fill(buffer, 10**9)
    assert len(buffer.data) == LARGEST
    for _ in range(10):
        fill(buffer, 500)
    assert len(buffer.data) <= LARGEST / 10
