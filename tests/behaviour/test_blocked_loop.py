"""One `async def` that does not give its loop back: who else is held up, and until when."""

import threading

import pytest

from declctl.kit import loops
from declctl.runtime.handling import handler_loops
from declctl.testing import until

CODE = """
from blackboard import tell as note, wait
import declctl

async def blocks(change):
    note("began", change.obj.name, {version})
    if {version} == 1:
        wait("held")
    note("ended", change.obj.name, {version})

async def other(change):
    note("other", change.obj.name, {version})

def thread(change):
    note("thread", change.obj.name, {version})
    {stuck}
{hooks}
"""
PREPARE = """
@declctl.hookimpl
async def declctl_prepare(): note("prepared", {version})
@declctl.hookimpl
async def declctl_shutdown(): note("shut down")
@declctl.hookimpl
def declctl_event(): pass
class Both:
    @declctl.hookimpl
    async def declctl_added(self, obj): note("both", obj.name, {version})
    @declctl.hookimpl
    def declctl_deleted(self, obj): pass
"""


def _code(version: int, hooks: str = "", stuck: str = "") -> str:
    return CODE.format(version=version, hooks=hooks.format(version=version), stuck=stuck)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop is blocked after a quarter of a second."""
    monkeypatch.setattr(handler_loops, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(handler_loops, "ANSWER_SECONDS", 0.25)


def _blocked(rig, config_map, code: str):
    """A controller whose loop for handlers is blocked by the call for `m0`, and is known to be."""
    controller = rig.run(code)
    controller.sandbox.create(config_map("m0"))
    until("the call has begun", lambda: rig.told("began", "m0"))
    until("it is found out", lambda: controller.condition("Degraded").reason == "LoopBlocked")
    return controller


@pytest.mark.guarantee("G9")
def test_an_edit_frees_the_handlers_that_one_of_them_has_held_up(rig, config_map) -> None:
    """All new code runs; the key of the blocked call is held until that returns, and status says why."""
    rig.reload_policy = "settle: 20ms, preflight: 'Off', drainTimeout: 200ms, probationPeriod: 0s"
    for name in ("blocks", "other"):
        rig.handler(name)
    controller = _blocked(rig, config_map, _code(1))
    message = controller.condition("Degraded").message
    file = rig.folder.path / "handlers.py"
    line = file.read_text("utf-8").split("\n").index('        wait("held")') + 1
    assert f"handler blocks at {file}:{line} in blocks" in message
    controller.sandbox.create(config_map("m1"))
    rig.apply(_code(2))
    controller.sandbox.patch("ConfigMap", "m0", {"data": {"x": "y"}})
    until("others run", lambda: {row[1] for row in rig.told("other")} == {"m0", "m1"}, timeout=20)
    until("its other keys, too", lambda: rig.told("ended") == [("ended", "m1", 2)], timeout=20)
    assert controller.handler("blocks").zombies == 1
    assert not rig.told("began", "m0", 2)
    until("status tells old from new", lambda: "old generation" in controller.condition("Degraded").message)
    rig.board.open_gate("held")
    controller.wait_idle()
    assert rig.told("ended", "m0") == [("ended", "m0", 1), ("ended", "m0", 2)]
    until("nothing is blocked", lambda: controller.condition("Degraded").status == "False")
    until("the old loop is gone", lambda: _loops() == ["declctl-handlers-2"])
    assert controller.status().generations_alive == 1


@pytest.mark.thorough
def test_hooks_of_the_new_generation_run_beside_a_blocked_loop(rig, config_map) -> None:
    """`async def declctl_prepare` does not wait for the loop that old code blocks; nor do mixed classes."""
    rig.reload_policy = "settle: 20ms, preflight: 'Off', drainTimeout: 200ms, warmTimeout: 5s"
    for name in ("blocks", "other"):
        rig.handler(name)
    rig.handler("both", entry="handlers:Both")
    rig.handler("hooks", entry="handlers")
    controller = _blocked(rig, config_map, _code(1, PREPARE))
    rig.apply(_code(2, PREPARE))
    assert rig.told("prepared") == [("prepared", 1), ("prepared", 2)]
    controller.sandbox.create(config_map("m1"))
    until("it is heard", lambda: rig.told("both", "m1", 2), timeout=20)
    until("what it was not called for is tried again", lambda: rig.told("both", "m0"), timeout=20)
    rig.board.open_gate("held")
    controller.wait_idle()


def test_timeouts_count_while_a_loop_is_blocked(rig, config_map) -> None:
    """`timeout` of the call that blocks, and that of a `def` which runs meanwhile: both have failed."""
    rig.handler("blocks", rest="timeout: 100ms")
    rig.handler("thread", rest="timeout: 100ms")
    controller = rig.run(_code(1, stuck='wait("held")'))
    controller.sandbox.create(config_map("m0"))
    for name in ("blocks", "thread"):
        until(f"{name} has failed", lambda: controller.handler(name).zombies == 1, timeout=20)  # noqa: B023
        assert controller.handler(name).last_error_type == "TimeoutError"
    rig.board.open_gate("held")
    until("it comes back", lambda: not controller.handler("thread").zombies)


@pytest.mark.client_go(335)
def test_a_blocked_loop_does_not_hold_up_the_end(rig, config_map, monkeypatch) -> None:
    """SIGTERM: running calls have their time; what would run on a blocked loop is not waited for as well."""
    rig.more = "  lifecycle: {gracePeriod: 1s}\n"
    rig.handler("blocks")
    rig.handler("hooks", entry="handlers")
    controller = _blocked(rig, config_map, _code(1, PREPARE))
    assert controller.stop(timeout=20) == 0
    assert controller.log.find("not waited for any longer: blocks default/m0")
    assert controller.log.find("declctl_shutdown of handlers was not called: another `async def` blocks")


def test_a_loop_that_answers_late_is_not_blocked() -> None:
    """Looks are counted, not seconds: a process that was stopped for minutes finds its loops as they were."""
    loop = loops.LoopThread("late").start()
    gate, asked = threading.Event(), threading.Event()
    loop.loop.call_soon_threadsafe(lambda: (asked.set(), gate.wait(20)))
    assert asked.wait(20)
    for _ in range(loops.BLOCKED_LOOKS):
        loop.look()
    assert not loop.is_blocked
    loop.look()
    assert loop.is_blocked
    gate.set()
    until("it has answered", lambda: (loop.look(), not loop.is_blocked)[1])
    assert loop.stop()


def _loops() -> list[str]:
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("declctl-handlers"))
