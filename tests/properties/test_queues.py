"""The queues against plain models: what comes out, in which order, and what the store is in the end.

Entries are popped, applied and given to `processed` in steps of their own, with anything in between.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from declctl.informer import DeltaFIFO, QueueClosed, RealFIFO
from declctl.informer.queues.real_fifo import Batch, Bookmark, Entry, Replacement, SyncAll
from declctl.objects import Delta, DeltaType, Record
from tests.rooms.informer.lines import Line, entries
from tests.rooms.informer.shapes import Recorder, record

ADDED, UPDATED, DELETED = DeltaType.ADDED, DeltaType.UPDATED, DeltaType.DELETED
REPLACED, SYNC = DeltaType.REPLACED, DeltaType.SYNC
NAMES = st.sampled_from("abcde")
LIMITS = st.integers(1, 4)


def trimmed(made: Record) -> Record:
    """A transformer that can be seen and does nothing the second time."""
    return msgspec.structs.replace(made, labels_json=b'{"trimmed":"yes"}')


def at_once(waiting: Any) -> Any:
    """What a coroutine gives that does not have to wait."""
    try:
        waiting.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


class QueueMachine(RuleBasedStateMachine):
    """A server whose changes are queued, and a consumer that pops and applies them whenever it likes.

    A subclass has the queue and says what must come out of it.
    """

    make: Any

    @initialize(transforms=st.booleans())
    def start(self, transforms: bool) -> None:
        self.options = {"transformer": trimmed} if transforms else {}
        self.line = Line(make=self.make)
        self.queue = self.line.queue
        self.version = 0
        self.server: dict[str, Record] = {}
        self.listener = Recorder()
        self.in_hand: list[Batch] = []  # popped
        self.applied: list[Batch] = []  # and in the store
        self.synced = False  # what `has_synced` must say
        self.has_been_synced = False

    def changed(self, name: str, uid: str) -> Record:
        self.version += 1
        return record(name, self.version, uid=uid)

    @rule(name=NAMES)
    def put(self, name: str) -> None:
        there = self.server.get(f"demo/{name}")
        made = self.changed(name, f"{name}{self.version}" if there is None else there.uid)
        self.server[made.key] = made
        self.expect(Delta(ADDED if there is None else UPDATED, made.key, made))
        self.queue.add(made) if there is None else self.queue.update(made)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        """Also of what is not there: a watch may tell a delete twice."""
        there = self.server.pop(f"demo/{name}", None)
        made = self.changed(name, "unknown" if there is None else there.uid)
        self.expect(Delta(DELETED, made.key, made))
        self.queue.delete(made)

    @rule(missed=st.sets(NAMES), changed=st.sets(NAMES), twice=st.booleans())
    def relist(self, missed: set[str], changed: set[str], twice: bool) -> None:
        for name in missed:  # deleted while nobody watched
            self.server.pop(f"demo/{name}", None)
        for name in changed:
            made = self.changed(name, f"{name}{self.version}")
            self.server[made.key] = made
        records = list(self.server.values()) * (1 + twice)
        self.expect_replacement(records)
        self.queue.replace(records, str(self.version))

    @rule()
    def resync(self) -> None:
        self.expect_resync()
        self.queue.resync()

    @rule()
    def bookmark(self) -> None:
        self.expect_bookmark()
        self.queue.bookmark(str(self.version))

    @precondition(lambda self: self.may_pop)
    @rule(limit=LIMITS)
    def pop(self, limit: int) -> None:
        batch = self.queue.pop_batch_nowait(limit)
        self.check(batch, limit)
        if batch:
            self.in_hand.append(batch)

    @precondition(lambda self: self.in_hand)
    @rule()
    def apply(self) -> None:
        batch = self.in_hand.pop(0)
        self.listener.add_all(self.line.apply(batch))
        self.applied.append(batch)

    @precondition(lambda self: self.applied)
    @rule()
    def processed(self) -> None:
        batch = self.applied.pop(0)
        self.queue.processed(batch)
        self.after(batch)

    @rule(limit=LIMITS)
    def step(self, limit: int) -> None:
        """As a controller does it: pop, apply, processed, with nothing in between."""
        self.drain_hands()
        self.pop(limit)
        self.drain_hands()

    @rule()
    def close(self) -> None:
        """What is queued still comes out; nobody waits any more."""
        self.queue.close()
        if self.may_pop and self.nothing_waits():
            with pytest.raises(QueueClosed):
                at_once(self.queue.pop_batch(1))

    @invariant()
    def synced_is_what_it_must_be_and_stays(self) -> None:
        if hasattr(self, "queue"):
            assert self.queue.has_synced is self.queue.synced.is_open is self.synced
            assert self.synced or not self.has_been_synced
            self.has_been_synced = self.synced

    @invariant()
    def what_was_told_adds_up(self) -> None:
        if hasattr(self, "queue"):
            assert self.listener.faults == []
            told = {key: each.resource_version for key, each in self.listener.folded.items()}
            assert told == {f"demo/{name}": version for name, version in self.line.versions.items()}

    def drain_hands(self) -> None:
        while self.in_hand:
            self.apply()
        while self.applied:
            self.processed()

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.drain_hands()
        while not self.nothing_waits():
            self.step(3)
        assert len(self.queue) == 0
        stored = {held.key: held for held in self.line.store.list()}
        assert {k: r.resource_version for k, r in stored.items()} == {
            k: r.resource_version for k, r in self.server.items()
        }
        assert all("trimmed" in held.labels for held in stored.values()) or not self.options

    # What a subclass knows of its queue.
    may_pop = True

    def expect(self, delta: Delta) -> None: ...
    def expect_replacement(self, records: Sequence[Record]) -> None: ...
    def expect_resync(self) -> None: ...
    def expect_bookmark(self) -> None: ...
    def check(self, batch: Batch, limit: int) -> None: ...
    def after(self, batch: Batch) -> None: ...
    def nothing_waits(self) -> bool: ...


Shown = tuple[Any, ...]


@pytest.mark.client_go(33, 34, 35, 36, 37, 39, 40, 41, 42, 43, 44, 45, 47, 48, 49, 50, 53, 54, 56, 58, 59, 61)
@pytest.mark.client_go(62, 63, "RealFIFO HasSynced", "RealFIFO global order", "RealFIFO AtomicEvents")
@pytest.mark.client_go("RealFIFO batch pop", "RealFIFO Replace (non atomic)")
class RealMachine(QueueMachine):
    """The model is one list: what came, in the order in which it came."""

    def make(self, known: Any) -> RealFIFO:
        self.waiting: list[Shown] = []
        self.first: Shown | None = None  # the first replacement, until it is processed
        self.replaced = False
        return RealFIFO(**self.options)

    def expect(self, delta: Delta) -> None:
        assert delta.record is not None
        self.waiting.append((delta.type, delta.key, delta.record.resource_version))
        self.synced = self.synced or self.first is None

    def expect_replacement(self, records: Sequence[Record]) -> None:
        versions = tuple((r.key, r.resource_version) for r in records)
        entry = ("list", str(self.version), not self.replaced, versions)
        if not self.synced and self.first is None:
            self.first = entry
        self.replaced = True
        self.waiting.append(entry)

    def expect_resync(self) -> None:
        self.waiting.append(("resync",))

    def expect_bookmark(self) -> None:
        self.waiting.append(("bookmark", str(self.version)))

    def check(self, batch: Batch, limit: int) -> None:
        popped = entries(batch)
        assert [self.shown(entry) for entry in popped] == self.waiting[: len(popped)]
        del self.waiting[: len(popped)]
        assert bool(popped) or not self.waiting
        if isinstance(batch, list):
            assert all(isinstance(entry, Delta) for entry in batch)
            full = len(batch) == limit
            assert full or not self.waiting or not isinstance(self.waiting[0][0], DeltaType)
        assert len(popped) <= limit

    def after(self, batch: Batch) -> None:
        if not self.synced and self.shown(entries(batch)[0]) == self.first:
            self.synced = True

    def nothing_waits(self) -> bool:
        return not self.waiting

    @invariant()
    def nothing_is_lost_or_made_twice(self) -> None:
        if hasattr(self, "queue"):
            assert len(self.queue) == len(self.waiting)

    @staticmethod
    def shown(entry: Entry) -> Shown:
        match entry:
            case Replacement(records, version, initial):
                return ("list", version, initial, tuple((r.key, r.resource_version) for r in records))
            case Bookmark(version):
                return ("bookmark", version)
            case SyncAll():
                return ("resync",)
            case Delta(kind, key, made):
                assert made is not None
                return (kind, key, made.resource_version)


@pytest.mark.client_go(
    1, 3, 4, 5, 6, 7, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 24, 25, 27, 29, 30, 31
)
@pytest.mark.client_go("DeltaFIFO HasSynced", "DeltaFIFO per-key accumulation", "DeltaFIFO Replace")
@pytest.mark.client_go("DeltaFIFO dedup", "DeltaFIFO Resync", "DeltaFIFO delete of unknown key")
class DeltaMachine(QueueMachine):
    """The model has the changes of each key, in a dict that is in order of the first of them."""

    def make(self, known: Any) -> DeltaFIFO:
        self.waiting: dict[str, list[Shown]] = {}
        self.last: Batch = []  # popped last, and not processed
        self.populated = self.replaced = False
        self.initial: set[str] = set()
        self.empty = False  # an empty list that somebody has to learn of
        return DeltaFIFO(known, **self.options)

    @property
    def may_pop(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """One consumer, which applies what it has before it takes more."""
        return not self.in_hand

    def newest(self, key: str) -> Shown | None:
        """The last thing that was said of a key: queued, in somebody's hands, or stored."""
        if key in self.waiting:
            return self.waiting[key][-1]
        said = [entry for entry in entries(self.last) if isinstance(entry, Delta) and entry.key == key]
        if said:
            return self.shown(said[-1])
        held = self.line.store.get_by_key(key)
        return None if held is None else ("stored", held.resource_version, False)

    def queue_up(self, key: str, shown: Shown) -> None:
        said = self.waiting.setdefault(key, [])
        if shown[0] is DELETED and said and said[-1][0] is DELETED:
            if said[-1][2]:
                said[-1] = shown
        else:
            said.append(shown)

    def expect(self, delta: Delta) -> None:
        if delta.type is not DELETED or self.newest(delta.key) is not None:
            self.queue_up(delta.key, self.shown(delta))
        self.synced = self.synced or not self.populated
        self.populated = True

    def expect_replacement(self, records: Sequence[Record]) -> None:
        listed = {r.key for r in records}
        everything = {f"demo/{name}" for name in "abcde"}
        gone = {key: newest for key in sorted(everything - listed) if (newest := self.newest(key))}
        for made in records:
            self.queue_up(made.key, (REPLACED, made.resource_version, False, not self.replaced))
        for key, (kind, version, *_) in gone.items():
            if kind is not DELETED:
                self.queue_up(key, (DELETED, version, True, not self.replaced))
        self.empty = self.empty or not self.waiting
        if not self.populated:
            self.initial = set(self.waiting)
            self.synced = not self.initial
        self.populated = self.replaced = True

    def expect_resync(self) -> None:
        for held in self.line.store.list():
            newest = self.newest(held.key)
            if newest is not None and newest[0] == "stored":
                self.queue_up(held.key, (SYNC, held.resource_version, False, False))

    def check(self, batch: Batch, limit: int) -> None:
        keys = list(self.waiting)[:limit]
        expected = [(key, *shown) for key in keys for shown in self.waiting.pop(key)]
        if not keys and self.empty:
            assert isinstance(batch, Bookmark)
            self.empty = False
        else:
            assert isinstance(batch, list)
            assert [(delta.key, *self.shown(delta)) for delta in batch] == expected
        self.last = batch or self.last

    def after(self, batch: Batch) -> None:
        if batch is self.last:
            self.last = []
        self.initial -= {entry.key for entry in entries(batch) if isinstance(entry, Delta)}
        self.synced = self.synced or (self.populated and not self.initial)

    def nothing_waits(self) -> bool:
        return not self.waiting and not self.empty

    @invariant()
    def each_key_waits_once(self) -> None:
        if hasattr(self, "queue"):
            assert len(self.queue) == len(self.waiting)

    @staticmethod
    def shown(delta: Delta) -> Shown:
        assert delta.record is not None
        return (delta.type, delta.record.resource_version, delta.final_state_unknown, delta.initial)


_SETTINGS = settings(max_examples=35, stateful_step_count=50, deadline=None)
TestRealFIFO = RealMachine.TestCase
TestDeltaFIFO = DeltaMachine.TestCase
TestRealFIFO.settings = TestDeltaFIFO.settings = _SETTINGS
