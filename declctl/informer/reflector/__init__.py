"""The reflector: lists and watches one resource, and decides after each answer what to ask next.

`reflector` is the loop. `options`, `lists`, `pager` and `streams` make its requests and read the answers.
`faults`, `states`, `backoff` and `deadline` say what follows a fault. `continuity` finds out that the server
was put back to a backup, `consistency` that a streaming list was wrong. `statistics` has the figures.
"""

from declctl.informer.reflector.options import (
    DEFAULT_OPTIONS,
    Backoff,
    BackoffFactory,
    ExponentialBackoff,
    ReflectorOptions,
)
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
