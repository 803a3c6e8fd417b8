"""What survives a reload and what doesn't: retries, memos, state, calls under way, changes that wait.

After the commit of a fix, no failed call is repeated by the code that has failed (G10). Changes that
come to nothing are counted, and it is told how many they are, and why.
"""

import threading

import pytest

from declctl.admin.metrics import StatusCollector
from declctl.testing import until

OBJECTS = 12
MODES = ["Event", "Reconcile"]

HOURS = "retry: {initialBackoff: 1h, maxBackoff: 8h}"
# The first round of calls fails at once. In the second, calls wait at the gate while other retries are due.
BROKEN = """
import asyncio
import blackboard

CALLED = set()

{prefix}def tell({argument}):
    key = str({argument}.key)
    blackboard.tell("broken", key)
    if key in CALLED:
        while not blackboard.gate.is_set():
            {wait}
    CALLED.add(key)
    raise ValueError(key)
"""
FIXED = """
import blackboard

{prefix}def tell({argument}):
    blackboard.tell("fixed", str({argument}.key))
"""


def code(text: str, mode: str, *, is_async: bool = False) -> str:
    """One of the two, for a mode and a kind of function."""
    argument = "request" if mode == "Reconcile" else "change"
    prefix, wait = ("async ", "await asyncio.sleep(0.01)") if is_async else ("", "blackboard.gate.wait(0.01)")
    return text.format(argument=argument, prefix=prefix, wait=wait)


@pytest.fixture(name="gate")
def _gate(rig, monkeypatch) -> threading.Event:
    gate = threading.Event()
    monkeypatch.setattr(rig.board, "gate", gate, raising=False)
    return gate


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async"])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_retries_that_wait_for_a_worker_at_the_commit_go_to_the_fixed_code(
    rig, gate, config_map, mode, is_async, concurrency
) -> None:
    """All retries are due and the workers are busy: of the broken code, only running calls go on."""
    rig.handler("tell", rest=f"mode: {mode}, replay: Never, {HOURS}, queue: {{concurrency: {concurrency}}}")
    objects = [config_map(f"m{number}") for number in range(OBJECTS)]
    runs = rig.run(code(BROKEN, mode, is_async=is_async), objects=objects)
    until("all have failed", lambda: runs.handler("tell").retried == OBJECTS)
    runs.advance(4000)
    until("all workers wait at the gate", lambda: len(rig.told("broken")) == OBJECTS + concurrency)
    rig.apply(code(FIXED, mode, is_async=is_async))
    gate.set()
    until("the calls under way have failed", lambda: runs.handler("tell").retried == OBJECTS + concurrency)
    until("the others are done", lambda: runs.handler("tell").succeeded == OBJECTS - concurrency)
    runs.advance(8000)
    runs.wait_idle()
    assert len(rig.told("broken")) == OBJECTS + concurrency, "the broken code was called after the commit"
    assert len(rig.told("fixed")) == OBJECTS
    figures = runs.handler("tell")
    assert (figures.succeeded, figures.failed) == (OBJECTS, 0)


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("concurrency", [1, 3])
def test_changes_behind_a_retry_go_to_the_fixed_code_with_it(rig, config_map, concurrency) -> None:
    """An object changes while its first change backs off, before and after the fix: in order, to one code."""
    rig.handler("tell", rest=f"{HOURS}, queue: {{concurrency: {concurrency}}}")
    head = "from blackboard import tell as note\ndef tell(change):\n    note"
    runs = rig.run(f"{head}('broken')\n    1 / 0\n", objects=[config_map("m")])
    until("it backs off", lambda: runs.handler("tell").retried == 1)
    for number in "123":
        if number == "3":
            rig.apply(f"{head}(change.type, change.obj.get('data'))\n")
            # Nothing is left for the old code to do, so it is not kept until the drain timeout of 5 s.
            until("the old code is retired", lambda: runs.status().generations_alive == 1, timeout=4.0)
        runs.sandbox.patch("ConfigMap", "m", {"data": {"n": number}})
        until("its changes wait", lambda n=number: runs.handler("tell").queued == int(n) + 1)
    assert rig.told("Added") == []
    runs.advance(4000)
    runs.wait_idle()
    assert len(rig.told("broken")) == 1
    modified = [row[1]["n"] for row in rig.told("Modified")]
    assert (len(rig.told("Added")), modified) == (1, ["1", "2", "3"])


@pytest.mark.guarantee("G10")
def test_the_changes_of_a_removed_handler_are_still_those_of_its_code(rig, gate, config_map) -> None:
    """There is no fixed code for them: the drain waits for retries that are due, as for what was queued."""
    rig.handler("tell", rest="retry: {maxAttempts: 2, initialBackoff: 1h, maxBackoff: 1h}")
    objects = [config_map(f"m{number}") for number in range(3)]
    runs = rig.run(code(BROKEN, "Event"), objects=objects)
    until("all have failed", lambda: runs.handler("tell").retried == 3)
    runs.advance(4000)
    until("it waits at the gate", lambda: len(rig.told("broken")) == 4)
    rig.only("other")
    rig.apply(f"{code(BROKEN, 'Event')}\ndef other(change): ...\n")
    gate.set()
    rig.retired()
    assert len(rig.told("broken")) == 6


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


@pytest.mark.guarantee("G6", "G11")
def test_memos_and_exported_state_go_to_the_next_generation(rig, config_map) -> None:
    """`ctx.memo` is kept for each object; code that can't read what the last one exported is refused."""
    rig.handler("tell", entry="handlers")
    controller = rig.run(STATE.format(version=1, importing=""), objects=[config_map("m"), config_map("n")])
    controller.wait_idle()
    rig.apply(STATE.format(version=2, importing=""))
    controller.sandbox.patch("ConfigMap", "m", {"data": {"a": "1"}})
    controller.wait_idle()
    assert rig.told("imported") == [("imported", {"count": 2}, 1)]
    assert rig.told("seen", 2) == [("seen", 2, 2, 3)]
    outcome = rig.reload(STATE.format(version=3, importing="raise KeyError('v1')"))
    assert (outcome.result, outcome.reason) == ("Refused", "StateNotImported")
    assert "KeyError: 'v1'" in outcome.message
    controller.sandbox.create(config_map("o"))
    controller.wait_idle()
    assert rig.told("seen")[3:] == [("seen", 2, 1, 4)]


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
    rig.apply(STUCK.format(version=2, kind=kind, waiting=waiting))
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
    rig.retired()
    assert controller.handler("tell").zombies == 0
    assert controller.handler("tell").retried == 0


CODE = """
from blackboard import tell as note, wait
def tell(change): note("tell", str(change.key))
def slow(change):
    note("slow", str(change.key))
    wait("slow")
def failing(change):
    note("failing", str(change.key))
    raise ValueError("no")
"""


def _dropped_metric(runs) -> dict[str, float]:
    families = {family.name: family for family in StatusCollector(runs.status, {}).collect()}
    return {s.labels["handler"]: s.value for s in families["declctl_handler_dropped"].samples}


def _warning(runs, words: str) -> str | None:
    return next((line for line in runs.log.events("warning") if words in line), None)


def _changes(runs, config_map, count: int) -> None:
    for number in range(count):
        runs.sandbox.create(config_map(f"m{number}"))


@pytest.mark.guarantee("G2", "G19")
def test_a_removed_handler_that_is_not_through_says_how_many_changes_are_dropped(rig, config_map) -> None:
    """After `drainTimeout` the rest is dropped: in the log, in the status and in a metric that goes on."""
    rig.reload_policy = "settle: 20ms, preflight: 'Off', drainTimeout: 200ms"
    rig.handler("tell")
    rig.handler("slow")
    runs = rig.run(CODE)
    _changes(runs, config_map, 5)
    rest = {"tell": 0, "slow": 5}  # the change that is being worked on counts too
    until("only `slow` has changes left", lambda: runs.runtime.running().document()["waiting"] == rest)
    removed = rig.handlers.pop()
    rig.apply()
    until("they are dropped", lambda: runs.status().removed == {"slow": 4})
    removal = "slow was removed before all its changes were handled: 4 changes dropped after"
    line = until("the log says so", lambda: _warning(runs, removal))
    assert line.startswith(removal)
    assert "1 call still running, not waited for any longer" in line
    assert "drainTimeout" in line
    assert not [event for event in runs.log.events("warning") if "went to the new code" in event]
    assert runs.status().document()["removedHandlers"] == [{"name": "slow", "dropped": 4}]
    assert _dropped_metric(runs) == {"tell": 0, "slow": 4}
    rig.handlers.append(removed)
    rig.apply()
    until("it is back", lambda: runs.handler("slow").running == 1)
    assert _dropped_metric(runs) == {"tell": 0, "slow": 4}
    rig.board.open_gate("slow")
    runs.wait_idle()
    rig.retired()


@pytest.mark.guarantee("G2", "G19")
def test_what_backs_off_when_its_handler_is_removed_is_dropped_and_told(rig, config_map) -> None:
    """It is not waited for: it may be due in hours."""
    rig.handler("tell")
    rig.handler("failing", rest=HOURS)
    runs = rig.run(CODE)
    _changes(runs, config_map, 3)
    until("all back off", lambda: runs.handler("failing").retried == 3)
    rig.handlers.pop()
    rig.apply()
    rig.retired()
    assert runs.status().removed == {"failing": 3}
    assert _warning(runs, "3 changes dropped")


@pytest.mark.guarantee("G2", "G21")
def test_a_rollback_says_what_is_dropped_with_the_handlers_that_it_removes(rig, config_map) -> None:
    """A handler that only the new code has goes with it, and so does what waits for it."""
    rig.reload_policy = "settle: 20ms, preflight: 'Off', drainTimeout: 200ms, probationPeriod: 1h"
    rig.handler("tell")
    runs = rig.run(CODE)
    rig.handler("slow")
    rig.apply()
    _changes(runs, config_map, 4)
    until("the rest waits", lambda: runs.handler("slow").queued == 3)
    assert rig.roll_back().result == "RolledBack"
    until("they are dropped", lambda: runs.status().removed == {"slow": 3})
    until("the log says so", lambda: _warning(runs, "3 changes dropped"))
    assert runs.handler("tell").dropped == 0
    rig.board.open_gate("slow")


def test_the_end_of_the_process_says_what_waited(rig, config_map) -> None:
    """SIGTERM: the call that runs finishes, what waits is dropped; the log says how much, of whom."""
    rig.handler("tell")
    rig.handler("slow")
    rig.handler("failing", rest=HOURS)
    runs = rig.run(CODE)
    _changes(runs, config_map, 4)
    until("the rest waits", lambda: runs.handler("slow").queued == 3 and runs.handler("failing").retried == 4)
    until("`tell` is through", lambda: runs.handler("tell").succeeded == 4)
    runs.runtime.stop()
    until("nothing is taken any more", lambda: runs.runtime.parts.slots.get("slow").workers.is_dismissed)
    rig.board.open_gate("slow")
    assert runs.stop() == 0
    assert len(rig.told("slow")) == 1
    (line,) = [line for line in runs.log.events("warning") if "dropped" in line]
    assert line.startswith("7 changes that waited are dropped: slow 3, failing 4; the next start delivers")


@pytest.mark.guarantee("G2")
def test_changes_that_no_hook_is_for_are_no_successes(rig, config_map) -> None:
    """A class that only hears of Added: other changes are kept from it, and no call is counted."""
    rig.handler("adds", entry="handlers:Adds")
    runs = rig.run(
        "import declctl\nclass Adds:\n    @declctl.hookimpl\n    def declctl_added(self, obj): ...\n",
        objects=[config_map("a"), config_map("b")],
    )
    runs.wait_idle()
    runs.sandbox.patch("ConfigMap", "a", {"data": {"x": "y"}})
    runs.sandbox.delete("ConfigMap", "b")
    runs.wait_idle()
    figures = runs.handler("adds")
    assert (figures.delivered, figures.succeeded, figures.filtered, figures.dropped) == (2, 2, 2, 0)
