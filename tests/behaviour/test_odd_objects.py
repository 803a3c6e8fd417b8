"""Objects that are not what their kind says: in the cache, in the index, told to handlers, and counted."""

import asyncio
import json
from typing import Any

import pytest

from declctl.admin import serve
from declctl.cli.report import print_status
from declctl.manifest.values import Address
from declctl.testing import ControllerUnderTest, until
from tests.rooms.admin.conftest import request

MAPS = """
- name: maps
  apiVersion: v1
  kind: ConfigMap
  indexers: [{name: byTeam, fieldPath: data.team}, {name: byImage, fieldPath: "data.parts[*].image"}]
""".strip().splitlines()
CODE = """
from blackboard import tell as note
def tell(change): note(change.type, change.obj.name, change.obj["data"]["parts"])
def picky(obj):
    if obj["metadata"]["name"] == "unwanted": return None
    obj["data"]["parts"][0]["image"] += ":latest"
    return obj
"""
GOOD = [{"image": "nginx"}]


def _map(name: str, team: Any, parts: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"team": team, "parts": parts},
    }


def _named(controller: ControllerUnderTest, index: str, value: str) -> list[str]:
    return sorted(view.name for view in controller.lister("maps").by_index(index, value))


def _asked(controller: ControllerUnderTest) -> tuple[dict[str, Any], dict[str, float]]:
    """What `declctl status -o json` prints, and the samples of a scrape: over HTTP."""

    async def scenario() -> tuple[dict[str, Any], str]:
        async with serve(controller.runtime, Address("127.0.0.1", 0)) as bound:
            return (await request(bound, "/status")).json, (await request(bound, "/metrics")).text

    status, scraped = asyncio.run(scenario())
    lines = [line.rpartition(" ") for line in scraped.splitlines() if not line.startswith("#")]
    return status, {sample: float(value) for sample, _, value in lines}


@pytest.mark.client_go("An object that fails typed validation")
def test_an_object_with_a_number_for_a_string_is_cached_indexed_delivered_and_counted(rig, sandbox, capsys):
    """One is listed and one is watched; each is found by what it has, and a user sees both counted."""
    rig.resources = MAPS
    rig.handler("tell", resource="maps")
    controller = rig.run(CODE, objects=[_map("good", "a", GOOD), _map("listed", "a", 7)])
    sandbox.create(_map("watched", 7, [{"image": "nginx"}, 7]))
    controller.wait_idle()

    assert sorted(rig.told("Added")) == [
        ("Added", "good", GOOD),
        ("Added", "listed", 7),
        ("Added", "watched", [{"image": "nginx"}, 7]),
    ]
    assert controller.lister("maps").get("default/listed")["data"] == {"team": "a", "parts": 7}
    assert (_named(controller, "byTeam", "a"), _named(controller, "byTeam", "7")) == (
        ["good", "listed"],
        ["watched"],
    )
    assert _named(controller, "byImage", "nginx") == ["good", "watched"]

    status, samples = _asked(controller)
    (maps,) = status["resources"]
    assert {name: maps["decoding"][name] for name in ("objects", "projected", "whole", "unexpected")} == {
        "objects": 3,
        "projected": 1,
        "whole": 2,
        "unexpected": 2,
    }
    assert maps["informers"][0]["projection"]["decodedWhole"] == 2
    assert samples['declctl_decoded_objects_total{how="whole",resource="maps"}'] == 2
    assert samples['declctl_decoded_objects_total{how="projected",resource="maps"}'] == 1
    assert samples['declctl_frame_ratio{resource="maps"}'] > 0
    assert (maps["error"], maps["skipped"], maps["relists"]) == (None, 0, 0)

    print_status(status, now=controller.condition("Ready").last_transition_time)
    assert "Watching, 2 fully decoded" in capsys.readouterr().out


def test_a_transform_that_fails_is_counted_and_told_with_its_last_fault(rig, sandbox, capsys):
    """What it drops is its business; what it fails on is missing from the cache, and a user sees why."""
    rig.resources = [*MAPS, '  transform: {entryPoint: "handlers:picky"}']
    objects = [_map("good", "a", GOOD), _map("unwanted", "a", GOOD), _map("odd", "a", 7)]
    controller = rig.run(CODE, objects=objects)
    assert [*map(str, controller.lister("maps").keys())] == ["default/good"]

    status, samples = _asked(controller)
    (maps,) = status["resources"]
    decoding = maps["decoding"]
    assert (decoding["whole"], decoding["unexpected"]) == (3, 0), "a transform reads whole objects"
    assert (decoding["dropped"], decoding["failed"]) == (1, 1)
    assert "TypeError on odd" in decoding["lastFault"]
    assert samples['declctl_transform_left_out_total{resource="maps",result="failed"}'] == 1
    assert samples['declctl_transform_left_out_total{resource="maps",result="dropped"}'] == 1
    assert json.loads(json.dumps(status)) == status

    print_status(status, now=controller.condition("Ready").last_transition_time)
    shown = capsys.readouterr().out
    assert "1 failed in the transform (the last: the transform raised TypeError on odd" in shown
    assert "fully decoded" not in shown
    told = "maps: 1 object was left out of the cache; the last: the transform raised TypeError on odd"
    until("the log says so", lambda: told in " ".join(controller.log.events("warning")))


def test_what_was_decoded_goes_on_to_be_counted_when_a_reload_brings_another_index(rig, sandbox):
    """The decoder is another one, the informer is the same: no counter goes back."""
    rig.resources = MAPS
    controller = rig.run(CODE, objects=[_map("good", "a", GOOD), _map("odd", "a", 7)])
    before = controller.resource("maps").decoding
    assert (before.objects, before.whole) == (2, 1)
    rig.resources = [
        line.replace("indexers: [", "indexers: [{name: byUid, fieldPath: metadata.uid}, ") for line in MAPS
    ]
    rig.apply()
    sandbox.create(_map("new", "a", GOOD))
    controller.wait_idle()
    after = controller.resource("maps").decoding
    assert (after.objects, after.whole) == (3, 1)
    assert controller.resource("maps").lists == 1
