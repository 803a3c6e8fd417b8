"""The foundation: clocks, latches, loops and the keyed queue. Knows no Kubernetes.

What belongs here could be moved to a library of its own without a change. What waits for a cluster
does not belong here.
"""

from declctl.kit.clock import Clock, ManualClock, SystemClock, set_within
from declctl.kit.keyed_queue import KeyedQueue, KeyedQueueStatistics
from declctl.kit.loops import (
    Latch,
    LoopThread,
    all_open,
    call_on,
    running_loop,
    to_its_end,
    yield_interpreter,
)

__all__ = [
    "Clock",
    "KeyedQueue",
    "KeyedQueueStatistics",
    "Latch",
    "LoopThread",
    "ManualClock",
    "SystemClock",
    "all_open",
    "call_on",
    "running_loop",
    "set_within",
    "to_its_end",
    "yield_interpreter",
]
