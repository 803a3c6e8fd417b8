"""Other fields of a cache, or the same kept another way: out of what is cached, and no server is asked."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from declctl.admin.metrics import StatusCollector
from declctl.objects import record_of
from declctl.runtime.checking.check import check
from declctl.runtime.planning.comparison import compare_plans
from declctl.runtime.planning.running_plan import read_running_plan
from declctl.testing import until

CODE = """
from blackboard import tell as note
def tell(change): note(change.type, str(change.key), dict(change.obj.to_dict().get("data", {})))
def slim(obj): return obj
def by_team(obj): return [obj.get("data", {}).get("team", "none")]
"""
SLOW = """
import declctl
from blackboard import wait
class Slow:
    @declctl.hookimpl
    def declctl_prepare(self): note("prepare"); wait("prepared")
    @declctl.hookimpl
    def declctl_event(self, change): note("slow", str(change.key))
"""
LATE = """
def found(obj):
    if "team" not in obj.get("data", {}):
        return "none"
    from helper import team_of
    return team_of(obj)
def by_helper(obj): return [found(obj)]
def with_helper(obj):
    obj.setdefault("data", {})["found"] = found(obj)
    return obj
"""
_INDEX = "indexers: [{name: byTeam, fieldPath: data.team}]"
_DROPS = "transform: {dropFields: [metadata.managedFields, data.secret]}"


def _resource(rest: str = "") -> str:
    return f"- {{name: maps, apiVersion: v1, kind: ConfigMap{', ' if rest else ''}{rest}}}"


def _is_remade(controller, secret: bool) -> bool:
    return all(
        ("secret" in view.to_dict().get("data", {})) is secret for view in controller.lister("maps").list()
    )


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ("", _INDEX, "+index maps.byTeam ~resource maps (reproject: data.team)"),
        (_INDEX, "indexers: [{name: byTeam, fieldPath: data.color}]", "~index maps.byTeam ~resource maps"),
        ("", _DROPS, "~resource maps (reproject: transform)"),
        ("", "cache: {mode: Objects}", "~resource maps (reproject: cache)"),
        ("cache: {mode: Objects}", "", "~resource maps (reproject: cache)"),
        (
            _INDEX,
            f"{_INDEX}, {_DROPS}, cache: {{mode: Objects}}",
            "~resource maps (reproject: transform, cache)",
        ),
    ],
)
def test_the_server_is_not_asked_and_nobody_hears_of_it(
    rig, asked, sandbox, config_map, before: str, after: str, line: str
) -> None:
    """0 LIST, 0 WATCH; listers read the objects as a fresh cache would hold them; changes go on (G1)."""
    objects = [config_map(f"m{n}", team=f"t{n % 3}", color="red", secret="x") for n in range(600)]
    rig.resources = [_resource(before)]
    rig.handler("tell")
    controller = rig.run(CODE, objects=objects)
    controller.wait_idle()
    rig.board.clear()
    requests = asked()
    outcome = rig.reload(None, _resource(after))
    assert (outcome.result, outcome.lists, outcome.watches, tuple(outcome.unplanned)) == ("Applied", 0, 0, ())
    assert line in outcome.line
    until("all are decoded anew", lambda: _is_remade(controller, secret="secret" not in after))
    lister = controller.lister("maps")
    assert len(lister.list()) == 600
    if _INDEX in after:
        assert len(lister.by_index("byTeam", "t1")) == 200
    if "data.color" in after:
        assert len(lister.by_index("byTeam", "red")) == 600
    kept = {view["metadata"]["name"]: view for view in lister.list()}
    again = lister.get("default/m1")
    is_shared = record_of(again).read() is record_of(kept["m1"]).read()
    assert (again["data"] == kept["m1"]["data"], is_shared) == (True, "Objects" in after)
    sandbox.patch("ConfigMap", "m1", {"data": {"team": "new", "secret": "y"}}, namespace="default")
    controller.wait_idle()
    secret = {} if "secret" in after else {"secret": "y"}
    assert rig.told() == [("Modified", "default/m1", {"team": "new", "color": "red", **secret})]
    assert asked() == requests


@pytest.mark.parametrize(
    ("before", "after", "lists", "kind"),
    [
        ("", "cache: {mode: Objects}", 0, "Reproject"),
        ("", _DROPS, 0, "Reproject"),
        (_DROPS, "", 1, "Rehome"),
        ("", "cache: {mode: MetadataOnly}", 1, "Rehome"),
        ("", "labelSelector: a=b", 1, "Rehome"),
        ("", "namespaces: [default, other]", 2, "Rehome"),
        ("namespaces: [default, other]", "namespaces: [default]", 0, "Rehome"),
        ("", 'transform: {entryPoint: "handlers:slim"}', 1, "Rehome"),
        ('transform: {entryPoint: "handlers:slim"}', "", 1, "Rehome"),
        ('transform: {entryPoint: "handlers:slim"}',
         'transform: {entryPoint: "handlers:slim"}, cache: {mode: Objects}', 0, "Reproject"),
        ("", _INDEX, 0, "Add"),
        ("", "resyncPeriod: 1h", 0, "Retime"),
    ],
)  # fmt: skip
def test_what_is_planned_against_what_runs_is_what_happens(
    rig, asked, config_map, before: str, after: str, lists: int, kind: str
) -> None:
    """`plan --against running` names the class and the requests; then the reload makes just those."""
    rig.resources = [_resource(before)]
    rig.handler("tell")
    controller = rig.run(CODE, objects=[config_map(f"m{n}", secret="x") for n in range(5)])
    controller.wait_idle()
    rig.resources = [_resource(after)]
    path = str(rig.write())
    running = controller.runtime.running()
    assert running is not None
    found = compare_plans(check(path), against=read_running_plan(json.loads(json.dumps(running.document()))))
    assert kind in {str(step.kind) for step in found.steps}
    assert (len(found.listed), found.resources[0].objects) == (lists, 5)
    outcome = controller.reload()
    assert (outcome.lists, outcome.watches, tuple(outcome.unplanned)) == (lists, lists, ())
    if before == _DROPS:  # what was dropped is not there until it is listed
        assert "-/+resource maps (transform)" in outcome.line
        assert "secret" in controller.lister("maps").get("default/m1")["data"]
    assert [str(step) for step in outcome.steps] == [str(step) for step in found.steps]
    again = controller.runtime.running()
    assert again is not None
    assert compare_plans(check(path), against=again.plan()).steps == ()


def test_a_request_that_was_not_planned_is_a_visible_fault(rig, asked, sandbox, config_map) -> None:
    """A watch that lives on is begun again while a generation is staged: told, counted, and shown."""
    rig.handler("tell")
    controller = rig.run(CODE, objects=[config_map("m1", color="red")])
    controller.wait_idle()
    watches = asked("configmaps")[1]
    rig.handler("slow", entry="handlers:Slow")
    rig.write(CODE + SLOW)
    with ThreadPoolExecutor() as pool:
        reload = pool.submit(controller.reload)
        until("it is staged", lambda: rig.told("prepare"))
        sandbox.faults.cut_watches("configmaps")
        until("it is watched again", lambda: asked("configmaps")[1] > watches)
        rig.board.open_gate("prepared")
        outcome = reload.result()
    told = "v1 ConfigMap in all namespaces: 1 WATCH instead of 0"
    assert (outcome.result, tuple(outcome.unplanned)) == ("Applied", (told,))
    assert outcome.line.endswith(f"; not as planned: {told}")
    assert outcome.document()["unplanned"] == [told]
    until("the log warns", lambda: told in " ".join(controller.log.events("warning")))
    assert controller.status().reload_plan_mismatches == 1
    assert told in controller.condition("Reloaded").message
    samples = StatusCollector(controller.status, {}).collect()
    assert {
        sample.value
        for family in samples
        for sample in family.samples
        if sample.name == "declctl_reload_plan_mismatches_total"
    } == {1}


@pytest.mark.guarantee("G14")
def test_a_cache_that_lost_objects_while_it_lingered_is_listed_anew(rig, config_map, sandbox) -> None:
    """Its transform imports what is gone with its generation: what comes back has every object."""
    rig.folder.write("helper.py", "def team_of(obj):\n    return obj['data']['team']\n")
    rig.reload_policy += ", informerLinger: 1h"
    rest = [_resource(), _resource('transform: {entryPoint: "handlers:with_helper"}').replace("maps", "seen")]
    rig.resources = list(rest)
    controller = rig.run(CODE + LATE, objects=[config_map("m1", color="red")])
    rig.resources.pop()
    assert rig.reload().lists == 0
    rig.retired()
    lost = next(each for each in controller.runtime.parts.caches.all() if not each.generation_count)
    sandbox.create(config_map("m2", team="blue"))
    until("it could not be transformed", lambda: lost.informer.statistics().projection.failed)
    rig.resources = list(rest)
    assert rig.reload().lists == 1
    found = controller.lister("seen").list()
    assert {view.name: view["data"]["found"] for view in found} == {"m1": "none", "m2": "blue"}
