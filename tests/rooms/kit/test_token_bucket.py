"""Token buckets: a burst, then a rate (golang.org/x/time/rate)."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.kit import ManualClock
from declctl.kit.token_bucket import ClientBuckets, TokenBucket


@pytest.mark.client_go(262, "Token bucket")
def test_a_burst_is_free_and_then_each_token_waits_its_turn(clock) -> None:
    """Three at once, then each waits for its own token.

    A night without writes allows no thousand in the morning.
    """
    bucket = TokenBucket(2, 3, clock=clock)
    assert [bucket.reserve() for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    bucket = TokenBucket(2, 3, clock=clock)
    for _ in range(3):
        bucket.reserve()
    clock.set(3600)
    assert [bucket.reserve() for _ in range(4)] == [0, 0, 0, 0.5]


@pytest.mark.client_go(262, "Token bucket")
def test_a_try_takes_a_token_or_nothing(clock) -> None:
    """An attempt that fails costs nothing.

    One token in 1.031425 s, and a try each 2 s: there is always one (client-go's TestRatePrecisionBug).
    """
    bucket = TokenBucket(1, 1, clock=clock)
    assert bucket.try_take()
    assert not any(bucket.try_take() for _ in range(10))
    clock.set(1)
    assert bucket.try_take()
    bucket = TokenBucket(1 / 1.031425, 1, clock=clock)
    for _ in range(60):
        assert bucket.try_take()
        clock.set(2)


@pytest.mark.client_go(262, "Token bucket")
def test_threads_share_one_burst(clock) -> None:
    """Ten threads that try at the same time get no token twice."""
    bucket = TokenBucket(1, 1000, clock=clock)
    with ThreadPoolExecutor(10) as pool:
        taken = list(pool.map(lambda _: bucket.try_take(), range(5000)))
    assert sum(taken) == 1000


@pytest.mark.client_go(262)
def test_a_token_that_is_given_back_is_there_for_the_next_one(clock) -> None:
    """A wait that was given up delays no other one; the bucket never holds more than its burst."""
    bucket = TokenBucket(1, 2, clock=clock)
    assert [bucket.reserve() for _ in range(4)] == [0, 0, 1, 2]
    bucket.give_back()
    assert bucket.reserve() == 2
    clock.set(60)
    bucket.give_back()
    assert [bucket.reserve() for _ in range(3)] == [0, 0, 1]


@pytest.mark.parametrize(("qps", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_bucket_that_never_gives_is_refused(clock, qps, burst) -> None:
    """It would block its first user for ever."""
    with pytest.raises(ValueError, match="a bucket needs qps > 0 and burst >= 1"):
        TokenBucket(qps, burst, clock=clock)


@pytest.mark.client_go(262)
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


def test_each_client_has_a_bucket_and_few_are_remembered(clock) -> None:
    """One that asks too often takes nothing from others, and a flood of addresses fills no memory."""
    buckets = ClientBuckets(1, 2, clock=clock, most=3)
    assert [buckets.try_take("a") for _ in range(3)] == [True, True, False]
    assert buckets.try_take("b")
    assert not buckets.try_take("a")  # so that it is the newest of two
    for number in range(10):
        assert buckets.try_take(str(number))
    assert len(buckets) == 3
    assert [buckets.try_take("9") for _ in range(2)] == [True, False]
