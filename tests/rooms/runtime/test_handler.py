"""A slot: what is delivered to whom, how often it is tried, and what a new binding changes."""

import asyncio
import contextlib
import itertools
import threading

import pytest

from declctl.errors import NotSynced
from declctl.manifest.model import Delivery, InitialSync, OnFailure, RetrySpec
from declctl.objects import ChangeType, Notification
from declctl.runtime.handling import invocations
from declctl.runtime.handling.failure_log import FailureLog
from declctl.testing import until
from tests.rooms.runtime.conftest import rebind


def test_changes_are_delivered_in_order_and_counted(bench, added) -> None:
    """A handler hears what happened, in order, with what the contract says a change has."""
    heard = []
    slot = bench.slot(lambda change, obj, old: heard.append((change.type, str(change.key), obj.name, old)))
    slot.add_all([added("a"), added("b"), added("a", ChangeType.DELETED)])
    assert bench.work() == 3
    assert heard == [
        ("Added", "default/a", "a", None),
        ("Added", "default/b", "b", None),
        ("Deleted", "default/a", "a", None),
    ]
    figures = slot.statistics()
    assert (figures.delivered, figures.succeeded, figures.queued, figures.running) == (3, 3, 0, 0)


def test_what_waits_behind_a_running_change_of_its_object_is_queued(bench, added, clock) -> None:
    """`queued`, the queue depth: an object that changes while it is worked on counts, and so does a retry."""
    slot = bench.slot(
        _fails, retry=RetrySpec(initial_backoff=1.0, max_backoff=1.0), on_failure=OnFailure.RETRY
    )
    slot.add_all([added("a")])
    item = slot.queue.take()
    assert (slot.statistics().queued, slot.statistics().running) == (0, 1)
    slot.add_all([added("a", ChangeType.MODIFIED), added("a", ChangeType.DELETED)])
    assert (slot.statistics().queued, slot.statistics().running) == (2, 1)
    slot.work(item)
    assert (slot.statistics().queued, slot.statistics().running) == (3, 0)


def _fails(change) -> None:
    raise ValueError("no")


def test_a_resync_has_the_object_as_old(bench, added) -> None:
    """A Resync is an update from the object to itself, as client-go's OnUpdate has it."""
    heard = []
    slot = bench.slot(lambda change, obj, old: heard.append((change.type, old == obj)))
    slot.add_all([added("a", ChangeType.RESYNC)])
    bench.work()
    assert heard == [("Resync", True)]


def test_events_that_are_not_asked_for_are_not_queued(bench, added) -> None:
    """`events: [Deleted]`: nothing else takes room or time."""
    slot = bench.slot(print, events=("Deleted",))
    slot.add_all([added("a"), added("a", ChangeType.MODIFIED), added("a", ChangeType.RESYNC)])
    assert slot.statistics().queued == 0
    slot.add_all([added("a", ChangeType.DELETED)])
    assert slot.statistics().queued == 1


def test_what_is_there_at_the_start_may_be_skipped(bench, added) -> None:
    """`initialSync: Skip`: initial objects are not delivered, later ones are."""
    slot = bench.slot(print, initial_sync=InitialSync.SKIP)
    slot.add_all([added("a", initial=True), added("b")])
    assert slot.statistics().queued == 1


def test_a_handler_has_synced_when_it_is_through_with_the_first_list(bench, added) -> None:
    """Changes that come later do not keep it from that, nor do first ones that were merged away."""
    slot = bench.slot(lambda obj: _fails(obj) if obj.name == "fails" else None, delivery=Delivery.KEYED)
    slot.add_all([added(name, initial=True) for name in ("fails", "gone", "a")])
    slot.add_all([added("gone", ChangeType.DELETED), added("a", ChangeType.MODIFIED), added("later")])
    slot.work(slot.queue.take())  # it fails, and backs off
    slot.initial_complete()
    assert not slot.statistics().synced
    slot.add_all([added("fails", ChangeType.DELETED)])  # takes the place of what backs off
    assert not slot.statistics().synced  # `a` is left
    slot.work(slot.queue.take())
    assert slot.statistics().synced
    assert slot.statistics().queued == 2  # the failed one and `later`
    slot.add_all([added("a", initial=True)])  # of a namespace that was added to the manifest
    assert slot.statistics().synced


def test_a_failing_change_is_tried_again_when_it_is_due_and_then_given_up(bench, added, clock, log) -> None:
    """Back-off doubles from `initialBackoff`; after `maxAttempts` the change counts as failed."""
    tries = []

    def fails(change) -> None:
        tries.append(clock.monotonic())
        raise ValueError("no")

    slot = bench.slot(fails, retry=RetrySpec(max_attempts=3, initial_backoff=1.0, max_backoff=10.0))
    slot.add_all([added("a")])
    for seconds in (0, 0.9, 0.2, 1.8, 0.3, 60):
        clock.set(seconds)
        bench.work()
    assert [round(t - tries[0], 1) for t in tries] == [0.0, 1.1, 3.2]
    figures = slot.statistics()
    assert (figures.delivered, figures.retried, figures.failed, figures.succeeded) == (1, 2, 1, 0)
    assert figures.last_error == "default/a: ValueError: no"
    told = [line for line in log.lines if line.level == "error"]
    assert [line.fields["attempt"] for line in told] == [1, 2, 3]
    assert told[-1].event.endswith("; attempt 3 of 3, given up")
    assert "ValueError: no" in told[0].fields["traceback"]


def test_a_failing_change_holds_its_own_key_only(bench, added, clock) -> None:
    """While one object's change backs off, other objects go on, and its own later changes wait."""
    heard = []

    def fails_once(change) -> None:
        heard.append((change.obj.name, change.type))
        if len(heard) == 1:
            raise ValueError

    slot = bench.slot(fails_once)
    slot.add_all([added("a"), added("a", ChangeType.MODIFIED), added("b")])
    bench.work()
    assert heard == [("a", "Added"), ("b", "Added")]
    clock.set(1.0)
    bench.work()
    assert heard[2:] == [("a", "Added"), ("a", "Modified")]


def test_retry_for_ever_goes_on(bench, added, clock) -> None:
    """`onFailure: Retry`: a change is never given up."""
    slot = bench.slot(lambda: 1 / 0, on_failure=OnFailure.RETRY, retry=RetrySpec(max_attempts=2))
    slot.add_all([added("a")])
    for _ in range(10):
        bench.work()
        clock.set(1000)
    figures = slot.statistics()
    assert (figures.retried, figures.failed) == (10, 0)


def test_only_what_failed_is_called_again(bench, added, clock) -> None:
    """Of two hooks one fails: the other has heard the change and doesn't hear it twice."""
    heard = []

    def good(change) -> None:
        heard.append("good")

    def bad(change) -> None:
        heard.append("bad")
        if heard.count("bad") == 1:
            raise ValueError

    slot = bench.slot(bad, good)
    slot.add_all([added("a")])
    bench.work()
    clock.set(1.0)
    bench.work()
    assert heard == ["bad", "good", "bad"]
    assert slot.statistics().succeeded == 1


class _Errors(Exception):
    """Several errors in one, whose number can't be told before they are set: nor whether it is true."""

    def __len__(self) -> int:
        return len(self.errors)


@pytest.mark.parametrize(
    "error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit(), RecursionError(), _Errors()]
)
def test_whatever_is_raised_is_a_failure_and_no_more(bench, added, log, error) -> None:
    """`sys.exit()` in a handler ends neither the process nor the worker, and a broken exception does not."""

    def raises(change) -> None:
        raise error

    slot = bench.slot(raises, retry=RetrySpec(max_attempts=1))
    slot.add_all([added("a"), added("b")])
    assert bench.work() == 2
    assert slot.statistics().failed == 2
    assert type(error).__name__ == slot.statistics().last_error_type
    assert slot.statistics().last_error_time == bench.clock.now()
    assert "raise error\n" in next(line for line in log.lines if line.level == "error").fields["traceback"]


def test_synchronous_and_asynchronous_hooks_of_one_handler_hear_in_turn(bench, added) -> None:
    """`def` and `async def` in one module: each change goes to both, one after the other."""
    heard = []

    def first(change) -> None:
        heard.append(("first", change.obj.name, threading.current_thread().name))

    async def second(change) -> None:
        await asyncio.sleep(0)
        heard.append(("second", change.obj.name, threading.current_thread().name))

    slot = bench.slot(first, second)
    slot.add_all([added("a"), added("b")])
    bench.work()
    assert [row[:2] for row in heard] == [("first", "a"), ("second", "a"), ("first", "b"), ("second", "b")]
    assert {row[2] for row in heard if row[0] == "second"} == {"test-handlers"}


def test_a_new_binding_gets_what_comes_and_the_old_one_what_was_there(bench, added) -> None:
    """The cut of a reload: what was queued before goes to the old code, what comes after to the new."""
    heard = []
    slot = bench.slot(lambda change: heard.append(("old", change.obj.name, change.generation)))
    slot.add_all([added("a")])
    ended = rebind(
        slot,
        bench.binding(lambda change: heard.append(("new", change.obj.name, change.generation)), generation=2),
    )
    slot.add_all([added("b"), added("a", ChangeType.MODIFIED)])
    assert slot.outstanding(ended) == 1
    bench.work()
    assert heard == [("old", "a", 1), ("new", "b", 2), ("new", "a", 2)]
    assert slot.outstanding(ended) == 0


def test_what_waits_can_be_handed_over(bench, added) -> None:
    """After a hand-over the new code gets the backlog too, and the old binding is forgotten."""
    heard = []
    slot = bench.slot(lambda: heard.append("old"))
    slot.add_all([added("a"), added("b")])
    ended = rebind(slot, bench.binding(lambda: heard.append("new"), generation=2))
    slot.hand_over(ended)
    assert slot.outstanding(ended) == 0
    slot.forget(ended)
    bench.work()
    assert heard == ["new", "new"]


@pytest.mark.guarantee("G10")
def test_what_backs_off_goes_to_the_new_binding_and_holds_up_no_drain(bench, added, clock) -> None:
    """A change in back-off at a reload: attempts and due time are kept, the new code gets it (G10)."""
    heard = []
    slot = bench.slot(lambda: 1 / 0)
    slot.add_all([added("a")])
    bench.work()
    ended = rebind(slot, bench.binding(lambda change: heard.append(change.generation), generation=2))
    assert slot.outstanding(ended) == 0
    assert bench.work() == 0
    clock.set(1.0)
    bench.work()
    assert heard == [2]


def test_pending_changes_of_a_key_are_merged_under_keyed(bench, added) -> None:
    """`delivery: Keyed`: five updates of an object that waits are one, and counted."""
    heard = []
    slot = bench.slot(lambda change: heard.append(change.type), delivery=Delivery.KEYED)
    slot.add_all([added("a"), *(added("a", ChangeType.MODIFIED) for _ in range(5))])
    bench.work()
    assert heard == ["Added"]
    figures = slot.statistics()
    assert figures.delivered + figures.merged + figures.dropped == 6


def test_beyond_its_bytes_a_buffer_merges_and_loses_nothing_else(bench, added) -> None:
    """`bufferBytes` is full: changes of one object are merged, those of others wait."""
    slot = bench.slot(print, buffer_bytes=1)
    slot.add_all([added("a"), added("a", ChangeType.MODIFIED), added("b")])
    figures = slot.statistics()
    assert (figures.queued, figures.merged) == (2, 1)


def test_a_memo_is_kept_for_each_object_until_it_is_deleted(bench, added) -> None:
    """`ctx.memo` is the same at the next change of an object, and gone with it."""
    seen = []

    def counts(change, ctx) -> None:
        ctx.memo["n"] = ctx.memo.get("n", 0) + 1
        seen.append((change.obj.name, ctx.memo["n"]))

    slot = bench.slot(counts)
    slot.add_all([added("a"), added("b"), added("a", ChangeType.MODIFIED), added("a", ChangeType.DELETED)])
    slot.add_all([added("a")])
    bench.work()
    assert seen == [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("a", 1)]


@pytest.mark.guarantee("G11")
def test_a_memo_refuses_what_would_carry_old_code_along(bench, added) -> None:
    """An instance of a handler's class in a memo is refused with a sentence that says why."""

    class Mine:
        pass

    def keeps(ctx) -> None:
        ctx.memo["it"] = Mine()

    slot = bench.slot(keeps, retry=RetrySpec(max_attempts=1))
    slot.add_all([added("a")])
    bench.work()
    assert "can't hold a Mine" in slot.statistics().last_error


def test_a_call_that_runs_too_long_is_given_up_and_its_key_held(bench, added) -> None:
    """`timeout`: the call is a zombie until it returns, then a failure; others have gone on."""
    gate, replaced = threading.Event(), threading.Event()
    slot = bench.slot(lambda: gate.wait(10), timeout=0.02, retry=RetrySpec(max_attempts=1))
    slot.invocations.replace_worker = replaced.set
    slot.add_all([added("a"), added("a", ChangeType.MODIFIED)])
    item = slot.queue.take()
    left = []
    worker = threading.Thread(target=lambda: left.append(slot.work(item)))
    worker.start()
    assert replaced.wait(10)
    assert (slot.statistics().zombies, slot.queue.take()) == (1, None)
    gate.set()
    worker.join(10)
    assert left == [False]
    figures = slot.statistics()
    assert (figures.zombies, figures.failed, figures.queued, figures.timeouts) == (0, 1, 1, 1)
    assert "TimeoutError" in figures.last_error


def test_who_is_stuck_is_replaced_among_those_it_belongs_to(bench, added) -> None:
    """Other workers came while a call ran: they are complete, and may begin when it is given up."""
    gate, own, pending, others = threading.Event(), threading.Event(), threading.Event(), []
    slot = bench.slot(lambda: gate.wait(10), timeout=0.02, retry=RetrySpec(max_attempts=1))
    slot.add_all([added("a"), added("b")])
    slot.invocations.replace_worker = own.set
    worker = threading.Thread(target=slot.work, args=(slot.queue.take(),))
    worker.start()
    until("the call has begun", slot.running)
    slot.invocations.replace_worker, slot.wake = lambda: others.append(1), pending.set
    assert pending.wait(10)
    assert own.is_set()
    assert not others
    assert slot.queue.take().key == "default/b"
    gate.set()
    worker.join(10)


def test_a_thread_is_not_cancelled_by_workers_that_are_tasks(bench, added) -> None:
    """What was queued for a `def` is worked by tasks after an edit: past its `timeout` its key is held."""
    gate, replaced = threading.Event(), threading.Event()
    slot = bench.slot(lambda: gate.wait(10), timeout=0.02, retry=RetrySpec(max_attempts=1))
    slot.invocations.replace_worker = replaced.set
    slot.add_all([added("a"), added("a", ChangeType.MODIFIED)])
    call = asyncio.run_coroutine_threadsafe(slot.work_async(slot.queue.take()), bench.loop.loop)
    assert replaced.wait(10)
    assert (slot.statistics().zombies, slot.queue.take()) == (1, None)
    gate.set()
    assert call.result(10) is False, "its worker was replaced and leaves"
    figures = slot.statistics()
    assert (figures.zombies, figures.failed, figures.queued) == (0, 1, 1)


def test_an_asynchronous_call_that_runs_too_long_is_cancelled(bench, added, log) -> None:
    """`timeout` on an `async def` hook: it is cancelled, and counts as failed; the log has the line."""
    ended = []

    async def hangs(change) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    slot = bench.slot(hangs, timeout=0.02, retry=RetrySpec(max_attempts=1))
    slot.add_all([added("a")])
    item = slot.queue.take()
    assert bench.loop.submit(slot.work_async(item)).result(10) is True
    assert ended == ["cancelled"]
    figures = slot.statistics()
    assert (figures.failed, figures.zombies, figures.timeouts) == (1, 0, 1)
    assert figures.last_error == "default/a: TimeoutError: it ran longer than its timeout of 0.02 s"
    assert figures.last_error_type == "TimeoutError"
    trace = log.find("ran longer than its timeout").fields["traceback"]
    assert "await asyncio.Event().wait()" in trace
    assert "invocations.py" not in trace


def test_a_call_that_a_drain_gave_up_and_that_succeeds_is_done(bench, added) -> None:
    """A slow call outlives the drain of a reload and succeeds: it isn't made again, even with a `timeout`."""
    gate, began = threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        gate.wait(10)

    slot = bench.slot(slow, timeout=60.0)
    slot.add_all([added("a")])
    item = slot.queue.take()
    worker = threading.Thread(target=slot.work, args=(item,))
    worker.start()
    assert began.wait(10)
    ended = rebind(slot, bench.binding(lambda: None, generation=2))
    assert slot.abandon(ended) == 1
    assert (slot.outstanding(ended), slot.statistics().zombies) == (1, 1)
    gate.set()
    worker.join(10)
    figures = slot.statistics()
    assert (figures.succeeded, figures.retried, figures.zombies, slot.outstanding(ended)) == (1, 0, 0, 0)


def test_an_asynchronous_call_that_is_given_up_before_it_waits_ends_at_its_first_wait(bench, added) -> None:
    """A drain that ends while a coroutine computes cancels it as soon as it awaits something."""
    gate, began = threading.Event(), threading.Event()

    async def computes() -> None:
        began.set()
        gate.wait(10)
        await asyncio.Event().wait()

    slot = bench.slot(computes, retry=RetrySpec(max_attempts=1))
    slot.add_all([added("a")])
    call = asyncio.run_coroutine_threadsafe(slot.work_async(slot.queue.take()), bench.loop.loop)
    assert began.wait(10)
    ended = rebind(slot, bench.binding(computes, generation=2))
    assert slot.abandon(ended) == 1
    gate.set()
    assert call.result(10) is False, "its worker was replaced and leaves"
    figures = slot.statistics()
    assert (figures.failed, figures.zombies, slot.outstanding(ended), figures.timeouts) == (1, 0, 0, 0)
    assert figures.last_error == "default/a: TimeoutError: it was cancelled at the drain timeout of a reload"


def test_a_call_that_times_out_has_failed_at_that_moment(bench, added) -> None:
    """For the probation and the last error: whether it ever returns is not waited for. It counts once."""
    gate = threading.Event()
    slot = bench.slot(lambda: gate.wait(10), timeout=0.02, retry=RetrySpec(max_attempts=1))
    tally = slot.binding.tally
    slot.add_all([added("a")])
    worker = threading.Thread(target=bench.work)
    worker.start()
    until("it is given up", lambda: slot.statistics().zombies)
    assert (tally.calls, tally.failed) == (1, 1)
    assert tally.last_error == "default/a: TimeoutError: it ran longer than its timeout of 0.02 s"
    assert slot.statistics().last_error == tally.last_error
    gate.set()
    worker.join(10)
    figures = slot.statistics()
    assert (tally.calls, tally.failed) == (1, 1)
    assert (figures.failed, figures.zombies, tally.longest) == (1, 0, 0.0)


def test_an_asynchronous_call_that_goes_on_after_its_timeout_is_a_zombie(bench, added, monkeypatch) -> None:
    """It swallows its cancellation: it has failed, another worker takes its place, and its key is held."""
    monkeypatch.setattr(invocations, "CANCEL_SECONDS", 0.02)
    gate, replaced = threading.Event(), threading.Event()

    async def stubborn() -> None:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001)

    slot = bench.slot(stubborn, timeout=0.02, retry=RetrySpec(max_attempts=1))
    slot.invocations.replace_worker = replaced.set
    slot.add_all([added("a")])
    call = asyncio.run_coroutine_threadsafe(slot.work_async(slot.queue.take()), bench.loop.loop)
    assert replaced.wait(10)
    tally = slot.binding.tally
    assert (tally.calls, tally.failed, slot.statistics().zombies) == (1, 1, 1)
    gate.set()
    assert call.result(10) is False, "its worker was replaced and leaves"
    assert (tally.calls, tally.failed, slot.statistics().zombies) == (1, 1, 0)
    assert (slot.statistics().failed, slot.statistics().timeouts) == (1, 1)


def test_failures_of_what_had_failed_before_are_told_apart(bench, added, clock) -> None:
    """A retry that fails on new code as on the old one is inherited; what fails there first is its own."""
    policy = {"retry": RetrySpec(initial_backoff=1.0), "on_failure": OnFailure.RETRY}
    slot = bench.slot(_fails, **policy)
    slot.add_all([added("a")])
    bench.work()
    newer = bench.binding(_fails, generation=2, **policy)
    slot.forget(rebind(slot, newer))
    slot.add_all([added("b")])
    clock.set(5)
    bench.work()
    assert (newer.tally.calls, newer.tally.failed, newer.tally.inherited) == (2, 2, {1: 1})
    without = newer.tally.without_inherited(1)
    assert (without.calls, without.failed) == (1, 1)
    clock.set(20)
    bench.work()
    assert (newer.tally.calls, newer.tally.inherited) == (4, {1: 2})


def test_an_asynchronous_call_that_will_not_be_cancelled_is_a_zombie(bench, added, monkeypatch) -> None:
    """It swallows its cancellation and goes on: others are let in, and its key is held."""
    monkeypatch.setattr(invocations, "CANCEL_SECONDS", 0.02)
    gate, replaced = threading.Event(), threading.Event()

    async def stubborn() -> None:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001)

    slot = bench.slot(stubborn, retry=RetrySpec(max_attempts=1))
    slot.invocations.replace_worker = replaced.set
    slot.add_all([added("a"), added("a", ChangeType.MODIFIED), added("b")])
    call = asyncio.run_coroutine_threadsafe(slot.work_async(slot.queue.take()), bench.loop.loop)
    until("the call has begun", slot.running)
    assert slot.queue.take() is None
    assert slot.abandon(rebind(slot, bench.binding(stubborn, generation=2))) == 1
    assert replaced.wait(10)
    assert slot.statistics().zombies == 1
    assert slot.queue.take().key == "default/b"
    gate.set()
    assert call.result(10) is False, "its worker was replaced and leaves"
    assert slot.statistics().zombies == 0


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def test_a_failure_without_a_text_is_a_failure_too(bench, added) -> None:
    """An exception whose own text raises must not take the worker with it."""

    def fails(change) -> None:
        raise _Unprintable

    slot = bench.slot(fails, retry=RetrySpec(max_attempts=1))
    slot.add_all([added("a"), added("b")])
    assert bench.work() == 2
    assert slot.statistics().failed == 2


def test_a_huge_message_is_cut(bench, added, log) -> None:
    """A handler that raises with a whole object as text does not fill logs and status with it."""

    def fails(change) -> None:
        raise ValueError("x" * 1_000_000)

    slot = bench.slot(fails, retry=RetrySpec(max_attempts=1))
    slot.add_all([added("a")])
    bench.work()
    assert len(slot.statistics().last_error or "") < 3000
    assert sum(len(str(line.fields)) for line in log.lines) < 50_000


A, M, D, R = ChangeType.ADDED, ChangeType.MODIFIED, ChangeType.DELETED, ChangeType.RESYNC


@pytest.mark.parametrize(
    ("pending", "heard"),
    [
        ((A, M), ["Added 2"]),
        ((M, M), ["Modified 2 from 0"]),
        ((M, D), ["Deleted 2"]),
        ((A, D), []),
        ((D, A), ["Deleted 1", "Added 2"]),
        ((R, M), ["Modified 2 from 1"]),
        ((M, R), ["Modified 1 from 0"]),
        ((R, R), ["Resync 2 from 2"]),
        ((A, M, M, D, A, M), ["Added 6"]),
    ],
)
@pytest.mark.parametrize(
    "policy", [{"delivery": Delivery.KEYED}, {"buffer_bytes": 1}], ids=["keyed", "full buffer"]
)
def test_pending_changes_of_one_key_are_merged_by_the_table(bench, record, pending, heard, policy) -> None:
    """What waits and what comes become what the table says; delivered + merged + dropped = changes.

    A buffer counts what waits, so it takes a change of another object to be full from the first one on.
    """
    versions = [record("a", version=number) for number in range(len(pending) + 1)]
    told = [
        Notification(kind, new, old if kind is M else None)
        for kind, old, new in zip(pending, versions, versions[1:], strict=False)
    ]
    lines = []

    def handle(change) -> None:
        if change.obj.name == "a":
            old = f" from {change.old.resource_version}" if change.old is not None else ""
            lines.append(f"{change.type} {change.obj.resource_version}{old}")

    slot = bench.slot(handle, **policy)
    slot.add_all([Notification(ChangeType.ADDED, record("other"))])
    slot.add_all(told)
    bench.work()
    assert lines == heard
    figures = slot.statistics()
    assert figures.delivered + figures.merged + figures.dropped == len(pending) + 1
    assert figures.queued == 0


def test_below_its_limit_every_change_is_delivered(bench, added) -> None:
    """`delivery: Event`: nothing that the table could merge is merged while there is room."""
    heard = []
    slot = bench.slot(lambda change: heard.append(str(change.type)))
    slot.add_all([added("a", kind) for kind in (A, M, M, D, A, D)])
    bench.work()
    assert heard == ["Added", "Modified", "Modified", "Deleted", "Added", "Deleted"]
    assert slot.statistics().merged == 0


def test_a_handler_that_fails_is_called_until_it_succeeds(bench, added, clock, log) -> None:
    """Without `retry` in the manifest: the waits double from 1 s to 5 min, and no attempt is the last one."""
    tries = []

    def fails() -> None:
        tries.append(clock.monotonic())
        if len(tries) < 14:
            raise ValueError("no")

    slot = bench.slot(fails)
    slot.add_all([added("a")])
    while bench.work():
        clock.set(slot.queue.next_due() or 60.0)
    waits = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0, 300.0, 300.0, 300.0]
    assert [late - early for early, late in itertools.pairwise(tries)] == waits
    figures = slot.statistics()
    assert (figures.succeeded, figures.failed, figures.retried, figures.queued) == (1, 0, 13, 0)
    failures = [line for line in log.lines if line.level == "error"]
    assert ["traceback" in line.fields for line in failures] == [True] + [False] * 12
    assert [line.fields["times"] for line in failures] == [*range(1, 14)]
    assert {line.fields["max_attempts"] for line in failures} == {None}


def test_a_change_is_given_up_after_its_attempts(bench, added, clock, log) -> None:
    """`maxAttempts: 5`: after 1, 2, 4 and 8 seconds; each failure is logged with handler, key and numbers."""
    tries = []

    def fails() -> None:
        tries.append(clock.monotonic())
        raise ValueError("no")

    slot = bench.slot(fails, retry=RetrySpec(max_attempts=5))
    slot.add_all([added("a")])
    while bench.work():
        clock.set(slot.queue.next_due() or 60.0)
    assert [late - early for early, late in itertools.pairwise(tries)] == [1.0, 2.0, 4.0, 8.0]
    figures = slot.statistics()
    assert (figures.failed, figures.retried, figures.queued) == (1, 4, 0)
    failures = [line for line in log.lines if line.level == "error"]
    assert {(line.fields["handler"], line.fields["key"]) for line in failures} == {("notify", "default/a")}
    assert [line.fields["attempt"] for line in failures] == [1, 2, 3, 4, 5]
    assert [line.fields["retry_in"] for line in failures] == [1.0, 2.0, 4.0, 8.0, None]
    assert {(line.fields["max_attempts"], line.fields["error_type"]) for line in failures} == {
        (5, "ValueError")
    }


def test_one_traceback_for_each_distinct_fault_then_a_line_with_a_count(bench, added, log) -> None:
    """A handler that fails on a thousand objects in two ways writes two tracebacks, not a thousand."""

    def fails(obj) -> None:
        if obj.name == "k1":
            raise KeyError("team")
        raise ValueError(f"no {obj.name}")

    slot = bench.slot(fails)
    slot.add_all([added(f"k{number}") for number in range(4)])
    bench.work()
    failures = [line for line in log.lines if line.level == "error"]
    assert ["traceback" in line.fields for line in failures] == [True, True, False, False]
    assert [line.fields["times"] for line in failures] == [1, 1, 2, 3]
    assert failures[0].event == (
        "notify failed on Added default/k0: ValueError: no k0; attempt 1, again in 1 s"
    )
    place = f"{__file__}:{fails.__code__.co_firstlineno + 3}"
    assert failures[3].event == (
        f"notify failed on Added default/k3: ValueError: no k3 ({place}, 3 times by now; the first has the "
        "traceback); attempt 1, again in 1 s"
    )


def test_a_fault_that_thousands_of_objects_meet_does_not_fill_the_log(bench, added, log, clock) -> None:
    """Twenty lines a minute about one fault; the next line has the number of those that were left out."""

    def fails(obj) -> None:
        raise ValueError(f"no {obj.name}")

    slot = bench.slot(fails)
    slot.add_all([added(f"k{number}") for number in range(1000)])
    bench.work()
    assert len([line for line in log.lines if line.level == "error"]) == 20
    clock.set(61.0)
    bench.work()
    failures = [line for line in log.lines if line.level == "error"]
    assert len(failures) == 40
    assert failures[20].fields["left_out"] == 980
    assert "980 lines like this were left out" in failures[20].event
    assert [line for line in failures[21:] if "left_out" in line.fields] == []
    assert (failures[20].fields["times"], slot.statistics().retried) == (1001, 2000)


def test_a_change_that_is_given_up_is_logged_among_a_thousand_retries(bench, added, log, clock) -> None:
    """Lines about lost changes have a limit of their own: retries of others do not use it up."""

    def fails(obj) -> None:
        raise ValueError

    slot = bench.slot(fails, retry=RetrySpec(max_attempts=2))
    slot.add_all([added(f"k{number}") for number in range(100)])
    bench.work()
    clock.set(1.0)
    bench.work()
    given_up = [line for line in log.lines if line.event.endswith("given up")]
    assert len(given_up) == 20
    assert slot.statistics().failed == 100


def test_the_lines_of_a_failure_have_the_error_apart_and_the_id_of_the_event(bench, added, log) -> None:
    """A program finds class, text and event without parsing the sentence; `ctx.log` has the same id."""

    def fails(change, ctx) -> None:
        ctx.log.info("begins")
        raise KeyError("team")

    slot = bench.slot(fails)
    change = added("a")
    slot.add_all([change])
    bench.work()
    failure = next(line for line in log.lines if line.level == "error")
    assert (failure.fields["error_type"], failure.fields["error"]) == ("KeyError", "'team'")
    assert failure.fields["event_id"] == f"uid-default-a@{change.record.resource_version}"
    assert log.find("begins").fields["event_id"] == failure.fields["event_id"]


def test_distinct_faults_are_remembered_within_bounds(log, clock) -> None:
    """Code that fails in a new place each time costs no memory for ever."""
    failures = FailureLog(log, "notify", clock=clock)
    for number in range(10_000):
        failures.count((number,))
    assert failures.remembered == 100
    assert failures.count((9_999,)) == 2
    assert failures.count((0,)) == 1


def test_a_back_off_grows_to_its_maximum_and_no_further(bench, added, clock) -> None:
    """`maxBackoff`: also a handler that fails for a week is tried again soon after it works."""
    tries = []

    def fails() -> None:
        tries.append(clock.monotonic())
        raise ValueError

    slot = bench.slot(
        fails, on_failure=OnFailure.RETRY, retry=RetrySpec(initial_backoff=1.0, max_backoff=5.0)
    )
    slot.add_all([added("a")])
    for _ in range(6):
        bench.work()
        clock.set(slot.queue.next_due())
    assert [late - early for early, late in itertools.pairwise(tries)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_change_that_was_given_up_lets_the_next_of_its_key_pass(bench, added) -> None:
    """Under `Event` a failing change holds its key until it succeeds or is given up, and then no longer."""
    heard = []

    def fails_on_added(change) -> None:
        heard.append(str(change.type))
        if change.type is ChangeType.ADDED:
            raise ValueError

    slot = bench.slot(fails_on_added, retry=RetrySpec(max_attempts=1))
    slot.add_all([added("a"), added("a", ChangeType.MODIFIED)])
    bench.work()
    assert heard == ["Added", "Modified"]
    figures = slot.statistics()
    assert (figures.failed, figures.succeeded) == (1, 1)


def test_under_keyed_a_newer_change_takes_the_place_and_the_attempts_of_a_failing_one(
    bench, added, clock
) -> None:
    """It doesn't wait for the old one to be given up, nor does it get more attempts than were left."""
    heard = []

    def fails(change) -> None:
        heard.append((str(change.type), change.obj.resource_version))
        raise ValueError

    slot = bench.slot(fails, delivery=Delivery.KEYED, retry=RetrySpec(max_attempts=3))
    old, new = added("a"), added("a", ChangeType.MODIFIED)
    slot.add_all([old])
    bench.work()
    slot.add_all([new])
    for _ in range(5):
        clock.set(60.0)
        bench.work()
    first, newest = old.record.resource_version, new.record.resource_version
    assert heard == [("Added", first), ("Added", newest), ("Added", newest)]
    figures = slot.statistics()
    assert (figures.failed, figures.retried, figures.merged, figures.delivered) == (1, 2, 1, 1)


def test_what_is_dropped_is_counted(bench, added) -> None:
    """Changes that nobody will hear of any more are the rest of the sum."""
    slot = bench.slot(lambda: None)
    slot.add_all([added("a"), added("b"), added("c")])
    item = slot.queue.take()
    slot.queue.clear()
    slot.work(item)
    figures = slot.statistics()
    assert (figures.delivered, figures.merged, figures.dropped, figures.queued) == (1, 0, 2, 0)


def _unsynced(*_: object) -> None:
    raise NotSynced("deployments has not synced (403 Forbidden)", resource="deployments")


def _wrapped(how: str) -> None:
    try:
        _unsynced()
    except NotSynced as error:
        if how == "raised from it":
            raise RuntimeError("no deployment to compare with") from error
        if how == "in a group":
            raise ExceptionGroup("tasks failed", [error]) from None
        raise RuntimeError("the fallback failed") if how == "beside it" else error  # noqa: B904 - on purpose


@pytest.mark.parametrize("how", ["plain", "raised from it", "in a group"])
def test_a_call_that_reads_a_cache_which_has_not_synced_is_no_attempt(how, bench, added, clock, log) -> None:
    """It is called again with back-off, past `retry.maxAttempts`; the log has a line a minute."""
    calls: list[str] = []
    synced: list[bool] = []

    def notify(obj):
        calls.append(obj.name)
        if not synced:
            _wrapped(how)

    slot = bench.slot(notify, retry=RetrySpec(max_attempts=2, initial_backoff=1.0, max_backoff=300.0))
    slot.add_all([added("a"), added("b")])
    for _ in range(70):
        bench.work()
        clock.set(1.0)
    figures = slot.statistics()
    assert (figures.failed, figures.succeeded, figures.retried) == (0, 0, len(calls))
    assert figures.retried > 8
    assert slot.binding.tally.calls == slot.binding.tally.failed == 0
    assert "deployments has not synced" in (figures.last_error or "")
    assert [line.level for line in log.lines] == ["warning", "warning"]  # one a minute, for all objects

    synced.append(True)
    clock.set(30.0)  # the longest that it waits
    assert bench.work() == 2
    assert slot.statistics().succeeded == 2
    assert slot.queue.idle


def test_what_waits_for_a_cache_is_called_when_a_cache_has_synced(bench, added, clock) -> None:
    """It does not wait out its back-off; what has failed by itself does."""
    calls: list[str] = []

    def notify(obj):
        calls.append(obj.name)
        if obj.name == "fails":
            raise ValueError("no")
        if calls.count(obj.name) < 3:
            _unsynced()

    slot = bench.slot(notify, retry=RetrySpec(max_attempts=9, initial_backoff=20.0, max_backoff=20.0))
    slot.add_all([added("a"), added("fails"), added("b")])
    assert bench.work() == 3
    assert bench.work() == 0
    for _ in range(2):
        slot.cache_synced()
        assert bench.work() == 2
    slot.cache_synced()
    assert bench.work() == 0
    assert calls == ["a", "fails", "b", "a", "b", "a", "b"]
    assert slot.statistics().succeeded == 2
    clock.set(20.0)
    assert bench.work() == 1


def test_attempts_count_from_the_first_call_that_could_read(bench, added, clock) -> None:
    """What waited for a cache has all its attempts left when it fails by itself."""
    faults: list[Exception] = [NotSynced("maps has not synced")] * 3 + [ValueError("no")] * 9

    def notify():
        raise faults.pop(0)

    slot = bench.slot(notify, retry=RetrySpec(max_attempts=4, initial_backoff=1.0, max_backoff=1.0))
    slot.add_all([added("a")])
    while not slot.queue.idle:
        bench.work()
        clock.set(1.0)
    assert (slot.statistics().failed, len(faults)) == (1, 5)


def test_an_error_beside_not_synced_is_a_failure_of_its_own(bench, added, clock) -> None:
    """A fallback that fails in an `except NotSynced:` is given up as any failure is."""
    slot = bench.slot(lambda: _wrapped("beside it"), retry=RetrySpec(max_attempts=1))
    slot.add_all([added("a")])
    bench.work()
    assert (slot.statistics().failed, slot.queue.idle) == (1, True)


class _Unreadable(Exception):
    """An exception that raises whatever it is asked."""

    def __str__(self) -> str:
        raise SystemExit(3)

    @property
    def __cause__(self) -> BaseException:
        raise SystemExit(4)

    @property
    def __context__(self) -> BaseException:
        raise SystemExit(5)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_exception_that_can_not_be_read_ends_no_worker(bench, added, log, asynchronous) -> None:
    """It is counted, logged without its text, and given up as any other; the next change is delivered."""
    heard = []

    def fails(change) -> None:
        heard.append(change.obj.name)
        raise _Unreadable

    async def fails_async(change) -> None:
        await asyncio.sleep(0)
        fails(change)

    slot = bench.slot(fails_async if asynchronous else fails, retry=RetrySpec(max_attempts=1))
    slot.add_all([added("a"), added("b")])
    while (item := slot.queue.take()) is not None:
        goes_on = bench.loop.submit(slot.work_async(item)).result(10) if asynchronous else slot.work(item)
        assert goes_on
    assert heard == ["a", "b"]
    figures = slot.statistics()
    assert (figures.failed, figures.last_error_type) == (2, "_Unreadable")
    assert [line.level for line in log.lines] == ["error", "error"]


def test_a_call_that_times_out_before_its_blocked_loop_has_begun_it_never_begins(bench, added) -> None:
    """It has failed once, and holds no worker; made later, it would act for a change that has failed."""
    gate, blocked, called = threading.Event(), threading.Event(), []

    async def block() -> None:
        blocked.set()
        gate.wait(10)

    async def hook() -> None:
        called.append("async")

    slot = bench.slot(lambda: None, hook, timeout=1.0, retry=RetrySpec(max_attempts=1))
    bench.loop.submit(block())
    assert blocked.wait(10)
    slot.add_all([added("a")])
    worker = threading.Thread(target=bench.work)
    worker.start()
    until("it is sent", lambda: any(each.sent is not None for each in slot.invocations.of(slot.binding)))
    for _ in range(10):
        bench.loop.look()
    bench.clock.set(10)
    slot.invocations.time_out_blocked()
    worker.join(10)
    assert not worker.is_alive()
    assert (slot.statistics().failed, slot.statistics().zombies) == (1, 0)
    gate.set()
    bench.loop.submit(asyncio.sleep(0)).result(10)
    assert called == []


def test_a_call_that_is_sent_to_a_blocked_loop_is_revoked_and_never_begins(bench, added) -> None:
    """The drain of a reload gives it up: it fails, and is not made when the loop is free again."""
    gate, blocked, called = threading.Event(), threading.Event(), []

    async def block() -> None:
        blocked.set()
        gate.wait(10)

    async def hook() -> None:
        called.append("async")

    slot = bench.slot(lambda: None, hook, retry=RetrySpec(max_attempts=1))
    bench.loop.submit(block())
    assert blocked.wait(10)
    slot.add_all([added("a")])
    worker = threading.Thread(target=bench.work)
    worker.start()
    old = slot.binding
    ended = rebind(slot, bench.binding(lambda: None, generation=2))
    until("it is sent", lambda: any(run.sent is not None for run in slot.invocations.of(old)))
    assert slot.abandon(ended) == 1
    worker.join(10)
    gate.set()
    bench.loop.submit(asyncio.sleep(0)).result(10)
    assert called == []
    assert slot.statistics().failed == 1
    assert "was not called" in (slot.statistics().last_error or "")
