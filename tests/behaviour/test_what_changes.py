"""Handlers, resources, indexes and periods come, go and change under a controller that runs."""

import pytest

from declctl.kit import SystemClock
from declctl.testing import ControllerUnderTest, until

CODE = """
from blackboard import tell as note
VERSION = 1
def tell(change): note("tell", change.type, str(change.key), change.reason, VERSION)
def other(change): note("other", change.type, str(change.key), change.initial, VERSION)
def third(change): note("third", change.type, str(change.key))
"""


def _pod(name: str, namespace: str = "default", node: str = "n1", **labels: str) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
    }


@pytest.mark.client_go(336, "Dynamic watch")
@pytest.mark.guarantee("G18")
def test_a_handler_that_is_added_hears_the_cache_once_and_no_list_is_made(rig, asked, config_map) -> None:
    """A second handler: every cached object as initial Added, once, then what comes (G18)."""
    rig.handler("tell")
    controller = rig.run(CODE, objects=[config_map(f"m{n}") for n in range(30)])
    before = asked()
    rig.handler("other")
    rig.handler("third", rest="initialSync: Skip")
    rig.apply()
    controller.sandbox.create(config_map("new"))
    controller.wait_idle()
    heard = rig.told("other")
    assert sorted(row[2] for row in heard) == sorted([f"default/m{n}" for n in range(30)] + ["default/new"])
    assert [row for row in heard if not row[3]] == [("other", "Added", "default/new", False, 1)]
    assert rig.told("third") == [("third", "Added", "default/new")]
    assert asked() == before


@pytest.mark.client_go("Dynamic watch")
@pytest.mark.guarantee("G19")
def test_a_handler_that_is_removed_hears_what_came_before_and_is_torn_down_once(rig, config_map) -> None:
    """What was queued before the edit is delivered; then teardown, once, and no more (G19)."""
    code = CODE + (
        "from blackboard import wait\nimport declctl\n"
        "class Slow:\n"
        "    @declctl.hookimpl\n"
        "    def declctl_event(self, change): wait('slow'); note('slow', str(change.key))\n"
        "    @declctl.hookimpl\n"
        "    def declctl_teardown(self): note('teardown')\n"
    )
    rig.handler("tell")
    rig.handler("slow", entry="handlers:Slow")
    controller = rig.run(code)
    for number in range(5):
        controller.sandbox.create(config_map(f"m{number}"))
    until("all wait", lambda: controller.handler("slow").queued == 4)
    rig.handlers.pop()
    rig.apply()
    controller.sandbox.create(config_map("after"))
    assert rig.told("teardown") == []
    rig.board.open_gate("slow")
    until("it is retired", lambda: controller.status().generations_alive == 1)
    controller.wait_idle()
    assert rig.told("slow") == [("slow", f"default/m{n}") for n in range(5)]
    assert rig.told("teardown") == [("teardown",)]
    assert [h.name for h in controller.status().handlers] == ["tell"]
    assert len(rig.told("tell")) == 6


@pytest.mark.client_go(321, 333, "Lazy informers", "Dynamic watch")
@pytest.mark.guarantee("G13")
def test_a_resource_that_is_added_costs_one_list_and_one_watch_of_its_own(rig, asked, config_map) -> None:
    """A new kind: the caches that are there are not asked for again (G13)."""
    rig.handler("tell")
    controller = rig.run(CODE, objects=[config_map("m"), _pod("p")])
    before = asked("configmaps")
    rig.resources.append("- {name: pods, apiVersion: v1, kind: Pod}")
    rig.handler("other", resource="pods")
    rig.apply()
    controller.wait_idle()
    assert rig.told("other") == [("other", "Added", "default/p", True, 1)]
    assert asked("configmaps") == before
    figures = controller.resource("pods")
    assert (figures.lists, figures.relists, figures.watches, figures.objects) == (1, 0, 1, 1)
    assert sum(asked("pods")) <= 2  # a stream that lists is a WATCH, too


@pytest.mark.client_go("RemoveInformer")
@pytest.mark.guarantee("G14")
def test_a_resource_that_is_gone_is_watched_no_longer_than_it_lingers(rig, sandbox) -> None:
    """After `informerLinger` the watch is closed and the memory is free (G14)."""
    rig.reload_policy += ", informerLinger: 10ms"
    rig.resources.append("- {name: pods, apiVersion: v1, kind: Pod}")
    controller = rig.run(CODE)
    until("both are watched", lambda: sandbox.faults.document()["openWatches"] == 2)
    rig.resources.pop()
    rig.apply()
    until("one watch is left", lambda: sandbox.faults.document()["openWatches"] == 1)
    with pytest.raises(KeyError):
        controller.lister("pods")


@pytest.mark.client_go("Sync period")
@pytest.mark.guarantee("G17")
def test_another_resync_period_asks_for_no_list_and_brings_no_burst(rig, asked, config_map) -> None:
    """`resyncPeriod` becomes a second: resyncs come, once for each object, without a LIST (G17)."""
    rig.handler("tell")
    controller = rig.run(CODE, objects=[config_map("m"), config_map("n")])
    controller.wait_idle()
    before = asked()
    rig.resources = ["- {name: maps, apiVersion: v1, kind: ConfigMap, resyncPeriod: 1s}"]
    rig.write()
    assert "~resource maps (resync)" in controller.reload().line
    until("both are resynced", lambda: len(rig.told("tell", "Resync")) >= 2)
    assert sorted(row[2] for row in rig.told("tell", "Resync")[:2]) == ["default/m", "default/n"]
    assert asked() == before


def test_a_transform_is_another_one_with_its_own_code_alone(rig, asked) -> None:
    """An edit beside the module of a transform or an index lists nothing anew, and builds no index."""
    transform, index = "{entryPoint: 'trim:trim'}", "{name: byTeam, entryPoint: 'teams:by_team'}"
    rig.resources = [
        f"- {{name: maps, apiVersion: v1, kind: ConfigMap, transform: {transform}, indexers: [{index}]}}"
    ]
    rig.handler("tell")
    rig.folder.write("trim.py", "def trim(obj): return obj\n")
    rig.folder.write("teams.py", "def by_team(obj): return []\n")
    controller = rig.run("def tell(change): ...\n")
    before = asked()
    rig.folder.write("handlers.py", "def tell(change): ...\nX = 1\n")
    assert [str(step) for step in controller.reload().steps] == ["~handler tell (code)"]
    assert asked() == before
    rig.folder.write("teams.py", "def by_team(obj): return ['x']\n")
    assert [str(step) for step in controller.reload().steps] == ["~index maps.byTeam (code)"]
    assert asked() == before
    rig.folder.write("trim.py", "def trim(obj): return dict(obj)\n")
    outcome = controller.reload()
    assert [str(step) for step in outcome.steps] == ["-/+resource maps (code of the transform)"]
    assert asked() == (before[0], before[1] + 1)  # a watch that begins with what there is
    assert not outcome.unplanned


class _Late(SystemClock):
    """A clock that what is imported can move on."""

    late = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.late


_SLOW = "import blackboard\nblackboard.clock.late += {}\ndef tell(change): pass\n"


@pytest.mark.guarantee("G25")
def test_an_import_that_takes_long_is_told_with_its_seconds(rig, board, monkeypatch):
    """Who waits for a reload sees what it waited for, in its line, and in the history from the start on."""
    clock = _Late()
    monkeypatch.setattr(board, "clock", clock, raising=False)
    rig.handler()
    with ControllerUnderTest(rig.write(_SLOW.format(30)), clock=clock) as runs:
        runs.wait_ready()
        rig.folder.write("handlers.py", _SLOW.format(20))
        outcome = runs.reload()
        assert outcome.imports.in_preflight == 0  # preflight: Off
        assert 20 <= outcome.imports.here <= outcome.seconds
        assert outcome.line.endswith(f"ms (imports took {outcome.imports.here:.0f} s here)")
        told = runs.runtime.history()["attempts"]
        assert [int(attempt["importSeconds"]) // 10 for attempt in told] == [3, 2]


_DATA = """
import pathlib
from blackboard import tell as note
TEAM = (pathlib.Path(__file__).parent / "team.txt").read_text()
def tell(change): note(TEAM, change.type, str(change.key))
def by_team(obj): return [TEAM]
def is_ours(obj): return TEAM in obj["data"].values()
"""


@pytest.mark.guarantee("G1", "G25")
def test_a_forced_reload_makes_code_anew_that_reads_files_by_itself(rig, asked, config_map) -> None:
    """A data file beside the handler is edited: a reload finds nothing, a forced one has it (no LIST)."""
    rig.handler("tell", rest="filter: {entryPoint: 'handlers:is_ours'}")
    index = "{name: byTeam, entryPoint: 'handlers:by_team'}"
    rig.resources = [f"- {{name: maps, apiVersion: v1, kind: ConfigMap, indexers: [{index}]}}"]
    rig.folder.write("team.txt", "red")
    controller = rig.run(_DATA, objects=[config_map("a", team="red"), config_map("b", team="blue")])
    controller.wait_idle()
    before = asked()
    assert rig.told() == [("red", "Added", "default/a")]

    rig.folder.write("team.txt", "blue")
    assert controller.reload().result == "Unchanged"
    outcome = controller.reload(force=True)
    assert (outcome.result, outcome.generation, outcome.lists) == ("Applied", 2, 0)
    assert outcome.line.startswith("generation 2: ~index maps.byTeam (code) ~handler tell (code), 0 LIST")
    controller.wait_idle()
    assert sorted(rig.told()[1:]) == [("blue", "Added", "default/b"), ("blue", "Deleted", "default/a")]
    assert list(controller.lister("maps").index_values("byTeam")) == ["blue"]

    assert controller.reload().result == "Unchanged"
    rig.handler("other", entry="handlers:tell")
    rig.write()
    assert controller.reload().line.startswith("generation 3: +handler other, 0 LIST")
    assert asked() == before
