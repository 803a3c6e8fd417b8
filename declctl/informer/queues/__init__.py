"""Queues between a reflector and the store: in order, accumulated by key, newest only, by priority.

All are synchronous cores that decide, under a thin shell that waits; the loop is the lock.
"""

from declctl.errors import QueueClosed
from declctl.informer.queues.delta_fifo import FIFO, DeltaFIFO, Heap
from declctl.informer.queues.real_fifo import (
    Batch,
    Bookmark,
    Entry,
    Queue,
    RealFIFO,
    Replacement,
    SyncAll,
    Transformer,
    key_of_entry,
)

__all__ = [
    "FIFO",
    "Batch",
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
