"""The listing of a queue: a bounded copy of its next items, in the order in which they are handed out."""

import heapq
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from declctl.kit import KeyedQueue, ManualClock
from declctl.kit.pending import ItemState, smallest_first

KEYS = "abcd"
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "done", "retry", "pass", "wait"]), st.sampled_from(KEYS)), max_size=40
)


class Counted(Sequence):
    """A heap that counts how often an entry is read."""

    def __init__(self, entries: list) -> None:
        self.entries, self.reads = entries, 0

    def __getitem__(self, at):
        self.reads += 1
        return self.entries[at]

    def __len__(self) -> int:
        return len(self.entries)


def queue_of(clock: ManualClock, **options) -> KeyedQueue:
    return KeyedQueue(
        clock=clock, weigh=len, merge=lambda old, new, _: [old, new], merge_above=10**6, **options
    )


@given(st.lists(st.integers(), unique=True))
def test_a_heap_is_read_in_order(numbers: list[int]) -> None:
    """The entries come sorted, and the heap stays as it is."""
    heap = [(number, str(number)) for number in numbers]
    heapq.heapify(heap)
    before = list(heap)
    assert [entry[0] for entry in smallest_first(heap)] == sorted(numbers)
    assert heap == before


def test_the_first_entries_of_a_large_heap_need_few_reads() -> None:
    """A hundred of a hundred thousand: the lock of a queue is held for a short time."""
    heap = Counted([(number,) for number in range(100_000)])
    assert [entry[0] for _, entry in zip(range(100), smallest_first(heap), strict=False)] == list(range(100))
    assert heap.reads <= 200


@settings(max_examples=200)
@given(STEPS)
def test_the_order_of_the_listing_is_that_in_which_items_are_handed_out(steps: list) -> None:
    """After any history, one worker gets the items as the listing has them, with the same attempts."""
    clock = ManualClock()
    queue = queue_of(clock)
    held, delay = [], 100.0
    for number, (step, key) in enumerate(steps):
        if step == "add":
            queue.add(key, f"{key}{number}")
        elif step == "wait":
            clock.set(150.0)
        elif (item := queue.take()) is not None:
            if step == "retry":
                queue.retry(item, delay)
                delay += 30.001  # no two are due at the same time
            elif step == "done":
                queue.done(item)
            else:
                held.append(item)
    for item in held:
        queue.done(item)
    shown = queue.snapshot(10_000)
    assert len(shown.items) == shown.waiting + shown.delayed
    assert shown.running == 0
    assert queue.snapshot(3).items == shown.items[:3]
    handed_out = []
    while (due := queue.next_due()) is not None:
        clock.set(due)
        item = queue.take()
        if item is not None:
            handed_out.append((item.value, item.attempts))
            queue.done(item)
    assert [(item.value, item.retries) for item in shown.items] == handed_out


def test_each_item_says_what_it_waits_for() -> None:
    """One that runs, one behind it, one that backs off, one that waits, and one that rests."""
    clock = ManualClock()
    queue = queue_of(clock)
    for key in ("runs", "fails", "runs", "waits"):
        queue.add(key, key)
    running = queue.take()
    failing = queue.take()
    queue.retry(failing, 30.0)
    queue.debounce = 5.0
    queue.add("rests", "rests")
    shown = queue.snapshot(100, [running, failing])
    assert [(item.key, item.state, item.due) for item in shown.items] == [
        ("runs", ItemState.RUNNING, None),
        ("runs", ItemState.BEHIND, None),
        ("waits", ItemState.WAITING, None),
        ("rests", ItemState.RESTING, 1005.0),
        ("fails", ItemState.BACKING_OFF, 1030.0),
    ]
    assert (shown.waiting, shown.running, shown.delayed) == (3, 1, 1)
    # What waits or rests belongs to no code until its time has come.
    assert [item.epoch for item in shown.items] == [0, 0, 0, None, None]
