"""Calls that never return: a handler has a bound on them, and threads are left to read an edit."""

import threading

import pytest

from declctl.runtime.handling import calls_under_way
from declctl.testing import until

STUBBORN = """
import asyncio, itertools
from blackboard import gates, tell, wait
def begin(numbers=itertools.count()):
    tell("began", gate := f"call {next(numbers)}")
    return gate
def blocks(): wait(begin())
async def suppresses():
    event = gates.setdefault(begin(), asyncio.Event())
    while not event.is_set():
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            pass
"""


@pytest.mark.parametrize("mode", ["Event", "Reconcile"])
@pytest.mark.parametrize(("hook", "objects"), [("blocks", 40), ("blocks", 10), ("suppresses", 10)])
def test_a_handler_whose_calls_do_not_return_is_suspended_until_one_does_or_its_code_changes(
    rig, config_map, monkeypatch, hook, mode, objects
) -> None:
    """At four times its `concurrency` of such calls; a process with few threads left reads the edit."""

    def is_suspended() -> bool:
        return "HandlerSuspended" in [each.reason for each in runs.handler(hook).problems]

    def suspended() -> None:
        until("it is suspended", is_suspended)
        assert runs.handler(hook).zombies == 8
        until("it is said", lambda: runs.condition("HandlersHealthy").reason == "HandlerSuspended")

    def limited(thread: threading.Thread) -> None:
        if threading.active_count() >= most:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(calls_under_way, "CANCEL_SECONDS", 0.02)
    rig.reload_policy = "settle: 20ms, preflight: 'Off', drainTimeout: 100ms"
    retry = "retry: {initialBackoff: 1h, maxBackoff: 1h}"
    rig.handler(hook, rest=f"mode: {mode}, replay: Never, timeout: 20ms, queue: {{concurrency: 2}}, {retry}")
    rig.folder.write("others.py", "def other(): ...")
    rig.handler("other", entry="others:other")
    runs = rig.run(STUBBORN)
    most, start = threading.active_count() + 20, threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", limited)
    for number in range(objects):
        runs.sandbox.create(config_map(f"m{number}"))
    suspended()
    assert f"{hook}: suspended, as 8 of its calls" in runs.condition("HandlersHealthy").message
    assert runs.log.find("it goes on when one of them returns")
    for began, gate in ((9, "call 0"), (10, "call 8")):  # replaced, and not replaced
        rig.board.open_gate(gate)
        until("the next call has begun", lambda n=began: len(rig.told("began")) == n)
        suspended()
    rig.folder.write("others.py", "def other(): pass")
    rig.apply()
    until("its drain has ended", lambda: runs.log.find("drained"))
    rig.apply(f'from blackboard import tell\ndef {hook}(): tell("mended")\n')
    runs.sandbox.create(config_map("new"))
    until("the new code is called", lambda: len(rig.told("mended")) == objects - 9)
    assert (runs.handler(hook).zombies, is_suspended()) == (8, False)
    assert len(rig.told("began")) == 10, "an edit of another handler's code is none of its own"
    rig.board.clear()  # lets all of them go
