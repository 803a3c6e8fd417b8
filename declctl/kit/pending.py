"""What waits in a queue: the states of its items, and a heap in its order."""

import heapq
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, TypeVar

E = TypeVar("E", bound=tuple[Any, ...])


class ItemState(StrEnum):
    """What an item of a queue waits for."""

    RUNNING = "Running"  # it does not wait: a worker has it
    OVERDUE = "Overdue"  # as before, but nobody waits for the worker any longer; listed as Running
    LEFT = "Left"  # it has left the queue; never listed
    WAITING = "Waiting"  # for a free worker
    BEHIND = "Behind"  # for an earlier value of the same key
    AWAITS_CACHE = "AwaitsCache"  # its turn has come: for caches that lack writes of its handler
    WRITE_LOOP = "WriteLoop"  # its turn has come: for its delay, as its writes lead to its next call
    BACKING_OFF = "BackingOff"  # for its retry
    REQUEUED = "Requeued"  # for the time that its last call has asked for
    RESTING = "Resting"  # for newer values of its key: the debounce


def smallest_first(heap: Sequence[E]) -> Iterator[E]:
    """The entries of a heap in ascending order, without a change of the heap.

    To read the first k of n entries takes O(k log k), whatever n is. The heap must not change meanwhile, and
    no two entries may be equal, as for `heapq`.
    """
    # An entry can only be next if its parent was: candidates are the children of the entries before.
    candidates = [(heap[0], 0)] if heap else []
    while candidates:
        entry, at = heapq.heappop(candidates)
        yield entry
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heapq.heappush(candidates, (heap[child], child))
