"""Deleting: at once, with finalizers, gracefully, and with everything inside."""

import pytest

from declctl.errors import SandboxError
from declctl.sandbox.remover import Deletion, Target
from declctl.sandbox.status import Refusal
from tests.rooms.sandbox.shapes import config_map, definition, pod, store, widget


def recorded(cluster):
    """The changes from now on, as (type, plural, name)."""
    seen = []
    cluster.history.subscribe(
        lambda resource, change: seen.append((change.type, resource[1], change.new.name))
    )
    return seen


def test_a_finalizer_holds_an_object(cluster):
    """With finalizers it is marked, once; it goes with the last of them, without another MODIFIED."""
    cluster.create(pod("a", finalizers=["example.com/x"]))
    seen = recorded(cluster)
    marked = cluster.delete("Pod", "a")
    assert marked["metadata"]["deletionTimestamp"]
    assert cluster.delete("Pod", "a") == marked
    assert cluster.get("Pod", "a")["metadata"]["finalizers"]
    cluster.patch("Pod", "a", {"metadata": {"finalizers": None}})
    assert seen == [("MODIFIED", "pods", "a"), ("DELETED", "pods", "a")]


def test_a_pod_on_a_node_ends_gracefully(cluster):
    """Its watchers see it Terminating, then gone; with a grace of 0, or on no node, it goes in one step."""
    cluster.load([config_map("plain"), pod("waiting"), pod("running", node="n"), pod("forced", node="n")])
    seen = recorded(cluster)
    cluster.delete("ConfigMap", "plain")
    cluster.delete("Pod", "waiting")
    cluster.delete("Pod", "running")
    cluster.remover.delete(Target(cluster.kind("Pod"), "default", "forced"), Deletion(grace=0))
    assert seen == [
        ("DELETED", "configmaps", "plain"),
        ("DELETED", "pods", "waiting"),
        ("MODIFIED", "pods", "running"),
        ("DELETED", "pods", "running"),
        ("DELETED", "pods", "forced"),
    ]


def test_a_namespace_takes_its_objects_along(cluster):
    """First it is Terminating, then its objects go, then the namespace."""
    cluster.load([pod("a", "team"), config_map("b", "team"), config_map("other")])
    seen = recorded(cluster)
    cluster.delete("Namespace", "team")
    assert seen == [
        ("MODIFIED", "namespaces", "team"),
        ("DELETED", "configmaps", "b"),
        ("DELETED", "pods", "a"),
        ("DELETED", "namespaces", "team"),
    ]
    assert [obj["metadata"]["name"] for obj in cluster.objects("ConfigMap")] == ["other"]


def test_an_object_with_a_finalizer_holds_its_namespace(cluster):
    """The namespace stays Terminating, takes nothing new in, and goes with its last object."""
    cluster.load([pod("a", "team", finalizers=["example.com/x"])])
    cluster.delete("Namespace", "team")
    assert cluster.get("Namespace", "team")["status"]["phase"] == "Terminating"
    with pytest.raises(SandboxError, match="because it is being terminated"):
        cluster.create(config_map("b", "team"))
    cluster.patch("Pod", "a", {"metadata": {"finalizers": None}}, namespace="team")
    assert "team" not in [obj["metadata"]["name"] for obj in cluster.objects("Namespace")]


@pytest.mark.client_go(341, "envtest")
def test_a_definition_takes_its_kind_along(cluster):
    """Deleting a definition deletes its objects and unserves the kind; making it again starts empty."""
    cluster.load([definition(), widget("one")])
    seen = recorded(cluster)
    cluster.delete("crd", "widgets.example.com")
    assert [entry for entry in seen if entry[0] == "DELETED"] == [
        ("DELETED", "widgets", "one"),
        ("DELETED", "customresourcedefinitions", "widgets.example.com"),
    ]
    with pytest.raises(SandboxError, match="serves no kind"):
        cluster.objects("Widget")
    cluster.create(definition())
    assert cluster.objects("Widget") == []


@pytest.mark.parametrize("deletion", [Deletion(uid="another"), Deletion(version="1")])
def test_preconditions_protect(cluster, deletion):
    """A delete that is meant for another uid or version is refused with 409, and nothing is deleted."""
    cluster.create(config_map("a"))
    with pytest.raises(Refusal) as refused:
        cluster.remover.delete(Target(cluster.kind("cm"), "default", "a"), deletion)
    assert refused.value.code == 409
    assert cluster.get("ConfigMap", "a")


def test_a_dry_run_deletes_nothing(cluster):
    cluster.create(config_map("a"))
    cluster.remover.delete(Target(cluster.kind("cm"), "default", "a"), Deletion(dry_run=True))
    assert cluster.get("ConfigMap", "a")


def test_what_is_not_there_is_not_found():
    with pytest.raises(SandboxError, match='pods "nope" not found'):
        store().delete("Pod", "nope")
