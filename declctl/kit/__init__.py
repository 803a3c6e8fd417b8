"""Clocks, latches, loops, queues of keys and safe reads of files: general tools that know no Kubernetes."""

from declctl.kit.clock import AdvancingClock, Clock, ManualClock, Standstill, SystemClock, set_within
from declctl.kit.loops import (
    Latch,
    LoopCalls,
    LoopThread,
    all_open,
    call_on,
    running_loop,
    to_its_end,
    yield_interpreter,
)

__all__ = [
    "AdvancingClock",
    "Clock",
    "Latch",
    "LoopCalls",
    "LoopThread",
    "ManualClock",
    "Standstill",
    "SystemClock",
    "all_open",
    "call_on",
    "running_loop",
    "set_within",
    "to_its_end",
    "yield_interpreter",
]
