"""How an invocation ends: who is told, in which order, and what becomes of its change."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from declctl.kit import LoopThread
from declctl.kit.worker_pool import AsyncWorkerPool
from declctl.manifest.model import OnFailure, RetrySpec
from declctl.objects import ChangeType
from declctl.runtime.handling.circuit_breaker import BreakerPolicy, CircuitBreaker
from declctl.runtime.handling.tap import TapFilter, TapOutcome
from declctl.testing import until
from declctl.workqueue import Backoff

SOON = 10.0
ONCE = RetrySpec(max_attempts=1)
TWICE = RetrySpec(max_attempts=2, initial_backoff=1.0, max_backoff=1.0)


class Witness:
    """A log and a breaker that note where the change was when they were told."""

    def __init__(self, log: Any) -> None:
        self.slot: Any = None
        self.told: list[tuple[str, str]] = []
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def note(self, listener: str) -> None:
        figures = self.slot.queue.statistics()
        where = "held" if figures.running else "back" if figures.backing_off else "gone"
        counted = self.slot.statistics()
        assert counted.retried + counted.failed + counted.succeeded == 1, f"{listener} is told before figures"
        self.told.append((listener, where))

    def error(self, event: str, **fields: Any) -> None:
        self.note("log")
        self._log.error(event, **fields)


class WatchedBreaker(CircuitBreaker):
    """A breaker that tells the witness."""

    witness: Witness

    def failed(self, subject: str, what: str) -> None:
        self.witness.note("breaker")
        super().failed(subject, what)

    def succeeded(self, subject: str) -> None:
        self.witness.note("breaker")
        super().succeeded(subject)


@pytest.fixture(name="witness")
def _witness(bench, log) -> Witness:
    bench.log = Witness(log)
    return bench.log


def observed(bench, witness: Witness, clock, log, handler, **policy: Any) -> Any:
    """A slot with a breaker, a tap and a queue whose witness is told."""
    breaker = WatchedBreaker("slack", BreakerPolicy(9, Backoff(1.0, 1.0)), clock=clock, log=log)
    breaker.witness = witness
    slot = witness.slot = bench.bound(replace(bench.binding(handler, **policy), breaker=breaker))
    listener = slot.invocations.tap.listen(TapFilter(), bench.loop.loop)
    add = listener.add

    def tapped(call: Any) -> None:
        witness.note("tap")
        add(call)

    listener.add = tapped
    return slot


def fails(change) -> None:
    raise ValueError("no")


def works(change) -> None:
    """Succeed."""


@pytest.mark.parametrize(
    ("handler", "policy", "told", "left"),
    [
        pytest.param(works, {}, ["tap"], "gone", id="succeeded"),
        pytest.param(fails, {"retry": TWICE}, ["log", "tap"], "back", id="retried"),
        pytest.param(fails, {"retry": ONCE}, ["log", "tap"], "gone", id="given-up"),
        pytest.param(
            fails,
            {"retry": ONCE, "on_failure": OnFailure.DEAD_LETTER},
            ["log", "tap"],
            "gone",
            id="dead-letter",
        ),
    ],
)
def test_all_is_told_before_another_worker_may_have_the_key(
    bench, added, clock, log, witness, handler, policy, told, left
) -> None:
    """Figures, log and tap come while the key is held, and the breaker when the queue has its change."""
    slot = observed(bench, witness, clock, log, handler, **policy)
    slot.add_all([added("a")])
    slot.work(slot.queue.take())
    assert witness.told == [*((listener, "held") for listener in told), ("breaker", left)]


def test_what_a_removed_handler_gives_up_is_in_no_dead_letter(bench, added, log) -> None:
    """The letters go with the handler: the log does not send anybody to look for one."""
    began, gate = threading.Event(), threading.Event()

    def hangs(change) -> None:
        began.set()
        assert gate.wait(SOON)
        raise ValueError("no")

    slot = bench.slot(hangs, retry=ONCE, on_failure=OnFailure.DEAD_LETTER)
    slot.add_all([added("a")])
    worker = threading.Thread(target=slot.work, args=(slot.queue.take(),))
    worker.start()
    assert began.wait(SOON)
    slot.close()
    gate.set()
    worker.join(SOON)
    assert len(slot.dead_letters) == 0
    assert log.find("notify failed on Added default/a").event.endswith("attempt 1 of 1, given up")


def test_a_call_whose_loop_ends_is_made_again(bench, added) -> None:
    """A loop that was blocked, and ends when its call awaits at last, does not keep the key for ever."""
    loop, began, called = LoopThread("test-ending").start(), threading.Event(), []

    async def waits(change) -> None:
        called.append(str(change.type))
        if len(called) == 1:
            began.set()
            await asyncio.Event().wait()

    slot = bench.slot(waits, retry=ONCE)
    workers = AsyncWorkerPool(
        slot.queue,
        slot.work_async,
        recover=slot.recover,
        name="ending",
        loop=loop.loop,
        on_left=lambda: None,
    )
    slot.wake = workers.wake
    slot.add_all([added("a"), added("a", ChangeType.MODIFIED)])
    workers.wake()
    assert began.wait(SOON)
    listener = slot.invocations.tap.listen(TapFilter(), bench.loop.loop)
    loop.stop()
    (told,), _ = listener.take()
    assert (told.outcome, told.error, told.attempt) == (TapOutcome.WAITING, "its loop has ended", 1)
    for _ in range(2):
        assert bench.loop.submit(slot.work_async(slot.queue.take())).result(SOON) is True
    assert called == ["Added", "Added", "Modified"]
    figures = slot.statistics()
    assert (figures.succeeded, figures.failed, figures.retried, figures.running) == (2, 0, 0, 0)
    assert (figures.queued, figures.lag.total, figures.duration.total) == (0, 2, 2)


class BrokenLog:
    """A log that raises for each line of a level, as one whose disk is full."""

    def __init__(self, log: Any, level: str) -> None:
        self._log = log
        self._level = level

    def __getattr__(self, name: str) -> Any:
        if name == self._level:
            raise OSError("no space left on device")
        return getattr(self._log, name)


@pytest.mark.parametrize("began", [True, False])
def test_a_fault_in_the_recovery_from_a_fault_holds_no_key(bench, added, log, began) -> None:
    """Also if the log stays broken: the change is retried, and what waits for the end of calls is woken."""

    def no_context(*_: object) -> None:
        raise LookupError("no context")

    bench.log = BrokenLog(log, "error")

    def handler(ctx) -> None:
        raise ValueError("no")

    binding = bench.binding(handler)
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


def test_a_log_that_is_broken_costs_no_worker(bench, added, log) -> None:
    """The worker of a call that is given up is replaced, and the breaker told, whatever the log does."""
    gate, replaced = threading.Event(), threading.Event()
    bench.log = BrokenLog(log, "warning")
    slot = bench.slot(lambda: gate.wait(SOON), timeout=0.02, retry=ONCE)
    slot.invocations.replace_worker = replaced.set
    slot.add_all([added("a")])
    worker = threading.Thread(target=slot.work, args=(slot.queue.take(),))
    worker.start()
    assert replaced.wait(SOON)
    gate.set()
    worker.join(SOON)


def test_a_worker_that_can_not_be_replaced_goes_on_when_its_call_returns(bench, added, log) -> None:
    """Without a thread for another one, the handler would have no worker left."""
    gate = threading.Event()

    def no_thread() -> None:
        raise RuntimeError("can't start new thread")

    slot = bench.slot(lambda: gate.wait(SOON), timeout=0.02, retry=ONCE)
    slot.invocations.replace_worker = no_thread
    slot.add_all([added("a")])
    item, left = slot.queue.take(), []
    worker = threading.Thread(target=lambda: left.append(slot.work(item)))
    worker.start()
    until("it is logged", lambda: log.find("no other worker takes the place"))
    gate.set()
    worker.join(SOON)
    assert left == [True]
    assert slot.statistics().zombies == 0


def test_a_call_that_ends_while_it_is_given_up_is_no_fault(bench, added) -> None:
    """The end of the drain cancels a call that has returned by then."""
    faults: list[Any] = []
    bench.loop.loop.set_exception_handler(lambda _, context: faults.append(context))

    async def returns(change) -> None:
        await asyncio.sleep(0)
        assert bench.handler.invocations.abandon(bench.handler.binding) == 1

    slot = bench.slot(returns)
    slot.add_all([added("a")])
    assert bench.loop.submit(slot.work_async(slot.queue.take())).result(SOON) is True
    bench.loop.submit(asyncio.sleep(0)).result(SOON)
    assert not faults
    assert slot.statistics().succeeded == 1
