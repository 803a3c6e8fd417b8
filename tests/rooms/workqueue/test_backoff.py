"""How long things wait before they are tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.kit import ManualClock
from declctl.workqueue import (
    Backoff,
    BucketRateLimiter,
    ItemExponentialFailureRateLimiter,
    ItemFastSlowRateLimiter,
    MaxOfRateLimiter,
    WithMaxWaitRateLimiter,
    default_rate_limiter,
)


@pytest.mark.client_go(256, "Backoff")
def test_delays_double_up_to_the_maximum():
    """The manifest's retry: 1 s, 2 s, 4 s … and never more than maxBackoff (client-go 256)."""
    backoff = Backoff(1, 50)
    assert [backoff.delay(attempt) for attempt in range(1, 10)] == [1, 2, 4, 8, 16, 32, 50, 50, 50]


def test_the_factor_may_be_another():
    """A factor of one waits the same each time."""
    assert [Backoff(2, 100, 3).delay(n) for n in (1, 2, 3)] == [2, 6, 18]
    assert [Backoff(2, 100, 1).delay(n) for n in (1, 2, 5000)] == [2, 2, 2]
    assert Backoff(1, 100, 1.0001).delay(2000) == pytest.approx(1.0001**1999)


FIGURES = st.floats(0, 1e300)
ATTEMPTS = st.integers(1, 10**9)


@given(FIGURES, FIGURES, st.floats(1, 1e300), ATTEMPTS, ATTEMPTS)
@pytest.mark.client_go(244)
def test_delays_never_shrink_and_never_pass_their_bounds(one, other, factor, attempt, later):
    """Whatever the figures, there is no overflow and no negative wait (client-go 244)."""
    initial, maximum = sorted((one, other))
    backoff = Backoff(initial, maximum, factor)
    first, second = (backoff.delay(n) for n in sorted((attempt, later)))
    assert initial <= first <= maximum
    assert first * (1 - 1e-12) <= second <= maximum


@pytest.mark.parametrize(
    "made",
    [
        lambda: Backoff(-1, 5, 2),
        lambda: Backoff(5, 1, 2),
        lambda: Backoff(1, 5, 0.5),
        lambda: Backoff(1, 2).delay(0),
        lambda: BucketRateLimiter(0, 1, clock=ManualClock()),
        lambda: BucketRateLimiter(1, 0, clock=ManualClock()),
        MaxOfRateLimiter,
    ],
)
def test_figures_that_make_no_sense_are_refused(made):
    """Delays that shrink or are negative, an attempt before the first, and limiters without an answer."""
    with pytest.raises(ValueError):
        made()


@pytest.mark.client_go(243, 244, "Rate limiting")
def test_failures_are_counted_for_each_item():
    """One item's failures don't slow another, and forgetting starts over (client-go 243, 244)."""
    limiter = ItemExponentialFailureRateLimiter(0.001, 1)
    assert [limiter.when("one") for _ in range(5)] == [0.001, 0.002, 0.004, 0.008, 0.016]
    assert [limiter.when("two") for _ in range(2)] == [0.001, 0.002]
    assert (limiter.num_requeues("one"), limiter.num_requeues("two")) == (5, 2)
    limiter.forget("one")
    assert (limiter.num_requeues("one"), limiter.when("one")) == (0, 0.001)
    assert [limiter.when("one") for _ in range(2000)][-1] == 1


@pytest.mark.client_go(248, "Rate limiting")
def test_the_bucket_lets_a_burst_through_and_then_holds_the_rate():
    """10 a second, 100 at once: the 101st waits 100 ms, the 102nd 200 ms (client-go 248)."""
    limiter = BucketRateLimiter(10, 100, clock=ManualClock())
    assert [limiter.when(n) for n in range(100)] == [0] * 100
    assert [limiter.when("x") for _ in range(2)] == pytest.approx([0.1, 0.2])
    assert limiter.num_requeues("x") == 0


def test_a_bucket_and_the_default_need_no_clock():
    """A program that uses the library builds them without names that are not public."""
    limiter = MaxOfRateLimiter(BucketRateLimiter(qps=0.001, burst=1), default_rate_limiter())
    assert limiter.when("x") == 0.005
    assert 900 < limiter.when("x") <= 1000


@pytest.mark.client_go(248, "Rate limiting")
def test_the_slowest_limiter_decides():
    """And each of them counts (client-go 248)."""
    slow, quick = ItemExponentialFailureRateLimiter(1, 8), ItemExponentialFailureRateLimiter(0.001, 100)
    limiter = MaxOfRateLimiter(quick, slow)
    assert [limiter.when("x") for _ in range(5)] == [1, 2, 4, 8, 8]
    assert (quick.num_requeues("x"), slow.num_requeues("x"), limiter.num_requeues("x")) == (5, 5, 5)
    limiter.forget("x")
    assert (quick.num_requeues("x"), slow.num_requeues("x"), limiter.num_requeues("x")) == (0, 0, 0)


@pytest.mark.client_go(248, "Rate limiting")
def test_the_default_is_the_slower_of_item_and_bucket():
    """client-go's DefaultControllerRateLimiter (client-go 248)."""
    limiter = default_rate_limiter(clock=ManualClock())
    assert [limiter.when("x") for _ in range(3)] == [0.005, 0.01, 0.02]
    for number in range(97):
        limiter.when(number)
    assert limiter.when("new") == pytest.approx(0.1)


@pytest.mark.client_go(245, "Rate limiting")
def test_the_first_failures_wait_a_little_and_the_others_long():
    """A conflict is gone at once; what still fails the fourth time has another reason (client-go 245)."""
    limiter = ItemFastSlowRateLimiter(0.005, 10, 3)
    assert [limiter.when("one") for _ in range(5)] == [0.005, 0.005, 0.005, 10, 10]
    assert [limiter.when("two"), limiter.num_requeues("one"), limiter.num_requeues("two")] == [0.005, 5, 1]
    limiter.forget("one")
    assert [limiter.num_requeues("one"), limiter.when("one")] == [0, 0.005]


@pytest.mark.client_go(247, "Rate limiting")
def test_no_wait_is_longer_than_the_maximum():
    """A bucket with a long line demands 1,000 s, and 500 are enough (client-go 247)."""
    inner = BucketRateLimiter(0.001, 1, clock=ManualClock())
    limiter = WithMaxWaitRateLimiter(inner, 500)
    assert [limiter.when("one"), limiter.when("one"), limiter.when("two")] == [0, 500, 500]
    limiter = WithMaxWaitRateLimiter(ItemExponentialFailureRateLimiter(1, 60), 3)
    assert [limiter.when("one") for _ in range(4)] == [1, 2, 3, 3]
    assert limiter.num_requeues("one") == 4
    limiter.forget("one")
    assert limiter.when("one") == 1
