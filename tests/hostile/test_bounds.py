"""The bounds of this folder really bind."""

import pytest

from tests.hostile.bounds import bounded


def test_memory_above_the_bound_fails():
    """A test that would take more memory than it promises is red."""
    with pytest.raises(AssertionError, match="MB more than before"), bounded(seconds=30, megabytes=20):
        assert len(bytearray(b"x") * (80 << 20)) == 80 << 20


def test_what_is_within_its_bounds_passes():
    """A small input has small costs."""
    with bounded(seconds=30, megabytes=20):
        assert sum(range(1000)) == 499500
