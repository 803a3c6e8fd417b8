"""The delays of delivered changes, in a module that the handlers of all generations share."""

import time
from typing import Any, Final

SENT: Final = "bench/sent"
_delays: list[int] = []


def delivered(obj: Any) -> None:
    """Records the delay of a change. A handler calls it before all other work."""
    _delays.append(time.time_ns() - int(obj.annotations[SENT]))


def count() -> int:
    """The number of delays since the last `take`."""
    return len(_delays)


def take() -> list[float]:
    """Returns the delays in milliseconds, the shortest first, and removes them."""
    taken = sorted(delay / 1e6 for delay in _delays)
    _delays.clear()
    return taken
