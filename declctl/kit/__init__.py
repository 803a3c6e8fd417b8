"""Clocks, latches, loops, the keyed queue and safe reads of files: general tools that know no Kubernetes."""

from declctl.kit.change_queue import ChangeQueue
from declctl.kit.clock import AdvancingClock, Clock, ManualClock, Standstill, SystemClock, set_within
from declctl.kit.key_queue import QueueFigures
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
    "AdvancingClock",
    "ChangeQueue",
    "Clock",
    "Latch",
    "LoopThread",
    "ManualClock",
    "QueueFigures",
    "Standstill",
    "SystemClock",
    "all_open",
    "call_on",
    "running_loop",
    "set_within",
    "to_its_end",
    "yield_interpreter",
]
