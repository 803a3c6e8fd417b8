"""Epochs: on which side of which cut a value was added, and whose it is by now."""

NO_EPOCH = -1  # of what backs off: it belongs to the epoch in which it is due


class Epochs:
    """Counts what is pending of each epoch, and knows who took over an epoch's backlog.

    Whoever owns it calls it under a lock, and counts in `pending` what it adds to the `newest` epoch.
    """

    __slots__ = ("adopted", "newest", "pending")

    def __init__(self) -> None:
        self.newest = 0
        self.pending: dict[int, int] = {0: 0}  # epoch → added and neither done nor gone
        self.adopted: dict[int, int] = {}  # epoch → the one that took over its backlog

    def cut(self) -> int:
        """Begin a new epoch; returns the one that ended."""
        old = self.newest
        self.newest += 1
        self.pending[self.newest] = 0
        if not self.pending[old]:
            del self.pending[old]
        return old

    def hand_over(self, old: int) -> None:
        """Let the newest epoch take over the backlog of another one."""
        if old == self.newest:
            return
        self.adopted[old] = self.newest
        # Those of which nothing is pending are asked for by nobody any more.
        self.adopted = {epoch: self.of(epoch) for epoch in self.adopted if epoch in self.pending}

    def of(self, epoch: int) -> int:
        """Whose the backlog of an epoch is by now."""
        while epoch in self.adopted:
            epoch = self.adopted[epoch]
        return epoch

    def leave(self, epoch: int) -> None:
        """A value is done or gone."""
        self.pending[epoch] -= 1
        if not self.pending[epoch] and epoch != self.newest:
            del self.pending[epoch]

    def move(self, before: int, epoch: int) -> int:
        """A value goes from one epoch to another; returns the latter."""
        self.pending[epoch] = self.pending.get(epoch, 0) + 1
        self.leave(before)
        return epoch
