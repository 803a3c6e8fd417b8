"""SharedProcessor: who is told what, and whose resync is due."""

from collections.abc import Sequence

import pytest

from declctl.informer import SharedProcessor
from declctl.informer.applier import Additions
from declctl.kit import ManualClock
from declctl.objects import ChangeReason, ChangeType, Notification, Record
from tests.rooms.informer.shapes import Recorder, record


@pytest.fixture
def processor(clock: ManualClock) -> SharedProcessor:
    return SharedProcessor(clock)


def cache(*names: str) -> dict[str, Record]:
    return {made.key: made for made in map(record, names)}


def test_everybody_is_told_in_the_order_in_which_they_came(processor, caplog):
    """The first that was added hears a change first; one that raises harms only itself: it is counted."""
    order: list[str] = []

    class Named(Recorder):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def add_all(self, notifications: Sequence[Notification]) -> None:
            order.append(self.name)
            if self.name == "broken":
                raise ValueError("broken")
            super().add_all(notifications)

    one, two = Named("one"), Named("two")
    for listener in (one, Named("broken"), two):
        processor.add_listener(listener)
    processor.distribute([Notification(ChangeType.ADDED, record("a"))])
    processor.distribute([])
    assert order == ["one", "broken", "two"]
    assert one.lines() == two.lines() == ["Added demo/a"]
    assert processor.faults == 1
    assert "missed 1 change" in caplog.text


@pytest.mark.guarantee("G17")
def test_missed_resyncs_are_one(processor, clock):
    """A machine that slept for an hour does not replay the cache for every period of it."""
    registration = processor.add_listener(Recorder(), resync_period=10)
    clock.set(3605.0)
    assert list(processor.due()) == [registration]
    assert list(processor.due()) == []
    clock.set(4.0)
    assert list(processor.due()) == []
    clock.set(1.0)
    assert list(processor.due()) == [registration]


@pytest.mark.client_go("Sync period")
def test_first_resyncs_are_spread():
    """Listeners that start together do not replay together: the first period is longer by up to a tenth."""
    clock = ManualClock(jitter=0.5)
    processor = SharedProcessor(clock)
    processor.add_listener(Recorder(), resync_period=100)
    clock.set(104.0)
    assert list(processor.due()) == []
    clock.set(1.0)
    assert len(processor.due()) == 1


@pytest.mark.parametrize(
    ("before", "after", "due_at"), [(10, 20, 20), (20, 10, 10), (10, 0, None), (0, 10, 14), (10, 3, 4)]
)
def test_another_period_keeps_the_phase(processor, clock, before, after, due_at):
    """A new period counts from the last resync, so that frequent reloads can't put it off for ever."""
    registration = processor.add_listener(Recorder(), resync_period=before)
    clock.set(4.0)
    registration.retime(after)
    found = None
    for second in range(4, 40):
        if processor.due():
            found = second
            break
        clock.set(1.0)

    assert found == due_at


def test_what_nobody_listens_to_is_counted_and_not_made(processor):
    """A cache without handlers pays for no notifications; its figures are the same as with one."""
    unread = Additions([record("a"), record("b")], ChangeReason.INITIAL, 7.0)
    reading: list[str] = []

    class Noticing(Additions):
        def __iter__(self):
            reading.append("read")
            return super().__iter__()

    processor.distribute(unread)
    processor.distribute(Noticing([record("c")], ChangeReason.INITIAL, 7.0))
    assert (processor.statistics().distributed, reading) == (3, [])

    one, other = Recorder(), Recorder()
    processor.add_listener(one)
    processor.add_listener(other)
    processor.distribute(Noticing([record("d")], ChangeReason.INITIAL, 7.0))
    assert (processor.statistics().distributed, reading) == (4, ["read"])
    assert one.lines() == other.lines() == ["Added demo/d"]


@pytest.mark.client_go(202, "Late joiner")
def test_what_changes_while_a_late_joiner_is_introduced_is_told_once(processor, monkeypatch):
    """Objects change, go and come between two slices: each is heard of once, as it is (client-go 202)."""
    monkeypatch.setattr(processor, "slice_size", 1)
    held = cache("a", "b", "c", "d")
    listener = Recorder()
    registration = processor.add_listener(listener)
    work = processor.introduce(registration, held)
    next(work)

    changed, fresh = record("b", 2), record("e")
    processor.distribute(
        [
            Notification(ChangeType.MODIFIED, changed, held["demo/b"]),
            Notification(ChangeType.DELETED, held["demo/c"]),
            Notification(ChangeType.ADDED, fresh),
            Notification(ChangeType.MODIFIED, record("a", 2), held["demo/a"]),
        ]
    )
    held["demo/b"], held["demo/e"] = changed, fresh
    del held["demo/c"]
    for _ in work:
        pass

    told = [f"{n.type} {n.key[-1]} {n.record.resource_version}" for n in listener.told]
    assert told == ["Added a 1", "Added b 2", "Added e 1", "Modified a 2", "Added d 1"]
    assert listener.faults == []
