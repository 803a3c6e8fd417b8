"""The order in which a controller starts and stops, and a start that fails."""

import threading

import pytest

from declctl.errors import ReloadRefused
from declctl.testing import ControllerUnderTest, until

HOOKS = """
import declctl
from blackboard import tell as note, wait

@declctl.hookimpl
def declctl_startup(ctx):
    note("startup", ctx.listers["maps"].has_synced, ctx.listers["pods"].has_synced)
    {startup}

@declctl.hookimpl
async def declctl_prepare(ctx):
    note("prepare", ctx.listers["maps"].has_synced, ctx.listers["pods"].has_synced)
    {prepare}

@declctl.hookimpl
def declctl_event(obj, ctx):
    note("begins", ctx.listers["maps"].has_synced, ctx.listers["pods"].has_synced)
    wait("call")
    note("ends", obj.name)

@declctl.hookimpl
def declctl_shutdown(ctx):
    note("shutdown", len(ctx.listers["maps"].list()))

@declctl.hookimpl
def declctl_teardown():
    note("teardown")
    {teardown}
"""


def _code(*, startup: str = "pass", prepare: str = "pass", teardown: str = "pass") -> str:
    return HOOKS.format(startup=startup, prepare=prepare, teardown=teardown)


@pytest.fixture
def hooked(rig):
    """A handler whose module has all hooks of the life cycle."""
    rig.resources.append("- {name: pods, apiVersion: v1, kind: Pod}")
    rig.handler("tell", entry="handlers")
    return rig


def _threads() -> set[str]:
    """The names of all threads, without that of the process which starts threads."""
    return {thread.name for thread in threading.enumerate() if thread.name != "declctl-starter_0"}


@pytest.mark.client_go(333, 335, 338, 339, "Manager")
def test_parts_start_and_stop_in_order(hooked, config_map, sandbox) -> None:
    """Hooks, caches, handlers; at the end the call that runs, then hooks that still read the caches."""
    before = _threads()
    runs = hooked.run(_code(), objects=[config_map("a"), config_map("b")])
    until("a call runs", lambda: hooked.told("begins"))
    runs.runtime.stop()
    until("nothing is taken any more", lambda: runs.runtime.parts.slots.get("tell").workers.is_dismissed)
    assert hooked.told("shutdown") == []
    hooked.board.open_gate("call")
    assert runs.stop() == 0
    assert hooked.board.told == [
        ("startup", False, False),
        ("prepare", False, False),
        ("begins", True, True),
        ("ends", "a"),
        ("shutdown", 2),
        ("teardown",),
    ]
    asked = sandbox.ledger.count("list"), sandbox.ledger.count("watch")
    until("no thread is left", lambda: _threads() <= before)
    sandbox.create(config_map("c"))
    assert (sandbox.ledger.count("list"), sandbox.ledger.count("watch")) == asked


@pytest.mark.client_go(334, "Manager")
@pytest.mark.parametrize("hook", ["startup", "prepare"])
def test_a_hook_that_fails_ends_the_start_and_what_has_begun_is_undone(
    hook, hooked, config_map, sandbox
) -> None:
    """No handler is called; the error of the start is raised, and that of the undoing is logged beside it."""
    before = _threads()
    code = _code(**{hook: "raise OSError('no disk')"}, teardown="raise OSError('no memory')")
    starts = ControllerUnderTest(hooked.write(code), objects=[config_map("a")], sandbox=sandbox)
    with pytest.raises(ReloadRefused, match=f"^declctl_{hook} of handlers raised OSError: no disk "):
        starts.start()
    assert [row[0] for row in hooked.board.told if row[0] in ("begins", "shutdown", "teardown")] == [
        "teardown"
    ]
    assert "declctl_teardown of handlers raised OSError: no memory" in "\n".join(starts.log.events("error"))
    assert sandbox.ledger.count("watch") == 0
    until("no thread is left", lambda: _threads() <= before)
