"""The one clock of a controller under test and its sandbox, and the log of its handlers."""

import asyncio
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from declctl.errors import UsageError
from declctl.kit import AdvancingClock, LoopThread, ManualClock, Rest, SystemClock
from declctl.testing import BundleDir, ControllerUnderTest, Logged, running, until
from declctl.testing.pytest_plugin import bundle_dir, controller, handler_log, manual_clock, sandbox

__all__ = ["bundle_dir", "controller", "handler_log", "manual_clock", "sandbox"]

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: clocks}
spec:
  resources:
    - {name: maps, apiVersion: v1, kind: ConfigMap, namespaces: [default]}
    - {name: secrets, apiVersion: v1, kind: Secret}
  handlers:
    - name: flaky
      resourceRef: {name: maps}
      entryPoint: "handlers:flaky"
      retry: {initialBackoff: 1h, maxBackoff: 1h}
    - {name: calm, resourceRef: {name: maps}, entryPoint: "handlers:calm"}
    - {name: expire, resourceRef: {name: secrets}, entryPoint: "handlers:expire", mode: Reconcile}
  schedules:
    - {name: hourly, cron: "0 * * * *", entryPoint: "handlers:hourly"}
    - {name: hung, every: 200h, entryPoint: "handlers:hung"}
"""
HANDLERS = """
import time
from datetime import datetime, timedelta
from declctl import Requeue

def flaky(change, ctx):
    ctx.log.warning("tried", attempt=len(ctx.memo))
    ctx.memo[str(len(ctx.memo))] = True
    if len(ctx.memo) < 3:
        raise OSError("not yet")

def calm(change, ctx):
    ctx.log.debug("seen", kind=str(change.type))

async def expire(request, ctx):
    if request.obj is None:
        return None
    age = ctx.now() - datetime.fromisoformat(request.obj["metadata"]["creationTimestamp"])
    old = age >= timedelta(hours=5)
    ctx.log.info("old" if old else "young", now=ctx.now())
    label = {"metadata": {"name": request.name, "namespace": "default", "labels": {"old": str(old)}}}
    await ctx.apply({"apiVersion": "v1", "kind": "Secret", **label})
    return None if old else Requeue(3600)

def hourly(schedule, ctx):
    ctx.log.info("hour", due=schedule.time, now=ctx.now())

def hung(ctx):
    time.sleep(5)
"""
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"}}
ELSEWHERE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}}
SOON = timedelta(seconds=5)  # of this machine: what its load may add to a time
HOURS = timedelta(hours=1)


@pytest.fixture(name="runs")
def _runs(bundle_dir: BundleDir, controller: Callable) -> ControllerUnderTest:
    """A controller that runs these handlers for one object."""
    bundle_dir.write("handlers.py", HANDLERS)
    return controller(bundle_dir.write("manifest.yaml", MANIFEST), objects=[MAP])


def test_hours_pass_at_once_and_in_order(runs: ControllerUnderTest) -> None:
    """Retries, requeues and a cron line have their turns at their times, and nothing comes before its time."""
    until("the first attempt has failed", lambda: runs.handler("flaky").retried == 1)
    runs.advance(1800)
    assert len(runs.log.of("flaky")) == 1
    began = runs.clock.now()
    runs.sandbox.create(SECRET)
    runs.advance(6 * 3600)
    runs.wait_idle(timeout=10)
    assert [line.event for line in runs.log.of("flaky")] == ["tried"] * 3
    reconciled = [(line.event, line.fields["now"] - began) for line in runs.log.of("expire")]
    assert {(event, round(since / HOURS)) for event, since in reconciled} == {
        *(("young", hour) for hour in range(5)),
        ("old", 5),
    }
    assert all(since % HOURS < SOON for _, since in reconciled)
    fired = [line.fields for line in runs.log.of("hourly")]
    assert len(fired) in (6, 7)
    for each in fired:
        assert timedelta(0) <= each["now"] - each["due"] < SOON


def test_the_sandbox_goes_by_the_clock_of_the_handlers(runs: ControllerUnderTest) -> None:
    """Times of objects, of owners of fields, of deletions and of Events are that of `ctx.now()`."""
    runs.advance(100 * 3600)
    runs.sandbox.create({**SECRET, "metadata": {**SECRET["metadata"], "finalizers": ["a.test/keep"]}})
    runs.wait_idle()
    runs.sandbox.delete("Secret", "s", "default")
    (metadata,) = (each["metadata"] for each in runs.sandbox.objects("Secret"))
    found = [metadata["creationTimestamp"], metadata["deletionTimestamp"]]
    found += [each["time"] for each in metadata["managedFields"]]
    now = runs.log.of("expire")[-1].fields["now"]
    assert now - datetime.now(UTC) > 99 * HOURS
    assert len(found) >= 3
    for each in found:
        assert abs(datetime.fromisoformat(each) - now) < SOON


def test_watches_are_kept_and_renewed_while_time_is_advanced(runs: ControllerUnderTest) -> None:
    """After a write, the cache of another kind gets to its version at once. Nothing is listed again."""
    runs.advance(3 * 3600)
    before = runs.sandbox.ledger.count("watch")
    runs.sandbox.create(ELSEWHERE)
    runs.advance(3600)
    runs.wait_idle(timeout=10)
    assert [runs.resource(name).relists for name in ("maps", "secrets")] == [0, 0]
    assert runs.sandbox.ledger.count("list") == 0
    assert 2 <= runs.sandbox.ledger.count("watch") - before <= 2 * 3  # each was open for 5 to 10 minutes
    assert all("flaky failed" in each for each in runs.log.events("warning") if each != "tried")


def test_a_watch_that_is_opened_while_the_test_waits_gets_to_the_version(runs: ControllerUnderTest) -> None:
    """The bookmark that the wait asks for has gone to the watch before."""
    runs.advance(3 * 3600)
    runs.sandbox.create(ELSEWHERE)
    runs.sandbox.faults.cut_watches()
    runs.wait_idle(timeout=10)


def test_a_call_that_does_not_return_keeps_no_time(runs: ControllerUnderTest) -> None:
    """Its limit is of this machine. What else is due has its turns."""
    runs.advance(205 * 3600)
    assert sum(each.running for each in runs.status().schedules) == 1
    assert len(runs.log.of("hourly")) in (205, 206)


def test_the_lease_of_another_process_ends_by_an_advance(sandbox, controller: Callable) -> None:
    """Two controllers over one sandbox have one clock: the second one leads when the first has stopped renewing."""
    election = "  leaderElection: {enabled: true, namespace: default}\n"
    resources, _, _ = MANIFEST.partition("  handlers:")
    spec = {"holderIdentity": "another", "leaseDurationSeconds": 15, "leaseTransitions": 0}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
    sandbox.create({**lease, "metadata": {"name": "clocks", "namespace": "default"}})
    runs = controller(resources + election)
    until("it stands for election", lambda: runs.status().leader_election.holder == "another")
    runs.advance(10)
    assert not runs.status().leader
    runs.advance(10)
    assert runs.status().leader
    runs.advance(600)
    assert runs.status().leader
    (found,) = sandbox.objects("Lease")
    assert abs(datetime.fromisoformat(found["spec"]["renewTime"]) - sandbox.clock.now()) < 2 * SOON


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


@pytest.fixture(name="loop", scope="module")
def _loop() -> Iterator[LoopThread]:
    loop = LoopThread("sleepers").start()
    yield loop
    loop.stop()


@settings(max_examples=30, deadline=None)
@given(
    periods=some.lists(some.integers(60, 5000), max_size=5),
    steps=some.lists(some.integers(0, 9000), min_size=1, max_size=3),
)
def test_each_sleep_ends_at_its_time_and_in_order(
    loop: LoopThread, periods: list[int], steps: list[int]
) -> None:
    """However an advance is cut into steps, what comes again and again comes at each of its times."""
    clock, woken = AdvancingClock(), []
    began = clock.monotonic()

    async def come_again(period: int) -> None:
        due = began
        while True:
            due += period
            await clock.sleep(due - clock.monotonic())
            woken.append((due - began, period, clock.monotonic() - due))

    async def turns() -> Rest:
        for _ in range(20):
            await asyncio.sleep(0)
        return Rest(len(woken))

    def rest() -> Rest:
        return loop.submit(turns()).result()

    clock.attach(rest)
    tasks = [loop.submit(come_again(period)) for period in periods]
    for step in steps:
        clock.advance(step)
    for task in tasks:
        task.cancel()
    now = sum(steps)
    due = sorted(time for period in periods for time in range(period, now + 1, period))
    assert [round(time) for time, _, _ in woken][: len(due)] == due
    assert all(0 <= late < 5 for _, _, late in woken)
    assert now <= clock.monotonic() - began < now + 20


def test_a_clock_refuses_what_it_can_not_do(manual_clock: ManualClock, loop: LoopThread) -> None:
    """A step back, a part that never rests, a second clock, and a clock that the test moves itself."""
    with pytest.raises(ValueError, match="time goes ahead only, not by -1 s"):
        AdvancingClock().advance(-1)
    clock, numbers = AdvancingClock(), iter(range(10**9))
    clock.attach(lambda: Rest(next(numbers)))
    with pytest.raises(TimeoutError, match=re.escape("not at rest within 0.1 s")):
        clock.advance(1, timeout=0.1)
    assert manual_clock.monotonic() == manual_clock.monotonic()
    resources, _, _ = MANIFEST.partition("  handlers:")
    with running(resources, clock=SystemClock()) as runs:
        with pytest.raises(UsageError, match="a clock of the test"):
            runs.advance(1.0)
        with pytest.raises(UsageError, match="the sandbox has another clock"):
            running(resources, sandbox=runs.sandbox, clock=manual_clock)
