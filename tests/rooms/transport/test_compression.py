"""gzip, as it is read."""

import gzip

from hypothesis import given
from hypothesis import strategies as st

from declctl.transport.wire import Unpacker
from tests.rooms.transport.parts import Parts


@given(plain=st.binary(max_size=3000) | st.just(b"pod" * 500_000), sizes=st.lists(st.integers(1, 500)))
def test_what_is_unpacked_is_what_was_packed(plain, sizes):
    """However the network cuts it, and however much it becomes."""
    packed = gzip.compress(plain, 1)
    parts = Parts()
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
    assert parts.body == plain
