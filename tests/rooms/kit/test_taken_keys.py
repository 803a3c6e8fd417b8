"""`take_key`: the next item of a key, out of its turn, as a replay takes it."""

from collections.abc import Callable
from typing import Any

import pytest

from declctl.kit import ManualClock
from declctl.kit.change_queue import ChangeQueue
from declctl.kit.key_queue import KeyQueue
from declctl.objects import Cause
from declctl.workqueue.reconcile_queue import Reasons, ReconcileQueue

Made = tuple[KeyQueue[str, Any], Callable[[str], object]]


def _changes(clock: ManualClock) -> Made:
    queue = ChangeQueue[str](clock=clock, weigh=len, merge=lambda _, new, __: [new], merge_above=100)
    return queue, lambda key: queue.add(key, f"value of {key}")


def _keys(clock: ManualClock) -> Made:
    queue = ReconcileQueue[str](clock=clock)
    return queue, lambda key: queue.add(key, Reasons({Cause("Added", "pods", key, "Watch"): None}))


@pytest.mark.parametrize("made", [_changes, _keys])
def test_a_key_is_taken_whatever_it_waits_for(made: Callable[[ManualClock], Made]) -> None:
    """In its turn or not, resting or backing off; not twice, and not while a worker has it."""
    queue, add = made(ManualClock())
    assert queue.take_key("a") is None
    queue.max_running = 1
    for key in ("a", "b"):
        add(key)
    second = queue.take_key("b")
    assert second is not None
    assert second.key == "b"
    add("b")
    assert queue.take_key("b") is None
    first = queue.take_key("a")  # limits do not count
    assert first is not None
    queue.retry(first, 60.0)
    again = queue.take_key("a")
    assert again is not None
    assert (again.key, again.attempts) == ("a", 1)
    for item in (again, second):
        queue.done(item)
    behind = queue.take()
    assert behind is not None
    assert behind.key == "b"
    queue.debounce = 5.0
    add("c")
    rested = queue.take_key("c")
    assert rested is not None
    assert rested.key == "c"
    queue.done(rested)
    figures = queue.statistics()
    assert (figures.waiting, figures.running, figures.backing_off) == (0, 1, 0)
