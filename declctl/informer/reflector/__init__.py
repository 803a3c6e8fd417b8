"""The reflector: what to ask the server next, whatever it answers.

`reflector` is the loop; beside it what it asks with (`options`, `lists`, `pager`, `streams`), what a
fault leads to (`faults`, `states`, `backoff`, `deadline`), what it counts (`statistics`), and the
check of its own work (`consistency`).
"""

from declctl.informer.reflector.backoff import Backoff, BackoffFactory, ExponentialBackoff
from declctl.informer.reflector.options import DEFAULT_OPTIONS, ReflectorOptions
from declctl.informer.reflector.pager import ListPager, WholeList
from declctl.informer.reflector.reflector import Reflector, ReflectorStore
from declctl.informer.reflector.statistics import ReflectorStatistics

__all__ = [
    "DEFAULT_OPTIONS",
    "Backoff",
    "BackoffFactory",
    "ExponentialBackoff",
    "ListPager",
    "Reflector",
    "ReflectorOptions",
    "ReflectorStatistics",
    "ReflectorStore",
    "WholeList",
]
