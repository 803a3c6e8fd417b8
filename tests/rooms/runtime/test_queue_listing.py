"""What waits for a handler, as its slot lists it: types, times, failures and generations, and no values."""

import threading
import time
from datetime import timedelta

from declctl.kit.documents import document_of
from declctl.manifest.model import QueueSpec, RetrySpec
from declctl.objects import ChangeType
from tests.rooms.runtime.conftest import implementation, rebind

POLICY = {"retry": RetrySpec(initial_backoff=30.0, max_backoff=30.0), "queue": QueueSpec(concurrency=4)}


def test_a_listing_says_what_is_known_of_each_change(bench, added, clock) -> None:
    """A failed change has its attempts, its error and the time of its retry; the next ones their types."""

    def fail(change) -> None:
        raise KeyError("a value of an object")

    slot = bench.slot(implementation(fail), **POLICY)
    slot.add_all([added("a")])
    then = clock.now()
    bench.work()
    clock.set(2.0)
    slot.add_all([added("b", ChangeType.MODIFIED), added("c"), added("c", ChangeType.DELETED)])
    shown = slot.listing(3)
    assert (shown.handler, shown.mode) == ("notify", "Event")
    assert (shown.waiting, shown.running, shown.backing_off, shown.left_out) == (3, 0, 1, 1)
    assert [(i.key, i.type, str(i.state)) for i in shown.items] == [
        ("default/b", "Modified", "Waiting"),
        ("default/c", "Added", "Waiting"),
        ("default/c", "Deleted", "Behind"),
    ]
    assert {i.since for i in shown.items} == {then + timedelta(seconds=2)}
    failed = slot.listing(100).items[-1]
    assert (failed.key, failed.attempts, failed.last_error_type) == ("default/a", 1, "KeyError")
    assert (failed.since, failed.priority, failed.generation) == (then, None, None)
    assert failed.due is not None
    assert timedelta(0) < failed.due - then <= timedelta(seconds=33)
    assert "a value of an object" not in str(document_of(slot.listing(100)))


def test_what_waits_belongs_to_the_generation_that_handles_it(bench, added) -> None:
    """Changes from before a reload are the old code's, until it is handed over."""
    slot = bench.slot(implementation(lambda change: None), **POLICY)
    slot.add_all([added("a")])
    ended = rebind(slot, bench.binding(implementation(lambda change: None), generation=2, **POLICY))
    slot.add_all([added("b")])
    assert [item.generation for item in slot.listing(10).items] == [1, 2]
    slot.hand_over(ended)
    assert [item.generation for item in slot.listing(10).items] == [2, 2]


def test_a_running_call_is_listed_first(bench, added) -> None:
    """It is listed while it runs, with the change behind it, and not after that."""
    begun, ends = threading.Event(), threading.Event()

    def block(change) -> None:
        begun.set()
        ends.wait(10)

    slot = bench.slot(implementation(block), **POLICY)
    slot.add_all([added("a"), added("a", ChangeType.MODIFIED)])
    worker = threading.Thread(target=bench.work)
    worker.start()
    try:
        assert begun.wait(10)
        assert [str(item.state) for item in slot.listing(10).items] == ["Running", "Behind"]
        assert slot.listing(10).running == 1
    finally:
        ends.set()
        worker.join(10)
    assert slot.listing(10).items == []


def test_a_listing_of_a_long_queue_costs_what_it_shows(bench, added) -> None:
    """A listing of the first hundred costs a small part of one of all, and copies no more than asked for."""
    slot = bench.slot(implementation(lambda change: None), **POLICY)
    slot.add_all([added(f"p{number}") for number in range(1000)] * 50)

    def seconds(most: int) -> float:
        best = float("inf")
        for _ in range(3):
            begin = time.perf_counter()
            slot.listing(most)
            best = min(best, time.perf_counter() - begin)
        return best

    shown = slot.listing(100)
    assert (len(shown.items), shown.left_out) == (100, 49_900)
    assert seconds(100) * 20 < seconds(50_000)
