"""Calls that never return: a handler has a bound on them, and threads are left to read an edit."""

import threading

import pytest

from declctl.runtime.handling import invocations
from declctl.testing import until

STUBBORN = """
import asyncio
from blackboard import gates, tell as note, wait

def blocks(WHAT):
    note("began", WHAT.name)
    wait(WHAT.name)

async def suppresses(WHAT):
    note("began", WHAT.name)
    gates.setdefault(WHAT.name, asyncio.Event())
    while not gates[WHAT.name].is_set():
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            pass
"""
MENDED = """
from blackboard import tell as note
def blocks(WHAT): note("mended", WHAT.name)
async def suppresses(WHAT): note("mended", WHAT.name)
"""
OTHER = '\ndef other(obj): return "of no concern"\n'


@pytest.mark.parametrize(
    ("hook", "mode", "objects"),
    [
        ("blocks", "Event", 40),
        ("blocks", "Reconcile", 10),
        ("suppresses", "Event", 10),
        ("suppresses", "Reconcile", 40),
    ],
)
def test_a_handler_whose_calls_do_not_return_is_suspended_until_one_does_or_its_code_changes(
    rig, config_map, monkeypatch, hook, mode, objects
) -> None:
    """At four times its `concurrency` of such calls; a process with few threads left reads the edit."""
    monkeypatch.setattr(invocations, "CANCEL_SECONDS", 0.02)
    rig.reload_policy = "settle: 20ms, preflight: 'Off', drainTimeout: 100ms"
    rest = "timeout: 20ms, queue: {concurrency: 2}, retry: {initialBackoff: 1h, maxBackoff: 1h}"
    rig.handler(hook, rest=f"mode: {mode}, {rest}")
    stubborn, mended = (
        code.replace("WHAT", "obj" if mode == "Event" else "request") for code in (STUBBORN, MENDED)
    )
    rig.folder.write("others.py", OTHER)
    rig.handler("other", entry="others:other")
    runs = rig.run(stubborn)
    most, start = threading.active_count() + 20, threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if threading.active_count() >= most:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    for number in range(objects):
        runs.sandbox.create(config_map(f"m{number:02}"))
    _suspended(rig, hook)
    condition = runs.condition("HandlersHealthy")
    assert condition.message.startswith(f"{hook}: suspended, as 8 of its calls do not return")
    # The first one has been replaced, and the last one has not.
    for began, name in enumerate((rig.told("began")[0][1], rig.told("began")[-1][1]), 9):
        rig.board.open_gate(name)
        until("the next call has begun", lambda n=began: len(rig.told("began")) == n)
        _suspended(rig, hook)
    rig.folder.write("others.py", OTHER * 2)
    rig.apply()
    assert len(rig.told("began")) == 10, "an edit of another handler's code is none of its own"
    rig.apply(mended)
    runs.sandbox.create(config_map("new"))
    until("the new code is called for all others", lambda: len(rig.told("mended")) == objects - 9)
    figures = runs.handler(hook)
    assert (figures.zombies, figures.suspended) == (8, False)
    until("it is healthy", lambda: runs.condition("HandlersHealthy").status == "True")
    for _, name in rig.told("began"):
        rig.board.open_gate(name)
    until("all have returned", lambda: not runs.handler(hook).zombies)


def _suspended(rig, hook: str) -> None:
    """Wait until the handler has eight zombies, and is suspended."""
    until("it is suspended", lambda: rig.runs.handler(hook).suspended)
    assert rig.runs.handler(hook).zombies == 8
    found = rig.runs.condition
    until("the condition says so", lambda: found("HandlersHealthy").reason == "HandlerSuspended")
