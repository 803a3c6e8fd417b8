"""Kinds, as a server serves them."""

import asyncio

import pytest

from declctl.errors import ApiError, GroupUnavailable, NotFound, ServerError, UsageError
from declctl.objects import GroupVersionKind
from declctl.transport.discovery import Discovery, ResourceName

POD = GroupVersionKind.of("v1", "Pod")


class Server:
    """Answers discovery, and remembers what it was asked."""

    def __init__(self, **groups):
        self.groups = groups
        self.asked = []

    async def get(self, path):
        self.asked.append(path)
        if path not in self.groups:
            raise NotFound(404, "NotFound", "404 page not found")
        if "broken" in path:
            raise ApiError("503")
        if isinstance(self.groups[path], ApiError):
            raise self.groups[path]
        return self.groups[path]


def found(server, gvk):
    return asyncio.run(Discovery(server.get, server="https://one").find(gvk))


def test_a_kind_is_found_with_its_plural_scope_and_verbs(core):
    """A manifest names a kind, the server the URL; a subresource of the same kind does not mislead it."""
    pods = found(Server(**{"/api/v1": core}), POD)
    assert (pods.plural, pods.namespaced, pods.verbs) == ("pods", True, {"list", "watch", "get"})
    assert not found(Server(**{"/api/v1": core}), GroupVersionKind.of("v1", "Node")).namespaced


def test_a_kind_has_its_own_subresources_only(core):
    """A write of a status is refused if the kind has none; that of another kind does not count."""
    served = {"/api/v1": {"resources": [*core["resources"], {"name": "nodes/status", "kind": "Node"}]}}
    pods, nodes = (
        found(Server(**served), GroupVersionKind.of("v1", kind)).subresources for kind in ("Pod", "Node")
    )
    assert (pods, nodes) == ({"log"}, {"status"})


@pytest.mark.parametrize("server_answers", [True, False])
def test_a_group_that_does_not_answer_is_told_from_a_server_that_does_not(server_answers):
    """A metrics API without a backend is no outage: other watches go on, and nothing waits for it."""
    away = ServerError(503, "ServiceUnavailable", "service unavailable")
    server = Server(**{"/apis/ex.io/v1": away, "/version": {} if server_answers else away})
    with pytest.raises(ServerError, match="service unavailable") as raised:
        found(server, GroupVersionKind.of("ex.io/v1", "Foo"))
    assert isinstance(raised.value, GroupUnavailable) is server_answers


def test_a_custom_kind_is_asked_for_in_its_group():
    """Custom resources need nothing that built-in ones don't."""
    server = Server(
        **{"/apis/ex.io/v1": {"resources": [{"name": "foos", "kind": "Foo", "namespaced": True}]}}
    )
    assert str(found(server, GroupVersionKind.of("ex.io/v1", "Foo"))) == "foos.ex.io"


def test_a_group_or_kind_that_is_not_served_is_a_sentence(core):
    """A manifest that names a CRD which is not installed says so in `status`; a typing error is named."""
    with pytest.raises(NotFound, match=r"https://one does not serve ex.io/v1, and so no Foo"):
        found(Server(), GroupVersionKind.of("ex.io/v1", "Foo"))
    with pytest.raises(NotFound, match=r"serves v1, but no Pot in it; did you mean Pod\?"):
        found(Server(**{"/api/v1": core}), GroupVersionKind.of("v1", "Pot"))


async def test_what_was_found_is_remembered_until_it_is_forgotten_and_what_was_missing_is_not(core):
    server = Server()
    discovery = Discovery(server.get, server="https://one")
    with pytest.raises(NotFound):
        await discovery.find(POD)
    server.groups["/api/v1"] = core
    assert (await discovery.find(POD)).plural == "pods"
    await discovery.find(POD)
    assert server.asked == ["/api/v1"] * 2
    discovery.forget(POD)
    await discovery.find(POD)
    assert server.asked == ["/api/v1"] * 3


V1 = {"version": "v1"}
APPS = {"name": "apps", "versions": [{"version": "v2beta1"}, V1], "preferredVersion": V1}
DEPLOYMENTS = {
    "resources": [
        {"name": "deployments/scale", "kind": "Scale", "namespaced": True},
        {"name": "deployments", "singularName": "deployment", "shortNames": ["deploy"], "kind": "Deployment"}
        | {"namespaced": True},
    ]
}
GROUPS = [{"name": name, "preferredVersion": {"version": "v1"}} for name in ("none", "broken", "apps")]
SERVED = {"/apis/apps": APPS, "/apis/apps/v1": DEPLOYMENTS, "/apis/apps/v2beta1": DEPLOYMENTS}
SERVED |= {"/apis": {"groups": GROUPS}, "/apis/broken/v1": {}}


def called(server, name):
    return asyncio.run(Discovery(server.get, server="https://one").find_resource(name))


@pytest.mark.parametrize(
    ("text", "group", "version", "resource"),
    [
        ("pods", "", None, "pods"),
        ("pods.v1", "", "v1", "pods"),
        ("pods.v1.", "", "v1", "pods"),
        ("v1/pods", "", "v1", "pods"),
        ("deployments.apps", "apps", None, "deployments"),
        ("deployments.v1.apps", "apps", "v1", "deployments"),
        ("apps/v1/deployments", "apps", "v1", "deployments"),
        ("widgets.v1alpha2.shop.example.com", "shop.example.com", "v1alpha2", "widgets"),
        ("widgets.shop.example.com", "shop.example.com", None, "widgets"),
    ],
)
def test_a_resource_is_named_as_people_do(text, group, version, resource):
    """As kubectl and client-go's dynamic factory take it, with a version or without."""
    assert ResourceName.parse(text) == ResourceName(group, version, resource)


@pytest.mark.parametrize(
    "text", ["", " pods", "apps/deployments", "a/b/c/d", "apps/v1/", "/pods", "x/v1/a.b"]
)
def test_what_is_no_name_of_a_resource_is_refused(text):
    """A slip is told at once, with what would have been right."""
    with pytest.raises(UsageError, match=r"deployments\.v1\.apps"):
        ResourceName.parse(text)


@pytest.mark.client_go("Dynamic factory")
@pytest.mark.parametrize(
    "name", ["deployments.apps", "deployment.apps", "deploy.apps", "deployments.v1.apps", "deploy"]
)
def test_a_resource_is_found_by_its_name(name):
    """Plural, singular or short, with its group or not, in the preferred version; a subresource is none."""
    found = called(Server(**SERVED), name)
    assert (str(found.gvk), found.plural, found.namespaced) == ("apps/v1 Deployment", "deployments", True)


def test_another_version_than_the_preferred_one_is_found():
    """It is named, or the group serves the resource in its second version only."""
    assert called(Server(**SERVED), "apps/v2beta1/deployments").gvk.version == "v2beta1"
    served = {**SERVED, "/apis/apps/v1": {"resources": []}}
    assert called(Server(**served), "deployments.apps").gvk.version == "v2beta1"


async def test_what_was_found_by_its_name_is_known_by_its_kind():
    """The watch that follows asks the server for nothing that it has told already."""
    server = Server(**SERVED)
    discovery = Discovery(server.get, server="https://one")
    by_name = await discovery.find_resource("deployments.apps")
    asked = len(server.asked)
    assert (by_name is await discovery.find(by_name.gvk), len(server.asked) - asked) == (True, 0)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("deploymnts.apps", r"serves no deploymnts\.apps; did you mean deployments\?"),
        ("foos.ex.io", r"https://one serves no foos\.ex\.io$"),
        ("deploymnts", r"serves no deploymnts; did you mean deployments\?"),
    ],
)
def test_a_resource_that_is_not_served_is_a_sentence(name, sentence):
    """A typing error, a missing CRD and a forgotten group each get an answer that helps."""
    with pytest.raises(NotFound, match=sentence):
        called(Server(**SERVED), name)
