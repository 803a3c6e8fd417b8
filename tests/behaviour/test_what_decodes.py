"""Nothing decodes an object but a reader that looks into it."""

from collections.abc import Callable

import pytest

from declctl.objects import FrameCodec
from declctl.objects.differences import MutationDetector
from declctl.sandbox.faults import Match
from declctl.testing import until

CODE = """
from blackboard import tell as note, wait
def looks(change, ctx):
    maps = ctx.listers["maps"]
    for obj in filter(None, (change.obj, change.old)):
        obj.name, obj.namespace, obj.uid, obj.resource_version, dict(obj.labels)
    if change.type == "Deleted": return
    note(
        change.type,
        len(maps.list(selector="tier in (web),!gone")),
        len(maps.list(selector={"matchLabels": {"tier": "web"}})),
        len(maps.list(namespace="default", selector="tier=web")),
        len(maps.list(namespace="default")),
        len(maps.by_index("byColor", "red")),
        len(maps.by_index("byTier", "web")),
        len(maps.by_index("byName", "m1")),
        len(maps.by_index("byNamespace", "default")),
        sorted(maps.index_values("byColor")),
        len(maps.keys()),
        maps.get("default/m1").labels["tier"],
        "default/m1" in maps,
    )
def slowly(change):
    wait("merged")
    note("slowly", change.type, change.obj.name)
def picky(change): note("picky", change.type)
def reads(change): note("reads", change.obj["data"]["color"], change.obj["kind"])
"""
INDEXERS = """
indexers: [{name: byColor, fieldPath: data.color}, {name: byTier, fieldPath: metadata.labels.tier},
           {name: byName, fieldPath: metadata.name}, {name: byNamespace, fieldPath: metadata.namespace}]
""".replace("\n", " ")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each frame that is decoded, wherever in the process."""
    frames: list[int] = []
    decode: Callable[[FrameCodec, bytes], bytes] = FrameCodec.decode

    def counted(codec: FrameCodec, frame: bytes) -> bytes:
        frames.append(len(frame))
        return decode(codec, frame)

    monkeypatch.setattr(FrameCodec, "decode", counted)
    return frames


def _map(name: str, color: str, tier: str = "web") -> dict:
    metadata = {"name": name, "namespace": "default", "labels": {"tier": tier}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"color": color}}


@pytest.mark.thorough
def test_selectors_indexes_merging_resyncs_and_relists_decode_nothing(rig, sandbox, decoded) -> None:
    """A whole walk: what is told, listed, selected, indexed, merged, replayed and compared stays a frame."""
    rig.resources = [f"- {{name: maps, apiVersion: v1, kind: ConfigMap, resyncPeriod: 1s, {INDEXERS}}}"]
    rig.handler("looks")
    rig.handler("slowly", rest="delivery: Keyed, resyncPeriod: 0s")
    rig.handler("picky", rest="events: [Deleted]")
    controller = rig.run(CODE, objects=[_map("m1", "red"), _map("m2", "blue"), _map("m3", "red", "db")])
    for color in ("green", "red", "blue", "red"):
        sandbox.patch("ConfigMap", "m1", {"data": {"color": color}}, namespace="default")
    sandbox.delete("ConfigMap", "m3", "default")
    until("changes are merged", lambda: controller.handler("slowly").merged >= 3)
    rig.board.open_gate("merged")
    sandbox.faults.refuse(503, Match(resource="configmaps"))
    sandbox.faults.cut_watches()
    sandbox.patch("ConfigMap", "m2", {"data": {"size": "1"}}, namespace="default")
    sandbox.faults.compact()
    sandbox.faults.clear()
    until("there is a relist", lambda: controller.resource("maps").relists)
    rig.board.told.clear()
    until("there is a resync", lambda: rig.told("Resync"))
    controller.wait_idle()
    assert rig.told("Resync")[-1][1:] == (2, 2, 2, 2, 1, 2, 1, 2, ["blue", "red"], 2, "web", True)
    assert controller.handler("picky").delivered == 1
    assert controller.handler("looks").failed == controller.handler("slowly").failed == 0
    assert decoded == []
    whole = [part.source.projection.statistics().decoded_whole for part in _informers(controller)]
    assert whole == [0]


def _informers(controller) -> list:
    return [cached.informer for cached in controller.runtime.parts.caches.all()]


def test_a_reader_decodes_once_what_it_looks_into(rig, decoded, monkeypatch) -> None:
    """Two fields of one view are one decoding; with `mode: Objects` there is none."""
    monkeypatch.setattr(MutationDetector, "look", lambda detector, most: [])  # which decodes on its own
    rig.resources = [
        "- {name: framed, apiVersion: v1, kind: ConfigMap}",
        "- {name: held, apiVersion: v1, kind: ConfigMap, cache: {mode: Objects}}",
    ]
    rig.handler("framed", resource="framed", entry="handlers:reads")
    controller = rig.run(CODE, objects=[_map("m1", "red"), _map("m2", "red")])
    controller.wait_idle()
    assert rig.told() == [("reads", "red", "ConfigMap")] * 2
    assert len(decoded) == 2
    rig.board.clear()
    rig.handler("held", resource="held", entry="handlers:reads")
    rig.write()
    before = len(decoded)
    assert controller.reload().result == "Applied"
    controller.wait_idle()
    assert rig.told() == [("reads", "red", "ConfigMap")] * 2
    assert len(decoded) == before
