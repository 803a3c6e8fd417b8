"""How an invocation ends: who is told, what becomes of its change, and of calls that run too long."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from declctl.kit import LoopThread
from declctl.kit.worker_pool import AsyncWorkerPool
from declctl.manifest.model import OnFailure
from declctl.objects import ChangeType
from declctl.runtime.handling import calls_under_way, invocations
from declctl.runtime.handling.circuit_breaker import BreakerPolicy, CircuitBreaker
from declctl.runtime.handling.handler_loops import HandlerLoops
from declctl.runtime.handling.outcomes import Interrupted
from declctl.runtime.handling.tap import TapFilter, TapOutcome
from declctl.testing import until
from declctl.workqueue import Backoff
from tests.rooms.runtime.conftest import ONCE, SOON, BrokenLog, Hanging, fails, rebind


def observed(bench, clock, log, handler, **policy: Any) -> tuple[Any, list[tuple[str, str]]]:
    """A slot with a breaker and a tap; where its change was when they and the log were told."""
    breaker = CircuitBreaker("slack", BreakerPolicy(9, Backoff(1.0, 1.0)), clock=clock, log=log)
    slot = bench.bound(replace(bench.binding(handler, **policy), breaker=breaker))
    tap = slot.tap.listen(TapFilter(), bench.loop.loop)
    told = []

    def watch(name: str, listener: Any, method: str) -> None:
        tell = getattr(listener, method)

        def noted(*given: Any, **fields: Any) -> None:
            queue, counted = slot.queue.statistics(), slot.statistics()
            assert counted.retried + counted.failed + counted.succeeded == 1, f"{name} is told before figures"
            told.append((name, "held" if queue.running else "back" if queue.backing_off else "gone"))
            tell(*given, **fields)

        setattr(listener, method, noted)

    watch("breaker", breaker, "failed")
    watch("breaker", breaker, "succeeded")
    watch("tap", tap, "add")
    watch("log", log, "error")
    return slot, told


def works(change) -> None:
    """Succeed."""


@pytest.mark.parametrize(
    ("handler", "policy", "told", "left"),
    [
        (works, {}, ["tap"], "gone"),
        (fails, {}, ["log", "tap"], "back"),
        (fails, {"retry": ONCE}, ["log", "tap"], "gone"),
        (fails, {"retry": ONCE, "on_failure": OnFailure.DEAD_LETTER}, ["log", "tap"], "gone"),
    ],
    ids=["succeeded", "retried", "given up", "dead letter"],
)
def test_all_is_told_before_another_worker_may_have_the_key(
    bench, added, clock, log, handler, policy, told, left
) -> None:
    """Figures, log and tap come while the key is held, and the breaker when the queue has its change."""
    slot, found = observed(bench, clock, log, handler, **policy)
    slot.add_all([added("a")])
    slot.work(slot.queue.take())
    assert found == [*((listener, "held") for listener in told), ("breaker", left)]


def test_a_call_whose_loop_ends_is_made_again(bench, added) -> None:
    """A loop that was blocked, and ends when its call awaits at last, does not keep the key for ever."""
    loop, began, called = LoopThread("test-ending").start(), threading.Event(), []

    async def waits(change) -> None:
        called.append(str(change.type))
        if len(called) == 1:
            began.set()
            await asyncio.Event().wait()

    slot = bench.slot(waits, adds="a", retry=ONCE)
    slot.add_all([added("a", ChangeType.MODIFIED)])
    pool = {"recover": slot.recover, "name": "ending", "loop": loop.loop, "on_left": list}
    workers = AsyncWorkerPool(slot.queue, slot.work_async, **pool)
    slot.wake = workers.wake
    workers.wake()
    assert began.wait(SOON)
    listener = slot.tap.listen(TapFilter(), bench.loop.loop)
    loop.stop()
    (told,), _ = listener.take()
    assert (told.outcome, told.error, told.attempt) == (TapOutcome.WAITING, "its loop has ended", 1)
    for _ in range(2):
        assert bench.loop.submit(slot.work_async(slot.queue.take())).result(SOON) is True
    assert called == ["Added", "Added", "Modified"]
    figures = slot.statistics()
    assert (figures.succeeded, figures.failed, figures.retried, figures.running) == (2, 0, 0, 0)
    assert (figures.queued, figures.lag.total, figures.duration.total) == (0, 2, 2)


@pytest.mark.parametrize("began", [True, False])
def test_a_fault_in_the_recovery_from_a_fault_holds_no_key(bench, added, log, began) -> None:
    """Also if the log stays broken: the change is retried, and what waits for the end of calls is woken."""

    def no_context(*_: object) -> None:
        raise LookupError("no context")

    bench.log = BrokenLog(log, "error")
    binding = bench.binding(lambda ctx: 1 / 0)
    slot = bench.bound(binding if began else replace(binding, make_context=no_context))
    slot.add_all([added("a")])
    item = slot.queue.take()
    with pytest.raises(OSError if began else LookupError) as first:
        slot.work(item)
    idle = slot.end_of(None)
    with pytest.raises(OSError):
        slot.recover(item, first.value)
    figures = slot.queue.statistics()
    assert (figures.running, figures.backing_off) == (0, 1)
    bench.loop.submit(idle.wait()).result(SOON)


def test_a_worker_that_can_not_be_replaced_goes_on_when_its_call_returns(bench, log, hanging) -> None:
    """Without a thread for another one, the handler would have no worker left."""

    def no_thread() -> None:
        raise RuntimeError("can't start new thread")

    slot = bench.slot(hanging.hook, adds="a", timeout=0.02, retry=ONCE)
    slot.replace_worker = no_thread
    call = bench.begin()
    until("it is logged", lambda: log.find("no other worker takes the place"))
    hanging.gate.set()
    assert call.result(SOON) is True
    assert slot.statistics().zombies == 0


def test_a_fault_after_a_change_was_returned_does_not_return_it_again(bench, clock, log) -> None:
    """Another worker may have it by then: its call goes on, and the failing key stays known."""

    def another_has_it() -> None:
        clock.set(600.0)
        assert slot.queue.take()
        raise RuntimeError("Event loop is closed")

    slot = bench.slot(fails, adds="a")
    slot.wake = another_has_it
    assert slot.work(slot.queue.take()) is True
    assert log.find("internal fault of declctl: RuntimeError: Event loop is closed; the call is made again")
    figures = slot.statistics()
    assert (figures.running, figures.queued, figures.retried) == (1, 0, 1)
    assert "internal" not in str(figures.last_error)


def test_a_call_that_ends_while_it_is_given_up_is_no_fault(bench) -> None:
    """The end of the drain cancels a call that has returned by then."""
    faults: list[Any] = []
    bench.loop.loop.set_exception_handler(lambda _, context: faults.append(context))

    async def returns(change) -> None:
        await asyncio.sleep(0)
        assert bench.handler.invocations.under_way.abandon(bench.handler.binding) == 1

    slot = bench.slot(returns, adds="a")
    assert bench.begin(asynchronous=True).result(SOON) is True
    bench.loop.submit(asyncio.sleep(0)).result(SOON)
    assert not faults
    assert slot.statistics().succeeded == 1


@pytest.mark.parametrize(("retry_in", "shown"), [(1.0, TapOutcome.RETRIED), (None, TapOutcome.FAILED)])
def test_a_call_that_a_fault_of_declctl_has_ended_is_shown(retry_in: float | None, shown: TapOutcome) -> None:
    """It is retried, unless its handler was removed."""
    assert Interrupted(error="KeyError", fault=KeyError("x"), retry_in=retry_in).tapped is shown


# Calls that run too long, or are given up


@pytest.fixture(name="hanging")
def _hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.gate.set()


async def _stubborn(hanging: Hanging) -> None:
    """Swallow each cancellation until the gate is open."""
    hanging.began.set()
    while not hanging.gate.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        ("a thread", "it ran longer than"),
        ("a thread that can't log", "it ran longer than"),
        ("a thread of an isolated handler", "it ran longer than"),
        ("a task with a def", "it ran longer than"),
        ("a task with an async def", "it goes on, though it was cancelled at"),
    ],
)
def test_a_call_that_runs_too_long_has_failed_and_its_key_is_held(
    bench, added, log, hanging, monkeypatch, worker, words
) -> None:
    """`timeout`: it counts once, at that moment, for the probation too; it is a zombie until it returns.

    Another worker takes the place of its own, in the pool that it belongs to: a newer pool is complete, and
    may begin. A `def` that was queued before an edit is worked by a task; an
    `async def` may swallow its cancellation. The filter of an isolated handler may hang in this process.
    """
    monkeypatch.setattr(calls_under_way, "CANCEL_SECONDS", 0.02)
    monkeypatch.setattr(calls_under_way, "CHILD_SECONDS", 0.02)
    replaced, pending, others = threading.Event(), threading.Event(), []

    async def stubborn() -> None:
        await _stubborn(hanging)

    if "log" in worker:
        bench.log = BrokenLog(log, "warning")
    hook = stubborn if worker.endswith("async def") else hanging.hook
    binding = bench.binding(hook, timeout=0.02, retry=ONCE)
    slot = bench.bound(replace(binding, isolation=Mock() if "isolated" in worker else None))
    slot.add_all([added("a"), added("a", ChangeType.MODIFIED), added("b")])
    slot.replace_worker = replaced.set
    tally = slot.binding.tally
    call = bench.begin(asynchronous=not worker.startswith("a thread"))
    until("the call has begun", slot.running)
    slot.replace_worker, slot.wake = lambda: others.append(1), pending.set
    assert pending.wait(SOON)
    assert (replaced.is_set(), others) == (True, [])
    assert slot.queue.take().key == "default/b"
    assert (slot.statistics().zombies, slot.queue.take()) == (1, None)
    assert (tally.calls, tally.failed) == (1, 1)
    assert tally.last_error == f"default/a: TimeoutError: {words} its timeout of 0.02 s"
    assert slot.statistics().last_error == tally.last_error
    hanging.gate.set()
    assert call.result(SOON) is False, "its worker was replaced and leaves"
    figures = slot.statistics()
    assert (figures.zombies, figures.failed, figures.queued, figures.timeouts) == (0, 1, 1, 1)
    assert (tally.calls, tally.failed, tally.longest) == (1, 1, 0.0)


@pytest.mark.parametrize("has_def", [False, True])
def test_an_asynchronous_call_that_runs_too_long_is_cancelled(bench, log, has_def) -> None:
    """`timeout` on an `async def` hook: it is cancelled, and counts as failed; the log has the line.

    Its worker goes on, also if it is a thread, as the handler has a `def` hook, too.
    """
    ended = []

    async def hangs(change) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    slot = bench.slot(hangs, *[works] * has_def, adds="a", timeout=0.02, retry=ONCE)
    assert bench.begin(asynchronous=not has_def).result(SOON) is True
    assert ended == ["cancelled"]
    figures = slot.statistics()
    assert (figures.failed, figures.zombies, figures.timeouts) == (1, 0, 1)
    assert figures.last_error == "default/a: TimeoutError: it ran longer than its timeout of 0.02 s"
    assert figures.last_error_type == "TimeoutError"
    trace = log.find("ran longer than its timeout").fields["traceback"]
    assert has_def or "await asyncio.Event().wait()" in trace
    assert invocations.__file__ not in trace


@pytest.mark.parametrize("kind", ["def", "isolated", "async def"])
def test_a_call_that_a_drain_gave_up_and_that_succeeds_is_done(
    bench, added, hanging, monkeypatch, kind
) -> None:
    """A slow call outlives the drain of a reload and succeeds: it isn't made again, even with a `timeout`.

    Until then it is a zombie: others are let in, and its key is held. So is a filter of an isolated handler,
    which doesn't end with the processes, and an `async def` that swallows its cancellation.
    """
    monkeypatch.setattr(calls_under_way, "CANCEL_SECONDS", 0.02)
    replaced = threading.Event()

    async def stubborn() -> None:
        await _stubborn(hanging)

    binding = bench.binding(stubborn if kind == "async def" else hanging.hook, timeout=60.0)
    slot = bench.bound(replace(binding, isolation=Mock() if kind == "isolated" else None))
    slot.add_all([added("a"), added("a", ChangeType.MODIFIED), added("b")])
    slot.replace_worker = replaced.set
    call = bench.begin(asynchronous=kind == "async def")
    assert hanging.began.wait(SOON)
    assert slot.queue.take() is None
    ended = rebind(slot, bench.binding(lambda: None, generation=2))
    assert slot.abandon(ended) == 1
    assert replaced.wait(SOON)
    assert (slot.outstanding(ended), slot.statistics().zombies) == (1, 1)
    assert slot.queue.take().key == "default/b"
    hanging.gate.set()
    assert call.result(SOON) is False, "its worker was replaced and leaves"
    figures = slot.statistics()
    assert (figures.succeeded, figures.retried, figures.zombies, slot.outstanding(ended)) == (1, 0, 0, 0)


def test_an_asynchronous_call_that_is_given_up_before_it_waits_ends_at_its_first_wait(bench, hanging) -> None:
    """A drain that ends while a coroutine computes cancels it as soon as it awaits something."""

    async def computes(change) -> None:
        hanging.hook(change)
        await asyncio.Event().wait()

    slot = bench.slot(computes, adds="a", retry=ONCE)
    call = bench.begin(asynchronous=True)
    assert hanging.began.wait(SOON)
    ended = rebind(slot, bench.binding(computes, generation=2))
    assert slot.abandon(ended) == 1
    hanging.gate.set()
    assert call.result(SOON) is False, "its worker was replaced and leaves"
    figures = slot.statistics()
    assert (figures.failed, figures.zombies, slot.outstanding(ended), figures.timeouts) == (1, 0, 0, 0)
    assert figures.last_error == "default/a: TimeoutError: it was cancelled at the drain timeout of a reload"


@pytest.mark.parametrize("given_up_by", ["its timeout", "a drain"])
def test_a_call_that_is_given_up_before_its_blocked_loop_has_begun_it_never_begins(
    bench, hanging, given_up_by
) -> None:
    """It has failed once, and holds no worker; made later, it would act for a change that has failed."""
    called = []

    async def block() -> None:
        hanging.hook(None)

    async def hook() -> None:
        called.append("async")

    policy = {"timeout": 1.0} if given_up_by == "its timeout" else {}
    slot = bench.slot(lambda: None, hook, adds="a", retry=ONCE, **policy)
    bench.loop.submit(block())
    assert hanging.began.wait(SOON)
    call, old = bench.begin(), slot.binding
    until("it is sent", lambda: any(each.sent is not None for each in slot.invocations.under_way.of(old)))
    if given_up_by == "its timeout":
        for _ in range(10):
            bench.loop.look()
        bench.clock.set(10)
        slot.time_out_blocked()
    else:
        assert slot.abandon(rebind(slot, bench.binding(lambda: None, generation=2))) == 1
    call.result(SOON)
    figures = slot.statistics()
    assert (figures.failed, figures.zombies) == (1, 0)
    assert ("was not called" in (figures.last_error or "")) or policy
    hanging.gate.set()
    bench.loop.submit(asyncio.sleep(0)).result(SOON)
    assert called == []


async def test_a_blocked_loop_that_nobody_uses_any_longer_is_no_concern(log) -> None:
    """It is left to the end of the process: calls of others are not looked at for its sake."""
    loops, gate, looks = HandlerLoops(log=log), threading.Event(), list[int]()

    async def one_look() -> int:
        """How often calls were looked at in the first of its looks, which comes at once."""
        looks.clear()
        watching = asyncio.ensure_future(loops.watch(lambda: looks.append(1)))
        await asyncio.sleep(0)
        watching.cancel()
        return len(looks)

    try:
        loops.start()
        loops.newest.loop.call_soon_threadsafe(gate.wait)
        while not loops.newest.is_blocked:
            loops.newest.look()
        assert await one_look() == 1
        loops.keep({await loops.responsive()})
        assert (await one_look(), loops.blocked()) == (0, [])
    finally:
        gate.set()
        loops.stop()
