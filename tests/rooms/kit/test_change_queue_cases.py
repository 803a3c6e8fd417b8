"""The queue of changes: the cases that a random walk seldom meets, its debounce, and its listing."""

import heapq
import threading
import weakref
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declctl.kit import ManualClock, SystemClock
from declctl.kit.change_queue import ChangeQueue
from declctl.kit.key_queue import NO_EPOCH, EpochCounter, QueueItem
from declctl.kit.pending import ItemState, smallest_first


class Value(str):
    """A string that can be referred to weakly."""

    __slots__ = ("__weakref__",)


def merge(waiting, new, attempted):
    """Added and Deleted are nothing, Deleted and Added are both; else the newer stays."""
    if (waiting, new) == ("Added", "Deleted"):
        return []
    return [waiting, new] if (waiting, new) == ("Deleted", "Added") else [new]


def queue_of(clock=None, **options):
    settings = {"merge_above": 1_000_000, "keyed": True} | options
    return ChangeQueue(clock=clock or ManualClock(), weigh=len, merge=merge, **settings)


def drain(queue):
    delivered = []
    while (item := queue.take()) is not None:
        delivered.append((str(item.value), item.attempts))
        queue.done(item)
    return delivered


def test_values_live_no_longer_than_their_delivery():
    """Ten thousand short-lived objects behind a stuck handler leave neither turns nor values behind."""
    queue = queue_of()
    queue.add("stuck", "Modified")
    queue.take()
    queue.add("last", "Modified")
    values = []
    for n in range(10_000):
        value = Value("Added")
        values.append(weakref.ref(value))
        queue.add(f"k{n}", value)
        del value
        queue.add(f"k{n}", "Deleted")
    assert not [value for value in values if value() is not None]
    assert queue.turns < 200
    assert drain(queue) == [("Modified", 0)]
    queue = queue_of(keyed=False)
    value = Value("one")
    watched = weakref.ref(value)
    queue.add("k", value)
    queue.add("k", "two")
    del value
    queue.done(queue.take())
    assert watched() is None
    assert drain(queue) == [("two", 0)]
    queue = queue_of()
    queue.add("k", "Modified")
    running = queue.take()
    queue.add("k", "Added")
    assert queue.take() is None
    queue.done(running)
    queue.add("k", "Deleted")  # the value whose turn had come has vanished
    queue.add("k", "Modified")
    assert drain(queue) == [("Modified", 0)]


@pytest.mark.guarantee("G2", "G3")
def test_threads_that_take_at_once_get_each_value_once_and_each_key_in_order():
    """Four workers and a feeder: nothing lost, nothing twice, never two of a key (G2, G3)."""
    queue: ChangeQueue[str] = ChangeQueue(clock=SystemClock(), weigh=len, merge=merge, merge_above=1_000_000)
    seen: dict[str, list[int]] = {f"k{n}": [] for n in range(7)}
    busy: set[str] = set()
    faults: list[str] = []
    fed = threading.Event()

    def work() -> None:
        while not (fed.is_set() and queue.idle):
            item: QueueItem[str] | None = queue.take()
            if item is None:
                continue
            if item.key in busy:
                faults.append(item.key)
            busy.add(item.key)
            seen[item.key].append(int(item.value))
            busy.discard(item.key)
            queue.done(item)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for worker in workers:
        worker.start()
    for n in range(2000):
        queue.add(f"k{n % 7}", str(n))
    fed.set()
    for worker in workers:
        worker.join(30.0)
    assert not faults
    assert seen == {f"k{k}": [n for n in range(2000) if n % 7 == k] for k in range(7)}


def test_what_waits_behind_a_retry_of_a_removed_handler_stays_in_its_epoch():
    """No other code will come: its end waits for what is due and for what waits, and not for a back-off."""
    clock = ManualClock()
    queue = queue_of(clock, keyed=False)
    for key in "ab":
        queue.add(key, "first")
        queue.add(key, "second")
    due, backing_off = queue.take(), queue.take()
    queue.retry(due, 1.0)
    queue.retry(backing_off, 5.0)
    clock.set(1.0)
    queue.part()
    assert queue.outstanding(queue.epoch) == 3, "all but the one that backs off"
    assert drain(queue) == [("first", 1), ("second", 0)]
    assert queue.outstanding(queue.epoch) == 1
    clock.set(5.0)
    assert drain(queue) == [("first", 1), ("second", 0)]
    assert queue.idle


@pytest.mark.guarantee("G22")
@pytest.mark.parametrize("handing_over", [False, True])
def test_epochs_of_which_nothing_is_pending_are_forgotten(handing_over):
    """A thousand cuts leave nothing behind; what waits since the first belongs to the last all the same."""
    queue = queue_of(keyed=False)
    queue.add("a", "value")
    held = queue.take()
    queue.add("a", "value")
    for number in range(1000):
        queue.add(f"b{number}", "value")
        ended = queue.cut()
        if handing_over:
            queue.hand_over(ended)
        queue.done(queue.take())
    assert held.epoch == 0
    assert [epoch for epoch in range(1001) if queue.outstanding(epoch)] == (
        [0, 1000] if handing_over else [0]
    )
    assert len(queue.remembered_epochs) <= 2
    queue.done(held)
    queue.done(queue.take())
    assert queue.idle


@pytest.mark.guarantee("G4")
def test_queues_that_share_a_counter_are_cut_together_until_they_part():
    """One step for all of them, however many; who has parted stays in the epoch that it was in."""
    epochs = EpochCounter()
    one, other, gone = (queue_of(epochs=epochs) for _ in range(3))
    for queue in (one, other, gone):
        queue.add("a", "old")
    gone.part()
    assert epochs.cut() == 0
    for queue in (one, other, gone):
        queue.add("b", "new")
    assert [(queue.outstanding(0), queue.outstanding(1)) for queue in (one, other, gone)] == [
        (1, 1),
        (1, 1),
        (2, 0),
    ]
    one.hand_over(0)
    assert one.take().epoch == 1
    assert other.take().epoch == 0


Queue = ChangeQueue[str]


def merge_texts(waiting: str, new: str, attempted: bool) -> list[str]:
    """`+` is Added, `-` Deleted, all else a change; as the table of the contract."""
    if waiting == "-":
        return [waiting, new]
    if waiting.startswith("+") and new == "-" and not attempted:
        return []
    return [new] if new == "-" else [waiting + new]


@pytest.fixture
def queue(clock: ManualClock) -> Queue:
    """A queue with a debounce of one second."""
    made: Queue = ChangeQueue(clock=clock, weigh=len, merge=merge_texts, merge_above=1000)
    made.debounce = 1.0
    return made


def taken(queue: Queue) -> list[tuple[str, str]]:
    """All that may be taken now, done."""
    found: list[tuple[str, str]] = []
    while (item := queue.take()) is not None:
        found.append((item.key, item.value))
        queue.done(item)
    return found


def test_a_key_that_never_rests_is_handled_too(queue: Queue, clock: ManualClock) -> None:
    """After ten times the debounce at the latest, whatever comes."""
    moments: list[float] = []
    for step in range(60):
        queue.add("a", "x")
        clock.set(0.5)
        moments += [0.5 * (step + 1) for _ in taken(queue)]
    assert moments[0] == 10.0
    assert max(later - earlier for earlier, later in pairwise(moments)) <= 10.5


def test_of_a_removed_handler_all_comes_at_once_and_is_drained(queue: Queue) -> None:
    """In the epoch that is drained: nothing that a debounce holds back is lost."""
    queue.add("a", "1")
    queue.part()
    queue.debounce = 0.0
    assert (queue.next_due(), queue.outstanding(queue.epoch)) == (0.0, 1)
    assert taken(queue) == [("a", "1")]


def test_at_the_end_of_the_process_what_rests_is_kept_and_nothing_else(
    queue: Queue, clock: ManualClock
) -> None:
    """Changes that wait for a worker are dropped as ever, unless they come before one that rests."""
    for key in ("waits", "a"):
        queue.add(key, "1")
    clock.set(1.0)
    queue.add("runs", "0")
    queue.debounce = 0.0
    running = None
    while running is None or running.key != "runs":
        item = queue.take()
        assert item is not None
        if item.key == "runs":
            running = item
        else:
            queue.done(item)
    queue.add("waits", "2")
    queue.add("a", "2")
    queue.add("runs", "passed")
    queue.debounce = 1.0
    queue.add("a", "3")
    queue.add("runs", "rests")
    assert queue.keep_resting() == (True, 1)
    queue.drop(running)  # its worker has not called for it: it counts as the one that was not taken
    assert taken(queue) == [("a", "2"), ("runs", "passed"), ("a", "3"), ("runs", "rests")]
    assert queue.idle
    assert (queue.statistics().dropped, queue.statistics().taken) == (2, 6)


def test_keys_that_come_and_go_leave_no_memory(clock: ManualClock) -> None:
    """What rests and is merged away long before its time is forgotten."""
    queue = queue_of(clock)
    queue.debounce = 3600.0
    values = []
    for n in range(1000):
        value = Value("Added")
        values.append(weakref.ref(value))
        queue.add(f"k{n}", value)
        del value
        queue.add(f"k{n}", "Deleted")
    assert sum(value() is not None for value in values) <= 65
    assert (queue.idle, queue.next_due()) == (True, None)


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


@settings(max_examples=80)
@given(STEPS)
def test_the_order_of_the_listing_is_that_in_which_items_are_handed_out(steps: list) -> None:
    """After any history, one worker gets the items as the listing has them, with the same attempts."""
    clock = ManualClock()
    queue = queue_of(clock, keyed=False)
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
    figures, shown = queue.snapshot(10_000)
    assert len(shown) == figures.waiting + figures.backing_off
    assert figures.running == 0
    assert [item.value for item in queue.snapshot(3)[1]] == [item.value for item in shown[:3]]
    handed_out = []
    while (due := queue.next_due()) is not None:
        clock.set(due)
        item = queue.take()
        if item is not None:
            handed_out.append((item.value, item.attempts))
            queue.done(item)
    assert [(item.value, item.attempts) for item in shown] == handed_out


def test_each_item_says_what_it_waits_for() -> None:
    """One that runs, one behind it, one that backs off, one that waits, and one that rests."""
    clock = ManualClock()
    queue = queue_of(clock, keyed=False)
    for key in ("runs", "fails", "runs", "waits"):
        queue.add(key, key)
    queue.take()
    queue.retry(queue.take(), 30.0)
    queue.debounce = 5.0
    queue.add("rests", "rests")
    figures, shown = queue.snapshot(100)
    assert [(item.key, item.state, item.due) for item in shown] == [
        ("runs", ItemState.RUNNING, None),
        ("runs", ItemState.BEHIND, None),
        ("waits", ItemState.WAITING, None),
        ("rests", ItemState.RESTING, 1005.0),
        ("fails", ItemState.BACKING_OFF, 1030.0),
    ]
    assert (figures.waiting, figures.running, figures.backing_off) == (3, 1, 1)
    queue.add("fails", "after it")  # it rests for its own time, and not as long as the retry before it
    assert [item.due for item in queue.snapshot(100)[1][-3:]] == [1005.0, 1005.0, 1030.0]
    queue.add("gone", "Deleted")
    queue.debounce = 1.0
    queue.add("gone", "Added")  # after the one that rests for longer
    assert [item.due for item in queue.snapshot(100)[1] if item.key == "gone"] == [1005.0, 1005.0]
    # What waits or rests belongs to no code until its time has come.
    assert [item.epoch for item in shown] == [0, 0, 0, NO_EPOCH, NO_EPOCH]
