"""What waits in a queue, as a bounded copy: the states of its items, and its next items in their order."""

import heapq
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

E = TypeVar("E", bound=tuple[Any, ...])


class ItemState(StrEnum):
    """What an item of a queue waits for."""

    RUNNING = "Running"  # it does not wait: a worker has it
    OVERDUE = "Overdue"  # as before, but nobody waits for the worker any longer; listed as Running
    LEFT = "Left"  # it has left the queue; never listed
    WAITING = "Waiting"  # for a free worker
    BEHIND = "Behind"  # for an earlier value of the same key
    AWAITS_CACHE = "AwaitsCache"  # its turn has come: for caches that lack writes of its handler, or it loops
    BACKING_OFF = "BackingOff"  # for its retry
    REQUEUED = "Requeued"  # for the time that its last call has asked for
    RESTING = "Resting"  # for newer values of its key: the debounce


class PendingItem(NamedTuple):
    """A copy of one item. Times are monotonic, in seconds."""

    key: Any  # text, but for a work queue of other keys
    state: ItemState
    since: float | None  # it was added, or its worker has taken it; None if that is not known
    due: float | None = None  # the end of its back-off, its rest or its delay; None if it waits for none
    retries: int = 0  # attempts after which it was to come again
    retry_state: Any = None  # that of the worker
    value: Any = None  # what is handed out
    epoch: int | None = None  # that will process it; None if that is not decided yet
    priority: int = 0  # the number of its row
    again: bool = False  # its key was added again since a worker has it, and comes once more


class QueueSnapshot(NamedTuple):
    """The numbers of a queue at one moment, and its next items in the order of their turns."""

    waiting: int  # neither running nor delayed
    running: int
    delayed: int  # backing off, or due at a time of their own
    items: Sequence[PendingItem]


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
