"""Bad days of a cluster: the cache ends equal to the server, and handlers have heard of everything."""

import pytest

from declctl.sandbox.faults import Match
from declctl.testing import until

CODE = """
from blackboard import tell as note
def tell(change):
    note("tell", str(change.key), change.type, change.obj.resource_version)
"""


def _same(controller, sandbox) -> bool:
    there = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in sandbox.objects("ConfigMap")}
    cached = {o.name: o.resource_version for o in controller.lister("maps").list()}
    return there == cached


def _churn(sandbox, config_map, turn: int) -> None:
    """Objects are made, changed and deleted."""
    for number in range(5):
        sandbox.create(config_map(f"t{turn}-{number}"))
        sandbox.patch("ConfigMap", f"t{turn}-{number}", {"data": {"turn": str(turn)}})
    sandbox.delete("ConfigMap", f"t{turn}-0", "default")
    if turn:
        sandbox.delete("ConfigMap", f"t{turn - 1}-1", "default")


def _compact(sandbox, **faults: str) -> None:
    for name, value in faults.items():
        setattr(sandbox.faults, name, value)
    sandbox.faults.silence()
    sandbox.faults.cut_watches()
    sandbox.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "newer"}})
    sandbox.faults.compact()
    sandbox.faults.speak()


def _refuse_once(sandbox, status: int, **how: int) -> None:
    sandbox.faults.refuse(status, Match(resource="configmaps"), times=1, **how)
    sandbox.faults.cut_watches()


FAULTS = {
    "cut": lambda sandbox: sandbox.faults.cut_watches(),
    "cut in a line": lambda sandbox: sandbox.faults.cut_mid_line(),
    "ended politely": lambda sandbox: sandbox.faults.cut_watches(clean=True),
    "no event": lambda sandbox: sandbox.faults.malformed_line(),
    "compacted": _compact,
    "compacted, told as a status": lambda sandbox: _compact(sandbox, expired_watch="status"),
    "compacted, without streams": lambda sandbox: _compact(sandbox, watch_list="invalid"),
    "an error of the server": lambda sandbox: _refuse_once(sandbox, 500),
    "too many requests": lambda sandbox: _refuse_once(sandbox, 429, retry_after=1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_fault_the_cache_is_what_the_server_has(fault, rig, sandbox, config_map) -> None:
    """Watches break in every way there is: the last state of each object is in the cache and told."""
    rig.handler("tell")
    controller = rig.run(CODE)
    for turn in range(3):
        _churn(sandbox, config_map, turn)
        if turn == 1:
            FAULTS[fault](sandbox)
    _churn(sandbox, config_map, 3)
    until("the cache is what the server has", lambda: _same(controller, sandbox), timeout=20)
    controller.wait_idle(20)
    last = {row[1]: row for row in rig.told("tell")}
    alive = {
        f"default/{o['metadata']['name']}": o["metadata"]["resourceVersion"]
        for o in sandbox.objects("ConfigMap")
    }
    assert {key: row[3] for key, row in last.items() if row[2] != "Deleted"} == alive
    assert controller.status().ready
    assert controller.handler("tell").failed == 0


@pytest.mark.client_go("A half-open watch")
def test_a_watch_that_falls_silent_is_noticed(rig, sandbox, config_map) -> None:
    """A connection dies without a word: after `idleTimeout` it is made anew."""
    rig.resources = ["- {name: maps, apiVersion: v1, kind: ConfigMap, idleTimeout: 1s}"]
    rig.handler("tell")
    controller = rig.run(CODE)
    until("it watches", lambda: sandbox.faults.document()["openWatches"] == 1)
    sandbox.faults.silence()
    sandbox.create(config_map("unheard"))
    watches = sandbox.ledger.count("watch")
    until("it asks again", lambda: sandbox.ledger.count("watch") > watches)
    sandbox.faults.speak()
    until("it has heard", lambda: rig.told("tell", "default/unheard"))
    assert _same(controller, sandbox)


@pytest.mark.thorough
def test_status_tells_what_a_relist_found_and_nobody_saw_happen(rig, sandbox, config_map) -> None:
    """After a stop under churn, `status` says how many objects a list found changed: not seen between."""
    rig.handler("tell")
    controller = rig.run(CODE, objects=[config_map("kept"), config_map("changed"), config_map("gone")])
    controller.wait_idle()
    sandbox.stop()  # nothing comes through, as for a process that does not run
    for turn in range(30):
        sandbox.patch("ConfigMap", "changed", {"data": {"turn": str(turn)}})
    sandbox.delete("ConfigMap", "gone", "default")
    sandbox.create(config_map("new"))
    sandbox.faults.compact()
    sandbox.start()
    until("the cache is what the server has", lambda: _same(controller, sandbox), timeout=20)
    (maps,) = controller.status().document()["resources"]
    assert maps["relistDifferences"] == {"added": 1, "modified": 1, "deleted": 1}
    assert maps["relists"] == 1
    controller.wait_idle()
    assert [row[2] for row in rig.told("tell", "default/changed")] == ["Added", "Modified"]


def test_a_server_that_is_away_for_a_while_is_waited_for(rig, sandbox, config_map) -> None:
    """The API server restarts: handlers go on with what happened meanwhile, the process with them."""
    rig.handler("tell")
    controller = rig.run(CODE, objects=[config_map("before")])
    controller.wait_idle()
    sandbox.stop()
    until("it is told", lambda: controller.condition("Degraded").reason == "ServerUnreachable")
    server = controller.status().document()["server"]
    assert server["url"] == sandbox.url
    assert server["unreachableSince"] is not None
    assert "connection refused" in server["error"]
    sandbox.create(config_map("meanwhile"))
    sandbox.start()
    until("it has heard", lambda: rig.told("tell", "default/meanwhile"), timeout=20)
    assert [row[1] for row in rig.told("tell")] == ["default/before", "default/meanwhile"]
    until("all is well", lambda: controller.condition("Degraded").status == "False")
    server = controller.status().document()["server"]
    assert (server["unreachableSince"], server["error"], server["outages"]) == (None, None, 1)


BAD = """
from blackboard import tell as note, wait
import sys
def good(change): note("good", str(change.key))
def raises(change): raise ValueError(change.obj.name)
def exits(change): sys.exit(3)
def hangs(change): wait("hangs")
async def cancels(change):
    import asyncio
    raise asyncio.CancelledError
async def leaks(change):
    import asyncio
    asyncio.get_running_loop().create_task(asyncio.sleep(3600))
def ends(change): raise GeneratorExit
def deep(change): deep(change)
"""


@pytest.mark.thorough
@pytest.mark.client_go("A slow handler")
def test_handlers_that_misbehave_harm_nobody_else(rig, sandbox, config_map) -> None:
    """Handlers raise, exit, hang, leak and recurse: they are counted, and the good one hears everything."""
    names = ("raises", "exits", "cancels", "ends", "deep")
    rig.handler("good")
    for name in names:
        rig.handler(name, rest="retry: {maxAttempts: 2, initialBackoff: 5ms}")
    rig.handler("hangs", rest="timeout: 30ms, retry: {maxAttempts: 1}")
    rig.handler("leaks")
    controller = rig.run(BAD)
    for number in range(5):
        sandbox.create(config_map(f"m{number}"))
    until("as many are given up as it may have", lambda: controller.handler("hangs").zombies == 4)
    rig.board.open_gate("hangs")
    controller.wait_idle()
    assert [row[1] for row in rig.told("good")] == [f"default/m{n}" for n in range(5)]
    for name in names:
        figures = controller.handler(name)
        assert (name, figures.failed, figures.retried) == (name, 5, 5)
    assert (controller.handler("hangs").failed, controller.handler("hangs").zombies) == (4, 0)
    assert (controller.handler("leaks").succeeded, controller.status().ready) == (5, True)
    assert controller.handler("raises").last_error == "default/m4: ValueError: m4"
