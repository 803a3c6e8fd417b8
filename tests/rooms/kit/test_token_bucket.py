"""Token buckets: a burst, then a rate (golang.org/x/time/rate)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.kit import ManualClock
from declctl.kit.token_bucket import TokenBucket


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves when it is told to."""
    return ManualClock()


def test_a_burst_is_free_and_then_each_token_waits_its_turn(clock) -> None:
    """Three at once; the fourth and the fifth wait for their own tokens, and not for one and the same."""
    bucket = TokenBucket(2, 3, clock=clock)
    assert [bucket.reserve() for _ in range(5)] == [0, 0, 0, 0.5, 1.0]


def test_tokens_come_back_up_to_the_burst_and_not_beyond(clock) -> None:
    """A night without writes does not allow a thousand at once in the morning."""
    bucket = TokenBucket(2, 3, clock=clock)
    for _ in range(3):
        bucket.reserve()
    clock.set(3600)
    assert [bucket.reserve() for _ in range(4)] == [0, 0, 0, 0.5]


def test_a_try_takes_a_token_or_nothing(clock) -> None:
    """An attempt that fails costs nothing: the next token is there at its time."""
    bucket = TokenBucket(1, 1, clock=clock)
    assert bucket.try_take()
    assert not any(bucket.try_take() for _ in range(10))
    clock.set(1)
    assert bucket.try_take()


@pytest.mark.parametrize(("qps", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_bucket_that_never_gives_is_refused(clock, qps, burst) -> None:
    """It would block its first user for ever."""
    with pytest.raises(ValueError, match="a bucket needs qps > 0 and burst >= 1"):
        TokenBucket(qps, burst, clock=clock)


@given(
    steps=st.lists(st.integers(min_value=0, max_value=2000), max_size=60),
    qps=st.sampled_from([0.5, 1.0, 50.0]),
    burst=st.integers(min_value=1, max_value=10),
)
def test_never_more_than_the_burst_and_the_rate(steps, qps, burst) -> None:
    """In no time span more tokens are given than the burst and the rate allow (a model of all spans)."""
    clock = ManualClock()
    bucket = TokenBucket(qps, burst, clock=clock)
    times: list[float] = []
    for milliseconds in steps:
        clock.set(milliseconds / 1000)
        times.append(clock.monotonic() + bucket.reserve())
    for first in range(len(times)):
        for last in range(first, len(times)):
            span = times[last] - times[first]
            assert last - first + 1 <= burst + qps * span + 1e-6
