"""Frames: objects as bytes that give themselves back exactly."""

import json
import random
import threading

from hypothesis import given
from hypothesis import strategies as st

from declctl.objects import FrameCodec
from tests.rooms.objects.made_objects import compact, pod


def train(codec: FrameCodec) -> list[tuple[bytes, bytes]]:
    """Objects and their frames, until the codec has learned its dictionary."""
    pairs = []
    for n in range(1000):
        plain = compact(pod(f"web-{n}", status={"podIP": f"10.0.{n % 256}.{n % 7}", "phase": "Running"}))
        pairs.append((plain, codec.encode(plain)))
        if codec.trained:
            return pairs
    raise AssertionError("the codec never learned")


def test_every_object_is_given_back_before_and_after_learning():
    """What was cached early stays readable, and later objects are smaller."""
    codec = FrameCodec()
    pairs = train(codec)
    assert all(codec.decode(frame) == plain for plain, frame in pairs)
    before, after = len(pairs[0][1]), len(codec.encode(pairs[0][0]))
    assert after < before / 2


TEXTS = st.text(max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)


@given(
    objects=st.lists(st.dictionaries(TEXTS, JSON, max_size=4), min_size=1, max_size=2),
    space=st.sampled_from(["", " ", "\n"]),
)
def test_any_object_is_given_back_with_or_without_a_dictionary(objects, space):
    """Small, large, odd or with a blank before it: reading gives what was written."""
    fresh = FrameCodec()
    for obj in objects:
        plain = (space + json.dumps(obj)).encode()
        for codec in (fresh, TRAINED):
            assert codec.decode(codec.encode(plain)) == plain


TRAINED = FrameCodec()
train(TRAINED)


def test_what_cannot_be_made_smaller_is_kept_as_it_is():
    """A Secret of random bytes costs its own size."""
    noise = json.dumps({"data": random.Random(1).randbytes(4000).hex()}).encode()
    codec = FrameCodec()
    assert len(codec.encode(noise)) <= len(noise)
    assert codec.encode(b'{"a":1}') == b'{"a":1}'


def test_objects_with_nothing_in_common_do_no_harm():
    """Where no dictionary can be learned, frames do without."""
    codec, source = FrameCodec(), random.Random(2)
    plains = [json.dumps({"k": source.randbytes(4).hex()}).encode() for _ in range(500)]
    assert [codec.decode(codec.encode(plain)) for plain in plains] == plains


def test_many_threads_read_at_once_while_the_codec_learns():
    """Handlers in threads of their own read the cache while it is being filled."""
    codec = FrameCodec()
    written: list[tuple[bytes, bytes]] = []
    faults: list[object] = []
    done = threading.Event()

    def read() -> None:
        source = random.Random()
        while not done.is_set() or not written:
            for plain, frame in source.sample(written, min(20, len(written))):
                if codec.decode(frame) != plain:
                    faults.append(plain)

    readers = [threading.Thread(target=read, daemon=True) for _ in range(4)]
    for reader in readers:
        reader.start()
    for n in range(600):
        plain = compact(pod(f"web-{n}"))
        written.append((plain, codec.encode(plain)))
    done.set()
    for reader in readers:
        reader.join(30.0)
    assert codec.trained
    assert not faults
