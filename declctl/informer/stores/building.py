"""Building an index over a store that is full and keeps changing, without holding up the loop."""

from collections.abc import Callable, Mapping, Sequence

from declctl.informer.stores.indices import Index
from declctl.objects import Record


class IndexBuild:
    """An index under way, which follows every change of the store meanwhile.

    `step` fills a slice of it and says whether it is complete; only then can it be read. What it is told
    by `put`, `put_new` and `remove` is newer than the `records` under `keys` that it fills the index with.
    """

    def __init__(
        self,
        keys: Sequence[str],
        records: Sequence[Record],
        *,
        index: Index,
        finish: Callable[[], None],
    ) -> None:
        self._keys = keys
        self._records = records
        self._index = index
        self._fill = index.filling()
        self._finish = finish
        self._next = 0
        self._changed: set[str] = set()  # keys that are found already as they are, or are gone

    def step(self, budget: int) -> bool:
        """Index at most `budget` more objects; True when all are in."""
        until = self._next + budget
        keys, records = self._keys[self._next : until], self._records[self._next : until]
        if self._changed.isdisjoint(keys):
            self._fill(keys, records)
        else:
            fresh = {k: r for k, r in zip(keys, records, strict=True) if k not in self._changed}
            self._fill(tuple(fresh), tuple(fresh.values()))
        self._next = until
        if until < len(self._records):
            return False
        self._keys = self._records = ()
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
