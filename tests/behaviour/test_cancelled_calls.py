"""Calls that cancel the task in which they run: they have failed, and their handler goes on."""

import pytest

from declctl.testing import until
from tests.behaviour.conftest import secret

CODE = """
import asyncio
from blackboard import tell as note

async def call(who, name, attempt):
    note(who, name, attempt)
    if name == "swallows":
        asyncio.current_task().cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
    if attempt > 1:
        return
    if name == "itself":
        asyncio.current_task().cancel()
        await asyncio.sleep(0)
    if name == "stray":
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

attempts = {}

async def changes(change):
    attempts[change.key] = attempts.get(change.key, 0) + 1
    await call("changes", change.key.name, attempts[change.key])

async def keys(request):
    await call("keys", request.name, request.attempt)

async def other(obj):
    note("other", obj.name)
"""
RETRY = "retry: {initialBackoff: 10ms, maxBackoff: 20ms}"


@pytest.mark.parametrize("timeout", ["", "timeout: 20s, "])
def test_a_call_that_cancels_itself_has_failed_and_is_made_again(timeout, rig, config_map) -> None:
    """Log and status name it, and the handler is called for its other keys, in both modes."""
    rig.handler("changes", rest=f"{timeout}{RETRY}")
    rig.handler("keys", rest=f"mode: Reconcile, {timeout}{RETRY}")
    runs = rig.run(CODE, objects=[config_map("itself"), config_map("z")])
    for name in ("changes", "keys"):
        until("the second attempt succeeds", lambda name=name: runs.handler(name).succeeded == 2)
        figures = runs.handler(name)
        assert (figures.running, figures.queued, figures.retried, figures.failed) == (0, 0, 1, 0)
        assert sorted(rig.told(name)) == [(name, "itself", 1), (name, "itself", 2), (name, "z", 1)]
        message = "default/itself: CancelledError: code that it calls has cancelled its task"
        assert figures.last_error == message
        line = runs.log.find(f"{name} failed on")
        assert line is not None
        assert "handlers.py" in line.fields["traceback"]
    assert runs.stop() == 0


def test_a_cancellation_that_a_call_has_suppressed_is_forgotten(rig, config_map) -> None:
    """The call has succeeded. A later one that awaits a cancelled task fails alone."""
    rig.handler("changes", rest=RETRY)
    rig.handler("keys", rest=f"mode: Reconcile, {RETRY}")
    runs = rig.run(CODE)
    for number, name in enumerate(("swallows", "stray", "z"), 1):
        runs.sandbox.create(config_map(name))
        for handler in ("changes", "keys"):
            until("it is handled", lambda h=handler, n=number: runs.handler(h).succeeded == n)
    for handler in ("changes", "keys"):
        assert (runs.handler(handler).retried, runs.handler(handler).failed) == (1, 0)


def test_a_call_that_cancels_itself_returns_its_permit(rig, config_map) -> None:
    """The other handlers of its queue are called."""
    rig.resources.append("- {name: secrets, apiVersion: v1, kind: Secret}")
    slow = "retry: {initialBackoff: 1h, maxBackoff: 1h}"
    rig.handler("changes", rest=f"queue: {{name: shared, concurrency: 1}}, {slow}")
    rig.handler("other", resource="secrets", rest="queue: {name: shared}")
    runs = rig.run(CODE, objects=[config_map("itself")])
    until("the call has failed", lambda: runs.handler("changes").retried == 1)
    runs.sandbox.create(secret("s"))
    until("the other handler is called", lambda: rig.told("other") == [("other", "s")])


LEFT_BEHIND = """
import asyncio
from blackboard import tell as note

from declctl import hookimpl

class Both:
    @hookimpl
    async def declctl_event(self, change):
        asyncio.current_task().cancel()

    @hookimpl
    async def declctl_added(self, obj):
        await asyncio.sleep(0)
        note("added", asyncio.current_task().cancelling())

class Mixed:
    @hookimpl
    def declctl_event(self, change):
        pass

    @hookimpl
    async def declctl_added(self, obj):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

async def late(change):
    if change.obj.name == "a":
        asyncio.current_task().cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        await asyncio.sleep(600)
"""


def test_a_cancellation_that_is_left_behind_reaches_nothing_else(rig, config_map) -> None:
    """Not the next hook for a change, nor a `timeout`; beside a `def`, an async hook has its own task."""
    hours = "retry: {initialBackoff: 1h, maxBackoff: 1h}"
    rig.handler("both", entry="handlers:Both")
    rig.handler("mixed", entry="handlers:Mixed", rest=hours)
    rig.handler("late", rest=f"timeout: 50ms, {hours}")
    runs = rig.run(LEFT_BEHIND, objects=[config_map("a"), config_map("z")])
    until("both hooks are called", lambda: runs.handler("both").succeeded == 2)
    assert rig.told("added") == [("added", 0)] * 2
    assert runs.handler("both").retried == 0
    until("the other has failed", lambda: runs.handler("mixed").retried == 2)
    message = "CancelledError: code that it calls has cancelled its task"
    assert message in runs.handler("mixed").last_error
    until("the other key is handled", lambda: runs.handler("late").succeeded == 1)
    error = "default/a: TimeoutError: it ran longer than its timeout of 0.05 s"
    assert runs.handler("late").last_error == error
