"""Epochs: on which side of which cut a value was added, and whose it is by now."""

from collections import defaultdict

NO_EPOCH = -1  # of what backs off: it belongs to the epoch in which it is due


class Era:
    """The count of epochs, which several may share: one step cuts them all, however many they are."""

    __slots__ = ("newest",)

    def __init__(self, newest: int = 0) -> None:
        self.newest = newest

    def cut(self) -> int:
        """Begin a new epoch; returns the one that ended. Cannot fail."""
        old = self.newest
        self.newest = old + 1
        return old


class Epochs:
    """Counts what is pending of each epoch of an era, and knows who took over an epoch's backlog.

    Whoever owns it calls it under a lock, and counts in `pending` what it adds to the newest epoch.
    """

    __slots__ = ("adopted", "era", "pending")

    def __init__(self, era: Era | None = None) -> None:
        self.era = Era() if era is None else era
        self.pending = defaultdict[int, int](int)  # epoch → added and neither done nor gone
        self.adopted: dict[int, int] = {}  # epoch → the one that took over its backlog

    def hand_over(self, old: int) -> None:
        """Let the newest epoch take over the backlog of another one."""
        newest = self.era.newest
        if old == newest:
            return
        self.adopted[old] = newest
        # Those of which nothing is pending are asked for by nobody any more.
        self.adopted = {epoch: self.of(epoch) for epoch in self.adopted if epoch in self.pending}

    def of(self, epoch: int) -> int:
        """Whose the backlog of an epoch is by now."""
        adopted = self.adopted
        while epoch in adopted:
            epoch = adopted[epoch]
        return epoch

    def leave(self, epoch: int) -> None:
        """A value is done or gone."""
        left = self.pending[epoch] - 1
        if left:
            self.pending[epoch] = left
        else:
            del self.pending[epoch]

    def move(self, before: int, epoch: int) -> int:
        """A value goes from one epoch to another; returns the latter."""
        self.pending[epoch] += 1
        self.leave(before)
        return epoch
