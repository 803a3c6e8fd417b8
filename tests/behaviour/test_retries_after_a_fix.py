"""After the commit of a fix, no failed call is repeated by the code that has failed (G10)."""

import threading

import pytest

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
    rig.handler("tell", rest=f"mode: {mode}, {HOURS}, queue: {{concurrency: {concurrency}}}")
    objects = [config_map(f"m{number}") for number in range(OBJECTS)]
    runs = rig.run(code(BROKEN, mode, is_async=is_async), objects=objects)
    until("all have failed", lambda: runs.handler("tell").retried == OBJECTS)
    runs.advance(4000)
    until("all workers wait at the gate", lambda: len(rig.told("broken")) == OBJECTS + concurrency)
    rig.folder.write("handlers.py", code(FIXED, mode, is_async=is_async))
    assert runs.reload().result == "Applied"
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
    """An object changes while its first change backs off: its changes keep their order, and one code."""
    rig.handler("tell", rest=f"{HOURS}, queue: {{concurrency: {concurrency}}}")
    broken = "from blackboard import tell as note\ndef tell(change):\n    note('broken')\n    1 / 0\n"
    fixed = (
        "from blackboard import tell as note\ndef tell(change): note(change.type, change.obj.get('data'))\n"
    )
    runs = rig.run(broken, objects=[config_map("m")])
    until("it backs off", lambda: runs.handler("tell").retried == 1)
    for number in "12":
        runs.sandbox.patch("ConfigMap", "m", {"data": {"n": number}})
    until("its changes wait", lambda: runs.handler("tell").queued == 3)
    rig.folder.write("handlers.py", fixed)
    assert runs.reload().result == "Applied"
    # Nothing is left for the old code to do, so it is not kept until the drain timeout of 5 s.
    until("the old code is retired", lambda: runs.status().generations_alive == 1, timeout=4.0)
    assert rig.told("Added") == []
    runs.advance(4000)
    runs.wait_idle()
    assert len(rig.told("broken")) == 1
    modified = [row[1]["n"] for row in rig.told("Modified")]
    assert (len(rig.told("Added")), modified) == (1, ["1", "2"])


@pytest.mark.guarantee("G10")
def test_changes_that_come_behind_a_retry_after_the_fix_keep_their_order(rig, config_map) -> None:
    """Some wait since before the commit and some came after it: all are delivered once, and in order."""
    rig.handler("tell", rest=HOURS)
    broken = "from blackboard import tell as note\ndef tell(change):\n    note('broken')\n    1 / 0\n"
    fixed = (
        "from blackboard import tell as note\ndef tell(change): note(change.type, change.obj.get('data'))\n"
    )
    runs = rig.run(broken, objects=[config_map("m")])
    until("it backs off", lambda: runs.handler("tell").retried == 1)
    runs.sandbox.patch("ConfigMap", "m", {"data": {"n": "1"}})
    until("a change waits", lambda: runs.handler("tell").queued == 2)
    rig.folder.write("handlers.py", fixed)
    assert runs.reload().result == "Applied"
    runs.sandbox.patch("ConfigMap", "m", {"data": {"n": "2"}})
    until("another one waits", lambda: runs.handler("tell").queued == 3)
    runs.advance(4000)
    runs.wait_idle()
    assert len(rig.told("broken")) == 1
    assert [row[1]["n"] for row in rig.told("Modified")] == ["1", "2"]


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("mode", MODES)
def test_a_retry_comes_when_it_was_due_before_the_fix(rig, config_map, mode) -> None:
    """The back-off has grown to four hours: the edit neither shortens nor restarts it; attempts count on."""
    rig.handler("tell", rest=f"mode: {mode}, {HOURS}")
    argument = "request" if mode == "Reconcile" else "change"
    head = f"from blackboard import tell as note\ndef tell({argument}):\n"
    runs = rig.run(f"{head}    note('broken')\n    1 / 0\n", objects=[config_map("m")])
    for number in (1, 2, 3):
        until("it has failed again", lambda number=number: runs.handler("tell").retried == number)
        if number < 3:
            runs.advance(3600.0 * number)
    rig.folder.write("handlers.py", f"{head}    note('fixed')\n")
    assert runs.reload().result == "Applied"
    runs.advance(12_900)  # a reconciler's back-off is up to a tenth shorter
    assert (runs.handler("tell").running, rig.told("fixed")) == (0, [])
    runs.advance(1_600)
    runs.wait_idle()
    assert (len(rig.told("broken")), len(rig.told("fixed"))) == (3, 1)


@pytest.mark.guarantee("G10")
def test_the_changes_of_a_removed_handler_are_still_those_of_its_code(rig, gate, config_map) -> None:
    """There is no fixed code for them: the drain waits for retries that are due, as for what was queued."""
    rig.handler("tell", rest="retry: {maxAttempts: 2, initialBackoff: 1h, maxBackoff: 1h}")
    objects = [config_map(f"m{number}") for number in range(3)]
    runs = rig.run(code(BROKEN, "Event"), objects=objects)
    until("all have failed", lambda: runs.handler("tell").retried == 3)
    runs.advance(4000)
    until("it waits at the gate", lambda: len(rig.told("broken")) == 4)
    rig.handlers.clear()
    rig.handler("other")
    rig.folder.write("handlers.py", f"{code(BROKEN, 'Event')}\ndef other(change): ...\n")
    rig.write()
    assert runs.reload().result == "Applied"
    gate.set()
    until("the old code is retired", lambda: runs.status().generations_alive == 1)
    assert len(rig.told("broken")) == 6
