"""Kinds, as a server serves them."""

import asyncio

import pytest

from declctl.errors import NotFound
from declctl.objects import GroupVersionKind
from declctl.transport.discovery import Discovery

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
        return self.groups[path]


def found(server, gvk):
    return asyncio.run(Discovery(server.get, server="https://one").find(gvk))


def test_a_kind_is_found_with_its_plural_scope_and_verbs(core):
    """A manifest names a kind, the server the URL; a subresource of the same kind does not mislead it."""
    pods = found(Server(**{"/api/v1": core}), POD)
    assert (pods.plural, pods.namespaced, pods.verbs) == ("pods", True, {"list", "watch", "get"})
    assert not found(Server(**{"/api/v1": core}), GroupVersionKind.of("v1", "Node")).namespaced


def test_a_custom_kind_is_asked_for_in_its_group():
    """Custom resources need nothing that built-in ones don't."""
    server = Server(
        **{"/apis/ex.io/v1": {"resources": [{"name": "foos", "kind": "Foo", "namespaced": True}]}}
    )
    assert str(found(server, GroupVersionKind.of("ex.io/v1", "Foo"))) == "foos.ex.io"


def test_a_group_that_is_not_served_is_a_sentence():
    """A manifest that names a CRD which is not installed says so in `status`."""
    with pytest.raises(NotFound, match=r"https://one does not serve ex.io/v1, and so no Foo"):
        found(Server(), GroupVersionKind.of("ex.io/v1", "Foo"))


def test_a_kind_that_is_not_served_gets_a_suggestion(core):
    """A typing error in a kind is answered with the kind that was meant."""
    with pytest.raises(NotFound, match=r"serves v1, but no Pot in it; did you mean Pod\?"):
        found(Server(**{"/api/v1": core}), GroupVersionKind.of("v1", "Pot"))


def test_what_was_found_is_remembered_until_it_is_forgotten(core):
    """Discovery costs one request for each kind, not one for each watch."""
    server = Server(**{"/api/v1": core})
    discovery = Discovery(server.get, server="https://one")

    async def go():
        await discovery.find(POD)
        await discovery.find(POD)
        assert server.asked == ["/api/v1"]
        discovery.forget(POD)
        await discovery.find(POD)
        assert server.asked == ["/api/v1", "/api/v1"]

    asyncio.run(go())


def test_a_kind_that_was_missing_is_asked_for_again(core):
    """A CRD that is installed later is found, without a restart."""
    server = Server()
    discovery = Discovery(server.get, server="https://one")

    async def go():
        with pytest.raises(NotFound):
            await discovery.find(POD)
        server.groups["/api/v1"] = core
        assert (await discovery.find(POD)).plural == "pods"

    asyncio.run(go())
