"""Waiting for a condition, with an end: no test sleeps for a time that somebody guessed."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE_SECONDS = 0.01
_FIRST_PAUSE_SECONDS = 0.001  # most of what a test waits for comes within some milliseconds


def until(
    what: str, condition: Callable[[], T], *, timeout: float = 10.0, every: float = _PAUSE_SECONDS
) -> T:
    """The first true value of `condition`, asked for at most `timeout` seconds.

    The pauses between two calls grow from a millisecond to `every` seconds. Raises AssertionError that names
    `what` was waited for and the last value.
    """
    deadline = time.monotonic() + timeout
    pause = min(_FIRST_PAUSE_SECONDS, every)
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}; last: {value!r}")
        time.sleep(pause)
        pause = min(2 * pause, every)
    return value
