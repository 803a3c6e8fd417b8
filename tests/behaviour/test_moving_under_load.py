"""Manifests are rewritten while objects change: handlers hear true differences, in order."""

import threading

import pytest

from declctl.sandbox.faults import Match
from declctl.testing import ConfigMapDir, until

CODE = """
from blackboard import tell as note
def tell(change):
    obj = change.obj
    note("tell", obj.uid, change.type, int(obj.resource_version), change.reason, obj.name)
"""
_RESOURCES = (
    "- {name: maps, apiVersion: v1, kind: ConfigMap, namespaces: [a]}",
    "- {name: maps, apiVersion: v1, kind: ConfigMap, namespaces: [a, b]}",
    "- {name: maps, apiVersion: v1, kind: ConfigMap}",
    "- {name: maps, apiVersion: v1, kind: ConfigMap, namespaces: [b]}",
)


_SELECTED = (
    "- {name: maps, apiVersion: v1, kind: ConfigMap, namespaces: [a]}",
    "- {name: maps, apiVersion: v1, kind: ConfigMap, fieldSelector: 'metadata.name!=m1'}",
    "- {name: maps, apiVersion: v1, kind: ConfigMap, fieldSelector: 'metadata.name=m2'}",
    "- {name: maps, apiVersion: v1, kind: ConfigMap}",
)


def _storm(sandbox, config_map, stop: threading.Event) -> None:
    turn = 0
    sandbox.load([config_map(f"m{number}", space, turn="0") for space in "ab" for number in range(10)])
    while not stop.is_set():
        turn += 1
        for space in "ab":
            name = f"m{turn % 10}"
            if turn % 7 == 0:
                sandbox.delete("ConfigMap", name, space)
                sandbox.create(config_map(name, space, turn=str(turn)))
            else:
                sandbox.patch("ConfigMap", name, {"data": {"turn": str(turn)}}, namespace=space)


@pytest.mark.thorough
@pytest.mark.guarantee("G15")
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("resources", "turns"), [(_RESOURCES, 24), (_SELECTED, 4)], ids=["namespaces", "field selectors"]
)
def test_a_storm_while_watches_change_is_told_as_one_watch_would(
    rig, sandbox, config_map, resources, turns
) -> None:
    """No object is added or deleted twice, none goes back in time, the last state is known (G15)."""
    rig.reload_policy += ", informerLinger: 1ms"  # so that each move meets caches that are just filled
    rig.resources = [resources[0]]
    rig.handler("tell")
    controller = rig.run(CODE)
    stop = threading.Event()
    storm = threading.Thread(target=_storm, args=(sandbox, config_map, stop), daemon=True)
    storm.start()
    try:
        for turn in range(1, turns + 1):
            rig.resources = [resources[turn % len(resources)]]
            rig.write()
            outcome = controller.reload(timeout=90)
            assert outcome.result == "Applied", outcome.line
    finally:
        stop.set()
        storm.join()
    controller.wait_idle()
    known: dict[str, int] = {}
    for _, uid, kind, version, reason, name in rig.told("tell"):
        assert (kind == "Added") == (uid not in known), (name, kind, version, reason)
        assert version >= known.get(uid, 0), (name, kind, version, reason)
        if kind == "Deleted":
            del known[uid]
        else:
            known[uid] = version
    there = {
        o["metadata"]["uid"]: int(o["metadata"]["resourceVersion"]) for o in sandbox.objects("ConfigMap", "a")
    }
    assert known == there


@pytest.mark.guarantee("G13")
def test_a_slow_new_kind_delays_nobody(rig, sandbox, config_map) -> None:
    """The API server takes its time to list a new kind: changes of the others are told meanwhile (G13)."""
    rig.handler("tell")
    controller = rig.run(CODE)
    sandbox.faults.delay(1.0, Match(resource="secrets"), times=1)
    rig.resources.append("- {name: secrets, apiVersion: v1, kind: Secret}")
    rig.handler("secrets", resource="secrets", entry="handlers:tell")
    rig.write()
    outcomes: list = []
    reload = threading.Thread(target=lambda: outcomes.append(controller.reload()))
    reload.start()
    until("the list is under way", lambda: sandbox.ledger.count(resource="secrets"))
    sandbox.create(config_map("m"))
    until("it is told", lambda: rig.told("tell"))
    assert outcomes == []
    reload.join()
    assert outcomes[0].result == "Applied"


@pytest.mark.thorough
@pytest.mark.guarantee("G24")
def test_a_mounted_configmap_is_followed_swap_by_swap(rig, sandbox, config_map, tmp_path, controller) -> None:
    """Twenty swaps of a mounted folder: each is one reload, none is torn, and the last one runs (G24)."""
    code = "from blackboard import tell as note\ndef tell(change): note({0}, change.generation)\n"
    rig.handler("tell")
    files = {"manifest.yaml": rig.manifest(), "handlers.py": code.format(1)}
    mounted = ConfigMapDir(tmp_path / "mounted", files)
    runs = controller(mounted.path, watch=True)
    runs.wait_ready()
    for version in range(2, 22):
        manifest = files["manifest.yaml"].replace("name: behaviour", f"name: v{version}")
        mounted.swap({"manifest.yaml": manifest, "handlers.py": code.format(version)})
        until("it runs", lambda version=version: runs.status().generation == version)
        assert runs.status().name == f"v{version}"
    sandbox.create(config_map("m"))
    runs.wait_idle()
    assert rig.board.told == [(21, 21)]
    assert runs.status().reloads == {"Applied": 20}


@pytest.mark.guarantee("G9")
def test_a_call_that_outlives_the_drain_and_succeeds_is_not_made_again(rig, sandbox, config_map) -> None:
    """A handler with a long `timeout` spans a reload and then succeeds: its change is told once."""
    code = "from blackboard import tell as note, wait\ndef tell():\n    wait('go')\n    note('tell', {0})\n"
    rig.reload_policy = "settle: 20ms, preflight: 'Off', drainTimeout: 100ms"
    rig.handler("tell", rest="timeout: 60s")
    controller = rig.run(code.format(1), objects=[config_map("m")])
    until("it runs", lambda: controller.handler("tell").running == 1)
    rig.apply(code.format(2))
    until("nobody waits for it any longer", lambda: controller.handler("tell").zombies == 1)
    rig.board.open_gate("go")
    controller.wait_idle()
    assert rig.told("tell") == [("tell", 1)]
    figures = controller.handler("tell")
    assert (figures.succeeded, figures.failed, figures.retried, figures.zombies) == (1, 0, 0, 0)


@pytest.mark.guarantee("G9")
def test_handover_gives_what_waits_to_the_new_code_and_lets_what_runs_finish(
    rig, sandbox, config_map
) -> None:
    """`drainPolicy: Handover`: the new code tells the backlog at once; what runs isn't cancelled."""
    code = (
        "from blackboard import tell as note, gates\nimport asyncio\n"
        "async def tell(change):\n"
        "    note('began', {0}, change.obj.name)\n"
        "    while change.obj.name == 'm0' and 'go' not in gates: await asyncio.sleep(0.01)\n"
        "    note('ended', {0}, change.obj.name)\n"
    )
    rig.reload_policy += ", drainPolicy: Handover"
    rig.handler("tell")
    controller = rig.run(code.format(1))
    for number in range(3):
        sandbox.create(config_map(f"m{number}"))
    until("the rest waits", lambda: controller.handler("tell").queued == 2)
    rig.apply(code.format(2))
    rig.board.open_gate("go")
    controller.wait_idle()
    assert rig.told("ended") == [("ended", 1, "m0"), ("ended", 2, "m1"), ("ended", 2, "m2")]
    assert controller.handler("tell").retried == 0
