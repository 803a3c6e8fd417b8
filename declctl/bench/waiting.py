"""Waiting for another process, with an end."""

import time
from collections.abc import Callable
from typing import TypeVar

from declctl.errors import TimedOut

T = TypeVar("T")

PATIENCE = 180.0  # seconds
_PAUSE = 0.02


def until(
    what: str, condition: Callable[[], T | None], *, seconds: float = PATIENCE, pause: float = _PAUSE
) -> T:
    """The first true value of `condition`, asked again and again; raises TimedOut, naming `what`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise TimedOut(f"not within {seconds:g} s: {what}")
        time.sleep(pause)
    return value
