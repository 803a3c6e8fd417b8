"""What survives a reload: retries, memos, exported state; and what doesn't: old code."""

import pytest

from declctl.testing import until


@pytest.mark.guarantee("G10")
def test_a_retry_that_is_due_later_goes_to_the_mended_code(rig, config_map) -> None:
    """A handler fails, is mended, and the change succeeds at its next attempt, counted on (G10)."""
    bad = "from blackboard import tell as note\ndef tell(change):\n    note('bad')\n    1 / 0\n"
    good = (
        "from blackboard import tell as note\ndef tell(change): note('good', str(change.key), change.type)\n"
    )
    rig.handler("tell", rest="retry: {maxAttempts: 4, initialBackoff: 300ms}")
    controller = rig.run(bad, objects=[config_map("m")])
    until("it failed twice", lambda: controller.handler("tell").retried == 2)
    rig.folder.write("handlers.py", good)
    assert controller.reload().result == "Applied"
    assert rig.told("good") == []  # not before it is due
    controller.wait_idle()
    assert rig.told("good") == [("good", "default/m", "Added")]
    assert len(rig.told("bad")) == 2
    figures = controller.handler("tell")
    assert (figures.delivered, figures.succeeded, figures.failed, figures.retried) == (1, 1, 0, 2)


@pytest.mark.guarantee("G10")
def test_attempts_that_were_made_before_a_reload_count(rig, config_map) -> None:
    """A handler is reloaded while it fails: it is not tried more often than `maxAttempts` in all."""
    code = "from blackboard import tell as note\ndef tell(change):\n    note('try', {0})\n    1 / 0\n"
    rig.handler("tell", rest="retry: {maxAttempts: 4, initialBackoff: 200ms, maxBackoff: 200ms}")
    controller = rig.run(code.format(1), objects=[config_map("m")])
    until("it failed twice", lambda: controller.handler("tell").retried == 2)
    rig.folder.write("handlers.py", code.format(2))
    assert controller.reload().result == "Applied"
    controller.wait_idle()
    assert [row[1] for row in rig.told("try")] == [1, 1, 2, 2]
    assert controller.handler("tell").failed == 1


STATE = """
from blackboard import tell as note
import declctl
COUNT = 0

@declctl.hookimpl
def declctl_event(change, ctx):
    global COUNT
    COUNT += 1
    ctx.memo["seen"] = ctx.memo.get("seen", 0) + 1
    note("seen", {version}, ctx.memo["seen"], COUNT)

@declctl.hookimpl
def declctl_export_state(): return {{"count": COUNT}}

@declctl.hookimpl
def declctl_import_state(state, from_generation):
    global COUNT
    {importing}
    COUNT = state["count"]
    note("imported", state, from_generation)
"""


@pytest.mark.guarantee("G11")
def test_memos_and_exported_state_go_to_the_next_generation(rig, config_map) -> None:
    """`ctx.memo` is kept for each object, and a generation gets what the last one exported (G11)."""
    rig.handler("tell", entry="handlers")
    controller = rig.run(STATE.format(version=1, importing=""), objects=[config_map("m"), config_map("n")])
    controller.wait_idle()
    rig.folder.write("handlers.py", STATE.format(version=2, importing=""))
    assert controller.reload().result == "Applied"
    controller.sandbox.patch("ConfigMap", "m", {"data": {"a": "1"}})
    controller.wait_idle()
    assert rig.told("imported") == [("imported", {"count": 2}, 1)]
    assert rig.told("seen", 2) == [("seen", 2, 2, 3)]


@pytest.mark.guarantee("G11", "G6")
def test_a_failing_import_of_state_refuses_the_reload(rig, config_map) -> None:
    """The new code can't read the old state: the old code goes on (G11, G6)."""
    rig.handler("tell", entry="handlers")
    controller = rig.run(STATE.format(version=1, importing=""))
    rig.folder.write("handlers.py", STATE.format(version=2, importing="raise KeyError('v1')"))
    outcome = controller.reload()
    assert (outcome.result, outcome.reason) == ("Refused", "StateNotImported")
    assert "KeyError: 'v1'" in outcome.message
    controller.sandbox.create(config_map("m"))
    controller.wait_idle()
    assert rig.told("seen") == [("seen", 1, 1, 1)]


@pytest.mark.guarantee("G5")
def test_a_call_that_spans_a_reload_sees_only_its_own_generation(rig, config_map) -> None:
    """A slow call imports a sibling after the commit: it gets the one of its generation (G5)."""
    code = (
        "from blackboard import tell as note, wait\n"
        "VERSION = {0}\n"
        "def tell(change):\n"
        "    wait('commit') if VERSION == 1 else None\n"
        "    from sibling import VERSION as late\n"
        "    import sibling\n"
        "    note('tell', str(change.key), VERSION, late, sibling.VERSION)\n"
    )
    rig.handler("tell")
    rig.folder.write("sibling.py", "VERSION = 1\n")
    controller = rig.run(code.format(1), objects=[config_map("m")])
    until("the call has begun", lambda: controller.handler("tell").running == 1)
    rig.folder.write("sibling.py", "VERSION = 2\n")
    rig.folder.write("handlers.py", code.format(2))
    assert controller.reload().result == "Applied"
    controller.sandbox.create(config_map("n"))
    rig.board.open_gate("commit")
    controller.wait_idle()
    assert rig.told("tell") == [("tell", "default/m", 1, 1, 1), ("tell", "default/n", 2, 2, 2)]


STUCK = """
from blackboard import tell as note, wait
VERSION = {version}
{kind} tell(change):
    note("began", str(change.key), VERSION)
    if VERSION == 1 and change.obj.name == "m0":
        {waiting}
    note("ended", str(change.key), VERSION)
"""


def _stuck(rig, config_map, kind: str, waiting: str):
    rig.reload_policy = "settle: 20ms, preflight: 'Off', drainTimeout: 200ms"
    rig.handler("tell", rest="retry: {initialBackoff: 10ms}")
    controller = rig.run(STUCK.format(version=1, kind=kind, waiting=waiting))
    for number in range(3):
        controller.sandbox.create(config_map(f"m{number}"))
    controller.sandbox.patch("ConfigMap", "m0", {"data": {"a": "1"}})
    until("the rest waits", lambda: controller.handler("tell").queued == 3)
    rig.folder.write("handlers.py", STUCK.format(version=2, kind=kind, waiting=waiting))
    assert controller.reload().result == "Applied"
    return controller


@pytest.mark.guarantee("G9")
def test_a_stuck_call_does_not_keep_a_reload_from_taking_over(rig, config_map) -> None:
    """After `drainTimeout` the new code gets what waits; the stuck call's key is held (G9)."""
    controller = _stuck(rig, config_map, "def", "wait('stuck')")
    until("the others are told", lambda: len(rig.told("ended")) == 2)
    assert rig.told("ended") == [("ended", "default/m1", 2), ("ended", "default/m2", 2)]
    assert (controller.handler("tell").zombies, controller.status().generations_alive) == (1, 2)
    until("the log says so", lambda: any("was not drained" in x for x in controller.log.events("warning")))
    rig.board.open_gate("stuck")
    controller.wait_idle()
    assert rig.told("ended")[2:] == [("ended", "default/m0", 1), ("ended", "default/m0", 2)]
    until("the old code is gone", lambda: controller.status().generations_alive == 1)
    assert controller.handler("tell").zombies == 0
    assert controller.handler("tell").retried == 0


@pytest.mark.guarantee("G9")
def test_a_stuck_asynchronous_call_is_cancelled_and_tried_with_the_new_code(rig, config_map) -> None:
    """An `async def` handler hangs: it is cancelled at `drainTimeout`, the new code tries again (G9)."""
    waiting = "import asyncio; await asyncio.Event().wait()"
    controller = _stuck(rig, config_map, "async def", waiting)
    controller.wait_idle()
    assert sorted(rig.told("ended")) == [
        ("ended", "default/m0", 2),
        ("ended", "default/m0", 2),
        ("ended", "default/m1", 2),
        ("ended", "default/m2", 2),
    ]
    until("the old code is gone", lambda: controller.status().generations_alive == 1)
