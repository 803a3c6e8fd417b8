"""Filters of a whole controller: what its handlers hear of a cluster, and of a changed filter (G16)."""

import pytest

TELL = """
from blackboard import tell as note

def tell(change, obj):
    note(str(change.type), obj.name, str(change.reason))

def big(obj):
    return int(obj["data"]["size"]) >= {size}
"""


def _labelled(config_map, name, app, **data):
    obj = config_map(name, **data)
    obj["metadata"]["labels"] = {"app": app}
    return obj


def _label(controller, name, app) -> None:
    controller.sandbox.patch("ConfigMap", name, {"metadata": {"labels": {"app": app}}})
    controller.wait_idle()


def test_a_filter_that_never_returns_refuses_the_reload(rig, config_map) -> None:
    """It is asked in a thread, for `warmTimeout` at most; the machinery goes on meanwhile."""
    rig.reload_policy += ", warmTimeout: 3s"
    rig.handler("tell", rest='filter: {entryPoint: "handlers:big"}')
    controller = rig.run(TELL.format(size=2), objects=[config_map("m", size="5")])
    controller.wait_idle()
    stuck = TELL.format(size=2) + "\nimport threading\ndef big(obj): threading.Event().wait(30)\n"
    rig.folder.write("handlers.py", stuck)
    outcome = controller.reload()
    assert (outcome.result, outcome.reason) == ("Refused", "FilterTimeout")
    assert len(rig.told()) == 1


@pytest.mark.guarantee("G16")
def test_a_changed_filter_tells_who_enters_and_who_leaves(rig, config_map, asked) -> None:
    """Added and Deleted with OutOfScope for those; nothing for others, and nothing is asked of the server.

    More dropped fields come before: the handler listens to one cache all the while.
    """
    rig.handler("tell", rest="filter: {labelSelector: 'app in (web,db)'}")
    objects = [_labelled(config_map, app, app) for app in ("api", "db", "web")]
    controller = rig.run(TELL.format(size=0), objects=objects)
    controller.wait_idle()
    before = asked()
    dropping = "ConfigMap, transform: {dropFields: [metadata.managedFields, metadata.annotations]}}"
    rig.resources = [rig.resources[0].replace("ConfigMap}", dropping)]
    rig.apply()
    rig.board.clear()
    rig.folder.write("manifest.yaml", rig.manifest().replace("app in (web,db)", "app in (api,db)"))
    outcome = controller.reload()
    controller.wait_idle()
    assert (outcome.result, [str(step) for step in outcome.steps]) == ("Applied", ["~handler tell (filter)"])
    assert sorted(rig.told()) == [("Added", "api", "Initial"), ("Deleted", "web", "OutOfScope")]
    _label(controller, "api", "db")
    assert rig.told()[2:] == [("Modified", "api", "Watch")]
    assert asked() == before


_LABEL = "metadata.labels[app.kubernetes.io/name]"


def test_label_paths_are_taken_as_the_manual_writes_them(rig, config_map) -> None:
    """A label's key in brackets without quotes: as an index, in `changedPaths` and in `dropFields`."""
    index = f'indexers: [{{name: byApp, fieldPath: "{_LABEL}"}}]'
    dropped = 'transform: {dropFields: ["metadata.annotations[example.com/huge]"]}'
    rig.resources = [f"- {{name: maps, apiVersion: v1, kind: ConfigMap, {index}, {dropped}}}"]
    rig.handler("tell", rest=f'filter: {{changedPaths: ["{_LABEL}"]}}')
    labelled = config_map("a")
    labelled["metadata"] |= {
        "labels": {"app.kubernetes.io/name": "web"},
        "annotations": {"example.com/huge": "x", "kept": "y"},
    }
    controller = rig.run(
        "from blackboard import tell as note\ndef tell(change): note(str(change.type))\n", objects=[labelled]
    )
    controller.wait_idle()
    (found,) = controller.lister("maps").by_index("byApp", "web")
    assert dict(found["metadata"]["annotations"]) == {"kept": "y"}
    controller.sandbox.patch("ConfigMap", "a", {"data": {"no": "matter"}})
    controller.sandbox.patch("ConfigMap", "a", {"metadata": {"labels": {"app.kubernetes.io/name": "api"}}})
    controller.wait_idle()
    assert rig.told() == [("Added",), ("Modified",)]
    assert list(controller.lister("maps").index_values("byApp")) == ["api"]


_SIZE = 'filter: {expression: "int(obj.data.size) >= 2"}'


def test_an_edit_of_an_expression_about_changes_delivers_nothing(rig, config_map) -> None:
    """It judges the changes from the commit on."""
    rig.handler("tell", rest="filter: {expression: \"change.type == 'Added'\"}")
    controller = rig.run(TELL.format(size=0), objects=[config_map("m", size="1")])
    controller.wait_idle()
    rig.folder.write("manifest.yaml", rig.manifest().replace("'Added'", "'Modified'"))
    assert controller.reload().result == "Applied"
    controller.wait_idle()
    assert rig.told() == [("Added", "m", "Initial")]
    controller.sandbox.patch("ConfigMap", "m", {"data": {"size": "2"}})
    controller.wait_idle()
    assert rig.told()[1:] == [("Modified", "m", "Watch")]


def test_an_expression_that_fails_on_cached_objects_counts_as_false_at_a_reload(rig, config_map) -> None:
    """Unlike a function that raises: missing fields are usual. It is counted and logged."""
    rig.handler("tell", rest=_SIZE)
    controller = rig.run(TELL.format(size=0), objects=[config_map("m", size="5")])
    controller.wait_idle()
    rig.folder.write("manifest.yaml", rig.manifest().replace("data.size", "data.weight"))
    assert controller.reload().result == "Applied"
    controller.wait_idle()
    assert rig.told()[1:] == [("Deleted", "m", "OutOfScope")]
    assert controller.handler("tell").expression_errors == 1
    (said,) = [line.event for line in controller.log.lines if "filter.expression" in line.event]
    assert "tell: filter.expression failed on default/m, which counts as false" in said
    assert 'Key not found in map: "weight"' in said
