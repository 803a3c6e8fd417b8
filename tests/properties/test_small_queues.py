"""FIFO and Heap against models that look at everything every time."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from declctl.informer import FIFO, Heap
from declctl.objects import Record
from tests.rooms.informer.shapes import record

NAMES = st.sampled_from("abcde")


@pytest.mark.client_go(64, 66, 67, 68, "FIFO")
class FIFOMachine(RuleBasedStateMachine):
    """The model is a list of keys and versions, and the keys of the first list that are not dealt with."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FIFO()
        self.version = 0
        self.line: list[tuple[str, str]] = []
        self.in_hand: list[Record] = []
        self.first: set[str] | None = None

    def made(self, name: str) -> Record:
        self.version += 1
        return record(name, self.version)

    def hold(self, made: Record) -> None:
        keys = [key for key, _ in self.line]
        place = keys.index(made.key) if made.key in keys else len(keys)
        self.line[place : place + 1] = [(made.key, made.resource_version)]

    @rule(name=NAMES, update=st.booleans())
    def put(self, name: str, update: bool) -> None:
        made = self.made(name)
        self.hold(made)
        self.first = self.first or set()
        self.queue.update(made) if update else self.queue.add(made)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        made = self.made(name)
        self.forget({made.key})
        self.first = self.first or set()
        self.queue.delete(made)

    @rule(names=st.lists(NAMES, unique=True))
    def replace(self, names: list[str]) -> None:
        records = [self.made(name) for name in names]
        listed = {made.key for made in records}
        self.forget({key for key, _ in self.line} - listed)
        for made in records:
            self.hold(made)
        self.first = listed if self.first is None else self.first
        self.queue.replace(records, str(self.version))

    @rule()
    def pop(self) -> None:
        popped = self.queue.pop_nowait()
        shown = None if popped is None else (popped.key, popped.resource_version)
        assert shown == (self.line.pop(0) if self.line else None)
        if popped is not None:
            self.in_hand.append(popped)

    @precondition(lambda self: self.in_hand)
    @rule()
    def processed(self) -> None:
        made = self.in_hand.pop(0)
        assert self.first is not None
        self.first.discard(made.key)
        self.queue.processed(made)

    def forget(self, keys: set[str]) -> None:
        """They leave the line: nobody will have to deal with those that were in it."""
        gone = {key for key, _ in self.line} & keys
        self.line = [(key, version) for key, version in self.line if key not in gone]
        if self.first:
            self.first -= gone

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        assert [(r.key, r.resource_version) for r in self.queue.list()] == self.line
        assert list(self.queue.list_keys()) == [key for key, _ in self.line]
        assert len(self.queue) == len(self.line)
        found = {name: self.queue.get_by_key(f"demo/{name}") for name in "abcde"}
        assert [(r.key, r.resource_version) for r in found.values() if r] == sorted(self.line)
        assert self.queue.has_synced is (self.first == set())


@pytest.mark.client_go(70, 71, 74, 75, 76, 77, 79, "Heap")
class HeapMachine(RuleBasedStateMachine):
    """The model is a dict; what comes first is looked for in all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.heap: Heap[tuple[str, int]] = Heap(key=lambda item: item[0], order=lambda item: item[1])
        self.model: dict[str, tuple[int, int]] = {}  # order, and when it was put
        self.puts = 0

    def put(self, item: tuple[str, int]) -> None:
        self.puts += 1
        self.model[item[0]] = (item[1], self.puts)

    @rule(items=st.lists(st.tuples(NAMES, st.integers(0, 4)), max_size=5))
    def bulk_add(self, items: list[tuple[str, int]]) -> None:
        for item in items:
            self.put(item)
        self.heap.bulk_add(items)

    @rule(item=st.tuples(NAMES, st.integers(0, 4)), update=st.booleans())
    def put_one(self, item: tuple[str, int], update: bool) -> None:
        self.put(item)
        (self.heap.update if update else self.heap.add)(item)

    @rule(item=st.tuples(NAMES, st.integers(0, 4)))
    def add_if_not_present(self, item: tuple[str, int]) -> None:
        if item[0] not in self.model:
            self.put(item)
        self.heap.add_if_not_present(item)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        """To delete what is not there is an error, and changes nothing."""
        if self.model.pop(name, None) is not None:
            self.heap.delete(name)
        else:
            with pytest.raises(KeyError):
                self.heap.delete(name)

    @rule()
    def pop(self) -> None:
        first = min(self.model, key=lambda name: self.model[name], default=None)
        assert self.heap.pop_nowait() == (None if first is None else (first, self.model.pop(first)[0]))

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        assert dict(self.heap.list()) == {name: order for name, (order, _) in self.model.items()}
        assert sorted(self.heap.list_keys()) == sorted(self.model)
        assert len(self.heap) == len(self.model)
        assert self.heap.entries <= 2 * len(self.heap) + 17
        first = min(self.model, key=lambda name: self.model[name], default=None)
        assert self.heap.peek() == (None if first is None else (first, self.model[first][0]))
        assert self.heap.get_by_key("f") is None
        for name, (order, _) in self.model.items():
            assert self.heap.get_by_key(name) == (name, order)


_SETTINGS = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestFIFO, TestHeap = FIFOMachine.TestCase, HeapMachine.TestCase
TestFIFO.settings = TestHeap.settings = _SETTINGS
