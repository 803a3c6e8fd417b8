"""Building an index over a store that is full and keeps changing, without holding up the loop."""

from collections.abc import Callable, Sequence

from declctl.informer.stores.indices import Index
from declctl.objects import Record


class IndexBuild:
    """An index under way, which follows every change of the store meanwhile.

    `step` fills a slice of it and says whether it is complete; only then can it be read.
    """

    def __init__(
        self,
        records: Sequence[tuple[str, Record]],
        *,
        current: Callable[[str], Record | None],
        index: Index,
        finish: Callable[[], None],
    ) -> None:
        self._records = records
        self._current = current
        self._index = index
        self._finish = finish
        self._next = 0

    def step(self, budget: int) -> bool:
        """Index at most `budget` more objects; True when all are in."""
        until = self._next + budget
        self._index.fill(self._records[self._next : until], self._current)
        self._next = until
        if until < len(self._records):
            return False
        self._records = ()
        self._finish()
        return True
