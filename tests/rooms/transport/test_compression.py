"""gzip, as it is read."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.transport.messages import BrokenBody
from declctl.transport.wire import Unpacker


class Kept(list):
    def feed(self, part):
        self.append(bytes(part))


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
