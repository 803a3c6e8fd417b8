"""Queues between a reflector and the store: in order, or accumulated by key."""

from declctl.informer.queues.delta_fifo import DeltaFIFO
from declctl.informer.queues.entries import Entry, Replacement, SyncAll
from declctl.informer.queues.real_fifo import RealFIFO

__all__ = ["DeltaFIFO", "Entry", "RealFIFO", "Replacement", "SyncAll"]
