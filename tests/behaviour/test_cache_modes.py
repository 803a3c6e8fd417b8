"""`cache: {mode: …}`: what stays the same whatever the mode is, and what each is for."""

import pytest

from declctl.sandbox.faults import Match
from declctl.testing import ControllerUnderTest, until

CODE = """
from blackboard import tell as note
def tell(change, ctx):
    old = None if change.old is None else change.old.to_dict()
    note(change.resource, change.type, str(change.key), change.reason, dict(change.obj), old)
def by_team(obj): return [obj["data"]["team"]]
def slim(obj):
    if obj["metadata"]["name"] == "left-out": return None
    obj["data"]["seen"] = "yes"
    return obj
"""
LIKE_EACH_OTHER = """
name: {name}, apiVersion: v1, kind: ConfigMap, resyncPeriod: 1s, cache: {{mode: {mode}}},
transform: {{dropFields: [metadata.managedFields, data.secret], entryPoint: "handlers:slim"}},
indexers: [{{name: byColor, fieldPath: data.color}}, {{name: byNote, fieldPath: metadata.annotations.note}},
           {{name: byTeam, entryPoint: "handlers:by_team"}}]
""".replace("\n", " ")


def _resource(name: str, mode: str, rest: str = "") -> str:
    more = f", {rest}" if rest else ""
    return f"- {{name: {name}, apiVersion: v1, kind: ConfigMap, cache: {{mode: {mode}}}{more}}}"


def _map(name: str, **data: str) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"tier": "web" if name < "m5" else "db"},
            "annotations": {"note": f"of {name}"},
        },
        "data": {"team": "a", "color": "red", "secret": "x", **data},
    }


def _read(controller: ControllerUnderTest, name: str) -> dict:
    """Everything that a lister can be asked for."""
    lister = controller.lister(name)
    return {
        "keys": sorted(map(str, lister.keys())),
        "objects": sorted((view.to_dict() for view in lister.list()), key=str),
        "read": sorted((dict(view) for view in lister.list(selector="tier=web")), key=str),
        "values": {index: sorted(lister.index_values(index)) for index in lister.index_names()},
        "by team": sorted(view["data"]["color"] for view in lister.by_index("byTeam", "b")),
        "by note": [view.name for view in lister.by_index("byNote", "of m1")],
        "one": repr(lister.get("default/m1")),
        "annotations": dict(lister.get("default/m1").annotations),
    }


@pytest.mark.thorough
def test_objects_are_read_told_and_found_as_frames_are(rig, sandbox) -> None:
    """Views, listers, handlers, indexes, transform, dropped fields, resync and a relist: no difference."""
    rig.resources = [
        f"- {{{LIKE_EACH_OTHER.format(name=name, mode=mode)}}}"
        for name, mode in (("framed", "Frames"), ("held", "Objects"))
    ]
    for name in ("framed", "held"):
        rig.handler(name, resource=name, entry="handlers:tell")
    controller = rig.run(CODE, objects=[_map(f"m{n}", team="ab"[n % 2]) for n in range(10)])
    sandbox.create(_map("left-out"))
    sandbox.patch("ConfigMap", "m1", {"data": {"color": "blue", "team": "b"}}, namespace="default")
    controller.wait_idle()
    sandbox.faults.refuse(503, Match(resource="configmaps"))
    sandbox.faults.cut_watches()
    sandbox.delete("ConfigMap", "m2", "default")
    sandbox.patch("ConfigMap", "m3", {"data": {"color": "green"}}, namespace="default")
    sandbox.faults.compact()
    sandbox.faults.clear()
    controller.wait_idle()
    until("both are resynced", lambda: all(rig.told(name, "Resync") for name in ("framed", "held")))
    controller.wait_idle()

    told = {
        name: sorted((row[1:] for row in rig.told(name) if row[1] != "Resync"), key=str)
        for name in ("framed", "held")
    }
    assert told["held"] == told["framed"]
    assert {row[0] for row in told["held"]} == {"Added", "Modified", "Deleted"}
    assert all(row[4] == row[5] for row in rig.told("held", "Resync"))
    assert _read(controller, "held") == _read(controller, "framed")
    assert _read(controller, "held")["objects"][0]["data"] == {"team": "a", "color": "red", "seen": "yes"}
    assert controller.resource("held").relists == controller.resource("framed").relists == 1


def test_what_objects_take_is_counted_as_json(rig) -> None:
    """`bytes` is what the objects are on the wire, less what was dropped; `bufferBytes` counts the same."""
    rig.resources = [_resource("held", "Objects")]
    controller = rig.run(objects=[_map(f"m{n}", text="x" * 1000) for n in range(50)])
    figures = controller.resource("held")
    assert 50 * 1200 < figures.bytes < 50 * 2000


SPOILING = """
from blackboard import tell as note
from declctl.objects.record import record_of
def spoils(change):
    record_of(change.obj).read()["data"]["color"] = "spoilt"  # past the view, which refuses it
def writes(change):
    change.obj["data"]["color"] = "spoilt"
def looks(change):
    note(change.obj["data"]["color"])
"""


@pytest.mark.client_go(108, 324, "MutationDetector", "A handler that edits its object")
def test_with_frames_a_handler_that_changes_what_it_got_changes_nothing(rig) -> None:
    """Each reader has a copy of its own: neither the cache nor another handler sees the change."""
    rig.resources = [_resource("maps", "Frames")]
    rig.handler("spoils")
    rig.handler("looks")
    controller = rig.run(SPOILING, objects=[_map(f"m{n}") for n in range(5)])
    controller.wait_idle()
    assert rig.told() == [("red",)] * 5
    assert {view["data"]["color"] for view in controller.lister("maps").list()} == {"red"}
    assert controller.resource("maps").mutations == 0
    assert controller.mutations == ()


@pytest.mark.client_go(324)
@pytest.mark.parametrize("mode", ["Frames", "Objects"])
def test_a_handler_that_writes_into_an_object_fails_at_that_line(rig, mode) -> None:
    """It is not lost without a word: the log says what to do, and where. A copy may be changed."""
    rig.resources = [_resource("maps", mode)]
    rig.handler("writes", rest="retry: {maxAttempts: 1}")
    rig.handler("looks")
    rig.handler("mine")
    mine = "def mine(change):\n    mine = change.obj.to_dict()\n    mine['data'].clear()\n"
    controller = rig.run(SPOILING + mine, objects=[_map("m1")])
    controller.wait_idle()
    writes = controller.handler("writes")
    assert (writes.failed, writes.succeeded, rig.told()) == (1, 0, [("red",)])
    assert "obj.to_dict() gives a private copy" in str(writes.last_error)
    assert controller.resource("maps").mutations == 0
    assert controller.handler("mine").succeeded == 1
    controller.stop()
    assert controller.mutations == ()


@pytest.mark.client_go(108, 324, "MutationDetector", "Reader options")
def test_with_objects_it_is_found_told_counted_and_put_right(rig, request) -> None:
    """`status` and the log say what was done where; a test of such a handler fails at its end."""
    rig.resources = [_resource("maps", "Objects")]
    rig.handler("spoils", rest="events: [Added]")
    controller = ControllerUnderTest(rig.write(SPOILING), objects=[_map("m1"), _map("m2")])
    request.addfinalizer(controller.stop)
    controller.start()
    until("both are found", lambda: controller.resource("maps").mutations == 2)
    assert controller.resource("maps").document()["lastMutation"] == "ConfigMap default/m2: data.color"
    assert {view["data"]["color"] for view in controller.lister("maps").list()} == {"red"}
    told = 'put right; the last: ConfigMap default/m2: data.color was "red" and became "spoilt".'
    until("the log says so", lambda: told in " ".join(controller.log.events("warning")))
    with pytest.raises(AssertionError, match=r"a handler changed .*:\n  ConfigMap default/m1: data.color"):
        controller.__exit__(None, None, None)
    assert [mutation.key for mutation in controller.mutations] == ["default/m1", "default/m2"]


METADATA = """
from blackboard import tell as note
def tell(change, ctx):
    obj = change.obj
    note(change.type, str(change.key), change.reason, sorted(obj), obj["kind"], obj["apiVersion"],
         obj.annotations.get("note"), repr(obj).split()[0])
    if change.type == "Added": ctx.record_event(obj, "Seen", "it was seen")
"""


def test_metadata_is_all_that_is_asked_for_and_the_kind_is_the_real_one(rig, sandbox) -> None:
    """Handlers, indexes and Events of a cache of metadata; the spec never leaves the server."""
    indexers = "indexers: [{name: byNote, fieldPath: metadata.annotations.note}]"
    rig.resources = [_resource("maps", "MetadataOnly", indexers)]
    rig.handler("tell")
    controller = rig.run(METADATA, objects=[_map("m1", text="x" * 100_000)])
    controller.wait_idle()
    sandbox.patch("ConfigMap", "m1", {"metadata": {"annotations": {"note": "new"}}}, namespace="default")
    controller.wait_idle()
    fields = ["apiVersion", "kind", "metadata"]
    assert rig.told() == [
        ("Added", "default/m1", "Initial", fields, "ConfigMap", "v1", "of m1", "<ConfigMap"),
        ("Modified", "default/m1", "Watch", fields, "ConfigMap", "v1", "new", "<ConfigMap"),
    ]
    assert [view.name for view in controller.lister("maps").by_index("byNote", "new")] == ["m1"]
    assert controller.resource("maps").bytes < 2000
    until("the event is posted", lambda: controller.status().recorded_events.posted == 1)
    about = sandbox.objects("Event")[0]["involvedObject"]
    assert (about["kind"], about["apiVersion"], about["name"]) == ("ConfigMap", "v1", "m1")
