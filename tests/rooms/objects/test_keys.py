"""Keys: how objects are named in messages and looked up."""

from types import SimpleNamespace

import pytest

from declctl.errors import NoKey
from declctl.objects import GroupVersionKind, ObjectKey, ObjectView, Resource, key_of, meta_namespace_key
from tests.rooms.objects.made_objects import pod, record


@pytest.mark.client_go("Key functions")
@pytest.mark.parametrize(
    ("namespace", "name", "text"), [("team-a", "web", "team-a/web"), ("", "n1", "n1"), (None, "n1", "n1")]
)
def test_key_prints_as_kubectl_names_it(namespace, name, text):
    """A namespaced object is `namespace/name`, a cluster-scoped one `name`."""
    key = ObjectKey.of(namespace, name)
    assert (str(key), key.namespace, key.name) == (text, namespace or None, name)
    assert key == key_of(namespace, name) == ObjectKey.parse(text)
    assert {text: "found"}[key] == "found"


@pytest.mark.client_go("Key functions")
@pytest.mark.parametrize("text", ["", "/", "a/", "/b", "a/b/c"])
def test_nonsense_is_no_key(text):
    """A mistyped key is refused with a sentence that shows the two forms."""
    with pytest.raises(ValueError, match="a key is namespace/name, or name"):
        ObjectKey.parse(text)


@pytest.mark.client_go("Key functions")
@pytest.mark.parametrize(
    ("obj", "key"),
    [
        (pod(), "team-a/web-1"),
        ({"metadata": {"name": "n1"}}, "n1"),
        ({"metadata": {"name": "n1", "namespace": ""}}, "n1"),
        (SimpleNamespace(metadata=SimpleNamespace(name="a", namespace="b")), "b/a"),
        (SimpleNamespace(metadata=SimpleNamespace(name="a")), "a"),
        (record(pod()), "team-a/web-1"),
        (ObjectView(record(pod())), "team-a/web-1"),
        (SimpleNamespace(key=ObjectKey("team-a/gone"), obj=None), "team-a/gone"),
        ("team-a/web", "team-a/web"),
    ],
    ids=[
        "dict",
        "cluster",
        "empty namespace",
        "model",
        "bare model",
        "record",
        "view",
        "missed delete",
        "key",
    ],
)
def test_whatever_names_an_object_has_its_key(obj, key):
    """What an API client gave, what a handler was told, and a key that one has already."""
    found = meta_namespace_key(obj)
    assert found == key
    assert isinstance(found, ObjectKey)


@pytest.mark.client_go(91, "Key functions")
@pytest.mark.parametrize(
    ("obj", "cause"),
    [
        ({}, KeyError),
        ({"metadata": {}}, KeyError),
        ({"metadata": None}, AttributeError),
        ({"metadata": {"name": ""}}, ValueError),
        ({"metadata": {"name": 7}}, ValueError),
        ({"metadata": {"name": "a", "namespace": 7}}, ValueError),
        (None, AttributeError),
        ("", AttributeError),
        (object(), AttributeError),
    ],
)
def test_what_has_no_key_is_told_with_what_it_is_and_why(obj, cause):
    """The error has the object and the fault behind it."""
    with pytest.raises(NoKey, match="has no key: ") as caught:
        meta_namespace_key(obj)
    assert caught.value.obj is obj
    assert isinstance(caught.value.__cause__, cause)


def test_kind_prints_and_parses_its_api_version():
    """Core kinds have no group, others do."""
    assert str(GroupVersionKind.of("v1", "Pod")) == "v1 Pod"
    assert GroupVersionKind.of("apps/v1", "Deployment") == GroupVersionKind("apps", "v1", "Deployment")
    assert GroupVersionKind("apps", "v1", "Deployment").api_version == "apps/v1"


def test_urls_are_those_of_the_api_server():
    """Core kinds are under /api, others under /apis; the namespace counts for namespaced kinds only."""
    pods = Resource(GroupVersionKind.of("v1", "Pod"), "pods", namespaced=True)
    roles = Resource(
        GroupVersionKind.of("rbac.authorization.k8s.io/v1", "ClusterRole"), "clusterroles", namespaced=False
    )
    assert pods.path() == "/api/v1/pods"
    assert pods.path("team-a", "web") == "/api/v1/namespaces/team-a/pods/web"
    assert (
        roles.path("ignored", "system:node/x")
        == "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode%2Fx"
    )
    assert (str(pods), str(roles)) == ("pods", "clusterroles.rbac.authorization.k8s.io")
