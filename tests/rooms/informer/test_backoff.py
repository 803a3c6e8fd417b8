"""How long a reflector waits after a fault."""

import itertools

import pytest

from declctl.errors import NotFound, TooManyRequests, Unreachable
from declctl.informer import ExponentialBackoff
from declctl.kit import ManualClock

FAULT = Unreachable("x")
MISSING = NotFound(404, "NotFound", "")


def waits(backoff, times, fault=FAULT):
    return [backoff.seconds(fault) for _ in range(times)]


@pytest.mark.client_go("Run loop")
def test_waits_grow_and_end_at_thirty_seconds():
    """0.8 s, doubled each time."""
    assert waits(ExponentialBackoff(ManualClock()), 8) == pytest.approx(
        [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    )


@pytest.mark.client_go(261, "Run loop", "Backoff")
@pytest.mark.parametrize(("chance", "wait"), [(0.0, 0.8), (0.5, 1.2), (0.999, 1.6)])
def test_chance_makes_a_wait_up_to_twice_as_long(chance, wait):
    """So that a thousand clients do not come back together."""
    assert ExponentialBackoff(ManualClock(jitter=chance)).seconds(FAULT) == pytest.approx(wait, rel=0.01)


@pytest.mark.client_go(257, 258, "Run loop", "Backoff")
def test_two_quiet_minutes_begin_anew():
    """A fault long ago does not make the next one worse."""
    clock = ManualClock()
    backoff = ExponentialBackoff(clock)
    for _ in range(5):
        clock.set(backoff.seconds(FAULT))
    clock.set(119)
    assert backoff.seconds(FAULT) > 20
    clock.set(200)
    assert backoff.seconds(FAULT) == pytest.approx(0.8)


@pytest.mark.client_go(261)
def test_chance_does_not_add_up():
    """Each wait lies between its step of the schedule and twice that, whatever the waits before it were."""
    clock = ManualClock()
    backoff, chances = ExponentialBackoff(clock), itertools.cycle([0.99, 0.0, 0.5])
    clock.random = lambda: next(chances)
    for step, wait in zip([0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30], waits(backoff, 9), strict=True):
        assert step <= wait < 2 * step


def test_a_missing_kind_is_looked_for_every_ten_seconds():
    """So that a resource starts soon after its kind appears; what comes after it waits as long as ever."""
    backoff = ExponentialBackoff(ManualClock())
    assert max(waits(backoff, 7, MISSING)) == pytest.approx(10.0)
    assert backoff.seconds(FAULT) == pytest.approx(30.0)
    assert max(waits(ExponentialBackoff(ManualClock(), longest=3.0), 7, MISSING)) == pytest.approx(3.0)


@pytest.mark.parametrize(("asked", "wait"), [(7.0, 7.0), (0.1, 0.8), (9000.0, 300.0), (None, 0.8)])
def test_the_server_is_obeyed_within_reason(asked, wait):
    """Retry-After counts if it is longer than ours, up to five minutes."""
    fault = TooManyRequests(429, "TooManyRequests", "", retry_after=asked)
    assert ExponentialBackoff(ManualClock()).seconds(fault) == pytest.approx(wait)
