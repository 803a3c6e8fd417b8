"""Building an index over a store that is full and keeps changing, without holding up the loop.

To ask the index function and to put its answers into the index are two steps, so that a thread can ask a
function that nobody knows yet, while the loop goes on writing the store.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from declctl.informer.stores.indices import FieldIndex, Index, Values
from declctl.objects import Record

_TOGETHER = 100  # objects whose frames are decompressed at once


class Unasked(NamedTuple):
    """Objects of which an index function has to be asked, as the store had them at that moment."""

    keys: Sequence[str]
    records: Sequence[Record]


class IndexBuild:
    """An index under way. It can be read once it is finished.

    `step` builds it on the loop, a slice at a time. Where the function must not run on the loop, a thread
    asks it: `unasked` gives objects to `ask`, `enter` takes the answers, and when nothing is `stale`,
    `finish` lets the index be read. Any thread may call `ask`, one at a time, and read `at`; all else is for
    the loop.
    """

    def __init__(self, known: Mapping[str, Record], *, index: Index, finish: Callable[[], None]) -> None:
        self.at = ""  # the key of the object of which the function was asked last
        self._known = known  # what the store holds: live
        self._index = index
        self._answers = index.asking()
        self._finish = finish
        self._by_field = isinstance(index.function, FieldIndex)
        # Keys of stored objects whose present state is not in the index; no state of them is.
        self._stale: dict[str, None] = dict.fromkeys(known)
        self._given_up = False

    @property
    def stale(self) -> int:
        """How many objects are not in the index as they are now."""
        return len(self._stale)

    def step(self, budget: int) -> bool:
        """Index at most `budget` more objects; True when all are in, and the index can be read."""
        unasked = self.unasked(budget)
        if self._by_field:
            self._index.put_new(dict(zip(*unasked, strict=True)))
            for key in unasked.keys:
                del self._stale[key]
        else:
            self.enter(unasked, self.ask(unasked))
        if self._stale:
            return False
        self.finish()
        return True

    def unasked(self, most: int) -> Unasked:
        """At most so many of the objects that are stale."""
        keys = tuple(islice(self._stale, most))
        return Unasked(keys, [self._known[key] for key in keys])

    def ask(self, unasked: Unasked) -> Sequence[Values]:
        """The values of these objects, in their order; no more of them once the build is given up.

        An object on which the function fails has no values; that is counted.
        """
        found: list[Values] = []
        for start in range(0, len(unasked.keys), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            answers = self._answers(unasked.records[part])
            for key in unasked.keys[part]:
                if self._given_up:
                    return found
                self.at = key
                found.append(next(answers))
        return found

    def enter(self, unasked: Unasked, values: Sequence[Values]) -> None:
        """Index those objects that are still in the state in which the function was asked of them."""
        known, stale, enter = self._known, self._stale, self._index.enter
        for key, record, each in zip(*unasked, values, strict=False):
            if known.get(key) is record and key in stale:
                enter(key, record, each)
                del stale[key]

    def give_up(self) -> None:
        """Do no more of it: a thread that asks stops after the object that it is at."""
        self._given_up = True
        self._stale.clear()

    def finish(self) -> None:
        """Let the index be read. Calls the function of what is stale, and not where nothing is."""
        if self._stale:
            self.step(len(self._stale))
        else:
            self._finish()

    def put(self, key: str, record: Record, before: Record | None) -> None:
        """A record was put, `before` is its last state."""
        if self._by_field and key not in self._stale:
            self._index.put(key, record, before)  # which calls nobody's function
            return
        if before is not None and key not in self._stale:
            self._index.remove(key, before)
        self._stale[key] = None

    def put_new(self, records: Mapping[str, Record]) -> None:
        """Records were put under keys that were not there."""
        if self._by_field:
            self._index.put_new(records)
        else:
            self._stale.update(dict.fromkeys(records))

    def remove(self, key: str, record: Record) -> None:
        """A record was taken out."""
        if key in self._stale:
            del self._stale[key]
        else:
            self._index.remove(key, record)
