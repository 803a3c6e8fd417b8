"""Building an index over a store that is full and keeps changing, without holding up the loop."""

from collections.abc import Callable, Mapping, Sequence

from declctl.informer.stores.indices import Index
from declctl.objects import Record


class IndexBuild:
    """An index under way, which follows every change of the store meanwhile.

    `step` fills a slice of it and says whether it is complete; only then can it be read. What it is told
    by `put`, `put_new` and `remove` is newer than the `records` that it fills the index with.
    """

    def __init__(
        self, records: Sequence[tuple[str, Record]], *, index: Index, finish: Callable[[], None]
    ) -> None:
        self._records = records
        self._index = index
        self._finish = finish
        self._next = 0
        self._changed: set[str] = set()  # keys that are found already as they are, or are gone

    def step(self, budget: int) -> bool:
        """Index at most `budget` more objects; True when all are in."""
        until = self._next + budget
        some = self._records[self._next : until]
        if self._changed:
            some = [each for each in some if each[0] not in self._changed]
        self._index.fill(some)
        self._next = until
        if until < len(self._records):
            return False
        self._records = ()
        self._finish()
        return True

    def put(self, key: str, record: Record, before: Record | None) -> None:
        """A record was put, `before` is its last state."""
        self._changed.add(key)
        self._index.put(key, record, before)

    def put_new(self, records: Mapping[str, Record]) -> None:
        """Records were put under keys that were not there."""
        self._changed.update(records)
        self._index.put_new(records)

    def remove(self, key: str, record: Record) -> None:
        """A record was taken out."""
        self._changed.add(key)
        self._index.remove(key, record)
