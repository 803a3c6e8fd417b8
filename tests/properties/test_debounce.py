"""The queue of changes with a debounce, against a model that looks at a plain list of all that waits."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from declctl.kit import ManualClock
from declctl.kit.change_queue import ChangeQueue
from declctl.kit.key_queue import LONGEST_REST, QueueItem
from tests.properties.merging import ModelOfQueue, Value, merge

KEYS = st.sampled_from("abc")
KINDS = st.sampled_from(["Added", "Modified", "Modified", "Deleted", "Resync"])
SECONDS = st.sampled_from([0.0, 1.0, 1.0, 3.0])


@dataclass(eq=False)
class Waiting:
    """What the model knows of one value: it rests, waits, runs (`taken`) or backs off until `due`."""

    key: str
    value: Value
    rests_until: float | None
    latest: float
    epoch: int | None  # None while it rests or backs off
    attempts: int = 0
    due: float | None = None
    taken: QueueItem[Value] | None = None


class DebounceMachine(ModelOfQueue):
    """Changes, calls, retries, reloads and edits of the debounce, at any times."""

    @initialize(seconds=SECONDS)
    def start(self, seconds: float) -> None:
        self.clock = ManualClock()
        self.queue: ChangeQueue[Value] = ChangeQueue(
            clock=self.clock, weigh=lambda value: value.weight, merge=merge, merge_above=1 << 30
        )
        self.queue.debounce = seconds
        self.items: list[Waiting] = []
        self.count = self.merged = self.dropped = 0
        self.newest: dict[str, int] = {}  # by key: the newest addition that was handed out

    @rule(key=KEYS, kind=KINDS)
    def add(self, key: str, kind: str) -> None:
        self.count += 1
        now, seconds = self.clock.monotonic(), self.queue.debounce
        value = Value(kind, (self.count,), 1)
        self.queue.add(key, value)
        if not seconds:
            self._end_rests()
        tail = next(iter(reversed(self._of(key))), None)
        if tail is not None and tail.rests_until is not None:
            remaining = merge(tail.value, value, False)
            if len(remaining) < 2:
                self.merged += 2 - len(remaining)
                if remaining:
                    tail.value = remaining[0]
                    tail.rests_until = max(tail.rests_until, min(now + seconds, tail.latest))
                else:
                    self.items.remove(tail)
                return
        if not seconds:
            self.items.append(Waiting(key, value, None, 0.0, self.queue.epoch))
            return
        before = tail.rests_until if tail is not None and tail.rests_until is not None else 0.0
        until, latest = max(now + seconds, before), max(now + LONGEST_REST * seconds, before)
        self.items.append(Waiting(key, value, until, latest, None))

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.set(seconds)

    @rule()
    def take(self) -> None:
        now = self.clock.monotonic()
        for item in self.items:
            if item.due is not None and item.due <= now:
                item.epoch = self.queue.epoch
        if not self.queue.debounce:
            self._end_rests()
        for item in self.items:
            if item.rests_until is not None and item.rests_until <= now:
                item.rests_until, item.epoch = None, self.queue.epoch
        heads = [self._of(key)[0] for key in sorted({item.key for item in self.items})]
        eligible = [each for each in heads if each.taken is None and each.epoch is not None]
        taken = self.queue.take()
        if taken is None:
            assert not eligible
            return
        (item,) = [each for each in eligible if each.key == taken.key]
        assert taken.value == item.value
        assert taken.epoch == item.epoch
        # No change of a key is handed out before one that came earlier.
        assert item.attempts or min(taken.value.parts) > self.newest.get(item.key, 0)
        self.newest[item.key] = max(taken.value.parts)
        item.taken, item.due = taken, None

    @precondition(lambda self: self._running())
    @rule(pick=st.integers(0, 100))
    def retry(self, pick: int) -> None:
        item = self._pick(pick)
        assert item.taken is not None
        self.queue.retry(item.taken, 2.0)
        item.taken, item.epoch, item.attempts = None, None, item.attempts + 1
        item.due = self.clock.monotonic() + 2.0

    @rule()
    def reload(self) -> None:
        self.queue.cut()

    @rule(seconds=SECONDS)
    def edit(self, seconds: float) -> None:
        self.queue.debounce = seconds

    @rule()
    def clear(self) -> None:
        left = [item for item in self.items if item.taken is None]
        assert self.queue.clear() == len(left)
        self.dropped += len(left)
        self.items = self._running()

    @rule()
    def keep_resting(self) -> None:
        keys = {item.key for item in self.items if item.rests_until is not None}
        gone = [
            item
            for item in self.items
            if item.taken is None and item.due is None and item.key not in keys and keys
        ]
        # Of a key in back-off, the queue still hands out what has had its turn, or drops it: both are fine.
        released = [item for item in gone if any(o.due is not None for o in self._of(item.key))]
        rested, dropped = self.queue.keep_resting()
        assert rested == bool(keys)
        assert len(gone) - len(released) <= dropped <= len(gone)
        self.dropped += self.queue.clear()
        self.dropped += dropped
        self.items = self._running()
        self.queue.debounce = 1.0

    @invariant()
    def figures(self) -> None:
        seen = self.queue.statistics()
        backing_off = [item for item in self.items if item.due is not None and item.epoch is None]
        waiting = [item for item in self.items if item.taken is None and item not in backing_off]
        assert seen.added == self.count
        assert (seen.merged, seen.dropped) == (self.merged, self.dropped)
        assert (seen.waiting, seen.running) == (len(waiting), len(self._running()))
        assert seen.weight == sum(item.value.weight for item in self.items)
        assert self.queue.idle == (not self.items)

    @invariant()
    def no_worker_sleeps_through_work(self) -> None:
        now = self.clock.monotonic()
        heads = [self._of(key)[0] for key in {item.key for item in self.items}]
        moments = [
            item.due
            if item.due is not None
            else now
            if item.rests_until is None or not self.queue.debounce
            else item.rests_until
            for item in heads
            if item.taken is None
        ]
        if moments:
            due = self.queue.next_due()
            assert due is not None
            assert due <= max(0.0, min(moments) - now)

    def _end_rests(self) -> None:
        for item in self.items:
            if item.rests_until is not None:
                item.rests_until, item.epoch = None, self.queue.epoch


TestDebounce = DebounceMachine.TestCase
TestDebounce.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
