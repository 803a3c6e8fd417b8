"""How late changes were delivered: a module that handlers of all generations share."""

import time
from typing import Any, Final

SENT: Final = "bench/sent"
_delays: list[int] = []


def delivered(obj: Any) -> None:
    """A change is here; called first thing."""
    _delays.append(time.time_ns() - int(obj.annotations[SENT]))


def count() -> int:
    """How many there were since the last `take`."""
    return len(_delays)


def take() -> list[float]:
    """In milliseconds, the shortest first; and begins anew."""
    taken = sorted(delay / 1e6 for delay in _delays)
    _delays.clear()
    return taken
