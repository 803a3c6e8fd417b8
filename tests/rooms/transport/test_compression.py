"""gzip: when it is asked for, and how it is read."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.kit import ManualClock
from declctl.transport.compression import SLOW, Compression, Unpacker
from declctl.transport.request import BrokenBody

MUCH = 2_000_000


class Kept(list):
    def feed(self, part):
        self.append(bytes(part))


def came(compression, clock, count, seconds):
    """An answer of so many bytes came in so many seconds; what is asked for after it."""
    compression.begins()
    clock.set(seconds)
    compression.ended(count)
    return compression.encoding


def test_gzip_is_asked_for_where_the_network_is_slow():
    """Over a VPN lists come compressed; within a data centre nobody packs and unpacks."""
    clock = ManualClock()
    compression = Compression(clock)
    assert compression.encoding == "identity"
    assert came(compression, clock, MUCH, MUCH / SLOW * 0.9) == "identity"
    assert came(compression, clock, MUCH, MUCH / SLOW * 1.1) == "gzip"
    assert came(compression, clock, MUCH, MUCH / SLOW * 1.1) == "gzip"
    assert came(compression, clock, MUCH, MUCH / SLOW * 0.9) == "identity"


def test_small_answers_tell_nothing_about_the_network():
    """A list of three objects takes a round trip however fast the network is."""
    clock = ManualClock()
    assert came(Compression(clock), clock, 5000, 1.0) == "identity"


def test_answers_that_come_together_are_measured_together():
    """Thirty resources that start at once are each slow, and the network is not."""
    clock = ManualClock()
    compression = Compression(clock)
    for _ in range(30):
        compression.begins()
    clock.set(30 * MUCH / SLOW * 0.9)
    for _ in range(30):
        compression.ended(MUCH)
    assert compression.encoding == "identity"


@given(plain=st.binary(max_size=3000) | st.just(b"pod" * 500_000), sizes=st.lists(st.integers(1, 500)))
def test_what_is_unpacked_is_what_was_packed(plain, sizes):
    """However the network cuts it, and however much it becomes."""
    packed = gzip.compress(plain, 1)
    parts = Kept()
    unpacker = Unpacker(parts)
    at = 0
    for size in [*sizes, len(packed)]:
        if part := packed[at : at + size]:
            unpacker.feed(memoryview(part))
        at += size
        while unpacker.unpack():
            # So that nothing else on the loop waits for it.
            assert len(parts[-1]) <= 256 * 1024
    unpacker.close()
    assert b"".join(parts) == plain


def test_what_was_cut_off_is_told():
    """Half a list in gzip is no list."""
    unpacker = Unpacker(Kept())
    unpacker.feed(memoryview(gzip.compress(b"pod" * 1000)[:-9]))
    while unpacker.unpack():
        pass
    with pytest.raises(BrokenBody, match="ended too early"):
        unpacker.close()


def test_what_is_no_gzip_is_told():
    """A proxy that says gzip and does not do it is an error with a sentence."""
    unpacker = Unpacker(Kept())
    unpacker.feed(memoryview(b'{"kind":"PodList"}'))
    with pytest.raises(BrokenBody, match="not what gzip makes"):
        unpacker.unpack()
