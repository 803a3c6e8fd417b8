"""Whether a key whose turn has come is reconciled now: the gate of a reconciler's queue.

A key is held back until the caches have what the handler has written (`unseen_writes`), and while it feeds
itself (`write_loops`). It is not called at all for events of its own writes that change nothing for it.
"""

from collections.abc import Callable, Sequence

from declctl.kit import Clock
from declctl.kit.key_queue import QueueItem
from declctl.runtime.handling.write_loops import WriteLoops
from declctl.runtime.reconciling.unseen_writes import HeldKey, UnseenWrites
from declctl.workqueue import Admission, Reasons


class CallGate:
    """The gate of one reconciler, with the name `handler` (`workqueue.Gate`). From any thread.

    `report` takes a message about a cache that lags. `wake` is called when a cache has what a key waits for.
    """

    def __init__(
        self, handler: str, *, clock: Clock, report: Callable[[str], None], wake: Callable[[], None]
    ) -> None:
        self.handler = handler
        self.unseen = UnseenWrites(clock=clock, report=report, wake=wake)  # and the keys that they hold back
        self.loops = WriteLoops(
            clock=clock, report=report
        )  # those of the process, if the slot belongs to one
        self.own_writes = 0  # times that a key was due because of its own writes alone, and was not taken

    def judge(self, item: QueueItem[Reasons]) -> Admission:
        """What becomes of a key whose turn has come."""
        # A retry and a Requeue have no versions: their keys are called in any case.
        versions = item.value.versions
        if versions and self.loops.is_own(self.handler, item.key, versions):
            self.own_writes += 1
            return Admission.SKIP
        is_held = self.unseen.hold(item.key, self.loops.delay(self.handler, item.key))
        return Admission.HOLD if is_held else Admission.CALL

    def begins(self, item: QueueItem[Reasons]) -> None:
        """Notice that a worker gets a key."""
        self.loops.begin(self.handler, item.key, item.value.versions)

    def take_released(self) -> str | None:
        """A key that is held back no longer; None if there is none."""
        return self.unseen.take_released()

    @property
    def others(self) -> int:
        """The number of held keys that neither wait for their own writes nor feed themselves."""
        return self.unseen.others

    def held(self) -> Sequence[HeldKey]:
        """The keys that are held back."""
        return self.unseen.held()

    def next_due(self) -> float | None:
        """Seconds until `take_released` has to be called, unless a cache wakes before; None without keys."""
        return self.unseen.next_due()

    def clear(self) -> None:
        """Hold no key back any longer."""
        self.unseen.clear()

    def __len__(self) -> int:
        """The number of keys that are held back."""
        return len(self.unseen)
