"""Reload under load: nothing is lost, told twice, out of order, or split between two versions."""

import threading

import pytest

pytestmark = pytest.mark.thorough

STORM = """
from blackboard import tell

VERSION = {version}

def first(change, ctx):
    tell("first", change.type, change.obj.uid, change.obj.resource_version, VERSION, ctx.generation)

{second}
"""
_SYNC = """
def second(change):
    tell("second", change.type, change.obj.uid, change.obj.resource_version, VERSION, change.generation)
"""
_ASYNC = _SYNC.replace("def second", "async def second")


def _storm(controller, config_map, *, objects: int, rounds: int) -> None:
    sandbox = controller.sandbox
    for number in range(objects):
        sandbox.create(config_map(f"m{number}", count="0"))
    for turn in range(rounds):
        for number in range(objects):
            sandbox.patch("ConfigMap", f"m{number}", {"data": {"count": str(turn + 1)}})
    for number in range(0, objects, 2):
        sandbox.delete("ConfigMap", f"m{number}", "default")


@pytest.mark.guarantee("G2", "G3", "G4")
def test_every_change_reaches_every_handler_once_and_in_order_while_code_is_reloaded(
    rig, asked, config_map
) -> None:
    """Twenty edits in a storm: once for each handler, in order for each object, one version (G2-G4)."""
    rig.handler("first")
    rig.handler("second", rest="queue: {concurrency: 3}")
    controller = rig.run(STORM.format(version=1, second=_SYNC))
    before = asked()
    storm = threading.Thread(
        target=_storm, args=(controller, config_map), kwargs={"objects": 20, "rounds": 30}, daemon=True
    )
    storm.start()
    for version in range(2, 22):
        rig.apply(STORM.format(version=version, second=_ASYNC if version % 2 else _SYNC))
    storm.join()
    controller.wait_idle(30)
    first, second = rig.told("first"), rig.told("second")
    assert len(first) == 20 + 20 * 30 + 10
    keys = {row[1:4] for row in first}
    assert len(keys) == len(first)
    assert sorted(row[1:4] for row in second) == sorted(row[1:4] for row in first)
    for rows in (first, second):
        for uid in {row[2] for row in rows}:
            versions = [int(row[3]) for row in rows if row[2] == uid]
            assert versions == sorted(versions)
    version_of = {row[1:4]: row[4:] for row in first}
    assert [row for row in second if version_of[row[1:4]] != row[4:]] == []
    assert all(row[4] == row[5] for row in first)
    assert len({row[4] for row in first}) > 2
    assert asked() == before
    for name in ("first", "second"):
        figures = controller.handler(name)
        assert (figures.delivered, figures.merged, figures.dropped) == (len(first), 0, 0)


@pytest.mark.guarantee("G1")
def test_edits_of_handlers_indexes_and_policies_ask_the_server_for_nothing(rig, asked, config_map) -> None:
    """Handlers, indexes, resync and policies change: not one LIST or WATCH (G1)."""
    rig.handler("tell")
    code = (
        "from blackboard import tell as note\n"
        "def tell(change): note({0}, change.type)\n"
        "def by_a(obj): return [obj['data']['a']]\n"
    )
    controller = rig.run(code.format(0), objects=[config_map("m", a="1")])
    before = asked()
    steps = [
        ("- {name: maps, apiVersion: v1, kind: ConfigMap, indexers: [{name: a, fieldPath: data.a}]}", ""),
        ("- {name: maps, apiVersion: v1, kind: ConfigMap, resyncPeriod: 10m}", "retry: {maxAttempts: 2}"),
        (
            (
                "- {name: maps, apiVersion: v1, kind: ConfigMap, "
                "indexers: [{name: a, entryPoint: 'handlers:by_a'}]}"
            ),
            "delivery: Keyed",
        ),
        ("- {name: maps, apiVersion: v1, kind: ConfigMap, idleTimeout: 50s}", "events: [Added]"),
        ("- {name: maps, apiVersion: v1, kind: ConfigMap}", "queue: {concurrency: 4}, timeout: 5s"),
    ]
    for number in range(20):
        resource, policy = steps[number % len(steps)]
        rig.resources, rig.handlers = [resource], []
        rig.handler("tell", rest=policy)
        outcome = rig.reload(code.format(number))
        assert (outcome.result, outcome.lists) == ("Applied", 0), outcome.line
    controller.wait_idle()
    assert asked() == before
    assert controller.resource("maps").relists == 0
