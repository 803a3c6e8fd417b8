"""The clock of a controller under test, and the log of its handlers."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from declctl.errors import UsageError
from declctl.kit import ManualClock, SystemClock
from declctl.testing import AdvancingClock, BundleDir, ControllerUnderTest, Logged, running, until
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
    - {name: daily, every: 24h, entryPoint: "handlers:daily"}
"""
HANDLERS = """
def flaky(change, ctx):
    ctx.log.warning("tried", attempt=len(ctx.memo))
    ctx.memo[str(len(ctx.memo))] = True
    if len(ctx.memo) < 3:
        raise OSError("not yet")

def calm(change, ctx):
    ctx.log.debug("seen", kind=str(change.type))

def daily(ctx):
    ctx.log.info("good morning")
"""
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}}


@pytest.fixture(name="runs")
def _runs(bundle_dir: BundleDir, controller: Callable) -> ControllerUnderTest:
    """A controller that runs these handlers for one object."""
    bundle_dir.write("handlers.py", HANDLERS)
    return controller(bundle_dir.write("manifest.yaml", MANIFEST), objects=[MAP])


def test_hours_pass_at_once(runs: ControllerUnderTest) -> None:
    """A retry after an hour and a daily schedule come as soon as the test says so, and not before."""
    until("the first attempt has failed", lambda: runs.handler("flaky").retried == 1)
    runs.advance(1800)
    assert len(runs.log.of("flaky")) == 1
    runs.advance(1801)
    until("the second attempt has failed", lambda: runs.handler("flaky").retried == 2)
    assert len(runs.log.of("flaky")) == 2
    runs.advance(3601)
    until("the third succeeds", lambda: runs.handler("flaky").succeeded == 1)
    assert runs.log.of("daily") == []
    runs.advance(24 * 3600)
    until("a day has passed", lambda: [line.event for line in runs.log.of("daily")] == ["good morning"])


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


async def _sleep(clock: AdvancingClock, seconds: float) -> str:
    await clock.sleep(seconds)
    return "awake"


async def test_a_step_wakes_who_is_due_and_no_other() -> None:
    """From any thread; what sleeps longer goes on with what is left."""
    clock = AdvancingClock()
    before = clock.monotonic()
    short, long = (asyncio.create_task(_sleep(clock, seconds)) for seconds in (60.0, 7200.0))
    await asyncio.sleep(0)
    await asyncio.to_thread(clock.advance, 61.0)
    assert await asyncio.wait_for(short, 5) == "awake"
    assert not long.done()
    assert 61.0 <= clock.monotonic() - before < 120.0
    clock.advance(7200.0)
    assert await asyncio.wait_for(long, 5) == "awake"
    assert await asyncio.wait_for(_sleep(clock, 0.01), 5) == "awake"  # it runs by itself, too


def test_time_never_goes_back() -> None:
    """A step back would break every deadline."""
    with pytest.raises(ValueError, match="time goes ahead only, not by -1 s"):
        AdvancingClock().advance(-1)


def test_a_clock_of_the_test_is_moved_by_the_test(manual_clock: ManualClock) -> None:
    """`advance` says so, instead of a wait that never ends; that of the fixture stands still."""
    assert manual_clock.monotonic() == manual_clock.monotonic()
    resources, _, _ = MANIFEST.partition("  handlers:")
    said = pytest.raises(UsageError, match="a clock of the test")
    with running(resources, clock=SystemClock()) as runs, said:
        runs.advance(1.0)
