"""Queues between a reflector and the store: in order, accumulated by key, newest only, by priority.

All are synchronous cores that decide, under a thin shell that waits; the loop is the lock.
"""

from typing import TYPE_CHECKING

from declctl.errors import QueueClosed
from declctl.informer.queues.delta_fifo import DeltaFIFO
from declctl.informer.queues.queue import (
    Bookmark,
    Entry,
    Queue,
    Replacement,
    SyncAll,
    Transformer,
    key_of_entry,
)
from declctl.informer.queues.real_fifo import RealFIFO
from declctl.kit.exports import late

if TYPE_CHECKING:
    from declctl.informer.queues.fifo import FIFO
    from declctl.informer.queues.heap import Heap
else:  # no informer uses these
    __getattr__ = late(__name__, {"fifo": ("FIFO",), "heap": ("Heap",)})

__all__ = [
    "FIFO",
    "Bookmark",
    "DeltaFIFO",
    "Entry",
    "Heap",
    "Queue",
    "QueueClosed",
    "RealFIFO",
    "Replacement",
    "SyncAll",
    "Transformer",
    "key_of_entry",
]
