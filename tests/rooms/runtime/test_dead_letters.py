"""Dead letters: what is given up is kept, can be queued again, and goes when it is not needed any more."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from declctl.manifest.model import OnFailure, QueueSpec, RetrySpec
from declctl.objects import ChangeType, Notification
from declctl.runtime.handling.dead_letters import DeadLetter, DeadLetters, RequeueResult
from tests.rooms.runtime.conftest import implementation, rebind

POLICY = {
    "retry": RetrySpec(max_attempts=2, initial_backoff=1.0, max_backoff=1.0),
    "on_failure": OnFailure.DEAD_LETTER,
    "queue": QueueSpec(concurrency=4),
}


class Flaky:
    """A handler that fails while it is told to, and writes down what it is called with."""

    def __init__(self) -> None:
        self.fails = True
        self.heard: list[tuple[str, str, str | None]] = []

    def hook(self, change, obj, old) -> None:
        self.heard.append((str(change.type), obj.resource_version, old and old.resource_version))
        if self.fails:
            raise ValueError(f"no {obj.name}")


@pytest.fixture
def flaky() -> Flaky:
    return Flaky()


@pytest.fixture
def slot(bench, flaky):
    return bench.slot(implementation(flaky.hook), **POLICY)


def _give_up(bench, clock) -> None:
    bench.work()
    clock.set(1.0)
    bench.work()


def test_what_is_given_up_is_a_letter_with_all_that_is_known(bench, slot, added, clock, flaky) -> None:
    """Its key, fault, traceback, attempts, times and generation; one that fails again is one again."""
    slot.add_all([added("a")])
    first = clock.now()
    _give_up(bench, clock)
    (letter,) = slot.dead_letters.all()
    assert (letter.handler, letter.key, letter.type, letter.attempts) == ("notify", "default/a", "Added", 2)
    assert (letter.error, letter.error_type) == ("ValueError: no a", "ValueError")
    assert letter.traceback.endswith("ValueError: no a\n")
    assert "raise ValueError" in letter.traceback
    assert letter.first_failed_at == first
    assert letter.failed_at == first + timedelta(seconds=1)
    assert (letter.generation, letter.changes) == (1, 1)
    figures = slot.statistics()
    assert (figures.failed, figures.dead_letters, figures.queued) == (1, 1, 0)
    assert bench.log.find("given up: `declctl get deadletters` has it")
    slot.requeue("default/a")
    _give_up(bench, clock)
    assert len(flaky.heard) == 4
    assert [letter.attempts for letter in slot.dead_letters.all()] == [2]


def test_with_ignore_there_is_no_letter(bench, added, clock, flaky) -> None:
    """Only the count of the failed ones says that there was a change."""
    slot = bench.slot(implementation(flaky.hook), **{**POLICY, "on_failure": OnFailure.IGNORE})
    slot.add_all([added("a")])
    _give_up(bench, clock)
    assert (slot.statistics().failed, slot.statistics().dead_letters) == (1, 0)


def test_a_requeued_change_is_delivered_as_it_was(bench, slot, record, clock, flaky) -> None:
    """With the object of then, its old state and new attempts; a success forgets it."""
    slot.add_all([Notification(ChangeType.MODIFIED, record("a", version=8), old=record("a", version=7))])
    _give_up(bench, clock)
    flaky.fails = False
    assert slot.requeue("default/a") is RequeueResult.REQUEUED
    assert slot.statistics().dead_letters == 0
    assert bench.work() == 1
    assert flaky.heard == [("Modified", "8", "7")] * 3
    assert slot.requeue("default/a") is RequeueResult.NONE


def test_of_two_hooks_only_the_one_that_failed_is_called_again(bench, added, clock, flaky) -> None:
    """A retry and a requeue are further attempts, and no second delivery to what has succeeded."""
    good: list[str] = []
    slot = bench.slot(
        implementation(lambda change: good.append(change.type)), implementation(flaky.hook), **POLICY
    )
    slot.add_all([added("a")])
    bench.work()
    assert (len(good), len(flaky.heard)) == (1, 1)
    _give_up(bench, clock)
    assert (len(good), len(flaky.heard)) == (1, 2)
    flaky.fails = False
    slot.requeue("default/a")
    bench.work()
    assert (len(good), len(flaky.heard), slot.statistics().succeeded) == (1, 3, 1)


def test_a_newer_change_goes_before_a_letter_and_its_success_forgets_it(
    bench, slot, added, clock, flaky
) -> None:
    """And no other letter: what the handler has done with the newer state is what counts."""
    slot.add_all([added("a"), added("b")])
    _give_up(bench, clock)
    slot.add_all([added("a", ChangeType.MODIFIED)])
    assert slot.requeue("default/a") is RequeueResult.PENDING
    assert slot.statistics().dead_letters == 2
    flaky.fails = False
    bench.work()
    assert [letter.key for letter in slot.dead_letters.all()] == ["default/b"]


def test_the_letters_of_a_key_are_one(bench, slot, record, clock, flaky) -> None:
    """Merged as waiting changes are: what is delivered is from the oldest state to the newest."""
    first = clock.now()
    for old, new in itertools.pairwise([record("a", version=number) for number in range(4)]):
        slot.add_all([Notification(ChangeType.MODIFIED, new, old=old)])
        _give_up(bench, clock)
    (letter,) = slot.dead_letters.all()
    assert (letter.changes, letter.first_failed_at) == (3, first)
    flaky.fails = False
    flaky.heard.clear()
    slot.requeue("default/a")
    bench.work()
    assert flaky.heard == [("Modified", "3", "0")]


def test_a_deleted_and_the_object_made_anew_are_both_delivered(bench, slot, added, clock, flaky) -> None:
    """They can't be one change; their order stays."""
    for kind in (ChangeType.DELETED, ChangeType.ADDED, ChangeType.MODIFIED):
        slot.add_all([added("a", kind)])
        _give_up(bench, clock)
    flaky.fails = False
    flaky.heard.clear()
    slot.requeue("default/a")
    bench.work()
    assert [kind for kind, _, _ in flaky.heard] == ["Deleted", "Added"]


def test_an_attempted_change_that_is_requeued_is_not_merged_away(bench, added, clock, flaky) -> None:
    """The handler may have acted on an Added before it failed: it needs the Deleted, also when both wait."""
    slot = bench.slot(implementation(flaky.hook), **POLICY, buffer_bytes=0)
    slot.add_all([added("a")])
    _give_up(bench, clock)
    slot.requeue("default/a")
    slot.add_all([added("a", ChangeType.DELETED)])
    flaky.fails = False
    flaky.heard.clear()
    bench.work()
    assert [kind for kind, _, _ in flaky.heard] == ["Deleted"]


def test_letters_survive_a_reload(bench, slot, added, clock) -> None:
    """They belong to the slot; the new code gets what is requeued."""
    slot.add_all([added("a")])
    _give_up(bench, clock)
    seen: list[int] = []
    rebind(slot, bench.binding(lambda change: seen.append(change.generation), generation=2, **POLICY))
    slot.requeue("default/a")
    bench.work()
    assert (seen, slot.statistics().dead_letters) == ([2], 0)


def test_a_handler_that_was_removed_keeps_no_letters(bench, slot, added) -> None:
    """Its last calls fail without a letter that nobody could requeue; nor is anybody sent to look for one."""
    slot.add_all([added("a")])
    item = slot.queue.take()
    slot.close()
    slot.work(item)
    assert (slot.statistics().failed, slot.statistics().dead_letters) == (1, 0)
    line = bench.log.find("notify failed on Added default/a")
    assert line.event.endswith("attempt 1 of 2, given up")


def _letter(key: str, error: str = "") -> DeadLetter:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return DeadLetter("h", key, "Added", error, "E", "", 1, now, now, 1, 1)


def test_there_are_only_so_many_letters(monkeypatch) -> None:
    """The oldest is dropped and counted; one that is written again is not the oldest any more."""
    monkeypatch.setattr("declctl.runtime.handling.dead_letters.MOST_LETTERS", 2)
    letters = DeadLetters[int](lambda older, newer: older + newer, lambda _: 0)
    for key in ("a", "b", "a", "c"):
        letters.put(_letter(key), 1)
    assert [letter.key for letter in letters.all()] == ["a", "c"]
    assert letters.dropped == 1
    assert letters.all()[0].changes == 2
    assert letters.requeue("a", lambda content: content == 2) is RequeueResult.REQUEUED


def test_letters_take_only_so_many_bytes(monkeypatch) -> None:
    """Their contents and texts count; a single one that is too large is kept."""
    monkeypatch.setattr("declctl.runtime.handling.dead_letters.MOST_BYTES", 10_000)
    letters = DeadLetters[int](lambda _, newer: newer, lambda content: content)
    letters.put(_letter("a", "x" * 4000), 100)
    letters.put(_letter("b"), 4000)
    assert letters.dropped == 0
    letters.put(_letter("c"), 2000)
    assert ([letter.key for letter in letters.all()], letters.dropped) == (["b", "c"], 1)
    letters.put(_letter("d"), 50_000)
    assert ([letter.key for letter in letters.all()], letters.dropped) == (["d"], 3)
    letters.succeeded("d")
    letters.put(_letter("e"), 9_000)
    letters.put(_letter("f"), 100)
    assert [letter.key for letter in letters.all()] == ["f"]
