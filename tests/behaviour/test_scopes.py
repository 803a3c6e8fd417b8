"""What a resource of the manifest caches: by its namespaces, its selectors and its transform."""

import pytest

HANDLERS = """
def mark(obj):
    obj["metadata"].setdefault("annotations", {})["marked"] = obj["metadata"]["labels"]["app"]
    return obj
"""
SCOPES = {  # by resource: its fields, and the objects that it caches
    "inherited": ("", ["a/db", "a/web"]),
    "everywhere": ("namespaces: ['*']", ["a/db", "a/web", "b/db", "b/web", "c/web"]),
    "other": ("namespaces: [b]", ["b/db", "b/web"]),
    "two": ("namespaces: [b, c]", ["b/db", "b/web", "c/web"]),
    "empty": ("namespaces: [d]", []),
    "labels": ("labelSelector: {matchLabels: {app: web}}", ["a/web"]),
    "labels-in-two": ("labelSelector: 'app in (web)', namespaces: [b, c]", ["b/web", "c/web"]),
    "labels-everywhere": ("labelSelector: 'app!=web', namespaces: ['*']", ["a/db", "b/db"]),
    "field": ("fieldSelector: metadata.name=db", ["a/db"]),
    "field-in-other": ("fieldSelector: metadata.name!=db, namespaces: [b]", ["b/web"]),
    "both": ("labelSelector: app=web, fieldSelector: metadata.name=db, namespaces: ['*']", []),
    "both-everywhere": (
        "labelSelector: app=web, fieldSelector: metadata.namespace!=b, namespaces: ['*']",
        ["a/web", "c/web"],
    ),
    "names": ("names: [web], namespaces: [a, c]", ["a/web", "c/web"]),
    "by-label": ("namespaces: {labelSelector: {matchLabels: {team: red}}}", ["b/db", "b/web", "c/web"]),
    "by-both-labels": ("namespaces: {labelSelector: team=red}, labelSelector: app=web", ["b/web", "c/web"]),
}


def space(name: str, team: str) -> dict:
    """A namespace of a team."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": team}}}


def resource(name: str, fields: str, kind: str = "ConfigMap") -> str:
    """A resource of the manifest."""
    return f"- {{name: {name}, apiVersion: v1, kind: {kind}{fields and ', '}{fields}}}"


@pytest.fixture
def objects(config_map):
    """Applications in three namespaces, of which two are those of one team."""
    found = []
    for key in ("a/web", "a/db", "b/web", "b/db", "c/web"):
        namespace, name = key.split("/")
        found.append(config_map(name, namespace))
        found[-1]["metadata"]["labels"] = {"app": name}
        found[-1]["metadata"]["managedFields"] = [{"manager": "kubectl", "operation": "Update"}]
    return [space("a", "blue"), space("b", "red"), space("c", "red"), *found]


def keys(runs, name: str) -> list[str]:
    """The keys that a resource caches."""
    return sorted(map(str, runs.lister(name).keys()))


@pytest.mark.client_go(326, 329, "ByObject")
def test_each_resource_has_the_scope_that_it_names(rig, objects, sandbox) -> None:
    """Its own namespaces go before those of the spec, and every selector narrows them; new objects, too."""
    rig.resources = [resource(name, fields) for name, (fields, _) in SCOPES.items()]
    rig.more = "  namespaces: [a]\n"
    runs = rig.run(HANDLERS)
    for obj in objects:
        sandbox.create(obj)
    runs.wait_idle()
    assert {name: keys(runs, name) for name in SCOPES} == {name: found for name, (_, found) in SCOPES.items()}
    for name, (fields, _) in SCOPES.items():
        assert "managedFields" not in str(list(runs.lister(name).list())), fields


@pytest.mark.client_go(331, 332, "TransformStripManagedFields", "ByObject")
@pytest.mark.parametrize("kept", ["", "cache: {mode: Objects}, ", "cache: {mode: MetadataOnly}, "])
def test_a_transform_is_that_of_its_resource_however_objects_are_kept(kept, rig, objects) -> None:
    """A resource without one has the default, which drops managed fields; an empty list keeps these."""
    own = "transform: {entryPoint: 'handlers:mark'}"
    rig.resources = [
        resource("plain", kept.removesuffix(", ")),
        resource("marked", f"{kept}{own}"),
        resource("whole", f"{kept}transform: {{dropFields: []}}"),
    ]
    runs = rig.run(HANDLERS, objects=objects)
    found = {name: runs.lister(name).get("b/web") for name in ("plain", "marked", "whole")}
    assert {name: obj.annotations.get("marked") for name, obj in found.items()} == {
        "plain": None,
        "marked": "web",
        "whole": None,
    }
    has_managers = {name: "managedFields" in obj["metadata"] for name, obj in found.items()}
    assert has_managers == {"plain": False, "marked": False, "whole": True}


@pytest.mark.client_go(331)
def test_an_object_of_a_kind_without_managed_fields_is_cached_as_it_is(rig, objects) -> None:
    """What the default drops need not be there."""
    rig.resources = [resource("spaces", "", "Namespace")]
    runs = rig.run("", objects=objects)
    assert [obj.labels["team"] for obj in map(runs.lister("spaces").get, "abc")] == ["blue", "red", "red"]
