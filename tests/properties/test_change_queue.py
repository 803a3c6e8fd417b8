"""The queue of changes against a model that keeps one plain list and looks at all of it every time."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from declctl.kit import ManualClock
from declctl.kit.change_queue import ChangeQueue
from declctl.kit.key_queue import QueueItem
from tests.properties.merging import ModelOfQueue, Value, merge

KEYS = st.sampled_from("abcd")
KINDS = st.sampled_from(["Added", "Modified", "Modified", "Deleted", "Resync"])
WEIGHTS = st.integers(0, 30)
RETRIED = -1  # the epoch of what is to be retried, and of what is behind it: the newest when that is taken
PICKS = st.integers(0, 1000)
ROOM = st.sampled_from([1, 2, 100, 100])  # how many may be out at once


@dataclass(eq=False)
class Item:
    """What the model knows of one value: it waits, runs (`taken`) or backs off until `due`."""

    key: str
    value: Value
    epoch: int
    turn: int
    attempts: int = 0
    due: float | None = None
    backs_off: bool = False  # no `take` has found it due
    delayed: bool = False
    excluded: bool = False
    taken: QueueItem[Value] | None = None


@pytest.mark.guarantee("G10")
class LanesMachine(ModelOfQueue):
    """Everything that may be done to queue, in any order."""

    @initialize(keyed=st.booleans(), merge_above=st.sampled_from([0, 20, 60, 10_000]), max_running=ROOM)
    def start(self, keyed: bool, merge_above: int, max_running: int) -> None:
        self.clock = ManualClock()
        self.queue: ChangeQueue[Value] = ChangeQueue(
            clock=self.clock,
            weigh=lambda v: v.weight,
            merge=merge,
            merge_above=merge_above,
            keyed=keyed,
            max_running=max_running,
        )
        self.items: list[Item] = []
        self.adopted: dict[int, int] = {}
        self.epoch = self.count = self.taken = self.merged = self.dropped = 0

    @rule(key=KEYS, kind=KINDS, weight=WEIGHTS)
    def add(self, key: str, kind: str, weight: int) -> None:
        value = self._new(kind, weight)
        self.queue.add(key, value)
        self._model_add(key, value)

    @rule(many=st.lists(st.tuples(KEYS, KINDS, WEIGHTS), max_size=6))
    def add_all(self, many: list[tuple[str, str, int]]) -> None:
        values = [(key, self._new(kind, weight)) for key, kind, weight in many]
        self.queue.add_all(values)
        for key, value in values:
            self._model_add(key, value)

    @rule()
    def take(self) -> None:
        eligible = [item for item in self._heads() if self._may_be_taken(item)]
        taken = self.queue.take()
        if not self._has_room():
            assert taken is None
            assert self.queue.next_due() is None
            return
        for item in self.items:
            item.backs_off = item.backs_off and item.due is not None and item.due > self.clock.monotonic()
        if taken is None:
            assert not eligible
            resting = [item.due - self.clock.monotonic() for item in self.items if item.due is not None]
            assert self.queue.next_due() == (min(resting) if resting else None)
            return
        (item,) = [item for item in eligible if item.key == taken.key]
        assert (taken.value, taken.attempts) == (item.value, item.attempts)
        if item.epoch == RETRIED:
            self._join(item.key, self.epoch)
        item.epoch = self._owner(item.epoch)
        assert taken.epoch == item.epoch
        if not item.attempts:
            # One that was retried has held its key itself, as long as it ran and backed off.
            free = [other for other in eligible if not other.delayed and not other.attempts]
            overtaken = [other for other in free if other.turn < item.turn]
            assert not overtaken, "a value overtook an older one whose key was never held"
            self.taken += 1
        item.taken, item.due = taken, None
        self._delay(item.key)

    @precondition(lambda self: self._running())
    @rule(pick=PICKS)
    def drop(self, pick: int) -> None:
        item = self._pick(pick)
        assert item.taken is not None
        self.queue.drop(item.taken)
        self.items.remove(item)
        self.taken -= 1
        self.dropped += 1

    @precondition(lambda self: self._running())
    @rule(pick=PICKS, delay=st.sampled_from([0.0, 1.0, 5.0]))
    def retry(self, pick: int, delay: float) -> None:
        item = self._pick(pick)
        assert item.taken is not None
        self.queue.retry(item.taken, delay)
        item.taken, item.attempts, item.backs_off = None, item.attempts + 1, True
        self._join(item.key, RETRIED)
        item.excluded = False
        item.due = self.clock.monotonic() + delay
        if not self.queue.keyed:
            return
        for newer in [other for other in self._of(item.key) if other is not item]:
            remaining = merge(item.value, newer.value, True)
            if len(remaining) != 1:
                return
            item.value = remaining[0]
            self.merged += 1
            self.items.remove(newer)

    @precondition(lambda self: self._running())
    @rule(pick=PICKS)
    def exclude_from_limit(self, pick: int) -> None:
        item = self._pick(pick)
        assert item.taken is not None
        self.queue.exclude_from_limit(item.taken)
        item.excluded = True

    @rule(seconds=st.sampled_from([0.5, 1.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.set(seconds)

    @rule()
    def cut(self) -> None:
        assert self.queue.cut() == self.epoch
        self.epoch += 1

    @precondition(lambda self: self.epoch > 0)
    @rule(pick=PICKS)
    def hand_over(self, pick: int) -> None:
        old = pick % self.epoch
        self.queue.hand_over(old)
        # What `old` had taken over goes on with it. What was taken from `old` before stays where it is.
        for epoch in [epoch for epoch, owner in self.adopted.items() if owner == old]:
            self.adopted[epoch] = self.epoch
        self.adopted[old] = self.epoch

    @rule()
    def clear(self) -> None:
        left = [item for item in self.items if item.taken is None]
        assert self.queue.clear() == len(left)
        self.dropped += len(left)
        self.taken -= sum(1 for item in left if item.attempts)
        self.items = [item for item in self.items if item.taken is not None]

    @rule(keyed=st.booleans(), merge_above=st.sampled_from([0, 40, 10_000]), max_running=ROOM)
    def reconfigure(self, keyed: bool, merge_above: int, max_running: int) -> None:
        self.queue.keyed, self.queue.merge_above, self.queue.max_running = keyed, merge_above, max_running

    @invariant()
    def figures(self) -> None:
        seen = self.queue.statistics()
        fresh = sum(1 for item in self.items if item.taken is None and not item.attempts)
        assert seen.added == self.count == seen.taken + fresh + seen.merged + seen.dropped
        assert (seen.taken, seen.merged, seen.dropped) == (self.taken, self.merged, self.dropped)
        assert seen.running == len(self._running())
        assert seen.backing_off == sum(1 for item in self.items if item.backs_off)
        assert seen.waiting == len(self.items) - seen.running - seen.backing_off
        assert seen.weight == sum(item.value.weight for item in self.items)
        assert self.queue.idle == (not self.items)

    @invariant()
    def epochs(self) -> None:
        assert self.queue.epoch == self.epoch
        for epoch in range(self.epoch + 1):
            # What runs stays with the code that has begun it; the rest is for the code that took it over.
            owners = [i.epoch if i.taken else self._owner(i.epoch) for i in self.items if i.epoch != RETRIED]
            assert self.queue.outstanding(epoch) == owners.count(epoch)

    @invariant()
    def nobody_sleeps_through_work(self) -> None:
        if self._has_room() and any(self._may_be_taken(item) for item in self._heads()):
            assert self.queue.next_due() == 0.0

    def _new(self, kind: str, weight: int) -> Value:
        self.count += 1
        return Value(kind, (self.count,), weight)

    def _model_add(self, key: str, value: Value) -> None:
        tail = next(iter(reversed(self._of(key))), None)
        weight = sum(item.value.weight for item in self.items)
        full = self.queue.keyed or weight >= self.queue.merge_above
        # What was attempted keeps its value, unless the newest value is all that counts.
        fixed = tail is not None and (tail.taken is not None or (tail.attempts and not self.queue.keyed))
        if full and tail is not None and not fixed and self._owner(tail.epoch) == self.epoch:
            remaining = merge(tail.value, value, tail.attempts > 0)
            if len(remaining) == 1:
                tail.value = remaining[0]
                self.merged += 1
                return
            if not remaining:
                self.items.remove(tail)
                self.merged += 2
                return
        behind_retry = any(other.epoch == RETRIED for other in self._of(key))
        item = Item(key, value, RETRIED if behind_retry else self.epoch, self.count)
        item.delayed = self._is_held(key)
        self.items.append(item)

    def _heads(self) -> list[Item]:
        return [self._of(key)[0] for key in sorted({item.key for item in self.items})]

    def _has_room(self) -> bool:
        return sum(1 for item in self._running() if not item.excluded) < self.queue.max_running

    def _is_held(self, key: str) -> bool:
        return any(item.taken is not None or item.due is not None for item in self._of(key))

    def _may_be_taken(self, head: Item) -> bool:
        return head.taken is None and (head.due is None or head.due <= self.clock.monotonic())

    def _delay(self, key: str) -> None:
        for item in self._of(key)[1:]:
            item.delayed = True

    def _join(self, key: str, epoch: int) -> None:
        for item in self._of(key):
            item.epoch = epoch

    def _owner(self, epoch: int) -> int:
        if epoch == RETRIED:
            return self.epoch
        return self.adopted.get(epoch, epoch)


TestChangeQueue = LanesMachine.TestCase
TestChangeQueue.settings = settings(max_examples=50, stateful_step_count=60, deadline=None)
