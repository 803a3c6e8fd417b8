"""The table of the contract for two changes of a key that wait together, and what models of a queue share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from declctl.kit import ManualClock
from declctl.kit.change_queue import ChangeQueue


@dataclass(frozen=True)
class Value:
    """A change that remembers which additions went into it."""

    kind: str
    parts: tuple[int, ...]
    weight: int


def merge(waiting: Value, new: Value, attempted: bool) -> Sequence[Value]:
    """The table of the contract, on values without objects."""
    parts = waiting.parts + new.parts
    match waiting.kind, new.kind:
        case "Resync", kind:
            return [Value(kind, parts, new.weight)]
        case kind, "Resync":
            return [Value(kind, parts, waiting.weight)]
        case "Added", "Modified":
            return [Value("Added", parts, new.weight)]
        case "Added", "Deleted" if not attempted:
            return []
        case _, "Deleted":
            return [Value("Deleted", parts, new.weight)]
        case "Modified", "Modified":
            return [Value("Modified", parts, new.weight + waiting.weight)]
        case _:
            return [waiting, new]


class ModelOfQueue(RuleBasedStateMachine):
    """A queue beside one plain list of its items, each with its `key` and `value`, and `taken` while it runs.

    Whatever happened before: in the end everything is handed out, in order, and nothing is left.
    """

    clock: ManualClock
    queue: ChangeQueue[Value]
    items: list[Any]

    @precondition(lambda self: self._running())
    @rule(pick=st.integers(0, 1000))
    def done(self, pick: int) -> None:
        self._done(self._pick(pick))

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        for item in self._running():
            self._done(item)
        self.clock.set(1000.0)
        while (taken := self.queue.take()) is not None:
            item = self._of(taken.key)[0]
            assert taken.value == item.value
            self.items.remove(item)
            self.queue.done(taken)
        assert not self.items
        assert self.queue.idle
        assert self.queue.next_due() is None
        assert self.queue.statistics().weight == 0

    def _done(self, item: Any) -> None:
        assert item.taken is not None
        self.queue.done(item.taken)
        self.items.remove(item)

    def _of(self, key: str) -> list[Any]:
        return [item for item in self.items if item.key == key]

    def _running(self) -> list[Any]:
        return [item for item in self.items if item.taken is not None]

    def _pick(self, pick: int) -> Any:
        running = self._running()
        return running[pick % len(running)]
