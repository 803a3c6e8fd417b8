"""`take_key`: the next item of a key, out of its turn, as a replay takes it. `drop_chosen`: some keys go."""

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


@pytest.mark.parametrize("made", [_changes, _keys])
async def test_chosen_keys_are_dropped_whatever_they_wait_for(made: Callable[[ManualClock], Made]) -> None:
    """Waiting, resting, backing off and behind a call; the call goes on, and other keys do."""
    clock = ManualClock()
    queue, add = made(clock)
    for name in ("backs-off", "runs", "waits"):
        add(f"drop/{name}")
        add(f"keep/{name}")
    taken = {item.key: item for _ in range(4) if (item := queue.take()) is not None}
    for which in ("drop", "keep"):
        queue.retry(taken.pop(f"{which}/backs-off"), 60.0)
    assert sorted(item.key for item in queue.taken()) == ["drop/runs", "keep/runs"]
    for which in ("drop", "keep"):
        add(f"{which}/runs")  # behind the call
    queue.debounce = 5.0
    for which in ("drop", "keep"):
        add(f"{which}/rests")
    assert queue.drop_chosen(lambda item: item.key.startswith("drop/")) == 4
    for item in taken.values():
        queue.done(item)
    found: list[str] = []
    for seconds in (0.0, 10.0, 60.0):
        await clock.advance(seconds)
        while (item := queue.take()) is not None:
            found.append(item.key)
            queue.done(item)
    assert sorted(found) == ["keep/backs-off", "keep/rests", "keep/runs", "keep/waits"]
    figures = queue.statistics()
    assert queue.idle
    assert figures.added == figures.taken + figures.dropped + figures.merged
    assert figures.dropped == 4
