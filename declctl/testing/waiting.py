"""Waiting for a condition, with an end: no test sleeps for a time that somebody guessed."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE_SECONDS = 0.01


def until(
    what: str, condition: Callable[[], T], *, timeout: float = 10.0, every: float = _PAUSE_SECONDS
) -> T:
    """The first true value of `condition`, asked `every` few seconds for at most `timeout` seconds.

    Raises AssertionError that names `what` was waited for and the last value.
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}; last: {value!r}")
        time.sleep(every)
    return value
