"""Named queues in a whole controller: handlers share workers, and reloads change who shares."""

import threading
from typing import Any

from declctl.testing import until

CODE = """
import time

import blackboard

def _work(name, obj):
    with blackboard.lock:
        blackboard.running += 1
        blackboard.most = max(blackboard.most, blackboard.running)
    blackboard.gate.wait(30.0)
    time.sleep(blackboard.pause)
    with blackboard.lock:
        blackboard.running -= 1
    blackboard.tell(name, obj.name)

def one(obj):
    _work("one", obj)

async def two(obj):
    import asyncio
    await asyncio.to_thread(_work, "two", obj)

def three(request):
    _work("three", request)
"""


def _prepare(rig) -> None:
    board = rig.board
    board.lock, board.gate = threading.Lock(), threading.Event()
    board.running = board.most = 0
    board.pause = 0.0  # seconds of a call after the gate


def test_handlers_of_one_queue_share_its_workers(rig, config_map) -> None:
    """A `def`, an `async def` and a reconciler: two calls at a time of all three, and all have turns."""
    _prepare(rig)
    rig.handler("one", rest="queue: {name: slow, concurrency: 2}")
    rig.handler("two", rest="queue: {name: slow}")
    rig.handler("three", rest="queue: {name: slow}, mode: Reconcile")
    runs = rig.run(CODE, objects=[config_map(f"m{number}") for number in range(10)])
    until("two calls run", lambda: rig.board.running == 2)
    rig.board.gate.set()
    until("all is done", lambda: len(rig.board.told) == 30)
    runs.wait_idle()
    assert rig.board.most == 2


def test_a_reload_changes_who_shares_and_loses_nothing(rig, config_map) -> None:
    """A handler gets workers of its own while both have work; then both share another queue."""
    _prepare(rig)
    rig.resources.append("- {name: secrets, apiVersion: v1, kind: Secret}")
    rig.reload_policy = rig.reload_policy.replace("drainTimeout: 5s", "drainTimeout: 30s")
    shared, own = "queue: {name: slow, concurrency: 1}", "queue: {concurrency: 1}"
    other = shared.replace("slow", "other")
    rig.handler("one", rest=shared)
    rig.handler("two", resource="secrets", rest=shared)
    runs = rig.run(CODE, objects=[config_map(f"m{number}") for number in range(5)])
    until("a call runs", lambda: rig.board.running == 1)
    runs.sandbox.create(_secret("s0"))
    until("it waits", lambda: runs.handler("two").queued == 1)
    assert rig.board.most == 1
    rig.handlers.clear()
    rig.handler("one", rest=shared)
    rig.handler("two", resource="secrets", rest=own)
    rig.write()
    reload = threading.Thread(target=runs.reload)  # it ends when the old calls are drained
    reload.start()
    until("both have a call", lambda: rig.board.running == 2)
    rig.board.gate.set()
    reload.join(30.0)
    rig.handlers.clear()
    rig.handler("one", rest=other)
    rig.handler("two", resource="secrets", rest=other)
    rig.apply()
    until("all is done", lambda: len(rig.board.told) == 6)
    rig.board.most = 0
    for number in range(5, 10):
        runs.sandbox.create(config_map(f"m{number}"))
        runs.sandbox.create(_secret(f"s{number}"))
    until("all is done", lambda: len(rig.board.told) == 16)
    assert len(set(rig.board.told)) == 16
    assert rig.board.most == 1


def _secret(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"}}
