"""What `declctl plan --against running` says of an edit is what the reload does then."""

import pytest

from tests.behaviour.conftest import TELLING, planned_against

MAPS = "- {name: maps, apiVersion: v1, kind: ConfigMap%s}"


def _planned(runs, rig):
    [replay] = planned_against(runs, rig.folder.path).replays
    return replay


NARROWER = {  # how a resource or a filter is edited, and how many of the objects are told to be gone
    "labels": (", labelSelector: {matchLabels: {team: red}}", "", 3),
    "names": (", names: [m0, m3, gone]", "", 3),
    "a field": (", fieldSelector: metadata.name=m1", "", 4),
    "another field": (", fieldSelector: metadata.name!=m1", "", 1),
    "a field and labels": (
        ", labelSelector: {matchLabels: {team: red}}, fieldSelector: metadata.name=m1",
        "",
        4,
    ),
    "a filter of labels": ("", "filter: {labelSelector: {matchLabels: {team: red}}}", 3),
    "labels and a filter": (", labelSelector: 'team!=red'", "filter: {labelSelector: 'size!=big'}", 3),
    "no deletes are heard": (", labelSelector: {matchLabels: {team: red}}", "events: [Added]", 0),
    "paths alone": ("", "filter: {changedPaths: [data]}", None),
}


@pytest.mark.parametrize(("selects", "rest", "gone"), NARROWER.values(), ids=NARROWER)
def test_a_plan_counts_what_an_edit_leaves_out(rig, config_map, selects, rest, gone) -> None:
    """Of selectors and of filters: as many objects as are Deleted with the reason OutOfScope then."""
    objects = [config_map(f"m{number}", size=str(number)) for number in range(5)]
    for number, made in enumerate(objects):
        made["metadata"]["labels"] = {
            "team": "red" if number < 2 else "blue",
            "size": "big" if number == 4 else "s",
        }
    rig.resources = [MAPS % ""]
    rig.handler("tell")
    runs = rig.run(TELLING, objects=objects)
    runs.wait_idle()
    rig.board.told.clear()
    rig.resources = [MAPS % selects]
    rig.only(rest=rest)
    rig.write()
    replays = planned_against(runs, rig.folder.path).replays
    assert [(replay.out_of_scope, replay.not_counted) for replay in replays] == (
        [] if gone is None else [(gone, "")]
    )
    if not rest:
        assert str(replays[0]) == f"tell hears what differs in ~5 objects: ~{gone} as Deleted (OutOfScope)"
    assert runs.reload().result == "Applied"
    runs.wait_idle()
    told = [row[3:5] for row in rig.told("told") if row[3] == "Deleted"]
    assert told == [("Deleted", "OutOfScope")] * (gone or 0)
    if not rest:  # nothing leaves a wider scope
        rig.resources = [MAPS % ""]
        rig.write()
        assert _planned(runs, rig).out_of_scope == 0
    if (
        "filter: {labelSelector" in rest and not selects
    ):  # what the handler never heard of is not told to be gone
        rig.resources = [MAPS % ", names: [m0]"]
        rig.write()
        assert _planned(runs, rig).out_of_scope == 1


UNKNOWN = {
    "a function": (
        "",
        "",
        "filter: {entryPoint: 'handlers:passes'}",
        "only a reload calls handlers:passes, with each object",
    ),
    "a field that is dropped": (
        ", transform: {dropFields: [data]}",
        ", transform: {dropFields: [data]}, fieldSelector: data.size=1",
        "",
        "data.size is not in the cache",
    ),
    "a field that is not asked for": (
        ", cache: {mode: MetadataOnly}",
        ", cache: {mode: MetadataOnly}, fieldSelector: data.size=1",
        "",
        "data.size is not in the cache",
    ),
}


@pytest.mark.parametrize(("before", "after", "rest", "why"), UNKNOWN.values(), ids=UNKNOWN)
def test_a_plan_says_what_it_can_not_count(rig, config_map, before, after, rest, why) -> None:
    """A function is asked at the reload, and the API server knows what is not cached: there is no number."""
    rig.resources = [MAPS % before]
    rig.handler("tell")
    code = f"{TELLING}\ndef passes(obj): return obj.name == 'm0'\n"
    runs = rig.run(code, objects=[config_map("m0"), config_map("m1")])
    rig.resources = [MAPS % after]
    rig.only(rest=rest)
    rig.write()
    replay = _planned(runs, rig)
    assert replay.out_of_scope is None
    assert f"as Deleted (OutOfScope) is not counted: {why}" in str(replay)
    assert (replay.not_counted or "").startswith(why)
    if rest:  # other code of the filter is asked of each object, too, though the manifest is the same
        assert runs.reload().result == "Applied"
        assert planned_against(runs, rig.folder.path).replays == ()
        rig.write(code.replace("m0", "m1"))
        replay = _planned(runs, rig)
        assert (replay.handler, replay.only_differences, replay.out_of_scope) == ("tell", True, None)


def test_a_plan_knows_the_namespaces_that_the_process_follows(rig, config_map, sandbox) -> None:
    """It counts what leaves with a narrower scope, and the LISTs; or it says why it can not."""
    for name, team in (("a", "web"), ("b", "web"), ("c", "api")):
        labels = {"team": team}
        sandbox.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        )
    objects = [config_map("m", name) for name in "abc"]
    both = ", namespaces: {labelSelector: 'team in (web,api)'}"
    rig.resources = [MAPS % both, (MAPS % ", namespaces: {labelSelector: team=web}").replace("maps", "webs")]
    rig.handler("tell")
    runs = rig.run(TELLING, objects=objects)
    runs.wait_idle()

    rig.resources[0] = MAPS % f"{both}, fieldSelector: metadata.name!=x"
    rig.write()
    found = planned_against(runs, rig.folder.path)
    assert found.requests == 3
    [maps, webs] = found.resources
    assert (maps.namespaces, webs.namespaces) == (("a", "b", "c"), ("a", "b"))
    assert maps.document()["namespaceSelector"] == "team in (api,web)"

    # The process follows the other selector, too: so the count is that of the reload.
    rig.resources[0] = MAPS % ", namespaces: {labelSelector: team=web}"
    rig.write()
    replay = _planned(runs, rig)
    assert str(replay) == "tell hears what differs in ~3 objects: ~1 as Deleted (OutOfScope)"
    rig.board.told.clear()
    assert runs.reload().result == "Applied"
    runs.wait_idle()
    assert [row[2:5] for row in rig.told("told")] == [("c/m", "Deleted", "OutOfScope")]

    rig.resources[0] = MAPS % ", namespaces: {labelSelector: team=other}"
    rig.write()
    found = planned_against(runs, rig.folder.path)
    assert found.replays[0].not_counted == "only the cluster knows which namespaces have team=other"
    assert (found.requests, found.resources[0].namespaces) == (1, None)


@pytest.mark.parametrize(
    ("before", "after"), [("", "sharding: {slots: 4}"), ("sharding: {slots: 4, namespace: default}", "")]
)
def test_a_reload_never_changes_whether_a_process_shares(rig, config_map, before, after) -> None:
    """One that begins to handle all objects beside others would be a surprise: it takes a new process."""
    rig.handler("tell")
    rig.more = f"  {before}\n" if before else ""
    runs = rig.run(TELLING, objects=[config_map("m")])
    rig.more = f"  {after}\n" if after else ""
    rig.write()
    planned = planned_against(runs, rig.folder.path)
    assert [str(step) for step in planned.steps] == ["!sharding"]
    outcome = runs.reload()
    assert ([str(step) for step in outcome.steps], outcome.lists) == (["!sharding"], 0)
    shares = {each.sharded for each in runs.runtime.running().plan().plan.resources}
    assert shares == {bool(before)}
    # It waits for a new process still, and the text before undoes it.
    assert [str(step) for step in planned_against(runs, rig.folder.path).steps] == ["!sharding"]
    rig.more = f"  {before}\n" if before else ""
    rig.write()
    assert planned_against(runs, rig.folder.path).restart_required == ()


def test_an_edit_that_needs_what_is_in_other_slots_is_refused(rig) -> None:
    """The server alone knows that a kind has no namespaces: the generation that runs goes on."""
    rig.resources.append("- {name: nodes, apiVersion: v1, kind: Node}")
    rig.more = "  sharding: {slots: 4, namespace: default}\n"
    rig.handler("tell")
    runs = rig.run(TELLING)
    rig.only(rest="includeSnapshotsFrom: [nodes]")
    rig.write()
    refused = runs.reload()
    assert (refused.result, refused.diagnostics[0].code) == ("Refused", "DCL017")
    assert "write sharded: false for nodes" in refused.diagnostics[0].suggestion
