"""Namespaces by label: they come and go while a controller runs, and its handlers hear of their objects."""

from typing import Any

import pytest

CODE = """
from blackboard import tell as note
def tell(change): note("tell", str(change.type), str(change.key), str(change.reason))
"""
MAPS = (
    "- {name: maps, apiVersion: v1, kind: ConfigMap, namespaces: {labelSelector: {matchLabels: {team: web}}}}"
)


def space(name: str, team: str = "web") -> dict[str, Any]:
    """A namespace with a label."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": team}}}


def relabel(sandbox: Any, name: str, team: str | None) -> None:
    """Give a namespace another label, or take it away."""
    sandbox.patch("Namespace", name, {"metadata": {"labels": {"team": team}}})


@pytest.fixture
def selecting(rig, config_map):
    """A handler of ConfigMaps in the namespaces with team=web."""
    rig.resources = [MAPS]
    rig.handler("tell")
    return rig


def test_namespaces_come_and_go(selecting, sandbox, config_map) -> None:
    """Handlers hear of the objects of a namespace when it comes in, and that they left when it leaves."""
    objects = [space("a"), space("b", "api"), config_map("one", "a"), config_map("two", "b")]
    runs = selecting.run(CODE, objects=objects)
    runs.wait_idle()
    assert selecting.told() == [("tell", "Added", "a/one", "Initial")]
    relabel(sandbox, "b", "web")
    runs.wait_idle()
    assert selecting.told()[1:] == [("tell", "Added", "b/two", "Initial")]
    relabel(sandbox, "a", None)
    runs.wait_idle()
    assert selecting.told()[2:] == [("tell", "Deleted", "a/one", "OutOfScope")]
    sandbox.create(config_map("unseen", "a"))
    runs.wait_idle()
    assert len(selecting.told()) == 3
    assert runs.lister("maps").keys() == ["b/two"]
    assert runs.status().generation == 1
