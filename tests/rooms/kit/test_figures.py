"""Figures for people: one form each, without exponents."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.kit.figures import age, byte_size, count, duration, number, rate
from tests.rooms.kit.figure_examples import COUNTS, RATES


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0ms"),
        (1e-8, "0ms"),
        (0.000012, "0.012ms"),
        (0.00034, "0.34ms"),
        (0.001, "1ms"),
        (0.0034, "3.4ms"),
        (0.01234, "12.3ms"),
        (0.0125, "12.5ms"),
        (0.34, "340ms"),
        (0.9994, "999ms"),
        (0.9996, "1s"),
        (1, "1s"),
        (1.25, "1.25s"),
        (3, "3s"),
        (12.34, "12.3s"),
        (99.96, "100s"),
        (100, "100s"),
        (150, "2m"),
        (3_000, "50m"),
        (7_200, "2h"),
        (172_800, "2d"),
    ],
)
def test_a_duration_has_its_unit_and_few_digits(seconds: float, shown: str):
    """Three seconds are `3s`, and neither `3e+03ms` nor `3000ms`."""
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-3, "0s"),
        (0.9, "0s"),
        (42.9, "42s"),
        (119, "119s"),
        (120, "2m"),
        (7_199, "119m"),
        (7_200, "2h"),
        (86_399, "23h"),
        (86_400, "1d"),
        (400 * 86_400, "400d"),
        (4_000 * 86_400, "4,000d"),
    ],
)
def test_an_age_has_one_unit(seconds: float, shown: str):
    """As kubectl writes it."""
    assert age(seconds) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0B"),
        (812, "812B"),
        (1_023, "1,023B"),
        (1_024, "1Ki"),
        (12_800, "12.5Ki"),
        (812_345, "793Ki"),
        (3 << 20, "3Mi"),
        (1_610_612_736, "1.5Gi"),
        (5 << 40, "5,120Gi"),
    ],
)
def test_bytes_are_written_as_quantities(size: int, shown: str):
    """As the memory of a pod, so that both can be compared."""
    assert byte_size(size) == shown


@pytest.mark.parametrize(("given", "shown"), COUNTS.items())
def test_a_count_has_its_thousands_apart(given: int, shown: str):
    """A million is told from a hundred thousand at a glance."""
    assert count(given) == shown


@pytest.mark.parametrize(("per_second", "shown"), RATES.items())
def test_a_rate_has_one_decimal_where_it_says_something(per_second: float, shown: str):
    """One call in a minute is no zero."""
    assert rate(per_second) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.003, "0.003"), (1.0, "1"), (1e-5, "0.00001"), (1_234_567.5, "1,234,567.5")],
)
def test_a_figure_without_a_unit_is_plain(value: float, shown: str):
    """Its unit is in its name."""
    assert number(value) == shown


@given(st.floats(0, 1e12))
def test_no_figure_has_an_exponent(value: float):
    """Nobody reads `3e+03ms` aloud, and no long row of digits either."""
    for shown in (duration(value), age(value), byte_size(int(value)), rate(value), number(value)):
        assert "e" not in shown
    digits = [c for c in duration(min(value, 1e6)).lstrip("0.") if c.isdigit()]
    assert len(digits) <= 3 or math.isclose(value, 100, rel_tol=0.1)
