"""Waiting for conditions, with an end: no test sleeps for a time that somebody guessed."""

import time
from collections.abc import Callable
from typing import TypeVar

from declctl import testing

T = TypeVar("T")

_PAUSE = 0.02


def until(what: str, condition: Callable[[], T], *, seconds: float = 60.0) -> T:
    """The first true value of `condition`; processes on a busy machine get more time than threads."""
    return testing.until(what, condition, timeout=seconds)


def stays(what: str, condition: Callable[[], object], *, seconds: float) -> None:
    """The condition holds, and goes on to hold for so long: for what must not happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition(), f"not for {seconds:g} s: {what}"
        time.sleep(_PAUSE)
