"""Lanes: the cases that a random walk seldom meets."""

import threading
import weakref

import pytest

from declctl.kit import Lanes, ManualClock, SystemClock
from declctl.kit.lanes import Era, Ticket


class Value(str):
    """A string that can be referred to weakly."""

    __slots__ = ("__weakref__",)


def merge(waiting, new, attempted):
    """Added and Deleted are nothing, Deleted and Added are both; else the newer stays."""
    if (waiting, new) == ("Added", "Deleted"):
        return []
    return [waiting, new] if (waiting, new) == ("Deleted", "Added") else [new]


def lanes_of(clock=None, **options):
    settings = {"limit": 1_000_000, "keyed": True} | options
    return Lanes(clock=clock or ManualClock(), weigh=len, merge=merge, **settings)


def drain(lanes):
    delivered = []
    while (ticket := lanes.take()) is not None:
        delivered.append((str(ticket.value), ticket.attempts))
        lanes.done(ticket)
    return delivered


def test_object_made_anew_is_told_after_its_deletion_even_when_a_retry_merges():
    """Under Keyed, a failing change overtaken by Deleted and Added is followed by both, in order."""
    lanes = lanes_of()
    lanes.add("k", "Modified")
    failing = lanes.take()
    lanes.add("k", "Deleted")
    lanes.add("k", "Added")
    lanes.retry(failing, 0.0)
    assert drain(lanes) == [("Deleted", 1), ("Added", 0)]


def test_change_whose_turn_had_come_may_still_be_merged_to_nothing():
    """Added waits behind a running call, is next when that ends, and is deleted before anybody takes it."""
    lanes = lanes_of()
    lanes.add("k", "Modified")
    running = lanes.take()
    lanes.add("k", "Added")
    assert lanes.take() is None
    lanes.done(running)
    lanes.add("k", "Deleted")
    assert lanes.idle
    lanes.add("k", "Modified")
    assert drain(lanes) == [("Modified", 0)]
    assert lanes.statistics().merged == 2


def test_what_a_handler_has_seen_is_never_merged_to_nothing():
    """A handler that failed on Added has to hear of Deleted."""
    clock = ManualClock()
    lanes = lanes_of(clock)
    lanes.add("k", "Added")
    lanes.retry(lanes.take(), 1.0)
    lanes.add("k", "Deleted")
    assert lanes.statistics().merged == 0
    clock.set(1.0)
    assert drain(lanes) == [("Added", 1), ("Deleted", 0)]


def test_objects_that_come_and_go_behind_a_stuck_handler_cost_nothing():
    """Ten thousand short-lived objects leave neither turns nor values behind."""
    lanes = lanes_of()
    lanes.add("stuck", "Modified")
    lanes.take()
    lanes.add("last", "Modified")
    values = []
    for n in range(10_000):
        value = Value("Added")
        values.append(weakref.ref(value))
        lanes.add(f"k{n}", value)
        del value
        lanes.add(f"k{n}", "Deleted")
    assert not [value for value in values if value() is not None]
    assert len(lanes._ready) < 200
    assert drain(lanes) == [("Modified", 0)]


def test_finished_change_is_let_go_although_another_of_its_key_waits():
    """A frame lives no longer than its delivery."""
    lanes = lanes_of(keyed=False)
    value = Value("one")
    watched = weakref.ref(value)
    lanes.add("k", value)
    lanes.add("k", "two")
    del value
    lanes.done(lanes.take())
    assert watched() is None
    assert drain(lanes) == [("two", 0)]


def test_below_the_limit_nothing_is_merged_and_beyond_it_pending_changes_are():
    """`bufferBytes` counts what waits and what runs."""
    lanes = lanes_of(keyed=False, limit=6)
    for value in ("one", "two", "three", "four"):
        lanes.add("k", value)
    assert drain(lanes) == [("one", 0), ("four", 0)]
    assert lanes.statistics().merged == 2


@pytest.mark.guarantee("G4")
def test_backlog_keeps_its_epoch_until_it_is_handed_over():
    """What waits is the old code's until it is handed over; what backs off is the new code's (G10)."""
    clock = ManualClock()
    lanes = lanes_of(clock, keyed=False)
    for key in "abc":
        lanes.add(key, "value")
    failing, running = lanes.take(), lanes.take()
    ended = lanes.cut()
    lanes.retry(failing, 5.0)
    assert lanes.outstanding(ended) == 2
    assert lanes.epoch_of(failing) == lanes.epoch
    waiting = lanes.take()
    assert lanes.epoch_of(waiting) == ended
    assert not lanes.handed_over(ended)
    lanes.hand_over(ended)
    assert lanes.handed_over(ended)
    assert lanes.epoch_of(waiting) == lanes.epoch
    clock.set(5.0)
    again = lanes.take()
    assert (again is failing, again.attempts) == (True, 1)
    for ticket in (running, waiting, again):
        lanes.done(ticket)
    assert lanes.idle


@pytest.mark.guarantee("G2", "G3")
def test_threads_that_take_at_once_get_each_value_once_and_each_key_in_order():
    """Four workers and a feeder: nothing lost, nothing twice, never two of a key (G2, G3)."""
    lanes: Lanes[str] = Lanes(clock=SystemClock(), weigh=len, merge=merge, limit=1_000_000)
    seen: dict[str, list[int]] = {f"k{n}": [] for n in range(7)}
    busy: set[str] = set()
    faults: list[str] = []
    fed = threading.Event()

    def work() -> None:
        while not (fed.is_set() and lanes.idle):
            ticket: Ticket[str] | None = lanes.take()
            if ticket is None:
                continue
            if ticket.key in busy:
                faults.append(ticket.key)
            busy.add(ticket.key)
            seen[ticket.key].append(int(ticket.value))
            busy.discard(ticket.key)
            lanes.done(ticket)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for worker in workers:
        worker.start()
    for n in range(2000):
        lanes.add(f"k{n % 7}", str(n))
    fed.set()
    for worker in workers:
        worker.join(30.0)
    assert not faults
    assert seen == {f"k{k}": [n for n in range(2000) if n % 7 == k] for k in range(7)}


@pytest.mark.guarantee("G10")
def test_what_backs_off_over_a_cut_keeps_neither_the_old_epoch_alive_nor_its_moment():
    """A failing change is tried again on time and by the new code, with its attempts (G10)."""
    clock = ManualClock()
    lanes = lanes_of(clock, keyed=False)
    lanes.add("k", "value")
    lanes.retry(lanes.take(), 5.0)
    ended = lanes.cut()
    assert (lanes.outstanding(ended), lanes.idle, lanes.next_due()) == (0, False, 5.0)
    assert lanes.take() is None
    clock.set(5.0)
    ticket = lanes.take()
    assert (lanes.epoch_of(ticket), ticket.attempts) == (lanes.epoch, 1)
    assert lanes.epoch == ended + 1


@pytest.mark.guarantee("G22")
@pytest.mark.parametrize("handing_over", [False, True])
def test_epochs_of_which_nothing_is_pending_are_forgotten(handing_over):
    """A thousand cuts leave nothing behind; what waits since the first belongs to the last all the same."""
    lanes = lanes_of(keyed=False)
    lanes.add("a", "value")
    held = lanes.take()
    for number in range(1000):
        lanes.add(f"b{number}", "value")
        ended = lanes.cut()
        if handing_over:
            lanes.hand_over(ended)
        lanes.done(lanes.take())
    assert lanes.epoch_of(held) == (lanes.epoch if handing_over else 0)
    assert list(lanes._epochs.pending) == [0]
    assert set(lanes._epochs.adopted) <= {0, 999}  # those before are forgotten with the next one
    lanes.done(held)
    assert lanes.idle


@pytest.mark.guarantee("G4")
def test_lanes_that_share_an_era_are_cut_together_until_they_part():
    """One step for all of them, however many; who has parted stays in the epoch that it was in."""
    era = Era()
    one, other, gone = (lanes_of(era=era) for _ in range(3))
    for lanes in (one, other, gone):
        lanes.add("a", "old")
    gone.part()
    assert era.cut() == 0
    for lanes in (one, other, gone):
        lanes.add("b", "new")
    assert [(lanes.outstanding(0), lanes.outstanding(1)) for lanes in (one, other, gone)] == [
        (1, 1),
        (1, 1),
        (2, 0),
    ]
    one.hand_over(0)
    assert one.epoch_of(one.take()) == 1
    assert other.epoch_of(other.take()) == 0
