"""Changes that wait because a filter or a mapping has failed on them: when, how many, and which states."""

import asyncio

import pytest

from declctl.kit import ManualClock
from declctl.objects import ChangeType, Notification
from declctl.runtime.reconciling.mapping import KeySource
from declctl.runtime.reconciling.waiting_changes import WaitingChange, WaitingChanges
from tests.rooms.runtime.conftest import make_record

ADDED, MODIFIED, DELETED, RESYNC = ChangeType
CACHE, OTHER = "the cache of pods", "another cache"
SOURCE, NEW_SOURCE = KeySource("pods", (), frozenset()), KeySource("pods", (), frozenset())


def record(version: int, name="web-0"):
    return make_record(name, uid="u", version=version, namespace="a")


def waiting(change, *, cache=CACHE) -> WaitingChange:
    return WaitingChange(cache, change.key, (change,), [SOURCE])


class Judged:
    """The waiting changes under test, what was judged when, and what was given up."""

    def __init__(self) -> None:
        self.clock = ManualClock(start=0.0)
        self.judged: list[tuple[float, str]] = []
        self.given_up: list[str] = []
        self.again: dict[str, float] = {}  # by key: seconds until the change is judged once more
        self.changes = WaitingChanges(
            self._judge, self._give_up, loop=asyncio.get_running_loop(), clock=self.clock
        )

    def _judge(self, change) -> None:
        self.judged.append((self.clock.monotonic(), change.key))
        delay = self.again.pop(change.key, None)
        if delay is None:
            self.changes.end(change)
        else:
            self.changes.wait(change, delay)

    def _give_up(self, change) -> None:
        self.given_up.append(change.key)
        self.changes.end(change)


async def test_each_change_is_judged_at_its_own_time():
    """One that waits for an hour delays no other, and no time is missed."""
    rig = Judged()
    rig.again["a/web-0"] = 2.0
    rig.changes.wait(waiting(Notification(ADDED, record(1, "slow"))), 3600.0)
    await rig.clock.advance(10.0)
    rig.changes.wait(waiting(Notification(ADDED, record(1))), 1.0)
    await rig.clock.advance(1.0)
    await rig.clock.advance(2.0)
    assert rig.judged == [(11.0, "a/web-0"), (13.0, "a/web-0")]
    assert len(rig.changes) == 1
    await rig.clock.advance(3600.0)
    assert rig.judged[-1] == (3600.0, "a/slow")
    assert len(rig.changes) == 0


async def test_new_code_judges_everything_at_once_and_forgets_caches_that_it_does_not_watch():
    """An edit that mends a mapping takes effect at once; what no handler watches any more is dropped."""
    rig = Judged()
    change = waiting(Notification(ADDED, record(1)))
    rig.changes.wait(change, 3600.0)
    rig.changes.wait(waiting(Notification(ADDED, record(1)), cache=OTHER), 3600.0)
    rig.changes.use({CACHE: [NEW_SOURCE]})
    assert change.sources == [NEW_SOURCE]
    await rig.clock.settle()
    assert rig.judged == [(0.0, "a/web-0")]
    assert len(rig.changes) == 0


async def test_objects_that_are_gone_wait_in_a_limited_number(monkeypatch):
    """A mapping that fails for days does not fill the memory with objects that no cache has any more."""
    monkeypatch.setattr("declctl.runtime.reconciling.waiting_changes.MOST_GONE", 2)
    rig = Judged()
    for name in ("one", "two", "three"):
        rig.changes.wait(waiting(Notification(ADDED, record(1, f"{name}-lives"))), 60.0)
        rig.changes.wait(waiting(Notification(DELETED, record(1, name))), 60.0)
    assert rig.given_up == ["a/one"]
    assert len(rig.changes) == 5
    assert rig.changes.clear() == 5
    await rig.clock.advance(60.0)
    assert rig.judged == []


@pytest.mark.parametrize(
    ("changes", "states"),
    [
        # By version: the old state and the new one of each change that is left.
        ((ADDED, MODIFIED), [(None, "2")]),
        ((MODIFIED, MODIFIED), [("0", "2")]),
        ((MODIFIED, DELETED), [("0", "2")]),
        ((ADDED, DELETED), [(None, "2")]),
        ((DELETED, ADDED), [(None, "1"), (None, "2")]),
        ((DELETED, ADDED, MODIFIED, DELETED, ADDED), [(None, "4"), (None, "5")]),
    ],
)
def test_the_states_that_count_are_the_last_known_one_and_the_newest(changes, states):
    """An owner before the failure and the present one are found, however often the object has changed."""
    first, *newer = (
        Notification(kind, record(version), record(version - 1) if kind is MODIFIED else None)
        for version, kind in enumerate(changes, 1)
    )
    change = waiting(first)
    change.attempts = 7
    for each in newer:
        change.merge(each)
    left = [
        (None if c.old is None else c.old.resource_version, c.record.resource_version) for c in change.changes
    ]
    assert left == states
    assert change.attempts == 0
