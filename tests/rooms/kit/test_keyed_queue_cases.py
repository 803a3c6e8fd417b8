"""The keyed queue: the cases that a random walk seldom meets."""

import threading
import weakref

import pytest

from declctl.kit import KeyedQueue, ManualClock, SystemClock
from declctl.kit.keyed_queue import EpochCounter, QueueItem


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
    return KeyedQueue(clock=clock or ManualClock(), weigh=len, merge=merge, **settings)


def drain(queue):
    delivered = []
    while (item := queue.take()) is not None:
        delivered.append((str(item.value), item.attempts))
        queue.done(item)
    return delivered


def test_object_made_anew_is_told_after_its_deletion_even_when_a_retry_merges():
    """Under Keyed, a failing change overtaken by Deleted and Added is followed by both, in order."""
    queue = queue_of()
    queue.add("k", "Modified")
    failing = queue.take()
    queue.add("k", "Deleted")
    queue.add("k", "Added")
    queue.retry(failing, 0.0)
    assert drain(queue) == [("Deleted", 1), ("Added", 0)]


def test_change_whose_turn_had_come_may_still_be_merged_to_nothing():
    """Added waits behind a running call, is next when that ends, and is deleted before anybody takes it."""
    queue = queue_of()
    queue.add("k", "Modified")
    running = queue.take()
    queue.add("k", "Added")
    assert queue.take() is None
    queue.done(running)
    queue.add("k", "Deleted")
    assert queue.idle
    queue.add("k", "Modified")
    assert drain(queue) == [("Modified", 0)]
    assert queue.statistics().merged == 2


def test_what_a_handler_has_seen_is_never_merged_to_nothing():
    """A handler that failed on Added has to hear of Deleted."""
    clock = ManualClock()
    queue = queue_of(clock)
    queue.add("k", "Added")
    queue.retry(queue.take(), 1.0)
    queue.add("k", "Deleted")
    assert queue.statistics().merged == 0
    clock.set(1.0)
    assert drain(queue) == [("Added", 1), ("Deleted", 0)]


def test_objects_that_come_and_go_behind_a_stuck_handler_cost_nothing():
    """Ten thousand short-lived objects leave neither turns nor values behind."""
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


def test_finished_change_is_let_go_although_another_of_its_key_waits():
    """A frame lives no longer than its delivery."""
    queue = queue_of(keyed=False)
    value = Value("one")
    watched = weakref.ref(value)
    queue.add("k", value)
    queue.add("k", "two")
    del value
    queue.done(queue.take())
    assert watched() is None
    assert drain(queue) == [("two", 0)]


def test_below_the_limit_nothing_is_merged_and_beyond_it_pending_changes_are():
    """`bufferBytes` counts what waits and what runs."""
    queue = queue_of(keyed=False, merge_above=6)
    for value in ("one", "two", "three", "four"):
        queue.add("k", value)
    assert drain(queue) == [("one", 0), ("four", 0)]
    assert queue.statistics().merged == 2


@pytest.mark.guarantee("G4")
def test_backlog_keeps_its_epoch_until_it_is_handed_over():
    """What waits is the old code's until it is handed over; what backs off is the new code's (G10)."""
    clock = ManualClock()
    queue = queue_of(clock, keyed=False)
    for key in "abc":
        queue.add(key, "value")
    failing, running = queue.take(), queue.take()
    ended = queue.cut()
    queue.retry(failing, 5.0)
    assert queue.outstanding(ended) == 2
    assert queue.epoch_of(failing) == queue.epoch
    waiting = queue.take()
    assert queue.epoch_of(waiting) == ended
    assert not queue.handed_over(ended)
    queue.hand_over(ended)
    assert queue.handed_over(ended)
    assert queue.epoch_of(waiting) == queue.epoch
    clock.set(5.0)
    again = queue.take()
    assert (again is failing, again.attempts) == (True, 1)
    for item in (running, waiting, again):
        queue.done(item)
    assert queue.idle


@pytest.mark.guarantee("G2", "G3")
def test_threads_that_take_at_once_get_each_value_once_and_each_key_in_order():
    """Four workers and a feeder: nothing lost, nothing twice, never two of a key (G2, G3)."""
    queue: KeyedQueue[str] = KeyedQueue(clock=SystemClock(), weigh=len, merge=merge, merge_above=1_000_000)
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


@pytest.mark.guarantee("G10")
def test_what_backs_off_over_a_cut_keeps_neither_the_old_epoch_alive_nor_its_moment():
    """A failing change is tried again on time and by the new code, with its attempts (G10)."""
    clock = ManualClock()
    queue = queue_of(clock, keyed=False)
    queue.add("k", "value")
    queue.retry(queue.take(), 5.0)
    ended = queue.cut()
    assert (queue.outstanding(ended), queue.idle, queue.next_due()) == (0, False, 5.0)
    assert queue.take() is None
    clock.set(5.0)
    item = queue.take()
    assert (queue.epoch_of(item), item.attempts) == (queue.epoch, 1)
    assert queue.epoch == ended + 1


@pytest.mark.guarantee("G10")
def test_retries_that_are_due_belong_to_the_epoch_in_which_a_worker_takes_them():
    """Three are due together and one is taken: at a cut the others wait, and they are the new code's."""
    clock = ManualClock()
    queue = queue_of(clock, keyed=False)
    for key in "abc":
        queue.add(key, "value")
        queue.retry(queue.take(), 5.0)
    clock.set(5.0)
    taken = queue.take()
    ended = queue.cut()
    assert (queue.epoch_of(taken), queue.outstanding(ended)) == (ended, 1)
    assert [queue.epoch_of(queue.take()) for _ in range(2)] == [ended + 1, ended + 1]


@pytest.mark.guarantee("G10")
def test_what_waits_behind_a_retry_belongs_to_the_epoch_of_the_retry():
    """Values from before and after the cut: none is the old code's after the new code has had the first."""
    clock = ManualClock()
    queue = queue_of(clock, keyed=False)
    queue.add("k", "first")
    failing = queue.take()
    queue.add("k", "before")
    queue.retry(failing, 5.0)
    queue.add("k", "behind")
    ended = queue.cut()
    queue.add("k", "after")
    assert (queue.outstanding(ended), queue.outstanding(queue.epoch), queue.idle) == (0, 0, False)
    clock.set(5.0)
    taken = []
    while (item := queue.take()) is not None:
        taken.append((item.value, queue.epoch_of(item)))
        queue.done(item)
    assert taken == [(value, ended + 1) for value in ("first", "before", "behind", "after")]
    assert queue.idle


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
    for number in range(1000):
        queue.add(f"b{number}", "value")
        ended = queue.cut()
        if handing_over:
            queue.hand_over(ended)
        queue.done(queue.take())
    assert queue.epoch_of(held) == (queue.epoch if handing_over else 0)
    assert queue.outstanding(0) == 1
    assert not any(queue.outstanding(epoch) for epoch in range(1, 1001))
    assert queue.remembered_epochs <= {0, 999}  # those before are forgotten with the next one
    queue.done(held)
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
    assert one.epoch_of(one.take()) == 1
    assert other.epoch_of(other.take()) == 0
