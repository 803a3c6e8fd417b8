"""The one clock of a controller under test and its sandbox, and the log of its handlers."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from declctl.errors import UsageError
from declctl.kit import AdvancingClock, LoopThread, ManualClock, Standstill, SystemClock
from declctl.testing import BundleDir, ControllerUnderTest, Logged, running, until
from declctl.testing.pytest_plugin import bundle_dir, controller, handler_log, manual_clock, sandbox

__all__ = ["bundle_dir", "controller", "handler_log", "manual_clock", "sandbox"]

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: clocks}
spec:
  resources: [{name: maps, apiVersion: v1, kind: ConfigMap}]
  handlers:
    - name: flaky
      resourceRef: {name: maps}
      entryPoint: "handlers:flaky"
      retry: {initialBackoff: 1h, maxBackoff: 1h}
    - {name: calm, resourceRef: {name: maps}, entryPoint: "handlers:calm"}
  schedules:
    - {name: hourly, cron: "0 * * * *", entryPoint: "handlers:hourly"}
    - {name: hung, every: 200h, entryPoint: "handlers:hung"}
"""
HANDLERS = """
import time

def flaky(change, ctx):
    ctx.log.warning("tried", attempt=len(ctx.memo))
    ctx.memo[str(len(ctx.memo))] = True
    if len(ctx.memo) < 3:
        raise OSError("not yet")

def calm(change, ctx):
    ctx.log.debug("seen", kind=str(change.type), now=ctx.now())

def hourly(schedule, ctx):
    ctx.log.info("hour", due=schedule.time, now=ctx.now())

def hung(ctx):
    time.sleep(5)
"""
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}}
ELSEWHERE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}}
SOON = timedelta(seconds=5)  # of this machine: what its load may add to a time


@pytest.fixture(name="runs")
def _runs(bundle_dir: BundleDir, controller: Callable) -> ControllerUnderTest:
    """A controller that runs these handlers for one object."""
    bundle_dir.write("handlers.py", HANDLERS)
    return controller(bundle_dir.write("manifest.yaml", MANIFEST), objects=[MAP])


def test_the_sandbox_goes_by_the_clock_of_the_handlers(runs: ControllerUnderTest) -> None:
    """Times of objects, of owners of fields, of deletions are that of `ctx.now()`, and caches stay current.

    After the advance, a cache gets to the version of a change of another kind at once: its watch is renewed.
    """
    runs.advance(100 * 3600)
    runs.sandbox.create(ELSEWHERE)
    runs.advance(3600)
    runs.wait_idle(timeout=10)
    assert "the watch" not in str(runs.log.events("warning"))
    assert runs.resource("maps").relists == runs.sandbox.ledger.count("list") == 0
    kept = {"name": "b", "namespace": "default", "finalizers": ["a.test/keep"]}
    runs.sandbox.create({**MAP, "metadata": kept})
    runs.sandbox.delete("ConfigMap", "b", "default")
    runs.advance(0)
    (metadata,) = (e["metadata"] for e in runs.sandbox.objects("ConfigMap") if "finalizers" in e["metadata"])
    now = runs.log.of("calm")[-1].fields["now"]
    assert now - datetime.now(UTC) > timedelta(hours=100)
    for field in ("creationTimestamp", "deletionTimestamp"):
        assert abs(datetime.fromisoformat(metadata[field]) - now) < SOON


def test_a_watch_that_is_opened_while_the_test_waits_gets_to_the_version(runs: ControllerUnderTest) -> None:
    """The bookmark that the wait asks for has gone to the watch before."""
    runs.advance(3 * 3600)
    runs.sandbox.create(ELSEWHERE)
    runs.sandbox.faults.cut_watches()
    runs.wait_idle(timeout=10)


def test_each_time_has_its_turn_beside_a_call_that_does_not_return(runs: ControllerUnderTest) -> None:
    """A cron line fires at each of its times; the limit of the call is in the time of this machine."""
    until("the first attempt has failed", lambda: runs.handler("flaky").retried == 1)
    runs.advance(1800)
    assert len(runs.log.of("flaky")) == 1
    runs.advance(205 * 3600)
    assert [line.event for line in runs.log.of("flaky")] == ["tried"] * 3
    assert sum(each.running for each in runs.status().schedules) == 1
    fired = [line.fields for line in runs.log.of("hourly")]
    assert len(fired) in (205, 206)
    assert all(timedelta(0) <= each["now"] - each["due"] < SOON for each in fired)


def test_the_lines_of_handlers_are_apart_from_those_of_declctl(runs: ControllerUnderTest) -> None:
    """A plugin's test asserts what the plugin logged, whatever declctl says of it."""
    until("both are called", lambda: len(runs.log.of()) == 2)
    (line,) = runs.log.of("calm")
    assert (line.level, line.event) == ("debug", "seen")
    assert (line.fields["kind"], line.fields["key"]) == ("Added", "default/a")
    assert [line.event for line in runs.log.of(level="warning")] == ["tried"]
    assert runs.log.of("nobody") == []
    until("declctl has logged the failure", lambda: runs.log.find("flaky failed on Added default/a"))
    assert not runs.log.find("flaky failed on").by_handler


def test_a_handler_that_is_called_by_the_test_has_a_log(handler_log: Logged) -> None:
    """Without a controller: the logger has what `ctx.log` has, exceptions included."""

    def on_pod(obj, ctx) -> None:
        try:
            ctx.log.bind(team="red").info("seen", key=obj["name"])
            raise OSError("no disk")
        except OSError:
            ctx.log.exception("lost")

    on_pod({"name": "a"}, SimpleNamespace(log=handler_log.user_logger()))
    seen, lost = handler_log.of()
    assert (seen.event, dict(seen.fields)) == ("seen", {"team": "red", "key": "a"})
    assert (lost.level, lost.fields["traceback"].splitlines()[-1]) == ("error", "OSError: no disk")


@settings(max_examples=30, deadline=None)
@given(
    periods=some.lists(some.integers(60, 5000), max_size=5),
    steps=some.lists(some.integers(0, 9000), min_size=1, max_size=3),
)
def test_each_sleep_ends_at_its_time_and_in_order(periods: list[int], steps: list[int]) -> None:
    """However an advance is cut into steps, what comes again and again comes at each of its times.

    What falls asleep just as an advance begins has slept at its end.
    """
    clock, woken, loop = AdvancingClock(), [], LoopThread("sleepers").start()
    began = clock.monotonic()

    async def come_again(period: int) -> None:
        for due in range(period, sum(steps) + 1, period):
            await clock.sleep(began + due - clock.monotonic())
            woken.append((due, clock.monotonic() - began - due))

    async def rest() -> Standstill:
        for _ in range(20):
            await asyncio.sleep(0)
        return Standstill(len(woken))

    clock.attach(lambda: loop.submit(rest()).result())
    for period in periods:
        loop.submit(come_again(period))
    for step in steps:
        falls_asleep = loop.submit(clock.sleep(step))
        clock.advance(step)
        assert falls_asleep.done()
    loop.stop()
    assert [due for due, _ in woken] == sorted(
        due for period in periods for due in range(period, sum(steps) + 1, period)
    )
    assert all(0 <= late < 5 for _, late in woken)
    assert sum(steps) <= clock.monotonic() - began < sum(steps) + 20


def test_a_clock_refuses_what_it_can_not_do(manual_clock: ManualClock) -> None:
    """A step back, a part that never rests, a second clock, and a clock that the test moves itself."""
    with pytest.raises(ValueError, match="time goes ahead only, not by -1 s"):
        AdvancingClock().advance(-1)
    clock, numbers = AdvancingClock(), iter(range(10**9))
    clock.attach(lambda: Standstill(next(numbers)))
    with pytest.raises(TimeoutError, match="not at rest within 0"):
        clock.advance(1, timeout=0.1)
    assert manual_clock.monotonic() == manual_clock.monotonic()
    resources, _, _ = MANIFEST.partition("  handlers:")
    with running(resources, clock=SystemClock()) as runs:
        with pytest.raises(UsageError, match="a clock of the test"):
            runs.advance(1.0)
        with pytest.raises(UsageError, match="the sandbox has another clock"):
            running(resources, sandbox=runs.sandbox, clock=manual_clock)


def test_a_clock_that_stands_moves_by_advances_alone(bundle_dir: BundleDir) -> None:
    """No retry comes by itself, however long a test takes; a step goes to the next due time."""
    bundle_dir.write("manifest.yaml", MANIFEST.replace("1h", "1s"))
    bundle_dir.write("handlers.py", HANDLERS)
    clock = AdvancingClock(stands=True)
    before = clock.monotonic(), clock.now()
    with running(bundle_dir.path, objects=[MAP], clock=clock) as controller:
        controller.wait_ready()
        controller.rest()
        assert controller.handler("flaky").retried == 1
        assert (clock.monotonic(), clock.now()) == before
        assert 0 < controller.step(60) <= 2  # with its jitter
        assert controller.handler("flaky").retried == 2
        controller.advance(60)
        assert clock.now() - before[1] > timedelta(seconds=60)
