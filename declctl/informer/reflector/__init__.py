"""The reflector: lists and watches one resource, and decides after each answer what to ask next.

`reflector` is the loop, with its options. `faults` has its states, and what follows a fault. `lists` makes
lists and checks streamed ones. `continuity` finds out that the server was put back to a backup. `statistics`
has the figures.
"""

from declctl.informer.reflector.faults import BackoffFactory, BackoffManager, ExponentialBackoff
from declctl.informer.reflector.lists import ListPager, WholeList
from declctl.informer.reflector.reflector import DEFAULT_OPTIONS, Reflector, ReflectorOptions, ReflectorStore
from declctl.informer.reflector.statistics import ReflectorStatistics

__all__ = [
    "DEFAULT_OPTIONS",
    "BackoffFactory",
    "BackoffManager",
    "ExponentialBackoff",
    "ListPager",
    "Reflector",
    "ReflectorOptions",
    "ReflectorStatistics",
    "ReflectorStore",
    "WholeList",
]
