"""Rests in work that nobody is in a hurry for, so that events get through.

An event changes hands several times on its way, and waits each time for the interpreter if a thread computes;
those that come meanwhile wait behind it. Work that rests after each little while costs them one such wait.
"""

import asyncio
import time

_WORK_SECONDS = 0.00015  # between two rests
REST_SECONDS = 0.0007  # long enough for some events to be dealt with


class Breath:
    """Lets a thread rest where it has worked for a while: call it between two pieces of work."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def __call__(self) -> None:
        """Sleep for a moment if it is time to."""
        if time.perf_counter() - self._began >= _WORK_SECONDS:
            time.sleep(REST_SECONDS)
            self._began = time.perf_counter()


async def breathe() -> None:
    """Let a loop deal with whatever waits, and with what comes in a moment."""
    await asyncio.sleep(REST_SECONDS)
