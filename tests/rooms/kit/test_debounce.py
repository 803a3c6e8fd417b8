"""Debounce in the keyed queue: values rest until their key is quiet, and are handed out as one."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from declctl.kit import KeyedQueue, ManualClock
from declctl.kit.debounce import LONGEST_REST, RestingValues

Queue = KeyedQueue[str]


def merge(waiting: str, new: str, attempted: bool) -> list[str]:
    """`+` is Added, `-` Deleted, all else a change; as the table of the contract."""
    if waiting == "-":
        return [waiting, new]
    if waiting.startswith("+") and new == "-" and not attempted:
        return []
    return [new] if new == "-" else [waiting + new]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> Queue:
    """A queue with a debounce of one second."""
    made: Queue = KeyedQueue(clock=clock, weigh=len, merge=merge, merge_above=1000)
    made.debounce = 1.0
    return made


def taken(queue: Queue) -> list[tuple[str, str]]:
    """All that may be taken now, done."""
    found: list[tuple[str, str]] = []
    while (item := queue.take()) is not None:
        found.append((item.key, item.value))
        queue.done(item)
    return found


def test_changes_of_a_key_are_one_when_the_key_is_quiet(queue: Queue, clock: ManualClock) -> None:
    """Each further change begins the wait anew; another key has a wait of its own."""
    queue.add("a", "1")
    clock.set(0.6)
    queue.add("a", "2")
    queue.add("b", "x")
    clock.set(0.6)
    assert taken(queue) == []
    assert queue.next_due() == pytest.approx(0.4)
    clock.set(0.4)
    assert taken(queue) == [("a", "12"), ("b", "x")]
    assert queue.idle
    assert queue.statistics().merged == 1


def test_a_key_that_never_rests_is_handled_too(queue: Queue, clock: ManualClock) -> None:
    """After ten times the debounce at the latest, whatever comes."""
    moments: list[float] = []
    for step in range(60):
        queue.add("a", "x")
        clock.set(0.5)
        moments += [0.5 * (step + 1) for _ in taken(queue)]
    assert moments[0] == LONGEST_REST * 1.0
    assert max(later - earlier for earlier, later in pairwise(moments)) <= LONGEST_REST + 0.5


def test_what_is_added_and_gone_again_is_nothing(queue: Queue, clock: ManualClock) -> None:
    """Added + Deleted: nothing is delivered, and both are counted as merged."""
    queue.add("a", "+")
    queue.add("a", "-")
    clock.set(20.0)
    assert taken(queue) == []
    assert (queue.statistics().merged, queue.statistics().waiting) == (2, 0)
    assert queue.idle
    assert queue.next_due() is None


def test_what_is_gone_and_made_anew_is_both_in_order(queue: Queue, clock: ManualClock) -> None:
    """Deleted + Added: they can't be one, and their order stays, also at one moment."""
    queue.add("a", "-")
    queue.add("a", "+")
    queue.add("a", "1")
    clock.set(0.5)
    queue.add("a", "2")
    clock.set(0.5)
    assert taken(queue) == [("a", "-")]
    clock.set(0.5)
    assert taken(queue) == [("a", "+12")]


def test_a_change_during_a_call_rests_after_it(queue: Queue, clock: ManualClock) -> None:
    """The call has the older state; what came meanwhile waits until it is quiet, and for the call."""
    queue.add("a", "1")
    clock.set(1.0)
    item = queue.take()
    assert item is not None
    queue.add("a", "2")
    clock.set(0.5)
    queue.add("a", "3")
    queue.done(item)
    assert taken(queue) == []
    clock.set(1.0)
    assert taken(queue) == [("a", "23")]


def test_a_failed_change_keeps_its_key_from_what_has_come_to_rest(queue: Queue, clock: ManualClock) -> None:
    """The retry comes first; its delay is that of the back-off, and no debounce."""
    queue.add("a", "1")
    clock.set(1.0)
    item = queue.take()
    assert item is not None
    queue.retry(item, 5.0)
    queue.add("a", "2")
    clock.set(2.0)
    assert taken(queue) == []
    clock.set(3.0)
    assert taken(queue) == [("a", "1"), ("a", "2")]


def test_what_rests_belongs_to_the_code_that_runs_when_it_is_quiet(queue: Queue, clock: ManualClock) -> None:
    """A reload in between: nothing is lost, changes before and after it are one, and no drain waits."""
    queue.add("a", "1")
    old = queue.cut()
    assert queue.outstanding(old) == 0
    queue.add("a", "2")
    clock.set(1.0)
    item = queue.take()
    assert item is not None
    assert (item.value, queue.epoch_of(item)) == ("12", old + 1)


def test_a_debounce_of_zero_ends_all_rests(queue: Queue) -> None:
    """An edit of the manifest; in order also with what comes after it."""
    queue.add("a", "-")
    queue.add("a", "+")
    queue.debounce = 0.0
    assert queue.next_due() == 0.0
    queue.add("a", "1")
    assert taken(queue) == [("a", "-"), ("a", "+"), ("a", "1")]


def test_a_shorter_debounce_does_not_change_the_order_of_a_key(queue: Queue, clock: ManualClock) -> None:
    """A rest that has begun keeps its time, and what comes behind it rests as long."""
    queue.debounce = 10.0
    queue.add("a", "-")
    queue.debounce = 1.0
    queue.add("a", "+")
    clock.set(2.0)
    assert taken(queue) == []
    clock.set(8.0)
    assert taken(queue) == [("a", "-"), ("a", "+")]


def test_no_change_rests_while_the_buffer_is_full(clock: ManualClock) -> None:
    """`bufferBytes` bounds what rests: beyond it, the handler gets its work at once."""
    queue: Queue = KeyedQueue(clock=clock, weigh=len, merge=merge, merge_above=10)
    queue.debounce = 1.0
    for number in range(10):
        queue.add(f"k{number}", "x")
    assert queue.next_due() == 1.0
    queue.add("more", "x")
    assert len(taken(queue)) == 11


def test_of_a_removed_handler_all_comes_at_once_and_is_drained(queue: Queue) -> None:
    """In the epoch that is drained: nothing that a debounce holds back is lost."""
    queue.add("a", "1")
    queue.part()
    assert queue.end_debounce()
    assert queue.outstanding(queue.epoch) == 1
    assert taken(queue) == [("a", "1")]
    assert not queue.end_debounce()


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
    queue.done(running)
    assert taken(queue) == [("a", "2"), ("runs", "passed"), ("a", "3"), ("runs", "rests")]
    assert queue.idle
    assert queue.statistics().dropped == 1


def test_without_a_rest_the_end_drops_nothing_itself(queue: Queue) -> None:
    """What waits is dropped, and counted, when the queue is cleared."""
    queue.debounce = 0.0
    queue.add("a", "1")
    assert queue.keep_resting() == (False, 0)
    assert queue.clear() == 1


def test_what_rests_is_dropped_with_all_that_waits(queue: Queue) -> None:
    """`clear` counts it, and leaves nothing behind."""
    queue.add("a", "1")
    queue.add("b", "1")
    assert queue.clear() == 2
    assert queue.idle
    assert queue.next_due() is None
    queue.add("a", "2")
    assert queue.statistics().waiting == 1


def test_keys_that_come_and_go_leave_no_memory(clock: ManualClock) -> None:
    """Rests that were ended early are forgotten long before their time."""
    resting: RestingValues[Callable[[], None]] = RestingValues()
    for _ in range(1000):
        resting.end(resting.begin(lambda: None, 0.0, 3600.0))
    assert resting.number == 0
    assert resting.next() is None
    assert resting.size <= 65
