"""Frames: objects as bytes that give themselves back exactly."""

import gc
import json
import random
import threading
import tracemalloc
from collections.abc import Iterator
from itertools import cycle, islice, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.objects import FrameCodec
from tests.rooms.objects.made_objects import JSON, TEXTS, compact, pod


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


@given(
    objects=st.lists(st.dictionaries(TEXTS, JSON, max_size=4), min_size=1, max_size=2),
    space=st.sampled_from(["", " ", "\n", "\t", " " * 300]),
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


def noise(source: random.Random, length: int) -> str:
    """Text that nothing makes smaller than half."""
    return source.randbytes(length).hex()


def hard(source: random.Random) -> Iterator[bytes]:
    """Objects without end that nothing makes smaller. They are no JSON, which codecs don't look at."""
    return (b'{"data":"%b"}' % source.randbytes(400) for _ in repeat(None))


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000, 600_000, 2_000_000])
@pytest.mark.parametrize("codec", [FrameCodec(), TRAINED], ids=["untrained", "trained"])
def test_object_of_any_size_is_given_back(codec, size):
    """From the empty one to what no API server would store."""
    plain = compact({"data": noise(random.Random(size), size // 2)})
    assert codec.decode(codec.encode(plain)) == plain


def test_what_cannot_be_made_smaller_is_kept_as_it_is():
    """No object costs more than its own size."""
    plain = next(hard(random.Random(1)))
    assert FrameCodec().encode(plain) is plain
    assert FrameCodec().encode(b'{"a":1}') == b'{"a":1}'


def test_a_frame_takes_the_memory_of_its_bytes():
    """What the compressor allocated for the worst case is given back."""
    plains = [compact(pod(f"web-{n}", status={"log": ["line"] * 1000})) for n in range(200)]
    codec = FrameCodec()
    frames = [codec.encode(plain) for plain in plains]  # whatever is allocated once is there
    del frames
    gc.collect()
    tracemalloc.start()
    try:
        frames = [codec.encode(plain) for plain in plains]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < sum(map(len, frames)) + 100 * len(frames)


def test_objects_with_nothing_in_common_do_no_harm():
    """Where no dictionary can be learned, frames do without."""
    codec, source = FrameCodec(), random.Random(2)
    plains = [json.dumps({"k": noise(source, 4)}).encode() for _ in range(5000)]
    assert [codec.decode(codec.encode(plain)) for plain in plains] == plains
    assert not codec.statistics().dictionaries


def rollout(version: int) -> Iterator[bytes]:
    """Objects without end that have much in common with each other, and little with another version's."""
    source = random.Random(version)
    common = [noise(source, 12) for _ in range(30)]
    return cycle(
        compact(
            {
                "metadata": {"name": noise(source, 4)},
                "spec": dict.fromkeys(source.sample(common, 12), source.choice(common)),
            }
        )
        for _ in range(500)
    )


def feed(codec: FrameCodec, plains: Iterator[bytes], count: int) -> list[tuple[bytes, bytes]]:
    """The next objects, and their frames."""
    return [(plain, codec.encode(plain)) for plain in islice(plains, count)]


def read_aside(codec: FrameCodec, pairs: list[tuple[bytes, bytes]]) -> bool:
    """Whether a thread that has read nothing before reads what was written."""
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.extend([codec.decode(frame) for _, frame in pairs]))
    reader.start()
    reader.join()
    return read == [plain for plain, _ in pairs]


ENOUGH = 8000  # objects, to find that compression has decayed, and to learn


def test_objects_that_change_their_ways_are_learned_anew():
    """After a rollout frames become small again, and those from before stay readable by any thread."""
    codec = FrameCodec()
    first = feed(codec, rollout(1), ENOUGH)
    fresh = codec.statistics()
    second = feed(codec, rollout(2), 2 * ENOUGH)
    learned = codec.statistics()
    assert (fresh.trainings, fresh.dictionaries) == (1, 1)
    assert (learned.trainings, learned.dictionaries) == (2, 2)
    assert learned.ratio > 0.9 * fresh.ratio
    assert sum(len(frame) for _, frame in second[-100:]) < 0.7 * sum(len(frame) for _, frame in second[:100])
    assert read_aside(codec, first[::50] + second[::50])


def test_objects_that_are_only_harder_to_compress_change_nothing():
    """A training that gains nothing gives no dictionary, and is not repeated."""
    codec = FrameCodec()
    feed(codec, rollout(1), ENOUGH)
    feed(codec, hard(random.Random(3)), 2 * ENOUGH)
    figures = codec.statistics()
    assert (figures.trainings, figures.dictionaries) == (2, 1)


def test_where_nothing_could_be_learned_it_is_tried_less_and_less_often():
    """An odd beginning costs no dictionary for ever, and a resource of noise costs a few trainings."""
    codec = FrameCodec()
    pairs = feed(codec, hard(random.Random(4)), 50_000)
    figures = codec.statistics()
    assert 2 <= figures.trainings <= 5
    assert figures.dictionaries == 0
    feed(codec, rollout(1), 20 * ENOUGH)
    assert codec.statistics().dictionaries == 1
    assert read_aside(codec, pairs[::500])


def test_dictionaries_are_few_whatever_comes():
    """A resource that changes for ever does not fill the memory, and no frame becomes unreadable."""
    codec, kept = FrameCodec(), []
    for version in range(11):
        kept += feed(codec, rollout(version), ENOUGH)[::1000]
    figures = codec.statistics()
    assert (figures.dictionaries, figures.trainings) == (8, 8)
    assert read_aside(codec, kept)


def test_ratio_is_told_from_the_first_object_on():
    """How small frames are; 0 while there are none."""
    codec = FrameCodec()
    assert codec.statistics().ratio == 0
    (pair,) = feed(codec, rollout(1), 1)
    assert codec.statistics().ratio == len(pair[0]) / len(pair[1])


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
