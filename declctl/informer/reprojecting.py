"""A cache is decoded anew by another projection, out of its own frames, and nobody is asked or told.

What is made is kept aside while the store goes on changing: until it takes over, nothing has happened.
Then it takes the places of the records that it was made of, wherever these are still the same state of
their object; what has changed meanwhile is made anew at that moment. Or it takes over before anything is
made, and each record takes its place as soon as it is.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from typing import Protocol

import msgspec

from declctl.decoding import Projection
from declctl.errors import CacheError
from declctl.informer.queues import Entry, Replacement
from declctl.informer.stores import Indexer
from declctl.objects import Delta, Record

_FEW, _MOST_ROUNDS = 50, 10  # objects that may be left for the take-over, and attempts to get there
_LOOKS = 20  # records that can be compared in the time in which one is made
_SLICE = 250  # objects of a step once it takes over: some 1 ms
_log = logging.getLogger("declctl.informer")


class Remake(Protocol):
    """Makes records anew; raises CacheError for one that can't be."""

    def __call__(self, record: Record) -> Record:
        """One."""
        ...

    def many(self, records: Sequence[Record]) -> Sequence[Record]:
        """Many, in less time."""
        ...


class Reprojection:
    """The records of one store, made anew. Used by the loop that writes the store.

    `projection` is what the source decodes with from the take-over on, and `remake` makes records that
    are like those of it. `is_over` says that it has taken over, or that another one does.
    """

    def __init__(self, indexer: Indexer, projection: Projection, remake: Remake) -> None:
        self.projection = projection
        self._indexer = indexer
        self._remake = remake
        self._layout = projection.layout
        self._made: dict[str, Record] = {}
        self._round: Iterator[Record] = iter(indexer.list())
        self._rounds = self._made_in_round = 0
        self._in_place = False
        self.is_over = False

    def step(self, budget: int) -> bool:
        """Make at most `budget` more records; True when none or few are left that have changed meanwhile.

        Also where another reprojection has taken over: then there is nothing left to do.

        Raises CacheError for an object that can't be made anew; the store is as it was, or as far as it came
        if it has taken over before.
        """
        if self.is_over:
            return True
        lacking: list[Record] = []
        for looked, record in enumerate(self._round, 1):
            held = self._indexer.held(record.key)
            if held is not None and held.layout is not self._layout and not self._is_made(held):
                lacking.append(held)
            if len(lacking) >= budget or looked >= budget * _LOOKS:
                self._make(lacking)
                return False
        self._make(lacking)
        self._rounds += 1
        if self._in_place:
            self.is_over = True  # what came meanwhile was decoded by the new projection
            return True
        if self._made_in_round <= _FEW or self._rounds >= _MOST_ROUNDS:
            return True
        self._made_in_round = 0
        self._round = iter(self._indexer.list())
        return False

    def _make(self, lacking: Sequence[Record]) -> None:
        for record in self._remake.many(lacking):
            if self._in_place:
                self._indexer.put(record.key, record)
            else:
                self._made[record.key] = record
        self._made_in_round += len(lacking)

    def take_over_first(self) -> None:
        """Put each record into the store as soon as it is made."""
        self._in_place = True
        self._round = iter(self._indexer.list())

    def take_over(self) -> Generator[None]:
        """Put what was made into the store, a slice at a time; nothing before the first slice is asked for.

        An object that changed into something that can't be made anew stays as it is: readable as before.
        """
        yield
        for number, key in enumerate(self._indexer.list_keys(), 1):
            self._put(key)
            if not number % _SLICE:
                yield
            if self.is_over:
                return
        self.is_over = True
        self._made.clear()

    def supersede(self) -> None:
        """Another one takes over: what is not done yet is its business."""
        self.is_over = True
        self._made.clear()

    def deltas(self, batch: Sequence[Entry]) -> Sequence[Entry]:
        """What waited in the queue, or was still being listed, as the new projection would have read it.

        The states before them as well: what differs between two states is what has changed.
        """
        return [self._delta(entry) if isinstance(entry, Delta) else entry for entry in batch]

    def replacement(self, replacement: Replacement) -> Generator[None, None, Replacement]:
        """The same for a list, a slice at a time."""
        records: list[Record] = []
        for start in range(0, len(replacement.records), _SLICE):
            for record in replacement.records[start : start + _SLICE]:
                self._put(record.key)
                records.append(self._current(record))
            yield
        return replacement._replace(records=records)

    def _put(self, key: str) -> None:
        """Let the store hold the record of a key as the new projection reads it."""
        held = None if self.is_over else self._indexer.held(key)
        if held is not None and held.layout is not self._layout:
            record = self._current(held)
            if record is not held:
                self._indexer.put(key, record)

    def _delta(self, delta: Delta) -> Delta:
        self._put(delta.key)
        record = delta.record
        # What left our sight has nothing in its frame; the cache tells its last state.
        if record is None or record.layout is self._layout or delta.out_of_scope:
            return delta
        return msgspec.structs.replace(delta, record=self._current(record))

    def _is_made(self, record: Record) -> bool:
        made = self._made.get(record.key)
        return made is not None and made.revision == record.revision and bool(record.resource_version)

    def _current(self, record: Record) -> Record:
        if record.layout is self._layout:
            return record
        if self._is_made(record):
            return self._made.pop(record.key)
        try:
            return self._remake(record)
        except CacheError as fault:
            _log.warning("%s; it stays as it was decoded before", fault)
            return record
