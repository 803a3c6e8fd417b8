"""Clocks, latches, loops, queues of keys and safe reads of files: general tools that know no Kubernetes.

Each name is loaded when it is first asked for: `declctl run --help` and `explain` print text, and do without
asyncio.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_MODULES = MappingProxyType(
    {
        "clock": ("AdvancingClock", "Clock", "ManualClock", "Standstill", "SystemClock", "set_within"),
        "loops": (
            *("Latch", "LoopCalls", "LoopThread", "all_open", "call_on", "running_loop"),
            *("to_its_end", "yield_interpreter"),
        ),
    }
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


def __getattr__(name: str) -> object:
    """Load a name (PEP 562); AttributeError for any other."""
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value
