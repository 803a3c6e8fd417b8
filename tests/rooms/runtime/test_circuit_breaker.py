"""A plugin that fails again and again is suspended, and tried by one call at a time."""

from dataclasses import replace

import pytest

from declctl.kit import ManualClock
from declctl.manifest.model import RetrySpec
from declctl.runtime.handling.circuit_breaker import (
    LONGEST_LOOK,
    BreakerPolicy,
    BreakerState,
    CircuitBreaker,
    CircuitBreakers,
)
from declctl.workqueue import Backoff

POLICY = BreakerPolicy(3, Backoff(30.0, 100.0))


@pytest.fixture(name="breaker")
def _breaker(clock, log):
    """A breaker that opens after 3 failures, for 30 s at first."""
    return CircuitBreaker("slack", POLICY, clock=clock, log=log)


class Caller:
    """A handler that asks for calls, and remembers when it may ask again."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self.breaker = breaker
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def enter(self, subject: str) -> float:
        return self.breaker.enter(subject, self.wake)

    def fail(self, *subjects: str) -> None:
        for subject in subjects:
            assert self.enter(subject) == 0.0
            self.breaker.failed(subject, "OSError: down")

    def succeed(self, subject: str) -> None:
        assert self.enter(subject) == 0.0
        self.breaker.succeeded(subject)

    @property
    def state(self) -> BreakerState:
        return self.breaker.status().state


@pytest.fixture(name="caller")
def _caller(breaker):
    return Caller(breaker)


def test_it_opens_after_failures_in_a_row(caller, log, clock):
    """Two failures, and a success between them, do not count. Each that asks is told how long to wait."""
    caller.fail("a", "b")
    caller.succeed("c")
    caller.fail("a", "b")
    assert caller.state is BreakerState.CLOSED
    caller.fail("c")
    status = caller.breaker.status()
    assert (status.state, status.failures, status.opened) == (BreakerState.OPEN, 3, 1)
    assert (status.next_trial_seconds, status.last_error) == (30.0, "OSError: down")
    line = log.find("plugin slack is suspended (onError: Disable), after 3 failed calls in a row")
    assert (line.level, line.fields) == ("warning", {"plugin": "slack", "retry_in": 30.0})
    assert line.event.endswith("OSError: down; its handlers wait, and one call is tried in 30 s")
    assert caller.enter("a") == 30.0
    clock.set(12.0)
    assert caller.enter("d") == 18.0
    assert caller.woken == 0


def test_one_object_that_always_fails_suspends_nothing(caller, clock):
    """The plugin works for the others. Where it is alone, it need not let others go first."""
    caller.fail(*["a"] * 50)
    assert caller.state is BreakerState.CLOSED
    caller.fail("b")
    assert caller.state is BreakerState.OPEN
    clock.set(30.0)
    caller.fail("a")
    clock.set(60.0)
    assert caller.enter("a") == 0.0


def test_one_call_is_tried_and_success_closes_it(caller, clock, log):
    """While the trial is under way the others wait; after it they are woken at once."""
    caller.fail("a", "b", "c")
    clock.set(30.0)
    assert caller.enter("a") == 0.0
    caller.breaker.left("a")  # it waits for a cache, which says nothing about the plugin
    assert caller.state is BreakerState.OPEN
    assert caller.enter("d") == 0.0
    assert caller.state is BreakerState.HALF_OPEN
    assert caller.enter("e") == LONGEST_LOOK
    woken = caller.woken
    caller.breaker.succeeded("d")
    status = caller.breaker.status()
    assert (status.state, status.failures, status.trials) == (BreakerState.CLOSED, 0, 2)
    assert (caller.woken - woken, status.last_error, status.next_trial_seconds) == (1, None, None)
    assert log.find("plugin slack is called again: the call for d, on trial, has succeeded").level == "info"
    caller.succeed("e")


def test_a_failed_trial_keeps_it_open_for_longer(caller, clock, log):
    """30 s, 60 s, and 100 s at most; after it has closed, the first wait is short again."""
    caller.fail("a", "b", "c")
    waits = []
    for subject in "defg":
        clock.set(caller.breaker.status().next_trial_seconds)
        caller.fail(subject)
        waits.append(caller.enter("z"))
    assert waits == [60.0, 100.0, 100.0, 100.0]
    assert log.find("the call for d, on trial, has failed: OSError: down") is not None
    clock.set(100.0)
    caller.succeed("h")
    caller.fail("a", "b", "c")
    assert caller.enter("z") == 30.0
    assert caller.breaker.status().opened == 2


def test_the_object_of_a_failed_trial_lets_another_one_go_first(caller, clock):
    """One poisonous object would otherwise be every trial, and keep a plugin suspended that works."""
    caller.fail("poison", "b", "c")
    clock.set(30.0)
    caller.fail("poison")
    assert caller.enter("b") == 60.0
    clock.set(60.0)
    assert caller.enter("poison") == 1.0
    caller.succeed("b")
    assert caller.state is BreakerState.CLOSED


@pytest.mark.parametrize("end", ["succeeded", "failed", "left"])
def test_a_call_that_began_before_it_opened_decides_nothing(breaker, caller, clock, end):
    """With several workers, calls are under way when it opens."""
    arguments = ("slow", "late") if end == "failed" else ("slow",)
    assert caller.enter("slow") == 0.0
    caller.fail("a", "b", "c")
    getattr(breaker, end)(*arguments)
    assert (caller.state, caller.enter("a")) == (BreakerState.OPEN, 30.0)
    clock.set(30.0)
    assert caller.enter("b") == 0.0
    getattr(breaker, end)(*arguments)
    assert caller.state is BreakerState.HALF_OPEN


def test_a_plugin_keeps_its_breaker_over_generations(clock, log):
    """Of the same version and config; another config, or policy, begins with a closed one."""
    breakers = CircuitBreakers(clock=clock, log=log)
    first = breakers.of("slack", "1.0 {}", POLICY)
    assert breakers.of("slack", "1.0 {}", POLICY) is first
    others = [
        breakers.of("slack", '1.0 {"url": "x"}', POLICY),
        breakers.of("pager", "1.0 {}", POLICY),
        breakers.of("slack", "1.0 {}", POLICY._replace(failures=5)),
    ]
    assert len({id(each) for each in (first, *others)}) == 4


# In a slot, which calls the plugin


class Flaky:
    """A plugin that can be down."""

    def __init__(self) -> None:
        self.down = True
        self.called: list[str] = []

    def declctl_event(self, change):
        self.called.append(str(change.key))
        if self.down:
            raise OSError("down")


@pytest.fixture(name="flaky")
def _flaky():
    return Flaky()


@pytest.fixture(name="slot")
def _slot(bench, breaker, flaky):
    return bench.bound(replace(bench.binding(flaky.declctl_event), breaker=breaker))


def test_changes_wait_and_none_is_lost(bench, slot, flaky, added, clock: ManualClock, breaker):
    """A suspended plugin is not called; then each change is delivered once. The wait is part of the lag."""
    slot.add_all([added(name) for name in "abcdefgh"])
    bench.work()
    assert flaky.called == ["default/a", "default/b", "default/c"], "the others are not tried"
    figures = slot.statistics()
    assert (figures.failed, figures.retried, figures.dropped, figures.queued) == (0, 3, 0, 8)
    assert figures.lag.total == 3
    clock.set(29.0)
    bench.work()
    assert len(flaky.called) == 3
    clock.set(1.0)
    flaky.down = False
    bench.work()
    assert breaker.status().state is BreakerState.CLOSED
    assert sorted(flaky.called[3:]) == [f"default/{name}" for name in "abcdefgh"]
    figures = slot.statistics()
    assert (figures.succeeded, figures.failed, figures.queued) == (8, 0, 0)
    assert (figures.lag.total, figures.lag.sum) == (8, 150.0), "retries have none"


def test_a_wait_is_no_attempt(bench, breaker, flaky, added, clock):
    """`maxAttempts: 2` gives a change two calls, however long the plugin was suspended between them."""
    binding = bench.binding(flaky.declctl_event, retry=RetrySpec(max_attempts=2))
    slot = bench.bound(replace(binding, breaker=breaker))
    slot.add_all([added(name) for name in "abc"])
    bench.work()
    for _ in range(20):
        clock.set(1.0)
        bench.work()
    assert (len(flaky.called), slot.statistics().failed) == (3, 0)
    flaky.down = False
    clock.set(30.0)
    bench.work()
    assert (slot.statistics().succeeded, slot.statistics().failed) == (3, 0)


def test_one_trial_for_all_handlers_of_a_plugin(bench, breaker, flaky, added, clock):
    """Two handlers of one plugin share its breaker: while one has the trial the other waits, and is woken."""

    def work(slot) -> None:
        before, bench.handler = bench.handler, slot
        bench.work()
        bench.handler = before

    def on_trial(change):
        work(first)  # its retries are due, and are put off
        flaky.declctl_event(change)

    first, second = (
        bench.bound(replace(bench.binding(hook), breaker=breaker)) for hook in (flaky.declctl_event, on_trial)
    )
    woken = []
    first.wake = lambda: woken.append("first")
    first.add_all([added(name) for name in "abc"])
    work(first)
    second.add_all([added("d")])
    work(second)
    clock.set(30.0)
    flaky.down = False
    woken.clear()
    work(second)
    assert (flaky.called[3:], woken[-1:]) == (["default/d"], ["first"])
    work(first)
    assert (first.statistics().succeeded, second.statistics().succeeded) == (3, 1)


def test_a_trial_that_outlives_a_reload_leaves_the_trial_to_others(bench, breaker, flaky, added, clock):
    """The call may never return: others are tried. What waits when the handler is removed is dropped."""
    states = []

    def hangs(change):
        if breaker.status().state is BreakerState.HALF_OPEN:
            slot.invocations.under_way.abandon(slot.binding)
            states.append(breaker.status().state)
        flaky.declctl_event(change)

    slot = bench.bound(replace(bench.binding(hangs), breaker=breaker))
    slot.add_all([added(name) for name in "abcd"])
    bench.work()
    clock.set(30.0)
    slot.work(slot.queue.take())
    assert states == [BreakerState.OPEN]
    assert slot.close() == 4
    assert (slot.statistics().queued, slot.statistics().dropped) == (0, 4)


def test_a_fault_of_declctl_at_the_end_of_a_trial_leaves_the_trial_to_others(
    bench, slot, flaky, added, clock, monkeypatch
):
    """The fault is not one of the plugin, and its breaker has to go on."""

    def broken(key):
        raise RuntimeError("broken")

    slot.add_all([added(name) for name in "abc"])
    bench.work()
    clock.set(30.0)
    flaky.down = False
    monkeypatch.setattr(slot.dead_letters, "succeeded", broken)
    with pytest.raises(RuntimeError, match="broken"):
        slot.invocations.deliver(slot.queue.take())
    assert slot.binding.breaker.status().state is BreakerState.OPEN
